//! The calibrations of a model: one file per car, `calibrations/NAME.json` in the run's folder. Those of a classifier and an autoencoder
//! together are in the classifier's folder.
//!
//! None is used unless requested, because another car's calibration is worse than none.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Calibration, Ensemble, EvaluateError};
use kdgat_base::files;

/// Subfolder of the run's folder.
const FOLDER: &str = "calibrations";
/// Requests no calibration.
pub const NONE: &str = "none";
const LONGEST_NAME: usize = 100;

/// Path of the calibration with that name.
///
/// # Errors
/// Fails if `name` is not a plain file name.
pub fn path(models: &Ensemble, name: &str) -> Result<PathBuf, EvaluateError> {
    if is_name(name) {
        return Ok(models.folder().join(FOLDER).join(format!("{name}.json")));
    }
    Err(EvaluateError::Input(format!(
        "'{name}' is not a valid calibration name: expected letters, digits, '-', '_' and '.', not beginning with '.', at \
         most {LONGEST_NAME} characters, and not '{NONE}'"
    )))
}

/// Calibration name derived from a log: its file name up to the first dot, with '-' for characters that names cannot contain.
pub fn name_after(log: &Path) -> Option<String> {
    let file = log.file_name()?.to_string_lossy();
    let name: String = file
        .split('.')
        .next()?
        .chars()
        .map(|letter| if fits(letter) { letter } else { '-' })
        .take(LONGEST_NAME)
        .collect();
    is_name(&name).then_some(name)
}

/// Names of the model's calibrations, in ascending order.
pub fn names(models: &Ensemble) -> Result<Vec<String>, EvaluateError> {
    let folder = models.folder().join(FOLDER);
    let error = files::failed("list", &folder);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(error(source).into()),
    };
    let mut names = Vec::new();
    for entry in entries {
        let file = entry.map_err(error)?.file_name();
        let name = file.to_str().and_then(|file| file.strip_suffix(".json")).filter(|name| is_name(name));
        names.extend(name.map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Comma-separated list of the available calibrations; `None` if there are none.
pub fn known(models: &Ensemble) -> Result<Option<String>, EvaluateError> {
    let known = names(models)?;
    Ok((!known.is_empty()).then(|| known.join(", ")))
}

/// Reads the calibration requested by name or as a file; `None` if `asked` is [`NONE`].
///
/// # Errors
/// Lists the paths searched and the calibrations available.
pub fn find(models: &Ensemble, asked: &str) -> Result<Option<(PathBuf, Calibration)>, EvaluateError> {
    if asked == NONE {
        return Ok(None);
    }
    let named = path(models, asked).ok();
    let places = [named.clone(), Some(PathBuf::from(asked))];
    if let Some(found) = places.into_iter().flatten().find(|place| place.is_file()) {
        let (first, partner) = (models.first(), models.partner().map(|model| model.weights_digest.as_str()));
        let calibration = Calibration::read(&found, &first.weights_digest, first.description.foreign_ids, partner)?;
        return Ok(Some((found, calibration)));
    }
    let looked_for = named.map_or(String::new(), |named| format!("{} and ", named.display()));
    let known = known(models)?.map_or_else(|| "it has none".to_owned(), |known| format!("it has {known}"));
    Err(EvaluateError::Input(format!(
        "--calibration {asked}: {} has no such calibration (searched {looked_for}file {asked}); {known}; `kdgat calibrate` \
         makes one",
        models.name()
    )))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= LONGEST_NAME
        && text != NONE
        && !text.starts_with('.')
        && text.chars().all(|letter| fits(letter) || letter == '.')
}

fn fits(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_".contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_a_name_that_is_one() {
        for (log, name) in [
            ("logs/drive-1.csv.gz", Some("drive-1")),
            ("can0", Some("can0")),
            ("my car.log", Some("my-car")),
            ("..", None),
            ("none.csv", None),
            (".log", None),
        ] {
            assert_eq!(name_after(Path::new(log)).as_deref(), name, "{log}");
        }
        for name in ["", "none", ".hidden", "a/b", "../a", "a b", &"a".repeat(101)] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_name("golf-7_2019.v2"));
    }
}
