//! The file of an evaluation on a dataset of graphs: `graph_metrics.json`.

use std::path::{Path, PathBuf};

use super::run::read_json;
use crate::ReportError;
use kdgat_evaluate::graph_runs::RunResult;

const FILE: &str = "graph_metrics.json";
const FORMAT_VERSION: u64 = 1;

/// An evaluation of runs of `kdgat train`.
#[derive(Debug, Clone)]
pub struct GraphEvaluation {
    pub folder: PathBuf,
    pub dataset: String,
    /// Name of what was scored, in the plural: `graphs`, or `nodes` of one graph.
    pub units: String,
    pub runs: Vec<RunResult>,
}

impl GraphEvaluation {
    /// True if the folder has an evaluation on a dataset of graphs.
    pub fn is_at(folder: &Path) -> bool {
        folder.join(FILE).is_file()
    }

    /// Reads an evaluation from a folder that [has one](GraphEvaluation::is_at).
    ///
    /// # Errors
    /// If the file is damaged or of another version.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join(FILE);
        let mut content = read_json(&path)?;
        if content["format_version"] != FORMAT_VERSION {
            let found = &content["format_version"];
            let reason = format!("has format version {found}, this program reads {FORMAT_VERSION}; evaluate again");
            return Err(ReportError::input(&path, reason));
        }
        let runs: Vec<RunResult> = serde_json::from_value(content["models"].take()).map_err(|error| {
            ReportError::input(&path, format!("is not a valid evaluation: {error}; evaluate again"))
        })?;
        if let Some(broken) = runs.iter().flat_map(|run| &run.drawn).find(|graph| !graph.is_whole()) {
            let reason = format!(
                "has {} kinds, {} positions and {} errors of forces for graph {}, or a bond of other nodes; evaluate again",
                broken.kinds.len(),
                broken.positions.len(),
                broken.force_errors.len(),
                broken.graph
            );
            return Err(ReportError::input(&path, reason));
        }
        let dataset = content["dataset"].as_str().unwrap_or("").to_owned();
        let units = content["units"].as_str().unwrap_or("graphs").to_owned();
        Ok(Self { folder: folder.to_owned(), dataset, units, runs })
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Keeps only the runs with these names.
    pub fn keep(&mut self, names: &[&str]) {
        self.runs.retain(|run| names.contains(&run.model.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_this_version_is_read_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!GraphEvaluation::is_at(folder.path()));
        let read = |text: &str| {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            GraphEvaluation::read(folder.path()).map_err(|error| error.to_string())
        };
        let run = r#"{"model": "a/1", "group": "a", "distilled": false, "parameters": 3, "fold": "fold 0 of 10", "seed": 42, "seen_graphs": 81,
                      "test_graphs": 9, "test_digest": "0123456789abcdef", "settings": {}, "baseline": [], "linear": [], "propagated": [],
                      "metrics": [{"name": "accuracy", "value": null, "interval": null}]}"#;
        let mut found = read(&format!(r#"{{"format_version": 1, "dataset": "d", "models": [{run}]}}"#)).unwrap();
        assert_eq!((found.dataset.as_str(), found.runs.len(), found.runs[0].distilled), ("d", 1, false));
        assert_eq!(found.units, "graphs");
        assert!(found.runs[0].value("accuracy").is_nan());
        found.keep(&["b/1"]);
        assert!(found.runs.is_empty());
        assert!(read(r#"{"format_version": 2}"#).unwrap_err().contains("format version 2"));
        assert!(read(r#"{"format_version": 1, "models": [{}]}"#).unwrap_err().contains("evaluate again"));
        let drawn = |kinds: &str, errors: &str, bonds: &str| {
            let graph = format!(
                r#"{{"rank": "worst", "graph": 7, "kinds": {kinds}, "positions": [[0, 0, 0], [1, 0, 0]], "bonds": {bonds},
                     "force_errors": {errors}, "error": 0.5, "target": "y", "energy_unit": null, "length_unit": null}}"#
            );
            let run = run.replacen('{', &format!(r#"{{"drawn": [{graph}],"#), 1);
            read(&format!(r#"{{"format_version": 1, "dataset": "d", "models": [{run}]}}"#))
        };
        assert_eq!(drawn(r#"["H", "O"]"#, "[0.1, 0.2]", "[[0, 1]]").unwrap().runs[0].drawn.len(), 1);
        for (kinds, errors, bonds) in
            [(r#"["H"]"#, "[]", "[]"), (r#"["H", "O"]"#, "[0.1]", "[]"), (r#"["H", "O"]"#, "[]", "[[0, 2]]")]
        {
            assert!(drawn(kinds, errors, bonds).unwrap_err().contains("for graph 7"));
        }
        assert!(read("{").unwrap_err().contains("graph_metrics.json: is damaged"));
    }
}
