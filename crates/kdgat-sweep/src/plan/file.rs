//! The sweep file as the user writes it. An unknown key is an error that names its line.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::metric;
use crate::SweepError;
use crate::early::EarlyStopping;
use crate::slurm::SlurmSettings;
use kdgat_config::{ByteSize, Stage};

/// Content of a sweep file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    /// Purpose of the sweep, for readers.
    #[serde(default)]
    pub description: String,
    /// Metric that trials are compared by: a column of `metrics.csv` in a run's best epoch, or a metric of `kdgat evaluate`.
    /// If absent, a metric of the validation data: see [`Self::metric`].
    pub(crate) metric: Option<String>,
    /// Direction of improvement; `minimize` if absent beside a `metric`.
    pub(crate) direction: Option<Direction>,
    /// Step whose metric is compared; the last one if absent.
    pub(crate) measure: Option<String>,
    /// Rule for combining the values of the axes.
    #[serde(default)]
    pub(crate) combine: Combine,
    /// Number of combinations to draw with `combine = "random"`.
    pub(crate) samples: Option<u64>,
    /// Seed of the random draw.
    #[serde(default)]
    pub(crate) sampling_seed: u64,
    /// Seeds; each combination is run with each of them.
    #[serde(default)]
    pub(crate) seeds: Vec<u64>,
    /// Number of retries of a failed task.
    #[serde(default = "one")]
    pub(crate) retries: u32,
    /// Chain of commands that a trial consists of.
    #[serde(default)]
    pub(crate) step: Vec<Step>,
    /// Varied settings.
    #[serde(default)]
    pub(crate) axis: Vec<AxisEntry>,
    /// Excluded combinations: names of axes with a value, or with a list of values of which any one matches.
    #[serde(default)]
    pub(crate) exclude: Vec<BTreeMap<String, toml::Value>>,
    /// Early stopping of trials; off if absent.
    pub(crate) early_stopping: Option<EarlyStopping>,
    /// Resources of a trial.
    #[serde(default)]
    pub(crate) resources: Resources,
    /// Settings of `--executor slurm`.
    #[serde(default)]
    pub(crate) slurm: SlurmSettings,
}

fn one() -> u32 {
    1
}

/// One command of the chain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub name: String,
    pub command: StepCommand,
    /// Presets, comma-separated, as for `--preset`: `vgae,student`.
    #[serde(default)]
    pub preset: String,
    /// Configuration fields and their values.
    #[serde(default)]
    pub set: BTreeMap<String, toml::Value>,
    /// Processes that train together; they share the cores and the memory of the task.
    #[serde(default = "one")]
    pub processes: u32,
    /// Fields that take the output of another step: `teacher_path = "teacher"` is the best weights of the step `teacher`.
    #[serde(default)]
    pub from: BTreeMap<String, String>,
}

/// Command of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepCommand {
    Autoencoder,
    /// Also `normal`, the name of its stage in KD-GAT.
    #[serde(alias = "normal")]
    Classifier,
    Curriculum,
    Train,
    Fusion,
    Evaluate,
}

impl StepCommand {
    /// Returns the stage that the command trains; `None` for an evaluation.
    pub fn stage(self) -> Option<Stage> {
        match self {
            Self::Autoencoder => Some(Stage::Autoencoder),
            Self::Classifier => Some(Stage::Classifier),
            Self::Curriculum => Some(Stage::Curriculum),
            Self::Train => Some(Stage::Train),
            Self::Fusion => Some(Stage::Fusion),
            Self::Evaluate => None,
        }
    }
}

/// An `[[axis]]` entry. It has exactly one of `values`, `range`, `presets`, `datasets`, `cases`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisEntry {
    /// Name, also the column in the table; the field's name if absent.
    pub name: Option<String>,
    /// Field that `values` or `range` vary.
    pub field: Option<String>,
    /// Steps that it applies to; all if absent.
    #[serde(default)]
    pub steps: Vec<String>,
    pub values: Option<Vec<toml::Value>>,
    pub range: Option<Range>,
    /// Presets that are added to those of the step.
    pub presets: Option<Vec<String>>,
    /// Folders or names of datasets; `sim` is the simulated dataset.
    pub datasets: Option<Vec<String>>,
    /// Settings of several fields at once, each with a `label`.
    pub cases: Option<Vec<BTreeMap<String, toml::Value>>>,
}

/// Range of numbers; both ends are included.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    pub from: toml::Value,
    pub to: toml::Value,
    /// Number of values, ends included; not needed with `combine = "random"`.
    pub count: Option<u64>,
    #[serde(default)]
    pub scale: Scale,
}

/// Spacing of the values of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    #[default]
    Linear,
    Log,
}

/// Direction in which a metric improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Lower values are better.
    #[default]
    Minimize,
    /// Higher values are better.
    Maximize,
}

impl Direction {
    /// True if `a` is better than `b`.
    pub fn prefers(self, a: f64, b: f64) -> bool {
        match self {
            Self::Minimize => a < b,
            Self::Maximize => a > b,
        }
    }

    /// Returns the word for it in a sweep file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minimize => "minimize",
            Self::Maximize => "maximize",
        }
    }
}

/// Rule for combining the values of the axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Combine {
    /// Each value of an axis with each value of the others.
    #[default]
    Product,
    /// The first values together, the second values together, ...
    Zip,
    /// `samples` draws.
    Random,
}

/// Most processes of a task, the same as for `kdgat launch`.
pub const MOST_PROCESSES: u32 = 1024;

/// Maximum threads of a trial, the same as for the field `threads`.
pub const MOST_THREADS: usize = 4096;

/// Resources of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// Threads of a trial; `None` to divide the cores among concurrent trials.
    pub threads: Option<usize>,
    /// Host memory that a trial needs; limits the number of concurrent trials.
    pub memory_per_trial: ByteSize,
    /// Concurrent trials per GPU, which share its memory equally.
    pub trials_per_gpu: usize,
    /// Memory increase for a task that ran out of memory on a cluster; `None` to step down the memory ladder instead.
    pub more_memory: Option<MoreMemory>,
}

/// Growth of a job's memory each time its task runs out of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoreMemory {
    /// Growth factor, above 1.
    #[serde(default = "twice")]
    pub factor: f64,
    /// Maximum memory of a task; with this much, it steps down the memory ladder instead.
    pub at_most: ByteSize,
}

fn twice() -> f64 {
    2.0
}

impl Default for Resources {
    fn default() -> Self {
        Self { threads: None, memory_per_trial: ByteSize(1 << 30), trials_per_gpu: 1, more_memory: None }
    }
}

impl Resources {
    /// Returns the host memory in bytes that a cluster job grants its task after this many increases.
    pub fn granted_bytes(&self, growths: u32) -> u64 {
        let first = self.memory_per_trial.0;
        let Some(more) = &self.more_memory else { return first };
        // The conversion saturates on overflow.
        let grown = (first as f64 * more.factor.powf(f64::from(growths))) as u64;
        grown.min(more.at_most.0.max(first))
    }

    /// Returns messages for values that are out of range.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(threads) = self.threads.filter(|threads| !(1..=MOST_THREADS).contains(threads)) {
            problems.push(format!(
                "[resources] threads = {threads} is out of range: it must be from 1 to {MOST_THREADS}, or omitted"
            ));
        }
        if self.memory_per_trial.0 == 0 {
            problems.push("[resources] memory_per_trial = 0 is too small for a trial; use for example 1GiB".to_owned());
        }
        if self.trials_per_gpu == 0 {
            problems.push("[resources] trials_per_gpu = 0 runs no trial; use 1 or more".to_owned());
        }
        let Some(MoreMemory { factor, at_most }) = &self.more_memory else { return problems };
        if !(factor.is_finite() && *factor > 1.0) {
            problems.push(format!(
                "[resources] more_memory: factor {factor} does not increase memory; use for example 2.0"
            ));
        }
        if at_most.0 <= self.memory_per_trial.0 {
            problems.push(format!(
                "[resources] more_memory: at_most ({} MiB) must be more than memory_per_trial ({} MiB)",
                at_most.0 >> 20,
                self.memory_per_trial.0 >> 20
            ));
        }
        problems
    }
}

impl SweepFile {
    /// Parses the text of a sweep file; `name` is the file's name in errors.
    ///
    /// # Errors
    /// The line of invalid TOML, of an unknown key, or of a value of the wrong type. Names and ranges are checked by
    /// [`expand`](fn@super::expand).
    pub fn parse(name: &str, text: &str) -> Result<Self, SweepError> {
        parse(name, text)
    }

    /// Returns the step whose metric is compared; `None` if there is no such step.
    pub(crate) fn measured(&self) -> Option<&Step> {
        match &self.measure {
            Some(name) => self.step.iter().find(|step| step.name == *name),
            None => self.step.last(),
        }
    }

    /// Returns the metric that trials are compared by, and its direction. The default is a metric of the validation data, so
    /// that selecting the best trial does not bias the test results.
    pub(crate) fn metric(&self) -> (&str, Direction) {
        match &self.metric {
            Some(metric) => (metric, self.direction.unwrap_or_default()),
            None => metric::default_of(self.measured().map(|step| step.command)),
        }
    }

    /// Reads and parses a file. Also returns its text.
    pub(crate) fn read(path: &Path) -> Result<(Self, String), SweepError> {
        let text = std::fs::read_to_string(path).map_err(SweepError::file(path, "read the sweep file"))?;
        Ok((Self::parse(&path.display().to_string(), &text)?, text))
    }
}

/// Settings of jobs for work other than sweeps (`--jobs-file`): the subset of a sweep file that concerns jobs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobsFile {
    /// Number of retries of a failed task.
    pub(crate) retries: u32,
    pub(crate) resources: Resources,
    pub(crate) slurm: SlurmSettings,
}

impl Default for JobsFile {
    fn default() -> Self {
        Self { retries: one(), resources: Resources::default(), slurm: SlurmSettings::default() }
    }
}

impl JobsFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// If the file cannot be read, is not valid TOML, has an unknown key, or has values that are out of range.
    pub fn read(path: &Path) -> Result<Self, SweepError> {
        let text = std::fs::read_to_string(path).map_err(SweepError::file(path, "read the job settings"))?;
        let file = path.display().to_string();
        let jobs: Self = parse(&file, &text)?;
        let problems = [jobs.resources.problems(), jobs.slurm.problems()].concat();
        if problems.is_empty() { Ok(jobs) } else { Err(SweepError::Invalid { file, problems }) }
    }
}

fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, SweepError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = text.as_bytes().iter().take(start).filter(|&&byte| byte == b'\n').count() + 1;
        SweepError::Syntax { file: name.to_owned(), line, message: error.message().to_owned() }
    })
}

/// Formats a value as for a command-line flag; elements of a list are separated by commas.
pub fn text_of(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(elements) => elements.iter().map(text_of).collect::<Vec<_>>().join(","),
        toml::Value::Float(number) => number.to_string(),
        other => other.to_string(),
    }
}
