//! The batches of `kdgat train` with a curriculum, and the difficulty that determines them: the task loss of a difficulty model, of the
//! teacher or of the student itself, or the number of nodes.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::StageError;
use super::curriculum::{CHOICES, RUN_SCORES, choice, read_run_scores, values_of};
use super::curriculum_log::ChoiceLog;
use super::run::Run;
use super::setup::Data;
use super::teacher;
use super::train::schema;
use super::training::{self, Graphs, StagePlan};
use crate::config::{CachePrecision, Config, DifficultyOf, TeacherCache, difficulty_of};
use crate::curriculum::{
    CurriculumError, GRAPH_CURRICULUM_COLUMNS, Origin, OutputSource, Sampler, Schedule, Scores, TaskScorer,
};
use crate::distill::foreign::ForeignTargets;
use crate::distill::frozen::{self, Asked, LoadedModel, TeacherVocabulary};
use crate::distill::objective::{GraphObjective, TeacherLink};
use crate::distill::{StoreShape, TargetName, Teacher, TeacherError, TeacherOptions};
use crate::graph::dataset::GraphSplit;
use crate::graph::{Store, Task};
use crate::memory::{Meter, retry_on_oom};
use crate::nn::parameters::NamedTensor;
use crate::nn::{Architecture, GivenTensors, Gnn, GnnConfig, Scope, TargetScale};
use crate::train::fit::BatchPlan;
use crate::train::objective::ObjectiveError;

/// In a file of scores, stands for the digest of a model that is being trained.
const STUDENT: &str = "student";

/// The batch plan of a curriculum on a dataset of graphs: each epoch has a share of the training graphs, chosen by difficulty.
pub struct GraphCurriculum {
    graphs: Graphs,
    sampler: Sampler,
    of_student: Option<StudentLoss>,
    choices: Option<ChoiceLog>,
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
        Ok(Some(Self(teacher::difficulty_model(config, path, data, student, split)?)))
    }

    /// The digest of the difficulty model, for the run's `config.json`.
    pub fn inputs(model: Option<&Self>) -> Map<String, Value> {
        let digest = model.map(|Self(model)| model.weights.digest());
        Map::from_iter([("difficulty_model_digest".to_owned(), json!(digest))])
    }
}

impl GraphCurriculum {
    /// Creates the plan before anything is scored. The batch size leaves the first epoch, the smallest, its minimum number of steps.
    ///
    /// # Errors
    /// A damaged store.
    pub fn new(config: &Config, data: &Data, mut graphs: Graphs) -> Result<Self, StageError> {
        let settings = &config.curriculum;
        let schedule = Schedule {
            start_ratio: settings.curriculum_start_share.unwrap_or(1.0),
            end_ratio: 1.0,
            start_percentile: settings.difficulty_percentile,
            max_epochs: settings.curriculum_epochs.unwrap_or(config.training.max_epochs) as u64,
        };
        let choice = choice(settings.curriculum);
        let classes = classes(&data.store, &graphs.training)?;
        let sampler = Sampler::of_share(choice, schedule, config.training.seed, &graphs.training, &classes);
        graphs.batch_graphs = training::batch_graphs(config, sampler.epoch_graphs(0));
        Ok(Self { graphs, sampler, of_student: None, choices: None })
    }

    /// Number of graphs of an epoch in the middle of the run.
    pub fn typical_epoch_graphs(&self, max_epochs: usize) -> usize {
        self.sampler.epoch_graphs(max_epochs as u64 / 2)
    }

    /// Scores the training graphs, or takes the scores of the resumed run or of the cache. The student's own loss is scored when it is due.
    pub fn score(
        &mut self,
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
        let training = self.graphs.training.clone();
        let run_file = run.directory().file(RUN_SCORES);
        let found = run.resumes().then(|| read_run_scores(&run_file, &data.store)).flatten();
        let found = found.filter(|(scores, _)| scores.graphs == training);
        let scorer = |output_scales, edge_features| TaskScorer {
            store: Arc::clone(&data.store),
            task: student.task,
            scales: student.model.config().target_scales.clone(),
            output_scales,
            edge_features,
            chunk: config.curriculum.difficulty_chunk.min(self.graphs.batch_graphs.max(1)),
            device: data.device,
        };
        let of = difficulty_of(config);
        run.line(&format!("curriculum: the difficulty of a graph is {}", describe(config, of)));
        match of {
            DifficultyOf::Size => {
                let sizes = sizes(&data.store, &training)?;
                self.sampler.rescore(&training, &sizes);
            }
            DifficultyOf::Student => {
                let own = student.model.config();
                let mut of_student = StudentLoss {
                    network: handle(student, tensors, training::attention_kernel(config))?,
                    scorer: scorer(own.target_scales.clone(), own.edge_features > 0),
                    training,
                    update_epochs: config.curriculum.difficulty_cache_update as u64,
                    period: 0,
                    run_file,
                };
                if let Some((scores, period)) = found {
                    self.sampler.rescore(&scores.graphs, &scores.difficulty);
                    of_student.period = period;
                }
                self.of_student = Some(of_student);
            }
            DifficultyOf::Model | DifficultyOf::Teacher => {
                let scores = match (found, model) {
                    (Some((scores, _)), _) => scores,
                    (None, Some(DifficultyModel(model))) => {
                        let scales = scales_of(&model.architecture);
                        let scorer = scorer(scales, model.architecture.reads_edge_features());
                        of_model(config, scorer, model, &training)?
                    }
                    (None, None) => {
                        let scales = student.distillation.as_ref().map(|found| found.teacher_scales.clone());
                        let scorer = scorer(scales.unwrap_or_default(), run.teacher_reads_edge_features());
                        of_teacher(config, scorer, &mut student.teacher, &training)?
                    }
                };
                keep(&scores, 0, &run_file)?;
                self.sampler.rescore(&scores.graphs, &scores.difficulty);
            }
        }
        self.choices = Some(ChoiceLog::of_graphs(run.directory().file(CHOICES), config.training.max_epochs as u64));
        Ok(())
    }
}

fn describe(config: &Config, of: DifficultyOf) -> String {
    let path = config.curriculum.difficulty_model.as_deref().unwrap_or(std::path::Path::new(""));
    match (of, config.curriculum.difficulty_cache_update) {
        (DifficultyOf::Model, _) => format!("the task loss of {}", path.display()),
        (DifficultyOf::Teacher, _) => "the teacher's task loss".to_owned(),
        (DifficultyOf::Size, _) => "its number of nodes".to_owned(),
        (DifficultyOf::Student, 0) => "the student's task loss after the first epoch".to_owned(),
        (DifficultyOf::Student, epochs) => {
            format!("the student's task loss after the first epoch, scored again every {epochs} epochs")
        }
    }
}

/// Class of each graph; empty for a task without classes.
fn classes(store: &Store, graphs: &[u64]) -> Result<Vec<u32>, StageError> {
    if schema(store)?.task != Task::Classification {
        return Ok(Vec::new());
    }
    let class = |&graph: &u64| Ok(store.try_graph(graph)?.targets_of_graph.first().map_or(0, |&class| class as u32));
    graphs.iter().map(class).collect()
}

/// Number of nodes of each graph.
fn sizes(store: &Store, graphs: &[u64]) -> Result<Vec<f32>, StageError> {
    graphs.iter().map(|&graph| Ok(store.try_graph(graph)?.num_nodes() as f32)).collect()
}

/// Another network of the student's own tensors.
fn handle(
    student: &GraphObjective,
    tensors: &[NamedTensor],
    kernel: crate::nn::attention::Backend,
) -> Result<Gnn, StageError> {
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
    let score = || {
        let frozen = frozen::model(model.architecture, TeacherVocabulary::Shared, kernel, Asked::OUTPUTS);
        let frozen = frozen.map_err(TeacherError::from).map_err(ObjectiveError::from)?;
        let shape = StoreShape::new(&scorer.store, Some(training.to_vec()));
        let teacher = Teacher::start(frozen, model.weights, &TeacherOptions::new(scorer.device), &shape);
        let mut link = TeacherLink::new(Some(teacher.map_err(ObjectiveError::from)?), 1);
        let difficulty = scorer.score(OutputSource::Teacher(&mut link), training)?;
        if let Some(teacher) = link.into_teacher() {
            teacher.finish().map_err(ObjectiveError::from)?;
        }
        Ok(difficulty)
    };
    cached(config, &scorer, (&digest, false), training, score)
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

/// Writes scores to the run's folder, for resuming.
fn keep(scores: &Scores, period: u64, run_file: &std::path::Path) -> Result<(), CurriculumError> {
    retry_on_oom(Meter::new(tch::Device::Cpu), || scores.write_for_run(run_file, period))
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

    /// Scores the training graphs if that is due.
    fn update(&mut self, epoch: u64) -> Result<Option<Scores>, CurriculumError> {
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

impl StagePlan for GraphCurriculum {
    fn graphs(&self) -> &Graphs {
        &self.graphs
    }

    fn set_batch_graphs(&mut self, batch_graphs: usize) {
        self.graphs.batch_graphs = batch_graphs;
    }
}

impl BatchPlan for GraphCurriculum {
    fn prepare(&mut self, epoch: u64) -> Result<(), ObjectiveError> {
        if let Some(of_student) = &mut self.of_student
            && let Some(scores) = of_student.update(epoch)?
        {
            self.sampler.rescore(&scores.graphs, &scores.difficulty);
        }
        if let Some(choices) = &mut self.choices {
            choices.note(epoch, &self.sampler)?;
        }
        Ok(())
    }

    fn training(&self, epoch: u64) -> Vec<Vec<u64>> {
        self.graphs.training_batches(&self.sampler.select(epoch).graphs, epoch)
    }

    fn validation(&self) -> Vec<Vec<u64>> {
        self.graphs.validation_batches()
    }

    fn columns(&self) -> &'static [&'static str] {
        GRAPH_CURRICULUM_COLUMNS
    }

    fn values(&self, epoch: u64) -> Vec<String> {
        values_of(&self.sampler.select(epoch))
    }
}
