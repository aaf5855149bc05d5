//! A store built in parts by other processes: which parts exist, and their merge once all exist.
//!
//! [`Gathering`] holds the store's lock from the first check until the store is complete: other processes that need the store
//! wait, and no two gather the same parts. The lock ends with the process; the parts, and the notes on the work in
//! [`Gathering::folder`], stay for the next one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use kdgat_can::Dataset;

use super::Store;
use super::build::checked_plan;
use super::options::BuildOptions;
use super::part::{Share, is_complete, merge_into, part_place};
use super::place::{Place, State};
use super::plan::Plan;
use super::progress::{Event, Progress};
use crate::StoreError;

/// State of a store that is built in parts.
pub enum Gathered {
    /// The store is complete.
    Ready(Box<Store>),
    /// Parts must be built first.
    Parts(Box<Gathering>),
}

/// The exclusive right to merge a store from its parts.
pub struct Gathering {
    plan: Plan,
    place: Place,
    stores_dir: PathBuf,
    parts: usize,
    _lock: File,
}

/// Opens the store of `dataset` under `stores_dir` if it exists, after any other process building it has ended. Removes parts that
/// have already been merged into the store.
///
/// # Errors
/// Those of [`open_or_build`](super::open_or_build).
pub fn gather(
    dataset: &Dataset,
    options: &BuildOptions,
    parts: usize,
    stores_dir: &Path,
    progress: &dyn Progress,
) -> Result<Gathered, StoreError> {
    dataset.warn_of_passed_over();
    let plan = checked_plan(dataset, options)?;
    let place = Place::new(stores_dir, plan.store_name());
    let lock = place.lock(progress)?;
    let state = place.state(dataset, &plan)?;
    let gathering = Gathering { plan, place, stores_dir: stores_dir.to_path_buf(), parts, _lock: lock };
    match state {
        State::Fits(store) => {
            if gathering.folder().exists() {
                gathering.clear()?;
            }
            return Ok(Gathered::Ready(store));
        }
        State::Missing => {}
        State::Unfit(reason) => progress.report(&Event::Rebuilding { reason: &reason }),
    }
    Ok(Gathered::Parts(Box::new(gathering)))
}

/// The folder for notes on building `parts` parts, and the store's name; creates nothing.
///
/// # Errors
/// When a log does not exist any more.
pub fn notes_of(
    dataset: &Dataset,
    options: &BuildOptions,
    parts: usize,
    stores_dir: &Path,
) -> Result<(PathBuf, String), StoreError> {
    let plan = checked_plan(dataset, options)?;
    Ok((notes(&Place::new(stores_dir, plan.store_name()), parts), plan.store_name()))
}

fn notes(place: &Place, parts: usize) -> PathBuf {
    place.notes(&format!("{parts}-parts"))
}

impl Gathering {
    /// The store's name.
    pub fn name(&self) -> String {
        self.plan.store_name()
    }

    /// A folder for notes on the work, removed once the store is complete.
    pub fn folder(&self) -> PathBuf {
        notes(&self.place, self.parts)
    }

    /// True if a part exists, is complete, and was built from the current logs.
    pub fn has(&self, share: Share) -> bool {
        is_complete(&part_place(&self.plan, share, &self.stores_dir).folder, &self.plan, share)
    }

    /// Merges all parts, which must exist, into the store and removes them.
    ///
    /// # Errors
    /// Those of [`merge`](super::merge).
    pub fn merge(self, progress: &dyn Progress) -> Result<Store, StoreError> {
        let folders: Vec<PathBuf> = self.places().map(|place| place.folder).collect();
        let store = merge_into(&folders, &self.plan, &self.place, progress)?;
        self.clear()?;
        Ok(store)
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        let share = |part| Share { part, parts: self.parts };
        (1..=self.parts).map(move |part| part_place(&self.plan, share(part), &self.stores_dir))
    }

    /// Removes the parts, then the notes: parts may exist as long as the notes do.
    fn clear(&self) -> Result<(), StoreError> {
        for place in self.places() {
            place.remove()?;
        }
        let folder = self.folder();
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(StoreError::io("remove", &folder)(error)),
            _ => Ok(()),
        }
    }
}
