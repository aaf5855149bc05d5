//! Which graphs an epoch sees.

use super::objective::ObjectiveError;

/// Which graphs are seen, batch by batch.
pub trait BatchPlan {
    /// Called before an epoch begins, or goes on.
    fn prepare(&mut self, _epoch: u64) -> Result<(), ObjectiveError> {
        Ok(())
    }

    /// Training batches of an epoch: a pure function of it.
    fn training(&self, epoch: u64) -> Vec<Vec<u64>>;

    /// Validation batches.
    fn validation(&self) -> Vec<Vec<u64>>;

    /// Columns that the plan adds to `metrics.csv`.
    fn columns(&self) -> &'static [&'static str] {
        &[]
    }

    /// Their values for an epoch.
    fn values(&self, _epoch: u64) -> Vec<String> {
        Vec::new()
    }
}
