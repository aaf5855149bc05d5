//! The weights that a path names: a model may be given by its file, or by the folder of its run or of a teacher.

use std::path::{Path, PathBuf};

use kdgat_train::fit::BEST;

/// Weights in a teacher's folder.
pub const TEACHER_WEIGHTS: &str = "weights.safetensors";

/// A path at which there is no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{path}: {found}; name a run's folder, such as runs/sim/vgae_student_autoencoder/1, a teacher's folder, or a weight file",
    path = path.display()
)]
pub struct NoModel {
    pub path: PathBuf,
    pub found: String,
}

/// The file of weights that `path` names: itself, the best model of a run's folder, or the weights of a teacher's.
///
/// # Errors
/// Says what the path holds and what is expected there.
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
        // A run that was registered has both, of the same weights.
        for name in [TEACHER_WEIGHTS, BEST] {
            std::fs::write(file(name), "x").unwrap();
            assert_eq!(weight_file(folder.path()), Ok(file(name)));
        }
        assert_eq!(weight_file(&file(TEACHER_WEIGHTS)), Ok(file(TEACHER_WEIGHTS)));
    }
}
