//! Report on this machine: libtorch, CUDA, GPUs, memory, copy rates and the overlap of copies with computation; in several processes, how they meet and
//! how fast they exchange.
//!
//! Anything missing is reported with its reason; processes that do not meet are the only error.

mod copies;
mod exchange;
mod gpus;

use std::path::PathBuf;

use serde::Serialize;
use tch::Device;

use crate::memory;
use crate::torch::simd::Level;
use crate::torch::{self, CudaLibrary, device};

pub use copies::{DeviceCopies, Overlap};
pub use exchange::{Exchange, examine as examine_exchange};
pub use gpus::{Driver, Gpu, driver};

/// Findings about this machine.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    pub kdgat_version: String,
    /// Version of libtorch.
    pub libtorch_version: String,
    /// Folder of libtorch's libraries.
    pub libtorch_folder: Option<PathBuf>,
    /// CUDA part of libtorch: loaded, or the reason why not.
    pub cuda_library: Finding,
    /// CUDA's run-time compiler (NVRTC), needed for `attention = "fused"` on a GPU.
    pub kernel_compiler: Finding,
    /// GPUs as reported by the driver.
    pub driver: Driver,
    /// Devices that torch can use.
    pub devices: Vec<DeviceReport>,
    /// Reason that torch can use no GPU; `None` if it can.
    pub no_cuda_device: Option<String>,
    pub host: Host,
    /// The processes that a launcher has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Exchange>,
}

/// State of a component, with the reason if it does not work.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub works: bool,
    pub detail: String,
}

/// The processor and its memory.
#[derive(Debug, Serialize)]
pub struct Host {
    pub processor: String,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Number of threads that libtorch computes with.
    pub threads: usize,
    /// Widest vector instructions that kdgat's own kernels use here.
    pub vectors: String,
    /// Widest vector instructions that libtorch's kernels use here.
    pub libtorch_vectors: String,
    pub memory_available_bytes: u64,
    /// Host copy rate with all threads, in bytes of the source per second.
    pub copy_bytes_per_second: Option<f64>,
}

/// A GPU as torch sees it.
#[derive(Debug, Serialize)]
pub struct DeviceReport {
    /// Name that `--device` accepts.
    pub name: String,
    pub memory_total_bytes: u64,
    pub memory_free_bytes: u64,
    /// Page locking of host memory for this GPU.
    pub page_locked_memory: Finding,
    /// Copy measurements, or the reason that they failed.
    pub copies: Result<DeviceCopies, String>,
}

/// Examines the machine; measures copies for about a second per device.
pub fn examine() -> Report {
    // Must precede any other device query: libtorch caches its first answer.
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
        exchange: None,
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
            Ok(_) => Finding { works: true, detail: "page locking works".to_owned() },
            Err(error) => Finding { works: false, detail: error.to_string() },
        },
        copies: copies::measure(cuda, memory.free_bytes).map_err(|error| first_line(&error.to_string())),
    }
}

/// Name of the processor as reported by the system.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}

/// First line of a libtorch message; dozens of lines about its own code follow.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("").to_owned()
}
