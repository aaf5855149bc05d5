//! What tensors take on a device, now and at most.
//!
//! Host tensors are counted by the allocator to the byte, and by what they are for; a GPU's by CUDA's allocator, which
//! rounds each up to 512 bytes and knows no purposes.

use tch::Device;

use kdgat_torch::allocator::{self, Phase, Stats};
use kdgat_torch::device;

/// Counts of one device.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    device: Device,
}

/// The counts at one moment. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// In tensors now.
    pub current_bytes: u64,
    /// The most since the last [`Meter::reset_peak`].
    pub peak_bytes: u64,
    /// Taken from the system or the driver: tensors, roundings and what is kept for later.
    pub reserved_bytes: u64,
    /// The host's counts, by what they are for.
    pub host: Stats,
}

impl Reading {
    /// Host bytes of a purpose now.
    pub fn phase_bytes(&self, phase: Phase) -> u64 {
        phase.of(&self.host.phases)
    }

    /// Host bytes of a purpose at the moment of the host's peak.
    pub fn phase_bytes_at_peak(&self, phase: Phase) -> u64 {
        phase.of(&self.host.phases_at_peak)
    }
}

impl Meter {
    /// The counts of `device`.
    pub fn new(device: Device) -> Self {
        Self { device }
    }

    /// The device.
    pub fn device(self) -> Device {
        self.device
    }

    /// The counts now. A GPU that does not answer counts nothing.
    pub fn read(self) -> Reading {
        let host = allocator::stats();
        if !self.device.is_cuda() {
            let (current_bytes, peak_bytes, reserved_bytes) = (host.current, host.peak, host.reserved());
            return Reading { current_bytes, peak_bytes, reserved_bytes, host };
        }
        let gpu = device::device_memory(self.device).unwrap_or_default();
        let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
        Reading {
            current_bytes: bytes(gpu.allocated),
            peak_bytes: bytes(gpu.peak_allocated),
            reserved_bytes: bytes(gpu.reserved),
            host,
        }
    }

    /// Lets the peaks of the device and of the host begin anew.
    pub fn reset_peak(self) {
        allocator::reset_peak();
        if self.device.is_cuda()
            && let Err(error) = device::reset_device_peak(self.device)
        {
            tracing::debug!("the peak of {:?} is not reset: {error}", self.device);
        }
    }

    /// Returns kept memory to where it came from, on the device and on the host.
    pub fn release_kept(self) {
        allocator::release_cached();
        if self.device.is_cuda()
            && let Err(error) = device::empty_cache(self.device)
        {
            tracing::debug!("the cache of {:?} is not emptied: {error}", self.device);
        }
    }
}
