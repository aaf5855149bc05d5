//! Devices beyond what `tch` shows: streams, events, page-locked memory, copies that do not wait, and how much
//! memory an allocator holds. Everything compiles and is callable without a GPU; asking for one then is an error.
//!
//! On [`Device::Cpu`] streams and events exist too: work is done when its call returns, so they order nothing.

mod event;
mod memory;
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

/// What the functions of this module can report.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// libtorch reported an error; without a GPU, that there is none.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// Streams and the like exist for the CPU and CUDA only.
    #[error("{what} on {device:?}: only the CPU and CUDA devices are supported")]
    Unsupported { what: &'static str, device: Device },
    /// Two things of different devices were put together.
    #[error("{what}: {found:?} where {expected:?} is expected")]
    Mixed { what: &'static str, found: Device, expected: Device },
    /// The driver would not lock pages in memory.
    #[error("page-locking {bytes} bytes was refused ({reason}); copies from ordinary memory work, but wait")]
    PinningRefused { bytes: usize, reason: String },
    /// The system has no memory to map.
    #[error("mapping {bytes} bytes of host memory failed: {source}; free memory or lower the batch size")]
    Mapping { bytes: usize, source: std::io::Error },
    /// A view that leaves its block, or does not begin at a multiple of its elements' size.
    #[error("a view of {bytes} bytes at {offset} does not fit a block of {length} bytes")]
    View { offset: usize, bytes: usize, length: usize },
}

impl From<DeviceError> for TchError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Torch(error) => error,
            other => TchError::Torch(other.to_string()),
        }
    }
}

/// Number of CUDA devices. An error says why there is none.
pub fn cuda_device_count() -> Result<usize, DeviceError> {
    let mut count = 0;
    // SAFETY: `count` is written before the call returns.
    unsafe { ffi::check(kdgat_device_count(&mut count))? };
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Makes a GPU the calling thread's current one from now on. Nothing to do on the CPU.
///
/// CUDA opens a context, of some hundred MB, on whatever GPU is current when something is asked of it: a thread that computes on
/// another one has to say so first.
pub fn make_current(device: Device) -> Result<(), DeviceError> {
    match device {
        Device::Cpu => Ok(()),
        // SAFETY: one number.
        device => unsafe { Ok(ffi::check(kdgat_device_make_current(cuda_index("make_current", device)?))?) },
    }
}

/// Waits until the device has done everything given to it so far.
pub fn synchronize(device: Device) -> Result<(), DeviceError> {
    match device {
        Device::Cpu => Ok(()),
        // SAFETY: one number.
        device => unsafe { Ok(ffi::check(kdgat_device_synchronize(cuda_index("synchronize", device)?))?) },
    }
}

/// Copies the elements of `source` into `target`, whatever their devices and types, without recording it.
///
/// `non_blocking`: a copy between page-locked memory and a GPU is only queued on the current stream; the caller
/// orders what follows by an [`Event`], and keeps both alive until then.
pub fn copy(target: &mut Tensor, source: &Tensor, non_blocking: bool) -> Result<(), TchError> {
    // SAFETY: both tensors outlive the call.
    unsafe { ffi::check(kdgat_copy(target.as_mut_ptr(), source.as_ptr(), non_blocking)) }
}

/// Tells the allocator that `tensor` is used on `stream` too: its memory is not handed out again before that
/// stream has done what is queued on it when the tensor is freed. Nothing to do on the CPU.
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

/// Keeps the current stream of a GPU busy for about `cycles` of its clock: a delay for tests of order.
pub fn cuda_sleep(cycles: i64) -> Result<(), DeviceError> {
    type Sleep = unsafe extern "C" fn(i64);
    cuda_device_count()?;
    // `at::cuda::sleep(long)` of libtorch_cuda, loaded as the count has just shown.
    // SAFETY: the name is null-terminated.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZN2at4cuda5sleepEl".as_ptr()) };
    if symbol.is_null() {
        return Err(TchError::Torch("libtorch_cuda has no at::cuda::sleep".to_owned()).into());
    }
    // SAFETY: this mangled name is that signature. It throws only if the launch fails, which the count excludes
    // but for a GPU already in an error state, where the process is lost anyway.
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
