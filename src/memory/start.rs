//! What happens to memory before anything uses it: the host's allocator, CUDA, and the settings of its allocator.

use tch::TchError;

use crate::torch::{self, CudaLibrary, allocator, device};

/// Variables that CUDA's allocator reads, the first with priority.
const SETTINGS_VARIABLES: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
/// What is set when the user sets nothing: segments that grow do not fragment as batches of different sizes come.
const DEFAULT_SETTINGS: &str = "expandable_segments:True";

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

/// Loads CUDA if this libtorch has it, and sets its allocator up. Call it before torch is used and threads start.
pub fn start_devices() -> Started {
    let cuda = torch::load_cuda();
    // Not before: libtorch looks for CUDA once, when it is first used.
    torch::resolve_vector_math();
    let (mut settings, mut warnings) = (String::new(), Vec::new());
    if let CudaLibrary::Failed { reason } = &cuda {
        warnings.push(format!("libtorch's CUDA part could not be loaded ({reason}); the CPU is used"));
    }
    if matches!(cuda, CudaLibrary::Loaded { .. }) {
        match given_settings(|name| std::env::var(name).ok()) {
            Some((variable, given)) => {
                warnings.extend(cancelling(&given).map(|warning| format!("{variable}: {warning}")));
                settings = given;
            }
            None => match device::set_allocator_settings(DEFAULT_SETTINGS) {
                Ok(()) => settings = DEFAULT_SETTINGS.to_owned(),
                Err(error) => warnings.push(format!("{error}; the GPU's memory may fragment")),
            },
        }
    }
    Started { cuda, settings, warnings }
}

/// The variable that is in force, and its text.
fn given_settings(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    SETTINGS_VARIABLES.into_iter().find_map(|name| {
        let text = variable(name)?;
        (!text.trim().is_empty()).then_some((name, text))
    })
}

/// Settings of which one makes another do nothing.
fn cancelling(settings: &str) -> Option<String> {
    let value = |name: &str| {
        settings.split(',').find_map(|entry| {
            let (key, value) = entry.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
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
        assert_eq!(both, Some(("PYTORCH_ALLOC_CONF", "b:2".to_owned())));
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
