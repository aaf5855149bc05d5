//! Per-car calibration: rescales scores to robust deviations above what is usual for that car.
//!
//! A model moved to another car still ranks windows well, but its scores are shifted and stretched. A few seconds of
//! attack-free traffic from that car measure by how much, without labels or training.
//!
//! A classifier uses its log odds plus the evidence of the car's own ID list ([`CarIds`]). An autoencoder uses the distance from
//! the car's usual errors ([`UsualProfile`]), because an attack may raise or lower its errors on that car. On this scale, scores
//! of different models can be averaged.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bootstrap::quantile;
use super::ensemble::{CarWindows, JointScale};
use super::id_list::CarIds;
use super::profile::{UsualProfile, distances_among};
use super::records::versioned;
use super::scores::Profiled;
use super::threshold::at_false_positive_rate;
use super::{EvaluateError, ScoreKind};
use kdgat_base::files;
use kdgat_config::Threshold;
use kdgat_graph::split::sharing_neighbours;
use kdgat_graph::{CarProfile, ForeignIds, GraphView, Store, StoreError};

const FORMAT_VERSION: u32 = 1;
/// Minimum number of windows; fewer are too few to estimate a scale.
pub const FEWEST_WINDOWS: usize = 10;
/// Interquartile range of a normal distribution, in standard deviations.
const QUARTILES_APART: f64 = 1.348_979_500_392_163_4;

/// Median and spread of benign scores, on the unbounded scale of [`ScoreKind::unbounded`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Median of the benign scores.
    pub median: f64,
    /// Interquartile range / 1.349, which equals the standard deviation for normally distributed scores.
    pub spread: f64,
}

impl Scale {
    /// Fits the scale to benign raw scores; `None` if `raw` is empty.
    pub fn of(kind: ScoreKind, raw: &[f32]) -> Option<Self> {
        Self::of_values(raw.iter().map(|&raw| kind.unbounded(raw)).collect())
    }

    /// Fits the scale to values that are already unbounded; `None` if `values` is empty.
    pub fn of_values(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let apart = |low: f64| quantile(&values, 1.0 - low) - quantile(&values, low);
        // If half of the windows share one score, the 5-95 % range or the full range still gives a width; if all do, it is 1.
        let spread = [apart(0.25) / QUARTILES_APART, apart(0.05) / 3.29, (last - first) / 6.0];
        let spread = spread.into_iter().find(|spread| *spread > 0.0).unwrap_or(1.0);
        Some(Self { median: quantile(&values, 0.5), spread })
    }

    /// Standardises a raw score: spreads above the median.
    pub fn standardise(&self, kind: ScoreKind, raw: f32) -> f64 {
        self.deviations(kind.unbounded(raw))
    }

    /// Spreads of `value` above the median.
    pub fn deviations(&self, value: f64) -> f64 {
        (value - self.median) / self.spread
    }
}

/// Target rate for a threshold, and how far windows overlap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Share of attack-free windows that may be called attacks.
    pub rate: f64,
    /// Number of windows on either side of one that share a frame with it.
    pub gap: usize,
    /// Frames of a window.
    pub window: usize,
    /// Frames from one window to the next.
    pub stride: usize,
}

impl Rule {
    /// Builds the rule for windows of `window` frames, `stride` frames apart.
    pub fn new(rate: f64, window: usize, stride: usize) -> Self {
        Self { rate, gap: sharing_neighbours(window, stride) as usize, window, stride }
    }
}

/// A car's own scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CarScale {
    kind: ScoreKind,
    /// Scale of log odds, or of log distances from `profile` if there is one.
    scale: Scale,
    /// Usual reconstruction errors (autoencoder only).
    profile: Option<UsualProfile>,
    /// The car's own list of known IDs (classifiers with such a list only).
    ids: Option<CarIds>,
    /// The car's profile (models of the profile set only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    car_profile: Option<CarProfile>,
}

impl CarScale {
    /// Fits the scale to the car's attack-free windows and returns it with the deviations of these windows; `None` if there are no
    /// windows. `foreign_ids` holds the counts from the training data of a classifier with a known-ID list.
    ///
    /// The threshold will be one that a share `rate` of these windows exceeds. If so many windows contain foreign IDs that one more
    /// would not push a usual window over the threshold, foreign IDs are ignored: they would only raise it for other attacks.
    pub fn of(
        kind: ScoreKind,
        windows: &[Profiled],
        foreign_ids: Option<ForeignIds>,
        Rule { rate, gap, .. }: Rule,
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
        Some((Self { kind, scale, profile: usual, ids, car_profile: None }, deviations))
    }

    /// The scale of a model of the profile set, whose windows were scored with this profile.
    pub fn with_profile(mut self, profile: CarProfile) -> Self {
        self.car_profile = Some(profile);
        self
    }

    /// The car's profile (models of the profile set only).
    pub fn profile(&self) -> Option<&CarProfile> {
        self.car_profile.as_ref()
    }

    /// Median and spread of the values that deviations count from.
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// Mean of the usual errors, and the rows of the factor of their covariance (autoencoder only).
    pub fn usual_errors(&self) -> Option<(&[f64], &[Vec<f64>])> {
        self.profile.as_ref().map(UsualProfile::mean_and_factor)
    }

    /// Size of one deviation in nats of the log odds; `None` for an autoencoder.
    pub fn nats_of_deviation(&self) -> Option<f64> {
        (self.kind == ScoreKind::AttackProbability).then_some(self.scale.spread)
    }

    /// Deviations of a window with this score.
    pub fn deviations_of_score(&self, score: f64) -> f64 {
        self.scale.deviations(self.kind.unbounded_of_score(score))
    }

    /// The car's own list of known IDs (classifiers with such a list only).
    pub fn ids(&self) -> Option<&CarIds> {
        self.ids.as_ref()
    }

    /// Robust deviations of a window above what is usual for the car.
    pub fn deviations(&self, window: &Profiled) -> f64 {
        let value = match (&self.profile, &window.profile, &self.ids, &window.unlisted) {
            (Some(usual), Some(profile), _, _) => unbounded_distance(usual.distance(profile)),
            (_, _, Some(ids), Some(unlisted)) => f64::from(unlisted.raw) + ids.of_window(&unlisted.can_ids),
            _ => self.kind.unbounded(window.raw),
        };
        self.scale.deviations(value)
    }
}

/// Log distance: distances vary by factors, and a few attack-free windows are far away.
fn unbounded_distance(distance: f64) -> f64 {
    distance.max(f64::MIN_POSITIVE).ln()
}

/// Calibration of one model, or of a classifier and an autoencoder together, for one car.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of the file's layout.
    pub format_version: u32,
    /// Digest of the weights it was made for.
    pub weights_digest: String,
    /// Foreign-ID shares of the model it was made for.
    pub foreign_ids: Option<ForeignIds>,
    /// Meaning of the score of the model it was made for.
    pub kind: ScoreKind,
    /// Number of attack-free windows it was made from.
    pub windows: u64,
    /// Duration of the traffic they came from, in seconds, if known.
    pub seconds: Option<f64>,
    /// Logs they came from.
    pub source: String,
    /// Method that chose the threshold: `fpr:RATE`.
    pub method: String,
    /// Windows with more deviations on the car's scale are called attacks.
    pub threshold: f64,
    /// The car's scale.
    pub car: CarScale,
    /// The autoencoder that judges together with this classifier. Deviations are then the mean of both models'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partner: Option<Partner>,
    /// Synthetic attacks found in copies of the traffic, by kind (models of the profile set only).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attacks: Vec<AttacksFound>,
}

/// Windows with synthetic attacks of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttacksFound {
    /// Name of the kind.
    pub kind: String,
    /// Number of windows with such an attack.
    pub windows: u64,
    /// Number of those called attacks.
    pub found: u64,
}

/// The second model of a calibration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Partner {
    /// Digest of the weights it was made for.
    pub weights_digest: String,
    /// Kind of its scores.
    pub kind: ScoreKind,
    /// The car's scale.
    pub car: CarScale,
}

impl Calibration {
    /// Calibrates on attack-free windows, as the model with these weights, or a classifier and an autoencoder, see them. The threshold is
    /// that of the models on their own car, seen with as little traffic ([`CarWindows::least_score`]), unless these windows contradict it.
    /// Otherwise it is one that at most a share `rule.rate` of these windows exceeds: with fewer than `1 / rule.rate` windows, their highest
    /// deviation.
    ///
    /// # Errors
    /// Fails if there are fewer than [`FEWEST_WINDOWS`] windows or the scores are not finite.
    pub fn new(models: &[(&str, CarWindows<'_>)], rule: Rule, source: &str) -> Result<Self, EvaluateError> {
        let windows: Vec<CarWindows<'_>> = models.iter().map(|(_, windows)| *windows).collect();
        let count = windows.iter().map(|model| model.windows.len()).min().unwrap_or(0);
        if count < FEWEST_WINDOWS {
            return Err(EvaluateError::Input(format!(
                "{source}: {count} attack-free windows are too few to calibrate with; give at least {FEWEST_WINDOWS}"
            )));
        }
        let no_scores = || EvaluateError::Input(format!("{source}: the model gives no finite scores for this traffic"));
        let JointScale { cars, threshold, attacks } = JointScale::of(&windows, rule).ok_or_else(no_scores)?;
        let mut scaled = models.iter().zip(cars).map(|((digest, windows), car)| (*digest, *windows, car));
        let (weights_digest, first, car) = scaled.next().ok_or_else(no_scores)?;
        let partner = scaled.next().map(|(digest, windows, car)| Partner {
            weights_digest: digest.to_owned(),
            kind: windows.kind,
            car,
        });
        Ok(Self {
            format_version: FORMAT_VERSION,
            weights_digest: weights_digest.to_owned(),
            foreign_ids: first.foreign_ids,
            kind: first.kind,
            windows: count as u64,
            seconds: None,
            source: source.to_owned(),
            method: Threshold::FalsePositiveRate(rule.rate).to_string(),
            threshold,
            car,
            partner,
            attacks,
        })
    }

    /// Adds the profiles that the windows were scored with, one for each model.
    pub fn with_profiles(mut self, profiles: &[CarProfile]) -> Self {
        if let Some(first) = profiles.first() {
            self.car = self.car.with_profile(first.clone());
        }
        if let Some(of_partner) = profiles.get(1).or(profiles.first()) {
            self.partner = self.partner.map(|one| Partner { car: one.car.with_profile(of_partner.clone()), ..one });
        }
        self
    }

    /// The car's scales, the classifier's first.
    pub fn cars(&self) -> Vec<&CarScale> {
        std::iter::once(&self.car).chain(self.partner.as_ref().map(|partner| &partner.car)).collect()
    }

    /// The car's scales, the classifier's first.
    pub fn into_cars(self) -> Vec<CarScale> {
        std::iter::once(self.car).chain(self.partner.map(|partner| partner.car)).collect()
    }

    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> Result<(), EvaluateError> {
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::other);
        Ok(text
            .and_then(|text| files::write_atomically(path, &text))
            .map_err(files::failed("write the calibration", path))?)
    }

    /// Reads a calibration file made for the model with these weights, together with an autoencoder with the weights `partner`.
    ///
    /// # Errors
    /// Fails if the file is missing, damaged, of another version, or made for other models.
    pub fn read(
        path: &Path,
        weights_digest: &str,
        foreign_ids: Option<ForeignIds>,
        partner: Option<&str>,
    ) -> Result<Self, EvaluateError> {
        let content = |reason: String| EvaluateError::Content { path: path.to_owned(), reason };
        let again = "recreate it with `kdgat calibrate --model RUN --benign FILE`";
        let text = std::fs::read(path).map_err(|source| content(format!("cannot be read: {source}; {again}")))?;
        let found: Self = versioned(path, &text, FORMAT_VERSION, "calibration", again)?;
        match (&found.partner, partner) {
            (Some(_), None) => {
                return Err(content(
                    "was made for a classifier and an autoencoder together; give both with --model".to_owned(),
                ));
            }
            (None, Some(_)) => {
                return Err(content(
                    "was made for one model alone; `kdgat calibrate` with two --model makes one for both".to_owned(),
                ));
            }
            (Some(made), Some(partner)) if made.weights_digest != partner => {
                return Err(content(format!(
                    "was made together with weights {}, the autoencoder has {}; {again}",
                    short(&made.weights_digest),
                    short(partner)
                )));
            }
            _ => {}
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
        let cars = [Some(&found.car), found.partner.as_ref().map(|partner| &partner.car)];
        let is_damaged = |car: &CarScale| car.profile.as_ref().is_some_and(|profile| !profile.is_whole());
        if cars.into_iter().flatten().any(is_damaged) {
            return Err(content(format!("has a profile with inconsistent dimensions; {again}")));
        }
        if found.car.ids.is_some() != foreign_ids.is_some() || found.car.ids.as_ref().is_some_and(|ids| !ids.is_sound())
        {
            return Err(content(format!("lacks the car's ID list, or its evidence is not a number >= 0; {again}")));
        }
        Ok(found)
    }
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// True if the test folder's name marks traffic of a car that is not in the training data.
pub fn is_unknown_vehicle(folder: &str) -> bool {
    folder.to_ascii_lowercase().contains("unknown_vehicle")
}

/// Positions in the store of the calibration windows of a file: the attack-free windows that begin in the first `seconds` of a
/// run.
///
/// The run is the first sequence of windows without an attack that lasts `seconds`, or the longest if none does. It ends before
/// the first window with an attack; that window and those after it stay in the test.
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

/// Range of a file's graphs to leave out of the test: the calibration windows and those that share a frame with one.
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
        // The frame after a window counts, so the next window shares one even if windows do not overlap.
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
        let path = folder.path().join("car.json");
        let raw: Vec<f32> = (0..100).map(|index| index as f32 / 10.0 - 8.0).collect();
        let windows: Vec<Profiled> = raw.iter().map(|&raw| Profiled { raw, profile: None, unlisted: None }).collect();
        let seen = |windows| CarWindows {
            kind: ScoreKind::AttackProbability,
            foreign_ids: None,
            windows,
            least_score: None,
            attacked: &[],
        };
        let rule = Rule::new(0.05, 100, 100);
        let made = Calibration::new(&[("abc", seen(&windows))], rule, "drive.csv").unwrap();
        let above = windows.iter().filter(|window| made.car.deviations(window) > made.threshold).count();
        assert_eq!(above, 5);
        made.write(&path).unwrap();
        let read = Calibration::read(&path, "abc", None, None).unwrap();
        assert_eq!((read.windows, &read.method, &read.car), (100, &made.method, &made.car));
        let refused = |digest: &str, partner: Option<&str>, message: &str| {
            let error = Calibration::read(&path, digest, None, partner).unwrap_err().to_string();
            assert!(error.contains("car.json") && error.contains(message), "{error}");
        };
        refused("other", None, "was made for weights abc, the model has other");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"format_version\": 1", "\"format_version\": 2")).unwrap();
        refused("abc", None, "is format version 2, this program reads 1");
        std::fs::write(&path, text).unwrap();
        refused("abc", Some("def"), "was made for one model alone");
        assert!(Calibration::new(&[("abc", seen(&windows[..9]))], rule, "drive.csv").is_err());

        let both = [("abc", seen(&windows)), ("def", CarWindows { kind: ScoreKind::Difficulty, ..seen(&windows) })];
        let made = Calibration::new(&both, rule, "drive.csv").unwrap();
        made.write(&path).unwrap();
        assert_eq!(Calibration::read(&path, "abc", None, Some("def")).unwrap(), made);
        refused("abc", None, "give both with --model");
        refused("abc", Some("ghi"), "was made together with weights def, the autoencoder has ghi");
        refused("other", Some("def"), "was made for weights abc");
    }

    /// An attack that lowers an autoencoder's errors is found as well as one that raises them.
    #[test]
    fn an_autoencoder_is_calibrated_on_either_side() {
        let window = |index: u64, shift: f64| {
            let noise = |value: u64| kdgat_base::random::unit(1, kdgat_base::random::Purpose::Step, value, index) - 0.5;
            let profile: Profile = (0..21).map(|value| noise(value) + shift).collect();
            Profiled { raw: (1.0 + shift) as f32, profile: Some(profile), unlisted: None }
        };
        let usual: Vec<Profiled> = (0..200).map(|index| window(index, 0.0)).collect();
        let made = |rate: f64| {
            let (kind, windows) = (ScoreKind::Difficulty, &usual[..]);
            let seen = CarWindows { kind, foreign_ids: None, windows, least_score: None, attacked: &[] };
            Calibration::new(&[("abc", seen)], Rule::new(rate, 100, 100), "drive.csv").unwrap()
        };
        let (made, tenth) = (made(0.001), made(0.1));
        let called = |window: &Profiled| made.car.deviations(window) > made.threshold;
        assert_eq!(usual.iter().filter(|window| called(window)).count(), 0);
        // A tenth of the windows, each measured against the other parts, exceed the threshold: the requested rate.
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
        let path = folder.path().join("car.json");
        made.write(&path).unwrap();
        assert_eq!(
            Calibration::read(&path, "abc", None, None).unwrap(),
            made,
            "nothing is lost on the way through a file"
        );
    }
}
