//! Plan of the batches of each epoch.

use super::objective::ObjectiveError;

/// Batches of graphs, by epoch.
pub trait BatchPlan {
    /// Called before an epoch begins or resumes.
    fn prepare(&mut self, _epoch: u64) -> Result<(), ObjectiveError> {
        Ok(())
    }

    /// Training batches of an epoch, as graph numbers: a pure function of the epoch.
    fn training(&self, epoch: u64) -> Vec<Vec<u64>>;

    /// Validation batches, as graph numbers.
    fn validation(&self) -> Vec<Vec<u64>>;

    /// Names of the columns that the plan adds to `metrics.csv`.
    fn columns(&self) -> &'static [&'static str] {
        &[]
    }

    /// Values of these columns for an epoch.
    fn values(&self, _epoch: u64) -> Vec<String> {
        Vec::new()
    }
}
