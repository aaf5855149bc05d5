//! Scores of one car on a scale of its own: how many robust deviations above what is usual there.
//!
//! A model that is moved to another car ranks windows well and is wrong about what is usual: its scores are shifted and
//! stretched. A few seconds of attack-free traffic of that car show by how much, without labels and without training.
//! A classifier keeps its log odds, with what a list of the car's own IDs adds ([`CarIds`]); of an autoencoder, whose errors on that car may be larger or smaller in an attack, it is
//! the distance from the errors that are usual there ([`UsualProfile`]). On this scale the scores of different models can also
//! be averaged.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bootstrap::quantile;
use super::id_list::CarIds;
use super::profile::{UsualProfile, distances_among};
use super::scores::Profiled;
use super::threshold::at_false_positive_rate;
use super::{EvaluateError, ScoreKind};
use crate::config::Threshold;
use crate::files;
use crate::graph::split::sharing_neighbours;
use crate::graph::{ForeignIds, GraphView, Store, StoreError};

/// The calibration that earlier versions wrote into a run's folder.
pub const CALIBRATION: &str = "calibration.json";
const FORMAT_VERSION: u32 = 3;
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
        Self::of_values(raw.iter().map(|&raw| kind.unbounded(raw)).collect())
    }

    /// Of values on a scale without ends; `None` of none.
    pub fn of_values(mut values: Vec<f64>) -> Option<Self> {
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
        self.deviations(kind.unbounded(raw))
    }

    /// A value in spreads above the median.
    pub fn deviations(&self, value: f64) -> f64 {
        (value - self.median) / self.spread
    }
}

/// What a threshold is to keep, and how windows overlap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Share of the attack-free windows that may be called attacks.
    pub rate: f64,
    /// Windows on either side of one that share a frame with it.
    pub gap: usize,
}

impl Rule {
    /// A rule for windows of `window` frames, `stride` frames apart.
    pub fn new(rate: f64, window: usize, stride: usize) -> Self {
        Self { rate, gap: sharing_neighbours(window, stride) as usize }
    }
}

/// A car's own scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CarScale {
    kind: ScoreKind,
    /// Of log odds; with a profile, of logarithms of distances from it.
    scale: Scale,
    /// Of an autoencoder: the errors that are usual.
    profile: Option<UsualProfile>,
    /// Of a classifier with a list of known IDs: the car's own list.
    ids: Option<CarIds>,
}

impl CarScale {
    /// From the car's attack-free windows, with the deviations of these windows themselves; `None` of none. `foreign_ids`: what
    /// was counted on the data of a classifier with a list of known IDs.
    ///
    /// The threshold will be one that a share `rate` of these windows exceeds. Where foreign IDs are in so many of them that
    /// another one alone would not exceed it, they count for nothing: they would only raise it for other attacks.
    pub fn of(
        kind: ScoreKind,
        windows: &[Profiled],
        foreign_ids: Option<ForeignIds>,
        Rule { rate, gap }: Rule,
    ) -> Option<(Self, Vec<f64>)> {
        let profiles: Option<Vec<_>> = windows.iter().map(|window| window.profile.clone()).collect();
        let unlisted: Option<Vec<_>> = windows.iter().map(|window| window.unlisted.as_ref()).collect();
        let (mut usual, mut ids) = (None, None);
        let values: Vec<f64> = match (kind, profiles, unlisted.zip(foreign_ids)) {
            (ScoreKind::Difficulty, Some(profiles), _) => {
                usual = Some(UsualProfile::of(&profiles.iter().collect::<Vec<_>>())?);
                distances_among(&profiles, gap)?.into_iter().map(unbounded_distance).collect()
            }
            (ScoreKind::AttackProbability, _, Some((unlisted, foreign_ids))) => {
                let of_windows: Vec<&[u32]> = unlisted.iter().map(|window| window.can_ids.as_slice()).collect();
                let (list, evidence) = CarIds::of(&of_windows, foreign_ids, gap);
                let alone: Vec<f64> = unlisted.iter().map(|window| f64::from(window.raw)).collect();
                let listed: Vec<f64> = alone.iter().zip(evidence).map(|(raw, evidence)| raw + evidence).collect();
                let usual = Scale::of_values(listed.clone())?.median;
                let makes_alarm = usual + list.evidence() > at_false_positive_rate(listed.clone(), rate)?;
                ids = Some(if makes_alarm { list } else { list.silenced() });
                if makes_alarm { listed } else { alone }
            }
            _ => windows.iter().map(|window| kind.unbounded(window.raw)).collect(),
        };
        let scale = Scale::of_values(values.clone())?;
        let deviations = values.into_iter().map(|value| scale.deviations(value)).collect();
        Some((Self { kind, scale, profile: usual, ids }, deviations))
    }

    /// Of a classifier with a list of known IDs: the car's own list.
    pub fn ids(&self) -> Option<&CarIds> {
        self.ids.as_ref()
    }

    /// How many robust deviations a window is above what is usual for the car.
    pub fn deviations(&self, window: &Profiled) -> f64 {
        let value = match (&self.profile, &window.profile, &self.ids, &window.unlisted) {
            (Some(usual), Some(profile), _, _) => unbounded_distance(usual.distance(profile)),
            (_, _, Some(ids), Some(unlisted)) => f64::from(unlisted.raw) + ids.of_window(&unlisted.can_ids),
            _ => self.kind.unbounded(window.raw),
        };
        self.scale.deviations(value)
    }
}

/// The logarithm: distances vary by factors, and a few attack-free windows are far away.
fn unbounded_distance(distance: f64) -> f64 {
    distance.max(f64::MIN_POSITIVE).ln()
}

/// What was found out about a car.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    pub format_version: u32,
    /// Of the model that it belongs to.
    pub weights_digest: String,
    /// What foreign IDs are worth to it.
    pub foreign_ids: Option<ForeignIds>,
    pub kind: ScoreKind,
    /// Attack-free windows that it was made from.
    pub windows: u64,
    /// Seconds of traffic that they came from, if known.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The logs that they came from.
    pub source: String,
    /// How the threshold was chosen, `fpr:RATE`.
    pub method: String,
    /// Windows of more deviations on the car's scale are called attacks.
    pub threshold: f64,
    /// Puts the car's scores on a scale of their own.
    pub car: CarScale,
}

impl Calibration {
    /// From attack-free windows. With fewer than `1 / rule.rate` of them the threshold is their highest deviation.
    ///
    /// # Errors
    /// When there are too few windows.
    pub fn new(
        (kind, foreign_ids): (ScoreKind, Option<ForeignIds>),
        windows: &[Profiled],
        rule: Rule,
        weights_digest: &str,
        source: &str,
    ) -> Result<Self, EvaluateError> {
        let too_few = || {
            EvaluateError::Input(format!(
                "{source}: {} attack-free windows are too few to calibrate with; give at least {FEWEST_WINDOWS}",
                windows.len()
            ))
        };
        if windows.len() < FEWEST_WINDOWS {
            return Err(too_few());
        }
        let (car, deviations) = CarScale::of(kind, windows, foreign_ids, rule).ok_or_else(|| {
            EvaluateError::Input(format!("{source}: the model gives no finite scores for this traffic"))
        })?;
        let threshold = at_false_positive_rate(deviations, rule.rate).ok_or_else(too_few)?;
        Ok(Self {
            format_version: FORMAT_VERSION,
            weights_digest: weights_digest.to_owned(),
            foreign_ids,
            kind,
            windows: windows.len() as u64,
            seconds: None,
            source: source.to_owned(),
            method: Threshold::FalsePositiveRate(rule.rate).to_string(),
            threshold,
            car,
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
    pub fn read(path: &Path, weights_digest: &str, foreign_ids: Option<ForeignIds>) -> Result<Self, EvaluateError> {
        let content = |reason: String| EvaluateError::Content { path: path.to_owned(), reason };
        let again = "make it again with `kdgat calibrate --model RUN --benign FILE`";
        let text = std::fs::read(path).map_err(|source| content(format!("cannot be read: {source}; {again}")))?;
        let found: Self =
            serde_json::from_slice(&text).map_err(|error| content(format!("is no calibration: {error}; {again}")))?;
        // In version 2 there was no list of IDs; nothing has changed where there is none.
        if found.format_version != FORMAT_VERSION && !(found.format_version == 2 && foreign_ids.is_none()) {
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
        if found.foreign_ids != foreign_ids {
            return Err(content(format!("was made for the same weights with another list of known IDs; {again}")));
        }
        if found.car.profile.as_ref().is_some_and(|profile| !profile.is_whole()) {
            return Err(content(format!("has a profile whose parts do not fit each other; {again}")));
        }
        if found.car.ids.is_some() != foreign_ids.is_some() || found.car.ids.as_ref().is_some_and(|ids| !ids.is_sound())
        {
            return Err(content(format!("lacks the car's list of IDs, or has one that would add no number; {again}")));
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
pub fn calibration_stretch(store: &Store, graphs: Range<u64>, seconds: f64) -> Result<Range<u64>, StoreError> {
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

/// The graphs of a file that are left out of the test: those that calibrate, and those that share a frame with one of them.
pub fn left_out(calibration: &Range<u64>, graphs: &Range<u64>, window: usize, stride: usize) -> Range<u64> {
    if calibration.is_empty() {
        return graphs.start..graphs.start;
    }
    let gap = sharing_neighbours(window, stride);
    calibration.start.saturating_sub(gap).max(graphs.start)..(calibration.end + gap).min(graphs.end)
}

#[cfg(test)]
mod tests {
    use super::super::profile::Profile;
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
    fn windows_that_share_a_frame_with_the_calibration_leave_the_test() {
        // The frame after a window counts, so that the next window shares one even where windows do not overlap.
        assert_eq!(left_out(&(120..140), &(100..200), 100, 100), 119..141);
        assert_eq!(left_out(&(100..140), &(100..200), 100, 25), 100..144);
        assert_eq!(left_out(&(190..200), &(100..200), 100, 25), 186..200);
        assert_eq!(left_out(&(120..140), &(100..200), 100, 101), 120..140);
        assert_eq!(left_out(&(100..100), &(100..200), 100, 25), 100..100, "nothing calibrates");
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
        let windows: Vec<Profiled> = raw.iter().map(|&raw| Profiled { raw, profile: None, unlisted: None }).collect();
        let made = Calibration::new(
            (ScoreKind::AttackProbability, None),
            &windows,
            Rule::new(0.05, 100, 100),
            "abc",
            "drive.csv",
        )
        .unwrap();
        let above = windows.iter().filter(|window| made.car.deviations(window) > made.threshold).count();
        assert_eq!(above, 5);
        made.write(&path).unwrap();
        let read = Calibration::read(&path, "abc", None).unwrap();
        assert_eq!((read.windows, &read.method, &read.car), (100, &made.method, &made.car));
        assert!(Calibration::read(&path, "other", None).unwrap_err().to_string().contains("calibration.json"));
        assert!(
            Calibration::new(
                (ScoreKind::Difficulty, None),
                &windows[..9],
                Rule::new(0.05, 100, 100),
                "abc",
                "drive.csv"
            )
            .is_err()
        );
    }

    /// An attack that makes an autoencoder less wrong is found as one that makes it more wrong.
    #[test]
    fn an_autoencoder_is_calibrated_on_either_side() {
        let window = |index: u64, shift: f64| {
            let noise = |value: u64| crate::random::unit(1, crate::random::Purpose::Step, value, index) - 0.5;
            let profile: Profile = (0..21).map(|value| noise(value) + shift).collect();
            Profiled { raw: (1.0 + shift) as f32, profile: Some(profile), unlisted: None }
        };
        let usual: Vec<Profiled> = (0..200).map(|index| window(index, 0.0)).collect();
        let made =
            Calibration::new((ScoreKind::Difficulty, None), &usual, Rule::new(0.001, 100, 100), "abc", "drive.csv")
                .unwrap();
        let called = |window: &Profiled| made.car.deviations(window) > made.threshold;
        assert_eq!(usual.iter().filter(|window| called(window)).count(), 0);
        // One in ten of the windows, each measured by those of other parts: what the threshold was asked for.
        let tenth =
            Calibration::new((ScoreKind::Difficulty, None), &usual, Rule::new(0.1, 100, 100), "abc", "drive.csv")
                .unwrap();
        let (_, deviations) = CarScale::of(ScoreKind::Difficulty, &usual, None, Rule::new(0.1, 100, 100)).unwrap();
        let above = deviations.iter().filter(|&&deviation| deviation > tenth.threshold).count();
        assert_eq!(above, 20, "one in ten of 200 windows");
        let unseen = (200..1200).filter(|&index| called(&window(index, 0.0))).count();
        assert!(unseen < 30, "{unseen} of 1000 usual windows");
        for shift in [-0.6, 0.6] {
            let found = (0..100).filter(|&index| called(&window(index, shift))).count();
            assert!(found > 95, "{found} of 100 windows with a shift of {shift}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CALIBRATION);
        made.write(&path).unwrap();
        assert_eq!(Calibration::read(&path, "abc", None).unwrap(), made, "nothing is lost on the way through a file");
    }
}
