//! CUDA C++ programs, compiled at first use for the installed GPU and launched on torch's streams.
//!
//! The compiler (NVRTC) and the driver are loaded at run time, so building kdgat requires nothing of CUDA, and one
//! binary serves machines with and without a GPU. Kernels run in torch's context on the current stream: memory and
//! ordering need no special care.
//!
//! For tests, the C++ compiler compiles a program for the CPU, with emulated warps: arguments pass through the same code as
//! on a GPU, and every array index is checked. The GPU that tests simulate in software runs it in its streams.

mod bindings;
mod disk_cache;
mod driver;
mod emulated;
mod nvrtc;

use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::Hash;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use tch::{Device, TchError, Tensor};

pub use nvrtc::compiler_version;
pub use nvrtc::{compile as compile_for, supported_architectures as architectures};

use super::cuda::test_cuda_library;
use super::device::DeviceError;

/// Threads per block: four warps.
const BLOCK_THREADS: u32 = 128;

/// Source of a program.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name shown in errors.
    pub name: &'static str,
    /// The program text in CUDA C++.
    pub text: &'static str,
    /// Its `extern "C" __global__` functions, each with the number of its parameters.
    pub kernels: &'static [(&'static str, usize)],
    /// Macros defined before the text, as (name, value).
    pub definitions: Vec<(&'static str, String)>,
}

/// A compiled program, loaded on one device. It stays loaded until the process exits.
#[derive(Debug)]
pub struct Program {
    device: Device,
    kernels: &'static [(&'static str, usize)],
    loaded: Loaded,
}

/// Programs of one kind, each compiled at its first use in the process.
#[derive(Debug)]
pub struct Programs<K>(LazyLock<Mutex<HashMap<K, Arc<Program>>>>);

impl<K: Eq + Hash> Programs<K> {
    /// None yet.
    #[expect(clippy::new_without_default, reason = "a static needs a constant function")]
    pub const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    /// The program of a key. Another thread that needs it while it is compiled waits.
    ///
    /// # Errors
    /// Those of `compile`; the next call tries again.
    pub fn get(
        &self,
        key: K,
        compile: impl FnOnce() -> Result<Program, ProgramError>,
    ) -> Result<Arc<Program>, ProgramError> {
        let mut compiled = self.0.lock();
        if let Some(program) = compiled.get(&key) {
            return Ok(Arc::clone(program));
        }
        let program = Arc::new(compile()?);
        compiled.insert(key, Arc::clone(&program));
        Ok(program)
    }
}

#[derive(Debug)]
enum Loaded {
    Driver(driver::Module),
    /// For tests: kernels run on the CPU.
    Emulated(emulated::Library),
}

/// An argument of a kernel, matching its parameter's position and type.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A pointer to the elements of a contiguous tensor on the program's device, for reading or writing.
    Array(&'a Tensor),
    /// A null pointer.
    Absent,
    /// An `int`.
    Int(i32),
    /// An `unsigned`.
    Unsigned(u32),
    /// An `unsigned long long`.
    UnsignedLong(u64),
    /// A `float`.
    Float(f32),
    /// A `double`.
    Double(f64),
}

/// Errors in compiling or running a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// NVRTC is not installed.
    #[error(
        "CUDA's run-time compiler not found (libnvrtc.so, searched in nvidia/*/lib beside torch and on the library path); install it (it \
         comes with CUDA, and as the Python package nvidia-cuda-nvrtc)"
    )]
    CompilerMissing,
    /// NVRTC rejected the program.
    #[error("compiling {name} for {architecture} failed. Compiler output:\n{log}")]
    Compile {
        /// Name of the program.
        name: &'static str,
        /// The target architecture.
        architecture: String,
        /// Output of the compiler.
        log: String,
    },
    /// The compiler or the driver returned an error.
    #[error("{what}: {reason}")]
    Refused {
        /// The failed operation.
        what: String,
        /// The error.
        reason: String,
    },
    /// A kernel was called with invalid arguments.
    #[error("kernel {kernel}: {problem}")]
    Argument {
        /// Name of the kernel.
        kernel: String,
        /// Description of the invalid argument or access.
        problem: String,
    },
    /// torch reported an error.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// The device does not exist, or its stream cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<ProgramError> for TchError {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::Torch(error) => error,
            error => Self::Torch(error.to_string()),
        }
    }
}

impl Program {
    /// Compiles `source` for `device`, which takes about a second, or takes it from the cache on disk, and loads it there.
    pub fn compile(source: &Source, device: Device) -> Result<Self, ProgramError> {
        let loaded = match device {
            Device::Cuda(index) if test_cuda_library().is_none() => {
                Loaded::Driver(driver::Module::compile(source, index)?)
            }
            Device::Cuda(_) | Device::Cpu => Loaded::Emulated(emulated::Library::compile(source, device)?),
            device => Err(DeviceError::Unsupported { what: "a CUDA program", device })?,
        };
        Ok(Self { device, kernels: source.kernels, loaded })
    }

    /// Queues a kernel on the current stream of the program's device, with at least `threads` threads, rounded up to
    /// whole blocks; the kernel must handle the surplus threads.
    ///
    /// The caller ensures that the arguments have the types of the kernel's parameters, and that the kernel stays
    /// within their bounds.
    pub fn launch(&self, kernel: &str, threads: u64, arguments: &[Argument<'_>]) -> Result<(), ProgramError> {
        if threads == 0 {
            return Ok(());
        }
        let problem = |problem: String| ProgramError::Argument { kernel: kernel.to_owned(), problem };
        match self.kernels.iter().find(|(name, _)| *name == kernel) {
            Some((_, count)) if *count == arguments.len() => {}
            Some((_, count)) => return Err(problem(format!("takes {count} arguments, not {}", arguments.len()))),
            None => return Err(problem("is not in the program".to_owned())),
        }
        let blocks = u32::try_from(threads.div_ceil(u64::from(BLOCK_THREADS)))
            .ok()
            .filter(|&blocks| i32::try_from(blocks).is_ok())
            .ok_or_else(|| problem(format!("{threads} threads exceed the limit of one launch")))?;
        let mut values = Vec::with_capacity(arguments.len());
        for (place, argument) in arguments.iter().enumerate() {
            values.push(self.stored(argument).map_err(|reason| problem(format!("argument {place} {reason}")))?);
        }
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        match &self.loaded {
            // SAFETY: one pointer per argument, to at least the parameter's size, alive during the call, which copies
            // the arguments; the caller is responsible for what the kernel does with them.
            Loaded::Driver(module) => unsafe { module.launch(kernel, blocks, BLOCK_THREADS, &mut places) },
            // SAFETY: see above.
            Loaded::Emulated(library) => unsafe { library.launch(kernel, blocks, BLOCK_THREADS, &mut places) },
        }
    }

    /// An argument as a kernel's parameter, at the start of sixteen bytes. An array's length in bytes follows its
    /// address: a GPU reads the address only, the emulation reads both.
    fn stored(&self, argument: &Argument<'_>) -> Result<[u64; 2], String> {
        // The driver copies the first bytes of each argument.
        const { assert!(cfg!(target_endian = "little")) };
        Ok(match *argument {
            Argument::Absent => [0, 0],
            Argument::Int(value) => [u64::from(value.cast_unsigned()), 0],
            Argument::Unsigned(value) => [u64::from(value), 0],
            Argument::UnsignedLong(value) => [value, 0],
            Argument::Float(value) => [u64::from(value.to_bits()), 0],
            Argument::Double(value) => [value.to_bits(), 0],
            Argument::Array(tensor) => {
                if tensor.device() != self.device || !tensor.is_contiguous() {
                    return Err(format!(
                        "must be contiguous on {:?}, got strides {:?} on {:?}",
                        self.device,
                        tensor.stride(),
                        tensor.device()
                    ));
                }
                let bytes = tensor.numel() * tensor.f_kind().map_err(|error| error.to_string())?.elt_size_in_bytes();
                [tensor.data_ptr() as u64, bytes as u64]
            }
        })
    }
}
