//! Memory: counts, limits, plans, and recovery when it runs out.
//!
//! [`install`] sets the counting allocator before the first tensor, [`start_devices`] loads CUDA with its settings. A [`Meter`]
//! reads present and peak bytes of tensors, a [`Sampler`] writes them to a run's `memory.csv`.

mod activity;
pub mod budget;
pub mod forecast;
mod gpu;
pub mod limits;
mod meter;
pub mod probe;
mod process;
mod reclaim;
mod recovery;
pub mod rehearsal;
mod sampler;
mod start;

pub use activity::{Activity, current_activity, set_activity, set_epoch};
pub use gpu::{load_nvml, used_bytes as gpu_used_bytes};
pub use meter::{Meter, Reading};
pub use process::{ProcessMemory, available_bytes, physical_bytes};
pub use reclaim::{Reclaim, register as register_reclaim};
pub use recovery::{MicroBatch, Remedy, by_halves, is_out_of_memory, retry_on_oom};
pub use sampler::Sampler;
pub use start::{GpuCap, Started, fatal_in_a_capture, install, start_devices};

use tch::Device;

/// Restarts the peak of a device and of the host.
pub fn reset_peak(device: Device) {
    Meter::new(device).reset_peak();
}

/// Peak bytes of tensors since [`reset_peak`].
pub fn peak_bytes(device: Device) -> u64 {
    Meter::new(device).read().peak_bytes
}

/// Present bytes of tensors.
pub fn current_bytes(device: Device) -> u64 {
    Meter::new(device).read().current_bytes
}
