//! Difficulty of the training graphs that a curriculum chooses from: scores of a VGAE for CAN windows; for other graphs the task loss of a
//! difficulty model, of the teacher or of the student itself, or the number of nodes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tch::Device;

use super::epochs::{Epochs, Rescoring};
use super::run::Run;
use super::setup::{self, Data};
use super::{StageError, graph_teacher, teacher, training};
use crate::config::{CachePrecision, Config, DifficultyOf, TeacherCache, difficulty_of};
use crate::curriculum::{CurriculumError, Origin, OutputSource, Scorer, Scores, TaskScorer};
use crate::distill::alpha::Alpha;
use crate::distill::foreign::ForeignTargets;
use crate::distill::frozen::{self, Asked, LoadedModel, TeacherVocabulary};
use crate::distill::objective::{GraphObjective, TeacherLink};
use crate::distill::{StoreShape, TargetName, Teacher, TeacherError, TeacherOptions};
use crate::graph::dataset::GraphSplit;
use crate::graph::{Split, Store};
use crate::memory::{Meter, retry_on_oom};
use crate::nn::attention::Backend;
use crate::nn::parameters::NamedTensor;
use crate::nn::{Architecture, GivenTensors, Gnn, GnnConfig, Scope, TargetScale};
use crate::train::objective::ObjectiveError;

/// The scores that a run is using; a resumed run reads them back.
const RUN_SCORES: &str = "last/difficulty.safetensors";
/// The log of difficulties and of the graphs that epochs chose.
const CHOICES: &str = "curriculum.csv";
/// In a file of scores, stands for the digest of a model that is being trained.
const STUDENT: &str = "student";

/// The digest of the difficulty model, which identifies a run's scores, for its `config.json`.
pub fn inputs(digest: Option<&str>) -> Map<String, Value> {
    Map::from_iter([("difficulty_model_digest".to_owned(), json!(digest))])
}

/// The scores of an interrupted run and their period, unless they are damaged or belong to other data.
fn read_run_scores(path: &Path, store: &Store) -> Option<(Scores, u64)> {
    match Scores::read_of_run(path) {
        Ok((scores, period)) if scores.origin.data_digest == store.digest() => Some((scores, period)),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!("{error}; scoring again");
            None
        }
    }
}

/// Writes scores to the run's folder, for resuming.
fn keep(scores: &Scores, period: u64, run_file: &Path) -> Result<(), CurriculumError> {
    retry_on_oom(Meter::new(Device::Cpu), || scores.write_for_run(run_file, period))
}

/// Loads the VGAE given by `--difficulty-model`, or the dataset's registered teacher.
///
/// # Errors
/// A model that cannot be read, or that reads other features than the windows have.
pub fn load_scorer(config: &Config, dataset: &str, device: Device) -> Result<Scorer, StageError> {
    let model = match &config.curriculum.difficulty_model {
        Some(path) => teacher::open(path)?,
        None => teacher::registered_vgae(config, dataset)?,
    };
    if matches!(model.architecture, Architecture::GraphVgae(_)) {
        return Err(StageError::Input(format!(
            "the difficulty model {} is an autoencoder of other graphs than CAN windows; name one that `kdgat autoencoder` trained on windows",
            model.path.display()
        )));
    }
    let (found, expected) = (model.architecture.input().features(), setup::feature_set(config));
    if found != expected {
        return Err(StageError::Input(format!(
            "the difficulty model {} reads {found} features, but the data has {expected} features; use --features {found}, \
             or another --difficulty-model",
            model.path.display()
        )));
    }
    Ok(Scorer::new(model, device, training::attention_kernel(config))?)
}

/// Scores of the normal windows, and the settings for computing them again.
struct WindowScores {
    config: Config,
    store: Arc<Store>,
    device: Device,
    normals: Vec<u64>,
    /// Epochs between two scorings; 0 scores once.
    update_epochs: u64,
    /// Number of the scoring period of the current scores: epoch / `update_epochs`.
    period: u64,
    run_file: PathBuf,
}

/// Scores the normal windows, or takes the scores of the resumed run or of the cache.
///
/// # Errors
/// A window that cannot be read, or scores that cannot be written.
pub fn score_windows(
    epochs: &mut Epochs,
    config: &Config,
    data: &Data,
    scorer: &Scorer,
    run: &Run,
) -> Result<(), StageError> {
    let normals = data.store.select(Split::Train, Some(false));
    let run_file = run.directory().file(RUN_SCORES);
    let (scores, period) = match run.resumes().then(|| read_run_scores(&run_file, &data.store)).flatten() {
        Some(found) => found,
        None => (cached_window_scores(config, scorer, &data.store, &normals)?, 0),
    };
    keep(&scores, period, &run_file)?;
    epochs.rescore(&normals, &scores.difficulty);
    epochs.rescore_by(WindowScores {
        config: config.clone(),
        store: Arc::clone(&data.store),
        device: data.device,
        normals,
        update_epochs: config.curriculum.difficulty_cache_update as u64,
        period,
        run_file,
    });
    epochs.log_choices(run.directory().file(CHOICES));
    Ok(())
}

impl WindowScores {
    /// Computes the scores with the model that is at the path now. The same model gives the same scores.
    fn scores(&self) -> Result<Scores, StageError> {
        let scorer = load_scorer(&self.config, &self.store.manifest().dataset, self.device)?;
        cached_window_scores(&self.config, &scorer, &self.store, &self.normals)
    }
}

impl Rescoring for WindowScores {
    fn update(&mut self, epoch: u64) -> Result<Option<Scores>, ObjectiveError> {
        let Some(period) = epoch.checked_div(self.update_epochs).filter(|&period| period != self.period) else {
            return Ok(None);
        };
        let scores = self.scores()?;
        keep(&scores, period, &self.run_file)?;
        self.period = period;
        Ok(Some(scores))
    }
}

/// Reads or computes the scores of windows. They are cached next to the stores, by the digests of data and model.
fn cached_window_scores(
    config: &Config,
    scorer: &Scorer,
    store: &Arc<Store>,
    normals: &[u64],
) -> Result<Scores, StageError> {
    let name = format!("{}-{}-{}.safetensors", store.manifest().dataset, &store.digest()[..12], &scorer.digest()[..12]);
    let path = config.data.stores_dir.join("difficulty").join(name);
    Ok(Scores::cached(&path, scorer, store, normals, config.curriculum.difficulty_chunk)?)
}

/// A difficulty model that is read and fits the data, before a run is opened.
pub struct DifficultyModel(LoadedModel);

impl DifficultyModel {
    /// Loads the configured difficulty model; `None` if the difficulty comes from elsewhere.
    ///
    /// # Errors
    /// Also if the difficulty would come from a file with a teacher's outputs that has no logits or values.
    pub fn find(
        config: &Config,
        data: &Data,
        student: &GnnConfig,
        split: &GraphSplit,
        foreign: Option<&ForeignTargets>,
    ) -> Result<Option<Self>, StageError> {
        if !config.curriculum.curriculum.scores() {
            return Ok(None);
        }
        let path = match (difficulty_of(config), &config.curriculum.difficulty_model, foreign) {
            (DifficultyOf::Model, Some(path), _) => path,
            (DifficultyOf::Teacher, _, Some(file)) if file.columns(TargetName::Logits).is_none() => {
                return Err(StageError::Input(format!(
                    "{}: it has no logits or values, so that it gives the curriculum no difficulty; add --difficulty-source student or \
                     size, or name a model with --difficulty-model",
                    file.path().display()
                )));
            }
            _ => return Ok(None),
        };
        Ok(Some(Self(graph_teacher::difficulty_model(config, path, data, student, split)?)))
    }

    /// The digest of the model's weights.
    pub fn digest(&self) -> &str {
        self.0.weights.digest()
    }
}

/// Scores the training graphs, or takes the scores of the resumed run or of the cache. The student's own loss is scored when it is due.
///
/// # Errors
/// A graph that cannot be read, a model that cannot compute, or scores that cannot be written.
pub fn score_graphs(
    epochs: &mut Epochs,
    config: &Config,
    data: &Data,
    model: Option<DifficultyModel>,
    student: &mut GraphObjective,
    tensors: &[NamedTensor],
    run: &mut Run,
) -> Result<(), StageError> {
    if !config.curriculum.curriculum.scores() {
        return Ok(());
    }
    let training = epochs.graphs.training.clone();
    let run_file = run.directory().file(RUN_SCORES);
    let found = run.resumes().then(|| read_run_scores(&run_file, &data.store)).flatten();
    let found = found.filter(|(scores, _)| scores.graphs == training);
    let (task, scales) = (student.task, student.model.config().target_scales.clone());
    let chunk = config.curriculum.difficulty_chunk.min(epochs.graphs.batch_graphs.max(1));
    let scorer = |output_scales, needs| TaskScorer {
        store: Arc::clone(&data.store),
        task,
        scales: scales.clone(),
        output_scales,
        needs,
        chunk,
        device: data.device,
    };
    let of = difficulty_of(config);
    run.line(&format!("curriculum: the difficulty of a graph is {}", describe(config, of, model.as_ref())));
    match of {
        DifficultyOf::Size => epochs.rescore(&training, &sizes(&data.store, &training)?),
        DifficultyOf::Student => {
            let mut of_student = StudentLoss {
                network: handle(student, tensors, training::attention_kernel(config))?,
                scorer: scorer(scales.clone(), Architecture::Graph(student.model.config().clone()).needs()),
                training,
                update_epochs: config.curriculum.difficulty_cache_update as u64,
                period: 0,
                run_file,
            };
            if let Some((scores, period)) = found {
                epochs.rescore(&scores.graphs, &scores.difficulty);
                of_student.period = period;
            }
            epochs.rescore_by(of_student);
        }
        DifficultyOf::Model | DifficultyOf::Teacher => {
            let scores = match (found, model) {
                (Some((scores, _)), _) => scores,
                (None, Some(DifficultyModel(model))) => {
                    let scales = scales_of(&model.architecture);
                    let scorer = scorer(scales, model.architecture.needs());
                    of_model(config, scorer, model, &training)?
                }
                (None, None) => {
                    let scales = student.distillation.as_ref().map(|found| found.teacher_scales.clone());
                    let scorer = scorer(scales.unwrap_or_default(), run.needs_of_teachers());
                    of_teacher(config, scorer, &mut student.teacher, &training)?
                }
            };
            keep(&scores, 0, &run_file)?;
            epochs.rescore(&scores.graphs, &scores.difficulty);
        }
    }
    epochs.log_choices(run.directory().file(CHOICES));
    Ok(())
}

fn describe(config: &Config, of: DifficultyOf, model: Option<&DifficultyModel>) -> String {
    let path = config.curriculum.difficulty_model.as_deref().unwrap_or(Path::new(""));
    let is_vgae = model.is_some_and(|DifficultyModel(model)| matches!(model.architecture, Architecture::GraphVgae(_)));
    match (of, config.curriculum.difficulty_cache_update) {
        (DifficultyOf::Model, _) if is_vgae => format!("the reconstruction error of {}", path.display()),
        (DifficultyOf::Model, _) => format!("the task loss of {}", path.display()),
        (DifficultyOf::Teacher, _) => "the teacher's task loss".to_owned(),
        (DifficultyOf::Size, _) => "its number of nodes".to_owned(),
        (DifficultyOf::Student, 0) => "the student's task loss after the first epoch".to_owned(),
        (DifficultyOf::Student, epochs) => {
            format!("the student's task loss after the first epoch, scored again every {epochs} epochs")
        }
    }
}

/// Number of nodes of each graph.
fn sizes(store: &Store, graphs: &[u64]) -> Result<Vec<f32>, StageError> {
    graphs.iter().map(|&graph| Ok(store.try_graph(graph)?.num_nodes() as f32)).collect()
}

/// Another network of the student's own tensors.
fn handle(student: &GraphObjective, tensors: &[NamedTensor], kernel: Backend) -> Result<Gnn, StageError> {
    let mut given = GivenTensors::new(tensors.iter().map(|named| (named.name.clone(), named.tensor.shallow_clone())));
    Ok(Gnn::new(Scope::root(&mut given), student.model.config(), kernel)?)
}

fn scales_of(architecture: &Architecture) -> Vec<TargetScale> {
    match architecture {
        Architecture::Graph(config) => config.target_scales.clone(),
        _ => Vec::new(),
    }
}

/// Difficulties by the run's teacher, or by the file with its outputs.
fn of_teacher(
    config: &Config,
    scorer: TaskScorer,
    teacher: &mut TeacherLink,
    training: &[u64],
) -> Result<Scores, StageError> {
    let settings = &config.distillation;
    let is_rounded = settings.cache() != TeacherCache::Off && settings.teacher_cache_precision == CachePrecision::F16;
    let digest = teacher.digest().unwrap_or_default().to_owned();
    cached(config, &scorer, (&digest, is_rounded), training, || scorer.score(OutputSource::Teacher(teacher), training))
}

/// Difficulties by a difficulty model, which is in memory only while it scores.
fn of_model(config: &Config, scorer: TaskScorer, model: LoadedModel, training: &[u64]) -> Result<Scores, StageError> {
    let digest = model.weights.digest().to_owned();
    let kernel = training::attention_kernel(config);
    if matches!(model.architecture, Architecture::GraphVgae(_)) {
        let score = || of_vgae(&scorer, model, kernel, training);
        return cached(config, &scorer, (&digest, false), training, score);
    }
    let score = || {
        let frozen = frozen::model(model.architecture, TeacherVocabulary::Shared, kernel, Asked::OUTPUTS);
        let frozen = frozen.map_err(TeacherError::from).map_err(ObjectiveError::from)?;
        let shape = StoreShape::new(&scorer.store, Some(training.to_vec()));
        let teacher = Teacher::start(frozen, model.weights, &TeacherOptions::new(scorer.device), &shape);
        let mut link = TeacherLink::new(Some(teacher.map_err(ObjectiveError::from)?), 1, Alpha::constant(1.0));
        let difficulty = scorer.score(OutputSource::Teacher(&mut link), training)?;
        if let Some(teacher) = link.into_teacher() {
            teacher.finish().map_err(ObjectiveError::from)?;
        }
        Ok(difficulty)
    };
    cached(config, &scorer, (&digest, false), training, score)
}

/// The reconstruction error of each graph.
fn of_vgae(
    scorer: &TaskScorer,
    model: LoadedModel,
    kernel: Backend,
    training: &[u64],
) -> Result<Vec<f32>, CurriculumError> {
    let mut difficulty = Vec::with_capacity(training.len());
    Scorer::new(model, scorer.device, kernel)?.score(&scorer.store, training, scorer.chunk, |scores| {
        difficulty.extend(scores.iter().map(|score| score.difficulty));
        Ok(())
    })?;
    Ok(difficulty)
}

/// Reads or computes scores. They are cached beside the stores, by digests of the data, of the training graphs, and of all else that the
/// difficulty depends on: weights, precision of their outputs, and scales of targets.
fn cached(
    config: &Config,
    scorer: &TaskScorer,
    (weights_digest, is_rounded): (&str, bool),
    training: &[u64],
    score: impl FnOnce() -> Result<Vec<f32>, CurriculumError>,
) -> Result<Scores, StageError> {
    let store = &scorer.store;
    let digest_of = |content: Value| blake3::hash(content.to_string().as_bytes()).to_hex().to_string();
    let depends_on = json!([weights_digest, is_rounded, scorer.scales, scorer.output_scales]);
    let origin = Origin { model_digest: digest_of(depends_on), data_digest: store.digest().to_owned() };
    let name = format!(
        "{}-{}-{}-{}.safetensors",
        store.manifest().dataset,
        &store.digest()[..12],
        &digest_of(json!(training))[..12],
        &origin.model_digest[..12]
    );
    let path = config.data.stores_dir.join("difficulty").join(name);
    Ok(Scores::cached_or(&path, origin, training, score)?)
}

/// Scoring by the loss of the student in training.
struct StudentLoss {
    /// Another handle to the student's tensors.
    network: Gnn,
    scorer: TaskScorer,
    training: Vec<u64>,
    /// Epochs between two scorings; 0 scores once.
    update_epochs: u64,
    /// Number of scorings so far.
    period: u64,
    run_file: PathBuf,
}

impl StudentLoss {
    /// Number of scorings before an epoch: none before the first, one before the second.
    fn period_of(&self, epoch: u64) -> u64 {
        match (epoch.checked_sub(1), self.update_epochs) {
            (None, _) => 0,
            (Some(_), 0) => 1,
            (Some(later), epochs) => 1 + later / epochs,
        }
    }
}

impl Rescoring for StudentLoss {
    fn update(&mut self, epoch: u64) -> Result<Option<Scores>, ObjectiveError> {
        let period = self.period_of(epoch);
        if period == self.period {
            return Ok(None);
        }
        let difficulty = self.scorer.score(OutputSource::Network(&self.network), &self.training)?;
        let data_digest = self.scorer.store.digest().to_owned();
        let origin = Origin { model_digest: STUDENT.to_owned(), data_digest };
        let scores = Scores { origin, graphs: self.training.clone(), difficulty };
        keep(&scores, period, &self.run_file)?;
        self.period = period;
        Ok(Some(scores))
    }
}
