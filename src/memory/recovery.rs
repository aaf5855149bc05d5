//! Surviving an allocation that fails: free what is kept, try again, then with fewer graphs at a time.

use std::error::Error;

use tch::TchError;

use super::Meter;
use crate::graph::Batch;
use crate::torch::{self, allocator};

/// Repetitions of the same work after freeing what was kept, before it is made smaller.
const REPETITIONS: u32 = 2;
/// Steps without a failure after which one size up is tried; doubled each time that this was too much.
const GOOD_STEPS: u64 = 64;

/// Whether an error, or what it comes from, says that memory of the host or of a GPU ran out.
pub fn is_out_of_memory(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if allocator::says_out_of_memory(&error.to_string()) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Runs `work`; when memory runs out, frees what is kept and runs it again, a few times. It must be repeatable.
pub fn patiently<T, E>(meter: Meter, mut work: impl FnMut() -> Result<T, E>) -> Result<T, E>
where
    E: From<TchError> + Error + 'static,
{
    let mut repetitions = 0;
    loop {
        match torch::recover(&mut work) {
            Err(error) if repetitions < REPETITIONS && is_out_of_memory(&error) => {
                repetitions += 1;
                meter.release_kept();
            }
            outcome => return outcome,
        }
    }
}

/// One result for each graph of a batch, in order; when memory runs out in spite of freeing what is kept, of the batch's
/// two halves. For work in which a graph's result does not depend on the others.
pub fn by_halves<T, E>(
    meter: Meter,
    batch: &Batch,
    work: &mut dyn FnMut(&Batch) -> Result<Vec<T>, E>,
) -> Result<Vec<T>, E>
where
    E: From<TchError> + Error + 'static,
{
    match patiently(meter, || work(batch)) {
        Err(error) if is_out_of_memory(&error) && batch.num_graphs() > 1 => {
            let middle = batch.num_graphs() / 2;
            let mut results = by_halves(meter, &batch.select_graphs(&(0..middle).collect::<Vec<_>>())?, work)?;
            let rest: Vec<usize> = (middle..batch.num_graphs()).collect();
            results.extend(by_halves(meter, &batch.select_graphs(&rest)?, work)?);
            Ok(results)
        }
        outcome => outcome,
    }
}

/// How many graphs of a batch go through the model at a time.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// `None`: all of them.
    graphs: Option<usize>,
    failures_of_step: u32,
    good_steps: u64,
    good_steps_needed: u64,
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The same again, now that memory was freed.
    Repeat,
    /// This many graphs at a time.
    Smaller(usize),
    /// Not even one graph fits.
    GiveUp,
}

impl Default for MicroBatch {
    fn default() -> Self {
        Self { graphs: None, failures_of_step: 0, good_steps: 0, good_steps_needed: GOOD_STEPS }
    }
}

impl MicroBatch {
    /// At most this many graphs at a time.
    pub fn at_most(graphs: usize) -> Self {
        Self { graphs: Some(graphs.max(1)), ..Self::default() }
    }

    /// Graphs at a time of a batch of `batch_graphs`.
    pub fn of(&self, batch_graphs: usize) -> usize {
        self.graphs.map_or(batch_graphs, |graphs| graphs.min(batch_graphs)).max(1)
    }

    /// A step on `batch_graphs` graphs ran out of memory.
    pub fn failed(&mut self, batch_graphs: usize) -> Remedy {
        let now = self.of(batch_graphs);
        self.failures_of_step += 1;
        if self.failures_of_step <= REPETITIONS {
            return Remedy::Repeat;
        }
        if now == 1 {
            return Remedy::GiveUp;
        }
        if self.good_steps == 0 && self.graphs.is_some() {
            // One size up was too much: the next try comes later.
            self.good_steps_needed = self.good_steps_needed.saturating_mul(2);
        }
        self.failures_of_step = 0;
        self.good_steps = 0;
        self.graphs = Some(now.div_ceil(2));
        Remedy::Smaller(now.div_ceil(2))
    }

    /// A step on `batch_graphs` graphs went well. Returns the new size if one size up is tried from now on.
    pub fn succeeded(&mut self, batch_graphs: usize) -> Option<usize> {
        self.failures_of_step = 0;
        let graphs = self.graphs?;
        self.good_steps += 1;
        if self.good_steps < self.good_steps_needed {
            return None;
        }
        self.good_steps = 0;
        self.graphs = (graphs * 2 < batch_graphs).then_some(graphs * 2);
        Some(self.of(batch_graphs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail_until_smaller(micro: &mut MicroBatch, batch: usize) -> Remedy {
        for _ in 0..REPETITIONS {
            assert_eq!(micro.failed(batch), Remedy::Repeat);
        }
        micro.failed(batch)
    }

    #[test]
    fn sizes_halve_down_to_one_graph() {
        let mut micro = MicroBatch::default();
        let mut sizes = Vec::new();
        loop {
            match fail_until_smaller(&mut micro, 10) {
                Remedy::Smaller(graphs) => sizes.push(graphs),
                Remedy::GiveUp => break,
                Remedy::Repeat => unreachable!(),
            }
        }
        assert_eq!(sizes, [5, 3, 2, 1]);
    }

    #[test]
    fn after_many_good_steps_one_size_up_is_tried() {
        let mut micro = MicroBatch::default();
        assert_eq!(micro.succeeded(8), None);
        fail_until_smaller(&mut micro, 8);
        fail_until_smaller(&mut micro, 8);
        assert_eq!(micro.of(8), 2);
        let grown: Vec<u64> = (0..500).filter(|_| micro.succeeded(8).is_some()).collect();
        assert_eq!(grown.len(), 2, "from 2 to 4, from 4 to all");
        assert_eq!(micro.of(8), 8);
    }

    #[test]
    fn causes_are_looked_at() {
        let deep = crate::nn::ModelError::from(TchError::Torch("CUDA out of memory. Tried".into()));
        assert!(is_out_of_memory(&deep));
        assert!(!is_out_of_memory(&TchError::Torch("a wrong index".into())));
    }
}
