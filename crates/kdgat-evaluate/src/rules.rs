//! Rules as baselines: each counts one thing that attack-free traffic does not have, with a threshold from validation like any model.
//!
//! A detector that cannot beat them has learned nothing that a page of code does not know. [`Rule`](kdgat_graph::profile::rules::Rule)
//! lists them.

use std::sync::Arc;

use super::EvaluateError;
use super::bootstrap::Bootstrap;
use super::judge::{CalibrateBy, NOT_CALIBRATED, Subject, TestFile};
use super::tables::{ModelReport, Report, Row};
use super::threshold::{self, at_false_positive_rate, for_car};
use kdgat_config::{EvaluationConfig, Threshold};
use kdgat_graph::profile::rules::Rule;
use kdgat_graph::profile::{ProfileLearner, fold_parts};
use kdgat_graph::{CarProfile, Store, StoreError};

/// Kind of the rules' rows in `metrics.csv`.
pub const KIND: &str = "rule";

/// Counts of all rules for one window.
type Counts = [u32; Rule::ALL.len()];

/// Rows and curves of a rule.
pub struct Judged {
    /// Description and rows of the rule.
    pub report: ModelReport,
    /// Scores and thresholds that the rows were made from.
    pub subject: Subject,
}

/// Judges all rules on the test files of a store of the profile set. Thresholds come from the `validation` graphs, those of calibrated
/// cars from their calibration windows.
///
/// # Errors
/// Fails if a graph cannot be read, or validation has no attack-free window.
pub fn judge(
    store: &Arc<Store>,
    files: &[TestFile],
    validation: &[u64],
    method: Threshold,
    by: Option<&CalibrateBy>,
    bootstrap: &Bootstrap,
) -> Result<Vec<Judged>, EvaluateError> {
    let profile = store.profile().ok_or(StoreError::NoProfile)?;
    let method = match method {
        Threshold::Score(_) => EvaluationConfig::default().threshold,
        method => method,
    };
    let labels = validation.iter().map(|&graph| Ok(store.try_graph(graph)?.attack));
    let labels = labels.collect::<Result<Vec<bool>, EvaluateError>>()?;
    let on_validation = counts(store, profile, validation.iter().copied())?;
    let of_files = files.iter().map(|file| counts(store, profile, file.graphs.clone()));
    let of_files = of_files.collect::<Result<Vec<_>, _>>()?;
    let of_cars = files.iter().map(|file| of_car(store, file)).collect::<Result<Vec<_>, _>>()?;
    let of_rule = |(index, rule): (usize, &Rule)| {
        let scores = |counts: &[Counts]| counts.iter().map(|counts| f64::from(counts[index])).collect::<Vec<f64>>();
        let unusable = |reason| EvaluateError::Input(format!("rule {}: {reason} in the validation data", rule.name()));
        let chosen = threshold::choose(method, &scores(&on_validation), &labels).map_err(unusable)?;
        let calibrated = |car: &Option<CarCounts>| {
            let CarCounts { all, held_out } = car.as_ref()?;
            let (held_out, rate) = (scores(held_out), by?.rule.rate);
            // The lower one, so that no rule is worse off than with a threshold from its windows alone.
            let own = at_false_positive_rate(held_out.clone(), rate)?;
            Some((scores(all), for_car(Some(chosen), held_out, rate)?.min(own)))
        };
        let subject = Subject {
            scores: of_files.iter().map(|counts| scores(counts)).collect(),
            thresholds: vec![(method.to_string(), chosen)],
            calibrated: of_cars.iter().map(calibrated).collect(),
        };
        let report = ModelReport { rows: subject.judge(files, by, bootstrap), ..describe(*rule) };
        Ok(Judged { report, subject })
    };
    Rule::ALL.iter().enumerate().map(of_rule).collect()
}

fn counts(
    store: &Store,
    profile: &CarProfile,
    graphs: impl Iterator<Item = u64>,
) -> Result<Vec<Counts>, EvaluateError> {
    graphs.map(|graph| Ok(profile.rule_counts(&store.try_graph(graph)?))).collect()
}

/// Counts for a file that is calibrated.
struct CarCounts {
    /// All windows, with the profile of the calibration windows.
    all: Vec<Counts>,
    /// The calibration windows, with profiles that were learned without them.
    held_out: Vec<Counts>,
}

/// Counts of a calibrated file's windows with the profile of its calibration windows, and of these windows with profiles that were learned
/// without them.
fn of_car(store: &Arc<Store>, file: &TestFile) -> Result<Option<CarCounts>, EvaluateError> {
    if file.calibration.is_empty() {
        return Ok(None);
    }
    let in_store = |window: usize| file.calibration.start + window as u64;
    let windows = (file.calibration.end - file.calibration.start) as usize;
    let parts = fold_parts(windows);
    let mut learned = Vec::with_capacity(parts.len());
    for part in &parts {
        let mut learner = ProfileLearner::default();
        for window in part.clone() {
            learner.add(&store.try_graph(in_store(window))?);
        }
        learned.push(learner);
    }
    let whole = ProfileLearner::merged(&learned, None).profile();
    let mut held_out = Vec::with_capacity(windows);
    for (number, part) in parts.into_iter().enumerate() {
        let without = ProfileLearner::judging(&learned, number).profile();
        held_out.extend(counts(store, &without, part.map(in_store))?);
    }
    Ok(Some(CarCounts { all: counts(store, &whole, file.graphs.clone())?, held_out }))
}

fn describe(rule: Rule) -> ModelReport {
    let name = format!("rule: {}", rule.name());
    ModelReport {
        group: name.clone(),
        name,
        settings: Vec::new(),
        kind: KIND.to_owned(),
        size: String::new(),
        distilled: false,
        seed: None,
        paths: Vec::new(),
        weights_digests: Vec::new(),
        parameters: 0,
        file_bytes: 0,
        speed: None,
        validation_roc_auc: f64::NAN,
        rows: Vec::new(),
    }
}

/// Positions of F1 and ROC AUC among the metrics.
const F1: usize = 4;
const ROC_AUC: usize = 7;

/// A line for each test folder that says whether the best model beats the best rule; empty without rules.
pub fn verdict(report: &Report) -> String {
    let mut text = String::new();
    let is_rule = |model: &&ModelReport| model.kind == KIND;
    let Some(first) = report.models.iter().find(is_rule) else { return text };
    for like in first.rows.iter().filter(|row| row.file.is_none()) {
        let same = |row: &&Row| {
            row.file.is_none() && row.folder == like.folder && row.calibration == like.calibration && row.attacks > 0
        };
        let best = |rules: bool, metric: usize| {
            let models = report.models.iter().filter(|model| (model.kind == KIND) == rules);
            let rows = models.flat_map(|model| model.rows.iter().filter(same).map(move |row| (model, row)));
            let known = rows.filter(|(_, row)| !row.values[metric].is_nan());
            known.max_by(|one, other| one.1.values[metric].total_cmp(&other.1.values[metric]))
        };
        let compare = |metric: usize, name: &str| {
            let ((rule, by_rule), (model, by_model)) = (best(true, metric)?, best(false, metric)?);
            let (by_rule, by_model) = (by_rule.values[metric], by_model.values[metric]);
            let words = match by_model.total_cmp(&by_rule) {
                std::cmp::Ordering::Greater => "above",
                std::cmp::Ordering::Equal => "equal to",
                std::cmp::Ordering::Less => "BELOW",
            };
            Some(format!("{name} {by_model:.4} ({}) {words} {by_rule:.4} ({})", model.name, rule.name))
        };
        let compared: Vec<String> =
            [(F1, "F1"), (ROC_AUC, "ROC AUC")].into_iter().filter_map(|(metric, name)| compare(metric, name)).collect();
        if !compared.is_empty() {
            let calibrated = match like.calibration.as_str() {
                NOT_CALIBRATED => String::new(),
                calibration => format!(", calibrated on the {calibration}"),
            };
            text += &format!("  {}{calibrated}: {}\n", like.folder, compared.join("; "));
        }
    }
    if text.is_empty() { text } else { format!("best model against best rule\n{text}\n") }
}
