//! CUDA's run-time compiler.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::{ProgramError, Source};
use crate::cuda::libtorch_folder;

/// Major and minor version of the compiler.
pub fn compiler_version() -> Result<(i32, i32), ProgramError> {
    load()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both numbers are written before the call returns.
    check("asking NVRTC for its version", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    Ok((major, minor))
}

/// Machine code for GPUs of compute capability `capability` (90 for 9.0); if the compiler does not know these yet, assembly
/// for the newest that it knows below, which the driver translates.
pub fn compile(source: &Source, capability: i32) -> Result<Vec<u8>, ProgramError> {
    let known = supported_architectures()?;
    let newest = known.iter().copied().filter(|&known| known <= capability).max();
    let newest = newest.ok_or_else(|| ProgramError::Refused {
        what: format!("compiling {}", source.name),
        reason: format!("this NVRTC knows GPUs of {known:?}, not of {capability}; use attention = \"composed\""),
    })?;
    let exact = newest == capability;
    let architecture = format!("{}_{newest}", if exact { "sm" } else { "compute" });
    let program = Compilation::create(source)?;
    let mut options = vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
    options.extend(source.definitions.iter().map(|(name, value)| format!("--define-macro={name}={value}")));
    let options: Vec<CString> = options.into_iter().map(text).collect::<Result<_, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: as many null-terminated options as told, alive during the call.
    let compiled = unsafe { sys::nvrtcCompileProgram(program.handle, pointers.len() as i32, pointers.as_ptr()) };
    if let Err(error) = check("compiling for the GPU", compiled) {
        // What is wrong with the program, or what the compiler itself misses.
        let log = program.log()?;
        return Err(match log.is_empty() {
            true => error,
            false => ProgramError::Compile { name: source.name, architecture, log },
        });
    }
    // SAFETY: functions of NVRTC that ask for this program's size and contents.
    match exact {
        true => program.bytes(
            |size| unsafe { sys::nvrtcGetCUBINSize(program.handle, size) },
            |bytes| unsafe { sys::nvrtcGetCUBIN(program.handle, bytes) },
        ),
        false => program.bytes(
            |size| unsafe { sys::nvrtcGetPTXSize(program.handle, size) },
            |bytes| unsafe { sys::nvrtcGetPTX(program.handle, bytes) },
        ),
    }
}

/// The kinds of GPU that the compiler knows, ascending.
pub fn supported_architectures() -> Result<Vec<i32>, ProgramError> {
    load()?;
    let what = "asking NVRTC for the GPUs that it knows";
    let mut count = 0;
    // SAFETY: one number, written before the call returns.
    check(what, unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) })?;
    let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: room for as many as there are.
    check(what, unsafe { sys::nvrtcGetSupportedArchs(architectures.as_mut_ptr()) })?;
    Ok(architectures)
}

/// A program while it is compiled.
struct Compilation {
    handle: nvrtcProgram,
}

impl Compilation {
    fn create(source: &Source) -> Result<Self, ProgramError> {
        let (source_text, name) = (text(source.text.to_owned())?, text(source.name.replace(' ', "_") + ".cu")?);
        let mut handle = ptr::null_mut();
        // SAFETY: null-terminated texts, no headers; `handle` is written if the call succeeds.
        check("giving NVRTC a program", unsafe {
            sys::nvrtcCreateProgram(&mut handle, source_text.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null())
        })?;
        Ok(Self { handle })
    }

    fn log(&self) -> Result<String, ProgramError> {
        // SAFETY: functions of NVRTC that ask for this program's log.
        let log = self.bytes(
            |size| unsafe { sys::nvrtcGetProgramLogSize(self.handle, size) },
            |bytes| unsafe { sys::nvrtcGetProgramLog(self.handle, bytes) },
        )?;
        Ok(String::from_utf8_lossy(log.strip_suffix(&[0]).unwrap_or(&log)).into_owned())
    }

    /// What `fill` writes, of the length that `size` tells.
    fn bytes(
        &self,
        size: impl FnOnce(*mut usize) -> nvrtcResult,
        fill: impl FnOnce(*mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, ProgramError> {
        let mut length = 0;
        check("reading what NVRTC compiled", size(&mut length))?;
        let mut bytes = vec![0_u8; length];
        check("reading what NVRTC compiled", fill(bytes.as_mut_ptr().cast()))?;
        Ok(bytes)
    }
}

impl Drop for Compilation {
    fn drop(&mut self) {
        // SAFETY: made by `create`, destroyed once.
        if let Err(error) = check("forgetting a program", unsafe { sys::nvrtcDestroyProgram(&mut self.handle) }) {
            tracing::warn!("{error}");
        }
    }
}

/// Loads NVRTC if that was not done: from where torch's Python packages put it, or from the library path.
fn load() -> Result<(), ProgramError> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    // SAFETY: loads a library whose initialisers are NVIDIA's own.
    let found = *FOUND.get_or_init(|| unsafe {
        load_beside_libtorch();
        sys::is_culib_present()
    });
    if found { Ok(()) } else { Err(ProgramError::CompilerMissing) }
}

/// Once loaded from anywhere, it is found by its name. What it loads itself it would look for on the library path alone.
/// It is there or not: whoever asks next, finds out.
fn load_beside_libtorch() {
    let packages = libtorch_folder().and_then(|folder| Some(folder.parent()?.parent()?.join("nvidia")));
    let Some(folders) = packages.and_then(|packages| std::fs::read_dir(packages).ok()) else {
        return;
    };
    let folders: Vec<PathBuf> = folders.flatten().map(|folder| folder.path().join("lib")).collect();
    for name in ["libnvrtc-builtins.so", "libnvrtc.so"] {
        let mut libraries = folders.iter().flat_map(|folder| libraries_in(folder, name));
        if !libraries.any(|path| loads(&path)) {
            return;
        }
    }
}

/// Files in `folder` whose names begin with `name`.
fn libraries_in(folder: &Path, name: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter(|file| file.file_name().as_bytes().starts_with(name.as_bytes())).map(|file| file.path()).collect()
}

fn loads(library: &Path) -> bool {
    let Ok(name) = CString::new(library.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: a null-terminated name of a library whose initialisers are NVIDIA's own; it stays loaded.
    !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }.is_null()
}

fn text(text: String) -> Result<CString, ProgramError> {
    CString::new(text).map_err(|_| ProgramError::Refused {
        what: "giving NVRTC a program".to_owned(),
        reason: "it holds a zero byte".to_owned(),
    })
}

fn check(what: &str, result: nvrtcResult) -> Result<(), ProgramError> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: gives a null-terminated text that is never freed.
    let reason = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) }.to_string_lossy().into_owned();
    Err(ProgramError::Refused { what: what.to_owned(), reason })
}
