//! Parts of a store, built by several machines and merged into the store that one machine would have built.
//!
//! A part is a folder of shards and a file `part.json`, which describes the whole store, the number of this part, and the
//! results. Each part holds whole logs; a part may be empty. All machines must see all logs, at least by name, size
//! and time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use kdgat_can::Dataset;
use serde::{Deserialize, Serialize};

use super::Store;
use super::build::{checked_plan, finish, warn_of_short_logs};
use super::ingest::ingest;
use super::journal::{JOURNAL, UnitRecord};
use super::manifest::ShardEntry;
use super::options::BuildOptions;
use super::place::{Place, UnfinishedFolder, sync_folder};
use super::plan::{Plan, Unit};
use super::progress::{Event, Progress};
use crate::StoreError;

/// Name of the file that describes a part.
pub const PART: &str = "part.json";

/// Largest number of parts of a store.
pub const MOST_PARTS: usize = 10_000;

/// Number of a part and of all parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Number of the part, from 1.
    pub part: usize,
    /// Number of all parts.
    pub parts: usize,
}

impl std::str::FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
        match numbers {
            Some((part, parts)) if parts <= MOST_PARTS && (1..=parts).contains(&part) => Ok(Self { part, parts }),
            _ => Err(format!(
                "{text:?} is not a part such as 2/8 (from 1/8 to 8/8); there can be up to {MOST_PARTS} parts"
            )),
        }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.part, self.parts)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Part {
    plan: Plan,
    /// Bits of two of the options, whose last digits JSON does not preserve.
    validation_fraction_bits: u64,
    max_reject_share_bits: u64,
    share: Share,
    units: Vec<Unit>,
    records: Vec<UnitRecord>,
}

/// Content of `part.json`: the part as text, and its checksum.
#[derive(Serialize, Deserialize)]
struct Sealed {
    blake3: String,
    part: String,
}

/// Builds one part of the store of `dataset` under `stores_dir`, unless it exists; returns its folder. Resumes a build that
/// was killed.
///
/// # Errors
/// Those of [`open_or_build`](super::open_or_build).
pub fn build_part(
    dataset: &Dataset,
    options: &BuildOptions,
    share: Share,
    stores_dir: &Path,
    progress: &dyn Progress,
) -> Result<PathBuf, StoreError> {
    dataset.warn_of_passed_over();
    let plan = checked_plan(dataset, options)?;
    let place = part_place(&plan, share, stores_dir);
    let _lock = place.lock(progress)?;
    if is_complete(&place.folder, &plan, share) {
        return Ok(place.folder);
    }
    place.remove_leftovers()?;
    let building = UnfinishedFolder::new(place.building());
    let units = plan.units(dataset)?;
    let mine: Vec<usize> =
        (0..units.len()).filter(|&unit| plan.part_of(&units[unit], share.parts) == share.part - 1).collect();
    let mut records = ingest(dataset, &plan, &units, &mine, &building.path, progress)?;
    records.iter_mut().for_each(|record| record.carry = None);
    let shards = records.iter().flat_map(|record| &record.shards);
    let (graphs, bytes) = shards.fold((0, 0), |(graphs, bytes), shard| (graphs + shard.graphs, bytes + shard.bytes));
    let validation_fraction_bits = plan.options.validation_fraction.to_bits();
    let max_reject_share_bits = plan.options.max_reject_share.to_bits();
    let part = Part { plan, validation_fraction_bits, max_reject_share_bits, share, units, records };
    part.write(&building.path)?;
    let journal = building.path.join(JOURNAL);
    fs::remove_file(&journal).map_err(StoreError::io("remove", &journal))?;
    sync_folder(&building.path)?;
    place.replace_with(building)?;
    progress.report(&Event::Finished { folder: &place.folder, graphs, bytes });
    Ok(place.folder)
}

/// Merges all parts of a store into the store under `stores_dir`, byte for byte the one that one machine would have built. The
/// parts are not changed.
///
/// # Errors
/// When a part is missing, given twice, damaged, or of another store; when the disk is full.
pub fn merge(parts: &[PathBuf], stores_dir: &Path, progress: &dyn Progress) -> Result<Store, StoreError> {
    let read = parts.iter().map(|folder| Ok((folder.as_path(), Part::read(folder)?)));
    let read = read.collect::<Result<Vec<_>, StoreError>>()?;
    let plan = check_together(&read)?;
    let place = Place::new(stores_dir, plan.store_name());
    let _lock = place.lock(progress)?;
    join(&read, &plan, &place, progress)
}

/// The same as [`merge`] for a caller that holds the place's lock and knows the plan.
pub(super) fn merge_into(
    parts: &[PathBuf],
    plan: &Plan,
    place: &Place,
    progress: &dyn Progress,
) -> Result<Store, StoreError> {
    let read = parts.iter().map(|folder| Ok((folder.as_path(), Part::read(folder)?)));
    let read = read.collect::<Result<Vec<_>, StoreError>>()?;
    let found = check_together(&read)?;
    if found.identity() != plan.identity() {
        let detail = "a log has changed since they were built; start again".to_string();
        return Err(StoreError::Parts { detail });
    }
    join(&read, plan, place, progress)
}

/// The place of a part, beside that of the store.
pub(super) fn part_place(plan: &Plan, share: Share, stores_dir: &Path) -> Place {
    Place::new(stores_dir, format!("{}.part-{}-of-{}", plan.store_name(), share.part, share.parts))
}

/// True if a folder holds this part of this store with all its shards. Their checksums are compared when parts are merged.
pub(super) fn is_complete(folder: &Path, plan: &Plan, share: Share) -> bool {
    let whole =
        |shard: &ShardEntry| fs::metadata(folder.join(&shard.name)).is_ok_and(|metadata| metadata.len() == shard.bytes);
    Part::read(folder).is_ok_and(|part| {
        part.plan.identity() == plan.identity()
            && part.share == share
            && part.records.iter().flat_map(|record| &record.shards).all(whole)
    })
}

fn join(parts: &[(&Path, Part)], plan: &Plan, place: &Place, progress: &dyn Progress) -> Result<Store, StoreError> {
    place.remove_leftovers()?;
    let building = UnfinishedFolder::new(place.building());
    if building.path.exists() {
        fs::remove_dir_all(&building.path).map_err(StoreError::io("remove", &building.path))?;
    }
    fs::create_dir_all(&building.path).map_err(StoreError::io("create", &building.path))?;
    let mut records = BTreeMap::new();
    let mut origins: BTreeMap<PathBuf, (&Path, Share)> = BTreeMap::new();
    for (folder, part) in parts {
        for record in &part.records {
            for shard in &record.shards {
                let to = building.path.join(&shard.name);
                place_shard(&folder.join(&shard.name), &to)?;
                origins.insert(to, (folder, part.share));
            }
            records.insert(record.unit, record.clone());
        }
    }
    let store = finish(plan, records.into_values().collect(), place, building, progress);
    let store = store.map_err(|error| of_part(error, &origins))?;
    warn_of_short_logs(&store);
    Ok(store)
}

/// Attributes a damaged shard to the part it came from: the folder in which parts are merged has been removed by then.
fn of_part(error: StoreError, origins: &BTreeMap<PathBuf, (&Path, Share)>) -> StoreError {
    match error {
        StoreError::Damaged { shard, detail } => match origins.get(&shard) {
            Some((folder, share)) => {
                let (folder, name) = (folder.display(), shard.file_name().unwrap_or_default().display());
                let detail = format!(
                    "{folder}/{name} is damaged ({detail}): delete the folder {folder} and build part {share} again with \
                     `kdgat data build --part {share}`"
                );
                StoreError::Parts { detail }
            }
            None => StoreError::Damaged { shard, detail },
        },
        other => other,
    }
}

/// Checks that the parts belong to one store and that each is given once; returns their plan.
fn check_together(parts: &[(&Path, Part)]) -> Result<Plan, StoreError> {
    let mismatch = |detail: String| Err(StoreError::Parts { detail });
    let Some((first_folder, first)) = parts.first() else {
        return mismatch("no part is given".to_string());
    };
    let mut given: BTreeMap<usize, &Path> = BTreeMap::new();
    for (folder, part) in parts {
        if let Some(difference) = difference(first, part) {
            return mismatch(format!("{} and {} {difference}", first_folder.display(), folder.display()));
        }
        if let Some(before) = given.insert(part.share.part, folder) {
            let (share, before, folder) = (part.share, before.display(), folder.display());
            return mismatch(format!("part {share} is given twice, as {before} and as {folder}: give it once"));
        }
    }
    let missing = (1..=first.share.parts).filter(|part| !given.contains_key(part));
    let missing: Vec<String> = missing.map(|part| Share { part, parts: first.share.parts }.to_string()).collect();
    if !missing.is_empty() {
        return mismatch(format!("{} is missing: build it with `kdgat data build --part`", missing.join(", ")));
    }
    // Parts that this program wrote from one plan cannot differ; checked because a store with a log twice would be misleading.
    let mut found = vec![0; first.units.len()];
    let records = parts.iter().flat_map(|(_, part)| &part.records);
    records.for_each(|record| found.get_mut(record.unit).into_iter().for_each(|count| *count += 1));
    if let Some(unit) = found.iter().position(|&count| count != 1) {
        let logs = first.units[unit].logs();
        let log = first.plan.logs.get(logs.start).map_or(String::new(), |log| format!("{}/{}", log.folder, log.name));
        return mismatch(format!("{log} is in {} of the parts, expected one", found[unit]));
    }
    Ok(first.plan.clone())
}

/// Describes why two parts do not belong to one store.
fn difference(one: &Part, other: &Part) -> Option<String> {
    let (a, b) = (&one.plan, &other.plan);
    if a.identity() == b.identity() && one.units == other.units {
        return (one.share.parts != other.share.parts).then(|| {
            let (one, other) = (one.share, other.share);
            format!("are parts {one} and {other} of the same store: build all with the same number of parts")
        });
    }
    if a.dataset != b.dataset {
        return Some(format!("are of different datasets ({} and {})", a.dataset, b.dataset));
    }
    if a.options.canonical() != b.options.canonical() {
        return Some("were built with different options".to_string());
    }
    let differs = a.logs.iter().zip(&b.logs).find(|(a, b)| a != b).map(|(a, _)| a);
    let differs = differs.or(a.logs.get(b.logs.len())).or(b.logs.get(a.logs.len()));
    Some(match differs {
        Some(log) => format!(
            "saw different logs: {}/{} differs in size, in time or in the label file beside it",
            log.folder, log.name
        ),
        None => "were built by different versions of the program".to_string(),
    })
}

/// Hard-links the file if possible, otherwise copies it.
fn place_shard(from: &Path, to: &Path) -> Result<(), StoreError> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to).map_err(StoreError::io("copy", from))?;
    File::open(to).and_then(|file| file.sync_all()).map_err(StoreError::io("sync", to))
}

impl Part {
    fn read(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(PART);
        let bytes = fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                StoreError::Parts { detail: format!("{} holds no part of a store (no {PART})", folder.display()) }
            }
            _ => StoreError::io("read", &path)(error),
        })?;
        let damaged = || StoreError::Parts {
            detail: format!("{} is damaged, or of another version: build the part again", path.display()),
        };
        let sealed: Sealed = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
        if blake3::hash(sealed.part.as_bytes()).to_hex().as_str() != sealed.blake3 {
            return Err(damaged());
        }
        let mut part: Self = serde_json::from_str(&sealed.part).map_err(|_| damaged())?;
        part.plan.options.validation_fraction = f64::from_bits(part.validation_fraction_bits);
        part.plan.options.max_reject_share = f64::from_bits(part.max_reject_share_bits);
        Ok(part)
    }

    fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let path = folder.join(PART);
        let failed = || StoreError::io("write", &path);
        let part = serde_json::to_string(self).map_err(|error| failed()(error.into()))?;
        let blake3 = blake3::hash(part.as_bytes()).to_hex().to_string();
        let json = serde_json::to_vec(&Sealed { blake3, part }).map_err(|error| failed()(error.into()))?;
        let mut file = File::create(&path).map_err(StoreError::io("create", &path))?;
        file.write_all(&json).and_then(|()| file.sync_all()).map_err(failed())
    }
}
