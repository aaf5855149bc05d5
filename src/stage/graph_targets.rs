//! Targets of a teacher for the graphs of a store, CAN windows or others, computed before a training into the cache on disk.
//!
//! A part has whole batches of the order in which all targets are computed, so that the parts together have the bytes of one computation.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tch::Device;

use super::cache_settings::cache_options;
use super::graph_autoencoder::GraphAutoencoder;
use super::graphs::GraphNetwork;
use super::setup::{self, Data};
use super::target_files::TargetFiles;
use super::teacher::{self, FoundTeacher, teacher_options};
use super::teacher_cache::{Cached, Progress, refuse_full_disk};
use super::workload::{TeacherSource, Workload};
use super::{StageError, training};
use crate::config::{self, Config, DataKind, ModelKind, Stage};
use crate::distill::cache::{CacheKey, RecordLayout};
use crate::distill::objective::TeacherLink;
use crate::distill::{StoreShape, Summary};
use crate::graph::{Loader, Share, Split};
use crate::interrupt;
use crate::memory::{Meter, retry_on_oom};
use crate::nn::{Architecture, BatchNeeds};
use crate::torch::device::Uploader;
use crate::train::fit::FitError;
use crate::train::objective::TargetSource;

/// Graphs per batch: enough to be fast, few enough for frequent progress and quick interruption.
const BATCH_GRAPHS: usize = 512;
/// Batches announced before the first answer is read, so that the teacher never waits.
const AHEAD: usize = 2;

/// A teacher and the graphs that its targets are wanted for.
pub struct GraphTargets {
    config: Config,
    data: Data,
    found: FoundTeacher,
    wanted: Wanted,
    shape: StoreShape,
    batches: Vec<TargetBatch>,
    files: TargetFiles,
}

impl GraphTargets {
    /// Opens the configured data and their teacher.
    ///
    /// # Errors
    /// A model that has no teacher, no graph to train on, or a teacher that is missing or does not fit.
    pub fn open(config: &Config) -> Result<Self, StageError> {
        match (config.data_kind, config.model.model) {
            (_, ModelKind::Dqn) => {
                let text =
                    "an agent of `kdgat fusion` has no targets to cache; use --preset vgae,student or gat,student";
                Err(StageError::Input(text.into()))
            }
            (DataKind::Graphs, ModelKind::Vgae) => {
                let mut network = GraphAutoencoder::open(config)?;
                let source = network.find_teacher()?;
                let wanted = Wanted::of_graphs(&network.chosen.training, &network.chosen.validation);
                Self::of(config, network.data, found(source)?, wanted)
            }
            (DataKind::Graphs, _) => {
                let mut network = GraphNetwork::open(config)?;
                if network.foreign.is_some() {
                    return Err(StageError::Input(
                        "the student learns from a file with a teacher's outputs (--targets-file, or targets.safetensors of the dataset), so \
                         there is nothing to compute"
                            .into(),
                    ));
                }
                let source = network.find_teacher()?;
                let wanted = Wanted {
                    views: config::views(config, Stage::Train),
                    staggered: true,
                    ..Wanted::of_graphs(&network.split.training, &network.split.validation)
                };
                Self::of(config, network.data, found(source)?, wanted)
            }
            (_, ModelKind::Vgae) => Self::of_windows(config, Stage::Autoencoder),
            (_, ModelKind::Gat) => Self::of_windows(config, Stage::Classifier),
            (_, model) => Err(StageError::Input(format!(
                "{} is no model of CAN windows; name its graphs with --data, or use --preset vgae,student or gat,student",
                model.with_article()
            ))),
        }
    }

    fn of_windows(config: &Config, stage: Stage) -> Result<Self, StageError> {
        let data = setup::open(config)?;
        let wanted = Wanted::of_windows(&data, stage, config::views(config, stage))?;
        let found = teacher::find(config, stage, &data)?.ok_or_else(no_teacher)?;
        Self::of(config, data, found, wanted)
    }

    fn of(config: &Config, data: Data, found: FoundTeacher, wanted: Wanted) -> Result<Self, StageError> {
        let options = cache_options(config, &found, &data.dataset);
        let shape = wanted.shape(&data);
        let targets = found.model(training::attention_kernel(config))?.target_layout();
        let (digest, precision) = (found.weights.digest(), options.precision);
        let key = CacheKey::new(digest, &options.architecture, &options.features, &targets, precision, &shape);
        let layout = RecordLayout::new(targets, precision, &shape.node_counts);
        let batches = wanted.batches(config.training.batch_size.min(BATCH_GRAPHS));
        let (path, records) = (options.path.unwrap_or_default(), shape.used.clone().unwrap_or_default());
        let files = TargetFiles::new(path, (key, layout), records, batches.iter().map(|batch| batch.graphs.len()));
        Ok(Self { config: config.clone(), data, found, wanted, shape, batches, files })
    }

    /// The files of the targets.
    pub(super) fn files(&self) -> &TargetFiles {
        &self.files
    }

    /// Computes the targets of a part, or of all graphs, that are not in its file. A signal stops it.
    ///
    /// # Errors
    /// A full disk, or a teacher that fails.
    pub fn fill(self, share: Option<Share>) -> Result<Cached, StageError> {
        let start = Instant::now();
        let path = self.files.path(share);
        self.announce(share)?;
        let (summary, interrupted) = self.compute(share, path.clone())?;
        let cache = summary.cache.unwrap_or_default();
        if !interrupted && cache.filled_graphs < cache.used_graphs {
            return Err(refuse_full_disk(&path, cache.filled_graphs, cache.used_graphs));
        }
        Ok(Cached::of(path, &cache, (summary.total.cache_miss_rows, interrupted), start))
    }

    /// Prints the size and place of the targets of a part, or of all, before anything is written.
    pub(super) fn announce(&self, share: Option<Share>) -> Result<(), StageError> {
        let of = match share {
            Some(share) => {
                let in_views = if self.wanted.views > 1 { ", in their views" } else { "" };
                format!("{} graphs (part {share}{in_views})", self.files.records(Some(share)).len())
            }
            None => self.wanted.text(),
        };
        self.files.announce(share, &self.found, [&of, "", "free some space"])
    }

    /// Requests the targets of a part or of all; the teacher computes and caches those that the file lacks. Returns true in the second place
    /// if a signal interrupted it.
    fn compute(self, share: Option<Share>, path: PathBuf) -> Result<(Summary, bool), StageError> {
        let Self { config, data, found, wanted, shape, batches, files } = self;
        let batches = &batches[files.blocks(share)];
        let shape = StoreShape { used: Some(files.records(share).to_vec()), ..shape };
        let needs = BatchNeeds::of_all(found.architectures().iter().map(Architecture::needs));
        let mut options = teacher_options(&config, &found, data.device, &data.dataset, batches.len() as u64);
        options.cache.path = Some(path);
        let link = teacher::start_with(&config, found, &options, &shape)?;

        let vocabulary = Arc::new(data.store.vocabulary().clone());
        let options = training::batch_options(&config, &data.store, &vocabulary, needs, wanted.views);
        let [in_views, whole] = training::loaders(&config, &data.store, options, data.device);
        let uploader = Uploader::new(data.device).map_err(FitError::from)?;
        let total = batches.iter().map(|batch| batch.graphs.len() as u64).sum();
        let progress = Progress::new(total, "graphs");
        let mut requests = Requests { device: data.device, uploader, link, waiting: VecDeque::new(), progress };
        // Batches of the same view come one after the other.
        for of_view in batches.chunk_by(|one, other| one.view == other.view) {
            // Epoch v of a training has view v.
            let (loader, epoch) = match of_view[0].view {
                Some(view) => (&in_views, view),
                None => (&whole, 0),
            };
            requests.make(loader, of_view.iter().map(|batch| batch.graphs.clone()).collect(), epoch)?;
        }
        let Requests { link, progress, .. } = requests.receive_all()?;
        let interrupted = progress.done() < total;
        progress.finish();
        let summary = link.into_teacher().map(|teacher| teacher.finish()).transpose()?;
        Ok((summary.unwrap_or_default(), interrupted))
    }
}

/// The networks of a teacher that computes its targets.
fn found(source: TeacherSource) -> Result<FoundTeacher, StageError> {
    source.into_network().ok_or_else(no_teacher)
}

fn no_teacher() -> StageError {
    StageError::Input("no teacher is configured".into())
}

/// Graphs whose targets are computed together.
struct TargetBatch {
    /// The view in which the graphs are seen; `None` if nothing is hidden.
    view: Option<u64>,
    graphs: Vec<u64>,
}

/// The graphs whose targets a training requests, by their positions in the store.
struct Wanted {
    training: Vec<u64>,
    validation: Vec<u64>,
    /// Views of each training graph; 0 if nothing is hidden from the teacher and nothing displaced.
    views: u64,
    /// True for graphs that begin with different views.
    staggered: bool,
}

impl Wanted {
    /// All windows that a training of this stage requests from its teacher.
    fn of_windows(data: &Data, stage: Stage, views: u64) -> Result<Self, StageError> {
        let attack = (stage == Stage::Autoencoder).then_some(false);
        let [training, validation] = [Split::Train, Split::Validation].map(|split| data.store.select(split, attack));
        if training.is_empty() && validation.is_empty() {
            return Err(StageError::Input(format!(
                "dataset {} has no graph that `kdgat {}` would train on; see `kdgat data info`",
                data.dataset.name,
                stage.command()
            )));
        }
        Ok(Self { training, validation, views, staggered: false })
    }

    /// The graphs of a division.
    fn of_graphs(training: &[u64], validation: &[u64]) -> Self {
        Self { training: training.to_vec(), validation: validation.to_vec(), views: 0, staggered: false }
    }

    /// The shape of a cache of their targets. Its records are in the order of [`Wanted::batches`].
    fn shape(&self, data: &Data) -> StoreShape {
        let graphs = [&self.training[..], &self.validation].concat();
        StoreShape::new(&data.store, Some(graphs)).in_views(self.views, self.training.len(), self.staggered)
    }

    /// The training graphs of each view, then the validation graphs, in batches.
    fn batches(&self, batch_graphs: usize) -> Vec<TargetBatch> {
        let cut = |graphs: &[u64], view: Option<u64>| -> Vec<TargetBatch> {
            graphs.chunks(batch_graphs).map(|graphs| TargetBatch { view, graphs: graphs.to_vec() }).collect()
        };
        let views = match self.views {
            0 => vec![None],
            views => (0..views).map(Some).collect(),
        };
        let training = views.into_iter().flat_map(|view| cut(&self.training, view));
        training.chain(cut(&self.validation, None)).collect()
    }

    /// The graphs and their views in words.
    fn text(&self) -> String {
        let (training, validation, views) = (self.training.len(), self.validation.len(), self.views);
        match views {
            0 | 1 => format!("{} graphs", training + validation),
            _ => format!("{training} training graphs in {views} views and {validation} validation graphs"),
        }
    }
}

/// Requests that a teacher answers in turn.
struct Requests {
    device: Device,
    uploader: Uploader,
    link: TeacherLink,
    /// Graphs of each batch whose targets were not received yet.
    waiting: VecDeque<u64>,
    progress: Progress,
}

impl Requests {
    /// Requests the targets of batches of these graphs, until a signal interrupts it.
    fn make(&mut self, loader: &Loader, batches: Vec<Vec<u64>>, epoch: u64) -> Result<(), StageError> {
        for batch in loader.epoch(batches, epoch) {
            if interrupt::requested() {
                break;
            }
            let batch = batch?;
            let uploaded =
                retry_on_oom(Meter::new(self.device), || Ok::<_, FitError>(batch.upload(&mut self.uploader)?))?;
            self.waiting.push_back(uploaded.num_graphs() as u64);
            self.link.announce(&[uploaded]).map_err(FitError::Objective)?;
            if self.waiting.len() > AHEAD {
                self.receive()?;
            }
        }
        Ok(())
    }

    /// Waits for the targets of the oldest batch.
    fn receive(&mut self) -> Result<(), StageError> {
        self.link.receive().map_err(FitError::Objective)?;
        self.link.read()?;
        self.progress.add(self.waiting.pop_front().unwrap_or(0));
        Ok(())
    }

    fn receive_all(mut self) -> Result<Self, StageError> {
        while !self.waiting.is_empty() {
            self.receive()?;
        }
        Ok(self)
    }
}
