//! CUDA C++ compiled when it is first needed, for the GPU at hand, and launched on torch's streams.
//!
//! The compiler (NVRTC) and the driver are loaded at run time, so nothing of CUDA is needed to build kdgat, and one binary
//! serves machines with and without a GPU. Kernels run in the same context as torch's own, on the stream that is current:
//! memory and order need no further care.
//!
//! In the crate's own tests a program for the CPU is compiled too, by the C++ compiler, with warps emulated: arguments
//! pass through the same code as on a GPU, and every index of an array is checked.

mod driver;
mod emulated;
mod nvrtc;

use std::ffi::c_void;

use tch::{Device, TchError, Tensor};

pub use nvrtc::compiler_version;
pub use nvrtc::{compile as compile_for, supported_architectures as architectures};

use super::device::DeviceError;

/// Threads of a block: four warps.
const BLOCK_THREADS: u32 = 128;

/// What a program is made of.
#[derive(Clone, Debug)]
pub struct Source {
    /// What errors call it.
    pub name: &'static str,
    /// CUDA C++.
    pub text: &'static str,
    /// Its `extern "C" __global__` functions, each with its number of parameters.
    pub kernels: &'static [(&'static str, usize)],
    /// Macros, defined before the text.
    pub definitions: Vec<(&'static str, String)>,
}

/// A compiled program, loaded on one device. It stays loaded until the process ends.
#[derive(Debug)]
pub struct Program {
    device: Device,
    kernels: &'static [(&'static str, usize)],
    loaded: Loaded,
}

#[derive(Debug)]
enum Loaded {
    Driver(driver::Module),
    /// Tests of the kernels run on the CPU.
    Emulated(emulated::Library),
}

/// What a kernel is given, in the order and of the types of its parameters.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A pointer to the elements of a contiguous tensor on the program's device, to be read or written.
    Array(&'a Tensor),
    /// A null pointer.
    Absent,
    /// `int`
    Int(i32),
    /// `unsigned`
    Unsigned(u32),
    /// `unsigned long long`
    UnsignedLong(u64),
    /// `float`
    Float(f32),
    /// `double`
    Double(f64),
}

/// Why a program cannot be made or run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// NVRTC is not installed.
    #[error(
        "CUDA's run-time compiler was not found (libnvrtc.so, in nvidia/*/lib beside torch or on the library path); install it (it \
         comes with CUDA, and as the Python package nvidia-cuda-nvrtc), or use attention = \"composed\""
    )]
    CompilerMissing,
    /// NVRTC did not accept the program.
    #[error("compiling {name} for {architecture} failed; use attention = \"composed\". The compiler said:\n{log}")]
    Compile { name: &'static str, architecture: String, log: String },
    /// The compiler or the driver refused something.
    #[error("{what}: {reason}")]
    Refused { what: String, reason: String },
    /// A kernel was called with what it cannot take.
    #[error("kernel {kernel}: {problem}")]
    Argument { kernel: String, problem: String },
    /// torch reported an error.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// There is no such device, or its stream cannot be used.
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
    /// Compiles `source` for `device` and loads it there: about a second.
    pub fn compile(source: &Source, device: Device) -> Result<Self, ProgramError> {
        let loaded = match device {
            Device::Cuda(index) => Loaded::Driver(driver::Module::compile(source, index)?),
            Device::Cpu => Loaded::Emulated(emulated::Library::compile(source)?),
            device => Err(DeviceError::Unsupported { what: "a CUDA program", device })?,
        };
        Ok(Self { device, kernels: source.kernels, loaded })
    }

    /// Puts a kernel on the stream that is current for the program's device, with at least `threads` threads (whole
    /// blocks; the kernel sees to the surplus).
    ///
    /// The caller sees to it that the arguments have the types of the kernel's parameters, and that it stays inside their
    /// bounds.
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
            .ok_or_else(|| problem(format!("{threads} threads are more than a GPU takes at once")))?;
        let mut values = Vec::with_capacity(arguments.len());
        for (place, argument) in arguments.iter().enumerate() {
            values.push(self.stored(argument).map_err(|reason| problem(format!("argument {place} {reason}")))?);
        }
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        match &self.loaded {
            // SAFETY: as many places as arguments, each of at least the parameter's size, and alive during the call, which
            // copies them; what the kernel does with them is the caller's concern.
            Loaded::Driver(module) => unsafe { module.launch(kernel, blocks, BLOCK_THREADS, &mut places) },
            // SAFETY: as above.
            Loaded::Emulated(library) => unsafe { library.launch(kernel, blocks, BLOCK_THREADS, &mut places) },
        }
    }

    /// An argument as a kernel's parameter, at the beginning of sixteen bytes. An array's length follows its address:
    /// a GPU reads the address alone, the emulation both.
    fn stored(&self, argument: &Argument<'_>) -> Result<[u64; 2], String> {
        // The driver copies the first bytes of each.
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
                        "must be contiguous on {:?}, it has strides {:?} on {:?}",
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
