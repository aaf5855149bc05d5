//! Scores of one car on a scale of its own: how many robust deviations above what is usual there.
//!
//! A model that is moved to another car ranks windows well and is wrong about what is usual: its scores are shifted and
//! stretched. A few seconds of attack-free traffic of that car show by how much, without labels and without training.
//! On this scale the scores of different models can also be averaged.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bootstrap::quantile;
use super::threshold::at_false_positive_rate;
use super::{EvaluateError, ScoreKind};
use crate::files;
use crate::graph::{GraphView, Store, StoreError};

/// A calibration file in a run's folder.
pub const CALIBRATION: &str = "calibration.json";
const FORMAT_VERSION: u32 = 1;
/// Fewer windows say nothing about a car.
pub const FEWEST_WINDOWS: usize = 10;
/// Interquartile range of a normal distribution, in standard deviations.
const QUARTILES_APART: f64 = 1.348_979_500_392_163_4;

/// Median and spread of benign scores, on the scale of [`ScoreKind::unbounded`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    pub median: f64,
    /// Interquartile range / 1.349: the standard deviation, if the scores were normally distributed.
    pub spread: f64,
}

impl Scale {
    /// Of benign raw scores; `None` of none.
    pub fn of(kind: ScoreKind, raw: &[f32]) -> Option<Self> {
        let mut values: Vec<f64> = raw.iter().map(|&raw| kind.unbounded(raw)).collect();
        values.sort_unstable_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let apart = |low: f64| quantile(&values, 1.0 - low) - quantile(&values, low);
        // When half of the windows have one score, what is around it still has a width; when all have, the width is 1.
        let spread = [apart(0.25) / QUARTILES_APART, apart(0.05) / 3.29, (last - first) / 6.0];
        let spread = spread.into_iter().find(|spread| *spread > 0.0).unwrap_or(1.0);
        Some(Self { median: quantile(&values, 0.5), spread })
    }

    /// A raw score in spreads above the median.
    pub fn standardise(&self, kind: ScoreKind, raw: f32) -> f64 {
        (kind.unbounded(raw) - self.median) / self.spread
    }
}

/// What was found out about a car.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    pub format_version: u32,
    /// Of the model that it belongs to.
    pub weights_digest: String,
    pub kind: ScoreKind,
    /// Attack-free windows that it was made from.
    pub windows: u64,
    /// The logs that they came from.
    pub source: String,
    /// How the threshold was chosen, `fpr:RATE`.
    pub method: String,
    /// Scores above it are called attacks.
    pub threshold: f64,
    /// Puts the car's scores on a scale of their own.
    pub scale: Scale,
}

impl Calibration {
    /// From the raw scores of attack-free windows. With fewer than `1 / rate` windows the threshold is their highest score.
    ///
    /// # Errors
    /// When there are too few windows.
    pub fn new(
        kind: ScoreKind,
        raw: &[f32],
        rate: f64,
        weights_digest: &str,
        source: &str,
    ) -> Result<Self, EvaluateError> {
        let scores = raw.iter().map(|&raw| kind.score(raw)).collect();
        let found = (Scale::of(kind, raw), at_false_positive_rate(scores, rate));
        let (Some(scale), Some(threshold), true) = (found.0, found.1, raw.len() >= FEWEST_WINDOWS) else {
            return Err(EvaluateError::Input(format!(
                "{source}: {} attack-free windows are too few to calibrate with; give at least {FEWEST_WINDOWS}",
                raw.len()
            )));
        };
        Ok(Self {
            format_version: FORMAT_VERSION,
            weights_digest: weights_digest.to_owned(),
            kind,
            windows: raw.len() as u64,
            source: source.to_owned(),
            method: format!("fpr:{rate}"),
            threshold,
            scale,
        })
    }

    /// Writes the file, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), EvaluateError> {
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::other);
        text.and_then(|text| files::write_atomically(path, &text)).map_err(|source| EvaluateError::File {
            path: path.to_owned(),
            action: "write the calibration",
            source,
        })
    }

    /// Reads a file that belongs to the model with these weights.
    ///
    /// # Errors
    /// A file that is missing, damaged, of another version, or of another model.
    pub fn read(path: &Path, weights_digest: &str) -> Result<Self, EvaluateError> {
        let content = |reason: String| EvaluateError::Content { path: path.to_owned(), reason };
        let again = "make it again with `kdgat calibrate --model RUN --benign FILE`";
        let text = std::fs::read(path).map_err(|source| content(format!("cannot be read: {source}; {again}")))?;
        let found: Self =
            serde_json::from_slice(&text).map_err(|error| content(format!("is no calibration: {error}; {again}")))?;
        if found.format_version != FORMAT_VERSION {
            return Err(content(format!(
                "is format version {}, this program reads {FORMAT_VERSION}; {again}",
                found.format_version
            )));
        }
        if found.weights_digest != weights_digest {
            return Err(content(format!(
                "was made for weights {}, the model has {}; {again}",
                short(&found.weights_digest),
                short(weights_digest)
            )));
        }
        Ok(found)
    }
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// Whether a test folder holds traffic of a car that training has not seen.
pub fn is_unknown_vehicle(folder: &str) -> bool {
    folder.to_ascii_lowercase().contains("unknown_vehicle")
}

/// The graphs of a file's first attack-free stretch that begin in its first `seconds`: positions in the store.
///
/// The stretch is the first run of windows without an attack that is as long; where none is, the longest. What runs across
/// its end is not taken: the windows after the first of another label stay in the test.
pub fn calibration_stretch(
    store: &Store,
    graphs: std::ops::Range<u64>,
    seconds: f64,
) -> Result<std::ops::Range<u64>, StoreError> {
    let mut longest = (0.0, graphs.start..graphs.start);
    let mut run: Option<(u64, f64)> = None;
    for graph in graphs.clone() {
        let GraphView { attack, start_time, .. } = store.try_graph(graph)?;
        if attack {
            run = None;
            continue;
        }
        let (begin, begin_time) = *run.get_or_insert((graph, start_time));
        let length = start_time - begin_time;
        if length >= seconds {
            return Ok(begin..graph);
        }
        if length > longest.0 || longest.1.is_empty() {
            longest = (length, begin..graph + 1);
        }
    }
    Ok(longest.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_robust_and_standardises() {
        let kind = ScoreKind::AttackProbability;
        let mut raw: Vec<f32> = (0..1001).map(|index| index as f32 / 100.0 - 5.0).collect();
        let clean = Scale::of(kind, &raw).unwrap();
        assert!((clean.median).abs() < 1e-6);
        assert!((clean.spread - 5.0 / QUARTILES_APART).abs() < 1e-3);
        raw.extend([1e6; 50]);
        let dirty = Scale::of(kind, &raw).unwrap();
        assert!((dirty.spread / clean.spread - 1.0).abs() < 0.1, "{dirty:?} {clean:?}");
        assert!((clean.standardise(kind, 5.0) - 5.0 / clean.spread).abs() < 1e-6);
    }

    #[test]
    fn equal_scores_still_have_a_scale() {
        let kind = ScoreKind::Difficulty;
        assert_eq!(Scale::of(kind, &[0.5; 20]).unwrap().spread, 1.0);
        let mut raw = vec![0.5; 95];
        raw.extend([0.6; 5]);
        assert!(Scale::of(kind, &raw).unwrap().spread > 0.0);
        assert_eq!(Scale::of(kind, &[]), None);
    }

    #[test]
    fn a_calibration_belongs_to_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CALIBRATION);
        let raw: Vec<f32> = (0..100).map(|index| index as f32 / 10.0 - 8.0).collect();
        let made = Calibration::new(ScoreKind::AttackProbability, &raw, 0.05, "abc", "drive.csv").unwrap();
        let above = raw.iter().filter(|raw| made.kind.score(**raw) > made.threshold).count();
        assert_eq!(above, 5);
        made.write(&path).unwrap();
        let read = Calibration::read(&path, "abc").unwrap();
        assert_eq!((read.windows, &read.method), (100, &made.method));
        assert!(Calibration::read(&path, "other").unwrap_err().to_string().contains("calibration.json"));
        assert!(Calibration::new(ScoreKind::Difficulty, &raw[..9], 0.05, "abc", "drive.csv").is_err());
    }
}
