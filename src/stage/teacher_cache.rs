//! `kdgat teachers cache`: a teacher's targets are computed before a training, into the cache file that it will read.
//!
//! Targets already in the file are not computed again, so an interrupted command resumes where it stopped.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::StageError;
use super::graph_targets::GraphTargets;
use super::node_targets::{NodeTargets, node_targets};
use super::target_files::TargetFiles;
use crate::config::{Config, DataKind, TeacherCache};
use crate::distill::cache::{CacheSummary, free_disk_bytes};
use crate::distill::planner::format_bytes;
use crate::graph::Share;

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

impl Cached {
    /// The result in a file of this summary, of a command that began at `start`.
    pub(super) fn of(
        path: PathBuf,
        summary: &CacheSummary,
        (computed, interrupted): (u64, bool),
        start: Instant,
    ) -> Self {
        let (filled, wanted, bytes) = (summary.filled_graphs, summary.used_graphs, summary.bytes);
        Self { path, filled, wanted, computed, bytes, seconds: start.elapsed().as_secs_f64(), interrupted }
    }
}

/// A teacher and the graphs or nodes that its targets are wanted for.
pub enum CachedTargets {
    /// Those of the nodes of one large graph.
    Nodes(Box<NodeTargets>),
    /// Those of CAN windows, or of a dataset of graphs.
    Graphs(Box<GraphTargets>),
}

impl CachedTargets {
    /// Opens the configured data and their teacher.
    ///
    /// # Errors
    /// If the configuration rules out a cache on disk, or there is no teacher for these data.
    pub fn open(config: &Config) -> Result<Self, StageError> {
        let config = &on_disk(config)?;
        Ok(match config.data_kind {
            DataKind::OneGraph => Self::Nodes(Box::new(node_targets(config)?)),
            DataKind::Graphs | DataKind::Windows => Self::Graphs(Box::new(GraphTargets::open(config)?)),
        })
    }

    fn files(&self) -> &TargetFiles {
        match self {
            Self::Nodes(targets) => targets.files(),
            Self::Graphs(targets) => targets.files(),
        }
    }

    /// The things that have targets, in the plural.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Nodes(_) => "nodes",
            Self::Graphs(_) => "graphs",
        }
    }

    /// The cache file of all targets.
    pub fn path(&self) -> PathBuf {
        self.files().path(None)
    }

    /// A folder for notes on computing the targets in `parts` parts.
    pub fn notes(&self, parts: usize) -> PathBuf {
        self.files().notes(parts)
    }

    /// True if the part has been computed completely.
    pub fn has(&self, share: Share) -> bool {
        self.files().has(share)
    }

    /// True if all targets are there.
    ///
    /// # Errors
    /// A cache that cannot be opened.
    pub fn is_complete(&self) -> Result<bool, StageError> {
        self.files().is_complete()
    }

    /// Computes the targets of a part, or of all, that are not in its file. A signal stops it.
    ///
    /// # Errors
    /// Targets that cannot be computed in parts, a full disk, or a teacher that fails.
    pub fn fill(self, share: Option<Share>) -> Result<Cached, StageError> {
        match self {
            Self::Nodes(targets) => targets.fill(share),
            Self::Graphs(targets) => targets.fill(share),
        }
    }

    /// Joins the files of all parts, which must be complete, to one and removes them.
    ///
    /// # Errors
    /// A part that is missing or damaged, or a full disk.
    pub fn merge(&self, parts: usize) -> Result<Cached, StageError> {
        let (start, files) = (Instant::now(), self.files());
        files.expect_parts(parts)?;
        match self {
            Self::Nodes(targets) => targets.announce(None)?,
            Self::Graphs(targets) => targets.announce(None)?,
        }
        Ok(Cached::of(files.path(None), &files.join(parts)?, (0, false), start))
    }
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
fn on_disk(config: &Config) -> Result<Config, StageError> {
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

pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    free_disk_bytes(path.parent().unwrap_or(Path::new(".")))
}

pub(super) fn free_text(path: &Path) -> String {
    free_bytes(path).map_or("an unknown amount".to_owned(), format_bytes)
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
