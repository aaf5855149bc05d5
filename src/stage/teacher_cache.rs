//! Computes a teacher's targets for a dataset before training, into the cache file that training will read.
//!
//! Targets already in the file are not computed again, so an interrupted command resumes where it stopped.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tch::Device;

use super::cache_settings::cache_options;
use super::setup::{self, Data};
use super::teacher::{self, FoundTeacher, TeacherUse};
use super::{StageError, training};
use crate::config::{self, Config, DataKind, ModelKind, Stage, TeacherCache};
use crate::distill::Summary;
use crate::distill::cache::{RecordLayout, free_disk_bytes};
use crate::distill::objective::TeacherLink;
use crate::distill::planner::format_bytes;
use crate::graph::{Loader, Split};
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
/// Time between two plain lines of progress.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The result of `kdgat teachers cache`.
#[derive(Debug)]
pub struct Cached {
    /// The cache file.
    pub path: PathBuf,
    /// Graphs or nodes whose targets are in the file now.
    pub filled: u64,
    /// Graphs or nodes that training will request.
    pub wanted: u64,
    /// Graphs or nodes whose targets were computed by this command.
    pub computed: u64,
    /// Size of all targets, in bytes.
    pub bytes: u64,
    pub seconds: f64,
    /// True if a signal stopped the command.
    pub interrupted: bool,
}

/// Runs `kdgat teachers cache`.
///
/// # Errors
/// If the configuration rules out a cache on disk, there is no teacher, the disk is full, or the teacher fails.
pub fn cache_teacher(config: &Config) -> Result<Cached, StageError> {
    let start = Instant::now();
    let config = &on_disk(config)?;
    let stage = match config.model.model {
        _ if config.data_kind == DataKind::Graphs => return Err(cached_in_training()),
        ModelKind::Vgae => Stage::Autoencoder,
        ModelKind::Gat => Stage::Classifier,
        ModelKind::Dqn => {
            let text = "an agent of `kdgat fusion` has no targets to cache; use --preset vgae,student or gat,student";
            return Err(StageError::Input(text.into()));
        }
        _ => return Err(cached_in_training()),
    };
    let data = setup::open(config)?;
    let wanted = Wanted::new(&data, stage, config::views(config, stage))?;
    let found = teacher::find(config, stage, &data)?;
    let Some(found) = found else { return Err(StageError::Input("no teacher is configured".into())) };
    let needs = BatchNeeds::of_all(found.architectures().iter().map(Architecture::needs));
    let batch_graphs = config.training.batch_size.min(BATCH_GRAPHS);
    let usage = wanted.teacher_use(batch_graphs);
    let path = announce_size(config, &found, &data, &wanted, &usage)?;
    let link = teacher::start(config, Some(found), &data, usage)?;
    let (summary, interrupted) = fill(config, &data, link, &wanted, batch_graphs, needs)?;
    let cache = summary.cache.unwrap_or_default();
    if !interrupted && cache.filled_graphs < cache.used_graphs {
        return Err(refuse_full_disk(&path, cache.filled_graphs, cache.used_graphs));
    }
    Ok(Cached {
        path,
        filled: cache.filled_graphs,
        wanted: cache.used_graphs,
        computed: summary.total.cache_miss_rows,
        bytes: cache.bytes,
        seconds: start.elapsed().as_secs_f64(),
        interrupted,
    })
}

fn cached_in_training() -> StageError {
    let text = "targets of many graphs are cached while `kdgat train` or `kdgat autoencoder` trains; `kdgat teachers cache` is for models of \
                CAN windows and of the nodes of one large graph";
    StageError::Input(text.into())
}

/// The error of a disk that became full.
pub(super) fn refuse_full_disk(path: &Path, filled: u64, wanted: u64) -> StageError {
    StageError::Input(format!(
        "{}: only {filled} of {wanted} targets could be cached; the disk has {} free. Free some space and run the same command again to \
         continue",
        path.display(),
        free_text(path),
    ))
}

/// Turns on the teacher and its cache on disk, whatever the student's preset says.
pub(super) fn on_disk(config: &Config) -> Result<Config, StageError> {
    let mut config = config.clone();
    match config.distillation.cache() {
        TeacherCache::Auto | TeacherCache::Disk => {}
        TeacherCache::Ram => {
            return Err(StageError::Input(
                "--teacher-cache ram caches targets in memory, which is freed when this command ends; \
                 leave it out, or use --teacher-cache disk"
                    .into(),
            ));
        }
        TeacherCache::Off => {
            return Err(StageError::Input(
                "the teacher's cache is turned off (teacher_cache or use_teacher_cache), so nothing would read \
                 what this command computes; use --use-teacher-cache --teacher-cache disk"
                    .into(),
            ));
        }
    }
    config.distillation.use_kd = true;
    config.distillation.teacher_cache = TeacherCache::Disk;
    Ok(config)
}

/// The graphs whose targets a training requests, by their positions in the store.
struct Wanted {
    training: Vec<u64>,
    validation: Vec<u64>,
    /// Views of each training graph; 0 if nothing is hidden from the teacher.
    views: u64,
}

impl Wanted {
    /// All graphs that a training of this stage requests from its teacher.
    fn new(data: &Data, stage: Stage, views: u64) -> Result<Self, StageError> {
        let attack = (stage == Stage::Autoencoder).then_some(false);
        let [training, validation] = [Split::Train, Split::Validation].map(|split| data.store.select(split, attack));
        if training.is_empty() && validation.is_empty() {
            return Err(StageError::Input(format!(
                "dataset {} has no graph that `kdgat {}` would train on; see `kdgat data info`",
                data.dataset.name,
                stage.command()
            )));
        }
        Ok(Self { training, validation, views })
    }

    /// Number of targets.
    fn count(&self) -> usize {
        self.training.len() * self.views.max(1) as usize + self.validation.len()
    }

    fn teacher_use(&self, batch_graphs: usize) -> TeacherUse {
        let graphs = [&self.training[..], &self.validation].concat();
        let batches_per_epoch = self.count().div_ceil(batch_graphs) as u64;
        TeacherUse { graphs, num_viewed: self.training.len(), batches_per_epoch }
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

/// Prints the size and place of the targets before anything is written. Returns the path of the cache file.
fn announce_size(
    config: &Config,
    found: &FoundTeacher,
    data: &Data,
    wanted: &Wanted,
    usage: &TeacherUse,
) -> Result<PathBuf, StageError> {
    let options = cache_options(config, found, &data.dataset);
    let path = options.path.unwrap_or_default();
    let model = found.model(training::attention_kernel(config))?;
    let shape = usage.shape(&data.store, wanted.views);
    let layout = RecordLayout::new(model.target_layout(), options.precision, &shape.node_counts);
    let bytes = layout.total_bytes(shape.used.as_deref()).map_err(crate::distill::TeacherError::from)?;
    let size = format!("targets of {} take {} in {}", wanted.text(), format_bytes(bytes), options.precision.as_str());
    eprintln!(
        "teacher {} ({}): {size}; {} has {} free",
        &found.weights.digest()[..12],
        found.architecture.model_name(),
        path.display(),
        free_text(&path)
    );
    expect_room(&path, bytes, &size, "free some space")?;
    Ok(path)
}

/// Refuses a file that the disk has no room for; one that exists needs no more for its filled records. `advice` is the first of the things to
/// do.
pub(super) fn expect_room(path: &Path, bytes: u64, size: &str, advice: &str) -> Result<(), StageError> {
    if !path.exists() && free_bytes(path).is_some_and(|free| free < bytes) {
        return Err(StageError::Input(format!(
            "{size}, but the disk of {} has {} free; {advice}, use --teacher-cache-precision f16, \
             or choose another disk with --teacher-cache-dir",
            path.display(),
            free_text(path)
        )));
    }
    Ok(())
}

fn free_bytes(path: &Path) -> Option<u64> {
    free_disk_bytes(path.parent().unwrap_or(Path::new(".")))
}

pub(super) fn free_text(path: &Path) -> String {
    free_bytes(path).map_or("an unknown amount".to_owned(), format_bytes)
}

/// Requests all targets; the teacher computes and caches those that the file lacks. Returns true in the second place if a signal
/// interrupted it.
fn fill(
    config: &Config,
    data: &Data,
    link: TeacherLink,
    wanted: &Wanted,
    batch_graphs: usize,
    needs: BatchNeeds,
) -> Result<(Summary, bool), StageError> {
    let total = wanted.count() as u64;
    let vocabulary = Arc::new(data.store.vocabulary().clone());
    let (in_views, whole) = training::loaders(config, &data.store, &vocabulary, needs, data.device, wanted.views);
    let uploader = Uploader::new(data.device).map_err(FitError::from)?;
    let progress = Progress::new(total, "graphs");
    let mut requests = Requests { device: data.device, uploader, link, waiting: VecDeque::new(), progress };
    let batches = |graphs: &[u64]| graphs.chunks(batch_graphs).map(<[u64]>::to_vec).collect();
    let training_loader = if wanted.views > 0 { &in_views } else { &whole };
    // Epoch v of a training has view v.
    for view in 0..wanted.views.max(1) {
        requests.make(training_loader, batches(&wanted.training), view)?;
    }
    requests.make(&whole, batches(&wanted.validation), 0)?;
    let Requests { link, progress, .. } = requests.receive_all()?;
    let interrupted = progress.done < total;
    progress.finish();
    let summary = link.into_teacher().map(|teacher| teacher.finish()).transpose()?;
    Ok((summary.unwrap_or_default(), interrupted))
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

/// Progress display: a bar on a terminal, else a line every [`LINE_INTERVAL`].
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    unit: &'static str,
    total: u64,
    done: u64,
    last_line: Instant,
}

impl Progress {
    /// Progress of `total` units, named in the plural.
    pub(super) fn new(total: u64, unit: &'static str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = format!("targets [{{bar:24}}] {{pos}}/{{len}} {unit} {{per_sec}} {{eta}} left");
            let style = ProgressStyle::with_template(&template);
            // The template is a constant; the default style would do as well.
            ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, unit, total, done: 0, last_line: Instant::now() }
    }

    /// Units that are done.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    pub(super) fn add(&mut self, more: u64) {
        self.done += more;
        match &self.bar {
            Some(bar) => bar.set_position(self.done),
            None if self.last_line.elapsed() >= LINE_INTERVAL => {
                self.last_line = Instant::now();
                eprintln!("{} of {} {}", self.done, self.total, self.unit);
            }
            None => {}
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
