//! Version and capabilities of the loaded libtorch.

use std::ffi::c_char;
use std::path::PathBuf;
use std::ptr;

use serde::Serialize;
use tch::TchError;

use super::{cuda, ffi};

/// The libtorch this program runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Libtorch {
    /// The version, such as `2.11.0`; empty if unknown.
    pub version: String,
    /// The folder of its libraries, if known.
    pub folder: Option<PathBuf>,
    /// The widest vectors its own kernels use, such as `AVX512`.
    pub cpu_capability: String,
}

/// Queries the loaded libtorch.
pub fn libtorch() -> Result<Libtorch, TchError> {
    let text = config()?;
    let after = |marker: &str| {
        let rest = text.split_once(marker).map_or("", |(_, rest)| rest);
        rest.split([',', '\n', ' ']).next().unwrap_or("").to_owned()
    };
    Ok(Libtorch {
        version: after("TORCH_VERSION="),
        folder: cuda::libtorch_folder(),
        cpu_capability: after("CAPABILITY="),
    })
}

fn config() -> Result<String, TchError> {
    let mut text = ptr::null_mut();
    // SAFETY: the callee writes `text` before returning: null or a string from malloc.
    unsafe { ffi::check(kdgat_torch_config(&mut text))? };
    // SAFETY: see above. Reading the string as an error's text takes and frees it.
    match unsafe { ffi::check(text) } {
        Err(TchError::Torch(text)) => Ok(text),
        _ => Ok(String::new()),
    }
}

unsafe extern "C" {
    fn kdgat_torch_config(text: *mut *mut c_char) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loaded_libtorch_has_a_version_and_a_folder() {
        let libtorch = super::libtorch().unwrap();
        assert!(libtorch.version.starts_with("2."), "{libtorch:?}");
        assert!(libtorch.folder.is_some_and(|folder| folder.join("libtorch_cpu.so").exists()));
        assert!(!libtorch.cpu_capability.is_empty());
    }
}
