//! Memory: counted, shown, and kept inside limits.

use std::sync::atomic::{AtomicU64, Ordering};

use tch::Device;

static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Says which epoch samples belong to.
pub fn set_epoch(epoch: u64) {
    EPOCH.store(epoch, Ordering::Relaxed);
}

/// Starts a new peak.
pub fn reset_peak(_device: Device) {}

/// Highest number of bytes since [`reset_peak`].
pub fn peak_bytes(_device: Device) -> u64 {
    0
}
