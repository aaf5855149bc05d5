//! The file of `kdgat evaluate --predictions`: a row for each tested graph and model.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::StageError;
use crate::evaluate::judge::{CalibrateBy, Subject, TestFile};
use crate::evaluate::tables::number;
use crate::graph::Store;

/// Rows of a predictions file, which gets its name when it is whole.
pub struct Predictions {
    path: PathBuf,
    partial: tempfile::NamedTempFile,
    rows: csv::Writer<fs::File>,
}

/// Columns of the predictions file.
const PREDICTION_COLUMNS: [&str; 11] = [
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
    /// Begins a file.
    pub fn create(path: &Path) -> Result<Self, StageError> {
        let error = |source| StageError::File { path: path.to_owned(), action: "write", source };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let partial = tempfile::Builder::new().suffix(".partial").tempfile_in(parent).map_err(error)?;
        let rows = csv::Writer::from_writer(partial.reopen().map_err(error)?);
        let mut predictions = Self { path: path.to_owned(), partial, rows };
        predictions.row(&PREDICTION_COLUMNS.map(str::to_owned))?;
        Ok(predictions)
    }

    fn row(&mut self, cells: &[String]) -> Result<(), StageError> {
        let error =
            |error: csv::Error| StageError::File { path: self.path.clone(), action: "write", source: io_error(error) };
        self.rows.write_record(cells).map_err(error)
    }

    /// Gives the file its name.
    pub fn finish(self) -> Result<(), StageError> {
        let error = |source| StageError::File { path: self.path.clone(), action: "write", source };
        let mut file = self.rows.into_inner().map_err(|failed| error(failed.into_error()))?;
        file.flush().and_then(|()| file.sync_all()).map_err(error)?;
        self.partial.persist(&self.path).map_err(|failed| error(failed.error))?;
        Ok(())
    }
}

/// What the operating system said, its kind included: that the reader has gone away is no error to the command line.
pub fn io_error(error: csv::Error) -> std::io::Error {
    if !error.is_io_error() {
        return std::io::Error::other(error);
    }
    match error.into_kind() {
        csv::ErrorKind::Io(source) => source,
        kind => std::io::Error::other(format!("{kind:?}")),
    }
}

/// Adds the rows of a model, if there is a file.
pub fn write_predictions(
    predictions: &mut Option<Predictions>,
    model: &str,
    subject: &Subject,
    files: &[TestFile],
    store: &Store,
    calibrate: Option<CalibrateBy>,
) -> Result<(), StageError> {
    let Some(predictions) = predictions else { return Ok(()) };
    for (index, file) in files.iter().enumerate() {
        let tested: Vec<usize> = (0..file.labels.len()).filter(|graph| !file.calibration.contains(graph)).collect();
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
