//! Peak of a pass over batches whose order is known: training in an epoch, or validation.
//!
//! ```text
//! for each burst of batches
//!     in memory: the burst, and the batches after it that wait in the loader's queue
//!     visit:     targets of the burst, and the teacher's forward of one batch
//!     steps:     targets of the batches that are left, and the student's forward and backward of one batch
//! ```

/// Bytes that one batch needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchBytes {
    /// Number of graphs, whose targets are cached after the visit.
    pub graphs: u64,
    /// Its tensors, also in padded form if its step is captured.
    pub data: f64,
    /// Those that a visit copies where it takes a part of the graphs.
    pub unpadded: f64,
    /// A teacher's targets.
    pub targets: f64,
    /// Peak of a teacher's forward.
    pub visit: f64,
    /// Peak of a training step, or of a validation's forward.
    pub step: f64,
    /// Bytes that captured steps hold before its own.
    pub captured: f64,
}

/// Records of targets that a cache in memory appends to blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheBlocks {
    /// Bytes of a graph's record.
    pub record_bytes: f64,
    /// Bytes of a block.
    pub block_bytes: f64,
    /// Graphs cached before the pass.
    pub before: u64,
    /// Graphs that can be cached at all.
    pub most: u64,
}

impl CacheBlocks {
    /// Bytes of the blocks after `more` further graphs.
    fn bytes(&self, more: u64) -> f64 {
        let per_block = (self.block_bytes / self.record_bytes.max(1.0)).floor().max(1.0);
        ((self.before + more).min(self.most) as f64 / per_block).ceil() * self.block_bytes.max(self.record_bytes)
    }
}

/// The visits of a teacher during a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visits {
    /// Copies of each batch's targets during a visit: those that are returned, and rows of the cache.
    pub copies: f64,
    /// Share of the announced batches' tensors that is copied, because some of their graphs are cached and the others are selected.
    pub selected: f64,
    /// The test before the first visit, if this pass has it.
    pub gate: Option<Gate>,
}

/// A test that a teacher repeats itself: before the first visit it computes a part of the first batch, which is copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// Share of the batch.
    pub share: f64,
    /// Most graphs of it.
    pub graphs: f64,
}

/// Circumstances of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// Bytes in use throughout: weights, gradients, optimiser states, a teacher's weights.
    pub always: f64,
    /// Batches of a full loader queue.
    pub waiting: usize,
    /// Batches announced at a time.
    pub burst: usize,
    /// Visits of a teacher; `None` if there is no teacher or all targets are cached.
    pub visits: Option<Visits>,
    /// Targets cached in memory, if there are any.
    pub cache: Option<CacheBlocks>,
}

/// Work during which a pass peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// The teacher's forward.
    Visit,
    /// The student's step, or its forward in validation.
    Step,
}

/// Memory at the peak of a pass, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Position of the batch in work.
    pub batch: usize,
    /// Work at the peak.
    pub work: Work,
    /// Weights and whatever else is always in use.
    pub always: f64,
    /// Cached targets.
    pub cached: f64,
    /// CUDA graphs and their inputs.
    pub captured: f64,
    /// Number and bytes of the announced batches.
    pub announced: (usize, f64),
    /// Number and bytes of the batches that wait in the loader's queue.
    pub waiting: (usize, f64),
    /// Targets of the announced batches, less those that steps have used.
    pub targets: f64,
    /// The work itself.
    pub activations: f64,
}

impl Peak {
    /// All bytes together.
    pub fn bytes(&self) -> f64 {
        self.always + self.cached + self.captured + self.announced.1 + self.waiting.1 + self.targets + self.activations
    }
}

/// Peak of a pass over these batches, in their order; `None` without batches.
pub fn peak(batches: &[BatchBytes], pass: &Pass) -> Option<Peak> {
    let burst = pass.burst.max(1);
    let mut highest: Option<Peak> = None;
    let mut graphs_before = 0;
    for (number, announced) in batches.chunks(burst).enumerate() {
        let start = number * burst;
        let end = start + announced.len();
        let queue = &batches[end..(end + pass.waiting).min(batches.len())];
        let sum = |batches: &[BatchBytes], of: fn(&BatchBytes) -> f64| batches.iter().map(of).sum::<f64>();
        let graphs_after = graphs_before + announced.iter().map(|batch| batch.graphs).sum::<u64>();
        let cached = |graphs| pass.cache.map_or(0.0, |cache| cache.bytes(graphs));
        let data = sum(announced, |batch| batch.data);
        // A step needs most where its activations and the targets that are left, its own included, are largest together.
        let left = |index: usize| sum(&announced[index..], |batch| batch.targets);
        let needs = |index: usize| announced[index].captured + announced[index].step + left(index);
        let last = (0..announced.len()).max_by(|&a, &b| needs(a).total_cmp(&needs(b))).unwrap_or(0);
        let step = Peak {
            batch: start + last,
            work: Work::Step,
            always: pass.always,
            cached: cached(graphs_after),
            captured: announced[last].captured,
            announced: (announced.len(), data),
            waiting: (queue.len(), sum(queue, |batch| batch.data)),
            targets: left(last),
            activations: announced[last].step,
        };
        let visit = pass.visits.map(|Visits { copies, selected, gate }| {
            let widest = (0..announced.len()).max_by(|&a, &b| announced[a].visit.total_cmp(&announced[b].visit));
            let widest = widest.unwrap_or(0);
            let of_gate = gate.filter(|_| start == 0).map_or(0.0, |Gate { share, graphs }| {
                let first = &announced[0];
                first.unpadded * share.min(graphs / first.graphs.max(1) as f64)
            });
            Peak {
                batch: start + widest,
                work: Work::Visit,
                cached: cached(graphs_before),
                captured: announced[0].captured,
                announced: (announced.len(), data + selected * sum(announced, |batch| batch.unpadded) + of_gate),
                targets: copies * left(0),
                activations: announced[widest].visit,
                ..step
            }
        });
        for found in [Some(step), visit].into_iter().flatten() {
            if highest.is_none_or(|highest| found.bytes() > highest.bytes()) {
                highest = Some(found);
            }
        }
        graphs_before = graphs_after;
    }
    highest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn batch(data: f64, step: f64) -> BatchBytes {
        BatchBytes { graphs: 10, data, unpadded: data, targets: 1.0, visit: 50.0, step, captured: 0.0 }
    }

    const PLAIN: Pass = Pass { always: 1000.0, waiting: 2, burst: 1, visits: None, cache: None };

    #[test]
    fn without_a_teacher_a_step_has_its_batch_and_the_next_ones() {
        let batches = [batch(10.0, 100.0), batch(20.0, 100.0), batch(30.0, 90.0), batch(5.0, 120.0)];
        let found = peak(&batches, &PLAIN).unwrap();
        // 10 + 20 + 30 + 100, against 20 + 30 + 5 + 100 and 5 + 120; each has 1000 and one target.
        assert_eq!((found.batch, found.bytes()), (0, 1161.0));
        assert_eq!((found.announced, found.waiting), ((1, 10.0), (2, 50.0)));
        assert_eq!(peak(&[], &PLAIN), None);
    }

    #[test]
    fn a_visit_has_the_whole_burst_and_no_activations_of_the_student() {
        let batches = [batch(10.0, 40.0), batch(20.0, 40.0), batch(30.0, 45.0), batch(5.0, 40.0)];
        let visits = Some(Visits { copies: 2.0, selected: 0.0, gate: None });
        let found = peak(&batches, &Pass { burst: 3, visits, ..PLAIN }).unwrap();
        assert_eq!((found.work, found.bytes()), (Work::Visit, 1000.0 + 60.0 + 5.0 + 6.0 + 50.0));
        let gate = Some(Gate { share: 0.5, graphs: 4.0 });
        let with_gate =
            peak(&batches, &Pass { burst: 3, visits: Some(Visits { copies: 2.0, selected: 0.0, gate }), ..PLAIN })
                .unwrap();
        assert_eq!(with_gate.bytes() - found.bytes(), 4.0, "four of ten graphs of the first batch");
        let partly = Some(Visits { copies: 2.0, selected: 0.5, gate: None });
        let partly = peak(&batches, &Pass { burst: 3, visits: partly, ..PLAIN }).unwrap();
        assert_eq!(partly.bytes() - found.bytes(), 30.0, "half of the burst is copied");
        let cached = peak(&batches, &Pass { burst: 3, ..PLAIN }).unwrap();
        assert_eq!((cached.work, cached.batch), (Work::Step, 2));
    }

    /// The targets of a batch are freed after its step.
    #[test]
    fn the_last_step_of_a_burst_has_no_targets_of_others() {
        let batches: Vec<BatchBytes> =
            [100.0, 100.0, 104.0].map(|step| BatchBytes { targets: 10.0, ..batch(1.0, step) }).to_vec();
        let found = peak(&batches, &Pass { burst: 3, waiting: 0, ..PLAIN }).unwrap();
        assert_eq!((found.batch, found.targets, found.bytes()), (0, 30.0, 1000.0 + 3.0 + 30.0 + 100.0));
        let batches: Vec<BatchBytes> = batches.iter().map(|batch| BatchBytes { targets: 1.0, ..*batch }).collect();
        let found = peak(&batches, &Pass { burst: 3, waiting: 0, ..PLAIN }).unwrap();
        assert_eq!((found.batch, found.targets, found.bytes()), (2, 1.0, 1000.0 + 3.0 + 1.0 + 104.0));
    }

    #[test]
    fn captured_steps_are_in_memory_from_then_on() {
        let of = |step: f64, captured: f64| BatchBytes { captured, ..batch(10.0, step) };
        let batches = [of(100.0, 0.0), of(90.0, 0.0), of(5.0, 80.0), of(30.0, 80.0)];
        let found = peak(&batches, &Pass { waiting: 0, ..PLAIN }).unwrap();
        assert_eq!((found.batch, found.captured, found.bytes()), (3, 80.0, 1000.0 + 80.0 + 10.0 + 30.0 + 1.0));
        let visits = Some(Visits { copies: 1.0, selected: 0.0, gate: None });
        let found = peak(&batches, &Pass { waiting: 0, burst: 2, visits, ..PLAIN }).unwrap();
        assert_eq!((found.batch, found.work), (3, Work::Visit), "80 + 2 · 10 + 2 + 50, against 80 + 2 · 10 + 1 + 30");
    }

    #[test]
    fn cached_targets_grow_by_blocks() {
        let cache = CacheBlocks { record_bytes: 30.0, block_bytes: 100.0, before: 0, most: 50 };
        assert_eq!(cache.bytes(0), 0.0);
        assert_eq!(cache.bytes(3), 100.0);
        assert_eq!(cache.bytes(4), 200.0);
        assert_eq!(CacheBlocks { before: 5, ..cache }.bytes(4), 300.0);
        assert_eq!(CacheBlocks { most: 6, ..cache }.bytes(9), 200.0);
        let batches = [batch(10.0, 100.0), batch(10.0, 100.0)];
        let found = peak(&batches, &Pass { waiting: 0, cache: Some(cache), ..PLAIN }).unwrap();
        assert_eq!((found.batch, found.cached), (1, 700.0), "20 graphs, 3 in a block");
    }

    proptest! {
        /// The peak is at least what each batch needs, and at most what the largest of everything need together.
        #[test]
        fn the_peak_lies_between_two_bounds(
            sizes in prop::collection::vec((1.0..100.0f64, 1.0..1000.0f64), 1..40),
            waiting in 0usize..6,
            burst in 1usize..6,
        ) {
            let batches: Vec<BatchBytes> = sizes.iter().map(|&(data, step)| batch(data, step)).collect();
            let pass = Pass { waiting, burst, ..PLAIN };
            let found = peak(&batches, &pass).unwrap().bytes();
            let (data, step) = sizes.iter().fold((0.0f64, 0.0f64), |(a, b), &(data, step)| (a.max(data), b.max(step)));
            let most = 1000.0 + (burst + waiting) as f64 * data + burst as f64 + step;
            prop_assert!(found <= most + 1e-6);
            prop_assert!(sizes.iter().all(|&(data, step)| found >= 1000.0 + data + step + 1.0 - 1e-6));
            let longer_queue = peak(&batches, &Pass { waiting: waiting + 1, ..pass }).unwrap().bytes();
            prop_assert!(longer_queue >= found);
        }
    }
}
