//! The weight file behind a path, which may be the file itself or the folder of a run or of a teacher.

use std::path::{Path, PathBuf};

use kdgat_train::fit::BEST;

/// Name of the weight file in a teacher's folder.
pub const TEACHER_WEIGHTS: &str = "weights.safetensors";

/// The error for a path without a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{path}: {found}; name a run's folder, such as runs/sim/vgae_student_autoencoder/1, a teacher's folder, or a weight file",
    path = path.display()
)]
pub struct NoModel {
    /// The path.
    pub path: PathBuf,
    /// Description of the path's content.
    pub found: String,
}

/// Finds the weight file that `path` names: the file itself, or the best model of a run's folder, or the weights of a teacher's.
///
/// # Errors
/// States what the path contains and what was expected.
pub fn weight_file(path: &Path) -> Result<PathBuf, NoModel> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    let found = [BEST, TEACHER_WEIGHTS].map(|name| path.join(name)).into_iter().find(|file| file.is_file());
    found.ok_or_else(|| {
        let found = match path.exists() {
            true => format!("holds no {BEST} and no {TEACHER_WEIGHTS}"),
            false => "does not exist".to_owned(),
        };
        NoModel { path: path.to_owned(), found }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_its_file_or_the_folder_that_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let said = |path: &Path| weight_file(path).unwrap_err().to_string();
        assert!(
            said(folder.path()).contains("holds no best.safetensors and no weights.safetensors; name a run's folder")
        );
        assert!(said(&file("nowhere")).contains("nowhere: does not exist; name a run's folder"));
        // A registered run has both files, with the same weights.
        for name in [TEACHER_WEIGHTS, BEST] {
            std::fs::write(file(name), "x").unwrap();
            assert_eq!(weight_file(folder.path()), Ok(file(name)));
        }
        assert_eq!(weight_file(&file(TEACHER_WEIGHTS)), Ok(file(TEACHER_WEIGHTS)));
    }
}
