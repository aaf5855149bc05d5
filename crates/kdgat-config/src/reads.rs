//! The commands that do not train and read a part of the configuration. Flags of other fields would be ignored, so they are refused.
//! [`super::rules`] has the conditions of commands that train.

use super::check::{self, Stage};
use super::conditions;
use super::error::{ConfigError, Problem};
use super::layer::fields;
use super::load::Loaded;
use super::origin::Origin;
use super::rules::{DRAWS_VIEWS, IS_NO_STORE, READS_POSITIONS, Rule};
use super::table::Field;

/// A command that does not train. The fields that it reads name it in [`super::fields`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// `kdgat data simulate`: a simulated car.
    Simulate,
    /// `kdgat data simulate --kind drive`: one drive.
    SimulateDrive,
    /// `kdgat data simulate --kind citations`: one large citation graph.
    SimulateCitations,
    /// `kdgat data build` of many graphs.
    Build,
    /// `kdgat data build` of one large graph.
    BuildNodes,
    /// `kdgat data info`.
    Info,
    /// `kdgat data merge`.
    Merge,
    /// `kdgat data check`.
    Check,
    /// `kdgat teachers list`, `show` and `verify`.
    Teachers,
    /// `kdgat teachers cache`, which also accepts the flags of the student's model.
    Cache,
    /// `kdgat teachers cache` for a dataset of graphs.
    CacheGraphs,
    /// `kdgat teachers cache` for one large graph.
    CacheNodes,
    /// `kdgat curriculum --score-only`: difficulty scores without a training.
    Score,
    /// `kdgat evaluate` on CAN windows.
    Evaluate,
    /// `kdgat evaluate` on a dataset of graphs or on one large graph: their division, and the options of reading a graph, are those of each run.
    EvaluateDivided,
    /// `kdgat export` without example graphs.
    Export,
    /// `kdgat export --examples`, which also reads graphs of the dataset.
    ExportExamples,
    /// `kdgat memory plan`, which accepts the flags of the training that it plans.
    Plan,
}

impl Reader {
    /// The command, without `kdgat`.
    pub fn command(self) -> &'static str {
        match self {
            Self::Simulate => "data simulate",
            Self::SimulateDrive => "data simulate --kind drive",
            Self::SimulateCitations => "data simulate --kind citations",
            Self::Build | Self::BuildNodes => "data build",
            Self::Info => "data info",
            Self::Merge => "data merge",
            Self::Check => "data check",
            Self::Teachers => "teachers",
            Self::Cache | Self::CacheGraphs | Self::CacheNodes => "teachers cache",
            Self::Score => "curriculum --score-only",
            Self::Evaluate => "evaluate",
            Self::EvaluateDivided => "evaluate --data GRAPHS",
            Self::Export => "export",
            Self::ExportExamples => "export --examples",
            Self::Plan => "memory plan",
        }
    }
}

/// Runs [`check::check`], and also refuses command-line flags that the command would not read. (A preset, a file or a variable may
/// serve other commands; a flag is meant for this one.)
pub fn check_reads(loaded: &Loaded, reader: Reader) -> Result<(), ConfigError> {
    let mut problems = match check::check(&loaded.config) {
        Err(ConfigError::Invalid(problems)) => problems,
        other => other.map(|()| Vec::new())?,
    };
    let given = |field: &&Field| matches!(loaded.origin(field.name), Origin::Flag(_));
    let says_no = |field: &Field| check::says_no(field, &loaded.config);
    for field in fields().filter(given).filter(|field| !field.is_read_by(reader) && !says_no(field)) {
        problems.push(Problem::Ignored {
            flag: loaded.origin(field.name).to_string(),
            because: format!("`kdgat {}` does not read it", reader.command()),
            remedy: "drop it".to_owned(),
        });
    }
    let mut ignored = |rule: &'static Rule| {
        let of_rule = |field: &&Field| field.rules.iter().any(|found| std::ptr::eq(*found, rule));
        let fields = fields().filter(given).filter(of_rule);
        problems.extend(fields.filter(|field| field.is_read_by(reader) && !says_no(field)).map(|field| {
            Problem::Ignored {
                flag: loaded.origin(field.name).to_string(),
                because: rule.because.to_owned(),
                remedy: rule.remedy.to_owned(),
            }
        }));
    };
    if conditions::is_node_store(&loaded.config) {
        ignored(&IS_NO_STORE);
    }
    if reader == Reader::CacheGraphs {
        let unread = |rule: &&'static Rule| !(rule.is_read)(&loaded.config, Stage::Train);
        [&DRAWS_VIEWS, &READS_POSITIONS].into_iter().filter(unread).for_each(ignored);
    }
    ConfigError::unless_empty(problems)
}
