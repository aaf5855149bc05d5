//! A program compiled by the C++ compiler for this CPU, with `emulated.h`: for tests without a GPU. Kernels run at once, or, on the GPU that
//! the tests simulate in software, as jobs of its streams.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

use parking_lot::Mutex;
use tch::{Device, TchError};
use tempfile::TempDir;

use super::{ProgramError, Source};
use crate::cuda::{cuda_symbol, test_cuda_library};

type Launch = unsafe extern "C" fn(u32, u32, *mut *mut c_void) -> *const c_char;
type Describe = unsafe extern "C" fn() -> Parameters;

/// Queues a kernel on the current stream of a card. Arguments: number of the card, name of the kernel, its launcher, blocks and threads,
/// arguments of sixteen bytes each and their number, and what the parameters are. Returns null, or the reason of a failure, valid until the
/// next call on the same thread.
type LaunchOnCard =
    unsafe extern "C" fn(i32, *const c_char, Launch, u32, u32, *mut *mut c_void, i32, Parameters) -> *const c_char;

/// `Parameters` of `emulated.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Parameters {
    arrays: u64,
    written: u64,
}

#[derive(Clone, Debug)]
struct Kernel {
    name: CString,
    launch: Launch,
    parameters: Parameters,
}

#[derive(Debug)]
pub(super) struct Library {
    /// Under a lock, because the emulation has global state.
    kernels: Mutex<HashMap<&'static str, Kernel>>,
    /// `None` to run kernels at once, on arrays of the host.
    card: Option<Card>,
}

/// A simulated GPU.
#[derive(Debug)]
struct Card {
    index: i32,
    launch: LaunchOnCard,
}

impl Library {
    pub(super) fn compile(source: &Source, device: Device) -> Result<Self, ProgramError> {
        let refused = |what: &str, reason: String| ProgramError::Refused { what: what.to_owned(), reason };
        let (path, _folder) = compiled(source)?;
        let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: loads the library just created; its initialisers only set variables, and it stays loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let symbol = |name: String| {
            let found = CString::new(name.as_str()).unwrap_or_default();
            // SAFETY: a handle, or null, for which the lookup fails, and a null-terminated name.
            let symbol = if handle.is_null() { handle } else { unsafe { libc::dlsym(handle, found.as_ptr()) } };
            let missing = || refused("emulating a GPU", format!("{name} is missing from the compiled library"));
            if symbol.is_null() { Err(missing()) } else { Ok(symbol) }
        };
        let mut kernels = HashMap::new();
        for &(kernel, _) in source.kernels {
            let name = CString::new(kernel).unwrap_or_default();
            let (launch, describe) = (symbol(format!("launch_{kernel}"))?, symbol(format!("describe_{kernel}"))?);
            // SAFETY: `program` generates both functions with these types.
            let (launch, parameters) = unsafe {
                let describe = std::mem::transmute::<*mut c_void, Describe>(describe);
                (std::mem::transmute::<*mut c_void, Launch>(launch), describe())
            };
            kernels.insert(kernel, Kernel { name, launch, parameters });
        }
        let card = match device {
            Device::Cuda(index) => {
                let launch = cuda_symbol(c"software_card_launch");
                if launch.is_null() {
                    return Err(refused("emulating a GPU", "the library of the tests runs no kernels".to_owned()));
                }
                // SAFETY: the tests' library defines this function with this type, and stays loaded.
                let launch = unsafe { std::mem::transmute::<*mut c_void, LaunchOnCard>(launch) };
                Some(Card { index: i32::try_from(index).unwrap_or(i32::MAX), launch })
            }
            _ => None,
        };
        Ok(Self { kernels: Mutex::new(kernels), card })
    }

    /// Runs a kernel on the emulated GPU.
    ///
    /// # Safety
    /// `arguments` must have a pointer to sixteen bytes for each of the kernel's parameters; an array's are its address and length
    /// in bytes.
    pub(super) unsafe fn launch(
        &self,
        kernel: &str,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), ProgramError> {
        let kernels = self.kernels.lock();
        let problem = |problem: &str| ProgramError::Argument { kernel: kernel.to_owned(), problem: problem.to_owned() };
        let Kernel { name, launch, parameters } =
            kernels.get(kernel).ok_or_else(|| problem("is not in the program"))?;
        // A null-terminated text, valid until the next launch, which the lock prevents; the card's until the next one on this thread.
        let text = |failure: *const c_char| {
            // SAFETY: see above.
            unsafe { CStr::from_ptr(failure) }.to_string_lossy().into_owned()
        };
        if let Some(card) = &self.card {
            let (name, launch, parameters, count) = (name.clone(), *launch, *parameters, arguments.len() as i32);
            // The card has a lock of its own, under which kernels run.
            drop(kernels);
            // SAFETY: by this function's contract; the card copies the arguments.
            let failure = unsafe {
                (card.launch)(
                    card.index,
                    name.as_ptr(),
                    launch,
                    blocks,
                    threads,
                    arguments.as_mut_ptr(),
                    count,
                    parameters,
                )
            };
            return if failure.is_null() { Ok(()) } else { Err(TchError::Torch(text(failure)).into()) };
        }
        // SAFETY: by this function's contract.
        let failure = unsafe { launch(blocks, threads, arguments.as_mut_ptr()) };
        if failure.is_null() { Ok(()) } else { Err(problem(&text(failure))) }
    }
}

/// The compiled program, and the folder that it is in until it is loaded. Beside the library of a simulated GPU it is kept for later processes.
fn compiled(source: &Source) -> Result<(PathBuf, Option<TempDir>), ProgramError> {
    let failed =
        |error: std::io::Error| ProgramError::Refused { what: "emulating a GPU".to_owned(), reason: error.to_string() };
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let (main, header) = (program(source), include_str!("emulated.h"));
    let kept = test_cuda_library().map(|card| {
        let mut hasher = DefaultHasher::new();
        (&main, header, source.text, &source.definitions, &compiler).hash(&mut hasher);
        card.with_file_name(format!("emulated-{:016x}.so", hasher.finish()))
    });
    if let Some(kept) = kept.as_ref().filter(|kept| kept.exists()) {
        return Ok((kept.clone(), None));
    }
    let folder = match kept.as_ref().and_then(|kept| kept.parent()) {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    };
    let folder = folder.map_err(failed)?;
    let (file, library) = (folder.path().join("program.cpp"), folder.path().join("program.so"));
    for (name, text) in [("emulated.h", header), ("kernels.cu", source.text), ("program.cpp", &main)] {
        std::fs::write(folder.path().join(name), text).map_err(failed)?;
    }
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-Werror"]);
    command.args(source.definitions.iter().map(|(name, value)| format!("-D{name}={value}")));
    let output = command.arg("-o").arg(&library).arg(&file).output().map_err(failed)?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(ProgramError::Compile { name: source.name, architecture: format!("a CPU by {compiler}"), log });
    }
    let Some(kept) = kept else { return Ok((library, Some(folder))) };
    // Another process may have made the same in the meantime.
    std::fs::rename(&library, &kept).map_err(failed)?;
    Ok((kept, None))
}

fn program(source: &Source) -> String {
    let launchers = source.kernels.iter().map(|(kernel, _)| {
        format!(
            "extern \"C\" const char* launch_{kernel}(unsigned blocks, unsigned threads, void** arguments) {{\n  \
             return emulated::launch({kernel}, blocks, threads, arguments);\n}}\n\
             extern \"C\" emulated::Parameters describe_{kernel}() {{\n  return emulated::parameters({kernel});\n}}\n"
        )
    });
    let launchers: String = launchers.collect();
    format!("#include \"emulated.h\"\n#include \"kernels.cu\"\n{launchers}")
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use crate::cuda_program::{Argument, Program, Source};

    /// Each lane writes the sum of its warp's values. `wrong` makes a lane leave early (1) or write past the end (2).
    const SUM: &str = r#"
        extern "C" __global__ void sum(int wrong, float factor, ARRAY(const float) values, ARRAY(float) sums) {
          const int lane = threadIdx.x % 32;
          const int thread = blockIdx.x * blockDim.x + threadIdx.x;
          if (wrong == 1 && lane == 7) {
            return;
          }
          float value = factor * values[thread];
          for (int distance = 16; distance > 0; distance /= 2) {
            value += __shfl_xor_sync(0xffffffffu, value, distance);
          }
          sums[thread + (wrong == 2 && lane == 31 ? 1000 : 0)] = value;
        }
    "#;

    fn run(wrong: i32) -> (Result<(), String>, Tensor) {
        let source = Source { name: "sums", text: SUM, kernels: &[("sum", 4)], definitions: Vec::new() };
        let program = Program::compile(&source, Device::Cpu).unwrap();
        let values = Tensor::arange(256, (Kind::Float, Device::Cpu));
        let sums = Tensor::zeros([256], (Kind::Float, Device::Cpu));
        let arguments = [Argument::Int(wrong), Argument::Float(2.0), Argument::Array(&values), Argument::Array(&sums)];
        (program.launch("sum", 200, &arguments).map_err(|error| error.to_string()), sums)
    }

    #[test]
    fn warps_exchange_values() {
        let (outcome, sums) = run(0);
        outcome.unwrap();
        let expected = Tensor::arange(256, (Kind::Float, Device::Cpu)).reshape([8, 32]).sum_dim_intlist(1, true, None);
        assert_eq!(sums.reshape([8, 32]), (expected * 2).expand([8, 32], false));
    }

    #[test]
    fn mistakes_of_a_kernel_are_found() {
        let message = run(1).0.unwrap_err();
        assert!(message.contains("1 lanes of a warp have left"), "{message}");
        let message = run(2).0.unwrap_err();
        assert!(message.contains("index 1031 of an array of 256"), "{message}");
    }
}
