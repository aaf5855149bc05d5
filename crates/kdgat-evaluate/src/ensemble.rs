//! Models that judge windows together: a classifier and an autoencoder, or one model alone.
//!
//! The score of two models is the mean of their scores, each standardised on the scale of its attack-free validation windows. On a
//! calibrated car it is the mean of their deviations on the car's own scales. Evaluation, calibration and detection compute both here.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::attacked::AttackedWindows;
use super::calibration::{AttacksFound, Rule};
use super::scores::Profiled;
use super::threshold::{at_false_positive_rate, between};
use super::{CarScale, EvaluateError, Scale, ScoreKind, TrainedModel, records};
use kdgat_base::shell;
use kdgat_can::synthetic::SyntheticKind;
use kdgat_config::{Setting, Threshold};
use kdgat_graph::ForeignIds;
use kdgat_nn::Architecture;

/// Mean of one value of each model: their standardised scores, or their deviations.
pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let models = values.len() as f64;
    values.sum::<f64>() / models
}

/// A car's attack-free windows as one model sees them.
#[derive(Debug, Clone, Copy)]
pub struct CarWindows<'a> {
    /// Kind of the scores.
    pub kind: ScoreKind,
    /// Foreign-ID shares of the training data, for a classifier with a list of known IDs.
    pub foreign_ids: Option<ForeignIds>,
    /// The windows in their order, with their scores.
    pub windows: &'a [Profiled],
    /// The least score that is called an attack on another car: see
    /// [`RecordedThreshold::short_profile`](super::records::RecordedThreshold::short_profile).
    pub least_score: Option<f64>,
    /// The windows with synthetic attacks, in the same order for each model; empty for models that keep no frames.
    pub attacked: &'a [AttackedWindows],
}

/// A car's own scale for each of the models that judge it, and the threshold on the mean of their deviations.
#[derive(Debug, Clone, PartialEq)]
pub struct JointScale {
    /// One scale for each model, the classifier's first.
    pub cars: Vec<CarScale>,
    /// Windows with a larger mean of deviations are called attacks.
    pub threshold: f64,
    /// Synthetic attacks found at this threshold, by kind.
    pub attacks: Vec<AttacksFound>,
}

impl JointScale {
    /// Fits the scales to the same attack-free windows as each model sees them; `None` without windows.
    ///
    /// The threshold is that of the models' least scores, if all have one and these windows do not contradict it
    /// ([`for_car`](super::threshold::for_car)). Any other one is exceeded by at most a share [`Rule::rate`] of these windows, and lies between
    /// them and the windows with synthetic attacks where these differ from them ([`between`]).
    pub fn of(models: &[CarWindows<'_>], rule: Rule) -> Option<Self> {
        let fit = |model: &CarWindows<'_>| CarScale::of(model.kind, model.windows, model.foreign_ids, rule);
        let (cars, usual): (Vec<_>, Vec<_>) = models.iter().map(fit).collect::<Option<Vec<_>>>()?.into_iter().unzip();
        let windows = usual.iter().map(Vec::len).min()?;
        let of_window = |window: usize| mean(usual.iter().map(|usual| usual[window]));
        let least = models.iter().zip(&cars).map(|(model, car)| Some(car.deviations_of_score(model.least_score?)));
        let least = least.collect::<Option<Vec<f64>>>().map(|least| mean(least.into_iter()));
        let benign: Vec<f64> = (0..windows).map(of_window).collect();
        let attacked = attacked_deviations(models, &cars);
        let usual = at_false_positive_rate(benign.clone(), rule.rate)?;
        let telling = attacked.iter().filter(|(_, scores)| 2 * above(scores, usual) >= scores.len());
        let telling: Vec<f64> = telling.flat_map(|(_, scores)| scores.iter().copied()).collect();
        let threshold = between(least, benign, telling, rule.rate)?;
        let found = |(kind, scores): &(SyntheticKind, Vec<f64>)| AttacksFound {
            kind: kind.to_string(),
            windows: scores.len() as u64,
            found: above(scores, threshold) as u64,
        };
        Some(Self { cars, threshold, attacks: attacked.iter().map(found).collect() })
    }
}

fn above(scores: &[f64], threshold: f64) -> usize {
    scores.iter().filter(|score| **score > threshold).count()
}

/// The models' mean deviations of the windows with synthetic attacks, by kind; kinds without any are left out.
fn attacked_deviations(models: &[CarWindows<'_>], cars: &[CarScale]) -> Vec<(SyntheticKind, Vec<f64>)> {
    let Some(first) = models.first() else { return Vec::new() };
    let of_kind = |(place, of_first): (usize, &AttackedWindows)| {
        let of_models: Option<Vec<&AttackedWindows>> = models.iter().map(|model| model.attacked.get(place)).collect();
        let of_models = of_models.filter(|all| all.iter().all(|one| one.windows.len() == of_first.windows.len()))?;
        let of_window = |window: usize| {
            mean(cars.iter().zip(&of_models).map(|(car, of_model)| car.deviations(&of_model.windows[window])))
        };
        let deviations: Vec<f64> = (0..of_first.windows.len()).map(of_window).collect();
        (!deviations.is_empty()).then_some((of_first.kind, deviations))
    };
    first.attacked.iter().enumerate().filter_map(of_kind).collect()
}

/// The threshold of two models together, recorded in the classifier's folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnsembleThreshold {
    /// `fpr:0.001` or `youden`.
    pub method: String,
    /// Windows with a higher score are called attacks.
    pub value: f64,
    /// Digests of all that the models' scores depend on, the classifier's first.
    pub scores_digests: Vec<String>,
    /// Scale on which each model's scores are standardised.
    pub scales: Vec<Scale>,
    /// Digest of the store whose validation graphs were scored.
    pub data_digest: String,
    /// Name of that store's dataset.
    pub dataset: String,
    /// Number of validation graphs without an attack.
    pub benign_graphs: u64,
    /// Number of validation graphs with an attack.
    pub attack_graphs: u64,
}

/// Models that judge windows together, the classifier first.
#[derive(Debug)]
pub struct Ensemble {
    first: TrainedModel,
    partner: Option<TrainedModel>,
}

impl Ensemble {
    /// Reads the models at these paths: one, or a classifier and an autoencoder in any order.
    ///
    /// # Errors
    /// Names the models that do not belong together, and the property in which they differ.
    pub fn read(paths: &[PathBuf]) -> Result<Self, EvaluateError> {
        let read = |path: &PathBuf| TrainedModel::read(path);
        match paths {
            [only] => Ok(Self { first: read(only)?, partner: None }),
            [one, other] => {
                let (one, other) = (read(one)?, read(other)?);
                let (first, second) = if is_classifier(&one) { (one, other) } else { (other, one) };
                expect_pair(&first, &second)?;
                Ok(Self { first, partner: Some(second) })
            }
            paths => {
                let named = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
                Err(EvaluateError::Input(format!(
                    "{} models are named ({named}): expected one model, or a classifier and an autoencoder",
                    paths.len()
                )))
            }
        }
    }

    /// The models, the classifier first.
    pub fn models(&self) -> Vec<&TrainedModel> {
        std::iter::once(&self.first).chain(&self.partner).collect()
    }

    /// The models, the classifier first.
    pub fn into_models(self) -> Vec<TrainedModel> {
        std::iter::once(self.first).chain(self.partner).collect()
    }

    /// The only model, or the classifier.
    pub fn first(&self) -> &TrainedModel {
        &self.first
    }

    /// The autoencoder that judges together with a classifier.
    pub fn partner(&self) -> Option<&TrainedModel> {
        self.partner.as_ref()
    }

    /// Names of the models, as `kdgat evaluate` prints them.
    pub fn name(&self) -> String {
        self.models().iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(" + ")
    }

    /// The folder with its thresholds and calibrations: the only model's, or the classifier's.
    pub fn folder(&self) -> &Path {
        &self.first.folder
    }

    /// The command that evaluates it, for messages.
    pub fn evaluate_command(&self) -> String {
        let folders: Vec<String> = self.models().iter().map(|model| shell::quoted_path(&model.folder)).collect();
        format!("kdgat evaluate {}", folders.join(" "))
    }

    /// Frames in a window.
    ///
    /// # Errors
    /// Fails if a model trained elsewhere does not state its window.
    pub fn window(&self) -> Result<usize, EvaluateError> {
        self.first.window()
    }

    /// Frames from one window to the next in the training data.
    ///
    /// # Errors
    /// Fails if the models were trained with different strides.
    pub fn stride(&self) -> Result<usize, EvaluateError> {
        let window = self.window()?;
        let of = |model: &TrainedModel| model.stride.unwrap_or(window);
        match self.partner.as_ref().filter(|model| of(model) != of(&self.first)) {
            None => Ok(of(&self.first)),
            Some(other) => Err(EvaluateError::Input(format!(
                "{} was trained with --stride {}, {} with --stride {}; two models together need the same stride",
                self.first.name,
                of(&self.first),
                other.name,
                of(other)
            ))),
        }
    }

    /// Scale of each model's scores on its own validation windows, on which the scores of two models are standardised.
    ///
    /// # Errors
    /// Fails if a model has no recorded scale.
    pub fn scales(&self) -> Result<Vec<Scale>, EvaluateError> {
        if let Some(recorded) = self.deciding()? {
            return Ok(recorded.scales);
        }
        let of_model = |model: &&TrainedModel| {
            let recorded = records::deciding(model)?.map(|recorded| recorded.scale);
            recorded.ok_or_else(|| {
                EvaluateError::Input(format!(
                    "the usual scores of {} are not recorded, so two models cannot be compared; `{}` records them",
                    model.name,
                    self.evaluate_command()
                ))
            })
        };
        self.models().iter().map(of_model).collect()
    }

    /// All thresholds recorded for the two models together, with the last used at the end.
    ///
    /// # Errors
    /// Fails if the classifier's file of thresholds is damaged.
    pub fn thresholds(&self) -> Result<Vec<EnsembleThreshold>, EvaluateError> {
        let digests: Vec<String> = self.models().into_iter().map(TrainedModel::scores_digest).collect();
        let mut found = records::read_file(&self.first)?.ensembles;
        found.retain(|recorded| recorded.scores_digests == digests && recorded.scales.len() == digests.len());
        Ok(found)
    }

    /// The threshold recorded for a rule, preferably on the models' own data.
    ///
    /// # Errors
    /// Fails if the classifier's file of thresholds is damaged.
    pub fn recorded_by(&self, rule: Threshold) -> Result<Option<EnsembleThreshold>, EvaluateError> {
        let mut found = self.thresholds()?;
        found.retain(|recorded| Threshold::parse(&recorded.method) == Some(rule));
        Ok(found.into_iter().max_by_key(|recorded| self.rank(recorded)))
    }

    /// The threshold used when the user gives none, by the order of [`records::deciding`].
    ///
    /// # Errors
    /// Fails if the classifier's file of thresholds is damaged.
    pub fn deciding(&self) -> Result<Option<EnsembleThreshold>, EvaluateError> {
        Ok(self.thresholds()?.into_iter().max_by_key(|recorded| self.rank(recorded)))
    }

    fn rank(&self, recorded: &EnsembleThreshold) -> (bool, bool, bool) {
        let is_own = |model: &&TrainedModel| model.description.dataset.digest == recorded.data_digest;
        records::rank(&recorded.method, self.models().iter().all(is_own))
    }
}

/// Records a threshold of two models beside the classifier's own, replacing one of the same models, method and data.
///
/// # Errors
/// Fails if the classifier's file of thresholds is damaged or cannot be written.
pub fn record(classifier: &TrainedModel, threshold: EnsembleThreshold) -> Result<(), EvaluateError> {
    let mut file = records::read_file(classifier)?;
    if file.ensembles.last() == Some(&threshold) {
        return Ok(());
    }
    let own = classifier.scores_digest();
    file.ensembles.retain(|other| {
        let is_replaced = (&other.scores_digests, &other.method, &other.data_digest)
            == (&threshold.scores_digests, &threshold.method, &threshold.data_digest);
        // Weights that were trained further have other thresholds.
        !is_replaced && other.scores_digests.first() == Some(&own)
    });
    file.ensembles.push(threshold);
    records::write_file(classifier, &file)
}

fn is_classifier(model: &TrainedModel) -> bool {
    matches!(model.description.architecture, Architecture::Gat(_))
}

/// Refuses two models that `kdgat evaluate` would not judge together.
fn expect_pair(first: &TrainedModel, second: &TrainedModel) -> Result<(), EvaluateError> {
    let refused = |reason: String| {
        Err(EvaluateError::Input(format!("{} and {} cannot judge together: {reason}", first.name, second.name)))
    };
    let kind = |model: &TrainedModel| model.description.architecture.model_name();
    let is_autoencoder = matches!(second.description.architecture, Architecture::Vgae(_));
    if !(is_classifier(first) && is_autoencoder) {
        return refused(format!("expected a gat and a vgae, got a {} and a {}", kind(first), kind(second)));
    }
    let of = |model: &TrainedModel| {
        let description = &model.description;
        let features = description.architecture.input().features().to_string();
        [("size", description.size.clone()), ("window", description.window.to_string()), ("features", features)]
    };
    match of(first).into_iter().zip(of(second)).find(|(one, other)| one != other) {
        Some(((name, one), (_, other))) => refused(format!("their {name} differs ({one} and {other})")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(values: impl Iterator<Item = f32>) -> Vec<Profiled> {
        values.map(|raw| Profiled { raw, profile: None, unlisted: None }).collect()
    }

    fn seen(windows: &[Profiled], least_score: Option<f64>) -> CarWindows<'_> {
        CarWindows { kind: ScoreKind::AttackProbability, foreign_ids: None, windows, least_score, attacked: &[] }
    }

    #[test]
    fn a_mean_of_one_is_the_value_itself() {
        for value in [0.1, -7.3e-300, 1.0 / 3.0, f64::MAX] {
            assert_eq!(mean([value].into_iter()), value);
        }
        assert_eq!(mean([1.0, 2.0].into_iter()), 1.5);
    }

    /// The law of the threshold: at most the requested share of the windows that it was chosen on exceeds it.
    #[test]
    fn the_threshold_of_two_models_has_the_rate_on_their_mean() {
        let noise = |model: u64, window: u64| {
            (10.0 * kdgat_base::random::unit(model, kdgat_base::random::Purpose::Step, window, 0)) as f32
        };
        let (one, two) =
            (windows((0..500).map(|window| noise(1, window))), windows((0..500).map(|window| 3.0 * noise(2, window))));
        let rule = Rule::new(0.02, 100, 100);
        let joint = JointScale::of(&[seen(&one, None), seen(&two, None)], rule).unwrap();
        let deviations = |window: usize| {
            mean(joint.cars.iter().zip([&one[window], &two[window]]).map(|(car, window)| car.deviations(window)))
        };
        assert_eq!((0..500).filter(|&window| deviations(window) > joint.threshold).count(), 10);
        let alone = JointScale::of(&[seen(&one, None)], rule).unwrap();
        let expected = CarScale::of(ScoreKind::AttackProbability, &one, None, rule).unwrap();
        assert_eq!(alone.cars[0], expected.0);
        assert_eq!(Some(alone.threshold), at_false_positive_rate(expected.1, 0.02));
        assert_eq!(JointScale::of(&[seen(&one, None), seen(&[], None)], rule), None);
    }

    #[test]
    fn attacks_that_are_not_found_are_counted() {
        let usual = windows((0..100).map(|window| window as f32 / 100.0 - 5.0));
        let attacked = |kind, raw: f32| AttackedWindows { kind, windows: windows((0..20).map(|_| raw)) };
        let attacked = [attacked(SyntheticKind::Injection, 9.0), attacked(SyntheticKind::Masquerade, -4.5)];
        let rule = Rule::new(0.01, 100, 100);
        let joint = |least_score| {
            let windows = CarWindows { attacked: &attacked, ..seen(&usual, least_score) };
            JointScale::of(&[windows], rule).unwrap()
        };
        for least_score in [Some(0.5), None] {
            let found: Vec<(String, u64)> =
                joint(least_score).attacks.into_iter().map(|kind| (kind.kind, kind.found)).collect();
            assert_eq!(found, [("injection".to_owned(), 20), ("masquerade".to_owned(), 0)]);
        }
        // Without a threshold of its own, half-way between the usual windows and the attacks that differ from them.
        let (placed, car) = (joint(None).threshold, &joint(None).cars[0]);
        let expected = 0.5 * (car.deviations(&attacked[0].windows[0]) + car.deviations(&usual[98]));
        assert!((placed - expected).abs() < 1e-6, "{placed} {expected}");
    }

    #[test]
    fn a_least_score_counts_where_all_models_have_one() {
        let usual = windows((0..100).map(|window| window as f32 / 100.0 - 9.0));
        let rule = Rule::new(0.01, 100, 100);
        let threshold = |least: [Option<f64>; 2]| {
            JointScale::of(&[seen(&usual, least[0]), seen(&usual, least[1])], rule).unwrap().threshold
        };
        let plain = threshold([None, None]);
        assert_eq!(threshold([Some(0.9), None]), plain);
        let car = &JointScale::of(&[seen(&usual, None)], rule).unwrap().cars[0];
        let expected = 0.5 * (car.deviations_of_score(0.9) + car.deviations_of_score(0.6));
        assert!((threshold([Some(0.9), Some(0.6)]) - expected).abs() < 1e-9 && expected > plain);
        assert_eq!(threshold([Some(1e-9), Some(1e-9)]), plain, "a lower one changes nothing");
    }
}
