//! The agent's view of a graph: 15 values from the two frozen models in evaluation mode.
//!
//! From the VGAE (z = μ): its three errors, mean, deviation and extremes of the latent, and 1/(1 + reconstruction error). From
//! the GAT: the probabilities of both classes, mean, deviation and extremes of the pooled embedding, and its certainty
//! 1 − H(p)/ln 2. Standard deviations are population ones, over all nodes and columns of a graph.

use std::sync::Arc;

use tch::{Kind, Tensor};

use super::FusionError;
use kdgat_evaluate::{EvaluateError, Network, Scorer};
use kdgat_graph::{Batch, Store};
use kdgat_nn::layers::{Mode, mean_per_graph};
use kdgat_nn::{Gat, ModelError, Vgae, weights};

/// Names of the values of a state, in order.
pub const STATE: [&str; 15] = [
    "reconstruction_error",
    "successor_error",
    "id_error",
    "latent_mean",
    "latent_std",
    "latent_max",
    "latent_min",
    "vgae_confidence",
    "normal_probability",
    "attack_probability",
    "embedding_mean",
    "embedding_std",
    "embedding_max",
    "embedding_min",
    "gat_certainty",
];

/// Number of columns from the VGAE.
pub const VGAE_COLUMNS: usize = 8;
/// Number of columns from the GAT: its part of the state, and the log odds of an attack. P(attack) is computed from the log odds
/// in double precision, because single precision would tie everything within 10⁻⁷ of 1.
pub const GAT_COLUMNS: usize = 8;
/// Number of columns stored per graph: the state and the log odds.
pub const STATE_COLUMNS: usize = VGAE_COLUMNS + GAT_COLUMNS;
/// Column of the log odds.
pub const LOG_ODDS: usize = STATE_COLUMNS - 1;
/// Weight of the ID cross entropy in the difficulty, the VGAE's error as `kdgat evaluate` scores it.
const ID_WEIGHT: f64 = 0.1;

/// The VGAE's error of a graph from its stored columns: reconstruction + 0.1·ID.
pub fn difficulty(columns: &[f32]) -> f64 {
    f64::from(columns[0]) + ID_WEIGHT * f64::from(columns[2])
}

/// P(attack) of a graph from its stored columns.
pub fn attack_probability(columns: &[f32]) -> f64 {
    1.0 / (1.0 + (-f64::from(columns[LOG_ODDS])).exp())
}

/// The two models that compute states.
#[derive(Debug)]
pub struct StateModels {
    vgae: Scorer,
    gat: Scorer,
}

impl StateModels {
    /// Pairs the two models.
    ///
    /// # Errors
    /// Fails if the first is not a VGAE or the second not a GAT.
    pub fn new(vgae: Scorer, gat: Scorer) -> Result<Self, FusionError> {
        match (vgae.network(), gat.network()) {
            (Network::Vgae(_), Network::Gat(_)) => Ok(Self { vgae, gat }),
            (Network::Gat(_), _) => Err(FusionError::Input("--fusion-vgae names a gat; it has to be a vgae".into())),
            (_, Network::Vgae(_)) => Err(FusionError::Input("--fusion-gat names a vgae; it has to be a gat".into())),
        }
    }

    /// Stored columns of graphs of a store, row by row. Only the result grows with their number.
    pub fn compute(&self, store: &Arc<Store>, graphs: &[u64]) -> Result<Vec<f32>, FusionError> {
        let of_vgae = self.vgae.each_of_store(store, graphs, |batch| columns(&self.vgae, batch))?;
        let of_gat = self.gat.each_of_store(store, graphs, |batch| columns(&self.gat, batch))?;
        let mut rows = Vec::with_capacity(graphs.len() * STATE_COLUMNS);
        for (&graph, (vgae, gat)) in graphs.iter().zip(of_vgae.iter().zip(&of_gat)) {
            rows.extend_from_slice(vgae);
            rows.extend_from_slice(gat);
            if let Some(bad) = rows[rows.len() - STATE_COLUMNS..].iter().position(|value| !value.is_finite()) {
                let name = STATE.get(bad).copied().unwrap_or("log odds");
                return Err(FusionError::Input(format!(
                    "{name} of graph {graph} is not finite; check that both models are trained on these features"
                )));
            }
        }
        Ok(rows)
    }
}

/// Columns of one model for each graph of a batch.
fn columns(scorer: &Scorer, batch: &Batch) -> Result<Vec<[f32; 8]>, EvaluateError> {
    let evidence = scorer.evidence(batch)?;
    let batch = &batch.to_device(scorer.device())?;
    let values = tch::no_grad(|| match scorer.network() {
        Network::Vgae(model) => vgae_columns(model, batch),
        Network::Gat(model) => gat_columns(model, evidence.as_ref(), batch),
    })?;
    let flat = weights::floats(&values)?;
    Ok(flat.chunks_exact(8).map(|row| std::array::from_fn(|column| row[column])).collect())
}

/// Columns of the VGAE, `[num_graphs, VGAE_COLUMNS]`.
pub fn vgae_columns(model: &Vgae, batch: &Batch) -> Result<Tensor, ModelError> {
    let output = model.forward(batch, Mode::Evaluation)?;
    let errors = kdgat_nn::vgae::difficulty(&output, batch)?;
    let confidence = errors.reconstruction.f_add_scalar(1.0)?.f_reciprocal()?;
    let [mean, deviation, max, min] = node_statistics(&output.latent, batch)?;
    let successors = successor_error(&output.successor_logits, batch)?;
    let columns = [errors.reconstruction, successors, errors.id, mean, deviation, max, min, confidence];
    Ok(Tensor::f_stack(&columns, 1)?)
}

/// Columns of the GAT, `[num_graphs, GAT_COLUMNS]`. `evidence` of the known-ID list, `[num_graphs, 2]`, is added to the logits.
pub fn gat_columns(model: &Gat, evidence: Option<&Tensor>, batch: &Batch) -> Result<Tensor, ModelError> {
    let pooled = model.embed(batch, Mode::Evaluation)?;
    let mut logits = model.classify(&pooled, Mode::Evaluation)?.f_to_kind(Kind::Double)?;
    if let Some(evidence) = evidence {
        logits = logits.f_add(evidence)?;
    }
    let log_probabilities = logits.f_log_softmax(1, Kind::Double)?;
    let probabilities = log_probabilities.f_exp()?;
    let negative_entropy =
        probabilities.f_mul(&log_probabilities)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double)?;
    let certainty = negative_entropy.f_div_scalar(std::f64::consts::LN_2)?.f_add_scalar(1.0)?;
    let log_odds = logits.f_select(1, 1)?.f_sub(&logits.f_select(1, 0)?)?;
    let along = [1i64].as_slice();
    let columns = [
        probabilities.f_select(1, 0)?,
        probabilities.f_select(1, 1)?,
        pooled.f_mean_dim(along, false, Kind::Float)?,
        pooled.f_std_dim(along, false, false)?,
        pooled.f_amax(along, false)?,
        pooled.f_amin(along, false)?,
        certainty,
        log_odds,
    ];
    let columns = columns.iter().map(|column| column.f_to_kind(Kind::Float)).collect::<Result<Vec<_>, _>>()?;
    Ok(Tensor::f_stack(&columns, 1)?)
}

/// Binary cross entropy against the multi-hot successor set, averaged over a graph's nodes and the vocabulary, `[num_graphs]`.
/// Per row it is Σ softplus(logit) − Σ of the logits of the successors, which avoids building the dense target.
fn successor_error(logits: &Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
    let size = batch.vocabulary_size;
    let all = logits.f_softplus()?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
    let ones = logits.f_flatten(0, -1)?.f_index_select(0, &batch.successors)?;
    let nodes = batch.successors.f_div_scalar_mode(size, "floor")?;
    let by_node = all.f_index_add(0, &nodes, &ones.f_neg()?)?.f_div_scalar(size as f64)?;
    mean_per_graph(&by_node, batch)
}

/// Mean, standard deviation, maximum and minimum of each graph's rows of `x`, `[num_nodes, columns]`; each `[num_graphs]`.
fn node_statistics(x: &Tensor, batch: &Batch) -> Result<[Tensor; 4], ModelError> {
    let along = [1i64].as_slice();
    let row_mean = |x: &Tensor| x.f_mean_dim(along, false, Kind::Float);
    let mean = mean_per_graph(&row_mean(x)?, batch)?;
    let apart = x.f_sub(&mean.f_index_select(0, &batch.graph_of_node)?.f_unsqueeze(1)?)?;
    let deviation = mean_per_graph(&row_mean(&apart.f_square()?)?, batch)?.f_sqrt()?;
    let lengths = batch.node_pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?;
    // The nodes of a graph are consecutive, and every graph has at least one.
    let extreme = |of_rows: Tensor, reduce: &str, start: f64| {
        let none = None::<&Tensor>;
        Tensor::f_segment_reduce(&of_rows, reduce, Some(&lengths), none, none, 0, true, start)
    };
    let max = extreme(x.f_amax(along, false)?, "max", f64::NEG_INFINITY)?;
    let min = extreme(x.f_amin(along, false)?, "min", f64::INFINITY)?;
    Ok([mean, deviation, max, min])
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_graph::edge_list::{EdgeList, from_edge_list};

    /// Graphs of one, two and three nodes, each with only negative or only positive values.
    #[test]
    fn extremes_are_those_of_the_values_alone() {
        let list = EdgeList {
            id_index: &[0; 6],
            continuous: &[0.5; 60],
            sources: &[0, 1, 3],
            targets: &[0, 2, 5],
            edge_attributes: None,
            node_pointers: &[0, 1, 3, 6],
            labels: &[0; 3],
            vocabulary_size: 1,
        };
        let batch = from_edge_list(&list).unwrap();
        let values = [-4.0f32, -2.0, -3.0, -9.0, -5.0, -1.0, 7.0, 3.0, 5.0, 6.0, 8.0, 2.0];
        let x = Tensor::from_slice(&values).view([6, 2]);
        let found = node_statistics(&x, &batch).unwrap().map(|of_graph| weights::floats(&of_graph).unwrap());
        assert_eq!(found[2], [-2.0, -1.0, 8.0]);
        assert_eq!(found[3], [-4.0, -9.0, 2.0]);
        assert_eq!(found[0], [-3.0, -4.5, 31.0 / 6.0]);
        assert_eq!(found[1][0], 1.0);
    }
}
