//! Scores trained models on the test folders of their dataset, and writes their metrics.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tch::Device;

use super::evaluated_models::{self, ModelStores};
use super::predictions::{PREDICTION_COLUMNS, Predictions, write_predictions};
use super::run_data::warn_of_other;
use super::validation::{self, Validated, only, validation_graphs};
use super::{StageError, setup, training};
use crate::config::{Config, Threshold, nearest};
use crate::evaluate::bootstrap::Bootstrap;
use crate::evaluate::calibration::{FEWEST_WINDOWS, Rule, calibration_stretch, is_unknown_vehicle, left_out};
use crate::evaluate::car;
use crate::evaluate::curves::{self, CURVES, Curve};
use crate::evaluate::ensemble::{self, EnsembleThreshold};
use crate::evaluate::gone;
use crate::evaluate::id_list::IdList;
use crate::evaluate::judge::{CalibrateBy, ModelScores, ProfiledFile, Subject, TestFile};
use crate::evaluate::operator::Cut;
use crate::evaluate::ranking::Ranking;
use crate::evaluate::records::RecordedThreshold;
use crate::evaluate::scores::EVEN_ODDS;
use crate::evaluate::speed;
use crate::evaluate::tables::{ModelReport, Report};
use crate::evaluate::teacher_worth;
use crate::evaluate::windows::{self, ModelWindows, WINDOWS, Window, WindowsFile};
use crate::evaluate::{EvaluateError, Scorer, TrainedModel, rules, threshold};
use crate::files;
use crate::graph::Store;
use crate::graph::store::manifest::FileEntry;
use crate::interrupt;
use crate::memory::{Meter, retry_on_oom};
use crate::nn::Architecture;
use crate::nn::attention::Backend;

/// Options of `kdgat evaluate`, in addition to the configuration.
#[derive(Debug, Clone, Default)]
pub struct EvaluateOptions {
    /// Run folders or weight files; empty: all models of the dataset.
    pub runs: Vec<PathBuf>,
    /// File for predictions, one row per model and tested graph or node; none: not written.
    pub predictions: Option<PathBuf>,
    /// Calibrate unknown cars on this many seconds of their attack-free traffic; none: no calibration.
    pub calibrate_seconds: Option<f64>,
    /// The test file, as FOLDER/FILE, that calibrates the other drives of its car; none: each file of an unknown car calibrates itself.
    pub calibrate_from: Option<String>,
    /// Folder for the results; none: `evaluation` next to the dataset's runs.
    pub output: Option<PathBuf>,
    /// Bootstrap resamples of the confidence intervals.
    pub resamples: u64,
    /// Also judge the rules; none: if their store can be built.
    pub rules: Option<bool>,
}

/// A model and its scores.
struct Scored {
    model: TrainedModel,
    /// The store of its features.
    store: Arc<Store>,
    scores: ModelScores,
    recorded: RecordedThreshold,
    speed: Option<speed::Speed>,
    validation_roc_auc: f64,
    windows: Vec<Window>,
}

/// Runs `kdgat evaluate`. Returns the report and the folder that it was written to.
pub fn evaluate(config: &Config, options: &EvaluateOptions) -> Result<(Report, PathBuf), StageError> {
    // Data and models.
    setup::use_threads(config.training.threads);
    let device = setup::device(config.training.device)?;
    let calibrate = calibrate_by(config, options)?;
    let calibrate = calibrate.as_ref();
    let (models, mut stores) = evaluated_models::find(config, &options.runs)?;
    let store = Arc::clone(stores.first());
    let dataset = store.manifest().dataset.clone();
    let files = test_files(&store, calibrate)?;
    let folder = options.output.clone().unwrap_or_else(|| config.output.runs_dir.join(&dataset).join("evaluation"));
    let action = "write to";
    files::expect_writable(&folder).map_err(files::failed(action, &folder))?;
    let predictions = options.predictions.as_deref();
    let mut predictions = predictions.map(|path| Predictions::create(path, &PREDICTION_COLUMNS)).transpose()?;

    // Scores.
    let method = config.evaluation.threshold;
    let mut scored = Vec::new();
    for model in models {
        eprintln!("scoring with {}", model.name);
        let store = stores.of(&model)?;
        warn_of_other(&model, &store);
        warn_of_trained_test(&model, &store);
        scored.push(score(model, store, &files, (method, calibrate), device, training::attention_kernel(config))?);
    }

    warn_of_rare(method, &scored);

    // Metrics.
    let bootstrap = Bootstrap { resamples: options.resamples, seed: config.training.seed };
    let mut reports = Vec::new();
    let mut all_curves = Vec::new();
    let mut subjects = Vec::new();
    for one in &scored {
        let recorded = (one.recorded.method.clone(), one.recorded.value);
        let subject = Subject::single(&one.scores, recorded, &files, calibrate);
        let (rows, gone) = (subject.judge(&files, calibrate, &bootstrap), subject.gone_rows(&files, calibrate));
        let report = ModelReport { rows, gone, ..describe(&[one]) };
        write_predictions(&mut predictions, &report.name, &subject, &files, &store, calibrate)?;
        all_curves.push(subject.curves(&files, calibrate));
        reports.push(report);
        subjects.push(subject);
    }
    let teachers = teacher_worth::compare(&reports, &subjects, &files, calibrate, &bootstrap);
    for [gat, vgae] in pairs(&scored) {
        let choose = |scores: &[f64]| choose_for_mean(method, scores, &gat.store, [gat, vgae]);
        let subject = Subject::mean([&gat.scores, &vgae.scores], choose, &files, calibrate)?;
        let (rows, gone) = (subject.judge(&files, calibrate, &bootstrap), subject.gone_rows(&files, calibrate));
        let report = ModelReport { rows, gone, ..describe(&[gat, vgae]) };
        write_predictions(&mut predictions, &report.name, &subject, &files, &store, calibrate)?;
        all_curves.push(subject.curves(&files, calibrate));
        reports.push(report);
    }
    if let Some(store) = store_of_rules(config, &stores, options.rules)? {
        for one in rules::judge(&store, &files, &validation_graphs(&store), method, calibrate, &bootstrap)? {
            write_predictions(&mut predictions, &one.report.name, &one.subject, &files, &store, calibrate)?;
            all_curves.push(one.subject.curves(&files, calibrate));
            reports.push(one.report);
        }
    }
    predictions.map(Predictions::finish).transpose()?;

    // Results.
    let manifest = store.manifest();
    let report = Report {
        dataset: dataset.clone(),
        data_digest: store.digest().to_owned(),
        window: manifest.options.window,
        stride: manifest.options.stride,
        bootstrap,
        models: reports,
        teachers,
    };
    write(&report, &all_curves, &scored, &folder)?;
    Ok((report, folder))
}

/// Opens the store of the profile set, which the rules read; `None` if they are not judged. Unless the rules were asked for, a store that
/// cannot be built is a warning.
fn store_of_rules(
    config: &Config,
    stores: &ModelStores<'_>,
    asked: Option<bool>,
) -> Result<Option<Arc<Store>>, StageError> {
    if asked == Some(false) {
        return Ok(None);
    }
    if let Some(store) = stores.with_profile() {
        return Ok(Some(Arc::clone(store)));
    }
    match setup::open_profile_store(config) {
        Err(error) if asked.is_none() && !interrupt::requested() => {
            eprintln!("warning: no rule is judged beside the models: {error}; --rules false leaves them out");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn calibrate_by(config: &Config, options: &EvaluateOptions) -> Result<Option<CalibrateBy>, StageError> {
    let Some(seconds) = options.calibrate_seconds else {
        return match &options.calibrate_from {
            None => Ok(None),
            Some(from) => Err(StageError::Input(format!(
                "--calibrate-from {from}: add --calibrate-seconds SECONDS, how much of its attack-free traffic to calibrate with"
            ))),
        };
    };
    if !(seconds.is_finite() && seconds > 0.0) {
        return Err(StageError::Input(format!("--calibrate-seconds {seconds}: must be above 0")));
    }
    match config.evaluation.threshold {
        Threshold::FalsePositiveRate(rate) => {
            let rule = Rule::new(rate, config.data.window, config.data.stride);
            Ok(Some(CalibrateBy { seconds, rule, from: options.calibrate_from.clone() }))
        }
        other => Err(StageError::Input(format!(
            "--calibrate-seconds with --threshold {other}: a new car has no labels, so only a false-positive rate can be set; \
             use --threshold fpr:0.001"
        ))),
    }
}

/// The files of the test folders; those of unknown cars with the graphs used for calibration.
pub(super) fn test_files(store: &Store, calibrate: Option<&CalibrateBy>) -> Result<Vec<TestFile>, StageError> {
    let from = calibrate.map(|by| calibrating_drive(store, by)).transpose()?.flatten();
    let mut files = Vec::new();
    for entry in store.manifest().files.iter().filter(|file| file.role == crate::can::Role::Test && file.graphs > 0) {
        let graphs = entry.first_graph..entry.first_graph + entry.graphs;
        let labels = labels(store, graphs.clone())?;
        let starts =
            graphs.clone().map(|graph| Ok(store.try_graph(graph)?.start_time)).collect::<Result<_, StageError>>()?;
        let calibration = match (&from, calibrate) {
            (Some(drive), _) if drive.is_of_same_car(entry) => drive.windows.clone(),
            (None, Some(by)) if is_unknown_vehicle(&entry.folder) => calibrating(store, entry, by.seconds)?,
            _ => graphs.start..graphs.start,
        };
        let options = &store.manifest().options;
        let left_out = match &from {
            // Those windows are of another file.
            Some(_) => 0..0,
            None => {
                let left_out = left_out(&calibration, &graphs, options.window, options.stride);
                (left_out.start - graphs.start) as usize..(left_out.end - graphs.start) as usize
            }
        };
        let (folder, name) = (entry.folder.clone(), entry.name.clone());
        let cut = Cut { window: options.window, stride: options.stride };
        files.push(TestFile { folder, name, graphs, starts, cut, labels, calibration, left_out });
    }
    if files.is_empty() {
        let dataset = &store.manifest().dataset;
        return Err(StageError::Input(format!(
            "dataset {dataset} has no test_* folder with a window to score; put drives that the training does not have into a folder \
             test_01_attack_free, for false alarms an hour, or drives with labelled attacks into test_01_with_attacks"
        )));
    }
    if from.is_none() {
        files.chunk_by(|a, b| a.folder == b.folder).for_each(warn_of_uncalibrated);
    }
    Ok(files)
}

/// A drive that calibrates the other drives of its car.
struct CalibratingDrive<'a> {
    entry: &'a FileEntry,
    /// Positions of the calibration windows in the store.
    windows: Range<u64>,
}

impl CalibratingDrive<'_> {
    /// True for another drive of the same car: a file of the same folder, or of any folder of unknown cars if this is one. Datasets in
    /// this layout have one unknown car.
    fn is_of_same_car(&self, other: &FileEntry) -> bool {
        let both_unknown = is_unknown_vehicle(&self.entry.folder) && is_unknown_vehicle(&other.folder);
        let is_itself = (&self.entry.folder, &self.entry.name) == (&other.folder, &other.name);
        !is_itself && (both_unknown || self.entry.folder == other.folder)
    }
}

/// The drive named by `--calibrate-from`, if any.
fn calibrating_drive<'a>(store: &'a Store, by: &CalibrateBy) -> Result<Option<CalibratingDrive<'a>>, StageError> {
    let Some(from) = &by.from else { return Ok(None) };
    let is_tested = |file: &&FileEntry| file.role == crate::can::Role::Test && file.graphs > 0;
    let name = |file: &FileEntry| format!("{}/{}", file.folder, file.name);
    let Some(entry) = store.manifest().files.iter().filter(is_tested).find(|file| name(file) == *from) else {
        let files: Vec<String> = store.manifest().files.iter().filter(is_tested).map(name).collect();
        return Err(StageError::Input(format!(
            "--calibrate-from {from}: {} has no such test file; did you mean {}?",
            store.manifest().dataset,
            nearest(from, files.iter().map(String::as_str))
        )));
    };
    let windows = calibrating(store, entry, by.seconds)?;
    if windows.is_empty() {
        return Err(StageError::Input(format!(
            "--calibrate-from {from}: its first {} s have fewer than {FEWEST_WINDOWS} attack-free windows; raise --calibrate-seconds, or \
             name another file",
            by.seconds
        )));
    }
    Ok(Some(CalibratingDrive { entry, windows }))
}

/// The graphs of a file used for calibration; an empty range if there are too few.
fn calibrating(store: &Store, entry: &FileEntry, seconds: f64) -> Result<Range<u64>, StageError> {
    let graphs = entry.first_graph..entry.first_graph + entry.graphs;
    let stretch = calibration_stretch(store, graphs.clone(), seconds)?;
    let found = stretch.end - stretch.start;
    if found >= FEWEST_WINDOWS as u64 {
        return Ok(stretch);
    }
    let (folder, name) = (&entry.folder, &entry.name);
    tracing::warn!(
        "{folder}/{name} is not calibrated: its first {seconds} s have {found} attack-free windows, and a calibration needs at \
         least {FEWEST_WINDOWS}"
    );
    Ok(graphs.start..graphs.start)
}

/// Warns that the calibrated rows of a folder are of some of its files only.
fn warn_of_uncalibrated(folder: &[TestFile]) {
    let (calibrated, raw): (Vec<_>, Vec<_>) = folder.iter().partition(|file| !file.calibration.is_empty());
    if calibrated.is_empty() || raw.is_empty() {
        return;
    }
    let names: Vec<&str> = raw.iter().map(|file| file.name.as_str()).collect();
    tracing::warn!(
        "{}: {} not calibrated, other files are: the calibrated results of the folder are of those others only",
        folder[0].folder,
        names.join(", ")
    );
}

/// Warns that windows of the test folders are in training logs, too, and that the model was trained before the store left them out of the
/// training: it knows them.
fn warn_of_trained_test(model: &TrainedModel, store: &Store) {
    let copies = store.manifest().duplicates.train_in_test + store.manifest().duplicates.validation_in_test;
    if copies > 0 && model.description.dataset.digest != store.digest() {
        tracing::warn!(
            "{copies} windows of the test folders are in training logs of {}, too, and {} may have been trained on them: its figures on \
             them say nothing about other drives; test with drives that the training does not have",
            store.manifest().dataset,
            model.name
        );
    }
}

fn labels(store: &Store, graphs: impl IntoIterator<Item = u64>) -> Result<Vec<bool>, StageError> {
    Ok(graphs.into_iter().map(|graph| store.try_graph(graph).map(|view| view.attack)).collect::<Result<_, _>>()?)
}

fn score(
    model: TrainedModel,
    store: Arc<Store>,
    files: &[TestFile],
    (method, calibrate): (Threshold, Option<&CalibrateBy>),
    device: Device,
    kernel: Backend,
) -> Result<Scored, StageError> {
    let scorer = retry_on_oom(Meter::new(device), || Scorer::new(&model, device, kernel))?;
    let Validated { raw: validation, held_out, labels: validation_labels, recorded } =
        validation::choose_threshold(&model, &scorer, &store, method)?;
    let (raw, held_out_labels) = (only(&held_out, &validation), only(&held_out, &validation_labels));
    let rate = calibrate.map_or(0.0, |by| by.rule.rate);
    let profiled = |file: &TestFile| {
        if file.calibration.is_empty() {
            return Ok(None);
        }
        if scorer.features().needs_history() {
            return car::profile_file(&scorer, &store, file.graphs.clone(), file.calibration.clone(), rate).map(Some);
        }
        let of = |graphs: &Range<u64>| scorer.profile_store(&store, &graphs.clone().collect::<Vec<_>>());
        let (calibration, graphs) = (of(&file.calibration)?, of(&file.graphs)?);
        let (attacked, gone) = (Vec::new(), Vec::new());
        Ok::<_, EvaluateError>(Some(ProfiledFile { calibration, graphs, attacked, judges_bytes: true, gone }))
    };
    let own = scorer.assemble_options().profile;
    let gone = |file: &TestFile| {
        own.as_ref().map_or_else(|| Ok(Vec::new()), |profile| gone::of_file(&store, file.graphs.clone(), profile))
    };
    let gone = files.iter().map(gone).collect::<Result<_, _>>()?;
    let unknown = files.iter().map(profiled).collect::<Result<_, _>>()?;
    let test: Vec<u64> = files.iter().flat_map(|file| file.graphs.clone()).collect();
    let mut all = scorer.score_store(&store, &test)?.into_iter();
    let test_scores: Vec<Vec<f32>> = files.iter().map(|file| all.by_ref().take(file.labels.len()).collect()).collect();
    let speed = speed::measure(&scorer, &store, &test)?;
    let validation_scores: Vec<f64> = raw.iter().map(|&raw| scorer.kind().score(raw)).collect();
    let validation_roc_auc = Ranking::new(&validation_scores, &held_out_labels).metrics().roc_auc;
    let windows = telling_windows(&scorer, &store, files, &test_scores, recorded.value)?;
    let scores = ModelScores {
        kind: scorer.kind(),
        validation,
        held_out,
        test: test_scores,
        gone,
        scale: recorded.scale,
        unknown,
        foreign_ids: scorer.id_list().map(IdList::counted),
        least_score: recorded.short_profile,
        least_without_bytes: recorded.short_profile.map(|_| EVEN_ODDS),
    };
    Ok(Scored { model, store, scores, recorded, speed, validation_roc_auc, windows })
}

/// Warns if the requested false-positive rate is too small for the number of validation windows.
fn warn_of_rare(method: Threshold, scored: &[Scored]) {
    let Threshold::FalsePositiveRate(rate) = method else { return };
    let windows: BTreeSet<u64> = scored.iter().map(|one| one.recorded.benign_graphs).collect();
    for windows in windows.into_iter().filter(|windows| *windows > 0 && rate * (*windows as f64) < 1.0) {
        tracing::warn!(
            "--threshold {method}: {windows} attack-free validation windows support no false-positive rate below {}; the threshold is \
             their highest score, whose rate may be larger than requested",
            Threshold::FalsePositiveRate(threshold::smallest_rate(windows))
        );
    }
}

/// Describes the most informative test windows of a model.
fn telling_windows(
    scorer: &Scorer,
    store: &Store,
    files: &[TestFile],
    raw: &[Vec<f32>],
    threshold: f64,
) -> Result<Vec<Window>, StageError> {
    let graphs: Vec<u64> = files.iter().flat_map(|file| file.graphs.clone()).collect();
    let labels: Vec<bool> = files.iter().flat_map(|file| file.labels.iter().copied()).collect();
    let scores: Vec<f64> = raw.iter().flatten().map(|&raw| scorer.kind().score(raw)).collect();
    let chosen = windows::choose(&scores, &labels, threshold).into_iter();
    let describe = |(graph, why): (usize, _)| {
        retry_on_oom(Meter::new(scorer.device()), || windows::describe(scorer, store, graphs[graph], why, threshold))
    };
    Ok(chosen.map(describe).collect::<Result<_, EvaluateError>>()?)
}

/// Chooses the threshold for the mean of two models' scores, on validation data, and records it for `kdgat detect`. A number
/// given by the user applies to one model's score and not to the mean, which gets the default false-positive rate instead.
fn choose_for_mean(
    method: Threshold,
    scores: &[f64],
    store: &Store,
    models: [&Scored; 2],
) -> Result<(String, f64), EvaluateError> {
    let [gat, vgae] = models;
    let method = match method {
        Threshold::Score(_) => crate::config::EvaluationConfig::default().threshold,
        method => method,
    };
    let labels = validation_graphs(store)
        .iter()
        .map(|&graph| Ok(store.try_graph(graph)?.attack))
        .collect::<Result<Vec<_>, EvaluateError>>()?;
    let of_both = gat.scores.held_out.iter().zip(&vgae.scores.held_out).map(|(gat, vgae)| *gat && *vgae);
    let of_both: Vec<bool> = of_both.collect();
    let (scores, labels) = (only(&of_both, scores), only(&of_both, &labels));
    let unusable = |reason| EvaluateError::Input(format!("{} and {}: {reason}", gat.model.name, vgae.model.name));
    let (method, value) = (method.to_string(), threshold::choose(method, &scores, &labels).map_err(unusable)?);
    let attack_graphs = labels.iter().filter(|attack| **attack).count() as u64;
    let chosen = EnsembleThreshold {
        method: method.clone(),
        value,
        scores_digests: models.map(|one| one.model.scores_digest()).to_vec(),
        scales: models.map(|one| one.scores.scale).to_vec(),
        data_digest: store.digest().to_owned(),
        dataset: store.manifest().dataset.clone(),
        benign_graphs: labels.len() as u64 - attack_graphs,
        attack_graphs,
    };
    match ensemble::record(&gat.model, chosen) {
        // The results of a read-only run are just as valid.
        Err(error @ EvaluateError::File(_)) => tracing::warn!("{error}; continuing without recording it"),
        recorded => recorded?,
    }
    Ok((method, value))
}

/// Pairs each classifier with an autoencoder of its size and features: preferably distilled like the classifier, then with the same seed, then
/// the newest.
fn pairs(scored: &[Scored]) -> Vec<[&Scored; 2]> {
    let is_gat = |one: &&Scored| matches!(one.model.description.architecture, Architecture::Gat(_));
    let fit = |gat: &Scored, vgae: &Scored| {
        let same_seed = gat.model.seed.is_some() && gat.model.seed == vgae.model.seed;
        (gat.model.distilled == vgae.model.distilled, same_seed)
    };
    let partner = |gat| {
        let is_alike = |one: &&Scored| size_of(one) == size_of(gat) && Arc::ptr_eq(&one.store, &gat.store);
        let of_size = scored.iter().filter(|one| !is_gat(one) && is_alike(one));
        of_size.max_by_key(|vgae| fit(gat, vgae)).map(|vgae| [gat, vgae])
    };
    scored.iter().filter(is_gat).filter_map(partner).collect()
}

fn size_of(one: &Scored) -> &str {
    &one.model.description.size
}

fn describe(members: &[&Scored]) -> ModelReport {
    let join = |text: fn(&Scored) -> &str, by: &str| members.iter().map(|one| text(one)).collect::<Vec<_>>().join(by);
    let speed = match members {
        [one] => one.speed,
        // Both models score each graph: their times add up.
        members => members.iter().map(|one| one.speed).reduce(|a, b| Some(a?.and_then(&b?))).flatten(),
    };
    ModelReport {
        name: join(|one| &one.model.name, " + "),
        group: join(|one| &one.model.group, " + "),
        settings: members.iter().flat_map(|one| one.model.settings.clone()).collect(),
        kind: join(|one| one.model.description.architecture.model_name(), "+"),
        features: Some(members[0].model.description.architecture.input().features()),
        size: size_of(members[0]).to_owned(),
        distilled: members.iter().any(|one| one.model.distilled),
        seed: members[0].model.seed,
        paths: members.iter().map(|one| one.model.path.clone()).collect(),
        weights_digests: members.iter().map(|one| one.model.weights_digest.clone()).collect(),
        parameters: members.iter().map(|one| one.model.num_parameters()).sum(),
        file_bytes: members.iter().map(|one| one.model.file_bytes).sum(),
        speed,
        validation_roc_auc: if let [one] = members { one.validation_roc_auc } else { f64::NAN },
        rows: Vec::new(),
        gone: Vec::new(),
    }
}

fn write(report: &Report, all_curves: &[Vec<Curve>], scored: &[Scored], folder: &Path) -> Result<(), StageError> {
    fs::create_dir_all(folder).map_err(files::failed("write", folder))?;
    let names = report.models.iter().map(|model| model.name.as_str());
    let curves = curves::csv(names.zip(all_curves.iter().map(Vec::as_slice)));
    let of_model = |one: &Scored| ModelWindows { model: one.model.name.clone(), windows: one.windows.clone() };
    let windows = WindowsFile::new(scored.iter().map(of_model).collect());
    let other = |error: csv::Error| std::io::Error::other(error);
    let contents = [
        ("metrics.json", serde_json::to_vec_pretty(&report.json()).map_err(std::io::Error::other)),
        ("metrics.csv", report.csv().map_err(other)),
        (CURVES, curves.map_err(other)),
        (WINDOWS, serde_json::to_vec(&windows).map_err(std::io::Error::other)),
    ];
    for (name, content) in contents {
        let path = folder.join(name);
        content.and_then(|content| files::write_atomically(&path, &content)).map_err(files::failed("write", &path))?;
    }
    Ok(())
}
