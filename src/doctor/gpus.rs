//! GPUs as reported by the driver, whether libtorch can use them or not.

use nvml_wrapper::error::NvmlError;
use serde::Serialize;

use crate::memory::load_nvml;

/// NVIDIA's driver.
#[derive(Debug, Default, Serialize)]
pub struct Driver {
    pub version: Option<String>,
    /// Newest CUDA version that the driver supports, such as `13.0`.
    pub cuda_version: Option<String>,
    pub gpus: Vec<Gpu>,
    /// Reason that the driver does not respond.
    pub missing: Option<String>,
}

/// A GPU, in the driver's order.
#[derive(Debug, Serialize)]
pub struct Gpu {
    pub name: String,
    pub memory_total_bytes: u64,
    pub memory_free_bytes: u64,
    /// Compute capability, such as `8.6`.
    pub compute_capability: Option<String>,
    /// Reason that libtorch's CUDA cannot use the card; `None` if it can.
    pub unusable: Option<String>,
}

/// Oldest compute capability that CUDA 13, and with it libtorch 2.11 as installed by `scripts/setup --cuda`, supports: Turing.
const OLDEST_CAPABILITY: (i32, i32) = (7, 5);

fn reason_unusable((major, minor): (i32, i32)) -> Option<String> {
    let (oldest_major, oldest_minor) = OLDEST_CAPABILITY;
    ((major, minor) < OLDEST_CAPABILITY).then(|| {
        format!(
            "compute capability {major}.{minor}: CUDA 13 has dropped cards older than Turing ({oldest_major}.{oldest_minor}); use \
             --device cpu, or a libtorch 2.11.0 for CUDA 12.6 by setting LIBTORCH"
        )
    })
}

/// Queries the driver through NVML.
pub fn driver() -> Driver {
    ask().unwrap_or_else(|error| Driver { missing: Some(reason(&error)), ..Driver::default() })
}

fn ask() -> Result<Driver, NvmlError> {
    let nvml = load_nvml()?;
    let gpus = (0..nvml.device_count()?).map(|index| {
        let device = nvml.device_by_index(index)?;
        let memory = device.memory_info()?;
        let capability = device.cuda_compute_capability().ok().map(|capability| (capability.major, capability.minor));
        Ok(Gpu {
            name: device.name()?,
            memory_total_bytes: memory.total,
            memory_free_bytes: memory.free,
            compute_capability: capability.map(|(major, minor)| format!("{major}.{minor}")),
            unusable: capability.and_then(reason_unusable),
        })
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

#[cfg(test)]
mod tests {
    use super::reason_unusable;

    #[test]
    fn cards_that_cuda_13_has_dropped_are_reported() {
        for old in [(6, 1), (7, 0), (7, 2)] {
            assert!(reason_unusable(old).is_some_and(|reason| reason.contains("older than Turing (7.5)")), "{old:?}");
        }
        for new in [(7, 5), (8, 6), (9, 0), (12, 0)] {
            assert_eq!(reason_unusable(new), None);
        }
    }
}
