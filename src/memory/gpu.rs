//! Memory of a whole GPU, whoever uses it, as NVML tells it.

use std::sync::OnceLock;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::MemoryInfo;
use tch::Device;

use crate::torch::device;

/// Bytes in use on the card, by every process; `None` for the CPU and where the driver does not tell.
pub fn used_bytes(of: Device) -> Option<u64> {
    let Device::Cuda(index) = of else { return None };
    by_nvml(index).map(|memory| memory.used).or_else(|| {
        let memory = device::device_memory(of).ok()?;
        Some(memory.total_bytes.saturating_sub(memory.free_bytes))
    })
}

/// Bytes that the card has; asked without CUDA, which need not have been started. `None` where the driver does not tell.
pub fn total_bytes(index: usize) -> Option<u64> {
    Some(by_nvml(index)?.total)
}

fn by_nvml(index: usize) -> Option<MemoryInfo> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = NVML.get_or_init(|| Nvml::init().ok()).as_ref()?;
    memory_of(nvml, index).ok()
}

fn memory_of(nvml: &Nvml, index: usize) -> Result<MemoryInfo, NvmlError> {
    // NVML counts all cards, CUDA those that it may see, in the same order: see `torch::number_gpus_by_bus`.
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let device = match visible.split(',').map(str::trim).filter(|entry| !entry.is_empty()).nth(index) {
        Some(uuid) if uuid.starts_with("GPU-") => nvml.device_by_uuid(uuid)?,
        Some(number) => nvml.device_by_index(number.parse().map_err(|_| NvmlError::NotFound)?)?,
        None => nvml.device_by_index(u32::try_from(index).map_err(|_| NvmlError::NotFound)?)?,
    };
    device.memory_info()
}
