//! Loading libtorch's CUDA part at start, where it is there: one binary for machines with and without a GPU.

use std::ffi::{CStr, CString, c_void};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The variable that names a library to load in place of libtorch_cuda: only tests set it.
pub const TEST_CUDA_LIBRARY: &str = "KDGAT_TEST_CUDA_LIBRARY";

/// What [`load_cuda`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaLibrary {
    /// libtorch_cuda is loaded; whether there is a GPU to use it, [`super::device::cuda_device_count`] tells.
    Loaded {
        /// The file, as far as the system told.
        path: Option<PathBuf>,
    },
    /// This libtorch has no CUDA part: a build for the CPU.
    Absent,
    /// It is there but could not be loaded.
    Failed {
        /// What the dynamic linker said, mostly a library that is missing.
        reason: String,
    },
}

impl std::fmt::Display for CudaLibrary {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loaded { path: Some(path) } => write!(formatter, "libtorch_cuda loaded from {}", path.display()),
            Self::Loaded { path: None } => formatter.write_str("libtorch_cuda loaded"),
            Self::Absent => formatter.write_str("no libtorch_cuda beside libtorch_cpu: this libtorch is for the CPU"),
            Self::Failed { reason } => write!(formatter, "libtorch_cuda could not be loaded: {reason}"),
        }
    }
}

/// Has CUDA number GPUs as NVML and `nvidia-smi` do, by their place on the bus; its own order is the fastest first, and memory
/// would be looked up on another card. A `CUDA_DEVICE_ORDER` of the user's stays. To be called first in `main`: it does
/// nothing once there are other threads, which might read the environment.
pub fn number_gpus_by_bus() {
    const ORDER: &str = "CUDA_DEVICE_ORDER";
    let is_alone = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if is_alone && std::env::var_os(ORDER).is_none() {
        // SAFETY: nobody else can read the environment meanwhile, for this is the only thread.
        unsafe { std::env::set_var(ORDER, "PCI_BUS_ID") };
    }
}

/// Loads libtorch_cuda if this libtorch has one. Later calls return what the first found.
///
/// Call it first in `main`: libtorch looks for CUDA once, when it is first used, and remembers the answer.
pub fn load_cuda() -> CudaLibrary {
    static FOUND: OnceLock<CudaLibrary> = OnceLock::new();
    FOUND.get_or_init(load).clone()
}

/// The library that tests have loaded in place of libtorch_cuda, and of NVML.
pub fn test_cuda_library() -> Option<PathBuf> {
    static NAMED: OnceLock<Option<PathBuf>> = OnceLock::new();
    NAMED.get_or_init(|| std::env::var_os(TEST_CUDA_LIBRARY).map(PathBuf::from)).clone()
}

/// What the dynamic linker calls the loaded libtorch_cuda.
static LOADED: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The address of a function of libtorch_cuda or of the CUDA libraries that it uses; null where there is none.
pub(super) fn cuda_symbol(name: &CStr) -> *mut c_void {
    // libtorch_cpu uses the CUDA runtime too: a search everywhere would find that one before a test library's.
    let library = match test_cuda_library() {
        Some(_) => LOADED.load(Ordering::Acquire),
        None => libc::RTLD_DEFAULT,
    };
    // SAFETY: a library that stays loaded (null is RTLD_DEFAULT), and a null-terminated name.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

fn load() -> CudaLibrary {
    const NAME: &str = "libtorch_cuda.so";
    let beside = || libtorch_folder().map(|folder| folder.join(NAME)).filter(|path| path.exists());
    let test_library = test_cuda_library();
    if let Some(path) = &test_library {
        let path = path.display();
        // A closed standard error is no reason to stop.
        let _ = writeln!(
            io::stderr(),
            "warning: {TEST_CUDA_LIBRARY} is set: {path} takes the place of libtorch_cuda. This is for tests; no GPU computes"
        );
    }
    // Some installations keep it elsewhere on the library path.
    let known = test_library.is_some() || beside().is_some();
    let path = test_library.or_else(beside).unwrap_or_else(|| PathBuf::from(NAME));
    let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else {
        return CudaLibrary::Absent;
    };
    // SAFETY: loads a library whose initialisers are libtorch's own; it stays loaded.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        // SAFETY: dlerror gives null or a string that is valid until the next call on this thread.
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

/// Where libtorch_cpu was loaded from.
pub(super) fn libtorch_folder() -> Option<PathBuf> {
    // SAFETY: a null-terminated name; `at::get_num_threads()` has been in libtorch_cpu for years.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZN2at15get_num_threadsEv".as_ptr()) };
    // SAFETY: all zeros is a valid `Dl_info`, which the call fills for an address of a loaded library.
    let info = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        (!symbol.is_null() && libc::dladdr(symbol, &mut info) != 0).then_some(info)?
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gives a null-terminated name that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    PathBuf::from(name.to_str().ok()?).parent().map(PathBuf::from)
}
