//! GPUs as the driver sees them, whether libtorch can use them or not.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use serde::Serialize;

/// NVIDIA's driver.
#[derive(Debug, Default, Serialize)]
pub struct Driver {
    pub version: Option<String>,
    /// The newest CUDA that the driver serves, such as `13.0`.
    pub cuda_version: Option<String>,
    pub gpus: Vec<Gpu>,
    /// Why the driver does not answer.
    pub missing: Option<String>,
}

/// A GPU, in the driver's order.
#[derive(Debug, Serialize)]
pub struct Gpu {
    pub name: String,
    pub memory_total_bytes: u64,
    pub memory_free_bytes: u64,
}

/// Asks the driver through NVML.
pub fn driver() -> Driver {
    ask().unwrap_or_else(|error| Driver { missing: Some(reason(&error)), ..Driver::default() })
}

fn ask() -> Result<Driver, NvmlError> {
    let nvml = Nvml::init()?;
    let gpus = (0..nvml.device_count()?).map(|index| {
        let device = nvml.device_by_index(index)?;
        let memory = device.memory_info()?;
        Ok(Gpu { name: device.name()?, memory_total_bytes: memory.total, memory_free_bytes: memory.free })
    });
    Ok(Driver {
        gpus: gpus.collect::<Result<_, NvmlError>>()?,
        version: nvml.sys_driver_version().ok(),
        cuda_version: nvml
            .sys_cuda_driver_version()
            .ok()
            .map(|number| format!("{}.{}", number / 1000, number % 1000 / 10)),
        missing: None,
    })
}

fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => {
            "no NVIDIA driver (libnvidia-ml.so cannot be loaded); a GPU needs one, a CPU does not".to_owned()
        }
        error => format!("NVIDIA's driver does not answer: {error}"),
    }
}
