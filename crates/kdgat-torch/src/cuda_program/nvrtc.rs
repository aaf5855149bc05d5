//! CUDA's runtime compiler, NVRTC.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Once;

use super::bindings::{self, Nvrtc, NvrtcProgram, NvrtcResult};
use super::{ProgramError, Source};
use crate::cuda::libtorch_folder;

/// Major and minor version of NVRTC.
pub fn compiler_version() -> Result<(i32, i32), ProgramError> {
    let nvrtc = load()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the call writes both numbers before it returns.
    check("asking NVRTC for its version", unsafe { (nvrtc.nvrtcVersion)(&mut major, &mut minor) })?;
    Ok((major, minor))
}

/// Compiles to machine code for GPUs of compute capability `capability` (90 for 9.0). If the compiler does not support
/// it yet, compiles to assembly for the newest supported one below, which the driver translates.
pub fn compile(source: &Source, capability: i32) -> Result<Vec<u8>, ProgramError> {
    let nvrtc = load()?;
    let known = supported_architectures()?;
    let newest = known.iter().copied().filter(|&known| known <= capability).max();
    let newest = newest.ok_or_else(|| ProgramError::Refused {
        what: format!("compiling {}", source.name),
        reason: format!("this NVRTC supports GPUs of {known:?}, not of {capability}"),
    })?;
    let exact = newest == capability;
    let architecture = format!("{}_{newest}", if exact { "sm" } else { "compute" });
    let program = Compilation::create(source)?;
    let mut options = vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
    options.extend(source.definitions.iter().map(|(name, value)| format!("--define-macro={name}={value}")));
    let options: Vec<CString> = options.into_iter().map(text).collect::<Result<_, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: as many null-terminated options as given, alive during the call.
    let compiled = unsafe { (nvrtc.nvrtcCompileProgram)(program.handle, pointers.len() as i32, pointers.as_ptr()) };
    if let Err(error) = check("compiling for the GPU", compiled) {
        // The log describes errors in the program or files missing from the compiler.
        let log = program.log()?;
        return Err(match log.is_empty() {
            true => error,
            false => ProgramError::Compile { name: source.name, architecture, log },
        });
    }
    // SAFETY: functions of NVRTC that return this program's size and contents.
    match exact {
        true => program.bytes(
            |size| unsafe { (nvrtc.nvrtcGetCUBINSize)(program.handle, size) },
            |bytes| unsafe { (nvrtc.nvrtcGetCUBIN)(program.handle, bytes) },
        ),
        false => program.bytes(
            |size| unsafe { (nvrtc.nvrtcGetPTXSize)(program.handle, size) },
            |bytes| unsafe { (nvrtc.nvrtcGetPTX)(program.handle, bytes) },
        ),
    }
}

/// The compute capabilities that the compiler supports, ascending (90 for 9.0).
pub fn supported_architectures() -> Result<Vec<i32>, ProgramError> {
    let nvrtc = load()?;
    let what = "asking NVRTC for its supported GPUs";
    let mut count = 0;
    // SAFETY: the call writes one number before it returns.
    check(what, unsafe { (nvrtc.nvrtcGetNumSupportedArchs)(&mut count) })?;
    let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the vector has room for all of them.
    check(what, unsafe { (nvrtc.nvrtcGetSupportedArchs)(architectures.as_mut_ptr()) })?;
    Ok(architectures)
}

/// A program during compilation.
struct Compilation {
    nvrtc: &'static Nvrtc,
    handle: NvrtcProgram,
}

impl Compilation {
    fn create(source: &Source) -> Result<Self, ProgramError> {
        let nvrtc = load()?;
        let (source_text, name) = (text(source.text.to_owned())?, text(source.name.replace(' ', "_") + ".cu")?);
        let mut handle = ptr::null_mut();
        // SAFETY: null-terminated texts, no headers; the call writes `handle` if it succeeds.
        check("giving NVRTC a program", unsafe {
            (nvrtc.nvrtcCreateProgram)(&mut handle, source_text.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null())
        })?;
        Ok(Self { nvrtc, handle })
    }

    fn log(&self) -> Result<String, ProgramError> {
        let nvrtc = self.nvrtc;
        // SAFETY: functions of NVRTC that return this program's log.
        let log = self.bytes(
            |size| unsafe { (nvrtc.nvrtcGetProgramLogSize)(self.handle, size) },
            |bytes| unsafe { (nvrtc.nvrtcGetProgramLog)(self.handle, bytes) },
        )?;
        Ok(String::from_utf8_lossy(log.strip_suffix(&[0]).unwrap_or(&log)).into_owned())
    }

    /// The bytes written by `fill`; `size` returns their number.
    fn bytes(
        &self,
        size: impl FnOnce(*mut usize) -> NvrtcResult,
        fill: impl FnOnce(*mut c_char) -> NvrtcResult,
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
        // SAFETY: created by `create`, destroyed once.
        if let Err(error) = check("destroying a program", unsafe { (self.nvrtc.nvrtcDestroyProgram)(&mut self.handle) })
        {
            tracing::warn!("{error}");
        }
    }
}

/// Loads NVRTC at the first call: from the folder of torch's Python packages, or from the library path.
fn load() -> Result<&'static Nvrtc, ProgramError> {
    static BESIDE_LIBTORCH: Once = Once::new();
    BESIDE_LIBTORCH.call_once(load_beside_libtorch);
    bindings::nvrtc().map(|(nvrtc, _)| nvrtc).ok_or(ProgramError::CompilerMissing)
}

/// Loads NVRTC and its builtins from the Python packages beside torch. Once loaded, they are found by name; NVRTC
/// itself would search for its builtins on the library path only. Failures are ignored: the next lookup reports them.
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
    // SAFETY: the name is null-terminated, the library's initialisers are NVIDIA's own, and it stays loaded.
    !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }.is_null()
}

fn text(text: String) -> Result<CString, ProgramError> {
    CString::new(text).map_err(|_| ProgramError::Refused {
        what: "giving NVRTC a program".to_owned(),
        reason: "it contains a zero byte".to_owned(),
    })
}

fn check(what: &str, result: NvrtcResult) -> Result<(), ProgramError> {
    if result == 0 {
        return Ok(());
    }
    let text = bindings::nvrtc().map(|(_, errors)| {
        // SAFETY: returns a null-terminated text that is never freed.
        unsafe { CStr::from_ptr((errors.nvrtcGetErrorString)(result)) }.to_string_lossy().into_owned()
    });
    Err(ProgramError::Refused {
        what: what.to_owned(),
        reason: text.unwrap_or_else(|| format!("NVRTC error {result}")),
    })
}
