//! The sweep file: what a user writes. Strict: a name that no sweep has is an error with its line.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::metric;
use crate::config::{ByteSize, Stage};
use crate::sweep::SweepError;
use crate::sweep::early::EarlyStopping;
use crate::sweep::slurm::SlurmSettings;

/// A sweep as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// What trials are compared by: a column of `metrics.csv` in a run's best epoch, or a metric of `kdgat evaluate`. When left
    /// out, one of the validation data: see [`Self::metric`].
    pub metric: Option<String>,
    /// Which metric is better; smaller ones when left out beside a metric.
    pub direction: Option<Direction>,
    /// The step whose metric it is; the last one when left out.
    pub measure: Option<String>,
    /// How the values of the axes are put together.
    #[serde(default)]
    pub combine: Combine,
    /// Combinations drawn with `combine = "random"`.
    pub samples: Option<u64>,
    /// Seed of that draw.
    #[serde(default)]
    pub sampling_seed: u64,
    /// Every combination is repeated with each of these seeds.
    #[serde(default)]
    pub seeds: Vec<u64>,
    /// Times that a failed task is tried again.
    #[serde(default = "one")]
    pub retries: u32,
    /// The chain of commands that makes a trial.
    #[serde(default)]
    pub step: Vec<Step>,
    /// What is varied.
    #[serde(default)]
    pub axis: Vec<AxisEntry>,
    /// Combinations that are left out: names of axes and their values; a list means any of them.
    #[serde(default)]
    pub exclude: Vec<BTreeMap<String, toml::Value>>,
    /// Ends trials that promise little; off when left out.
    pub early_stopping: Option<EarlyStopping>,
    /// What a trial may use.
    #[serde(default)]
    pub resources: Resources,
    /// For `--executor slurm`.
    #[serde(default)]
    pub slurm: SlurmSettings,
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
    /// As after `--preset`: `vgae,student`.
    #[serde(default)]
    pub preset: String,
    /// Fields of the configuration.
    #[serde(default)]
    pub set: BTreeMap<String, toml::Value>,
    /// Fields that take what another step made: `teacher_path = "teacher"` is that step's best weights.
    #[serde(default)]
    pub from: BTreeMap<String, String>,
}

/// A command that a step may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepCommand {
    Autoencoder,
    Normal,
    Curriculum,
    Fusion,
    Evaluate,
}

impl StepCommand {
    /// The stage that it trains, if it trains.
    pub fn stage(self) -> Option<Stage> {
        match self {
            Self::Autoencoder => Some(Stage::Autoencoder),
            Self::Normal => Some(Stage::Normal),
            Self::Curriculum => Some(Stage::Curriculum),
            Self::Fusion => Some(Stage::Fusion),
            Self::Evaluate => None,
        }
    }
}

/// One thing that is varied, as it is written: exactly one of `values`, `range`, `presets`, `datasets`, `cases`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisEntry {
    /// Column of the table; the field's name when left out.
    pub name: Option<String>,
    /// The field that `values` or `range` are of.
    pub field: Option<String>,
    /// Steps that it holds for; all when left out.
    #[serde(default)]
    pub steps: Vec<String>,
    pub values: Option<Vec<toml::Value>>,
    pub range: Option<Range>,
    /// Presets that are added to the step's.
    pub presets: Option<Vec<String>>,
    /// Folders or names of datasets; `sim` is the simulated one.
    pub datasets: Option<Vec<String>>,
    /// Several fields at once, with a `label`.
    pub cases: Option<Vec<BTreeMap<String, toml::Value>>>,
}

/// Numbers between two ends, both of which belong to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    pub from: toml::Value,
    pub to: toml::Value,
    /// Values taken, ends included; not needed with `combine = "random"`.
    pub count: Option<u64>,
    #[serde(default)]
    pub scale: Scale,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    #[default]
    Linear,
    Log,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    #[default]
    Minimize,
    Maximize,
}

impl Direction {
    /// Whether `a` is better than `b`.
    pub fn prefers(self, a: f64, b: f64) -> bool {
        match self {
            Self::Minimize => a < b,
            Self::Maximize => a > b,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minimize => "minimize",
            Self::Maximize => "maximize",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Combine {
    /// Every value of an axis with every value of the others.
    #[default]
    Product,
    /// The first values together, the second values together, ...
    Zip,
    /// `samples` draws.
    Random,
}

/// Threads of a trial at most, as the field `threads` has it.
pub const MOST_THREADS: usize = 4096;

/// What a trial may use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// Threads of a trial; none: the cores divided by the trials at once.
    pub threads: Option<usize>,
    /// Host memory that a trial needs at least: as many run at once as the memory has room for.
    pub memory_per_trial: ByteSize,
    /// Trials on one GPU at once; its memory is divided among them.
    pub trials_per_gpu: usize,
    /// What a cluster gives to a task that ran out of memory; none: the task goes a rung of the memory ladder down.
    pub more_memory: Option<MoreMemory>,
}

/// How the memory of a job grows each time that its task runs out of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoreMemory {
    /// Above 1.
    #[serde(default = "twice")]
    pub factor: f64,
    /// Of a task; when it has that much, it goes down the memory ladder.
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
    /// Host memory in bytes that a job of a cluster grants to its task, after it was given more so many times.
    pub fn granted_bytes(&self, growths: u32) -> u64 {
        let first = self.memory_per_trial.0;
        let Some(more) = &self.more_memory else { return first };
        // A product beyond all numbers becomes the largest one.
        let grown = (first as f64 * more.factor.powf(f64::from(growths))) as u64;
        grown.min(more.at_most.0.max(first))
    }

    /// What cannot be meant.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(threads) = self.threads.filter(|threads| !(1..=MOST_THREADS).contains(threads)) {
            problems.push(format!(
                "[resources] threads = {threads} is out of range: it has to be from 1 to {MOST_THREADS}, or left out"
            ));
        }
        if self.memory_per_trial.0 == 0 {
            problems.push("[resources] memory_per_trial = 0 lets nothing run; use 1GiB or so".to_owned());
        }
        if self.trials_per_gpu == 0 {
            problems.push("[resources] trials_per_gpu = 0 lets nothing run; use 1 or more".to_owned());
        }
        let Some(MoreMemory { factor, at_most }) = &self.more_memory else { return problems };
        if !(factor.is_finite() && *factor > 1.0) {
            problems
                .push(format!("[resources] more_memory: the factor {factor} makes no memory larger; use 2.0 or so"));
        }
        if at_most.0 <= self.memory_per_trial.0 {
            problems.push(format!(
                "[resources] more_memory: at_most ({} MiB) has to be more than memory_per_trial ({} MiB)",
                at_most.0 >> 20,
                self.memory_per_trial.0 >> 20
            ));
        }
        problems
    }
}

impl SweepFile {
    /// Reads the text of a sweep file; `name` is only named in errors.
    pub fn parse(name: &str, text: &str) -> Result<Self, SweepError> {
        parse(name, text)
    }

    /// The step whose metric is compared; none where there is no such step.
    pub fn measured(&self) -> Option<&Step> {
        match &self.measure {
            Some(name) => self.step.iter().find(|step| step.name == *name),
            None => self.step.last(),
        }
    }

    /// The metric that trials are compared by, and which values of it are better. When left out it is one of the validation
    /// data, so that test results are none of the best of many.
    pub fn metric(&self) -> (&str, Direction) {
        match &self.metric {
            Some(metric) => (metric, self.direction.unwrap_or_default()),
            None => metric::default_of(self.measured().map(|step| step.command)),
        }
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<(Self, String), SweepError> {
        let text = std::fs::read_to_string(path).map_err(SweepError::file(path, "read the sweep file"))?;
        Ok((Self::parse(&path.display().to_string(), &text)?, text))
    }
}

/// Where and how jobs run, for work that is no sweep: what a sweep file says of that.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobsFile {
    /// Times that a failed task is tried again.
    pub retries: u32,
    pub resources: Resources,
    pub slurm: SlurmSettings,
}

impl Default for JobsFile {
    fn default() -> Self {
        Self { retries: one(), resources: Resources::default(), slurm: SlurmSettings::default() }
    }
}

impl JobsFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, SweepError> {
        let text = std::fs::read_to_string(path).map_err(SweepError::file(path, "read the settings of jobs"))?;
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

/// A value as a flag would have it; the elements of a list are separated by commas.
pub fn text_of(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(elements) => elements.iter().map(text_of).collect::<Vec<_>>().join(","),
        toml::Value::Float(number) => number.to_string(),
        other => other.to_string(),
    }
}
