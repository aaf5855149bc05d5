//! The batches of `kdgat curriculum`, and the difficulty scores that determine them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tch::Device;

use super::StageError;
use super::curriculum_log::ChoiceLog;
use super::setup::{self, Data};
use super::teacher;
use super::training::{self, Graphs, StagePlan};
use crate::config::{Config, CurriculumKind};
use crate::curriculum::{CURRICULUM_COLUMNS, Choice, Sampler, Schedule, Scorer, Scores, Selection};
use crate::graph::{Split, Store};
use crate::memory::{Meter, retry_on_oom};
use crate::train::fit::BatchPlan;
use crate::train::objective::ObjectiveError;
use crate::train::run_directory::RunDirectory;

/// The scores that a run is using; a resumed run reads them back.
pub(super) const RUN_SCORES: &str = "last/difficulty.safetensors";
/// The log of difficulties and of the graphs that epochs chose.
pub(super) const CHOICES: &str = "curriculum.csv";

/// The batch plan of a curriculum: each epoch has all attacks, and normal graphs chosen by the curriculum.
pub struct CurriculumEpochs {
    graphs: Graphs,
    sampler: Sampler,
    scoring: Option<Scoring>,
    choices: Option<ChoiceLog>,
}

/// The difficulty scores, and the settings for computing them again.
struct Scoring {
    config: Config,
    store: Arc<Store>,
    device: Device,
    normals: Vec<u64>,
    /// Epochs between two scorings; 0 scores once.
    update_epochs: u64,
    /// Number of the scoring period of the current scores: epoch / `update_epochs`.
    period: u64,
    scores: Scores,
    run_file: PathBuf,
}

/// The configured scorer, if the curriculum needs one. Called before a run is opened.
pub fn scorer(config: &Config, data: &Data) -> Result<Option<Scorer>, StageError> {
    match config.curriculum.curriculum {
        kind if kind.scores() => Ok(Some(load_scorer(config, &data.dataset.name, data.device)?)),
        _ => Ok(None),
    }
}

/// The digest of the difficulty model, which identifies a run's scores, for its `config.json`.
pub fn inputs(scorer: Option<&Scorer>) -> Map<String, Value> {
    let digest = scorer.map(Scorer::digest);
    Map::from_iter([("difficulty_model_digest".to_owned(), json!(digest))])
}

/// Loads the VGAE given by `--difficulty-model`, or the dataset's registered teacher.
pub fn load_scorer(config: &Config, dataset: &str, device: Device) -> Result<Scorer, StageError> {
    let model = match &config.curriculum.difficulty_model {
        Some(path) => teacher::open(path)?,
        None => teacher::registered(config, dataset, "vgae")?,
    };
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

/// The configured choice of graphs.
pub(super) fn choice(kind: CurriculumKind) -> Choice {
    match kind {
        CurriculumKind::Difficulty => Choice::Difficulty,
        CurriculumKind::Static => Choice::Hardest,
        CurriculumKind::Easiest => Choice::Easiest,
        CurriculumKind::Random => Choice::Random,
        CurriculumKind::Off => Choice::All,
    }
}

impl CurriculumEpochs {
    /// Creates the plan before anything is scored; the number of graphs per epoch does not depend on the scores. The batch size
    /// leaves the smallest epoch its minimum number of steps.
    pub fn new(config: &Config, data: &Data, mut graphs: Graphs) -> Self {
        let (attacks, normals) =
            (data.store.select(Split::Train, Some(true)), data.store.select(Split::Train, Some(false)));
        let settings = &config.curriculum;
        let schedule = Schedule {
            start_ratio: settings.curriculum_start_ratio,
            end_ratio: settings.curriculum_end_ratio,
            start_percentile: settings.difficulty_percentile,
            max_epochs: config.training.max_epochs as u64,
        };
        let choice = choice(settings.curriculum);
        let sampler = Sampler::new(choice, schedule, config.training.seed, &attacks, &normals, None);
        let last_epoch = schedule.max_epochs.saturating_sub(1);
        let smallest = sampler.epoch_graphs(0).min(sampler.epoch_graphs(last_epoch));
        graphs.batch_graphs = training::batch_graphs(config, smallest);
        Self { graphs, sampler, scoring: None, choices: None }
    }

    /// Number of graphs of an epoch in the middle of the run.
    pub fn typical_epoch_graphs(&self, max_epochs: usize) -> usize {
        self.sampler.epoch_graphs(max_epochs as u64 / 2)
    }

    /// Scores the normal graphs, or takes the scores of the resumed run or of the cache.
    pub fn score(
        &mut self,
        config: &Config,
        data: &Data,
        scorer: &Scorer,
        run: &RunDirectory,
        resumes: bool,
    ) -> Result<(), StageError> {
        let normals = data.store.select(Split::Train, Some(false));
        let run_file = run.file(RUN_SCORES);
        let (scores, period) = match resumes.then(|| read_run_scores(&run_file, &data.store)).flatten() {
            Some(found) => found,
            None => (cached_scores(config, scorer, &data.store, &normals)?, 0),
        };
        let scoring = Scoring {
            config: config.clone(),
            store: Arc::clone(&data.store),
            device: data.device,
            normals,
            update_epochs: config.curriculum.difficulty_cache_update as u64,
            period,
            scores,
            run_file,
        };
        scoring.keep()?;
        self.sampler.rescore(&scoring.normals, &scoring.scores.difficulty);
        self.scoring = Some(scoring);
        self.choices = Some(ChoiceLog::of_normals(run.file(CHOICES), config.training.max_epochs as u64));
        Ok(())
    }

    fn selection(&self, epoch: u64) -> Selection {
        self.sampler.select(epoch)
    }
}

impl Scoring {
    /// Computes the scores again if they are due, with the model that is at the path now; returns true if it did. The same model
    /// gives the same scores.
    fn update(&mut self, epoch: u64) -> Result<bool, StageError> {
        let Some(period) = epoch.checked_div(self.update_epochs) else { return Ok(false) };
        if period == self.period {
            return Ok(false);
        }
        let scorer = load_scorer(&self.config, &self.store.manifest().dataset, self.device)?;
        self.scores = cached_scores(&self.config, &scorer, &self.store, &self.normals)?;
        self.period = period;
        self.keep()?;
        Ok(true)
    }

    /// Writes the scores to the run's folder, for resuming.
    fn keep(&self) -> Result<(), StageError> {
        retry_on_oom(Meter::new(Device::Cpu), || Ok(self.scores.write_for_run(&self.run_file, self.period)?))
    }
}

/// The scores of an interrupted run and their period, unless they are damaged or belong to other data.
pub(super) fn read_run_scores(path: &Path, store: &Store) -> Option<(Scores, u64)> {
    match Scores::read_of_run(path) {
        Ok((scores, period)) if scores.origin.data_digest == store.digest() => Some((scores, period)),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!("{error}; scoring again");
            None
        }
    }
}

/// Reads or computes the scores. They are cached next to the stores, by the digests of data and model.
fn cached_scores(config: &Config, scorer: &Scorer, store: &Arc<Store>, normals: &[u64]) -> Result<Scores, StageError> {
    let name = format!("{}-{}-{}.safetensors", store.manifest().dataset, &store.digest()[..12], &scorer.digest()[..12]);
    let path = config.data.stores_dir.join("difficulty").join(name);
    Ok(Scores::cached(&path, scorer, store, normals, config.curriculum.difficulty_chunk)?)
}

impl StagePlan for CurriculumEpochs {
    fn graphs(&self) -> &Graphs {
        &self.graphs
    }

    fn set_batch_graphs(&mut self, batch_graphs: usize) {
        self.graphs.batch_graphs = batch_graphs;
    }
}

impl BatchPlan for CurriculumEpochs {
    fn prepare(&mut self, epoch: u64) -> Result<(), ObjectiveError> {
        if let Some(scoring) = &mut self.scoring
            && scoring.update(epoch)?
        {
            self.sampler.rescore(&scoring.normals, &scoring.scores.difficulty);
        }
        if let Some(choices) = &mut self.choices {
            choices.note(epoch, &self.sampler)?;
        }
        Ok(())
    }

    fn training(&self, epoch: u64) -> Vec<Vec<u64>> {
        let graphs = self.selection(epoch).graphs;
        self.graphs.training_batches(&graphs, epoch)
    }

    fn validation(&self) -> Vec<Vec<u64>> {
        self.graphs.validation_batches()
    }

    fn columns(&self) -> &'static [&'static str] {
        CURRICULUM_COLUMNS
    }

    fn values(&self, epoch: u64) -> Vec<String> {
        values_of(&self.selection(epoch))
    }
}

/// Values of the columns of `metrics.csv` for a selection.
pub(super) fn values_of(selection: &Selection) -> Vec<String> {
    let text = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    vec![
        selection.ratio.to_string(),
        text(selection.percentile),
        selection.normals.to_string(),
        selection.topped_up.to_string(),
        text(selection.mean_difficulty),
    ]
}
