//! Surviving an allocation that fails: free what is kept, try again, then with fewer graphs at a time.
//!
//! Where a limit is reached, the same again will hardly fit, and smaller work comes soon. Where the system refused although
//! the limit had room, others took the memory, and have perhaps given it back a moment later: then patience comes first,
//! for smaller work gives other numbers (batch norm).

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use kdgat_graph::Batch;
use kdgat_torch::{self as torch, allocator};
use serde::{Deserialize, Serialize};
use tch::TchError;

use super::{Meter, reclaim};

/// Repetitions of the same work after freeing what was kept, before it is made smaller.
const REPETITIONS: u32 = 2;
/// The same where the limit had room for what was refused.
const PATIENT_REPETITIONS: u32 = 60;
/// How much longer each of these waits than the one before, and the longest wait.
const LONGER_WAIT: Duration = Duration::from_micros(200);
const LONGEST_WAIT: Duration = Duration::from_millis(20);
/// Steps without a failure after which one size up is tried, and after which it has proved itself; doubled each time that it
/// was too much.
const GOOD_STEPS: u64 = 64;

/// Whether an error, or what it comes from, says that memory of the host or of a GPU ran out.
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

/// How often the same work was repeated in vain.
#[derive(Clone, Debug, Default, PartialEq)]
struct Patience {
    repetitions: u32,
}

impl Patience {
    /// Whether to try again after this error; waits where that may help.
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

/// Runs `work`; when memory runs out, frees what is cached and runs it again, a few times, before the last of which it asks
/// others for what they hold ([`super::Reclaim`]). It must be repeatable.
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

/// How many graphs of a batch go through the model at a time. Part of a run's state: batch norm sees so many at a time, and a
/// run that goes on has to go on with the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MicroBatch {
    /// `None`: all of them.
    graphs: Option<usize>,
    /// What it was planned to be at most; `None`: all of them.
    #[serde(default)]
    planned: Option<usize>,
    /// Graphs of the largest batch so far: an epoch's last one may be short.
    #[serde(default)]
    full_batch: usize,
    /// One size up is being tried.
    #[serde(default)]
    trying: bool,
    #[serde(skip)]
    patience: Patience,
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
    /// At most this many graphs at a time, however well steps go.
    pub fn at_most(graphs: usize) -> Self {
        let graphs = Some(graphs.max(1));
        Self { graphs, planned: graphs, ..Self::default() }
    }

    /// Graphs at a time of a batch of `batch_graphs`.
    pub fn of(&self, batch_graphs: usize) -> usize {
        self.graphs.map_or(batch_graphs, |graphs| graphs.min(batch_graphs)).max(1)
    }

    /// A step on `batch_graphs` graphs ran out of memory. Waits where that may help.
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
            // One size up was too much: the next try comes later.
            self.good_steps_needed = self.good_steps_needed.saturating_mul(2);
        }
        self.patience = Patience::default();
        (self.trying, self.good_steps) = (false, 0);
        self.graphs = Some(now.div_ceil(2));
        Remedy::Smaller(now.div_ceil(2))
    }

    /// A step on `batch_graphs` graphs went well. Returns the new size if one size up is tried from now on.
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
    fn a_refusal_inside_the_limit_is_waited_for() {
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
    fn others_are_asked_for_memory_before_work_is_given_up() {
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

    /// Steps that go well until one size up is tried: how many, and its graphs.
    fn grow(micro: &mut MicroBatch, batch: usize) -> (u64, usize) {
        (1..).find_map(|steps| Some((steps, micro.succeeded(batch)?))).unwrap()
    }

    #[test]
    fn a_short_last_batch_says_nothing_about_the_full_size() {
        let mut micro = MicroBatch::default();
        while micro.of(121) > 8 {
            fail_until_smaller(&mut micro, 121);
        }
        assert!((1..GOOD_STEPS).all(|_| micro.succeeded(121).is_none()));
        assert_eq!(micro.succeeded(9), Some(16), "one doubling, though all of the last batch would be less");
        assert_eq!(micro.of(121), 16);
    }

    #[test]
    fn growth_ends_at_what_was_planned() {
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
        // What has proved itself was not too much when it fails much later.
        assert!((0..4 * GOOD_STEPS).all(|_| micro.succeeded(8).is_none()));
        fail_until_smaller(&mut micro, 8);
        assert_eq!(grow(&mut micro, 8), (4 * GOOD_STEPS, 8));
    }

    #[test]
    fn states_of_before_there_was_a_plan_are_read() {
        let text = r#"{"graphs":4,"good_steps":63,"good_steps_needed":64}"#;
        let mut micro: MicroBatch = serde_json::from_str(text).unwrap();
        assert_eq!(micro.succeeded(121), Some(8));
    }

    #[test]
    fn causes_are_looked_at() {
        let deep = kdgat_nn::ModelError::from(TchError::Torch("CUDA out of memory. Tried".into()));
        assert!(is_out_of_memory(&deep));
        assert!(!is_out_of_memory(&TchError::Torch("a wrong index".into())));
    }
}
