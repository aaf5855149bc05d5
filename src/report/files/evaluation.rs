//! The files of an evaluation: `metrics.json`, `curves.csv`, `windows.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::Columns;
use super::run::read_json;
use crate::evaluate::calibration::is_unknown_vehicle;
use crate::evaluate::curves::CURVES;
use crate::evaluate::windows::{ModelWindows, WINDOWS, WindowsFile};
use crate::report::ReportError;

const FORMAT_VERSION: u64 = 1;

/// An evaluation of some models on one dataset.
#[derive(Debug, Clone)]
pub struct Evaluation {
    pub folder: PathBuf,
    pub dataset: String,
    pub models: Vec<Model>,
    pub curves: Option<Columns>,
    pub windows: Vec<ModelWindows>,
}

/// A model, or two together, and how it did.
#[derive(Debug, Clone, Deserialize)]
pub struct Model {
    pub model: String,
    pub kind: String,
    pub size: String,
    pub distilled: bool,
    pub parameters: f64,
    pub file_bytes: f64,
    #[serde(default)]
    pub speed: Option<Speed>,
    pub results: Vec<Judged>,
}

/// How fast it answers.
#[derive(Debug, Clone, Deserialize)]
pub struct Speed {
    pub ms_per_graph_batch_1: f64,
    pub threads: Option<u64>,
}

/// Its metrics on one folder or file, at one threshold.
#[derive(Debug, Clone, Deserialize)]
pub struct Judged {
    pub folder: String,
    pub file: Option<String>,
    pub calibration: String,
    pub threshold_method: String,
    pub graphs: u64,
    pub attacks: u64,
    pub confusion: Confusion,
    pub metrics: serde_json::Map<String, Value>,
}

/// Counts of graphs.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Confusion {
    pub true_positives: u64,
    pub false_positives: u64,
    pub true_negatives: u64,
    pub false_negatives: u64,
}

impl Evaluation {
    /// Whether a folder is that of an evaluation.
    pub fn is_at(folder: &Path) -> Result<bool, ReportError> {
        Ok(read_json(&folder.join("metrics.json"))?["models"].is_array())
    }

    /// Reads an evaluation that [is there](Evaluation::is_at).
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join("metrics.json");
        let mut content = read_json(&path)?;
        if content["format_version"] != FORMAT_VERSION {
            let found = &content["format_version"];
            let reason = format!("is format version {found}, this program reads {FORMAT_VERSION}; evaluate again");
            return Err(ReportError::input(&path, reason));
        }
        let models = serde_json::from_value(content["models"].take())
            .map_err(|error| ReportError::input(&path, format!("holds no evaluation: {error}; evaluate again")))?;
        // Drawn windows are an addition: a file of another version is as good as none.
        let windows = std::fs::read(folder.join(WINDOWS)).ok();
        let windows = windows.and_then(|text| serde_json::from_slice::<WindowsFile>(&text).ok());
        Ok(Self {
            folder: folder.to_owned(),
            dataset: content["dataset"].as_str().unwrap_or("").to_owned(),
            models,
            curves: Columns::read(&folder.join(CURVES))?,
            windows: windows.filter(WindowsFile::is_readable).map_or(Vec::new(), |file| file.models),
        })
    }

    /// The agent that fuses two models and its baselines, from the file of its results; `None` where there is none yet.
    pub fn of_fusion(path: &Path) -> Result<Option<Self>, ReportError> {
        let mut content = read_json(path)?;
        if content.is_null() {
            return Ok(None);
        }
        let models = serde_json::from_value(content["evaluation"]["models"].take())
            .map_err(|error| ReportError::input(path, format!("holds no results: {error}; run the fusion again")))?;
        Ok(Some(Self {
            folder: path.parent().unwrap_or(Path::new(".")).to_owned(),
            dataset: content["evaluation"]["dataset"].as_str().unwrap_or("").to_owned(),
            models,
            curves: None,
            windows: Vec::new(),
        }))
    }

    /// Tells its figures from those of others: the dataset, for a fusion with its agent.
    pub fn name(&self) -> String {
        match self.models.first() {
            Some(model) if matches!(model.kind.as_str(), "dqn" | "bandit") => {
                format!("{} {}", self.dataset, model.model)
            }
            _ => self.dataset.clone(),
        }
    }

    /// Keeps the models of these names, alone and in pairs with each other.
    pub fn keep(&mut self, names: &[&str]) {
        self.models.retain(|model| model.model.split(" + ").all(|part| names.contains(&part)));
        self.windows.retain(|windows| names.contains(&windows.model.as_str()));
    }

    /// The test folders, in their order.
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
    /// What it is, in few words: `GAT teacher`, `GAT, KD`, `GAT curriculum, KD`, `GAT+VGAE, no KD`. With its run's number where
    /// that is not the first.
    pub fn label(&self) -> String {
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

    /// Its rows of whole folders, at the recorded threshold and before calibration.
    pub fn folders(&self) -> impl Iterator<Item = &Judged> {
        let recorded = self.results.first().map(|row| row.threshold_method.clone()).unwrap_or_default();
        self.results
            .iter()
            .filter(move |row| row.file.is_none() && row.calibration == "none" && row.threshold_method == recorded)
    }

    /// Its rows of whole folders of unknown cars, at the recorded threshold, calibrated or as they are.
    pub fn unknown_cars(&self, calibrated: bool) -> impl Iterator<Item = &Judged> {
        let recorded = self.results.first().map(|row| row.threshold_method.clone()).unwrap_or_default();
        let of_folder = |row: &&Judged| row.file.is_none() && row.is_unknown_car();
        self.results
            .iter()
            .filter(of_folder)
            .filter(move |row| (row.calibration != "none") == calibrated && row.threshold_method == recorded)
    }

    /// Its rows of single files, likewise.
    pub fn files(&self) -> impl Iterator<Item = &Judged> {
        let recorded = self.results.first().map(|row| row.threshold_method.clone()).unwrap_or_default();
        self.results
            .iter()
            .filter(move |row| row.file.is_some() && row.calibration == "none" && row.threshold_method == recorded)
    }
}

impl Judged {
    /// Whether its folder has traffic of a car that is not in training.
    pub fn is_unknown_car(&self) -> bool {
        is_unknown_vehicle(&self.folder)
    }

    /// A metric's value and the ends of its interval; NaN where it is not defined.
    pub fn metric(&self, name: &str) -> [f64; 3] {
        let found = self.metrics.get(name).unwrap_or(&Value::Null);
        ["value", "low", "high"].map(|part| found[part].as_f64().unwrap_or(f64::NAN))
    }
}
