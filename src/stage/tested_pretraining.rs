//! The answers of a pre-trained network about the test graphs of its fold, beside a constant that knows the training graphs alone.

use std::sync::Arc;

use tch::{Device, Tensor};

use super::StageError;
use super::tested_batches::{given, mean_row, rows_of_graphs};
use crate::evaluate::graphs::{Metric, interval};
use crate::evaluate::{EvaluateError, TrainedModel};
use crate::graph::dataset::GraphSplit;
use crate::graph::{Batch, Store};
use crate::nn::attention::Backend;
use crate::nn::layers::Mode;
use crate::nn::pretraining::growth::{Bins, Growth, MedianGrowth};
use crate::nn::pretraining::masked::MaskedErrors;
use crate::nn::pretraining::{GrownTree, NodeValues, TreeTerms};
use crate::nn::{Architecture, BatchNeeds, Draw, ModelError, Pretext, Pretraining, PretrainingConfig, Scope, weights};

/// Names of the errors of masked features.
const OF_MASKED: &[&str] = &["features MSE", "categories CE"];
/// Names of the errors of GT-SSL; the earth mover's distances are in the unit of positions and in radians.
const OF_TREES: &[&str] = &["growth distance EMD", "growth angle EMD", "order", "unrelated hinge"];

/// Sum and number of the values of a term.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    sum: f64,
    count: f64,
}

impl Sum {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }
}

/// The terms of a graph, in the order of their names.
type Terms = Vec<Sum>;

/// Answers about the test graphs.
pub(super) struct PretextAnswers {
    names: &'static [&'static str],
    /// `[test graphs]`
    model: Vec<Terms>,
    baseline: Vec<Terms>,
    /// The first test tree with its growth, for GT-SSL.
    pub grown: Option<GrownTree>,
}

impl PretextAnswers {
    /// Asks the test graphs of a division whose training graphs are those that the model was trained on.
    ///
    /// # Errors
    /// Weights or data that cannot be read, or too little memory.
    pub fn new(
        model: &TrainedModel,
        config: &PretrainingConfig,
        store: &Arc<Store>,
        split: &GraphSplit,
        device: Device,
        kernel: Backend,
    ) -> Result<Self, StageError> {
        let mut given = given(model, device)?;
        let network = Pretraining::new(Scope::root(&mut given), config, kernel)?;
        given.check_all_used(|_| false)?;
        let needs = Architecture::Pretraining(config.clone()).needs();
        let test = Test { store, split, config, network, needs, device };
        let (names, answers) = match (config.pretext, config.bins()) {
            (Pretext::Masked { share }, _) => (OF_MASKED, test.masked(share)?),
            (Pretext::GtSsl { .. }, Some(bins)) => (OF_TREES, test.trees(bins)?),
            (Pretext::GtSsl { .. }, None) => {
                return Err(StageError::Input(format!("{} is no network over paths, which GT-SSL needs", model.name)));
            }
        };
        let (model, baseline) = answers.into_iter().unzip();
        Ok(Self { names, model, baseline, grown: test.grown()? })
    }

    /// Metrics of the model and of the baseline. `resamples` of the graphs give the model's their intervals.
    pub fn metrics(&self, resamples: u64, seed: u64) -> [Vec<Metric>; 2] {
        [(&self.model, resamples), (&self.baseline, 0)].map(|(terms, resamples)| {
            let of_term = |(term, name): (usize, &&str)| {
                let mean = |drawn: &mut dyn Iterator<Item = usize>| {
                    let sum = drawn.fold(Sum::default(), |sum, graph| {
                        let Sum { sum: more, count } = terms[graph][term];
                        Sum { sum: sum.sum + more, count: sum.count + count }
                    });
                    sum.sum / sum.count
                };
                let value = mean(&mut (0..terms.len()));
                let interval = interval(terms.len(), resamples, seed, |drawn| mean(&mut drawn.iter().copied()));
                Metric { name: (*name).to_owned(), value, interval: interval.filter(|_| value.is_finite()) }
            };
            let metrics = self.names.iter().enumerate().map(of_term);
            metrics.filter(|metric| !metric.value.is_nan()).collect()
        })
    }
}

/// The test graphs of a model.
struct Test<'a> {
    store: &'a Arc<Store>,
    split: &'a GraphSplit,
    config: &'a PretrainingConfig,
    network: Pretraining,
    needs: BatchNeeds,
    device: Device,
}

impl Test<'_> {
    /// Errors of masked features; the baseline predicts the means, and the frequencies of categories.
    fn masked(&self, share: f64) -> Result<Vec<(Terms, Terms)>, StageError> {
        let row = mean_row(self.store, &self.split.training, &self.config.categories, self.device)?;
        rows_of_graphs(self.store, &self.split.test, self.needs, self.device, &mut |batch| {
            let found = self.network.masked_errors(batch, Mode::Evaluation, share, Draw::FIXED)?;
            let nodes = found.nodes.shallow_clone();
            let constant = row.f_expand([nodes.size()[0], -1], false).map_err(ModelError::from)?;
            let simplest = MaskedErrors::new(nodes, &constant, batch, self.config)?;
            let graphs = graphs_of_nodes(batch)?;
            let terms = |errors: &MaskedErrors| {
                let mut terms = vec![vec![Sum::default(); 2]; batch.num_graphs()];
                for (term, rows) in [&errors.features, &errors.categories].into_iter().enumerate() {
                    let Some(rows) = rows else { continue };
                    let rows = NodeValues { nodes: errors.nodes.shallow_clone(), values: rows.shallow_clone() };
                    add(&mut terms, term, &rows, 1.0, &graphs)?;
                }
                Ok::<_, EvaluateError>(terms)
            };
            Ok(terms(&found)?.into_iter().zip(terms(&simplest)?).collect())
        })
    }

    /// The first test graph as a tree with its growth; `None` for masked features.
    fn grown(&self) -> Result<Option<GrownTree>, StageError> {
        let first = &self.split.test[..1.min(self.split.test.len())];
        let found = rows_of_graphs(self.store, first, self.needs, self.device, &mut |batch| {
            Ok(vec![self.network.grown_tree(batch)?])
        })?;
        Ok(found.into_iter().flatten().next())
    }

    /// The terms of GT-SSL; the baseline predicts the median growth of the training trees, orders by a coin, and embeds all nodes alike.
    fn trees(&self, bins: Bins) -> Result<Vec<(Terms, Terms)>, StageError> {
        let mut median = MedianGrowth::new(bins);
        rows_of_graphs(self.store, &self.split.training, self.needs, self.device, &mut |batch| {
            median.add(&Growth::of_batch(batch, bins)?);
            Ok(vec![(); batch.num_graphs()])
        })?;
        let medians = median.medians();
        let units = [bins.distance_range(), std::f64::consts::PI];
        rows_of_graphs(self.store, &self.split.test, self.needs, self.device, &mut |batch| {
            let TreeTerms { order, is_ordered, distance, growth_distance, growth_angle } =
                self.network.tree_terms(batch, Mode::Evaluation, Draw::FIXED)?;
            let graphs = graphs_of_nodes(batch)?;
            let mut found = vec![vec![Sum::default(); OF_TREES.len()]; batch.num_graphs()];
            let mut simplest = found.clone();
            add(&mut found, 0, &growth_distance, units[0], &graphs)?;
            add(&mut found, 1, &growth_angle, units[1], &graphs)?;
            add(&mut found, 2, &NodeValues { nodes: order.nodes.shallow_clone(), values: is_ordered }, 1.0, &graphs)?;
            add(&mut found, 3, &distance, 1.0, &graphs)?;
            let growth = Growth::of_batch(batch, bins)?;
            for (kind, values) in growth.compare_constant(&medians).map_err(ModelError::from)?.into_iter().enumerate() {
                let nodes = Tensor::f_from_slice(&growth.nodes).map_err(ModelError::from)?;
                add(&mut simplest, kind, &NodeValues { nodes, values }, units[kind], &graphs)?;
            }
            for (simplest, found) in simplest.iter_mut().zip(&found) {
                simplest[2] = Sum { sum: found[2].count / 2.0, count: found[2].count };
                simplest[3] = Sum { sum: found[3].count, count: found[3].count };
            }
            Ok(found.into_iter().zip(simplest).collect())
        })
    }
}

/// Adds values of nodes, times `unit`, to a term of their graphs.
fn add(terms: &mut [Terms], term: usize, values: &NodeValues, unit: f64, graphs: &[i64]) -> Result<(), EvaluateError> {
    let nodes: Vec<i64> =
        Vec::try_from(&values.nodes.f_to_device(Device::Cpu).map_err(ModelError::from)?).map_err(ModelError::from)?;
    for (node, value) in nodes.into_iter().zip(weights::floats(&values.values)?) {
        terms[graphs[node as usize] as usize][term].add(f64::from(value) * unit);
    }
    Ok(())
}

/// The graph of each node, by its position in the batch.
fn graphs_of_nodes(batch: &Batch) -> Result<Vec<i64>, EvaluateError> {
    let graphs = batch.graph_of_node.f_to_device(Device::Cpu).map_err(ModelError::from)?;
    Ok(Vec::try_from(&graphs).map_err(ModelError::from)?)
}
