//! What the run is doing at the moment: the epoch and the activity that a sample of memory belongs to.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

static EPOCH: AtomicU64 = AtomicU64::new(0);
static ACTIVITY: AtomicU8 = AtomicU8::new(0);

/// Stretches of a run that differ in their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Activity {
    /// Everything before the first step, and after the last.
    Setup,
    /// Steps on real batches to learn what they take.
    Probe,
    /// Steps.
    Training,
    /// Losses of the validation graphs.
    Validation,
    /// Weights are written.
    Checkpoint,
    /// Difficulties or test scores.
    Scoring,
}

impl Activity {
    const ALL: [Self; 6] =
        [Self::Setup, Self::Probe, Self::Training, Self::Validation, Self::Checkpoint, Self::Scoring];

    /// As `memory.csv` calls it.
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

/// Says which epoch samples belong to.
pub fn set_epoch(epoch: u64) {
    EPOCH.store(epoch, Ordering::Relaxed);
}

/// Says what samples belong to from now on.
pub fn set_activity(activity: Activity) {
    ACTIVITY.store(activity as u8, Ordering::Relaxed);
}

/// What the run is doing now.
pub fn current_activity() -> Activity {
    now().1
}

/// Epoch and activity of this moment.
pub(super) fn now() -> (u64, Activity) {
    let activity = Activity::ALL[usize::from(ACTIVITY.load(Ordering::Relaxed))];
    (EPOCH.load(Ordering::Relaxed), activity)
}
