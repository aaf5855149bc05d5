//! Memory: counted, shown, and kept inside limits.
//!
//! [`install`] puts the counting allocator in place before the first tensor, [`start_devices`] loads CUDA with its
//! settings. A [`Meter`] reads what tensors take now and at most, a [`Sampler`] writes it into a run's `memory.csv`.

mod activity;
pub mod budget;
mod gpu;
pub mod limits;
mod meter;
pub mod probe;
mod process;
mod reclaim;
mod recovery;
mod sampler;
mod start;

pub use activity::{Activity, current_activity, set_activity, set_epoch};
pub use gpu::used_bytes as gpu_used_bytes;
pub use meter::{Meter, Reading};
pub use process::{ProcessMemory, available_bytes, physical_bytes};
pub use reclaim::{Reclaim, register as register_reclaim};
pub use recovery::{MicroBatch, Remedy, by_halves, is_out_of_memory, retry_on_oom};
pub use sampler::Sampler;
pub use start::{GpuCap, Started, fatal_in_a_capture, install, start_devices};

use tch::Device;

/// Starts a new peak.
pub fn reset_peak(device: Device) {
    Meter::new(device).reset_peak();
}

/// Highest number of bytes in tensors since [`reset_peak`].
pub fn peak_bytes(device: Device) -> u64 {
    Meter::new(device).read().peak_bytes
}

/// Bytes in tensors now.
pub fn current_bytes(device: Device) -> u64 {
    Meter::new(device).read().current_bytes
}
