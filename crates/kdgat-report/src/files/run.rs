//! The files of one training run.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Columns;
use crate::ReportError;
use kdgat_train::run_name::RunName;
use kdgat_train::timeline::TIMELINE;

/// A training run.
#[derive(Debug, Clone)]
pub struct Run {
    pub folder: PathBuf,
    /// Name with number (`gat_student_normal_kd/1`), the same as in evaluations.
    pub name: String,
    /// Description of what it trained.
    pub label: String,
    /// Values of the sweep's axes; empty outside of sweeps.
    pub trial: String,
    /// Frozen configuration with the identity of the inputs (`config.json`).
    pub config: Value,
    /// Content of `summary.json`; null while the run is not finished.
    pub summary: Value,
    /// Content of `memory_budget.json`; null if memory was not planned.
    pub budget: Value,
    pub metrics: Columns,
    pub memory: Option<Columns>,
    pub timeline: Option<Columns>,
    pub choices: Option<Columns>,
}

impl Run {
    /// True if the folder has the files of a training run, damaged or not.
    pub fn is_at(folder: &Path) -> bool {
        folder.join("metrics.csv").is_file() && folder.join("config.json").is_file()
    }

    /// Reads a run from a folder that [has one](Run::is_at).
    ///
    /// # Errors
    /// If a file is damaged, or `config.json` is not the configuration of a run.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join("metrics.csv");
        let metrics = Columns::read(&path)?.ok_or_else(|| ReportError::input(&path, "is missing"))?;
        metrics.check_numbers()?;
        let path = folder.join("config.json");
        let config = read_json(&path)?;
        if config["format"] != "kdgat configuration" {
            return Err(ReportError::input(&path, "is not the configuration of a training run"));
        }
        Ok(Self {
            folder: folder.to_owned(),
            name: RunName::of(folder).name,
            label: label(&config),
            trial: String::new(),
            summary: read_json(&folder.join("summary.json"))?,
            budget: read_json(&folder.join("memory_budget.json"))?,
            metrics,
            memory: Columns::read(&folder.join("memory.csv"))?,
            timeline: Columns::read(&folder.join(TIMELINE))?,
            choices: Columns::read(&folder.join("curriculum.csv"))?,
            config,
        })
    }

    /// Returns what it trained, with the values of the sweep's axes.
    pub fn what(&self) -> String {
        if self.trial.is_empty() { self.label.clone() } else { format!("{}; {}", self.label, self.trial) }
    }

    /// True for `kdgat train` with a curriculum.
    pub fn has_graph_curriculum(&self) -> bool {
        has_graph_curriculum(&self.config)
    }

    /// Returns the model, `vgae` or `gat`.
    pub fn model(&self) -> &str {
        self.config["config"]["model"]["model"].as_str().unwrap_or("model")
    }

    /// True if it was distilled from a teacher.
    pub fn is_distilled(&self) -> bool {
        self.config["config"]["distillation"]["use_kd"] == true
    }

    /// Returns the stage that trained it.
    pub fn stage(&self) -> &str {
        self.config["command"].as_str().unwrap_or("")
    }

    /// True if it finished: all epochs, or early stopping.
    pub fn is_finished(&self) -> bool {
        matches!(self.summary["ending"].as_str(), Some("max_epochs" | "early_stopping"))
    }

    /// Returns the dataset's name.
    pub fn dataset(&self) -> &str {
        self.config["inputs"]["dataset"]["name"].as_str().unwrap_or("")
    }

    /// Returns the division of the graphs of a run of `kdgat train`, such as `fold 0 of 10`; `None` for other runs.
    pub fn fold(&self) -> Option<String> {
        self.config["inputs"]["split"]["origin"].as_str().map(fold_words)
    }

    /// Returns what it was trained on, in the plural: `nodes` of one graph, or `graphs`.
    pub fn units(&self) -> &'static str {
        if self.config["inputs"]["split"]["nodes"].is_array() { "nodes" } else { "graphs" }
    }

    /// Returns pairs of epoch (from 1) and value of a column of `metrics.csv`.
    pub fn by_epoch(&self, column: &str) -> Vec<(f64, f64)> {
        self.metrics.points("epoch", column).into_iter().map(|(epoch, value)| (epoch + 1.0, value)).collect()
    }

    /// Returns the epoch (from 1) with the lowest validation loss, and that loss.
    pub fn best(&self) -> Option<(f64, f64)> {
        self.by_epoch("val_loss").into_iter().min_by(|left, right| left.1.total_cmp(&right.1))
    }

    /// Returns a column's value in the epoch with the lowest validation loss.
    pub fn at_best(&self, column: &str) -> Option<f64> {
        let (best, _) = self.best()?;
        self.by_epoch(column).into_iter().find(|(epoch, _)| *epoch == best).map(|(_, value)| value)
    }
}

/// Names what several runs were trained on, in the plural: `graphs`, `nodes`, or both.
pub fn units(runs: &[Run]) -> &'static str {
    let of_nodes = runs.iter().filter(|run| run.units() == "nodes").count();
    match of_nodes {
        0 => "graphs",
        count if count == runs.len() => "nodes",
        _ => "graphs or nodes",
    }
}

/// Shortens the path of a file of folds to its name: `fold 3 of 10 of /home/me/folds.json` to `fold 3 of 10 of folds.json`.
pub fn fold_words(origin: &str) -> String {
    let mut parts = origin.splitn(3, " of ");
    match (parts.next(), parts.next(), parts.next().map(|file| Path::new(file).file_name())) {
        (Some(fold), Some(count), Some(Some(file))) => format!("{fold} of {count} of {}", file.to_string_lossy()),
        _ => origin.to_owned(),
    }
}

/// Reads a JSON file; null if it does not exist, which omits what depends on it.
///
/// # Errors
/// If the file cannot be read or is not JSON.
pub fn read_json(path: &Path) -> Result<Value, ReportError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Value::Null),
        Err(error) => return Err(ReportError::file(path, "read")(error)),
    };
    serde_json::from_slice(&text).map_err(|error| {
        ReportError::input(path, format!("is damaged ({error}); restore the file, or leave this run out"))
    })
}

/// True for `kdgat train` with a curriculum.
fn has_graph_curriculum(config: &Value) -> bool {
    let curriculum = &config["config"]["curriculum"];
    config["command"] == "train"
        && curriculum["curriculum_start_share"].is_number()
        && curriculum["curriculum"] != "none"
}

fn label(config: &Value) -> String {
    let model = &config["config"]["model"];
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let what = match config["command"] == "fusion" {
        true => format!("fusion ({})", text(&config["config"]["fusion"]["fusion"])),
        false => text(&model["model"]).to_uppercase(),
    };
    let mut label = format!("{what} {}", text(&model["size"]));
    if config["command"] == "curriculum" || has_graph_curriculum(config) {
        label += ", curriculum";
    }
    if !text(&model["size"]).starts_with("teacher") {
        label += if config["config"]["distillation"]["use_kd"] == true { ", KD" } else { ", no KD" };
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fold_does_not_tell_where_its_file_lies() {
        assert_eq!(fold_words("fold 0 of 10"), "fold 0 of 10");
        assert_eq!(fold_words("fold 3 of 10 of /home/me/folds of mine/a.json"), "fold 3 of 10 of a.json");
        assert_eq!(fold_words("split of the dataset"), "split of the dataset");
    }
}
