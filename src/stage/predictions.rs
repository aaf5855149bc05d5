//! The file of `kdgat evaluate --predictions`: one row per test graph and model. [`super::tested_rows`] has the rows of graphs and nodes that are no
//! CAN windows.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use super::StageError;
use crate::evaluate::judge::{CalibrateBy, Subject, TestFile};
use crate::evaluate::tables::number;
use crate::files;
use crate::graph::Store;

/// The rows of a predictions file. Until they are complete they are in an unnamed temporary file, which disappears however the
/// program ends.
pub struct Predictions {
    path: PathBuf,
    rows: csv::Writer<File>,
}

/// Columns of the predictions file for CAN windows.
pub const PREDICTION_COLUMNS: [&str; 11] = [
    "model",
    "folder",
    "file",
    "graph",
    "first_frame",
    "time",
    "label",
    "calibration",
    "score",
    "threshold",
    "predicted",
];

impl Predictions {
    /// Starts a file with these columns.
    ///
    /// # Errors
    /// If `path` cannot be written: this fails before anything is computed.
    pub fn create(path: &Path, columns: &[impl AsRef<[u8]>]) -> Result<Self, StageError> {
        let error = files::failed("write", path);
        let behind = files::behind_links(path);
        let parent = behind.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let unnamed = match files::is_stream(path).map_err(error)? {
            true => tempfile::tempfile(),
            false if path.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            false => tempfile::tempfile_in(parent),
        };
        let rows = csv::Writer::from_writer(unnamed.map_err(error)?);
        let mut predictions = Self { path: path.to_owned(), rows };
        predictions.row(columns)?;
        Ok(predictions)
    }

    /// Adds a row.
    ///
    /// # Errors
    /// A full disk.
    pub fn row(&mut self, cells: &[impl AsRef<[u8]>]) -> Result<(), StageError> {
        Ok(self.rows.write_record(cells).map_err(io_error).map_err(files::failed("write", &self.path))?)
    }

    /// Writes the rows to the target: a file, a device or a pipe.
    pub fn finish(self) -> Result<(), StageError> {
        let error = files::failed("write", &self.path);
        let mut rows = self.rows.into_inner().map_err(|failed| error(failed.into_error()))?;
        rows.flush().and_then(|()| rows.rewind()).map_err(error)?;
        Ok(files::write_atomically_with(&self.path, |file| io::copy(&mut rows, file).map(drop)).map_err(error)?)
    }
}

/// The I/O error inside a CSV error, with its kind: the command line does not treat a broken pipe as an error.
pub fn io_error(error: csv::Error) -> std::io::Error {
    if !error.is_io_error() {
        return std::io::Error::other(error);
    }
    match error.into_kind() {
        csv::ErrorKind::Io(source) => source,
        kind => std::io::Error::other(format!("{kind:?}")),
    }
}

/// Adds the rows of a model, if predictions are requested.
pub fn write_predictions(
    predictions: &mut Option<Predictions>,
    model: &str,
    subject: &Subject,
    files: &[TestFile],
    store: &Store,
    calibrate: Option<&CalibrateBy>,
) -> Result<(), StageError> {
    let Some(predictions) = predictions else { return Ok(()) };
    for (index, file) in files.iter().enumerate() {
        let tested: Vec<usize> = (0..file.labels.len()).filter(|graph| !file.left_out.contains(graph)).collect();
        for (calibration, scores, decision) in subject.judged(files, index, calibrate) {
            for ((&graph, score), called) in tested.iter().zip(scores).zip(&decision.called) {
                let view = store.try_graph(file.graphs.start + graph as u64)?;
                predictions.row(&[
                    model.to_owned(),
                    file.folder.clone(),
                    file.name.clone(),
                    graph.to_string(),
                    view.first_frame.to_string(),
                    number(view.start_time),
                    u8::from(view.attack).to_string(),
                    calibration.clone(),
                    number(score),
                    decision.threshold.map_or(String::new(), number),
                    u8::from(*called).to_string(),
                ])?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_file_appears_only_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("predictions.csv");
        let begun = Predictions::create(&path, &PREDICTION_COLUMNS).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        begun.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), PREDICTION_COLUMNS.join(",") + "\n");
        let usual = folder.path().join("usual");
        fs::write(&usual, "").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&usual), "others may read it as any file");
        assert!(
            Predictions::create(folder.path(), &PREDICTION_COLUMNS).is_err(),
            "a folder is refused before anything is computed"
        );
    }
}
