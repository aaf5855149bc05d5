//! The files of an evaluation: `metrics.json`, `curves.csv`, `windows.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::Columns;
use super::run::read_json;
use crate::ReportError;
use kdgat_evaluate::calibration::is_unknown_vehicle;
use kdgat_evaluate::curves::CURVES;
use kdgat_evaluate::rules;
use kdgat_evaluate::teacher_worth::TeacherWorth;
use kdgat_evaluate::windows::{ModelWindows, WINDOWS, WindowsFile};

const FORMAT_VERSION: u64 = 1;

/// An evaluation of models on one dataset.
#[derive(Debug, Clone)]
pub struct Evaluation {
    pub folder: PathBuf,
    pub dataset: String,
    pub models: Vec<Model>,
    /// Students with their teacher compared with the same students alone; empty if there are none.
    pub teachers: Vec<TeacherWorth>,
    pub curves: Option<Columns>,
    pub windows: Vec<ModelWindows>,
}

/// A model, or a pair of models, with its results.
#[derive(Debug, Clone, Deserialize)]
pub struct Model {
    pub model: String,
    pub kind: String,
    pub size: String,
    pub distilled: bool,
    pub parameters: f64,
    pub file_bytes: f64,
    pub speed: Option<Speed>,
    pub results: Vec<Judged>,
}

/// Speed of a model.
#[derive(Debug, Clone, Deserialize)]
pub struct Speed {
    pub ms_per_graph_batch_1: f64,
    pub threads: Option<u64>,
}

/// Metrics of a model on one folder or file, at one threshold.
#[derive(Debug, Clone, Deserialize)]
pub struct Judged {
    pub folder: String,
    pub file: Option<String>,
    pub calibration: String,
    pub threshold_method: String,
    pub attacks: u64,
    pub confusion: Confusion,
    pub metrics: serde_json::Map<String, Value>,
    #[serde(flatten)]
    pub operator: Operator,
}

/// Operator figures of a folder or file. `None` where undefined.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Operator {
    pub false_alarms_per_hour: Option<f64>,
    pub episodes: Option<u64>,
    pub episodes_found: Option<u64>,
    pub median_delay_seconds: Option<f64>,
    pub largest_delay_seconds: Option<f64>,
}

/// Confusion matrix, in graphs.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Confusion {
    pub true_positives: u64,
    pub false_positives: u64,
    pub true_negatives: u64,
    pub false_negatives: u64,
}

impl Evaluation {
    /// True if the folder has an evaluation.
    pub fn is_at(folder: &Path) -> Result<bool, ReportError> {
        Ok(read_json(&folder.join("metrics.json"))?["models"].is_array())
    }

    /// Reads an evaluation from a folder that [has one](Evaluation::is_at).
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join("metrics.json");
        let mut content = read_json(&path)?;
        if content["format_version"] != FORMAT_VERSION {
            let found = &content["format_version"];
            let reason = format!("has format version {found}, this program reads {FORMAT_VERSION}; evaluate again");
            return Err(ReportError::input(&path, reason));
        }
        let invalid = |error: serde_json::Error| {
            ReportError::input(&path, format!("is not a valid evaluation: {error}; evaluate again"))
        };
        let models = serde_json::from_value(content["models"].take()).map_err(invalid)?;
        let teachers = serde_json::from_value(content["teachers"].take()).map_err(invalid)?;
        // Windows are optional: a file of another version is ignored.
        let windows = std::fs::read(folder.join(WINDOWS)).ok();
        let windows = windows.and_then(|text| serde_json::from_slice::<WindowsFile>(&text).ok());
        Ok(Self {
            folder: folder.to_owned(),
            dataset: content["dataset"].as_str().unwrap_or("").to_owned(),
            models,
            teachers,
            curves: Columns::read(&folder.join(CURVES))?,
            windows: windows.filter(WindowsFile::is_readable).map_or(Vec::new(), |file| file.models),
        })
    }

    /// Reads the results of a fusion agent and its baselines; `None` if the file does not exist yet.
    pub fn of_fusion(path: &Path) -> Result<Option<Self>, ReportError> {
        let mut content = read_json(path)?;
        if content.is_null() {
            return Ok(None);
        }
        let models = serde_json::from_value(content["evaluation"]["models"].take()).map_err(|error| {
            ReportError::input(path, format!("has no valid results: {error}; run the fusion again"))
        })?;
        Ok(Some(Self {
            folder: path.parent().unwrap_or(Path::new(".")).to_owned(),
            dataset: content["evaluation"]["dataset"].as_str().unwrap_or("").to_owned(),
            models,
            teachers: Vec::new(),
            curves: None,
            windows: Vec::new(),
        }))
    }

    /// Returns a name for its figures: the dataset, for a fusion with the agent's name.
    pub fn name(&self) -> String {
        match self.models.first() {
            Some(model) if matches!(model.kind.as_str(), "dqn" | "bandit") => {
                format!("{} {}", self.dataset, model.model)
            }
            _ => self.dataset.clone(),
        }
    }

    /// Keeps only the models with these names, and pairs of them.
    pub fn keep(&mut self, names: &[&str]) {
        self.models.retain(|model| model.model.split(" + ").all(|part| names.contains(&part)));
        self.windows.retain(|windows| names.contains(&windows.model.as_str()));
    }

    /// Returns the test folders, in their order of appearance.
    pub fn folders(&self) -> Vec<&str> {
        let mut folders: Vec<&str> = Vec::new();
        for judged in self.models.iter().flat_map(|model| &model.results) {
            if !folders.contains(&judged.folder.as_str()) {
                folders.push(&judged.folder);
            }
        }
        folders
    }
}

impl Model {
    /// True for a rule that is judged beside the models.
    pub fn is_rule(&self) -> bool {
        self.kind == rules::KIND
    }

    /// Returns a short description: `GAT teacher`, `GAT, KD`, `GAT curriculum, KD`, `GAT+VGAE, no KD`; with the number of its run
    /// if that is above 1. A rule has its name.
    pub fn label(&self) -> String {
        if self.is_rule() {
            return self.model.clone();
        }
        let mut label = self.kind.to_uppercase();
        if self.size != "student" {
            label += &format!(" {}", self.size);
        }
        if self.model.contains("curriculum") {
            label += " curriculum";
        }
        if !self.size.starts_with("teacher") {
            label += if self.distilled { ", KD" } else { ", no KD" };
        }
        let number = self.model.split(" + ").next().and_then(|first| first.rsplit_once('/')?.1.parse::<u64>().ok());
        match number {
            Some(number) if number > 1 => format!("{label} #{number}"),
            _ => label,
        }
    }

    /// Returns its results on whole folders, at the recorded threshold and without calibration.
    pub fn folders(&self) -> impl Iterator<Item = &Judged> {
        let recorded = self.results.first().map(|row| row.threshold_method.clone()).unwrap_or_default();
        self.results
            .iter()
            .filter(move |row| row.file.is_none() && row.calibration == "none" && row.threshold_method == recorded)
    }

    /// Returns its results on whole folders of unknown cars, at the recorded threshold, with or without calibration.
    pub fn unknown_cars(&self, calibrated: bool) -> impl Iterator<Item = &Judged> {
        let recorded = self.results.first().map(|row| row.threshold_method.clone()).unwrap_or_default();
        let of_folder = |row: &&Judged| row.file.is_none() && row.is_unknown_car();
        self.results
            .iter()
            .filter(of_folder)
            .filter(move |row| (row.calibration != "none") == calibrated && row.threshold_method == recorded)
    }

    /// Returns its results on single files, at the recorded threshold and without calibration.
    pub fn files(&self) -> impl Iterator<Item = &Judged> {
        let recorded = self.results.first().map(|row| row.threshold_method.clone()).unwrap_or_default();
        self.results
            .iter()
            .filter(move |row| row.file.is_some() && row.calibration == "none" && row.threshold_method == recorded)
    }
}

impl Judged {
    /// True if its folder has traffic of a car that is not in the training data.
    pub fn is_unknown_car(&self) -> bool {
        is_unknown_vehicle(&self.folder)
    }

    /// Returns a metric as `[value, low, high]` with the bounds of its interval; NaN where undefined.
    pub fn metric(&self, name: &str) -> [f64; 3] {
        let found = self.metrics.get(name).unwrap_or(&Value::Null);
        ["value", "low", "high"].map(|part| found[part].as_f64().unwrap_or(f64::NAN))
    }
}
