//! Masked features: those of some nodes are hidden, and the network predicts them.

use kdgat_base::random::{self, Purpose};
use kdgat_graph::{Batch, NodeScaling};
use tch::{TchError, Tensor};

use super::PretrainingConfig;
use crate::graph_vgae_losses::node_errors;
use crate::{Draw, ModelError};

/// Errors of the masked nodes of a batch.
#[derive(Debug)]
pub struct MaskedErrors {
    /// `[masked]`, i64: the masked nodes, ascending.
    pub nodes: Tensor,
    /// `[masked]`: mean squared error of the standardised continuous features; `None` without any.
    pub features: Option<Tensor>,
    /// `[masked]`: cross entropy of the categorical features, summed over them; `None` without any.
    pub categories: Option<Tensor>,
}

impl MaskedErrors {
    /// Compares predicted features, `[masked, node_features]`, with those of the batch.
    pub fn new(nodes: Tensor, decoded: &Tensor, batch: &Batch, config: &PretrainingConfig) -> Result<Self, ModelError> {
        let truth = config.scaling.apply(&batch.continuous.f_index_select(0, &nodes)?)?;
        let [features, categories] = node_errors([decoded, &truth], &config.categories)?;
        Ok(Self { nodes, features, categories })
    }
}

/// Number of masked nodes of a graph with so many: the share, rounded, and at least one.
pub fn masked_count(nodes: u64, share: f64) -> u64 {
    ((nodes as f64 * share).round() as u64).clamp(1, nodes.max(1))
}

/// The masked nodes of a batch, `[masked]`, i64, on the host: in each graph those with the smallest random numbers, which are a function of the
/// draw, the graph's position in its store and the node's in the graph.
pub(super) fn masked_nodes(batch: &Batch, share: f64, draw: Draw) -> Result<Tensor, TchError> {
    let pointers: Vec<i64> = Vec::try_from(&batch.node_pointers.f_to_device(tch::Device::Cpu)?)?;
    let mut masked: Vec<i64> = Vec::new();
    for (ends, &graph) in pointers.windows(2).zip(batch.graph_index.iter()) {
        let key = random::bits(draw.seed, Purpose::Masking, draw.epoch, graph);
        let mut nodes: Vec<(u64, i64)> =
            (ends[0]..ends[1]).map(|node| (random::mix(key ^ (node - ends[0]) as u64), node)).collect();
        let count = masked_count(nodes.len() as u64, share) as usize;
        if count < nodes.len() {
            nodes.select_nth_unstable(count);
        }
        let first = masked.len();
        masked.extend(nodes.iter().take(count).map(|&(_, node)| node));
        masked[first..].sort_unstable();
    }
    Tensor::f_from_slice(&masked)
}

/// The batch with the features of these nodes replaced by the means, and their kinds by the unknown one.
pub(super) fn hidden(batch: &Batch, nodes: &Tensor, scaling: &NodeScaling) -> Result<Batch, TchError> {
    let means = Tensor::f_from_slice(&scaling.mean)?.f_to_device(batch.continuous.device())?;
    let rows = means.f_expand([nodes.size()[0], -1], false)?;
    let mut hidden = batch.shallow_clone();
    hidden.continuous = batch.continuous.f_index_copy(0, nodes, &rows)?;
    if let Some(space) = &mut hidden.space {
        space.kinds = space.kinds.f_index_fill(0, nodes, 0)?;
    }
    Ok(hidden)
}

#[cfg(test)]
mod tests {
    use super::super::Pretext;
    use super::*;
    use crate::attention::Backend;
    use crate::layers::Mode;
    use crate::pretraining::Pretraining;
    use crate::test_graphs::graphs;
    use crate::{FreshParameters, GnnKind, GraphVgaeConfig, Scope};
    use tch::{Device, Kind};

    /// Graphs of 12, 1 and 7 nodes with two continuous features around a category of two values.
    fn batch() -> Batch {
        let edges: Vec<(i64, i64)> =
            (0..11).chain(13..19).flat_map(|node| [(node, node + 1), (node + 1, node)]).collect();
        let row = |node: usize| {
            let is_even = node.is_multiple_of(2);
            [(node as f32).sin(), f32::from(is_even), f32::from(!is_even), node as f32 / 3.0]
        };
        let continuous = Tensor::from_slice(&(0..20).flat_map(row).collect::<Vec<f32>>()).view([20, 4]);
        Batch { continuous, ..graphs(&edges, &[0, 12, 13, 20]) }
    }

    fn config() -> PretrainingConfig {
        let scaling = NodeScaling { mean: vec![0.5, 0.0, 0.0, 3.0], deviation: vec![2.0, 1.0, 1.0, 4.0] };
        let network = GraphVgaeConfig::new(GnnKind::Gcn, scaling.clone(), [5, 2, 4]).encoder;
        PretrainingConfig {
            network,
            pretext: Pretext::Masked { share: 0.25 },
            categories: std::iter::once(1..3).collect(),
            scaling,
        }
    }

    const DRAW: Draw = Draw { seed: 3, epoch: 1 };

    fn masked_of(batch: &Batch, draw: Draw) -> Vec<i64> {
        Vec::try_from(masked_nodes(batch, 0.25, draw).unwrap()).unwrap()
    }

    #[test]
    fn each_graph_has_its_share_of_masked_nodes_whatever_the_batch() {
        let batch = batch();
        let found = masked_of(&batch, DRAW);
        let within = |from: i64, to: i64| found.iter().filter(|node| (from..to).contains(*node)).count();
        assert_eq!([within(0, 12), within(12, 13), within(13, 20)], [3, 1, 2]);
        let alone: Vec<i64> =
            masked_of(&batch.select_graphs(&[2]).unwrap(), DRAW).iter().map(|node| node + 13).collect();
        assert_eq!(alone, found[4..]);
        assert_ne!(found, masked_of(&batch, Draw { epoch: 2, ..DRAW }));
        // In the long run, every node is masked equally often.
        let mut counts = [0; 12];
        (0..4000).for_each(|epoch| {
            masked_of(&batch, Draw { epoch, ..DRAW }).iter().filter(|node| **node < 12).for_each(|&node| {
                counts[node as usize] += 1;
            });
        });
        assert!(counts.iter().all(|count| (870..1130).contains(count)), "{counts:?}");
    }

    /// Hidden features do not reach the prediction, and the errors are those of plain operations.
    #[test]
    fn hidden_features_are_predicted_without_being_read() {
        let (batch, config) = (batch(), config());
        let mut parameters = FreshParameters::new(2, Device::Cpu);
        let model = Pretraining::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
        let errors = |batch: &Batch| model.masked_errors(batch, Mode::Evaluation, 0.25, DRAW).unwrap();
        let found = errors(&batch);
        let masked = masked_of(&batch, DRAW);
        assert_eq!(Vec::<i64>::try_from(&found.nodes).unwrap(), masked);

        let hidden = hidden(&batch, &found.nodes, &config.scaling).unwrap();
        let decoded = model.network.forward(&hidden, Mode::Evaluation).unwrap().index_select(0, &found.nodes);
        let of_node = batch.continuous.index_select(0, &found.nodes);
        let squares = |column: i64, mean: f64, deviation: f64| {
            (decoded.select(1, column) - (of_node.select(1, column) - mean) / deviation).square()
        };
        let expected = (squares(0, 0.5, 2.0) + squares(3, 3.0, 4.0)) / 2.0;
        assert!(found.features.unwrap().allclose(&expected, 1e-5, 1e-6, false));
        let probabilities = decoded.narrow(1, 1, 2).softmax(-1, Kind::Float) * of_node.narrow(1, 1, 2);
        let expected = -probabilities.sum_dim_intlist([1i64].as_slice(), false, Kind::Float).log();
        assert!(found.categories.unwrap().allclose(&expected, 1e-5, 1e-6, false));

        // With other features of masked nodes, the network answers the same.
        let others = batch.continuous.index_fill(0, &found.nodes, 7.0);
        let changed = Batch { continuous: others, ..batch.shallow_clone() };
        let answer = |batch: &Batch| {
            let hidden = super::hidden(batch, &found.nodes, &config.scaling).unwrap();
            model.network.forward(&hidden, Mode::Evaluation).unwrap()
        };
        assert_eq!(answer(&batch), answer(&changed));
    }
}
