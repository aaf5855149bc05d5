//! Difficulty of graphs that are no CAN windows: the task loss of a network, or of a teacher, on each of them.
//!
//! The loader's thread prefetches graphs in chunks, so memory does not grow with their number. A network in evaluation mode gives a graph
//! the same outputs in any batch, and each loss is computed in f64 from the outputs of its graph alone: chunks change no bit.

use std::sync::Arc;

use kdgat_distill::TargetName;
use kdgat_distill::objective::TeacherLink;
use kdgat_graph::{AssembleOptions, Batch, Loader, LoaderOptions, Store, Task};
use kdgat_nn::layers::Mode;
use kdgat_nn::target_scale::summed_features;
use kdgat_nn::{BatchNeeds, Gnn, TargetScale, weights};
use kdgat_torch::{autocast::widened, device};
use kdgat_train::interrupt;
use kdgat_train::memory::{self, Activity, Meter, by_halves, retry_on_oom};
use kdgat_train::objective::{ObjectiveError, Part, TargetSource};
use tch::{Device, Tensor};

use super::CurriculumError;
use super::scorer::{CHUNKS_AHEAD, chunks};

/// Source of the outputs whose losses are computed.
pub enum OutputSource<'a> {
    /// A network, in evaluation mode.
    Network(&'a Gnn),
    /// A teacher, through its thread and its cache.
    Teacher(&'a mut TeacherLink),
}

/// Computes the task loss of each graph.
#[derive(Debug, Clone)]
pub struct TaskScorer {
    /// The graphs.
    pub store: Arc<Store>,
    /// The task.
    pub task: Task,
    /// Scales of regression targets, in whose units errors are measured; empty for other tasks.
    pub scales: Vec<TargetScale>,
    /// Scales of the outputs, for regression.
    pub output_scales: Vec<TargetScale>,
    /// Parts of a batch that the network or teacher reads.
    pub needs: BatchNeeds,
    /// Graphs per batch; batches of more than 16,384 nodes have fewer.
    pub chunk: usize,
    /// Device of the network or of the teacher's outputs.
    pub device: Device,
}

impl TaskScorer {
    /// Difficulty of each of `graphs`.
    ///
    /// # Errors
    /// A graph with an infinite loss or NaN, an unreadable store, a failed teacher, or an interruption.
    pub fn score(&self, mut source: OutputSource<'_>, graphs: &[u64]) -> Result<Vec<f32>, CurriculumError> {
        let before = memory::current_activity();
        memory::set_activity(Activity::Scoring);
        let difficulty = self.score_in_chunks(&mut source, graphs);
        memory::set_activity(before);
        difficulty
    }

    fn score_in_chunks(&self, source: &mut OutputSource<'_>, graphs: &[u64]) -> Result<Vec<f32>, CurriculumError> {
        let mut loaded = self.loader().epoch(chunks(&self.store, graphs, self.chunk)?, 0);
        let mut difficulty = Vec::with_capacity(graphs.len());
        loop {
            let batches = self.next_batches(&mut loaded, source.burst())?;
            if batches.is_empty() {
                return Ok(difficulty);
            }
            source.announce(&batches)?;
            for batch in &batches {
                if interrupt::requested() {
                    return Err(CurriculumError::Interrupted { done: difficulty.len(), total: graphs.len() });
                }
                let outputs = source.outputs(batch, self.device)?;
                let pairs = batch.graph_index.iter().zip(&outputs);
                for (&graph, outputs) in pairs {
                    difficulty.push(self.difficulty(graph, outputs)?);
                }
            }
            self.store.release_pages()?;
            if self.device.is_cuda() {
                // Return the chunk's memory to other users of the card.
                device::empty_cache(self.device)?;
            }
        }
    }

    fn loader(&self) -> Loader {
        let assemble = AssembleOptions {
            vocabulary: Arc::new(self.store.vocabulary().clone()),
            unknown_drop: None,
            edge_attributes: self.needs.edge_features,
            hashed_ids: false,
            profile: None,
            short_profiles: false,
            space: self.needs.space,
        };
        let options = LoaderOptions { assemble, workers: 1, prefetch_batches: CHUNKS_AHEAD };
        Loader::start(Arc::clone(&self.store), options)
    }

    /// The next `count` batches, on the device; fewer at the end.
    fn next_batches(
        &self,
        loaded: &mut impl Iterator<Item = Result<Batch, kdgat_graph::StoreError>>,
        count: usize,
    ) -> Result<Vec<Batch>, CurriculumError> {
        let upload = |batch: Batch| {
            retry_on_oom(Meter::new(self.device), || Ok::<_, CurriculumError>(batch.to_device(self.device)?))
        };
        loaded.take(count).map(|batch| upload(batch?)).collect()
    }

    /// The task loss of one graph with these outputs.
    ///
    /// # Errors
    /// If it is infinite or NaN, or the store is damaged.
    pub fn difficulty(&self, graph: u64, outputs: &[f32]) -> Result<f32, CurriculumError> {
        let outputs: Vec<f64> = outputs.iter().map(|&output| f64::from(output)).collect();
        let (summed, targets) = summed_features(&self.store, graph)?;
        let value = match self.task {
            Task::Classification => cross_entropy(&outputs, targets.first().copied().unwrap_or(f64::NAN)),
            Task::MultiLabel => mean(outputs.iter().zip(&targets).map(|(&logit, &label)| binary(logit, label))),
            Task::Regression => {
                let predicted = outputs.iter().zip(&self.output_scales);
                let predicted =
                    predicted.map(|(output, scale)| output * scale.deviation + scale.linear_prediction(&summed));
                let errors = predicted.zip(&targets).zip(&self.scales);
                mean(errors.map(|((predicted, target), scale)| ((predicted - target) / scale.deviation).powi(2)))
            }
        } as f32;
        if value.is_finite() { Ok(value) } else { Err(CurriculumError::NotFinite { graph, value }) }
    }
}

impl OutputSource<'_> {
    /// Batches to announce at a time: an offloaded teacher serves all of them in one visit.
    fn burst(&self) -> usize {
        match self {
            Self::Network(_) => 1,
            Self::Teacher(teacher) => teacher.burst().max(1),
        }
    }

    fn announce(&mut self, batches: &[Batch]) -> Result<(), CurriculumError> {
        match self {
            Self::Network(_) => Ok(()),
            Self::Teacher(teacher) => Ok(teacher.announce(batches)?),
        }
    }

    /// Outputs for each graph of the next announced batch.
    fn outputs(&mut self, batch: &Batch, device: Device) -> Result<Vec<Vec<f32>>, CurriculumError> {
        match self {
            Self::Network(network) => by_halves(Meter::new(device), batch, &mut |batch| {
                rows(&widened(&tch::no_grad(|| network.forward(batch, Mode::Evaluation))?)?)
            }),
            Self::Teacher(teacher) => {
                teacher.receive()?;
                let outputs = retry_on_oom(Meter::new(device), || teacher_outputs(teacher, batch));
                teacher.forget();
                outputs
            }
        }
    }
}

fn teacher_outputs(teacher: &mut TeacherLink, batch: &Batch) -> Result<Vec<Vec<f32>>, CurriculumError> {
    let targets = teacher.targets_of(&Part::whole(batch))?;
    let outputs = targets.as_ref().and_then(|targets| targets.get(TargetName::Logits));
    let outputs =
        outputs.ok_or_else(|| ObjectiveError::from("the teacher returns no outputs to compute losses from"))?;
    rows(&outputs.gathered()?)
}

/// The rows of `[num_graphs, outputs]`.
fn rows(outputs: &Tensor) -> Result<Vec<Vec<f32>>, CurriculumError> {
    let columns = outputs.size().get(1).map_or(1, |&columns| columns.max(1) as usize);
    Ok(weights::floats(outputs)?.chunks(columns).map(<[f32]>::to_vec).collect())
}

/// −ln softmax(logits) of `class`; NaN for a class that has no logit.
fn cross_entropy(logits: &[f64], class: f64) -> f64 {
    let Some(own) = logits.get(class as usize).filter(|_| class >= 0.0) else { return f64::NAN };
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    sum.ln() + largest - own
}

/// Binary cross entropy of a label of 0 or 1: max(x, 0) − x·y + ln(1 + e^−|x|).
fn binary(logit: f64, label: f64) -> f64 {
    logit.max(0.0) - logit * label + (-logit.abs()).exp().ln_1p()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    sum / f64::from(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tch::Reduction;

    use super::*;

    proptest! {
        /// libtorch's losses of one graph, in f64.
        #[test]
        fn losses_are_those_of_training(logits in prop::collection::vec(-30.0f64..30.0, 2..6), pick: prop::sample::Index, bits: u8) {
            let (class, row) = (pick.index(logits.len()), Tensor::from_slice(&logits).view([1, -1]));
            let expected = row.cross_entropy_loss(&Tensor::from_slice(&[class as i64]), None::<&Tensor>, Reduction::Mean, -100, 0.0);
            let (expected, found) = (expected.double_value(&[]), cross_entropy(&logits, class as f64));
            prop_assert!((expected - found).abs() < 1e-9, "{expected} and {found}");
            let labels: Vec<f64> = (0..logits.len()).map(|label| f64::from(bits >> label & 1)).collect();
            let truth = Tensor::from_slice(&labels).view([1, -1]);
            let expected = row.binary_cross_entropy_with_logits(&truth, None::<&Tensor>, None::<&Tensor>, Reduction::Mean).double_value(&[]);
            let found = mean(logits.iter().zip(&labels).map(|(&logit, &label)| binary(logit, label)));
            prop_assert!((expected - found).abs() < 1e-9, "{expected} and {found}");
        }
    }

    #[test]
    fn a_class_without_logit_has_no_loss() {
        assert!(cross_entropy(&[0.0, 1.0], 2.0).is_nan());
        assert!(cross_entropy(&[0.0, 1.0], f64::NAN).is_nan());
        assert!((cross_entropy(&[0.0, 0.0], 1.0) - 2f64.ln()).abs() < 1e-12);
    }
}
