//! What is minimised: the loop asks, a stage answers.

use std::error::Error;
use std::ops::Range;

use kdgat_graph::{Batch, StoreError};
use kdgat_nn::ModelError;
use kdgat_torch::device::DeviceError;
use tch::{TchError, Tensor};

use super::logs::LogError;
use super::timeline::Span;

/// Error of an objective or of a plan of batches. Both belong to rooms above this one (a teacher, a curriculum), which
/// convert their own errors and say who has to act.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ObjectiveError(Cause);

#[derive(Debug, thiserror::Error)]
enum Cause {
    /// Caused by the user's files or settings: exit code 2.
    #[error(transparent)]
    Input(Box<dyn Error + Send + Sync>),
    /// Caused by the machine or the program: exit code 1.
    #[error(transparent)]
    Failure(Box<dyn Error + Send + Sync>),
}

impl ObjectiveError {
    /// Wraps an error; `is_input` if the user's files or settings caused it.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>, is_input: bool) -> Self {
        let error = error.into();
        Self(if is_input { Cause::Input(error) } else { Cause::Failure(error) })
    }

    /// True if the user's files or settings caused it (exit code 2), false for the machine or the program (exit code 1).
    pub fn is_input(&self) -> bool {
        matches!(self.0, Cause::Input(_))
    }
}

impl From<StoreError> for ObjectiveError {
    fn from(error: StoreError) -> Self {
        let is_input = error.is_input();
        Self::new(error, is_input)
    }
}

impl From<ModelError> for ObjectiveError {
    fn from(error: ModelError) -> Self {
        Self::new(error, false)
    }
}

impl From<TchError> for ObjectiveError {
    fn from(error: TchError) -> Self {
        Self::new(error, false)
    }
}

impl From<DeviceError> for ObjectiveError {
    fn from(error: DeviceError) -> Self {
        Self::new(error, false)
    }
}

impl From<LogError> for ObjectiveError {
    fn from(error: LogError) -> Self {
        let is_input = error.is_input();
        Self::new(error, is_input)
    }
}

impl From<&str> for ObjectiveError {
    fn from(message: &str) -> Self {
        Self::new(message, false)
    }
}

impl From<String> for ObjectiveError {
    fn from(message: String) -> Self {
        Self::new(message, false)
    }
}

/// The loss of a batch: scalars.
#[derive(Debug)]
pub struct Losses {
    /// What is minimised.
    pub total: Tensor,
    /// In the order of [`Objective::parts`]; only reported.
    pub parts: Vec<Tensor>,
}

/// Takes the gradients of a loss.
pub type Backward<'a> = &'a mut dyn FnMut(&Tensor) -> Result<(), TchError>;

/// A stretch of the graphs of an announced batch, and the nodes that are theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub graphs: Range<usize>,
    pub nodes: Range<i64>,
}

impl Part {
    /// All of it.
    pub fn whole(batch: &Batch) -> Self {
        Self { graphs: 0..batch.num_graphs(), nodes: 0..batch.num_nodes() }
    }
}

/// A model with its loss, as the epoch loop uses it.
pub trait Objective {
    /// Names of the reported parts of the loss: columns of `metrics.csv`.
    fn parts(&self) -> &'static [&'static str];

    /// How many batches are announced at a time.
    fn burst(&self) -> usize;

    /// An epoch begins: what [`Objective::status`] tells is of this epoch from here on.
    fn start_epoch(&mut self) {}

    /// Announces the next batches, whose losses will be asked for in this order.
    fn announce(&mut self, batches: &[Batch]) -> Result<(), ObjectiveError>;

    /// Goes on to the next announced batch, and waits for what has to be computed for its losses by others.
    fn receive(&mut self, batch: &Batch) -> Result<(), ObjectiveError>;

    /// Lets go of what the last call of [`Objective::receive`] has kept.
    fn forget(&mut self) {}

    /// What a teacher said of the batch received last: a tensor a target, one row a node or a graph. None without a teacher.
    fn targets(&mut self) -> Result<Vec<Tensor>, ObjectiveError> {
        Ok(Vec::new())
    }

    /// Puts others, in the same order and with as many rows as the batch that losses are asked for next, in their place.
    fn replace_targets(&mut self, _targets: &[Tensor]) {}

    /// The training loss of `batch`, which is `part` of the batch received last, once `backward` has taken its gradients: what
    /// is only reported may be computed meanwhile. Draws from torch's generator and by the step's seed, which the loop has
    /// set. Can be asked for again, when memory ran out.
    fn training_loss(&mut self, batch: &Batch, part: &Part, backward: Backward) -> Result<Losses, ObjectiveError>;

    /// The same loss in evaluation mode. Draws nothing.
    fn validation_loss(&mut self, batch: &Batch, part: &Part) -> Result<Losses, ObjectiveError>;

    /// The share of `part` in the loss of `whole`: by it the losses of parts add up to that of the whole.
    fn share(&self, part: &Part, whole: &Part) -> f64;

    /// Columns that the objective adds to `steps.csv`.
    fn step_columns(&self) -> &'static [&'static str];

    /// Their values since the last call.
    fn step_values(&mut self) -> Vec<String>;

    /// Whether the teacher's work is to be recorded for the time line.
    fn record_spans(&mut self, _on: bool) {}

    /// What was recorded since the last call.
    fn take_spans(&mut self) -> Vec<Span> {
        Vec::new()
    }

    /// A few words for the progress bar.
    fn status(&self) -> String;
}
