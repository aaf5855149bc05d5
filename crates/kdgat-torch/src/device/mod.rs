//! Device features that `tch` does not expose: streams, events, page-locked memory, asynchronous copies, and memory
//! statistics of the allocators. Everything compiles and can be called without a GPU; requesting one is then an error.
//!
//! Streams and events also exist on [`Device::Cpu`]. Work there is done when its call returns, so they order nothing.

mod event;
mod memory;
pub mod packing;
mod pinned;
mod recording;
mod stream;
mod upload;

use std::ffi::c_char;

use tch::{Device, TchError, Tensor};
use torch_sys::C_tensor;

pub use event::Event;
pub use memory::{
    DeviceMemory, allocator_settings, device_memory, empty_cache, reset_device_peak, set_allocator_settings,
};
pub use pinned::PinnedBlock;
pub(crate) use pinned::scalar_type;
pub use recording::{Recording, RecordingError, RecordingPool, captured_bytes};
pub use stream::{Stream, StreamGuard};
pub use upload::Uploader;

use super::ffi;

/// Errors of this module.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// libtorch reported an error, such as a missing GPU.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// Only the CPU and CUDA have streams and the like.
    #[error("{what} on {device:?}: only the CPU and CUDA devices are supported")]
    Unsupported {
        /// The operation.
        what: &'static str,
        /// The given device.
        device: Device,
    },
    /// The operation combines objects of different devices.
    #[error("{what}: {found:?} where {expected:?} is expected")]
    Mixed {
        /// The operation.
        what: &'static str,
        /// The given device.
        found: Device,
        /// The required device.
        expected: Device,
    },
    /// The driver refused to lock the pages in memory.
    #[error("cannot page-lock {bytes} bytes ({reason}); copies from ordinary memory still work, but block the host")]
    PinningRefused {
        /// Size of the block.
        bytes: usize,
        /// The driver's reason.
        reason: String,
    },
    /// The system has no memory left to map.
    #[error("mapping {bytes} bytes of host memory failed: {source}; free memory or lower the batch size")]
    Mapping {
        /// Size of the mapping.
        bytes: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// A view that exceeds its block or is misaligned for its elements.
    #[error("a view of {bytes} bytes at {offset} does not fit a block of {length} bytes")]
    View {
        /// Offset of the view in bytes.
        offset: usize,
        /// Size of the view in bytes.
        bytes: usize,
        /// Size of the block in bytes.
        length: usize,
    },
}

impl From<DeviceError> for TchError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Torch(error) => error,
            other => TchError::Torch(other.to_string()),
        }
    }
}

/// Number of CUDA devices; the error says why there is none.
pub fn cuda_device_count() -> Result<usize, DeviceError> {
    let mut count = 0;
    // SAFETY: `count` is written before the call returns.
    unsafe { ffi::check(kdgat_device_count(&mut count))? };
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Makes a GPU the current device of the calling thread. Does nothing on the CPU.
///
/// CUDA opens a context, of some hundred MB, on the current GPU at its first use: a thread that computes on another GPU
/// must call this first.
pub fn make_current(device: Device) -> Result<(), DeviceError> {
    match device {
        Device::Cpu => Ok(()),
        // SAFETY: one number.
        device => unsafe { Ok(ffi::check(kdgat_device_make_current(cuda_index("make_current", device)?))?) },
    }
}

/// Waits until the device has finished all work queued so far.
pub fn synchronize(device: Device) -> Result<(), DeviceError> {
    match device {
        Device::Cpu => Ok(()),
        // SAFETY: one number.
        device => unsafe { Ok(ffi::check(kdgat_device_synchronize(cuda_index("synchronize", device)?))?) },
    }
}

/// Copies the elements of `source` into `target`, whatever their devices and types, without recording the operation.
///
/// With `non_blocking`, a copy between page-locked memory and a GPU is only queued on the current stream; the caller
/// orders later work by an [`Event`] and keeps both tensors alive until then.
pub fn copy(target: &mut Tensor, source: &Tensor, non_blocking: bool) -> Result<(), TchError> {
    // SAFETY: both tensors outlive the call.
    unsafe { ffi::check(kdgat_copy(target.as_mut_ptr(), source.as_ptr(), non_blocking)) }
}

/// Tells the allocator that `stream` uses `tensor` as well: it reuses the memory only after that stream has finished
/// all work queued when the tensor is freed. Does nothing on the CPU.
pub fn record_stream(tensor: &Tensor, stream: &Stream) -> Result<(), DeviceError> {
    if tensor.device() != stream.device() {
        return Err(DeviceError::Mixed { what: "record_stream", found: tensor.device(), expected: stream.device() });
    }
    match stream.raw() {
        None => Ok(()),
        // SAFETY: the tensor outlives the call.
        Some(raw) => unsafe { Ok(ffi::check(kdgat_record_stream(tensor.as_ptr(), raw))?) },
    }
}

/// Keeps a GPU's current stream busy for about `cycles` clock cycles: a delay for tests of ordering.
pub fn cuda_sleep(cycles: i64) -> Result<(), DeviceError> {
    type Sleep = unsafe extern "C" fn(i64);
    cuda_device_count()?;
    // `at::cuda::sleep(long)` of libtorch_cuda, which is loaded, as the count has just shown.
    // SAFETY: the name is null-terminated.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZN2at4cuda5sleepEl".as_ptr()) };
    if symbol.is_null() {
        return Err(TchError::Torch("libtorch_cuda has no at::cuda::sleep".to_owned()).into());
    }
    // SAFETY: the mangled name implies this signature. It throws only if the launch fails; after a successful count,
    // that means a GPU already in an error state, where the process is lost anyway.
    unsafe { std::mem::transmute::<*mut libc::c_void, Sleep>(symbol)(cycles) };
    Ok(())
}

fn cuda_index(what: &'static str, device: Device) -> Result<i8, DeviceError> {
    match device {
        Device::Cuda(index) => i8::try_from(index).map_err(|_| DeviceError::Unsupported { what, device }),
        _ => Err(DeviceError::Unsupported { what, device }),
    }
}

unsafe extern "C" {
    fn kdgat_device_count(count: *mut i32) -> *mut c_char;
    fn kdgat_device_make_current(device: i8) -> *mut c_char;
    fn kdgat_device_synchronize(device: i8) -> *mut c_char;
    fn kdgat_copy(target: *mut C_tensor, source: *const C_tensor, non_blocking: bool) -> *mut c_char;
    fn kdgat_record_stream(tensor: *const C_tensor, stream: stream::RawStream) -> *mut c_char;
}
