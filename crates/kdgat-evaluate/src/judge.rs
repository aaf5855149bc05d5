//! Evaluates one model, or the mean of two, on every test folder and file.
//!
//! Traffic of an unknown car is evaluated twice: uncalibrated, and calibrated on the first seconds of its attack-free traffic.
//! Those seconds, and the windows that share a frame with them, are left out of both tests. Files that cannot be calibrated are in
//! the uncalibrated row of their folder only: no number mixes calibrated cars with others.

use std::ops::Range;

use super::attacked::AttackedWindows;
use super::bootstrap::Bootstrap;
use super::calibration::Rule;
use super::curves::Curve;
use super::ensemble::{CarWindows, JointScale, mean};
use super::gone::{GoneAlarm, GoneRow};
use super::metrics::{Confusion, Decision, Sample};
use super::operator::{Cut, JudgedWindow, OperatorFigures};
use super::ranking::Ranking;
use super::scores::Profiled;
use super::tables::Row;
use super::{EvaluateError, Scale, ScoreKind};
use kdgat_graph::ForeignIds;

/// A test file's graphs.
#[derive(Debug, Clone, PartialEq)]
pub struct TestFile {
    /// Name of the test folder.
    pub folder: String,
    /// Name of the file in the folder.
    pub name: String,
    /// Range of positions in the store.
    pub graphs: Range<u64>,
    /// Timestamp of each graph's first frame, in seconds.
    pub starts: Vec<f64>,
    /// How its frames are cut into windows.
    pub cut: Cut,
    /// For each graph, true if it contains an attack.
    pub labels: Vec<bool>,
    /// Positions in the store of the calibration graphs, of this file or of another drive of the car; empty for cars that are not
    /// calibrated.
    pub calibration: Range<u64>,
    /// Graphs left out of the test: those that calibrate, or share a frame with one that does.
    pub left_out: Range<usize>,
}

impl TestFile {
    /// Operator figures of the decisions about its tested graphs.
    fn operator_figures(&self, called: &[bool]) -> OperatorFigures {
        let mut called = called.iter();
        let window = |(graph, (&start, &attack)): (usize, (&f64, &bool))| {
            let counted = !self.left_out.contains(&graph);
            JudgedWindow { start, attack, alarm: counted && called.next().is_some_and(|called| *called), counted }
        };
        OperatorFigures::of(self.cut, self.starts.iter().zip(&self.labels).enumerate().map(window))
    }
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
    /// For each file: windows that are called attacks because IDs are gone. Empty for what knows no car's profile.
    pub gone: Vec<GoneAlarms>,
}

/// The windows of a file from which on IDs are gone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GoneAlarms {
    /// By the profile of the model.
    pub own: Vec<GoneAlarm>,
    /// By the profile of the calibration.
    pub calibrated: Vec<GoneAlarm>,
}

/// The raw scores of one model.
#[derive(Debug)]
pub struct ModelScores {
    /// Meaning of the scores.
    pub kind: ScoreKind,
    /// Raw scores of the validation graphs.
    pub validation: Vec<f32>,
    /// For each validation graph, true if the model was not trained on any of its frames.
    pub held_out: Vec<bool>,
    /// Raw scores of each test file's graphs.
    pub test: Vec<Vec<f32>>,
    /// Scale of benign validation graphs.
    pub scale: Scale,
    /// Windows of each test file from which on IDs are gone, by the model's own profile.
    pub gone: Vec<Vec<GoneAlarm>>,
    /// Profiled graphs of each calibrated file; `None` for the other files.
    pub unknown: Vec<Option<ProfiledFile>>,
    /// Foreign-ID shares, for a classifier with a list of known IDs.
    pub foreign_ids: Option<ForeignIds>,
    /// The least score that is called an attack on another car: see
    /// [`RecordedThreshold::short_profile`](super::records::RecordedThreshold::short_profile).
    pub least_score: Option<f64>,
    /// The same under a profile [without bytes](kdgat_graph::CarProfile::without_bytes).
    pub least_without_bytes: Option<f64>,
}

/// The graphs of a file that is calibrated, with the values that calibration needs.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfiledFile {
    /// The calibration graphs.
    pub calibration: Vec<Profiled>,
    /// All graphs of the file.
    pub graphs: Vec<Profiled>,
    /// The calibration graphs with synthetic attacks; empty for models that keep no frames.
    pub attacked: Vec<AttackedWindows>,
    /// False if the car's profile does [without bytes](kdgat_graph::CarProfile::without_bytes).
    pub judges_bytes: bool,
    /// Windows from which on IDs are gone, by the profile of the calibration.
    pub gone: Vec<GoneAlarm>,
}

/// Calibration of other cars.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrateBy {
    /// Length of the traffic that calibrates, in seconds.
    pub seconds: f64,
    /// Rule for the threshold on the car's own scale.
    pub rule: Rule,
    /// The test file, as FOLDER/FILE, whose traffic calibrates the other drives of its car; none: each file of an unknown car
    /// calibrates itself.
    pub from: Option<String>,
}

impl Subject {
    /// One model with its recorded threshold, and with 0.5, too, if it is a classifier.
    pub fn single(model: &ModelScores, recorded: (String, f64), files: &[TestFile], by: Option<&CalibrateBy>) -> Self {
        let kind = model.kind;
        let mut thresholds = vec![recorded];
        if kind == ScoreKind::AttackProbability && thresholds[0].0 != "0.5" {
            thresholds.push(("0.5".to_owned(), 0.5));
        }
        let scores = model.test.iter().map(|raw| raw.iter().map(|&raw| kind.score(raw)).collect()).collect();
        Self { scores, thresholds, calibrated: calibrated(&[model], files, by), gone: gone(model) }
    }

    /// The mean of the standardised scores of a classifier and an autoencoder; `choose` picks the threshold from the validation
    /// scores.
    pub fn mean(
        models: [&ModelScores; 2],
        choose: impl FnOnce(&[f64]) -> Result<(String, f64), EvaluateError>,
        files: &[TestFile],
        by: Option<&CalibrateBy>,
    ) -> Result<Self, EvaluateError> {
        let scales = models.map(|model| model.scale);
        let validation = mean_of(&models, &scales, |model| &model.validation);
        let scores = (0..files.len()).map(|file| mean_of(&models, &scales, |model| &model.test[file])).collect();
        let (calibrated, gone) = (calibrated(&models, files, by), gone(models[0]));
        Ok(Self { scores, thresholds: vec![choose(&validation)?], calibrated, gone })
    }

    /// Rows for each folder and each file, at each threshold, before and after calibration.
    pub fn judge(&self, files: &[TestFile], by: Option<&CalibrateBy>, bootstrap: &Bootstrap) -> Vec<Row> {
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
    pub fn curves(&self, files: &[TestFile], by: Option<&CalibrateBy>) -> Vec<Curve> {
        let curve = |folder: JudgedFolder| Curve {
            points: Ranking::new(&folder.scores, &folder.labels).curve(),
            folder: folder.folder,
            calibration: folder.calibration,
        };
        self.folders(files, by).into_iter().map(curve).collect()
    }

    /// The tested graphs of each folder, before and after calibration.
    pub fn folders(&self, files: &[TestFile], by: Option<&CalibrateBy>) -> Vec<JudgedFolder> {
        let mut folders = Vec::new();
        let mut begin = 0;
        for of_folder in files.chunk_by(|a, b| a.folder == b.folder) {
            let range = begin..begin + of_folder.len();
            begin = range.end;
            for Judged { calibrated, files: judged } in self.judged_together(range) {
                let scores: Vec<Vec<f64>> = judged.iter().map(|&file| self.tested(files, file, calibrated)).collect();
                folders.push(JudgedFolder {
                    folder: of_folder[0].folder.clone(),
                    calibration: calibration_name(calibrated, by),
                    labels: judged.iter().flat_map(|&file| tested(&files[file], &files[file].labels)).collect(),
                    graphs_of_files: scores.iter().map(Vec::len).collect(),
                    scores: scores.concat(),
                    decision: self.decisions(files, &judged, calibrated).swap_remove(0),
                });
            }
        }
        folders
    }

    /// Results for the tested graphs of one file, before and after calibration: (calibration, scores, decision at the recorded
    /// threshold).
    pub fn judged(
        &self,
        files: &[TestFile],
        file: usize,
        by: Option<&CalibrateBy>,
    ) -> Vec<(String, Vec<f64>, Decision)> {
        let variant = |Judged { calibrated, files: judged }: Judged| {
            let decision = self.decisions(files, &judged, calibrated).swap_remove(0);
            (calibration_name(calibrated, by), self.tested(files, file, calibrated), decision)
        };
        self.judged_together(file..file + 1).into_iter().map(variant).collect()
    }

    /// The tested windows from which on IDs are gone, before and after calibration.
    pub fn gone_rows(&self, files: &[TestFile], by: Option<&CalibrateBy>) -> Vec<GoneRow> {
        let of_file = |(file, gone): (&TestFile, &GoneAlarms)| {
            let row = |calibrated: bool, alarm: &GoneAlarm| {
                GoneRow::new(&file.folder, &file.name, &calibration_name(calibrated, by), alarm)
            };
            let is_tested = |alarm: &&GoneAlarm| !file.left_out.contains(&alarm.graph);
            let own = gone.own.iter().filter(is_tested).map(|alarm| row(false, alarm));
            own.chain(gone.calibrated.iter().filter(is_tested).map(|alarm| row(true, alarm))).collect::<Vec<_>>()
        };
        files.iter().zip(&self.gone).flat_map(of_file).collect()
    }

    /// Calls windows of a file attacks from which on IDs are gone.
    fn call_gone(&self, files: &[TestFile], file: usize, calibrated: bool, mut called: Vec<bool>) -> Vec<bool> {
        let left_out = &files[file].left_out;
        let alarms = self.gone.get(file).map_or(&[][..], |gone| if calibrated { &gone.calibrated } else { &gone.own });
        for alarm in alarms.iter().filter(|alarm| alarm.counts() && !left_out.contains(&alarm.graph)) {
            let before = if alarm.graph < left_out.start { 0 } else { left_out.len() };
            if let Some(called) = called.get_mut(alarm.graph - before) {
                *called = true;
            }
        }
        called
    }

    fn rows(
        &self,
        files: &[TestFile],
        range: Range<usize>,
        file: Option<&str>,
        by: Option<&CalibrateBy>,
        bootstrap: &Bootstrap,
    ) -> Vec<Row> {
        let mut rows = Vec::new();
        for Judged { calibrated, files: judged } in self.judged_together(range.clone()) {
            let labels: Vec<bool> = judged.iter().flat_map(|&file| tested(&files[file], &files[file].labels)).collect();
            let scores: Vec<f64> = judged.iter().flat_map(|&file| self.tested(files, file, calibrated)).collect();
            let decisions = self.decisions(files, &judged, calibrated);
            let sample = Sample::new(&scores, &labels, &decisions);
            let intervals = bootstrap.intervals(&sample, decisions.len());
            let confusions: Vec<Confusion> = sample.confusions();
            let values = sample.metrics().into_iter().zip(intervals).zip(confusions).zip(&decisions);
            rows.extend(values.map(|(((values, intervals), confusion), decision)| Row {
                folder: files[range.start].folder.clone(),
                file: file.map(str::to_owned),
                calibration: calibration_name(calibrated, by),
                threshold_method: decision.method.clone(),
                threshold: decision.threshold,
                graphs: labels.len() as u64,
                attacks: labels.iter().filter(|attack| **attack).count() as u64,
                confusion,
                values,
                intervals,
                operator: operator_figures(files, &judged, decision),
            }));
        }
        rows
    }

    /// Files of `range` that are judged together: all uncalibrated, and those that have a calibration calibrated.
    fn judged_together(&self, range: Range<usize>) -> Vec<Judged> {
        let with_calibration: Vec<usize> = range.clone().filter(|&file| self.calibrated[file].is_some()).collect();
        let mut judged = vec![Judged { calibrated: false, files: range.collect() }];
        if !with_calibration.is_empty() {
            judged.push(Judged { calibrated: true, files: with_calibration });
        }
        judged
    }

    /// Scores of the tested graphs of a file: raw ones, or those on the car's own scale if it is calibrated.
    fn tested(&self, files: &[TestFile], file: usize, calibrated: bool) -> Vec<f64> {
        let scores = match &self.calibrated[file] {
            Some((scores, _)) if calibrated => scores,
            _ => &self.scores[file],
        };
        tested(&files[file], scores).collect()
    }

    /// Decisions about the tested graphs of the files in `judged`: uncalibrated one for each threshold, calibrated a single one, in
    /// which each car has its own threshold. A folder of several cars has no common one then.
    fn decisions(&self, files: &[TestFile], judged: &[usize], calibrated: bool) -> Vec<Decision> {
        let above = |threshold: f64, file: usize| {
            let called = Decision::above("", threshold, &self.tested(files, file, calibrated)).called;
            self.call_gone(files, file, calibrated, called)
        };
        if !calibrated {
            let decision = |(method, threshold): &(String, f64)| Decision {
                method: method.clone(),
                threshold: Some(*threshold),
                called: judged.iter().flat_map(|&file| above(*threshold, file)).collect(),
            };
            return self.thresholds.iter().map(decision).collect();
        }
        let own = |file: usize| self.calibrated[file].as_ref().map(|(_, threshold)| *threshold);
        let called = judged.iter().filter_map(|&file| Some(above(own(file)?, file))).flatten().collect();
        let threshold = if let [file] = judged { own(*file) } else { None };
        vec![Decision { method: self.thresholds[0].0.clone(), threshold, called }]
    }
}

/// The tested graphs of a folder, file by file, before or after calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedFolder {
    /// Name of the test folder.
    pub folder: String,
    /// `none`, or the traffic that calibrated the scores.
    pub calibration: String,
    /// For each graph, true if it contains an attack.
    pub labels: Vec<bool>,
    /// Score of each graph.
    pub scores: Vec<f64>,
    /// Number of graphs of each file, in the order of the graphs.
    pub graphs_of_files: Vec<usize>,
    /// The decision at the recorded threshold.
    pub decision: Decision,
}

/// Files whose graphs are judged together.
struct Judged {
    calibrated: bool,
    /// Positions among the test files.
    files: Vec<usize>,
}

/// Operator figures of the files in `judged` together, from a decision about their tested graphs.
fn operator_figures(files: &[TestFile], judged: &[usize], decision: &Decision) -> OperatorFigures {
    let mut figures = OperatorFigures::default();
    let mut called = decision.called.as_slice();
    for file in judged.iter().map(|&file| &files[file]) {
        let (of_file, rest) = called.split_at(file.labels.len() - file.left_out.len());
        figures.add(file.operator_figures(of_file));
        called = rest;
    }
    figures
}

/// Name of the rows without calibration.
pub const NOT_CALIBRATED: &str = "none";

fn calibration_name(calibrated: bool, by: Option<&CalibrateBy>) -> String {
    let Some(by) = by.filter(|_| calibrated) else { return NOT_CALIBRATED.to_owned() };
    let of = by.from.as_ref().map_or(String::new(), |from| format!(" of {from}"));
    format!("first {} s{of}", by.seconds)
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
        mean(models.iter().zip(scales).map(|(model, scale)| scale.standardise(model.kind, raw(model)[graph])))
    };
    (0..count).map(one).collect()
}

/// For each file: windows from which on IDs are gone.
fn gone(model: &ModelScores) -> Vec<GoneAlarms> {
    let of_file = |(own, unknown): (&Vec<GoneAlarm>, &Option<ProfiledFile>)| GoneAlarms {
        own: own.clone(),
        calibrated: unknown.as_ref().map_or_else(Vec::new, |file| file.gone.clone()),
    };
    model.gone.iter().zip(&model.unknown).map(of_file).collect()
}

/// For each unknown car's file: scores on its own scale, and the threshold, both from its calibration windows.
fn calibrated(models: &[&ModelScores], files: &[TestFile], by: Option<&CalibrateBy>) -> Vec<Option<(Vec<f64>, f64)>> {
    let of_file = |(index, file): (usize, &TestFile)| {
        let profiled = models.iter().map(|model| model.unknown[index].as_ref()).collect::<Option<Vec<_>>>()?;
        let windows = models.iter().zip(&profiled).map(|(model, profiled)| CarWindows {
            kind: model.kind,
            foreign_ids: model.foreign_ids,
            windows: &profiled.calibration,
            least_score: if profiled.judges_bytes { model.least_score } else { model.least_without_bytes },
            attacked: &profiled.attacked,
        });
        let JointScale { cars, threshold, .. } = JointScale::of(&windows.collect::<Vec<_>>(), by?.rule)?;
        let of_graph = |graph: usize| {
            mean(cars.iter().zip(&profiled).map(|(car, profiled)| car.deviations(&profiled.graphs[graph])))
        };
        Some(((0..file.labels.len()).map(of_graph).collect(), threshold))
    };
    files.iter().enumerate().map(of_file).collect()
}

#[cfg(test)]
mod tests {
    use super::super::gone::Gone;
    use super::*;
    use kdgat_graph::profile::GoneId;

    fn file(folder: &str, name: &str, labels: Vec<bool>, left_out: Range<usize>) -> TestFile {
        let graphs = 0..labels.len() as u64;
        let starts = graphs.clone().map(|graph| graph as f64 / 2.0).collect();
        let calibration = left_out.start as u64..left_out.end as u64;
        let cut = Cut { window: 100, stride: 100 };
        TestFile {
            folder: folder.to_owned(),
            name: name.to_owned(),
            graphs,
            starts,
            cut,
            labels,
            calibration,
            left_out,
        }
    }

    fn by() -> CalibrateBy {
        CalibrateBy { seconds: 10.0, rule: Rule::new(0.01, 100, 100), from: None }
    }

    /// A file whose graphs have these log odds, the first ones of which calibrate.
    fn profiled(raw: &[f32], calibration: Range<usize>) -> ProfiledFile {
        let graphs: Vec<_> = raw.iter().map(|&raw| Profiled { raw, profile: None, unlisted: None }).collect();
        let calibration = graphs[calibration].to_vec();
        ProfiledFile { calibration, graphs, attacked: Vec::new(), judges_bytes: true, gone: Vec::new() }
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
        let unknown = vec![None, Some(profiled(&raw(10.0), 0..50))];
        let model = ModelScores {
            kind,
            held_out: vec![true; 150],
            validation,
            test: vec![raw(-10.0), raw(10.0)],
            gone: vec![Vec::new(); 2],
            scale,
            unknown,
            foreign_ids: None,
            least_score: None,
            least_without_bytes: None,
        };
        let by = by();
        let by = Some(&by);
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

    /// A folder with a calibrated car and one that cannot be calibrated: no row has both.
    #[test]
    fn calibrated_cars_and_others_are_never_averaged() {
        let labels = vec![false, false, true, true];
        let folder = "test_02_unknown_vehicle_known_attack";
        let files = [file(folder, "a", labels.clone(), 0..1), file(folder, "b", labels, 0..0)];
        let subject = Subject {
            scores: vec![vec![0.1, 0.2, 0.8, 0.9], vec![0.6, 0.7, 0.1, 0.2]],
            thresholds: vec![("fpr:0.01".to_owned(), 0.5)],
            calibrated: vec![Some((vec![0.0, 1.0, 30.0, 40.0], 3.0)), None],
            gone: Vec::new(),
        };
        let by = by();
        let by = Some(&by);
        let rows = subject.judge(&files, by, &Bootstrap { resamples: 20, seed: 0 });
        let row = |file: Option<&str>, calibration: &str| {
            rows.iter().find(|row| row.file.as_deref() == file && row.calibration == calibration)
        };
        let (raw, calibrated) = (row(None, "none").unwrap(), row(None, "first 10 s").unwrap());
        assert_eq!((raw.graphs, raw.operator.false_alarms, raw.operator.episodes), (7, 2, 2));
        assert_eq!((calibrated.graphs, calibrated.operator.false_alarms, calibrated.operator.episodes), (3, 0, 1));
        assert_eq!((calibrated.values[4], calibrated.values[7]), (1.0, 1.0), "the scores of one scale are ranked");
        let alone = row(Some("a"), "first 10 s").unwrap();
        assert_eq!((calibrated.confusion, calibrated.threshold), (alone.confusion, alone.threshold));
        assert!(row(Some("b"), "first 10 s").is_none());
        assert_eq!(subject.curves(&files, by).len(), 2);
    }

    /// A pair of models is calibrated where both are, never one of them alone.
    #[test]
    fn a_pair_is_calibrated_as_a_whole() {
        let labels: Vec<bool> = (0..60).map(|index| index >= 50).collect();
        let files = [file("test_02_unknown_vehicle_known_attack", "a", labels, 0..40)];
        let raw: Vec<f32> = (0..60).map(|index| (index % 7) as f32 + if index >= 50 { 30.0 } else { 0.0 }).collect();
        let model = |is_profiled: bool| ModelScores {
            kind: ScoreKind::AttackProbability,
            held_out: vec![true; 50],
            validation: raw[..50].to_vec(),
            test: vec![raw.clone()],
            gone: vec![Vec::new()],
            scale: Scale::of(ScoreKind::AttackProbability, &raw[..50]).unwrap(),
            unknown: vec![is_profiled.then(|| profiled(&raw, 0..40))],
            foreign_ids: None,
            least_score: None,
            least_without_bytes: None,
        };
        let by = by();
        let by = Some(&by);
        let calibrations = |other: bool| {
            let choose = |_: &[f64]| Ok(("fpr:0.01".to_owned(), 2.0));
            let subject = Subject::mean([&model(true), &model(other)], choose, &files, by).unwrap();
            let rows = subject.judge(&files, by, &Bootstrap { resamples: 0, seed: 0 });
            rows.into_iter().filter(|row| row.file.is_none()).map(|row| row.calibration).collect::<Vec<_>>()
        };
        assert_eq!(calibrations(true), ["none", "first 10 s"]);
        assert_eq!(calibrations(false), ["none"]);
    }

    /// The operator figures agree with the counts, and those of a folder are the sums over its files.
    #[test]
    fn operator_figures_of_a_folder_are_those_of_its_files() {
        let labels = |text: &str| text.chars().map(|letter| letter == 'a').collect::<Vec<_>>();
        let files =
            [file("test_01", "a", labels("....aa....a."), 1..3), file("test_01", "b", labels("aaaa...a"), 0..0)];
        let subject = Subject {
            scores: vec![
                vec![1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
                vec![0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0],
            ],
            thresholds: vec![("0.5".to_owned(), 0.5)],
            calibrated: vec![None, None],
            gone: Vec::new(),
        };
        let rows = subject.judge(&files, None, &Bootstrap { resamples: 0, seed: 0 });
        let figures: Vec<&OperatorFigures> = rows.iter().map(|row| &row.operator).collect();
        for row in &rows {
            assert_eq!(row.operator.false_alarms, row.confusion.false_positives);
            assert_eq!(row.operator.alarms, row.confusion.false_positives + row.confusion.true_positives);
        }
        let [both, a, b] = figures[..] else { panic!("{} rows", figures.len()) };
        assert_eq!((a.seconds_without_attack, a.false_alarms, a.episodes), (3.5, 3, 2));
        assert_eq!(a.delays_seconds, [1.0]);
        assert_eq!((b.seconds_without_attack, b.false_alarms, b.episodes), (1.5, 1, 2));
        assert_eq!(b.delays_seconds, [2.0, 0.5]);
        assert_eq!(both.hours_without_attack(), 5.0 / 3600.0);
        assert_eq!(both.false_alarms_per_hour(), 4.0 / 5.0 * 3600.0);
        assert_eq!((both.episodes, both.episodes_found()), (4, 3));
        assert_eq!((both.median_delay_seconds(), both.largest_delay_seconds()), (1.0, 2.0));
    }

    /// An ID that is gone makes its window an attack, but for the aftermath of an attack.
    #[test]
    fn gone_ids_are_found_and_an_aftermath_is_no_false_alarm() {
        let gone_id = GoneId { can_id: 0x148, silent_seconds: 6.0, longest_seconds: 0.02 };
        let alarm = |graph: usize, attack: bool, is_aftermath: bool| GoneAlarm {
            graph,
            time: graph as f64,
            attack,
            gone: Gone { ids: vec![gone_id], is_aftermath },
        };
        let labels = vec![false, false, false, true, true, false, false, false];
        let files = [file("test_06", "a", labels, 1..2)];
        let judged = |own: Vec<GoneAlarm>| {
            let subject = Subject {
                scores: vec![vec![0.0; 8]],
                thresholds: vec![("0.5".to_owned(), 0.5)],
                calibrated: vec![None],
                gone: vec![GoneAlarms { own, calibrated: Vec::new() }],
            };
            let row = subject.judge(&files, None, &Bootstrap { resamples: 0, seed: 0 }).swap_remove(0);
            let texts: Vec<String> = subject.gone_rows(&files, None).iter().map(GoneRow::text).collect();
            (row.operator.false_alarms, row.operator.episodes_found(), texts)
        };
        assert_eq!(judged(Vec::new()), (0, 0, Vec::new()));
        let said = |outcome: &str| vec![format!("a: 148: gone for 6.0 s, longest silence ever 0.02 s ({outcome})")];
        assert_eq!(judged(vec![alarm(4, true, false)]), (0, 1, said("found")));
        assert_eq!(judged(vec![alarm(7, false, false)]), (1, 0, said("a false alarm")));
        let aftermath = said("found, not a false alarm: it had sent attack frames");
        assert_eq!(judged(vec![alarm(7, false, true)]), (0, 0, aftermath));
        assert_eq!(judged(vec![alarm(1, false, false)]), (0, 0, Vec::new()), "it calibrates");
    }
}
