//! Fields of the section `[data]`.

use std::path::PathBuf;

use crate::rules::*;
use crate::table::Limit::{Between, Inside};
use crate::table::config_section;
use crate::values::*;

config_section! {
/// The dataset, and how its traffic is cut into windows and graphs.
#[readers(Build, Info, Cache, CacheGraphs, CacheNodes, Score, Evaluate, ExportExamples, Plan)]
data: DataConfig {
    /// The dataset: its folder, or a name from `kdgat data list`, which is looked up in the folder KDGAT_DATA. none (or `sim`, unless
    /// something has that name): the simulated dataset, created on first use.
    #[same_losses = true]
    #[readers(BuildNodes, Check, EvaluateDivided)]
    data: Option<PathBuf> = None;
    /// Test graphs in a place of their own, in any format of graphs: their columns are those of `data`, whose graphs are then for training
    /// and validation.
    #[same_losses = true]
    #[rules(OF_GRAPHS, OF_MANY_GRAPHS)]
    #[readers(Check, EvaluateDivided)]
    test_data: Option<PathBuf> = None;
    /// Folder for graph stores. They are built from the logs on first use and can be deleted at any time.
    #[same_losses = true]
    #[readers(BuildNodes, Merge, Check, EvaluateDivided)]
    stores_dir: PathBuf = "stores".into();
    /// Frames per window; each window becomes one graph. A model reads only windows of the length it was trained on.
    #[rules(OF_WINDOWS)]
    #[readers(Check)]
    window: usize = 100, Between(2.0, 65534.0);
    /// Frames from the start of one window to the start of the next. Below `window`, windows overlap: more graphs, and earlier alarms.
    #[rules(OF_WINDOWS)]
    stride: usize = 100, Between(1.0, 4294967295.0);
    /// Feature set of nodes and edges. Teacher and student must use the same set.
    #[rules(OF_WINDOWS)]
    features: FeatureChoice = FeatureChoice::Window;
    /// Share of each training log that is held out for validation, in contiguous blocks of time. Raise it when validation has too few
    /// windows to choose a threshold on.
    validation_fraction: f64 = 0.2, Inside(0.0, 1.0);
    /// Training data that are held out for validation. With `logs` or `attacks` a model is validated on drives or attacks that it has not
    /// seen; `validation_fraction` is then the share of the logs' bytes. A student needs a teacher of the same division.
    #[rules(OF_WINDOWS)]
    validation: ValidationChoice = ValidationChoice::Blocks;
    /// Largest share of a log's rows that may be malformed; beyond it the log is refused. Raise it for logs known to be damaged.
    #[same_losses = true]
    #[rules(OF_WINDOWS)]
    #[readers(Check)]
    max_reject_share: f64 = 0.01, Between(0.0, 1.0);
    /// Also train on graphs whose features all equal those of a validation or test graph. By default they are left out, because the
    /// model would be evaluated on graphs that it has seen.
    #[rules(OF_WINDOWS)]
    keep_duplicates: bool = false;
    /// Add synthetic attacks, made from the attack-free training logs, to the training data. A detector then learns many kinds and
    /// strengths of attacks instead of the recorded ones alone. They are written to `stores_dir`/synthetic on first use.
    #[rules(OF_WINDOWS)]
    synthetic_attacks: bool = false;
    /// Format of the log files. Set it when `auto` does not recognise them.
    #[alias = "format"]
    #[same_losses = true]
    #[rules(OF_WINDOWS)]
    #[readers(Check)]
    log_format: LogFormat = LogFormat::Auto;
    /// Interface or channel (`can0`) whose frames are read. Set it for logs with frames of several: each is a bus of its own.
    #[rules(OF_WINDOWS)]
    #[readers(Check)]
    interface: Option<String> = None;
    /// Unit of the times in the logs. With `auto` they are seconds, and logs whose times cannot be those of a bus are refused.
    #[rules(OF_WINDOWS)]
    #[readers(Check)]
    time_unit: TimeUnitChoice = TimeUnitChoice::Auto;
}}
