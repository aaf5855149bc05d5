//! Loads libtorch's CUDA library at start if it exists: one binary for machines with and without a GPU.

use std::ffi::{CStr, CString, c_void};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Environment variable naming a library to load instead of libtorch_cuda. Only tests set it.
pub const TEST_CUDA_LIBRARY: &str = "KDGAT_TEST_CUDA_LIBRARY";

/// Result of [`load_cuda`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaLibrary {
    /// libtorch_cuda is loaded. [`super::device::cuda_device_count`] says whether there is a GPU.
    Loaded {
        /// The file, if known.
        path: Option<PathBuf>,
    },
    /// This libtorch has no CUDA library: a build for the CPU.
    Absent,
    /// The library exists but cannot be loaded.
    Failed {
        /// The dynamic linker's message, usually about a missing library.
        reason: String,
    },
}

impl std::fmt::Display for CudaLibrary {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loaded { path: Some(path) } => write!(formatter, "libtorch_cuda loaded from {}", path.display()),
            Self::Loaded { path: None } => formatter.write_str("libtorch_cuda loaded"),
            Self::Absent => formatter.write_str("no libtorch_cuda beside libtorch_cpu: this is a CPU-only libtorch"),
            Self::Failed { reason } => write!(formatter, "cannot load libtorch_cuda: {reason}"),
        }
    }
}

/// Makes CUDA number GPUs by bus position, as NVML and `nvidia-smi` do. CUDA's default is the fastest first, and we
/// would read the memory of a different card. Respects a `CUDA_DEVICE_ORDER` set by the user. Call it first in `main`:
/// it does nothing once there are other threads, which might read the environment.
pub fn number_gpus_by_bus() {
    const ORDER: &str = "CUDA_DEVICE_ORDER";
    let is_alone = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if is_alone && std::env::var_os(ORDER).is_none() {
        // SAFETY: this is the only thread, so nobody reads the environment at the same time.
        unsafe { std::env::set_var(ORDER, "PCI_BUS_ID") };
    }
}

/// Loads libtorch_cuda if this libtorch has one. Later calls return the result of the first.
///
/// Call it early in `main`: libtorch looks for CUDA once, at its first use, and remembers the answer.
pub fn load_cuda() -> CudaLibrary {
    static FOUND: OnceLock<CudaLibrary> = OnceLock::new();
    FOUND.get_or_init(load).clone()
}

/// The library that tests load instead of libtorch_cuda and NVML.
pub fn test_cuda_library() -> Option<PathBuf> {
    static NAMED: OnceLock<Option<PathBuf>> = OnceLock::new();
    NAMED.get_or_init(|| std::env::var_os(TEST_CUDA_LIBRARY).map(PathBuf::from)).clone()
}

/// The dynamic linker's handle of the loaded libtorch_cuda.
static LOADED: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The address of a function of libtorch_cuda or of the CUDA libraries it uses; null if it does not exist.
pub(super) fn cuda_symbol(name: &CStr) -> *mut c_void {
    // libtorch_cpu uses the CUDA runtime too: a global search would find its copy before the test library's.
    let library = match test_cuda_library() {
        Some(_) => LOADED.load(Ordering::Acquire),
        None => libc::RTLD_DEFAULT,
    };
    // SAFETY: the library stays loaded (null is RTLD_DEFAULT), and the name is null-terminated.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

fn load() -> CudaLibrary {
    const NAME: &str = "libtorch_cuda.so";
    let beside = || libtorch_folder().map(|folder| folder.join(NAME)).filter(|path| path.exists());
    let test_library = test_cuda_library();
    if let Some(path) = &test_library {
        let path = path.display();
        // Ignore a closed standard error.
        let _ = writeln!(
            io::stderr(),
            "warning: {TEST_CUDA_LIBRARY} is set: {path} takes the place of libtorch_cuda. This is for tests only; no GPU is used"
        );
    }
    // Some installations have it elsewhere on the library path.
    let known = test_library.is_some() || beside().is_some();
    let path = test_library.or_else(beside).unwrap_or_else(|| PathBuf::from(NAME));
    let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else {
        return CudaLibrary::Absent;
    };
    // SAFETY: the library's initialisers are libtorch's own, and it stays loaded.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        // SAFETY: dlerror returns null or a string that is valid until the next call on this thread.
        let error = unsafe { libc::dlerror() };
        if !known || error.is_null() {
            return CudaLibrary::Absent;
        }
        // SAFETY: as above.
        let reason = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
        return CudaLibrary::Failed { reason };
    }
    LOADED.store(library, Ordering::Release);
    CudaLibrary::Loaded { path: known.then_some(path) }
}

/// The folder that libtorch_cpu was loaded from.
pub(super) fn libtorch_folder() -> Option<PathBuf> {
    // SAFETY: a null-terminated name; `at::get_num_threads()` has been in libtorch_cpu for years.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZN2at15get_num_threadsEv".as_ptr()) };
    // SAFETY: all zeros is a valid `Dl_info`; the call fills it for an address in a loaded library.
    let info = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        (!symbol.is_null() && libc::dladdr(symbol, &mut info) != 0).then_some(info)?
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returns a null-terminated name that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    PathBuf::from(name.to_str().ok()?).parent().map(PathBuf::from)
}
