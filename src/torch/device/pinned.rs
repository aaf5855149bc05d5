//! One block of host memory that a GPU copies from without waiting.

use std::ffi::{c_char, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use super::DeviceError;
use crate::torch::ffi;

/// A block of exactly the bytes asked for, page-locked where that was asked for.
///
/// (torch's own page-locked allocator rounds up to a power of two.) Tensors made of it keep it alive.
#[derive(Clone, Debug)]
pub struct PinnedBlock {
    mapping: Arc<Mapping>,
}

impl PinnedBlock {
    /// A block of zeros: page-locked if `device` is a GPU, ordinary memory for the CPU.
    ///
    /// [`DeviceError::PinningRefused`] where the driver will not: [`PinnedBlock::ordinary`] still works.
    pub fn new(bytes: usize, device: Device) -> Result<Self, DeviceError> {
        match device {
            Device::Cpu => Self::ordinary(bytes),
            Device::Cuda(_) => Ok(Self { mapping: Arc::new(Mapping::new(bytes)?.register()?) }),
            device => Err(DeviceError::Unsupported { what: "PinnedBlock::new", device }),
        }
    }

    /// A block of zeros in ordinary memory. Copies from it to a GPU wait.
    pub fn ordinary(bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self { mapping: Arc::new(Mapping::new(bytes)?) })
    }

    /// Bytes in the block.
    pub fn len(&self) -> usize {
        self.mapping.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether its pages are locked.
    pub fn is_page_locked(&self) -> bool {
        self.mapping.unregister.is_some()
    }

    /// The bytes, to be filled: `None` once there are tensors of it or another handle.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let mapping = Arc::get_mut(&mut self.mapping)?;
        // SAFETY: the mapping has `length` bytes, initialised by the system, and nobody else a handle.
        Some(unsafe { std::slice::from_raw_parts_mut(mapping.start.as_ptr(), mapping.length) })
    }

    /// A tensor over the block's memory from `offset` (bytes) on. It shares that memory with all other views.
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
        // SAFETY: the view lies inside the mapping, which `context` keeps alive until `release` is called, once.
        unsafe {
            let data = self.mapping.start.as_ptr().add(offset).cast();
            ffi::check(kdgat_from_blob(data, size.as_ptr(), size.len(), kind, context, release, &mut tensor))?;
            Ok(ffi::from_raw(tensor).unwrap_or_default())
        }
    }
}

/// torch's number of a type (tch keeps it to itself): that of `c10::ScalarType`.
pub(in crate::torch) fn scalar_type(kind: Kind) -> Result<i8, tch::TchError> {
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
    unregister: Option<Unregister>,
}

type Register = unsafe extern "C" fn(*mut c_void, usize, u32) -> i32;
type Unregister = unsafe extern "C" fn(*mut c_void) -> i32;
type ErrorText = unsafe extern "C" fn(i32) -> *const c_char;

// SAFETY: plain memory; who writes it is the business of `bytes_mut` and of the tensors made of it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(length: usize) -> Result<Self, DeviceError> {
        // A mapping of nothing is an error to the system.
        let mapped = length.max(1);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping wherever the system likes.
        let start = unsafe { libc::mmap(ptr::null_mut(), mapped, access, flags, -1, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, length, unregister: None }),
            _ => Err(DeviceError::Mapping { bytes: length, source: io::Error::last_os_error() }),
        }
    }

    /// Locks the pages, by the CUDA run time that libtorch_cuda uses.
    fn register(mut self) -> Result<Self, DeviceError> {
        let refused = |reason: String| DeviceError::PinningRefused { bytes: self.length, reason };
        // Without a GPU the run time library may be there all the same; this says better what is missing.
        super::cuda_device_count().map_err(|error| refused(error.to_string()))?;
        let missing = |name: &str| refused(format!("no {name} in the loaded CUDA run time"));
        // SAFETY: these are the signatures of these functions in cuda_runtime_api.h.
        let (register, unregister, error_text) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Option<Register>>(symbol(c"cudaHostRegister")),
                std::mem::transmute::<*mut c_void, Option<Unregister>>(symbol(c"cudaHostUnregister")),
                std::mem::transmute::<*mut c_void, Option<ErrorText>>(symbol(c"cudaGetErrorString")),
            )
        };
        let register = register.ok_or_else(|| missing("cudaHostRegister"))?;
        let unregister = unregister.ok_or_else(|| missing("cudaHostUnregister"))?;
        // Portable: page-locked for all devices.
        const PORTABLE: u32 = 1;
        // SAFETY: the mapping's own range.
        let code = unsafe { register(self.start.as_ptr().cast(), self.length.max(1), PORTABLE) };
        if code != 0 {
            // SAFETY: returns a static string for any number.
            let text = error_text.map(|error_text| unsafe { std::ffi::CStr::from_ptr(error_text(code)) });
            let text = text.map_or_else(String::new, |text| text.to_string_lossy().into_owned());
            return Err(refused(format!("CUDA error {code}: {text}")));
        }
        self.unregister = Some(unregister);
        Ok(self)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: registered and mapped once, by this object, and no handle is left.
        unsafe {
            if let Some(unregister) = self.unregister {
                let code = unregister(self.start.as_ptr().cast());
                if code != 0 {
                    tracing::error!("unlocking {} bytes of host memory: CUDA error {code}", self.length);
                }
            }
            libc::munmap(self.start.as_ptr().cast(), self.length.max(1));
        }
    }
}

fn symbol(name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: a null-terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
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
