//! Recovery from out-of-memory errors: free cached memory, retry, then use fewer graphs at a time.
//!
//! If a limit was reached, the same work will hardly fit, and it is made smaller soon. If the system refused although the
//! limit had room, other programs took the memory and may give it back a moment later: then the same work is first retried
//! with pauses, because smaller work changes the results (batch norm).

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use kdgat_graph::Batch;
use kdgat_torch::{self as torch, allocator};
use serde::{Deserialize, Serialize};
use tch::TchError;

use super::{Meter, reclaim};

/// Retries of the same work after freeing cached memory, before it is made smaller.
const REPETITIONS: u32 = 2;
/// Retries if the limit had room for the refused allocation.
const PATIENT_REPETITIONS: u32 = 60;
/// Increase of the pause from one of these retries to the next.
const LONGER_WAIT: Duration = Duration::from_micros(200);
/// Longest pause.
const LONGEST_WAIT: Duration = Duration::from_millis(20);
/// Good steps after which the next larger size is tried, and after which that size counts as proved. Doubled each time a
/// try fails.
const GOOD_STEPS: u64 = 64;

/// True if the error, or one of its sources, means that the host or a GPU ran out of memory.
pub fn is_out_of_memory(error: &(dyn Error + 'static)) -> bool {
    says(error, allocator::says_out_of_memory)
}

fn says(error: &(dyn Error + 'static), what: impl Fn(&str) -> bool) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if what(&error.to_string()) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Counter of the retries of the same work.
#[derive(Clone, Debug, Default, PartialEq)]
struct Patience {
    repetitions: u32,
}

impl Patience {
    /// Decides to retry after this error; pauses if that may help.
    fn again(&mut self, error: &(dyn Error + 'static)) -> bool {
        if !is_out_of_memory(error) {
            return false;
        }
        self.repetitions += 1;
        if !says(error, allocator::says_refused_inside_limit) {
            return self.repetitions <= REPETITIONS;
        }
        std::thread::sleep(LONGEST_WAIT.min(LONGER_WAIT * self.repetitions));
        self.repetitions <= PATIENT_REPETITIONS
    }
}

/// Runs `work`; if memory runs out, frees cached memory and retries a few times. Before the second retry, registered
/// holders free their memory, too ([`super::Reclaim`]). `work` must be repeatable.
pub fn retry_on_oom<T, E>(meter: Meter, mut work: impl FnMut() -> Result<T, E>) -> Result<T, E>
where
    E: From<TchError> + Error + 'static,
{
    let mut patience = Patience::default();
    loop {
        match torch::recover(&mut work) {
            Err(error) if patience.again(&error) => {
                if patience.repetitions == REPETITIONS {
                    reclaim::reclaim();
                }
                meter.release_kept();
            }
            outcome => return outcome,
        }
    }
}

/// Computes one result for each graph of a batch, in order; if memory runs out even after cached memory was freed, does so
/// for the two halves of the batch. For work in which a graph's result does not depend on the other graphs.
pub fn by_halves<T, E>(
    meter: Meter,
    batch: &Batch,
    work: &mut dyn FnMut(&Batch) -> Result<Vec<T>, E>,
) -> Result<Vec<T>, E>
where
    E: From<TchError> + Error + 'static,
{
    match retry_on_oom(meter, || work(batch)) {
        Err(error) if is_out_of_memory(&error) && batch.num_graphs() > 1 => {
            let middle = batch.num_graphs() / 2;
            let half = |graphs: Range<usize>| {
                retry_on_oom(meter, || Ok::<_, E>(batch.select_graphs(&graphs.clone().collect::<Vec<_>>())?))
            };
            let mut results = by_halves(meter, &half(0..middle)?, work)?;
            results.extend(by_halves(meter, &half(middle..batch.num_graphs())?, work)?);
            Ok(results)
        }
        outcome => outcome,
    }
}

/// Number of graphs of a batch that go through the model at a time. Saved with a run, which must resume with the same
/// number, because batch norm depends on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MicroBatch {
    /// Present number; `None`: whole batches.
    graphs: Option<usize>,
    /// Planned maximum; `None`: whole batches.
    planned: Option<usize>,
    /// Graphs of the largest batch so far: the last batch of an epoch may be smaller.
    full_batch: usize,
    /// True while the next larger size is being tried.
    trying: bool,
    #[serde(skip)]
    patience: Patience,
    good_steps: u64,
    good_steps_needed: u64,
}

/// Reaction to an out-of-memory failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Repeat the same work: memory was freed.
    Repeat,
    /// Use this many graphs at a time.
    Smaller(usize),
    /// Not even one graph fits.
    GiveUp,
}

impl Default for MicroBatch {
    fn default() -> Self {
        Self {
            graphs: None,
            planned: None,
            full_batch: 0,
            trying: false,
            patience: Patience::default(),
            good_steps: 0,
            good_steps_needed: GOOD_STEPS,
        }
    }
}

impl MicroBatch {
    /// At most this many graphs at a time, even after many good steps.
    pub fn at_most(graphs: usize) -> Self {
        let graphs = Some(graphs.max(1));
        Self { graphs, planned: graphs, ..Self::default() }
    }

    /// Graphs at a time for a batch of `batch_graphs` graphs.
    pub fn of(&self, batch_graphs: usize) -> usize {
        self.graphs.map_or(batch_graphs, |graphs| graphs.min(batch_graphs)).max(1)
    }

    /// Records that a step on `batch_graphs` graphs ran out of memory. Pauses if that may help.
    pub fn failed(&mut self, batch_graphs: usize, error: &(dyn Error + 'static)) -> Remedy {
        let now = self.of(batch_graphs);
        self.full_batch = self.full_batch.max(batch_graphs);
        if self.patience.again(error) {
            return Remedy::Repeat;
        }
        if now == 1 {
            return Remedy::GiveUp;
        }
        if self.trying {
            // The larger size was too much: the next try comes later.
            self.good_steps_needed = self.good_steps_needed.saturating_mul(2);
        }
        self.patience = Patience::default();
        (self.trying, self.good_steps) = (false, 0);
        self.graphs = Some(now.div_ceil(2));
        Remedy::Smaller(now.div_ceil(2))
    }

    /// Records a good step on `batch_graphs` graphs. Returns the new size if a larger size is tried from now on.
    pub fn succeeded(&mut self, batch_graphs: usize) -> Option<usize> {
        self.patience = Patience::default();
        self.full_batch = self.full_batch.max(batch_graphs);
        if self.graphs == self.planned && !self.trying {
            return None;
        }
        self.good_steps += 1;
        if self.good_steps < self.good_steps_needed {
            return None;
        }
        (self.trying, self.good_steps) = (false, 0);
        let graphs = self.graphs.filter(|_| self.graphs != self.planned)?;
        self.trying = true;
        let most = self.planned.unwrap_or(self.full_batch);
        self.graphs = if graphs * 2 < most { Some(graphs * 2) } else { self.planned };
        Some(self.of(self.full_batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail_until_smaller(micro: &mut MicroBatch, batch: usize) -> Remedy {
        let error = TchError::Torch("CUDA out of memory".into());
        for _ in 0..REPETITIONS {
            assert_eq!(micro.failed(batch, &error), Remedy::Repeat);
        }
        micro.failed(batch, &error)
    }

    #[test]
    fn a_refusal_inside_the_limit_is_retried_with_pauses() {
        let text =
            |reason: &str| TchError::Torch(format!("kdgat: host memory limit of 9 bytes: {reason}: 3 requested"));
        let mut micro = MicroBatch::default();
        for _ in 0..PATIENT_REPETITIONS {
            assert_eq!(micro.failed(8, &text("the system has no more")), Remedy::Repeat);
        }
        assert_eq!(micro.failed(8, &text("the system has no more")), Remedy::Smaller(4));
        fail_until_smaller(&mut micro, 8);
        assert_eq!(micro.of(8), 2);
        let mut runs = 0;
        let outcome = retry_on_oom(Meter::new(tch::Device::Cpu), || -> Result<(), TchError> {
            runs += 1;
            Err(text("it would be exceeded"))
        });
        assert!(outcome.is_err());
        assert_eq!(runs, 1 + REPETITIONS);
    }

    #[test]
    fn holders_free_memory_before_work_fails() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering};

        struct Holder(AtomicBool);
        impl super::super::Reclaim for Holder {
            fn reclaim(&self) -> bool {
                self.0.swap(false, Ordering::SeqCst)
            }
        }
        let held = Arc::new(Holder(AtomicBool::new(true)));
        let holder: Arc<dyn super::super::Reclaim> = held.clone();
        reclaim::register(&holder);
        let outcome = retry_on_oom(Meter::new(tch::Device::Cpu), || match held.0.load(Ordering::SeqCst) {
            true => Err(TchError::Torch("CUDA out of memory".into())),
            false => Ok(()),
        });
        assert!(outcome.is_ok(), "{outcome:?}");
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
    fn after_many_good_steps_the_next_larger_size_is_tried() {
        let mut micro = MicroBatch::default();
        assert_eq!(micro.succeeded(8), None);
        fail_until_smaller(&mut micro, 8);
        fail_until_smaller(&mut micro, 8);
        assert_eq!(micro.of(8), 2);
        let grown: Vec<u64> = (0..500).filter(|_| micro.succeeded(8).is_some()).collect();
        assert_eq!(grown.len(), 2, "from 2 to 4, from 4 to all");
        assert_eq!(micro.of(8), 8);
    }

    /// Makes good steps until a larger size is tried; returns their number and the new size.
    fn grow(micro: &mut MicroBatch, batch: usize) -> (u64, usize) {
        (1..).find_map(|steps| Some((steps, micro.succeeded(batch)?))).unwrap()
    }

    #[test]
    fn a_short_last_batch_does_not_change_the_full_size() {
        let mut micro = MicroBatch::default();
        while micro.of(121) > 8 {
            fail_until_smaller(&mut micro, 121);
        }
        assert!((1..GOOD_STEPS).all(|_| micro.succeeded(121).is_none()));
        assert_eq!(micro.succeeded(9), Some(16), "doubled once, although the last batch has fewer graphs");
        assert_eq!(micro.of(121), 16);
    }

    #[test]
    fn growth_ends_at_the_planned_size() {
        let mut micro = MicroBatch::at_most(16);
        assert!((0..1000).all(|_| micro.succeeded(121).is_none() && micro.succeeded(9).is_none()), "nothing failed");
        fail_until_smaller(&mut micro, 121);
        fail_until_smaller(&mut micro, 121);
        assert_eq!(micro.of(121), 4);
        assert_eq!(grow(&mut micro, 121), (GOOD_STEPS, 8));
        assert_eq!(grow(&mut micro, 121), (GOOD_STEPS, 16));
        assert!((0..1000).all(|_| micro.succeeded(121).is_none()));
        assert_eq!(micro.of(121), 16);
    }

    #[test]
    fn a_try_that_was_too_much_comes_later_next_time() {
        let mut micro = MicroBatch::default();
        fail_until_smaller(&mut micro, 8);
        assert_eq!(grow(&mut micro, 8), (GOOD_STEPS, 8), "all of them");
        // Good steps on a few small graphs prove nothing yet.
        assert_eq!(micro.succeeded(2), None);
        fail_until_smaller(&mut micro, 8);
        assert_eq!(grow(&mut micro, 8), (2 * GOOD_STEPS, 8));
        fail_until_smaller(&mut micro, 8);
        assert_eq!(grow(&mut micro, 8), (4 * GOOD_STEPS, 8));
        // A size that has proved itself does not count as a failed try when it fails much later.
        assert!((0..4 * GOOD_STEPS).all(|_| micro.succeeded(8).is_none()));
        fail_until_smaller(&mut micro, 8);
        assert_eq!(grow(&mut micro, 8), (4 * GOOD_STEPS, 8));
    }

    #[test]
    fn sources_of_errors_are_searched() {
        let deep = kdgat_nn::ModelError::from(TchError::Torch("CUDA out of memory. Tried".into()));
        assert!(is_out_of_memory(&deep));
        assert!(!is_out_of_memory(&TchError::Torch("a wrong index".into())));
    }
}
