//! The files of one training run.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Columns;
use crate::report::ReportError;
use crate::train::run_name::RunName;
use crate::train::timeline::TIMELINE;

/// A training run.
#[derive(Debug, Clone)]
pub struct Run {
    pub folder: PathBuf,
    /// Name with number (`gat_student_normal_kd/1`), as evaluations have it too.
    pub name: String,
    /// What it trained, in words.
    pub label: String,
    /// The values of a sweep's axes that it stands for; empty elsewhere.
    pub trial: String,
    /// The frozen configuration with what identifies the inputs.
    pub config: Value,
    /// How it ended; null while it has not.
    pub summary: Value,
    /// Where its memory was planned; null where it was not.
    pub budget: Value,
    pub metrics: Columns,
    pub memory: Option<Columns>,
    pub timeline: Option<Columns>,
    pub choices: Option<Columns>,
}

impl Run {
    /// Whether a folder is that of a training run, its files damaged or not.
    pub fn is_at(folder: &Path) -> bool {
        folder.join("metrics.csv").is_file() && folder.join("config.json").is_file()
    }

    /// Reads a run that [is there](Run::is_at).
    ///
    /// # Errors
    /// A file that is damaged, or a table that is no training's.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join("metrics.csv");
        let metrics = Columns::read(&path)?.ok_or_else(|| ReportError::input(&path, "is not there"))?;
        metrics.check_numbers()?;
        let path = folder.join("config.json");
        let config = read_json(&path)?;
        if config["format"] != "kdgat configuration" {
            return Err(ReportError::input(&path, "is not the configuration of a run beside its metrics.csv"));
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

    /// What it trained, and with which values of a sweep's axes.
    pub fn what(&self) -> String {
        if self.trial.is_empty() { self.label.clone() } else { format!("{}; {}", self.label, self.trial) }
    }

    /// `vgae` or `gat`.
    pub fn model(&self) -> &str {
        self.config["config"]["model"]["model"].as_str().unwrap_or("model")
    }

    /// Whether it learned from a teacher.
    pub fn is_distilled(&self) -> bool {
        self.config["config"]["distillation"]["use_kd"] == true
    }

    /// The stage that trained it.
    pub fn stage(&self) -> &str {
        self.config["command"].as_str().unwrap_or("")
    }

    /// Whether it came to its end: all epochs, or early stopping.
    pub fn is_finished(&self) -> bool {
        matches!(self.summary["ending"].as_str(), Some("max_epochs" | "early_stopping"))
    }

    /// The dataset's name.
    pub fn dataset(&self) -> &str {
        self.config["inputs"]["dataset"]["name"].as_str().unwrap_or("")
    }

    /// Epoch (from 1) and value of a column of `metrics.csv`.
    pub fn by_epoch(&self, column: &str) -> Vec<(f64, f64)> {
        self.metrics.points("epoch", column).into_iter().map(|(epoch, value)| (epoch + 1.0, value)).collect()
    }

    /// Epoch (from 1) of the lowest validation loss, and that loss.
    pub fn best(&self) -> Option<(f64, f64)> {
        self.by_epoch("val_loss").into_iter().min_by(|left, right| left.1.total_cmp(&right.1))
    }

    /// A value at the epoch of the lowest validation loss.
    pub fn at_best(&self, column: &str) -> Option<f64> {
        let (best, _) = self.best()?;
        self.by_epoch(column).into_iter().find(|(epoch, _)| *epoch == best).map(|(_, value)| value)
    }
}

/// A JSON file's content; null where there is no file: what depends on it is then left out.
///
/// # Errors
/// A file that cannot be read or is no JSON.
pub fn read_json(path: &Path) -> Result<Value, ReportError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Value::Null),
        Err(error) => return Err(ReportError::file(path, "read")(error)),
    };
    serde_json::from_slice(&text).map_err(|error| {
        ReportError::input(
            path,
            format!("is damaged ({error}); name the other runs, or put the file's copy in its place"),
        )
    })
}

fn label(config: &Value) -> String {
    let model = &config["config"]["model"];
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let what = match config["command"] == "fusion" {
        true => format!("fusion ({})", text(&config["config"]["fusion"]["fusion"])),
        false => text(&model["model"]).to_uppercase(),
    };
    let mut label = format!("{what} {}", text(&model["size"]));
    if config["command"] == "curriculum" {
        label += ", curriculum";
    }
    if !text(&model["size"]).starts_with("teacher") {
        label += if config["config"]["distillation"]["use_kd"] == true { ", KD" } else { ", no KD" };
    }
    label
}
