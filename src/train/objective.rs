//! What is minimised: the loop asks, a stage answers.

use tch::Tensor;

use crate::graph::Batch;

/// The error of an objective, of whatever module it comes from.
pub type ObjectiveError = Box<dyn std::error::Error + Send + Sync>;

/// The loss of a batch.
#[derive(Debug)]
pub struct Losses {
    /// What is minimised: a scalar with its graph.
    pub total: Tensor,
    /// Scalars in the order of [`Objective::parts`]; only reported.
    pub parts: Vec<Tensor>,
}

/// A model with its loss, as the epoch loop uses it.
pub trait Objective {
    /// Names of the reported parts of the loss: columns of `metrics.csv`.
    fn parts(&self) -> &'static [&'static str];

    /// How many batches are announced at a time.
    fn burst(&self) -> usize;

    /// Announces the next batches, whose losses will be asked for in this order.
    fn announce(&mut self, batches: &[Batch]) -> Result<(), ObjectiveError>;

    /// The training loss of the next announced batch. Draws from torch's generator, which the loop has seeded.
    fn training_loss(&mut self, batch: &Batch) -> Result<Losses, ObjectiveError>;

    /// The same loss of the next announced batch in evaluation mode. Draws nothing.
    fn validation_loss(&mut self, batch: &Batch) -> Result<Losses, ObjectiveError>;

    /// Columns that the objective adds to `steps.csv`.
    fn step_columns(&self) -> &'static [&'static str];

    /// Their values since the last call.
    fn step_values(&mut self) -> Vec<String>;

    /// A few words for the progress bar.
    fn status(&self) -> String;
}
