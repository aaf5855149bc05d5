//! How much memory a GPU has, and how much torch's allocator holds of it.

use std::ffi::{CString, c_char};
use std::ptr;

use tch::{Device, TchError};

use super::{DeviceError, cuda_index};
use crate::ffi;

/// Bytes of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DeviceMemory {
    /// In tensors now, rounded as the allocator rounds.
    pub allocated: i64,
    /// The most that `allocated` was since [`reset_device_peak`].
    pub peak_allocated: i64,
    /// Taken from the driver, in use or kept.
    pub reserved: i64,
    /// The most that `reserved` was since [`reset_device_peak`].
    pub peak_reserved: i64,
    /// In tensors now, as requested.
    pub requested: i64,
    /// The most that `requested` was since [`reset_device_peak`].
    pub peak_requested: i64,
    /// How often the allocator had to empty its cache and try again.
    pub retries: i64,
    /// How often it failed.
    pub failures: i64,
    /// Free on the card, whoever uses the rest.
    pub free_bytes: u64,
    /// Of the card.
    pub total_bytes: u64,
}

impl DeviceMemory {
    /// Bytes that tensors could have if none of the present ones were there: free on the card, or reserved by torch's allocator,
    /// less what recorded CUDA graphs use when they are replayed.
    pub fn usable_bytes(&self) -> u64 {
        self.usable_beside(super::captured_bytes())
    }

    fn usable_beside(&self, captured_bytes: u64) -> u64 {
        (self.free_bytes + u64::try_from(self.reserved).unwrap_or(0)).saturating_sub(captured_bytes)
    }
}

/// The memory of a CUDA device. Host memory is counted by [`crate::allocator`].
pub fn device_memory(device: Device) -> Result<DeviceMemory, DeviceError> {
    let mut memory = DeviceMemory::default();
    // SAFETY: writes one `KdgatDeviceStats`, of which `DeviceMemory` is the mirror.
    unsafe { ffi::check(kdgat_device_stats(cuda_index("device_memory", device)?, &mut memory))? };
    Ok(memory)
}

/// Lets the peaks of a CUDA device begin anew from what is in use now.
pub fn reset_device_peak(device: Device) -> Result<(), DeviceError> {
    // SAFETY: one number.
    unsafe { Ok(ffi::check(kdgat_device_reset_peak(cuda_index("reset_device_peak", device)?))?) }
}

/// Returns the unused memory that torch's CUDA allocator caches to the driver. Waits for `device`.
pub fn empty_cache(device: Device) -> Result<(), DeviceError> {
    // SAFETY: one number.
    unsafe { Ok(ffi::check(kdgat_device_empty_cache(cuda_index("empty_cache", device)?))?) }
}

/// Sets the device allocator's settings, in the syntax of `PYTORCH_ALLOC_CONF`.
///
/// Before the first allocation on a device, and before threads start. A value that is not allowed is an error, and
/// with CUDA loaded an unknown key too.
pub fn set_allocator_settings(settings: &str) -> Result<(), TchError> {
    let text = CString::new(settings)?;
    // SAFETY: a null-terminated string that outlives the call.
    let outcome = unsafe { ffi::check(kdgat_device_set_settings(text.as_ptr())) };
    outcome.map_err(|error| TchError::Torch(format!("allocator settings '{settings}': {}", ffi::message_of(&error))))
}

/// The settings in force, as they were given.
pub fn allocator_settings() -> Result<String, TchError> {
    let mut settings = ptr::null_mut();
    // SAFETY: `settings` is written before the call returns: null or a string of malloc.
    unsafe { ffi::check(kdgat_device_settings(&mut settings))? };
    // SAFETY: as just said; reading it as an error's text takes and frees it.
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
