//! Training loss of a VGAE of graphs, and the error of a graph.

use std::ops::Range;

use kdgat_graph::Batch;
use kdgat_torch::autocast::widened;
use tch::{Kind, Tensor};

use super::graph_vgae::{GraphVgaeConfig, GraphVgaeOutput};
use super::graph_vgae_config::continuous_columns;
use super::layers::mean_per_graph;
use super::non_edges::{Draw, NonEdges};
use super::vgae_losses::{PART_WEIGHTS, divergence};
use super::{ModelError, masked, segments};

/// The task loss and its terms, each a scalar.
#[derive(Debug)]
pub struct GraphVgaeLoss {
    /// Mean squared error of the standardised continuous features; `None` without any.
    pub features: Option<Tensor>,
    /// Cross entropy of the categorical features, summed over them, mean over nodes; `None` without any.
    pub categories: Option<Tensor>,
    /// Binary cross entropy of edges and as many pairs without one: mean over those of a graph, then over graphs by their nodes. `None` if
    /// edges are not decoded.
    pub edges: Option<Tensor>,
    /// Kullback–Leibler divergence of the latent from the standard normal, mean over nodes and columns.
    pub kl: Tensor,
    /// Task loss, `features + 0.1·categories + 0.05·edges + 0.01·kl`.
    pub total: Tensor,
}

/// The errors of each graph, `[num_graphs]` each: means over its nodes, or its edges and as many pairs without one.
#[derive(Debug)]
pub struct GraphErrors {
    /// Squared error: see [`GraphVgaeLoss::features`].
    pub features: Option<Tensor>,
    /// Cross entropy: see [`GraphVgaeLoss::categories`].
    pub categories: Option<Tensor>,
    /// Binary cross entropy: see [`GraphVgaeLoss::edges`]; 0 for a graph without edges.
    pub edges: Option<Tensor>,
    /// `features + 0.1·categories + 0.05·edges`.
    pub total: Tensor,
}

/// The task loss of a forward pass. Its parts over parts of a batch, weighted by their nodes, add up to those of the batch.
pub fn task_loss(
    output: &GraphVgaeOutput,
    config: &GraphVgaeConfig,
    batch: &Batch,
    draw: Draw,
) -> Result<GraphVgaeLoss, ModelError> {
    let mean = |rows: Option<Tensor>| rows.map(|rows| masked::mean_of_rows(&rows, None)).transpose();
    let [features, categories] = node_errors([&output.decoded, &output.features], &config.categories)?;
    let (features, categories) = (mean(features)?, mean(categories)?);
    let edges = match config.decodes_edges {
        false => None,
        true => {
            let nodes = batch.node_pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?.f_to_kind(Kind::Float)?;
            let errors = edge_errors(&output.latent, batch, draw)?;
            Some(errors.f_mul(&nodes)?.f_sum(None::<Kind>)?.f_div_scalar(batch.num_nodes() as f64)?)
        }
    };
    let kl = divergence([&output.mean, &output.log_variance], None)?;
    let error = weighted([&features, &categories, &edges])?;
    let total = kl.f_mul_scalar(PART_WEIGHTS[3])?;
    let total = error.map_or(Ok(total.shallow_clone()), |error| error.f_add(&total))?;
    Ok(GraphVgaeLoss { features, categories, edges, kl, total })
}

/// The errors of each graph of a forward pass.
pub fn graph_errors(
    output: &GraphVgaeOutput,
    config: &GraphVgaeConfig,
    batch: &Batch,
    draw: Draw,
) -> Result<GraphErrors, ModelError> {
    let mean = |rows: Option<Tensor>| rows.map(|rows| mean_per_graph(&rows, batch)).transpose();
    let [features, categories] = node_errors([&output.decoded, &output.features], &config.categories)?;
    let (features, categories) = (mean(features)?, mean(categories)?);
    let edges = config.decodes_edges.then(|| edge_errors(&output.latent, batch, draw)).transpose()?;
    let total = weighted([&features, &categories, &edges])?;
    let none = || Tensor::f_zeros([batch.num_graphs() as i64], (Kind::Float, output.latent.device()));
    let total = total.map_or_else(none, Ok)?;
    Ok(GraphErrors { features, categories, edges, total })
}

/// The weighted sum of the terms that there are.
fn weighted(terms: [&Option<Tensor>; 3]) -> Result<Option<Tensor>, ModelError> {
    let mut sum: Option<Tensor> = None;
    for (term, weight) in terms.into_iter().zip(PART_WEIGHTS) {
        let Some(term) = term else { continue };
        let term = term.f_mul_scalar(weight)?;
        sum = Some(sum.map_or(Ok(term.shallow_clone()), |sum| sum.f_add(&term))?);
    }
    Ok(sum)
}

/// Errors of rows of decoded features compared with the standardised true ones, `[rows, node_features]` each: the mean squared error of the
/// continuous columns and the summed cross entropy of the categorical ones, `[rows]` each; `None` without such columns.
pub(super) fn node_errors(
    [decoded, truth]: [&Tensor; 2],
    categories: &[Range<i64>],
) -> Result<[Option<Tensor>; 2], ModelError> {
    let decoded = widened(decoded)?;
    let columns = |of: &Tensor, columns: &Range<i64>| of.f_narrow(1, columns.start, columns.end - columns.start);
    let runs = continuous_columns(categories, truth.size()[1]);
    let features = match runs.is_empty() {
        true => None,
        false => {
            let joined = |of: &Tensor| {
                let parts = runs.iter().map(|run| columns(of, run)).collect::<Result<Vec<_>, _>>()?;
                Tensor::f_cat(&parts, 1)
            };
            let squared = joined(&decoded)?.f_sub(&joined(truth)?)?.f_square()?;
            Some(squared.f_mean_dim([1i64].as_slice(), false, Kind::Float)?)
        }
    };
    let mut entropies: Option<Tensor> = None;
    for category in categories {
        let log_probabilities = columns(&decoded, category)?.f_log_softmax(-1, Kind::Float)?;
        let entropy = log_probabilities.f_mul(&columns(truth, category)?)?;
        let entropy = entropy.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?.f_neg()?;
        entropies = Some(entropies.map_or(Ok(entropy.shallow_clone()), |sum| sum.f_add(&entropy))?);
    }
    Ok([features, entropies])
}

/// Binary cross entropy of the inner products of z as logits of edges: mean over a graph's edges and drawn pairs without one, `[num_graphs]`; 0
/// without edges.
fn edge_errors(latent: &Tensor, batch: &Batch, draw: Draw) -> Result<Tensor, ModelError> {
    let NonEdges { pairs, is_edge, is_drawn, graphs, pointers } = NonEdges::draw(batch, draw)?;
    let z = widened(latent)?;
    let logits = |sources: &Tensor, targets: &Tensor| {
        let products = z.f_index_select(0, sources)?.f_mul(&z.f_index_select(0, targets)?)?;
        products.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)
    };
    let of_edges = logits(&batch.adjacency.sources, &batch.adjacency.targets)?.f_neg()?.f_softplus()?;
    let of_drawn = logits(&pairs[0], &pairs[1])?.f_softplus()?.f_mul(&is_drawn)?;
    let sums = segments::sums(&of_edges.f_add(&of_drawn)?.f_mul(&is_edge)?, &pointers, &graphs)?;
    let counts = segments::sums(&is_drawn.f_add_scalar(1.0)?.f_mul(&is_edge)?, &pointers, &graphs)?;
    Ok(sums.f_div(&counts.f_clamp_min(1.0)?)?)
}

#[cfg(test)]
mod tests {
    use kdgat_graph::NodeScaling;
    use tch::Device;

    use super::super::attention::Backend;
    use super::super::graph_vgae::reconstruction;
    use super::super::layers::Mode;
    use super::super::test_graphs::graphs;
    use super::super::{FreshParameters, GnnKind, GraphVgae, Scope};
    use super::*;

    /// Edges of three graphs: a path of four nodes, a triangle, which lacks no edge, and a node alone.
    const EDGES: [(i64, i64); 12] =
        [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (4, 5), (4, 6), (5, 4), (5, 6), (6, 4), (6, 5)];
    const POINTERS: [i64; 4] = [0, 4, 7, 8];
    const DRAW: Draw = Draw { seed: 3, epoch: 2 };

    /// Two continuous features around a category of two values, whose columns are 1 and 2.
    fn batch() -> Batch {
        let row = |node: usize| {
            [
                (node as f32).sin(),
                f32::from(node.is_multiple_of(2)),
                f32::from(!node.is_multiple_of(2)),
                node as f32 - 2.0,
            ]
        };
        let continuous: Vec<f32> = (0..8).flat_map(row).collect();
        let continuous = Tensor::from_slice(&continuous).view([8, 4]);
        Batch { continuous, ..graphs(&EDGES, &POINTERS) }
    }

    fn config(kind: GnnKind) -> GraphVgaeConfig {
        let scaling = NodeScaling { mean: vec![0.2, 0.0, 0.0, 1.5], deviation: vec![0.5, 1.0, 1.0, 2.0] };
        let mut config = GraphVgaeConfig::new(kind, scaling, [6, 2, 3]);
        config.encoder.heads = if kind == GnnKind::Gat { 2 } else { 1 };
        GraphVgaeConfig { categories: std::iter::once(1..3).collect(), decodes_edges: true, ..config }
    }

    /// The terms, one after the other, composed of torch's operations on single nodes and pairs, and their weighted sum.
    fn plain(output: &GraphVgaeOutput, batch: &Batch) -> [Tensor; 5] {
        let GraphVgaeOutput { features, decoded, latent, mean, log_variance, .. } = output;
        let squares = |column: i64| (decoded.select(1, column) - features.select(1, column)).square().mean(Kind::Float);
        let of_features = (squares(0) + squares(3)) / 2.0;
        let probabilities = decoded.narrow(1, 1, 2).softmax(-1, Kind::Float);
        let right = (probabilities * features.narrow(1, 1, 2)).sum_dim_intlist([1i64].as_slice(), false, Kind::Float);
        let of_categories = -right.log().mean(Kind::Float);

        let drawn = NonEdges::draw(batch, DRAW).unwrap();
        let [sources, targets] = drawn.pairs.each_ref().map(|ends| Vec::<i64>::try_from(ends).unwrap());
        let ends = |ends: &Tensor| Vec::<i64>::try_from(ends.to_kind(Kind::Int64)).unwrap();
        let entries: Vec<(i64, i64)> =
            ends(&batch.adjacency.sources).into_iter().zip(ends(&batch.adjacency.targets)).collect();
        let product = |one: i64, other: i64| (latent.get(one) * latent.get(other)).sum(Kind::Float);
        let mut of_edges = Tensor::zeros([], (Kind::Float, Device::Cpu));
        for graph in 0..3 {
            let nodes = POINTERS[graph]..POINTERS[graph + 1];
            let mut terms = Vec::new();
            for (entry, &(source, target)) in entries.iter().enumerate() {
                if !nodes.contains(&target) || source == target {
                    continue;
                }
                terms.push(-product(source, target).sigmoid().log());
                if graph != 1 {
                    terms.push(-(-product(sources[entry], targets[entry])).sigmoid().log());
                }
            }
            if !terms.is_empty() {
                of_edges += Tensor::stack(&terms, 0).mean(Kind::Float) * (nodes.end - nodes.start) as f64 / 8.0;
            }
        }
        let kl: Tensor = (mean.square() + log_variance.exp() - log_variance - 1.0) / 2.0;
        let kl = kl.mean(Kind::Float);
        let total = &of_features + &of_categories * 0.1 + &of_edges * 0.05 + &kl * 0.01;
        [of_features, of_categories, of_edges, kl, total]
    }

    #[test]
    fn terms_and_gradients_are_those_of_plain_operations() {
        let batch = batch();
        for encoder in [GnnKind::Gin, GnnKind::Gcn, GnnKind::Gat] {
            let config = config(encoder);
            let of = |is_plain: bool| {
                let mut parameters = FreshParameters::new(5, Device::Cpu);
                let model = GraphVgae::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
                let output = model.forward(&batch, Mode::Evaluation).unwrap();
                let terms = match is_plain {
                    true => plain(&output, &batch),
                    false => {
                        let loss = task_loss(&output, &config, &batch, DRAW).unwrap();
                        [loss.features.unwrap(), loss.categories.unwrap(), loss.edges.unwrap(), loss.kl, loss.total]
                    }
                };
                terms[4].backward();
                let tensors = parameters.into_tensors();
                let gradients = tensors.iter().filter(|named| named.tensor.requires_grad());
                let gradients: Vec<Tensor> = gradients.map(|named| named.tensor.grad()).collect();
                (terms.map(|term| term.double_value(&[])), gradients)
            };
            let ((found, gradients), (expected, expected_gradients)) = (of(false), of(true));
            for (found, expected) in found.iter().zip(expected) {
                assert!(expected > 1e-3 && (found - expected).abs() < 1e-5 * expected.max(1.0), "{found} {expected}");
            }
            assert!(gradients.len() > 10, "{}", gradients.len());
            for (found, expected) in gradients.iter().zip(&expected_gradients) {
                assert!(found.allclose(expected, 1e-5, 1e-6, false), "{encoder:?}: {found} {expected}");
            }
        }
    }

    /// The losses of a batch's parts, weighted by their nodes, add up to its own; and a graph's error is the same in every batch.
    #[test]
    fn parts_of_a_batch_add_up() {
        let (batch, config) = (batch(), config(GnnKind::Gin));
        let mut parameters = FreshParameters::new(5, Device::Cpu);
        let model = GraphVgae::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
        let forward = |batch: &Batch| model.forward(batch, Mode::Evaluation).unwrap();
        let loss = |batch: &Batch| task_loss(&forward(batch), &config, batch, DRAW).unwrap().total.double_value(&[]);
        let errors = |batch: &Batch| graph_errors(&forward(batch), &config, batch, DRAW).unwrap().total;
        let (whole, of_graphs) = (loss(&batch), errors(&batch));
        let mut sum = 0.0;
        for graph in 0..3 {
            let alone = batch.select_graphs(&[graph]).unwrap();
            sum += loss(&alone) * alone.num_nodes() as f64 / 8.0;
            let (alone, together) = (errors(&alone).double_value(&[0]), of_graphs.double_value(&[graph as i64]));
            assert!((alone - together).abs() < 1e-6, "graph {graph}: {alone} {together}");
        }
        assert!((sum - whole).abs() < 1e-6, "{sum} {whole}");
    }

    #[test]
    fn a_reconstruction_has_values_and_probabilities() {
        let decoded = Tensor::from_slice2(&[[1.5_f32, 0.0, 3f32.ln(), -2.0]]);
        let found =
            Vec::<f32>::try_from(reconstruction(&decoded, &config(GnnKind::Gin)).unwrap().flatten(0, -1)).unwrap();
        assert!(
            found.iter().zip([1.5, 0.25, 0.75, -2.0]).all(|(found, expected)| (found - expected).abs() < 1e-6),
            "{found:?}"
        );
    }

    #[test]
    fn architectures_that_cannot_be_are_refused() {
        let refused = |config: GraphVgaeConfig| config.check().unwrap_err().to_string();
        let sound = || config(GnnKind::Gin);
        sound().check().unwrap();
        assert!(refused(config(GnnKind::Mlp)).starts_with("encoder = mlp"));
        assert!(
            refused(GraphVgaeConfig { categories: std::iter::once(1..5).collect(), ..sound() })
                .starts_with("categories = ")
        );
        assert!(refused(GraphVgaeConfig { categories: vec![2..3, 1..2], ..sound() }).starts_with("categories = "));
        let mut wider = sound();
        wider.encoder.node_features = 5;
        assert!(refused(wider).starts_with("scaling = "));
    }
}
