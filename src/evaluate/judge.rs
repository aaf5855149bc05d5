//! Evaluates one model, or the mean of two, on every test folder and file.
//!
//! Traffic of an unknown car is evaluated twice: uncalibrated, and calibrated on the first seconds of its attack-free traffic.
//! Those seconds, and the windows that share a frame with them, are left out of both tests, so both rows cover the same graphs.

use std::ops::Range;

use super::bootstrap::Bootstrap;
use super::calibration::Rule;
use super::curves::Curve;
use super::metrics::{Confusion, Decision, Sample};
use super::ranking::Ranking;
use super::scores::Profiled;
use super::tables::Row;
use super::threshold::at_false_positive_rate;
use super::{CarScale, EvaluateError, Scale, ScoreKind};
use crate::graph::ForeignIds;

/// A test file's graphs.
#[derive(Debug, Clone, PartialEq)]
pub struct TestFile {
    pub folder: String,
    pub name: String,
    /// Range of positions in the store.
    pub graphs: Range<u64>,
    /// For each graph, true if it contains an attack.
    pub labels: Vec<bool>,
    /// Calibration graphs, counted from the file's first; empty for known cars.
    pub calibration: Range<usize>,
    /// Graphs left out of the test: those that calibrate, or share a frame with one that does.
    pub left_out: Range<usize>,
}

/// Pairs of method and threshold that turn a subject's scores into decisions.
pub type Thresholds = Vec<(String, f64)>;

/// A scorer under evaluation: a model, or the mean of two.
#[derive(Debug)]
pub struct Subject {
    /// Scores of each file's graphs.
    pub scores: Vec<Vec<f64>>,
    /// The first is the recorded one.
    pub thresholds: Thresholds,
    /// For each calibrated file: scores on the car's own scale, and the threshold on it.
    pub calibrated: Vec<Option<(Vec<f64>, f64)>>,
}

/// The raw scores of one model.
#[derive(Debug)]
pub struct ModelScores {
    pub kind: ScoreKind,
    pub validation: Vec<f32>,
    /// For each validation graph, true if the model was not trained on any of its frames.
    pub held_out: Vec<bool>,
    /// Raw scores of each test file's graphs.
    pub test: Vec<Vec<f32>>,
    /// Scale of benign validation graphs.
    pub scale: Scale,
    /// Profiled graphs of each unknown car's file; empty for the other files.
    pub unknown: Vec<Vec<Profiled>>,
    /// Foreign-ID shares, for a classifier with a list of known IDs.
    pub foreign_ids: Option<ForeignIds>,
    /// The least score that is called an attack on another car: see
    /// [`RecordedThreshold::short_profile`](super::records::RecordedThreshold::short_profile).
    pub least_score: Option<f64>,
}

/// Calibration of unknown cars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CalibrateBy {
    pub seconds: f64,
    pub rule: Rule,
}

impl Subject {
    /// One model with its recorded threshold, and with 0.5, too, if it is a classifier.
    pub fn single(model: &ModelScores, recorded: (String, f64), files: &[TestFile], by: Option<CalibrateBy>) -> Self {
        let kind = model.kind;
        let mut thresholds = vec![recorded];
        if kind == ScoreKind::AttackProbability && thresholds[0].0 != "0.5" {
            thresholds.push(("0.5".to_owned(), 0.5));
        }
        let scores = model.test.iter().map(|raw| raw.iter().map(|&raw| kind.score(raw)).collect()).collect();
        Self { scores, thresholds, calibrated: calibrated(&[model], files, by) }
    }

    /// The mean of the standardised scores of a classifier and an autoencoder; `choose` picks the threshold from the validation
    /// scores.
    pub fn mean(
        models: [&ModelScores; 2],
        choose: impl FnOnce(&[f64]) -> Result<(String, f64), EvaluateError>,
        files: &[TestFile],
        by: Option<CalibrateBy>,
    ) -> Result<Self, EvaluateError> {
        let scales = models.map(|model| model.scale);
        let validation = mean_of(&models, &scales, |model| &model.validation);
        let scores = (0..files.len()).map(|file| mean_of(&models, &scales, |model| &model.test[file])).collect();
        Ok(Self { scores, thresholds: vec![choose(&validation)?], calibrated: calibrated(&models, files, by) })
    }

    /// Rows for each folder and each file, at each threshold, before and after calibration.
    pub fn judge(&self, files: &[TestFile], by: Option<CalibrateBy>, bootstrap: &Bootstrap) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut begin = 0;
        for of_folder in files.chunk_by(|a, b| a.folder == b.folder) {
            let range = begin..begin + of_folder.len();
            begin = range.end;
            rows.extend(self.rows(files, range.clone(), None, by, bootstrap));
            for file in range {
                rows.extend(self.rows(files, file..file + 1, Some(&files[file].name), by, bootstrap));
            }
        }
        rows
    }

    /// The curve of each folder, before and after calibration.
    pub fn curves(&self, files: &[TestFile], by: Option<CalibrateBy>) -> Vec<Curve> {
        let mut curves = Vec::new();
        let mut begin = 0;
        for of_folder in files.chunk_by(|a, b| a.folder == b.folder) {
            let range = begin..begin + of_folder.len();
            begin = range.end;
            let labels: Vec<bool> = range.clone().flat_map(|file| tested(&files[file], &files[file].labels)).collect();
            let has_calibrated = range.clone().any(|file| self.calibrated[file].is_some());
            for calibrated in [false, true].into_iter().filter(|calibrated| !calibrated || has_calibrated) {
                let scores: Vec<f64> = range.clone().flat_map(|file| self.tested(files, file, calibrated)).collect();
                let calibration = if calibrated { name_of(by) } else { NOT_CALIBRATED.to_owned() };
                let points = match calibrated && self.is_mixed(files, range.clone()) {
                    true => Vec::new(),
                    false => Ranking::new(&scores, &labels).curve(),
                };
                curves.push(Curve { folder: of_folder[0].folder.clone(), calibration, points });
            }
        }
        curves
    }

    /// Results for the tested graphs of one file, before and after calibration: (calibration, scores, decision at the recorded
    /// threshold).
    pub fn judged(
        &self,
        files: &[TestFile],
        file: usize,
        by: Option<CalibrateBy>,
    ) -> Vec<(String, Vec<f64>, Decision)> {
        let mut variants = vec![(NOT_CALIBRATED.to_owned(), self.tested(files, file, false))];
        if self.calibrated[file].is_some() {
            variants.push((name_of(by), self.tested(files, file, true)));
        }
        let decided = |(name, calibrated): (String, bool), scores: Vec<f64>| {
            let decision = self.decisions(files, file..file + 1, calibrated).swap_remove(0);
            (name, scores, decision)
        };
        variants.into_iter().enumerate().map(|(index, (name, scores))| decided((name, index == 1), scores)).collect()
    }

    fn rows(
        &self,
        files: &[TestFile],
        range: Range<usize>,
        file: Option<&str>,
        by: Option<CalibrateBy>,
        bootstrap: &Bootstrap,
    ) -> Vec<Row> {
        let mut rows = Vec::new();
        let labels: Vec<bool> = range.clone().flat_map(|file| tested(&files[file], &files[file].labels)).collect();
        let has_calibrated = range.clone().any(|file| self.calibrated[file].is_some());
        for calibrated in [false, true].into_iter().filter(|calibrated| !calibrated || has_calibrated) {
            let scores: Vec<f64> = range.clone().flat_map(|file| self.tested(files, file, calibrated)).collect();
            let decisions = self.decisions(files, range.clone(), calibrated);
            let sample = match calibrated && self.is_mixed(files, range.clone()) {
                true => Sample::unranked(&labels, &decisions),
                false => Sample::new(&scores, &labels, &decisions),
            };
            let intervals = bootstrap.intervals(&sample, decisions.len());
            let confusions: Vec<Confusion> = sample.confusions();
            let judged = sample.metrics().into_iter().zip(intervals).zip(confusions).zip(&decisions);
            rows.extend(judged.map(|(((values, intervals), confusion), decision)| Row {
                folder: files[range.start].folder.clone(),
                file: file.map(str::to_owned),
                calibration: if calibrated { name_of(by) } else { NOT_CALIBRATED.to_owned() },
                threshold_method: decision.method.clone(),
                threshold: decision.threshold,
                graphs: labels.len() as u64,
                attacks: labels.iter().filter(|attack| **attack).count() as u64,
                confusion,
                values,
                intervals,
            }));
        }
        rows
    }

    /// True if some files have scores on a car's own scale and others raw ones: these have no common order.
    fn is_mixed(&self, files: &[TestFile], range: Range<usize>) -> bool {
        let has_tested = |file: &usize| files[*file].left_out.len() < files[*file].labels.len();
        let mut calibrated = range.filter(has_tested).map(|file| self.calibrated[file].is_some());
        let first = calibrated.next();
        calibrated.any(|other| Some(other) != first)
    }

    /// Scores of the tested graphs of a file. A file without a calibration (its car is known, or has too little attack-free
    /// traffic) keeps its raw scores.
    fn tested(&self, files: &[TestFile], file: usize, calibrated: bool) -> Vec<f64> {
        let scores = match &self.calibrated[file] {
            Some((scores, _)) if calibrated => scores,
            _ => &self.scores[file],
        };
        tested(&files[file], scores).collect()
    }

    fn decisions(&self, files: &[TestFile], range: Range<usize>, calibrated: bool) -> Vec<Decision> {
        let uncalibrated = |method: &str, threshold: f64, file: usize| {
            Decision::above(method, threshold, &self.tested(files, file, false)).called
        };
        if !calibrated {
            let decision = |(method, threshold): &(String, f64)| Decision {
                method: method.clone(),
                threshold: Some(*threshold),
                called: range.clone().flat_map(|file| uncalibrated(method, *threshold, file)).collect(),
            };
            return self.thresholds.iter().map(decision).collect();
        }
        // Each car has its own threshold, so a folder of several files has no common one.
        let (method, recorded) = &self.thresholds[0];
        let called = |file: usize| match &self.calibrated[file] {
            Some((_, threshold)) => Decision::above(method, *threshold, &self.tested(files, file, true)).called,
            None => uncalibrated(method, *recorded, file),
        };
        let threshold =
            (range.len() == 1).then(|| self.calibrated[range.start].as_ref().map(|(_, threshold)| *threshold));
        let called = range.flat_map(called).collect();
        vec![Decision { method: method.clone(), threshold: threshold.flatten(), called }]
    }
}

/// Name of the rows without calibration.
pub const NOT_CALIBRATED: &str = "none";

fn name_of(by: Option<CalibrateBy>) -> String {
    by.map_or_else(|| NOT_CALIBRATED.to_owned(), |by| format!("first {} s", by.seconds))
}

/// Values of the tested graphs.
fn tested<'a, T: Copy>(file: &'a TestFile, values: &'a [T]) -> impl Iterator<Item = T> + 'a {
    let tested = |(index, value): (usize, &T)| (!file.left_out.contains(&index)).then_some(*value);
    values.iter().enumerate().filter_map(tested)
}

/// Mean of the models' scores, each standardised on its own scale.
fn mean_of(models: &[&ModelScores], scales: &[Scale], raw: impl Fn(&ModelScores) -> &Vec<f32>) -> Vec<f64> {
    let count = raw(models[0]).len();
    let one = |graph: usize| {
        let scores = models.iter().zip(scales).map(|(model, scale)| scale.standardise(model.kind, raw(model)[graph]));
        scores.sum::<f64>() / models.len() as f64
    };
    (0..count).map(one).collect()
}

/// For each unknown car's file: scores on its own scale, and the threshold, both from its calibration windows.
fn calibrated(models: &[&ModelScores], files: &[TestFile], by: Option<CalibrateBy>) -> Vec<Option<(Vec<f64>, f64)>> {
    let of_file = |(index, file): (usize, &TestFile)| {
        let graphs = models.iter().map(|model| model.unknown[index].as_slice());
        let windows = |graphs: &[Profiled]| graphs.get(file.calibration.clone()).map(<[_]>::to_vec);
        let cars = models.iter().zip(graphs.clone());
        let cars = cars
            .map(|(model, graphs)| CarScale::of(model.kind, &windows(graphs)?, model.foreign_ids, by?.rule))
            .collect::<Option<Vec<_>>>()?;
        let of_graph = |graph: usize| {
            let deviations = |((car, _), graphs): (&(CarScale, _), &[Profiled])| car.deviations(&graphs[graph]);
            cars.iter().zip(graphs.clone()).map(deviations).sum::<f64>() / models.len() as f64
        };
        let usual = |window: usize| cars.iter().map(|(_, usual)| usual[window]).sum::<f64>() / models.len() as f64;
        let scores = (0..file.labels.len()).map(of_graph).collect();
        let threshold = at_false_positive_rate((0..file.calibration.len()).map(usual).collect(), by?.rule.rate)?;
        let least = models.iter().zip(&cars).map(|(model, (car, _))| Some(car.deviations_of_score(model.least_score?)));
        let least = least.sum::<Option<f64>>().map(|sum| sum / models.len() as f64);
        Some((scores, least.map_or(threshold, |least| threshold.max(least))))
    };
    files.iter().enumerate().map(of_file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &str, name: &str, labels: Vec<bool>, calibration: Range<usize>) -> TestFile {
        let graphs = 0..labels.len() as u64;
        let left_out = calibration.clone();
        TestFile { folder: folder.to_owned(), name: name.to_owned(), graphs, labels, calibration, left_out }
    }

    /// A car with all log odds 20 higher: every window is called an attack until it is calibrated.
    #[test]
    fn calibration_moves_a_model_to_another_car() {
        let labels: Vec<bool> = (0..200).map(|index| index >= 150).collect();
        let raw = |shift: f32| -> Vec<f32> {
            (0..200).map(|index| shift + (index % 7) as f32 + if index >= 150 { 30.0 } else { 0.0 }).collect()
        };
        let files = [
            file("test_01_known_vehicle_known_attack", "a", labels.clone(), 0..0),
            file("test_02_unknown_vehicle_known_attack", "b", labels.clone(), 0..50),
        ];
        let kind = ScoreKind::AttackProbability;
        let validation = raw(-10.0)[..150].to_vec();
        let scale = Scale::of(kind, &validation).unwrap();
        let unknown = raw(10.0).into_iter().map(|raw| Profiled { raw, profile: None, unlisted: None }).collect();
        let unknown = vec![Vec::new(), unknown];
        let model = ModelScores {
            kind,
            held_out: vec![true; 150],
            validation,
            test: vec![raw(-10.0), raw(10.0)],
            scale,
            unknown,
            foreign_ids: None,
            least_score: None,
        };
        let by = Some(CalibrateBy { seconds: 10.0, rule: Rule::new(0.01, 100, 100) });
        let subject = Subject::single(&model, ("fpr:0.01".to_owned(), kind.score(-3.5)), &files, by);
        let rows = subject.judge(&files, by, &Bootstrap { resamples: 0, seed: 0 });
        let f1 = |folder: usize, calibration: &str, method: &str| {
            let fits = |row: &&Row| {
                row.file.is_none()
                    && row.folder == files[folder].folder
                    && row.calibration == calibration
                    && row.threshold_method == method
            };
            rows.iter().find(fits).map(|row| (row.values[4], row.graphs)).unwrap()
        };
        assert_eq!(f1(0, "none", "fpr:0.01"), (1.0, 200));
        assert_eq!(f1(0, "none", "0.5").0, 1.0);
        assert_eq!(f1(1, "none", "fpr:0.01"), (0.5, 150), "50 of 150 tested windows are attacks, all are called so");
        assert_eq!(f1(1, "first 10 s", "fpr:0.01"), (1.0, 150));
        assert_eq!(rows.iter().filter(|row| row.folder == files[0].folder).count(), 4, "a known car is not calibrated");
    }

    /// Deviations of one car and raw scores of another have no common order, but decisions at their own thresholds can be pooled.
    #[test]
    fn a_folder_of_two_scales_has_decisions_and_no_ranking() {
        let labels = vec![false, false, true, true];
        let folder = "test_02_unknown_vehicle_known_attack";
        let files = [file(folder, "a", labels.clone(), 0..1), file(folder, "b", labels, 0..0)];
        let subject = Subject {
            scores: vec![vec![0.1, 0.2, 0.8, 0.9]; 2],
            thresholds: vec![("fpr:0.01".to_owned(), 0.5)],
            calibrated: vec![Some((vec![0.0, 1.0, 30.0, 40.0], 3.0)), None],
        };
        let by = Some(CalibrateBy { seconds: 10.0, rule: Rule::new(0.01, 100, 100) });
        let rows = subject.judge(&files, by, &Bootstrap { resamples: 20, seed: 0 });
        let row = |file: Option<&str>, calibration: &str| {
            rows.iter().find(|row| row.file.as_deref() == file && row.calibration == calibration).unwrap()
        };
        let mixed = row(None, "first 10 s");
        assert_eq!((mixed.values[4], mixed.graphs), (1.0, 7));
        assert!(mixed.values[7..].iter().all(|value| value.is_nan()), "{:?}", mixed.values);
        assert!(mixed.intervals[7].0.is_nan() && mixed.intervals[4].0 == 1.0);
        assert_eq!((row(None, "none").values[7], row(Some("a"), "first 10 s").values[7]), (1.0, 1.0));
        let points: Vec<bool> = subject.curves(&files, by).iter().map(|curve| curve.points.is_empty()).collect();
        assert_eq!(points, [false, true]);
    }
}
