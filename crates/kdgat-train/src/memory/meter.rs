//! Present and peak memory of tensors on a device.
//!
//! The counting allocator counts host tensors to the byte, by purpose. CUDA's allocator counts a GPU's tensors, each
//! rounded up to 512 bytes, without purposes; what CUDA graphs use in a replay is added, because no other tensor can.

use tch::Device;

use kdgat_torch::allocator::{self, Phase, Stats};
use kdgat_torch::device;

/// Reader of the memory counts of one device.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    device: Device,
}

/// Memory counts at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// In use by tensors now, and on a GPU by CUDA graphs.
    pub current_bytes: u64,
    /// Peak since the last [`Meter::reset_peak`].
    pub peak_bytes: u64,
    /// Reserved from the system or the driver: tensors, rounding and cached memory.
    pub reserved_bytes: u64,
    /// Counts of the host, by purpose.
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
    /// A meter for `device`.
    pub fn new(device: Device) -> Self {
        Self { device }
    }

    /// The device.
    pub fn device(self) -> Device {
        self.device
    }

    /// Reads the counts. They are zero if a GPU does not answer.
    pub fn read(self) -> Reading {
        let host = allocator::stats();
        if !self.device.is_cuda() {
            let (current_bytes, peak_bytes, reserved_bytes) = (host.current, host.peak, host.reserved());
            return Reading { current_bytes, peak_bytes, reserved_bytes, host };
        }
        let gpu = device::device_memory(self.device).unwrap_or_default();
        let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
        Reading {
            current_bytes: gpu.occupied_bytes(),
            peak_bytes: gpu.peak_occupied_bytes(),
            reserved_bytes: bytes(gpu.reserved),
            host,
        }
    }

    /// Restarts the peaks of the device and of the host.
    pub fn reset_peak(self) {
        allocator::reset_peak();
        if self.device.is_cuda()
            && let Err(error) = device::reset_device_peak(self.device)
        {
            tracing::debug!("cannot reset the memory peak of {:?}: {error}", self.device);
        }
    }

    /// Frees memory cached by the allocators of the host and of the device.
    pub fn release_kept(self) {
        allocator::release_cached();
        if self.device.is_cuda()
            && let Err(error) = device::empty_cache(self.device)
        {
            tracing::debug!("cannot empty the cache of {:?}: {error}", self.device);
        }
    }
}
