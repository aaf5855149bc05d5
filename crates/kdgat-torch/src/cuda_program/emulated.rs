//! A program compiled by the C++ compiler for this CPU, with `emulated.h`: for tests without a GPU.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use parking_lot::Mutex;

use super::{ProgramError, Source};

type Launch = unsafe extern "C" fn(u32, u32, *mut *mut c_void) -> *const c_char;

#[derive(Debug)]
pub(super) struct Library {
    /// Under a lock, because the emulation has global state.
    launchers: Mutex<HashMap<&'static str, Launch>>,
}

impl Library {
    pub(super) fn compile(source: &Source) -> Result<Self, ProgramError> {
        let refused = |what: &str, reason: String| ProgramError::Refused { what: what.to_owned(), reason };
        let failed = |error: std::io::Error| refused("emulating a GPU", error.to_string());
        let folder = tempfile::tempdir().map_err(failed)?;
        let (file, library) = (folder.path().join("program.cpp"), folder.path().join("program.so"));
        for (name, text) in [("emulated.h", include_str!("emulated.h")), ("kernels.cu", source.text)] {
            std::fs::write(folder.path().join(name), text).map_err(failed)?;
        }
        std::fs::write(&file, program(source)).map_err(failed)?;
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let mut command = Command::new(&compiler);
        command.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-Werror"]);
        command.args(source.definitions.iter().map(|(name, value)| format!("-D{name}={value}")));
        let output = command.arg("-o").arg(&library).arg(&file).output().map_err(failed)?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(ProgramError::Compile { name: source.name, architecture: format!("a CPU by {compiler}"), log });
        }
        let path = CString::new(library.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: loads the library just created; its initialisers only set variables, and it stays loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let mut launchers = HashMap::new();
        for &(kernel, _) in source.kernels {
            let name = CString::new(format!("launch_{kernel}")).unwrap_or_default();
            // SAFETY: a handle, or null, for which the lookup fails, and a null-terminated name.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if handle.is_null() || symbol.is_null() {
                return Err(refused(
                    "emulating a GPU",
                    format!("kernel {kernel} is missing from the compiled library"),
                ));
            }
            // SAFETY: `program` generates each launcher with this type.
            launchers.insert(kernel, unsafe { std::mem::transmute::<*mut c_void, Launch>(symbol) });
        }
        Ok(Self { launchers: Mutex::new(launchers) })
    }

    /// Runs a kernel on the emulated GPU.
    ///
    /// # Safety
    /// `arguments` must have a pointer for each of the kernel's parameters; an array's points to its address and length
    /// in bytes.
    pub(super) unsafe fn launch(
        &self,
        kernel: &str,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), ProgramError> {
        let launchers = self.launchers.lock();
        let problem = |problem: &str| ProgramError::Argument { kernel: kernel.to_owned(), problem: problem.to_owned() };
        let launcher = launchers.get(kernel).ok_or_else(|| problem("is not in the program"))?;
        // SAFETY: by this function's contract.
        let failure = unsafe { launcher(blocks, threads, arguments.as_mut_ptr()) };
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: a null-terminated text, valid until the next launch, which the lock prevents.
        Err(problem(&unsafe { CStr::from_ptr(failure) }.to_string_lossy()))
    }
}

fn program(source: &Source) -> String {
    let launchers = source.kernels.iter().map(|(kernel, _)| {
        format!(
            "extern \"C\" const char* launch_{kernel}(unsigned blocks, unsigned threads, void** arguments) {{\n  \
             return emulated::launch({kernel}, blocks, threads, arguments);\n}}\n"
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
