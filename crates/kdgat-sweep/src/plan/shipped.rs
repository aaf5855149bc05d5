//! The sweep files that are built into the program.

use std::path::Path;

use super::file::SweepFile;
use crate::SweepError;
use kdgat_config::nearest;

/// Names and texts of the shipped sweeps. A test compares the list with the folder `presets/sweeps`.
pub const SHIPPED: &[(&str, &str)] = &[
    ("all-datasets", include_str!("../../../../presets/sweeps/all-datasets.toml")),
    ("committee", include_str!("../../../../presets/sweeps/committee.toml")),
    ("curriculum-ablation", include_str!("../../../../presets/sweeps/curriculum-ablation.toml")),
    ("ensemble", include_str!("../../../../presets/sweeps/ensemble.toml")),
    ("glnn", include_str!("../../../../presets/sweeps/glnn.toml")),
    ("graph-folds", include_str!("../../../../presets/sweeps/graph-folds.toml")),
    ("kd-alpha-temperature", include_str!("../../../../presets/sweeps/kd-alpha-temperature.toml")),
    ("offload-policies", include_str!("../../../../presets/sweeps/offload-policies.toml")),
    ("pipeline", include_str!("../../../../presets/sweeps/pipeline.toml")),
    ("student-sizes", include_str!("../../../../presets/sweeps/student-sizes.toml")),
];

/// A sweep file with its name and text.
#[derive(Clone, Debug)]
pub struct Found {
    /// File name without extension.
    pub name: String,
    /// Name of the file in error messages.
    pub shown: String,
    /// Text of the file, to which a sweep appends its changes as comments before it stores a copy.
    pub text: String,
    /// Parsed text, to which changes from the command line apply.
    pub file: SweepFile,
}

/// Finds the file at this path, or the shipped sweep of this name.
///
/// # Errors
/// If the file cannot be read or parsed. A name that is neither a file nor a shipped sweep gives [`SweepError::Unknown`].
pub fn find(wanted: &Path) -> Result<Found, SweepError> {
    let name = wanted.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if wanted.is_file() {
        let (file, text) = SweepFile::read(wanted)?;
        return Ok(Found { name, shown: wanted.display().to_string(), text, file });
    }
    let wanted = wanted.display().to_string();
    match SHIPPED.iter().find(|(name, _)| *name == wanted) {
        Some((name, text)) => {
            let shown = format!("built-in presets/sweeps/{name}.toml");
            let file = SweepFile::parse(&shown, text)?;
            Ok(Found { name: (*name).to_owned(), shown, text: (*text).to_owned(), file })
        }
        None => Err(SweepError::Unknown {
            nearest: nearest(&name, SHIPPED.iter().map(|(name, _)| *name)).to_owned(),
            known: SHIPPED.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
            name: wanted,
        }),
    }
}
