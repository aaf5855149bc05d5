//! Memory of a whole GPU, used by any process, as reported by NVML.

use std::sync::OnceLock;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::MemoryInfo;
use tch::Device;

use kdgat_torch::{device, test_cuda_library};

/// Bytes in use on the card by all processes; `None` for the CPU and if the driver does not report it.
pub fn used_bytes(of: Device) -> Option<u64> {
    let Device::Cuda(index) = of else { return None };
    by_nvml(index).map(|memory| memory.used).or_else(|| {
        let memory = device::device_memory(of).ok()?;
        Some(memory.total_bytes.saturating_sub(memory.free_bytes))
    })
}

/// Memory of the card in bytes, read without starting CUDA; `None` if the driver does not report it.
pub fn total_bytes(index: usize) -> Option<u64> {
    Some(by_nvml(index)?.total)
}

fn by_nvml(index: usize) -> Option<MemoryInfo> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = NVML.get_or_init(|| load_nvml().ok()).as_ref()?;
    memory_of(nvml, index).ok()
}

/// Loads NVML, or the library that tests load instead.
///
/// # Errors
/// If there is no driver, or it does not answer.
pub fn load_nvml() -> Result<Nvml, NvmlError> {
    match test_cuda_library() {
        Some(path) => Nvml::builder().lib_path(path.as_os_str()).init(),
        None => Nvml::init(),
    }
}

fn memory_of(nvml: &Nvml, index: usize) -> Result<MemoryInfo, NvmlError> {
    // NVML counts all cards, CUDA only the visible ones, in the same order: see `torch::number_gpus_by_bus`.
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let visible: Vec<&str> = visible.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
    match visible_device(&visible, index).ok_or(NvmlError::NotFound)? {
        VisibleDevice::Slice(uuid) => nvml.device_by_uuid(uuid)?.memory_info(),
        VisibleDevice::Card(uuid) => of_whole_card(nvml.device_by_uuid(uuid)?),
        VisibleDevice::Number(number) => of_whole_card(nvml.device_by_index(number)?),
    }
}

/// Memory of a whole card. A card divided into slices is an error: CUDA uses its first slice, whose size NVML reports only
/// by the slice's UUID.
fn of_whole_card(card: nvml_wrapper::Device) -> Result<MemoryInfo, NvmlError> {
    let is_sliced = card.mig_mode().is_ok_and(|mode| mode.current != 0);
    if is_sliced { Err(NvmlError::NotSupported) } else { card.memory_info() }
}

/// A device named by `CUDA_VISIBLE_DEVICES`.
#[derive(Debug, PartialEq, Eq)]
enum VisibleDevice<'a> {
    /// A multi-instance slice of a card.
    Slice(&'a str),
    /// A card, by UUID.
    Card(&'a str),
    /// A card, by NVML's index.
    Number(u32),
}

/// Device number `index` of CUDA among the `visible` ones; all cards if none is named.
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
    fn devices_are_found_by_cudas_numbers() {
        assert_eq!(visible_device(&[], 2), Some(VisibleDevice::Number(2)));
        assert_eq!(visible_device(&["3", "1"], 1), Some(VisibleDevice::Number(1)));
        assert_eq!(visible_device(&["3"], 1), None, "CUDA does not see it");
        assert_eq!(visible_device(&["GPU-8f"], 0), Some(VisibleDevice::Card("GPU-8f")));
        assert_eq!(visible_device(&["MIG-6a"], 0), Some(VisibleDevice::Slice("MIG-6a")));
        assert_eq!(visible_device(&["none"], 0), None);
    }
}
