//! Setup of memory before its first use: the host's allocator, CUDA, and the settings of CUDA's allocator.

use kdgat_torch::{self as torch, CudaLibrary, allocator, device, heap};
use tch::TchError;

use super::gpu;
use super::limits::host_limit;

/// Variables that CUDA's allocator reads, in order of priority: libtorch 2.11 documents the opposite order, but reads them
/// in this one (c10/cuda/CUDAAllocatorConfig.h).
const SETTINGS_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
/// Default settings: expandable segments do not fragment when batch sizes vary.
const DEFAULT_SETTINGS: &str = "expandable_segments:True";
/// Setting for the share of a GPU's memory above which the allocator refuses.
const FRACTION: &str = "per_process_memory_fraction";

/// Most freed memory beside tensors that a thread keeps for the next step, in bytes, and the share of the process's memory that all may keep.
const KEPT_BYTES: u64 = 64 << 20;
const KEPT_SHARE: u64 = 64;

/// Installs the counting allocator for all host tensors from now on, and lets the C library keep some of what is freed beside them. Call it
/// first in `main`.
pub fn install() -> Result<(), TchError> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    heap::keep_freed((host_limit(None).bytes / KEPT_SHARE / threads).min(KEPT_BYTES) as usize);
    allocator::install()
}

/// Result of [`start_devices`].
#[derive(Clone, Debug)]
pub struct Started {
    /// State of libtorch's CUDA part.
    pub cuda: CudaLibrary,
    /// Settings of CUDA's allocator; empty without CUDA.
    pub settings: String,
    /// Warnings for the user, about settings that cancel each other or were refused.
    pub warnings: Vec<String>,
}

/// Memory limit of a GPU's allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCap {
    /// Index of the GPU in CUDA's numbering.
    pub device: usize,
    /// Limit in bytes, for tensors and cached memory.
    pub bytes: u64,
}

/// Loads CUDA if this libtorch supports it, and sets up its allocator. Call it before the first use of torch and before any
/// thread starts.
///
/// Allocations beyond `cap` fail as if the GPU had no more memory.
pub fn start_devices(cap: Option<GpuCap>) -> Started {
    let cuda = torch::load_cuda();
    // Only now: libtorch looks for CUDA once, when it is first used.
    torch::resolve_vector_math();
    let (mut settings, mut warnings) = (String::new(), Vec::new());
    if let CudaLibrary::Failed { reason } = &cuda {
        warnings.push(format!("libtorch's CUDA part could not be loaded ({reason}); the CPU is used"));
    }
    if matches!(cuda, CudaLibrary::Loaded { .. }) {
        let variable = |name: &str| std::env::var(name).ok();
        warnings.extend(inexact_products(variable));
        let given = given_settings(variable);
        if let Some((variable, given)) = &given {
            warnings.extend(cancelling(given).map(|warning| format!("{variable}: {warning}")));
        }
        let fraction = cap.and_then(|cap| match gpu::total_bytes(cap.device) {
            Some(total) => Some(fraction(cap.bytes, total)),
            None => {
                let what = "the driver does not report the GPU's memory size: gpu_memory_limit is used for planning, but not enforced";
                warnings.push(what.to_owned());
                None
            }
        });
        let wanted = wanted_settings(given.as_ref().map(|(_, text)| text.as_str()), fraction);
        match device::set_allocator_settings(&wanted) {
            Ok(()) => settings = wanted,
            Err(error) => {
                warnings.push(format!("{error}; the GPU's memory may fragment, and gpu_memory_limit is not enforced"));
            }
        }
    }
    Started { cuda, settings, warnings }
}

/// Warns about variables that make a GPU multiply in TF32 without the program noticing: torch's own and NVIDIA's.
fn inexact_products(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let name = ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"]
        .into_iter()
        .find(|name| variable(name).is_some_and(|value| value.trim() == "1"))?;
    Some(format!(
        "{name}=1: matrix products in f32 are computed in TF32 on a GPU (10 bits of mantissa), so that losses differ from the CPU's \
         in the third digit; unset it for full f32 precision"
    ))
}

/// Returns the name of a set allocator option that makes running out of memory fatal while a CUDA graph is captured: the
/// allocator then frees large blocks, which waits for the device and is not allowed during a capture.
pub fn fatal_in_a_capture(settings: &str) -> Option<&'static str> {
    const SETTING: &str = "max_split_size_mb";
    value(settings, SETTING).map(|_| SETTING)
}

/// The variable in force and its value.
fn given_settings(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    SETTINGS_VARIABLES.into_iter().find_map(|name| {
        let text = variable(name)?;
        (!text.trim().is_empty()).then_some((name, text))
    })
}

/// The user's settings or the defaults, with the GPU's share unless the user has set one.
fn wanted_settings(given: Option<&str>, fraction: Option<f64>) -> String {
    let settings = given.unwrap_or(DEFAULT_SETTINGS);
    match fraction {
        Some(fraction) if value(settings, FRACTION).is_none() => format!("{settings},{FRACTION}:{fraction:.6}"),
        _ => settings.to_owned(),
    }
}

/// Share of the GPU's memory, rounded down to six digits.
fn fraction(bytes: u64, total: u64) -> f64 {
    (1e6 * (bytes as f64 / total.max(1) as f64).min(1.0)).floor() / 1e6
}

/// Value of one setting.
fn value<'a>(settings: &'a str, name: &str) -> Option<&'a str> {
    settings.split(',').find_map(|entry| {
        let (key, value) = entry.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// Warns about settings that disable each other.
fn cancelling(settings: &str) -> Option<String> {
    let value = |name: &str| value(settings, name);
    if !value("expandable_segments").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    let idle: Vec<&str> = ["max_split_size_mb", "garbage_collection_threshold"]
        .into_iter()
        .filter(|name| value(name).is_some())
        .collect();
    (!idle.is_empty()).then(|| {
        format!(
            "expandable_segments:True disables {} for those segments; remove one of these settings",
            idle.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_settings_have_priority() {
        let of = |pairs: &'static [(&'static str, &'static str)]| {
            given_settings(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string()))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("PYTORCH_ALLOC_CONF", " ")]), None);
        let both = of(&[("PYTORCH_CUDA_ALLOC_CONF", "a:1"), ("PYTORCH_ALLOC_CONF", "b:2")]);
        assert_eq!(both, Some(("PYTORCH_CUDA_ALLOC_CONF", "a:1".to_owned())));
        let other = of(&[("PYTORCH_CUDA_ALLOC_CONF", ""), ("PYTORCH_ALLOC_CONF", "b:2")]);
        assert_eq!(other, Some(("PYTORCH_ALLOC_CONF", "b:2".to_owned())));
    }

    #[test]
    fn a_limit_becomes_a_share_of_the_gpu() {
        assert_eq!(wanted_settings(None, None), "expandable_segments:True");
        let share = fraction(8 << 30, 24 << 30);
        assert_eq!(wanted_settings(None, Some(share)), "expandable_segments:True,per_process_memory_fraction:0.333333");
        assert_eq!(wanted_settings(Some("a:1"), Some(0.5)), "a:1,per_process_memory_fraction:0.500000");
        let own = "per_process_memory_fraction:0.2";
        assert_eq!(wanted_settings(Some(own), Some(0.5)), own, "the user's own share has priority");
        assert_eq!(fraction(5, 4), 1.0);
    }

    #[test]
    fn variables_that_make_products_inexact_are_named() {
        let of = |name: &'static str, value: &'static str| {
            inexact_products(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert!(of("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1").unwrap().contains("TF32"));
        assert!(of("NVIDIA_TF32_OVERRIDE", "1").unwrap().starts_with("NVIDIA_TF32_OVERRIDE=1"));
        assert_eq!(of("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "0"), None);
        assert_eq!(of("OTHER", "1"), None);
    }

    #[test]
    fn settings_that_are_fatal_in_a_capture_are_named() {
        assert_eq!(fatal_in_a_capture("expandable_segments:True"), None);
        assert_eq!(fatal_in_a_capture("expandable_segments:False, max_split_size_mb:64"), Some("max_split_size_mb"));
    }

    #[test]
    fn settings_that_cancel_each_other_are_named() {
        assert_eq!(cancelling("max_split_size_mb:128"), None);
        assert_eq!(cancelling("expandable_segments:True"), None);
        assert_eq!(cancelling("expandable_segments:False,max_split_size_mb:128"), None);
        let warning = cancelling("expandable_segments:True, max_split_size_mb:128").unwrap();
        assert!(warning.contains("max_split_size_mb"), "{warning}");
    }
}
