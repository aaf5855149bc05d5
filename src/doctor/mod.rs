//! What this machine offers: libtorch, CUDA, GPUs, memory, and how fast and how freely bytes move.
//!
//! Everything that can be missing is reported with its reason; nothing here is an error of the program.

mod copies;
mod gpus;

use std::path::PathBuf;

use serde::Serialize;
use tch::Device;

use crate::memory;
use crate::torch::simd::Level;
use crate::torch::{self, CudaLibrary, device};

pub use copies::{DeviceCopies, Overlap};
pub use gpus::{Driver, Gpu, driver};

/// What was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    pub kdgat_version: String,
    /// Version of libtorch.
    pub libtorch_version: String,
    /// Where its libraries lie.
    pub libtorch_folder: Option<PathBuf>,
    /// Whether its CUDA part is loaded, and why not.
    pub cuda_library: Finding,
    /// Whether CUDA's run-time compiler (NVRTC) is there, for `attention = "fused"` on a GPU.
    pub kernel_compiler: Finding,
    /// The graphics driver's own view.
    pub driver: Driver,
    /// The devices that torch can use.
    pub devices: Vec<DeviceReport>,
    /// Why torch can use no GPU, if it cannot.
    pub no_cuda_device: Option<String>,
    pub host: Host,
}

/// Something that is there and works, or not, and why.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub works: bool,
    pub detail: String,
}

/// The processor and its memory.
#[derive(Debug, Serialize)]
pub struct Host {
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Threads that libtorch computes with.
    pub threads: usize,
    /// The widest vectors that kdgat's own kernels use here.
    pub vectors: String,
    /// The same of libtorch's kernels.
    pub libtorch_vectors: String,
    pub memory_available_bytes: u64,
    /// Memory to memory, all threads; bytes of the source a second.
    pub copy_bytes_per_second: Option<f64>,
}

/// A GPU as torch sees it.
#[derive(Debug, Serialize)]
pub struct DeviceReport {
    /// As `--device` takes it.
    pub name: String,
    pub memory_total_bytes: u64,
    pub memory_free_bytes: u64,
    /// Whether the driver locks pages of host memory for it.
    pub page_locked_memory: Finding,
    /// What was measured, or why it could not be.
    pub copies: Result<DeviceCopies, String>,
}

/// Looks, and measures copies for about a second a device.
pub fn examine() -> Report {
    // Before anything else asks libtorch for devices: it remembers its first answer.
    let cuda = torch::load_cuda();
    let libtorch = torch::version::libtorch().ok();
    let count = device::cuda_device_count();
    let devices = (0..*count.as_ref().unwrap_or(&0)).map(examine_device).collect();
    Report {
        kdgat_version: env!("CARGO_PKG_VERSION").to_owned(),
        libtorch_version: libtorch.as_ref().map_or(String::new(), |libtorch| libtorch.version.clone()),
        libtorch_folder: libtorch.as_ref().and_then(|libtorch| libtorch.folder.clone()),
        cuda_library: Finding { works: matches!(cuda, CudaLibrary::Loaded { .. }), detail: cuda.to_string() },
        kernel_compiler: match torch::cuda_program::compiler_version() {
            Ok((major, minor)) => Finding { works: true, detail: format!("NVRTC {major}.{minor}") },
            Err(error) => Finding { works: false, detail: error.to_string() },
        },
        driver: gpus::driver(),
        devices,
        no_cuda_device: match count {
            Ok(0) => Some("libtorch sees no GPU".to_owned()),
            Ok(_) => None,
            Err(error) => Some(first_line(&error.to_string())),
        },
        host: Host {
            processor: processor(),
            cores: std::thread::available_parallelism().map_or(1, |count| count.get()),
            threads: usize::try_from(tch::get_num_threads()).unwrap_or(1),
            vectors: format!("{:?}", Level::best()),
            libtorch_vectors: libtorch.map_or(String::new(), |libtorch| libtorch.cpu_capability),
            memory_available_bytes: memory::available_bytes(),
            copy_bytes_per_second: copies::host_bytes_per_second().ok(),
        },
    }
}

fn examine_device(index: usize) -> DeviceReport {
    let cuda = Device::Cuda(index);
    let memory = device::device_memory(cuda).unwrap_or_default();
    DeviceReport {
        name: format!("cuda:{index}"),
        memory_total_bytes: memory.total_bytes,
        memory_free_bytes: memory.free_bytes,
        page_locked_memory: match device::PinnedBlock::new(1 << 20, cuda) {
            Ok(_) => Finding { works: true, detail: "the driver locks pages".to_owned() },
            Err(error) => Finding { works: false, detail: error.to_string() },
        },
        copies: copies::measure(cuda, memory.free_bytes).map_err(|error| first_line(&error.to_string())),
    }
}

/// The name of the processor, as the system gives it.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}

/// libtorch's messages go on for dozens of lines about its own code.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("").to_owned()
}
