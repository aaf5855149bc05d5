//! Declarations of the functions of CUDA's driver and of NVRTC that programs need, found at run time: building kdgat requires nothing of CUDA.
//!
//! Names, types and values are those of `cuda.h` and `nvrtc.h`, which NVIDIA keeps compatible between versions.
#![allow(non_snake_case)] // The names of the C functions.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// Names of the driver's library, in the order of the search.
const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// Names of NVRTC's library. Once it is loaded from another folder, a name without a folder finds it.
const NVRTC: [&str; 5] = ["libnvrtc.so.13", "libnvrtc.so", "libnvrtc.so.12", "libnvrtc.so.14", "libnvrtc.so.11.2"];

/// Declares a table of functions that are looked up in a shared library.
macro_rules! library {
    ($(#[$about:meta])* $table:ident: $result:ident { $($name:ident($($argument:ty),*);)* }) => {
        $(#[$about])*
        pub(super) struct $table {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// Looks all functions up; `None` if a library of these names cannot be loaded or lacks one of them.
            fn find(names: &[&str]) -> Option<Self> {
                let library = names.iter().find_map(|name| open(name))?;
                $(
                    let $name = symbol(library, stringify!($name))?;
                    // SAFETY: the library declares a function of this name and type, and stays loaded until the process ends.
                    let $name = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>($name) };
                )*
                Some(Self { $($name),* })
            }
        }
    };
}

/// `CUresult`: 0 is success.
pub(super) type CudaResult = c_int;
/// `CUdevice`.
pub(super) type CudaDevice = c_int;
/// `CUcontext`, `CUmodule`, `CUfunction` and `CUstream`: pointers to structures that only the driver knows.
pub(super) type CudaHandle = *mut c_void;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`.
pub(super) const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];

library! {
    /// Functions of CUDA's driver.
    Driver: CudaResult {
        cuInit(c_uint);
        cuDeviceGet(*mut CudaDevice, c_int);
        cuDeviceGetAttribute(*mut c_int, c_int, CudaDevice);
        cuDevicePrimaryCtxRetain(*mut CudaHandle, CudaDevice);
        cuCtxPushCurrent_v2(CudaHandle);
        cuCtxPopCurrent_v2(*mut CudaHandle);
        cuModuleLoadData(*mut CudaHandle, *const c_void);
        cuModuleGetFunction(*mut CudaHandle, CudaHandle, *const c_char);
        // Function; blocks and threads in three dimensions; bytes of shared memory; stream; arguments; extra options.
        cuLaunchKernel(
            CudaHandle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CudaHandle, *mut *mut c_void, *mut *mut c_void
        );
        cuGetErrorString(CudaResult, *mut *const c_char);
    }
}

/// `nvrtcResult`: 0 is success.
pub(super) type NvrtcResult = c_int;
/// `nvrtcProgram`.
pub(super) type NvrtcProgram = *mut c_void;

library! {
    /// Functions of NVRTC that return a result.
    Nvrtc: NvrtcResult {
        nvrtcVersion(*mut c_int, *mut c_int);
        nvrtcGetNumSupportedArchs(*mut c_int);
        nvrtcGetSupportedArchs(*mut c_int);
        // Program; text; name; number of headers, their texts and names.
        nvrtcCreateProgram(*mut NvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        nvrtcCompileProgram(NvrtcProgram, c_int, *const *const c_char);
        nvrtcDestroyProgram(*mut NvrtcProgram);
        nvrtcGetCUBINSize(NvrtcProgram, *mut usize);
        nvrtcGetCUBIN(NvrtcProgram, *mut c_char);
        nvrtcGetPTXSize(NvrtcProgram, *mut usize);
        nvrtcGetPTX(NvrtcProgram, *mut c_char);
        nvrtcGetProgramLogSize(NvrtcProgram, *mut usize);
        nvrtcGetProgramLog(NvrtcProgram, *mut c_char);
    }
}

/// Text of NVRTC's errors.
type ErrorText = *const c_char;

library! {
    /// The one function of NVRTC that returns a text.
    NvrtcErrors: ErrorText { nvrtcGetErrorString(NvrtcResult); }
}

/// CUDA's driver, loaded at the first call; `None` if this machine has none.
pub(super) fn driver() -> Option<&'static Driver> {
    static FOUND: OnceLock<Option<Driver>> = OnceLock::new();
    FOUND.get_or_init(|| Driver::find(&DRIVER)).as_ref()
}

/// NVRTC, loaded at the first call; `None` if it is not on the library path and has not been loaded from elsewhere.
pub(super) fn nvrtc() -> Option<&'static (Nvrtc, NvrtcErrors)> {
    static FOUND: OnceLock<Option<(Nvrtc, NvrtcErrors)>> = OnceLock::new();
    FOUND.get_or_init(|| Some((Nvrtc::find(&NVRTC)?, NvrtcErrors::find(&NVRTC)?))).as_ref()
}

fn open(name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is null-terminated, and the initialisers of the libraries above are NVIDIA's own.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!library.is_null()).then_some(library)
}

fn symbol(library: *mut c_void, name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: a handle that `dlopen` returned and that is never closed, and a null-terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
