//! Present epoch and activity of the run, for the samples of memory.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

static EPOCH: AtomicU64 = AtomicU64::new(0);
static ACTIVITY: AtomicU8 = AtomicU8::new(0);

/// Phases of a run that differ in their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Activity {
    /// Everything before the first step, and after the last.
    Setup,
    /// Steps on real batches that measure memory.
    Probe,
    /// Training steps.
    Training,
    /// Losses of the validation graphs.
    Validation,
    /// Writing of checkpoints.
    Checkpoint,
    /// Scoring of difficulties or test graphs.
    Scoring,
}

impl Activity {
    const ALL: [Self; 6] =
        [Self::Setup, Self::Probe, Self::Training, Self::Validation, Self::Checkpoint, Self::Scoring];

    /// Name in `memory.csv`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Probe => "probe",
            Self::Training => "training",
            Self::Validation => "validation",
            Self::Checkpoint => "checkpoint",
            Self::Scoring => "scoring",
        }
    }
}

/// Sets the epoch of later samples.
pub fn set_epoch(epoch: u64) {
    EPOCH.store(epoch, Ordering::Relaxed);
}

/// Sets the activity of later samples.
pub fn set_activity(activity: Activity) {
    ACTIVITY.store(activity as u8, Ordering::Relaxed);
}

/// Present activity of the run.
pub fn current_activity() -> Activity {
    now().1
}

/// Present epoch and activity.
pub(super) fn now() -> (u64, Activity) {
    let activity = Activity::ALL[usize::from(ACTIVITY.load(Ordering::Relaxed))];
    (EPOCH.load(Ordering::Relaxed), activity)
}
