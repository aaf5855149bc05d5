//! Synthetic attacks: logs with attacks that are made from the attack-free training logs of a dataset.
//!
//! [`ensure_synthetic`] writes one log for each attack-free log and each [`SyntheticKind`], and a record of them
//! ([`SyntheticRecord`]); [`Dataset::with_synthetic`] adds them to the dataset. `docs/data.md` describes the attacks. The same logs
//! and options give the same frames on every machine, with any number of threads.
//!
//! The frames of a source log are divided into [`SourceBlock`]s for training and validation. Everything in a block of a synthetic
//! log, forged payloads included, comes from one block of its source. So no frame of a training window is in a validation window
//! of another log.

mod attacks;
mod bus;
mod episodes;
mod payloads;
mod record;
mod stretches;
mod traffic;
mod write;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::dataset::{Dataset, Role, SourceFile};
use super::error::CanError;
use super::formats::{Format, ReadOptions};
use crate::frame::Frame;
use crate::simulator::random::Stream;
use bus::Bus;
use episodes::Shares;

pub use attacks::SyntheticKind;
pub use record::{
    BlockSet, CopiedBlock, RECORD_NAME, SourceBlock, SourceLog, SyntheticEpisode, SyntheticFile, SyntheticOrigin,
    SyntheticRecord,
};

/// Name of the dataset's folder that the synthetic logs are in.
pub const FOLDER: &str = "train_03_synthetic_attacks";
/// Version of the synthetic attacks: raised whenever the same logs and options give other frames.
pub const SYNTHETIC_VERSION: u32 = 1;

/// Frames of the windows that [`SyntheticOptions::share`] counts.
pub(super) const WINDOW_FRAMES: usize = 100;
/// Smallest allowed [`SyntheticOptions::most_frames`].
const LEAST_FRAMES: u64 = 10_000;

/// Options of synthetic attacks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyntheticOptions {
    /// Seed of everything random.
    pub seed: u64,
    /// Share of the windows of 100 frames that have an attack, approximately; above 0, at most 1.
    pub share: f64,
    /// Share of the pauses between attacks in which a slow ID sends on change, 0 to 1: such frames come early but are no attack.
    pub event_share: f64,
    /// Largest number of attack-free frames that attacks are put into, all synthetic logs together. If the logs have more, a
    /// contiguous stretch of each block is used.
    pub most_frames: u64,
    /// Kinds of attacks, each in logs of its own.
    pub kinds: Vec<SyntheticKind>,
}

impl Default for SyntheticOptions {
    fn default() -> Self {
        Self { seed: 1, share: 0.5, event_share: 0.5, most_frames: 2_000_000, kinds: SyntheticKind::ADDED.to_vec() }
    }
}

impl SyntheticOptions {
    fn check(&self) -> Result<(), CanError> {
        let invalid = |option, value, expected| Err(CanError::InvalidSyntheticOption { option, value, expected });
        if !(self.share > 0.0 && self.share <= 1.0) {
            return invalid("share", self.share.to_string(), "a number above 0, at most 1");
        }
        if !(0.0..=1.0).contains(&self.event_share) {
            return invalid("event_share", self.event_share.to_string(), "a number from 0 to 1");
        }
        if self.most_frames < LEAST_FRAMES {
            return invalid("most_frames", self.most_frames.to_string(), "at least 10000 frames");
        }
        let repeated = self.kinds.iter().enumerate().find(|(index, kind)| self.kinds[..*index].contains(kind));
        match repeated {
            Some((_, kind)) => invalid("kinds", format!("{kind} twice"), "each kind once"),
            None if self.kinds.is_empty() => invalid("kinds", "empty".to_owned(), "at least one kind"),
            None => Ok(()),
        }
    }
}

/// Copies attack-free frames, in order of time, with attacks of one kind in about a `share` of the windows of 100 frames. Attack frames are
/// labelled. The same frames and seed give the same copy.
pub fn with_attacks(frames: &[Frame], kind: SyntheticKind, share: f64, seed: u64) -> Vec<Frame> {
    let shares = Shares { attacks: share, events: 0.0 };
    episodes::attack(frames, kind, shares, Stream::new(seed).child(kind as u64), &mut Bus::default()).frames
}

/// Copies attack-free frames, in order of time, without those of one ID from some moment on; returns the copy and the ID. `None` if no ID sends often
/// enough to be missed. The same frames and seed give the same copy.
pub fn with_removal(frames: &[Frame], seed: u64) -> Option<(Vec<Frame>, u32)> {
    let kind = SyntheticKind::Removal;
    // One ID is removed, whatever the shares.
    let shares = Shares { attacks: 0.5, events: 0.0 };
    let attacked = episodes::attack(frames, kind, shares, Stream::new(seed).child(kind as u64), &mut Bus::default());
    let target = attacked.episodes.first()?.targets.first()?;
    Some((attacked.frames, u32::from_str_radix(target, 16).ok()?))
}

/// Divides an attack-free log with this number of frames into blocks for training and validation, in ascending order and without overlap.
pub type Divide<'a> = &'a (dyn Fn(&SourceFile, u64) -> Vec<SourceBlock> + Sync);

/// Makes sure that `target` holds the synthetic attacks of these logs, read in this format and with these settings, and options; writes them if `target` does not exist or holds
/// those of other logs, options or versions. Returns true if they were written.
///
/// # Errors
/// When an option is invalid, the dataset has no attack-free training log or too few frames in them, a log cannot be read or has times
/// that cannot be, `target` holds something else, or the disk is full or read-only.
pub fn ensure_synthetic(
    dataset: &Dataset,
    options: &SyntheticOptions,
    format: Option<Format>,
    read: &ReadOptions,
    divide: Divide<'_>,
    target: &Path,
) -> Result<bool, CanError> {
    let wanted = Wanted::new(dataset, options, format, read, divide)?;
    if record::holds(&wanted, target)? {
        return Ok(false);
    }
    write::write(&wanted, target)
}

/// True if `target` holds the synthetic attacks of these logs and options; writes none.
///
/// # Errors
/// Those of [`ensure_synthetic`] that concern the options and the logs.
pub fn has_synthetic(
    dataset: &Dataset,
    options: &SyntheticOptions,
    format: Option<Format>,
    read: &ReadOptions,
    divide: Divide<'_>,
    target: &Path,
) -> Result<bool, CanError> {
    record::holds(&Wanted::new(dataset, options, format, read, divide)?, target)
}

/// The synthetic attacks that a caller asks for.
struct Wanted<'a> {
    dataset: &'a Dataset,
    /// The attack-free training logs.
    logs: Vec<&'a SourceFile>,
    options: &'a SyntheticOptions,
    format: Option<Format>,
    read: &'a ReadOptions,
    divide: Divide<'a>,
}

impl<'a> Wanted<'a> {
    fn new(
        dataset: &'a Dataset,
        options: &'a SyntheticOptions,
        format: Option<Format>,
        read: &'a ReadOptions,
        divide: Divide<'a>,
    ) -> Result<Self, CanError> {
        options.check()?;
        let logs: Vec<&SourceFile> = dataset.files_of(Role::TrainAttackFree).collect();
        if logs.is_empty() {
            let detail = "has no attack-free training log".to_owned();
            return Err(CanError::NoSourceOfAttacks { root: dataset.root.clone(), detail });
        }
        Ok(Self { dataset, logs, options, format, read, divide })
    }
}
