//! Memory of a whole GPU, whoever uses it, as NVML tells it.

use std::sync::OnceLock;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::MemoryInfo;
use tch::Device;

use kdgat_torch::{device, test_cuda_library};

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
    let nvml = NVML.get_or_init(|| load().ok()).as_ref()?;
    memory_of(nvml, index).ok()
}

fn load() -> Result<Nvml, NvmlError> {
    match test_cuda_library() {
        Some(path) => Nvml::builder().lib_path(path.as_os_str()).init(),
        None => Nvml::init(),
    }
}

fn memory_of(nvml: &Nvml, index: usize) -> Result<MemoryInfo, NvmlError> {
    // NVML counts all cards, CUDA those that it may see, in the same order: see `torch::number_gpus_by_bus`.
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let visible: Vec<&str> = visible.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
    match visible_device(&visible, index).ok_or(NvmlError::NotFound)? {
        VisibleDevice::Slice(uuid) => nvml.device_by_uuid(uuid)?.memory_info(),
        VisibleDevice::Card(uuid) => of_whole_card(nvml.device_by_uuid(uuid)?),
        VisibleDevice::Number(number) => of_whole_card(nvml.device_by_index(number)?),
    }
}

/// A card that is cut into slices has none for itself: CUDA takes its first slice, whose size NVML tells by the slice's name alone.
fn of_whole_card(card: nvml_wrapper::Device) -> Result<MemoryInfo, NvmlError> {
    let is_sliced = card.mig_mode().is_ok_and(|mode| mode.current != 0);
    if is_sliced { Err(NvmlError::NotSupported) } else { card.memory_info() }
}

/// A device as CUDA_VISIBLE_DEVICES names it.
#[derive(Debug, PartialEq, Eq)]
enum VisibleDevice<'a> {
    /// A multi-instance slice of a card.
    Slice(&'a str),
    Card(&'a str),
    Number(u32),
}

/// CUDA's device number `index`, of those that are `visible` (all, where none is named).
fn visible_device<'a>(visible: &[&'a str], index: usize) -> Option<VisibleDevice<'a>> {
    match visible.get(index) {
        Some(uuid) if uuid.starts_with("MIG-") => Some(VisibleDevice::Slice(uuid)),
        Some(uuid) if uuid.starts_with("GPU-") => Some(VisibleDevice::Card(uuid)),
        Some(number) => number.parse().ok().map(VisibleDevice::Number),
        None if visible.is_empty() => u32::try_from(index).ok().map(VisibleDevice::Number),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_as_cuda_numbers_them() {
        assert_eq!(visible_device(&[], 2), Some(VisibleDevice::Number(2)));
        assert_eq!(visible_device(&["3", "1"], 1), Some(VisibleDevice::Number(1)));
        assert_eq!(visible_device(&["3"], 1), None, "CUDA does not see it");
        assert_eq!(visible_device(&["GPU-8f"], 0), Some(VisibleDevice::Card("GPU-8f")));
        assert_eq!(visible_device(&["MIG-6a"], 0), Some(VisibleDevice::Slice("MIG-6a")));
        assert_eq!(visible_device(&["none"], 0), None);
    }
}
