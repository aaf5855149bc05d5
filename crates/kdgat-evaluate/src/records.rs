//! Recorded thresholds of a model, stored beside its weights in `thresholds.json`.
//!
//! A threshold is valid for the weights it was chosen with; the file stores their digest and that of the data. A threshold of
//! other weights, or of the same weights with another list of known IDs, is ignored.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ensemble::EnsembleThreshold;
use super::{EvaluateError, Scale, ScoreKind, TrainedModel, threshold};
use kdgat_base::files;
use kdgat_config::{EvaluationConfig, Setting, Threshold};
use kdgat_graph::ForeignIds;

/// File in a run's folder.
pub const THRESHOLDS: &str = "thresholds.json";
const FORMAT_VERSION: u32 = 1;

/// One threshold and its origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedThreshold {
    /// `fpr:0.001`, `youden`, or a number.
    pub method: String,
    /// Graphs with a higher score are called attacks.
    pub value: f64,
    /// Meaning of the scores that the threshold is on.
    pub kind: ScoreKind,
    /// Digest of the weights that scored.
    pub weights_digest: String,
    /// Foreign-ID shares of the model that scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_ids: Option<ForeignIds>,
    /// Digest of the store whose validation graphs were scored.
    pub data_digest: String,
    /// Name of the dataset of that store.
    pub dataset: String,
    /// Number of validation graphs without an attack, and with one (`attack_graphs`).
    pub benign_graphs: u64,
    /// Number of validation graphs with an attack.
    pub attack_graphs: u64,
    /// Scale of the benign validation graphs.
    pub scale: Scale,
    /// The threshold by the same rule when the validation graphs are seen with the profile of ten seconds of their log, for models of the
    /// profile set: the threshold of another car, unless its windows contradict it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_profile: Option<f64>,
}

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ThresholdFile {
    format_version: u32,
    thresholds: Vec<RecordedThreshold>,
    /// Thresholds of this classifier together with an autoencoder.
    pub(super) ensembles: Vec<EnsembleThreshold>,
}

/// Scores of a model on validation graphs.
#[derive(Debug)]
pub struct ValidationScores<'a> {
    /// Meaning of the scores.
    pub kind: ScoreKind,
    /// Raw outputs of the model, one per graph.
    pub raw: &'a [f32],
    /// True for an attack, one per graph.
    pub labels: &'a [bool],
    /// Name of the dataset.
    pub dataset: &'a str,
    /// Digest of the store.
    pub data_digest: &'a str,
}

impl RecordedThreshold {
    /// The parsed method; `None` if another program wrote a method this one does not know.
    fn rule(&self) -> Option<Threshold> {
        Threshold::parse(&self.method)
    }

    /// Chooses a threshold on validation data.
    pub fn choose(
        method: Threshold,
        model: &TrainedModel,
        validation: &ValidationScores<'_>,
    ) -> Result<Self, EvaluateError> {
        let ValidationScores { kind, raw, labels, dataset, data_digest } = *validation;
        let scores: Vec<f64> = raw.iter().map(|&raw| kind.score(raw)).collect();
        let benign: Vec<f32> = raw.iter().zip(labels).filter(|(_, attack)| !**attack).map(|(raw, _)| *raw).collect();
        let unusable = |reason: String| {
            EvaluateError::Input(format!(
                "no threshold for {}: {reason} in the validation data of {dataset}; \
                 raise --validation-fraction, or give a number with --threshold",
                model.name
            ))
        };
        let value = threshold::choose(method, &scores, labels).map_err(unusable)?;
        let value = at_least_even(method, model, kind, value);
        let scale = Scale::of(kind, &benign).ok_or_else(|| unusable("there is no attack-free window".to_owned()))?;
        Ok(Self {
            method: method.to_string(),
            value,
            kind,
            weights_digest: model.weights_digest.clone(),
            foreign_ids: model.description.foreign_ids,
            data_digest: data_digest.to_owned(),
            dataset: dataset.to_owned(),
            benign_graphs: benign.len() as u64,
            attack_graphs: (raw.len() - benign.len()) as u64,
            scale,
            short_profile: None,
        })
    }
}

/// A threshold for a false-positive rate, but at least one half for a classifier of the profile set.
///
/// Such a classifier may separate all validation windows, and then every score between the two classes has the same rate; the smallest one
/// would call windows attacks that the model holds for normal.
pub fn at_least_even(method: Threshold, model: &TrainedModel, kind: ScoreKind, value: f64) -> f64 {
    let has_profile = model.description.architecture.input().profile.is_some();
    match (method, kind) {
        (Threshold::FalsePositiveRate(_), ScoreKind::AttackProbability) if has_profile => value.max(0.5),
        _ => value,
    }
}

/// Finds the threshold recorded for these weights with that method. Prefers one chosen on the model's own data, then one chosen
/// on the data with this digest.
pub fn find(
    model: &TrainedModel,
    method: Threshold,
    data_digest: &str,
) -> Result<Option<RecordedThreshold>, EvaluateError> {
    let on_these = |recorded: &RecordedThreshold| recorded.data_digest == data_digest;
    let mut found = recorded_by(model, method)?;
    let position =
        found.iter().position(|recorded| is_own(model, recorded)).or_else(|| found.iter().position(on_these));
    Ok(position.map(|position| found.swap_remove(position)))
}

/// All thresholds recorded for these weights with that method, those of the model's own data first.
pub fn recorded_by(model: &TrainedModel, method: Threshold) -> Result<Vec<RecordedThreshold>, EvaluateError> {
    let mut found = read(model)?;
    found.retain(|recorded| recorded.rule() == Some(method));
    found.sort_by_key(|recorded| !is_own(model, recorded));
    Ok(found)
}

fn is_own(model: &TrainedModel, recorded: &RecordedThreshold) -> bool {
    recorded.data_digest == model.description.dataset.digest
}

/// The threshold used when the user gives none. Prefers, in this order: thresholds chosen by a rule over plain numbers (which
/// somebody tried in an evaluation), the model's own data over others, the default rule over others, the last used.
pub fn deciding(model: &TrainedModel) -> Result<Option<RecordedThreshold>, EvaluateError> {
    // `max_by_key` returns the last of equal elements.
    let rank = |recorded: &RecordedThreshold| rank(&recorded.method, is_own(model, recorded));
    Ok(read(model)?.into_iter().max_by_key(rank))
}

/// Rank of a recorded threshold in the order of [`deciding`]. `is_own`: it was chosen on the model's own data.
pub(super) fn rank(method: &str, is_own: bool) -> (bool, bool, bool) {
    let rule = Threshold::parse(method);
    let is_number = matches!(rule, None | Some(Threshold::Score(_)));
    (!is_number, is_own, rule == Some(EvaluationConfig::default().threshold))
}

/// All thresholds recorded for the model's weights, with the last used at the end.
pub fn read(model: &TrainedModel) -> Result<Vec<RecordedThreshold>, EvaluateError> {
    let fits = |recorded: &RecordedThreshold| {
        recorded.weights_digest == model.weights_digest && recorded.foreign_ids == model.description.foreign_ids
    };
    Ok(read_file(model)?.thresholds.into_iter().filter(fits).collect())
}

/// Reads the model's file, also what it has of other weights; empty if there is no file.
pub(super) fn read_file(model: &TrainedModel) -> Result<ThresholdFile, EvaluateError> {
    let path = path(model);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(ThresholdFile { format_version: FORMAT_VERSION, thresholds: Vec::new(), ensembles: Vec::new() });
        }
        Err(error) => return Err(EvaluateError::Content { path, reason: format!("cannot be read: {error}") }),
    };
    let advice = "delete it, and `kdgat evaluate` chooses thresholds again";
    versioned(&path, &text, FORMAT_VERSION, "thresholds file", advice)
}

/// Parses a JSON file with a `format_version`, which is checked first: in another version, no other field can be relied on.
pub(super) fn versioned<T: DeserializeOwned>(
    path: &Path,
    text: &[u8],
    version: u32,
    what: &str,
    advice: &str,
) -> Result<T, EvaluateError> {
    let content = |reason: String| EvaluateError::Content { path: path.to_owned(), reason };
    let invalid = |error: serde_json::Error| content(format!("is not a {what}: {error}; {advice}"));
    let value: Value = serde_json::from_slice(text).map_err(invalid)?;
    match &value["format_version"] {
        found if *found == version => serde_json::from_value(value).map_err(invalid),
        Value::Null => Err(content(format!("is not a {what}: it has no format_version; {advice}"))),
        found => Err(content(format!("is format version {found}, this program reads {version}; {advice}"))),
    }
}

/// Appends a threshold to the model's file, replacing one of the same method and data.
pub fn record(model: &TrainedModel, threshold: &RecordedThreshold) -> Result<(), EvaluateError> {
    let mut thresholds = read(model)?;
    if thresholds.last() == Some(threshold) {
        return Ok(());
    }
    thresholds.retain(|other| other.rule() != threshold.rule() || other.data_digest != threshold.data_digest);
    thresholds.push(threshold.clone());
    write_file(model, &ThresholdFile { thresholds, ..read_file(model)? })
}

/// Replaces the model's file atomically.
pub(super) fn write_file(model: &TrainedModel, file: &ThresholdFile) -> Result<(), EvaluateError> {
    let path = path(model);
    let text = serde_json::to_vec_pretty(file).map_err(std::io::Error::other);
    Ok(text
        .and_then(|text| files::write_atomically(&path, &text))
        .map_err(files::failed("record the threshold", &path))?)
}

fn path(model: &TrainedModel) -> PathBuf {
    let folder: &Path = &model.folder;
    folder.join(THRESHOLDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_methods_are_short_and_read_back() {
        for text in ["fpr:0.001", "fpr:0.1", "youden", "0.5", "1", "-3.25", "fpr:1e-300", "1e300"] {
            assert_eq!(Threshold::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Threshold::parse("fpr:0.000001"), Threshold::parse("fpr:1e-6"));
    }
}
