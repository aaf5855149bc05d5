//! What happens to memory before anything uses it: the host's allocator, CUDA, and the settings of its allocator.

use kdgat_torch::{self as torch, CudaLibrary, allocator, device};
use tch::TchError;

use super::gpu;

/// Variables that CUDA's allocator reads, the first with priority: libtorch 2.11 documents the opposite order, but reads them in
/// this one (c10/cuda/CUDAAllocatorConfig.h).
const SETTINGS_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
/// What is set when the user sets nothing: segments that grow do not fragment as batches of different sizes come.
const DEFAULT_SETTINGS: &str = "expandable_segments:True";
/// The share of a GPU's memory above which its allocator refuses.
const FRACTION: &str = "per_process_memory_fraction";

/// Lets the counting allocator make all host tensors from now on. Call it first in `main`.
pub fn install() -> Result<(), TchError> {
    allocator::install()
}

/// What [`start_devices`] found and set.
#[derive(Clone, Debug)]
pub struct Started {
    /// libtorch's CUDA part.
    pub cuda: CudaLibrary,
    /// Settings of CUDA's allocator in force; empty without CUDA.
    pub settings: String,
    /// Settings that cancel each other, or were refused: for the user.
    pub warnings: Vec<String>,
}

/// What the allocator of a GPU may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCap {
    /// The GPU's index, as CUDA counts.
    pub device: usize,
    /// Bytes of tensors, and of what is kept for tensors to come.
    pub bytes: u64,
}

/// Loads CUDA if this libtorch has it, and sets its allocator up. Call it before torch is used and threads start.
///
/// Beyond `cap` an allocation fails as if the GPU had no more.
pub fn start_devices(cap: Option<GpuCap>) -> Started {
    let cuda = torch::load_cuda();
    // Not before: libtorch looks for CUDA once, when it is first used.
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
                let what = "the driver does not say how much memory the GPU has: gpu_memory_limit is planned for, but not enforced";
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

/// Variables that let a GPU multiply in TF32, unseen by the program: torch's own and NVIDIA's.
fn inexact_products(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let name = ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"]
        .into_iter()
        .find(|name| variable(name).is_some_and(|value| value.trim() == "1"))?;
    Some(format!(
        "{name}=1: matrix products in f32 are computed in TF32 on a GPU (10 bits of mantissa), so that losses differ from the CPU's \
         in the third digit; unset it for exact ones"
    ))
}

/// An allocator setting under which running out of memory while a CUDA graph is captured ends the process: the allocator then
/// looks for large blocks to free, which waits for the device, and that is not allowed in a capture.
pub fn fatal_in_a_capture(settings: &str) -> Option<&'static str> {
    const SETTING: &str = "max_split_size_mb";
    value(settings, SETTING).map(|_| SETTING)
}

/// The variable that is in force, and its text.
fn given_settings(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    SETTINGS_VARIABLES.into_iter().find_map(|name| {
        let text = variable(name)?;
        (!text.trim().is_empty()).then_some((name, text))
    })
}

/// The user's settings or the default ones, with the share of the GPU unless the user has set one.
fn wanted_settings(given: Option<&str>, fraction: Option<f64>) -> String {
    let settings = given.unwrap_or(DEFAULT_SETTINGS);
    match fraction {
        Some(fraction) if value(settings, FRACTION).is_none() => format!("{settings},{FRACTION}:{fraction:.6}"),
        _ => settings.to_owned(),
    }
}

/// The share of the GPU that `bytes` are, rounded down to six digits.
fn fraction(bytes: u64, total: u64) -> f64 {
    (1e6 * (bytes as f64 / total.max(1) as f64).min(1.0)).floor() / 1e6
}

/// The value of one of the settings.
fn value<'a>(settings: &'a str, name: &str) -> Option<&'a str> {
    settings.split(',').find_map(|entry| {
        let (key, value) = entry.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// Settings of which one makes another do nothing.
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
            "with expandable_segments:True {} does nothing for those segments; drop one of them",
            idle.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_settings_go_first() {
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
        assert_eq!(wanted_settings(Some(own), Some(0.5)), own, "the user's own share goes first");
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
