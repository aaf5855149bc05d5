//! Memory of a GPU, and of torch's allocator on it.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use tch::{Device, TchError};

use super::{DeviceError, cuda_index};
use crate::ffi;

/// Memory statistics of one GPU. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DeviceMemory {
    /// Bytes in live tensors, as rounded by the allocator.
    pub allocated: i64,
    /// Maximum of `allocated` since [`reset_device_peak`].
    pub peak_allocated: i64,
    /// Bytes taken from the driver, in use or cached.
    pub reserved: i64,
    /// Maximum of `reserved` since [`reset_device_peak`].
    pub peak_reserved: i64,
    /// Bytes in live tensors, as requested.
    pub requested: i64,
    /// Maximum of `requested` since [`reset_device_peak`].
    pub peak_requested: i64,
    /// Number of times the allocator had to empty its cache and retry.
    pub retries: i64,
    /// Number of failed allocations.
    pub failures: i64,
    /// Free bytes on the card, considering all processes.
    pub free_bytes: u64,
    /// Total bytes of the card.
    pub total_bytes: u64,
}

impl DeviceMemory {
    /// Bytes that tensors could use if none were allocated now: free on the card or reserved by torch's allocator,
    /// minus the memory that CUDA graphs use in a replay.
    pub fn usable_bytes(&self) -> u64 {
        self.usable_beside(super::captured_bytes())
    }

    fn usable_beside(&self, captured_bytes: u64) -> u64 {
        (self.free_bytes + u64::try_from(self.reserved).unwrap_or(0)).saturating_sub(captured_bytes)
    }

    /// Bytes in live tensors and in CUDA graphs, which no other tensor can use.
    pub fn occupied_bytes(&self) -> u64 {
        u64::try_from(self.allocated).unwrap_or(0) + super::captured_bytes()
    }

    /// Maximum of [`Self::occupied_bytes`] since [`reset_device_peak`].
    pub fn peak_occupied_bytes(&self) -> u64 {
        let now = u64::try_from(self.peak_allocated).unwrap_or(0) + super::captured_bytes();
        now.max(PEAK_BEFORE_CHANGE.load(Ordering::Relaxed))
    }
}

/// Peak of [`DeviceMemory::occupied_bytes`] before the memory of CUDA graphs last changed. The allocator counts only tensors, so its peaks before and
/// after a change do not compare.
static PEAK_BEFORE_CHANGE: AtomicU64 = AtomicU64::new(0);

/// Makes `change` to the memory that CUDA graphs use, and keeps the peak before it.
pub(super) fn change_captured(device: Device, change: impl FnOnce()) -> Result<(), DeviceError> {
    let peak = device_memory(device).map(|memory| memory.peak_occupied_bytes());
    change();
    reset_device_peak(device)?;
    PEAK_BEFORE_CHANGE.store(peak?, Ordering::Relaxed);
    Ok(())
}

/// Memory statistics of a CUDA device. See [`crate::allocator`] for host memory.
pub fn device_memory(device: Device) -> Result<DeviceMemory, DeviceError> {
    let mut memory = DeviceMemory::default();
    // SAFETY: writes one `KdgatDeviceStats`, which `DeviceMemory` mirrors.
    unsafe { ffi::check(kdgat_device_stats(cuda_index("device_memory", device)?, &mut memory))? };
    Ok(memory)
}

/// Resets the peaks of a CUDA device to the current values.
pub fn reset_device_peak(device: Device) -> Result<(), DeviceError> {
    PEAK_BEFORE_CHANGE.store(0, Ordering::Relaxed);
    // SAFETY: one number.
    unsafe { Ok(ffi::check(kdgat_device_reset_peak(cuda_index("reset_device_peak", device)?))?) }
}

/// Returns the cached memory of torch's CUDA allocator to the driver. Waits for `device`.
pub fn empty_cache(device: Device) -> Result<(), DeviceError> {
    // SAFETY: one number.
    unsafe { Ok(ffi::check(kdgat_device_empty_cache(cuda_index("empty_cache", device)?))?) }
}

/// Sets the settings of the device allocator, in the syntax of `PYTORCH_ALLOC_CONF`.
///
/// Call it before the first allocation on a device and before starting threads. An invalid value is an error, and so is
/// an unknown key if CUDA is loaded.
pub fn set_allocator_settings(settings: &str) -> Result<(), TchError> {
    let text = CString::new(settings)?;
    // SAFETY: a null-terminated string that outlives the call.
    let outcome = unsafe { ffi::check(kdgat_device_set_settings(text.as_ptr())) };
    outcome.map_err(|error| TchError::Torch(format!("allocator settings '{settings}': {}", ffi::message_of(&error))))
}

/// The current settings, as they were given.
pub fn allocator_settings() -> Result<String, TchError> {
    let mut settings = ptr::null_mut();
    // SAFETY: the call writes `settings` before it returns: null or a string from malloc.
    unsafe { ffi::check(kdgat_device_settings(&mut settings))? };
    // SAFETY: see above. Reading the string as an error's text takes and frees it.
    match unsafe { ffi::check(settings) } {
        Err(TchError::Torch(settings)) => Ok(settings),
        _ => Ok(String::new()),
    }
}

unsafe extern "C" {
    fn kdgat_device_stats(device: i8, memory: *mut DeviceMemory) -> *mut c_char;
    fn kdgat_device_reset_peak(device: i8) -> *mut c_char;
    fn kdgat_device_empty_cache(device: i8) -> *mut c_char;
    fn kdgat_device_set_settings(settings: *const c_char) -> *mut c_char;
    fn kdgat_device_settings(settings: *mut *mut c_char) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use super::DeviceMemory;

    #[test]
    fn memory_of_recordings_is_not_free() {
        let memory = DeviceMemory { free_bytes: 100, reserved: 50, allocated: 20, ..DeviceMemory::default() };
        assert_eq!(memory.usable_beside(0), 150);
        assert_eq!(memory.usable_beside(30), 120);
        assert_eq!(memory.usable_bytes(), 150, "nothing is recorded");
    }
}
