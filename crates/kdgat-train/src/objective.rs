//! Interface between the epoch loop and a loss: [`Objective`] computes losses, [`TargetSource`] brings the targets they need.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use kdgat_base::exit;
use kdgat_graph::{Batch, StoreError};
use kdgat_nn::ModelError;
use kdgat_nn::layers::Mode;
use kdgat_torch::device::DeviceError;
use tch::{TchError, Tensor};

use super::logs::LogError;
use super::options::Monitor;
use super::timeline::Span;

/// Error of an objective or of a batch plan. Higher layers (a teacher, a curriculum) convert their own errors into it and
/// give the exit code that belongs to it.
#[derive(Debug)]
pub struct ObjectiveError {
    error: Box<dyn Error + Send + Sync>,
    exit_code: u8,
}

impl ObjectiveError {
    /// Wraps an error that ends the program with this exit code (see [`kdgat_base::exit`]).
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>, exit_code: u8) -> Self {
        Self { error: error.into(), exit_code }
    }

    /// The exit code that belongs to the error.
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for ObjectiveError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl Error for ObjectiveError {
    /// The cause of the wrapped error, whose message is that of this error.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl From<StoreError> for ObjectiveError {
    fn from(error: StoreError) -> Self {
        let exit_code = if error.is_input() { exit::INPUT } else { exit::FAILURE };
        Self::new(error, exit_code)
    }
}

impl From<ModelError> for ObjectiveError {
    fn from(error: ModelError) -> Self {
        Self::new(error, exit::FAILURE)
    }
}

impl From<TchError> for ObjectiveError {
    fn from(error: TchError) -> Self {
        Self::new(error, exit::FAILURE)
    }
}

impl From<DeviceError> for ObjectiveError {
    fn from(error: DeviceError) -> Self {
        Self::new(error, exit::FAILURE)
    }
}

impl From<LogError> for ObjectiveError {
    fn from(error: LogError) -> Self {
        let exit_code = if error.is_input() { exit::INPUT } else { exit::FAILURE };
        Self::new(error, exit_code)
    }
}

impl From<&str> for ObjectiveError {
    fn from(message: &str) -> Self {
        Self::new(message, exit::FAILURE)
    }
}

impl From<String> for ObjectiveError {
    fn from(message: String) -> Self {
        Self::new(message, exit::FAILURE)
    }
}

/// The loss of a batch: scalars.
#[derive(Debug)]
pub struct Losses {
    /// The minimised loss.
    pub total: Tensor,
    /// Parts of the loss, in the order of [`Objective::parts`]; only reported.
    pub parts: Vec<Tensor>,
}

/// Callback that computes the gradients of a loss.
pub type Backward<'a> = &'a mut dyn FnMut(&Tensor) -> Result<(), TchError>;

/// A range of the graphs of an announced batch, with their nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Graphs of the part, by their index in the batch.
    pub graphs: Range<usize>,
    /// Nodes of these graphs, by their index in the batch.
    pub nodes: Range<i64>,
}

impl Part {
    /// The part that is the whole batch.
    pub fn whole(batch: &Batch) -> Self {
        Self { graphs: 0..batch.num_graphs(), nodes: 0..batch.num_nodes() }
    }
}

/// Amounts of a batch, of which several processes may have a share each.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WholeBatch {
    /// Number of nodes.
    pub nodes: f64,
    /// Number of rows over which losses are means.
    pub rows: f64,
    /// Mean weight of the labels, for a loss that divides by it.
    pub label_weight: f64,
}

/// A model with its loss, as the epoch loop uses it.
pub trait Objective {
    /// Names of the reported parts of the loss: columns of `metrics.csv`.
    fn parts(&self) -> &'static [&'static str];

    /// The part that is the task's metric, which a run may monitor instead of the loss; `None` if there is no such part.
    fn metric(&self) -> Option<Monitor> {
        None
    }

    /// Starts an epoch of training, counted from 0; called once more when it is resumed.
    fn start_epoch(&mut self, _epoch: u64) {}

    /// Source of the targets of the loss.
    fn source(&self) -> &dyn TargetSource;

    /// Mutable access to the source, to announce batches and to receive targets.
    fn source_mut(&mut self) -> &mut dyn TargetSource;

    /// Moves on to `batch`, the next announced one, and waits for its targets.
    fn receive(&mut self, batch: &Batch) -> Result<(), ObjectiveError> {
        self.source_mut().receive()?;
        self.start_batch(batch);
        Ok(())
    }

    /// Prepares for `batch`; called before its losses or those of its parts are computed.
    fn start_batch(&mut self, _batch: &Batch) {}

    /// Computes the loss of `batch`, which is `part` of the batch received last. In training, random numbers come from torch's generator and
    /// the step's seed, both set by the loop; in evaluation mode there are none. Repeatable, for a step that ran out of memory.
    ///
    /// # Errors
    /// Those of libtorch, or a teacher that fails.
    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError>;

    /// Computes the training loss, and calls `backward` once with the loss to differentiate; terms that are only reported may be computed
    /// afterwards.
    ///
    /// # Errors
    /// Those of [`Objective::loss`] and of `backward`.
    fn training_loss(&mut self, batch: &Batch, part: &Part, backward: Backward) -> Result<Losses, ObjectiveError> {
        let losses = self.loss(batch, part, Mode::Training)?;
        backward(&losses.total)?;
        Ok(losses)
    }

    /// Computes the loss in evaluation mode.
    ///
    /// # Errors
    /// Those of [`Objective::loss`].
    fn validation_loss(&mut self, batch: &Batch, part: &Part) -> Result<Losses, ObjectiveError> {
        self.loss(batch, part, Mode::Evaluation)
    }

    /// Weight of the loss of `part` in the loss of `whole`: the weighted losses of all parts add up to the loss of the whole.
    fn share(&self, part: &Part, whole: &Part) -> f64 {
        self.rows(part) / self.rows(whole).max(1.0)
    }

    /// Number of rows of a part of the batch received last, over which its losses are means.
    fn rows(&self, part: &Part) -> f64;

    /// Sum of the weights of the labels of `batch`, for a loss that divides by their mean.
    ///
    /// # Errors
    /// Those of libtorch.
    fn label_weight(&self, _batch: &Batch) -> Result<f64, ObjectiveError> {
        Ok(0.0)
    }

    /// Sets the amounts of the whole batch, of which this process has received its share.
    fn set_whole_batch(&mut self, _whole: WholeBatch) {}

    /// The reason why a batch cannot be divided among processes; `None` if the losses of its parts add up to that of the whole.
    fn division_obstacle(&self) -> Option<&'static str> {
        None
    }

    /// True if processes that train together exchange rows of a graph while they compute, so that all compute each batch.
    fn exchanges_rows(&self) -> bool {
        false
    }

    /// Weight of `batch`, the one received last, in the means over the validation graphs: its number of graphs, unless losses are means over
    /// something else.
    fn weight(&self, batch: &Batch) -> f64 {
        batch.num_graphs() as f64
    }
}

/// Source of a loss's targets: a teacher, or none. Batches are announced in bursts and received one by one in the same order.
pub trait TargetSource {
    /// Number of batches to announce at a time.
    fn burst(&self) -> usize {
        1
    }

    /// Starts an epoch of training, counted from 0, of at most `max_epochs`; [`TargetSource::status`] describes it from here on.
    fn start_epoch(&mut self, _epoch: u64, _max_epochs: u64) {}

    /// Announces the next batches.
    fn announce(&mut self, _batches: &[Batch]) -> Result<(), ObjectiveError> {
        Ok(())
    }

    /// Waits for the targets of the next announced batch.
    fn receive(&mut self) -> Result<(), ObjectiveError> {
        Ok(())
    }

    /// Drops the targets received last.
    fn forget(&mut self) {}

    /// Targets received last: one tensor per target, `[num_nodes, columns]` or `[num_graphs, columns]`. Empty without a
    /// teacher.
    fn targets(&mut self) -> Result<Vec<Tensor>, ObjectiveError> {
        Ok(Vec::new())
    }

    /// Replaces the targets received last by others, in the same order, with as many rows as the next batch whose losses are
    /// computed.
    fn replace_targets(&mut self, _targets: &[Tensor]) {}

    /// Names of the columns that the source adds to `steps.csv`. Empty without a teacher.
    fn step_columns(&self) -> &'static [&'static str] {
        &[]
    }

    /// Values of these columns since the last call.
    fn step_values(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Switches the recording of the teacher's work for the timeline on or off.
    fn record_spans(&mut self, _on: bool) {}

    /// Returns the work recorded since the last call.
    fn take_spans(&mut self) -> Vec<Span> {
        Vec::new()
    }

    /// Short status text for the progress bar.
    fn status(&self) -> String {
        String::new()
    }
}

/// Source for a loss that needs no targets.
#[derive(Debug, Clone, Copy)]
pub struct NoTargets;

impl TargetSource for NoTargets {}
