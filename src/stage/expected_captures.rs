//! Captured steps of a training on a GPU, batch by batch.
//!
//! Padded sizes depend on the graphs of a batch alone, so it is known before the first epoch which batches have their steps captured. These are captured
//! once before, in the same order, to measure what they hold.

use std::collections::BTreeMap;

use super::StageError;
use super::epochs::Graphs;
use super::measured::Measured;
use crate::graph::padding::SizeClass;
use crate::graph::{Store, StoreError};
use crate::memory::rehearsal::{CaptureBytes, Rehearsal};
use crate::train::fit::{BatchPlan, FitOptions};
use crate::train::loss_scale::LossScale;
use crate::train::met_sizes::{Captured, MetSizes, Way};

/// Exact sizes of a training's graphs, by their position in the store; zeros for its other graphs.
#[derive(Debug)]
pub struct GraphSizes(Vec<[u32; 3]>);

impl GraphSizes {
    /// Counts the graphs of a training.
    ///
    /// # Errors
    /// A damaged store.
    pub fn of(store: &Store, graphs: &Graphs) -> Result<Self, StageError> {
        let vocabulary = store.vocabulary();
        let mut sizes = vec![[0; 3]; store.num_graphs() as usize];
        for &graph in graphs.training.iter().chain(&graphs.validation) {
            let size = SizeClass::of_graph(&store.try_graph(graph)?, vocabulary);
            let damaged = |detail| StoreError::Graph { graph, detail };
            let SizeClass { nodes, edges, successors, .. } = size.map_err(damaged)?;
            // Shards count edges in 32 bits.
            sizes[graph as usize] = [nodes, edges, successors].map(|size| size as u32);
        }
        Ok(Self(sizes))
    }

    fn of_batches(&self, batches: &[Vec<u64>]) -> Vec<SizeClass> {
        batches.iter().map(|batch| self.of_batch(batch)).collect()
    }

    fn of_batch(&self, batch: &[u64]) -> SizeClass {
        batch.iter().fold(SizeClass::default(), |sum, &graph| {
            let [nodes, edges, successors] = self.0[graph as usize].map(i64::from);
            sum + SizeClass { nodes, edges, successors, graphs: 1 }
        })
    }
}

/// Memory of the padded form of a batch and of its step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaddedStep {
    /// The size that the batch is padded to.
    pub class: SizeClass,
    /// Edges without padding.
    pub edges: i64,
    /// The way to its losses.
    pub way: Way,
    /// Bytes that earlier captures hold.
    pub held: f64,
    /// Peak of the step beside the batch, its targets and what captures hold; `None` if it was not measured.
    pub peak: Option<f64>,
}

/// Captures of a training, measured.
pub struct Captures<'a> {
    sizes: &'a GraphSizes,
    scales: Scales,
    measured: BTreeMap<(SizeClass, Captured), CaptureBytes>,
    /// Peaks of steps and validations that were measured without being captured in the run, by size; true for steps.
    computed: BTreeMap<(SizeClass, bool), f64>,
    /// True if a batch is a part of its padded form.
    pub is_resident: bool,
}

/// Factors of the losses.
#[derive(Clone, Copy)]
struct Scales {
    accumulated: u64,
    loss_scale: f64,
}

impl Scales {
    /// The factor of step `step` of an epoch with so many.
    fn of(self, step: usize, steps: usize) -> f64 {
        crate::train::fit::share_of_step(step as u64, steps as u64, self.accumulated) * self.loss_scale
    }
}

/// Sizes met so far by a run, and what its captures hold.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    met: MetSizes,
    held: f64,
}

impl<'a> Captures<'a> {
    /// Measures the captures of the first epochs.
    ///
    /// # Errors
    /// If a step cannot be captured, or memory runs out.
    pub fn measure(
        training: &mut Measured,
        graphs: &Graphs,
        sizes: &'a GraphSizes,
        epochs: u64,
    ) -> Result<Self, StageError> {
        let FitOptions { accumulate_grad_batches: accumulated, precision, .. } = *training.options;
        let scales = Scales { accumulated, loss_scale: LossScale::of(precision).factor() };
        let is_resident = training.training_loader.resident_bytes().is_some();
        let mut captures = Self { sizes, scales, measured: BTreeMap::new(), computed: BTreeMap::new(), is_resident };
        let (mut progress, mut keys, mut rehearsals) = (Progress::default(), Vec::new(), Vec::new());
        let validation = graphs.validation_batches();
        let of_validation = sizes.of_batches(&validation);
        for epoch in 0..epochs {
            let batches = graphs.training(epoch);
            let of_training = sizes.of_batches(&batches);
            for (batches, sizes, is_training) in [(&batches, &of_training, true), (&validation, &of_validation, false)]
            {
                let steps = captures.follow(&mut progress, sizes, is_training);
                for (number, step) in steps.iter().enumerate().filter(|(_, step)| step.way == Way::Captured) {
                    let scale = is_training.then(|| scales.of(number, batches.len()));
                    keys.push((step.class, scale.map(f64::to_bits)));
                    rehearsals.push(Rehearsal { graphs: batches[number].clone(), scale });
                }
            }
        }
        captures.measured = keys.into_iter().zip(training.captures(&rehearsals)?).collect();
        Ok(captures)
    }

    /// Measures the step, or the validation, of a batch of this size that the run computes without capturing it.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn measure_computed(
        &mut self,
        training: &mut Measured,
        class: SizeClass,
        graphs: &[u64],
        is_training: bool,
    ) -> Result<(), StageError> {
        let scale = is_training.then(|| self.scales.of(0, 1));
        for bytes in training.captures(&[Rehearsal { graphs: graphs.to_vec(), scale }])? {
            self.computed.insert((class, is_training), bytes.first);
        }
        Ok(())
    }

    /// Sizes of batches without padding.
    pub fn sizes(&self, batches: &[Vec<u64>]) -> Vec<SizeClass> {
        self.sizes.of_batches(batches)
    }

    /// Follows the batches of an epoch, or of a validation, by their sizes.
    pub fn follow(&self, progress: &mut Progress, sizes: &[SizeClass], is_training: bool) -> Vec<PaddedStep> {
        let step = |(number, own): (usize, &SizeClass)| {
            let class = own.rounded_up();
            let kind = is_training.then(|| self.scales.of(number, sizes.len()).to_bits());
            let (way, held) = (progress.met.way(class, kind), progress.held);
            progress.met.note(class, kind, way);
            let capture = self.measured.get(&(class, kind));
            if let (Way::Captured, Some(capture)) = (way, capture) {
                progress.held = capture.held;
            }
            let peak = match way {
                Way::Replayed => Some(0.0),
                Way::Captured => capture.map(|capture| capture.capture),
                Way::Computed => {
                    let first = capture.map(|capture| capture.first).filter(|&bytes| is_training && bytes > 0.0);
                    first.or_else(|| self.computed.get(&(class, is_training)).copied())
                }
            };
            PaddedStep { class, edges: own.edges, way, held, peak }
        };
        sizes.iter().enumerate().map(step).collect()
    }
}
