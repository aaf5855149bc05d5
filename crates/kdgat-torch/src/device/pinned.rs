//! Page-locked host memory, from which a GPU copies asynchronously.

use std::ffi::{c_char, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use super::DeviceError;
use crate::cuda::cuda_symbol;
use crate::ffi;

/// A block of exactly the requested size, page-locked if requested.
///
/// (torch's own page-locked allocator rounds up to a power of two.) Tensors over the block keep it alive.
#[derive(Clone, Debug)]
pub struct PinnedBlock {
    mapping: Arc<Mapping>,
}

impl PinnedBlock {
    /// Allocates a block of zeros: page-locked if `device` is a GPU, ordinary memory for the CPU.
    ///
    /// Returns [`DeviceError::PinningRefused`] if the driver refuses; [`PinnedBlock::ordinary`] still works.
    pub fn new(bytes: usize, device: Device) -> Result<Self, DeviceError> {
        Self::for_device(Mapping::new(bytes, None)?, device)
    }

    /// The bytes of a file in memory, like [`PinnedBlock::new`]: what one process writes to it, all that have mapped the file read. The file
    /// must have that many bytes and keep them.
    pub fn shared(file: &File, bytes: usize, device: Device) -> Result<Self, DeviceError> {
        Self::for_device(Mapping::new(bytes, Some(file))?, device)
    }

    fn for_device(mapping: Mapping, device: Device) -> Result<Self, DeviceError> {
        let mapping = match device {
            Device::Cpu => mapping,
            Device::Cuda(_) => mapping.register(device)?,
            device => return Err(DeviceError::Unsupported { what: "PinnedBlock::new", device }),
        };
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// Allocates a block of zeros in ordinary memory. Copies from it to a GPU block the host.
    pub fn ordinary(bytes: usize) -> Result<Self, DeviceError> {
        Self::new(bytes, Device::Cpu)
    }

    /// Size of the block in bytes.
    pub fn len(&self) -> usize {
        self.mapping.length
    }

    /// True if the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the block's pages are locked.
    pub fn is_page_locked(&self) -> bool {
        self.mapping.locked_by.is_some()
    }

    /// The bytes, for writing. `None` if tensors over the block or other handles to it exist.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let mapping = Arc::get_mut(&mut self.mapping)?;
        // SAFETY: the mapping has `length` bytes, initialised by the system, and nobody else has a handle.
        Some(unsafe { std::slice::from_raw_parts_mut(mapping.start.as_ptr(), mapping.length) })
    }

    /// A tensor of shape `size` over the block's memory, starting at byte `offset`. It shares the memory with all other
    /// views.
    pub fn tensor(&self, offset: usize, size: &[i64], kind: Kind) -> Result<Tensor, DeviceError> {
        let elements: Option<usize> =
            size.iter().try_fold(1, |product: usize, &extent| product.checked_mul(usize::try_from(extent).ok()?));
        let element_bytes = kind.elt_size_in_bytes();
        let bytes = elements.and_then(|elements| elements.checked_mul(element_bytes)).unwrap_or(usize::MAX);
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.len());
        if !fits || !offset.is_multiple_of(element_bytes) {
            return Err(DeviceError::View { offset, bytes, length: self.len() });
        }
        let kind = scalar_type(kind)?;
        let context = Arc::into_raw(Arc::clone(&self.mapping)).cast_mut().cast();
        let mut tensor = ptr::null_mut();
        // SAFETY: the view is inside the mapping, which `context` keeps alive until `release` is called, once.
        unsafe {
            let data = self.mapping.start.as_ptr().add(offset).cast();
            ffi::check(kdgat_from_blob(data, size.as_ptr(), size.len(), kind, context, release, &mut tensor))?;
            Ok(ffi::from_raw(tensor).unwrap_or_default())
        }
    }
}

/// The value of a type in `c10::ScalarType` (tch does not expose it).
pub(crate) fn scalar_type(kind: Kind) -> Result<i8, tch::TchError> {
    Ok(match kind {
        Kind::Uint8 => 0,
        Kind::Int8 => 1,
        Kind::Int16 => 2,
        Kind::Int => 3,
        Kind::Int64 => 4,
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::Bool => 11,
        Kind::BFloat16 => 15,
        other => return Err(tch::TchError::Kind(format!("{other:?} is not supported here"))),
    })
}

unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: `context` came from `Arc::into_raw` in `tensor`, and this is called once for it.
    drop(unsafe { Arc::from_raw(context.cast::<Mapping>()) });
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// The CUDA runtime that locked the pages; `None` if they are not locked.
    locked_by: Option<Runtime>,
}

// SAFETY: plain memory; `bytes_mut` and the tensors over it control who writes to it.
unsafe impl Send for Mapping {}
// SAFETY: see above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(length: usize, file: Option<&File>) -> Result<Self, DeviceError> {
        // The system refuses an empty mapping.
        let mapped = length.max(1);
        let (flags, file) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at any address.
        let start = unsafe { libc::mmap(ptr::null_mut(), mapped, access, flags, file, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, length, locked_by: None }),
            _ => Err(DeviceError::Mapping { bytes: length, source: io::Error::last_os_error() }),
        }
    }

    /// Locks the pages with the CUDA runtime of libtorch_cuda, with `device` current: otherwise the runtime would open
    /// a context on the first GPU.
    fn register(self, device: Device) -> Result<Self, DeviceError> {
        let refused = |reason: String| DeviceError::PinningRefused { bytes: self.length, reason };
        // The runtime library may exist without a GPU; this gives a better error then.
        super::cuda_device_count().map_err(|error| refused(error.to_string()))?;
        let _current = super::StreamGuard::enter(&super::Stream::current(device)?)?;
        let runtime = Runtime::loaded().map_err(refused)?;
        self.register_with(runtime)
    }

    fn register_with(mut self, runtime: Runtime) -> Result<Self, DeviceError> {
        // Portable: page-locked for all devices.
        const PORTABLE: u32 = 1;
        // SAFETY: the mapping's own range.
        let code = unsafe { (runtime.register)(self.start.as_ptr().cast(), self.length.max(1), PORTABLE) };
        if code != 0 {
            let reason = runtime.take_error(code);
            return Err(DeviceError::PinningRefused { bytes: self.length, reason });
        }
        self.locked_by = Some(runtime);
        Ok(self)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: registered and mapped once, by this object, and no handle is left.
        unsafe {
            if let Some(runtime) = &self.locked_by {
                let code = (runtime.unregister)(self.start.as_ptr().cast());
                if code != 0 {
                    let reason = runtime.take_error(code);
                    tracing::error!("cannot unlock {} bytes of host memory: {reason}", self.length);
                }
            }
            libc::munmap(self.start.as_ptr().cast(), self.length.max(1));
        }
    }
}

/// Functions of the CUDA runtime, with their signatures in cuda_runtime_api.h.
#[derive(Clone, Copy, Debug)]
struct Runtime {
    register: Register,
    unregister: Unregister,
    /// Returns and clears the thread's last error.
    last_error: LastError,
    error_text: ErrorText,
}

type Register = unsafe extern "C" fn(*mut c_void, usize, u32) -> i32;
type Unregister = unsafe extern "C" fn(*mut c_void) -> i32;
type LastError = unsafe extern "C" fn() -> i32;
type ErrorText = unsafe extern "C" fn(i32) -> *const c_char;

impl Runtime {
    /// The functions of the loaded runtime.
    fn loaded() -> Result<Self, String> {
        let find = |name: &std::ffi::CStr| {
            NonNull::new(cuda_symbol(name))
                .ok_or_else(|| format!("no {} in the loaded CUDA runtime", name.to_string_lossy()))
        };
        // SAFETY: each symbol was found, and has the signature of its field.
        unsafe {
            Ok(Self {
                register: std::mem::transmute::<NonNull<c_void>, Register>(find(c"cudaHostRegister")?),
                unregister: std::mem::transmute::<NonNull<c_void>, Unregister>(find(c"cudaHostUnregister")?),
                last_error: std::mem::transmute::<NonNull<c_void>, LastError>(find(c"cudaGetLastError")?),
                error_text: std::mem::transmute::<NonNull<c_void>, ErrorText>(find(c"cudaGetErrorString")?),
            })
        }
    }

    /// The text of an error that a call returned. Also clears the runtime's last error: otherwise the check after the
    /// next kernel launch would report it for that kernel.
    fn take_error(&self, code: i32) -> String {
        // SAFETY: no arguments; the text is a static string for any number.
        let text = unsafe {
            (self.last_error)();
            std::ffi::CStr::from_ptr((self.error_text)(code))
        };
        format!("CUDA error {code}: {}", text.to_string_lossy())
    }
}

unsafe extern "C" {
    fn kdgat_from_blob(
        data: *mut c_void,
        sizes: *const i64,
        dimensions: usize,
        kind: i8,
        context: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
        tensor: *mut *mut C_tensor,
    ) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const OUT_OF_MEMORY: i32 = 2;
    const NOT_REGISTERED: i32 = 62;

    thread_local! {
        /// Like the runtime: an error persists until somebody takes it.
        static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
    }

    unsafe extern "C" fn refuse(_: *mut c_void, _: usize, _: u32) -> i32 {
        LAST_ERROR.set(OUT_OF_MEMORY);
        OUT_OF_MEMORY
    }

    unsafe extern "C" fn register(_: *mut c_void, _: usize, _: u32) -> i32 {
        0
    }

    unsafe extern "C" fn fail_to_unregister(_: *mut c_void) -> i32 {
        LAST_ERROR.set(NOT_REGISTERED);
        NOT_REGISTERED
    }

    unsafe extern "C" fn last_error() -> i32 {
        LAST_ERROR.take()
    }

    unsafe extern "C" fn error_text(_: i32) -> *const c_char {
        c"reported by the fake runtime".as_ptr()
    }

    const FAKE: Runtime = Runtime { register, unregister: fail_to_unregister, last_error, error_text };

    #[test]
    fn a_refused_registration_leaves_no_error_for_the_next_kernel() {
        let refused = Mapping::new(100, None).unwrap().register_with(Runtime { register: refuse, ..FAKE }).unwrap_err();
        assert!(refused.to_string().contains("CUDA error 2: reported by the fake runtime"), "{refused}");
        assert_eq!(LAST_ERROR.get(), 0);
    }

    #[test]
    fn a_failed_unregistration_leaves_no_error_for_the_next_kernel() {
        let mapping = Mapping::new(100, None).unwrap().register_with(FAKE).unwrap();
        assert!(mapping.locked_by.is_some());
        drop(mapping);
        assert_eq!(LAST_ERROR.get(), 0);
    }
}
