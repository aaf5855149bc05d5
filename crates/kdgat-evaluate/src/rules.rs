//! Rules as baselines: each counts one thing that attack-free traffic does not have, with a threshold from validation like any model.
//!
//! A detector that cannot beat them has learned nothing that a page of code does not know. [`Rule`](kdgat_graph::profile::rules::Rule)
//! lists them.

use std::cmp::Ordering;
use std::sync::Arc;

use super::EvaluateError;
use super::bootstrap::Bootstrap;
use super::judge::{CalibrateBy, NOT_CALIBRATED, Subject, TestFile};
use super::metrics::{F1, ROC_AUC};
use super::tables::{ModelReport, Report, Row};
use super::text_table::{LINE_WIDTH, Table};
use super::threshold::{self, at_false_positive_rate, for_car};
use kdgat_config::{EvaluationConfig, Threshold};
use kdgat_graph::profile::rules::Rule;
use kdgat_graph::profile::{ProfileLearner, fold_parts};
use kdgat_graph::{CarProfile, FeatureSet, Store, StoreError};

/// Kind of the rules' rows in `metrics.csv`.
pub const KIND: &str = "rule";

/// The prefix of rules' names in tables and files.
const NAME_PREFIX: &str = "rule: ";

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
            gone: Vec::new(),
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
    let (whole, judging) = ProfileLearner::of_parts(&parts, |window| store.try_graph(in_store(window)))?;
    let mut held_out = Vec::with_capacity(windows);
    for (without, part) in judging.iter().zip(parts) {
        held_out.extend(counts(store, without, part.map(in_store))?);
    }
    Ok(Some(CarCounts { all: counts(store, &whole, file.graphs.clone())?, held_out }))
}

fn describe(rule: Rule) -> ModelReport {
    let name = format!("{NAME_PREFIX}{}", rule.name());
    ModelReport {
        group: name.clone(),
        name,
        settings: Vec::new(),
        kind: KIND.to_owned(),
        features: None,
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
        gone: Vec::new(),
    }
}

/// The best model and the best rule in a folder, by one metric.
struct Contest<'a> {
    /// The test folder, and what calibrated it.
    folder: String,
    metric: &'static str,
    model: (&'a ModelReport, f64),
    rule: (&'a ModelReport, f64),
}

impl Contest<'_> {
    /// Compares the model's value with the rule's: `Greater` if the model wins.
    fn outcome(&self) -> Ordering {
        self.model.1.total_cmp(&self.rule.1)
    }

    fn cells(&self) -> Vec<String> {
        let compared = match self.outcome() {
            Ordering::Greater => "above",
            Ordering::Equal => "equal to",
            Ordering::Less => "BELOW",
        };
        let [of_model, of_rule] = [self.model.1, self.rule.1].map(|value| format!("{value:.4}"));
        let rule = self.rule.0.name.trim_start_matches(NAME_PREFIX);
        let cells = [&self.folder, self.metric, &of_model, &self.model.0.name, compared, &of_rule, rule];
        cells.map(str::to_owned).to_vec()
    }
}

/// A table that says for each test folder whether the best model beats the best rule, and a line that names better features where no
/// model does; empty without rules.
pub fn verdict(report: &Report) -> String {
    let contests = contests(report);
    if contests.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["folder", "metric", "", "model", "", "", "rule"]);
    contests.iter().for_each(|contest| table.row(contest.cells()));
    let features = report.feature_sets();
    let is_behind = contests.iter().any(|contest| contest.outcome().is_lt());
    let hint = if is_behind && !features.contains(&FeatureSet::Profile) {
        let features: Vec<String> = features.iter().map(FeatureSet::to_string).collect();
        format!(
            "These models read {} features, which lack most of what rules see; --preset gat,student,profile has it.\n",
            features.join(" and ")
        )
    } else {
        String::new()
    };
    format!("best model against best rule\n\n{}{hint}\n", table.text_within(LINE_WIDTH))
}

/// Best model and best rule in each test folder, by F1 and by ROC AUC.
fn contests(report: &Report) -> Vec<Contest<'_>> {
    let Some(first) = report.models.iter().find(|model| model.kind == KIND) else { return Vec::new() };
    let mut contests = Vec::new();
    for like in first.rows.iter().filter(|row| row.file.is_none()) {
        for (metric, name) in [(F1, "F1"), (ROC_AUC, "ROC AUC")] {
            let [Some(model), Some(rule)] = [false, true].map(|rules| best(report, like, metric, rules)) else {
                continue;
            };
            let folder = match like.calibration.as_str() {
                NOT_CALIBRATED => like.folder.clone(),
                calibration => format!("{}, calibrated on the {calibration}", like.folder),
            };
            contests.push(Contest { folder, metric: name, model, rule });
        }
    }
    contests
}

/// The best rule, or the best model that is none, by a metric in the folder of `like`, and its value.
fn best<'a>(report: &'a Report, like: &Row, metric: usize, rules: bool) -> Option<(&'a ModelReport, f64)> {
    let is_same = |row: &&Row| {
        row.file.is_none() && row.folder == like.folder && row.calibration == like.calibration && row.attacks > 0
    };
    let models = report.models.iter().filter(|model| (model.kind == KIND) == rules);
    let values = models.flat_map(|model| model.rows.iter().filter(is_same).map(move |row| (model, row.values[metric])));
    values.filter(|(_, value)| !value.is_nan()).max_by(|one, other| one.1.total_cmp(&other.1))
}
