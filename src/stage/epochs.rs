//! The batches of a training on graphs of a store: all training graphs in every epoch, or those that a curriculum chooses.

use std::path::PathBuf;

use super::StageError;
use super::curriculum_log::ChoiceLog;
use super::teacher::TeacherUse;
use super::training;
use crate::config::{Config, CurriculumKind};
use crate::curriculum::{CURRICULUM_COLUMNS, Choice, GRAPH_CURRICULUM_COLUMNS, Sampler, Schedule, Scores, Selection};
use crate::graph::{BatchBudget, Shuffle, Store};
use crate::train::fit::BatchPlan;
use crate::train::objective::ObjectiveError;

/// The graphs of a run, as positions in the store.
#[derive(Debug, Clone)]
pub struct Graphs {
    pub training: Vec<u64>,
    pub validation: Vec<u64>,
    /// Graphs per batch.
    pub batch_graphs: usize,
    /// Maximum number of nodes and edges per batch, if limited.
    pub budget: Option<BatchBudget>,
    /// True to pack graphs into batches in any order, so that the batches are fuller.
    pub packed: bool,
    /// The run's seed.
    pub seed: u64,
    pub shuffle: Shuffle,
}

impl Graphs {
    /// These graphs in batches of the configured size, in shuffled order.
    ///
    /// # Errors
    /// A limit of nodes or edges per batch that the store does not allow.
    pub fn new(config: &Config, store: &Store, training: Vec<u64>, validation: Vec<u64>) -> Result<Self, StageError> {
        let settings = &config.training;
        Ok(Self {
            batch_graphs: training::batch_graphs(config, training.len()),
            budget: batch_budget(config, store)?,
            packed: false,
            seed: settings.seed,
            shuffle: Shuffle { block_graphs: settings.shuffle_block, buffer_graphs: settings.shuffle_buffer },
            training,
            validation,
        })
    }

    /// The requests to the teacher of a run with `epoch_graphs` training graphs per epoch.
    fn teacher_use_of(&self, epoch_graphs: usize) -> TeacherUse {
        let graphs: Vec<u64> = self.training.iter().chain(&self.validation).copied().collect();
        let batch_graphs = match &self.budget {
            Some(budget) => (self.batch_graphs as f64).min(budget.graphs(&graphs)),
            None => self.batch_graphs as f64,
        };
        let batches = |graphs: usize| (graphs as f64 / batch_graphs).ceil() as u64;
        let batches_per_epoch = batches(epoch_graphs) + batches(self.validation.len());
        TeacherUse { batches_per_epoch, graphs, num_viewed: self.training.len() }
    }

    /// The batches of the validation graphs, in order.
    pub fn validation_batches(&self) -> Vec<Vec<u64>> {
        self.cut(self.validation.chunks(self.batch_graphs.max(1)).map(<[u64]>::to_vec).collect())
    }

    /// Shuffles `graphs` for an epoch and cuts them into batches.
    pub fn training_batches(&self, graphs: &[u64], epoch: u64) -> Vec<Vec<u64>> {
        self.cut(self.shuffle.batches(graphs, self.batch_graphs, self.seed, epoch))
    }

    /// Cuts the batches again, in the same order, or packs them, if the number of nodes or edges is limited.
    fn cut(&self, batches: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
        match &self.budget {
            Some(budget) if self.packed => budget.pack(&batches.concat(), self.batch_graphs),
            Some(budget) => budget.cut(&batches.concat(), self.batch_graphs),
            None => batches,
        }
    }
}

impl BatchPlan for Graphs {
    fn training(&self, epoch: u64) -> Vec<Vec<u64>> {
        self.training_batches(&self.training, epoch)
    }

    fn validation(&self) -> Vec<Vec<u64>> {
        self.validation_batches()
    }
}

/// The configured maximum number of nodes and edges per batch.
fn batch_budget(config: &Config, store: &Store) -> Result<Option<BatchBudget>, StageError> {
    let [nodes, edges] =
        [config.training.batch_nodes, config.training.batch_edges].map(|most| most.map(|most| most as u64));
    if nodes.is_none() && edges.is_none() {
        return Ok(None);
    }
    let cutoff = config.model.model.is_in_space().then_some(config.graphs.cutoff);
    Ok(Some(BatchBudget::new(nodes, edges, store, cutoff)?))
}

/// The batch plan of a training on graphs.
pub struct Epochs {
    pub graphs: Graphs,
    curriculum: Option<Curriculum>,
    max_epochs: u64,
}

/// The choice of an epoch's graphs by difficulty.
struct Curriculum {
    sampler: Sampler,
    rescoring: Option<Box<dyn Rescoring>>,
    choices: Option<ChoiceLog>,
    /// Columns for `metrics.csv`.
    columns: &'static [&'static str],
}

/// Difficulties that change during a training.
pub trait Rescoring {
    /// The scores from `epoch` on, if they are due to be computed again.
    ///
    /// # Errors
    /// Whatever the scoring model or the file of scores reports.
    fn update(&mut self, epoch: u64) -> Result<Option<Scores>, ObjectiveError>;
}

impl Epochs {
    /// True if an epoch's graphs are chosen while the run trains.
    pub fn has_curriculum(&self) -> bool {
        self.curriculum.is_some()
    }

    /// Every epoch has all training graphs.
    pub fn of_all(config: &Config, graphs: Graphs) -> Self {
        Self { graphs, curriculum: None, max_epochs: config.training.max_epochs as u64 }
    }

    /// Each epoch has all of `attacks`, and some of `normals` in a ratio to them.
    pub fn of_normals(config: &Config, graphs: Graphs, attacks: &[u64], normals: &[u64]) -> Self {
        let settings = &config.curriculum;
        let schedule = Schedule {
            start_ratio: settings.curriculum_start_ratio,
            end_ratio: settings.curriculum_end_ratio,
            start_percentile: settings.difficulty_percentile,
            max_epochs: config.training.max_epochs as u64,
        };
        let sampler = Sampler::new(choice(settings.curriculum), schedule, config.training.seed, attacks, normals, None);
        let smallest = sampler.epoch_graphs(0).min(sampler.epoch_graphs(schedule.max_epochs.saturating_sub(1)));
        Self::chosen_by(config, graphs, sampler, smallest, CURRICULUM_COLUMNS)
    }

    /// Each epoch has a share of the training graphs, compared within their `classes`, if there are any.
    pub fn of_share(config: &Config, graphs: Graphs, classes: &[u32]) -> Self {
        let settings = &config.curriculum;
        let schedule = Schedule {
            start_ratio: settings.curriculum_start_share.unwrap_or(1.0),
            end_ratio: 1.0,
            start_percentile: settings.difficulty_percentile,
            max_epochs: settings.curriculum_epochs.unwrap_or(config.training.max_epochs) as u64,
        };
        let choice = choice(settings.curriculum);
        let sampler = Sampler::of_share(choice, schedule, config.training.seed, &graphs.training, classes);
        let smallest = sampler.epoch_graphs(0);
        Self::chosen_by(config, graphs, sampler, smallest, GRAPH_CURRICULUM_COLUMNS)
    }

    /// The batch size leaves the smallest epoch its minimum number of steps.
    fn chosen_by(
        config: &Config,
        mut graphs: Graphs,
        sampler: Sampler,
        smallest: usize,
        columns: &'static [&'static str],
    ) -> Self {
        graphs.batch_graphs = training::batch_graphs(config, smallest);
        let curriculum = Some(Curriculum { sampler, rescoring: None, choices: None, columns });
        Self { curriculum, ..Self::of_all(config, graphs) }
    }

    /// The requests to the run's teacher: with a curriculum, an epoch in the middle of the run is typical.
    pub fn teacher_use(&self) -> TeacherUse {
        let epoch_graphs = match &self.curriculum {
            Some(curriculum) => curriculum.sampler.epoch_graphs(self.max_epochs / 2),
            None => self.graphs.training.len(),
        };
        self.graphs.teacher_use_of(epoch_graphs)
    }

    /// Sets the difficulty of the graphs that the curriculum chooses from.
    pub fn rescore(&mut self, graphs: &[u64], difficulty: &[f32]) {
        if let Some(curriculum) = &mut self.curriculum {
            curriculum.sampler.rescore(graphs, difficulty);
        }
    }

    /// Sets what computes difficulties again during the training.
    pub fn rescore_by(&mut self, rescoring: impl Rescoring + 'static) {
        if let Some(curriculum) = &mut self.curriculum {
            curriculum.rescoring = Some(Box::new(rescoring));
        }
    }

    /// Writes the graphs that epochs choose to this file.
    pub fn log_choices(&mut self, path: PathBuf) {
        let max_epochs = self.max_epochs;
        if let Some(curriculum) = &mut self.curriculum {
            curriculum.choices = Some(ChoiceLog::new(path, max_epochs, curriculum.sampler.is_share()));
        }
    }
}

/// The configured choice of graphs.
fn choice(kind: CurriculumKind) -> Choice {
    match kind {
        CurriculumKind::Difficulty => Choice::Difficulty,
        CurriculumKind::Static => Choice::Hardest,
        CurriculumKind::Easiest => Choice::Easiest,
        CurriculumKind::Random => Choice::Random,
        CurriculumKind::Off => Choice::All,
    }
}

impl Curriculum {
    fn prepare(&mut self, epoch: u64) -> Result<(), ObjectiveError> {
        if let Some(rescoring) = &mut self.rescoring
            && let Some(scores) = rescoring.update(epoch)?
        {
            self.sampler.rescore(&scores.graphs, &scores.difficulty);
        }
        if let Some(choices) = &mut self.choices {
            choices.note(epoch, &self.sampler)?;
        }
        Ok(())
    }
}

impl BatchPlan for Epochs {
    fn prepare(&mut self, epoch: u64) -> Result<(), ObjectiveError> {
        self.curriculum.as_mut().map_or(Ok(()), |curriculum| curriculum.prepare(epoch))
    }

    fn training(&self, epoch: u64) -> Vec<Vec<u64>> {
        match &self.curriculum {
            Some(curriculum) => self.graphs.training_batches(&curriculum.sampler.select(epoch).graphs, epoch),
            None => BatchPlan::training(&self.graphs, epoch),
        }
    }

    fn validation(&self) -> Vec<Vec<u64>> {
        self.graphs.validation_batches()
    }

    fn columns(&self) -> &'static [&'static str] {
        self.curriculum.as_ref().map_or(&[], |curriculum| curriculum.columns)
    }

    fn values(&self, epoch: u64) -> Vec<String> {
        self.curriculum.as_ref().map_or_else(Vec::new, |curriculum| values_of(&curriculum.sampler.select(epoch)))
    }
}

/// Values of the columns of `metrics.csv` for a selection.
fn values_of(selection: &Selection) -> Vec<String> {
    let text = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    vec![
        selection.ratio.to_string(),
        text(selection.percentile),
        selection.normals.to_string(),
        selection.topped_up.to_string(),
        text(selection.mean_difficulty),
    ]
}
