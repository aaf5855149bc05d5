//! Batches of test graphs, for models of any network of graphs, and what each of them needs.

use std::ops::Range;
use std::sync::Arc;

use tch::{Device, Tensor};

use super::StageError;
use crate::evaluate::{EvaluateError, TrainedModel};
use crate::graph::{AssembleOptions, Batch, Loader, LoaderOptions, NodeScaling, Store, Vocabulary};
use crate::memory::{Meter, by_halves};
use crate::nn::{BatchNeeds, GivenTensors, ModelError};

/// Most graphs of a batch.
const BATCH_GRAPHS: usize = 512;
/// Most edges of a batch of several graphs: as many as [`BATCH_GRAPHS`] graphs of 65,535 edges have.
const BATCH_EDGES: u64 = BATCH_GRAPHS as u64 * 65_535;

/// The tensors of a model on a device, to build its network of.
///
/// # Errors
/// Too little memory on the device.
pub(super) fn given(model: &TrainedModel, device: Device) -> Result<GivenTensors, ModelError> {
    let on_device = |(name, tensor): (&String, &Tensor)| Ok((name.clone(), tensor.f_to_device(device)?));
    Ok(GivenTensors::new(model.state.iter().map(on_device).collect::<Result<Vec<_>, ModelError>>()?))
}

/// The answer for each node of a model that knows the training graphs' means alone, `[columns of features]`: 0 for standardised features, ln
/// frequencies for `categories`.
///
/// # Errors
/// Data that cannot be read, or too little memory on the device.
pub(super) fn mean_row(
    store: &Store,
    training: &[u64],
    categories: &[Range<i64>],
    device: Device,
) -> Result<Tensor, StageError> {
    let nodes = training.iter().map(|&graph| Ok(store.try_graph(graph)?.num_nodes() as f64));
    let nodes = nodes.sum::<Result<f64, StageError>>()?;
    let means = NodeScaling::of_graphs(store, training, |_| true)?.mean;
    let mut row = vec![0.0_f32; means.len()];
    for columns in categories {
        let columns = columns.start as usize..columns.end as usize;
        // One more node of each category: a category of no training graph is unlikely, not impossible.
        row[columns.clone()].iter_mut().zip(&means[columns]).for_each(|(logit, &mean)| {
            *logit = (f64::from(mean) * nodes + 1.0).ln() as f32;
        });
    }
    Ok(Tensor::f_from_slice(&row)?.f_to_device(device)?)
}

/// Computes rows of each of these graphs, in order, without gradients. `work` gets batches on the device, smaller ones if memory runs out.
///
/// # Errors
/// A graph that cannot be read, an error of `work`, or too little memory for a single graph.
pub(super) fn rows_of_graphs<T>(
    store: &Arc<Store>,
    graphs: &[u64],
    needs: BatchNeeds,
    device: Device,
    work: &mut dyn FnMut(&Batch) -> Result<Vec<T>, EvaluateError>,
) -> Result<Vec<T>, StageError> {
    let BatchNeeds { edge_features: edge_attributes, space } = needs;
    let vocabulary = Arc::new(Vocabulary::from_ids([]));
    let assemble = AssembleOptions { edge_attributes, space, ..AssembleOptions::new(vocabulary) };
    let loader = Loader::start(Arc::clone(store), LoaderOptions { assemble, workers: 1, prefetch_batches: 2 });
    let edges = graphs.iter().map(|&graph| Ok(store.try_graph(graph)?.num_edges() as u64));
    let batches = batches(graphs, &edges.collect::<Result<Vec<_>, StageError>>()?);
    let mut all = Vec::with_capacity(graphs.len());
    for batch in loader.epoch(batches, 0) {
        let rows =
            by_halves(Meter::new(device), &batch?, &mut |batch| tch::no_grad(|| work(&batch.to_device(device)?)))?;
        all.extend(rows);
    }
    Ok(all)
}

/// Divides graphs into batches of at most [`BATCH_GRAPHS`] graphs and [`BATCH_EDGES`] edges; a larger graph is alone. `edges`: those of each graph.
fn batches(graphs: &[u64], edges: &[u64]) -> Vec<Vec<u64>> {
    let mut batches: Vec<Vec<u64>> = Vec::new();
    let mut sum = 0;
    for (&graph, &edges) in graphs.iter().zip(edges) {
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH_GRAPHS && sum + edges <= BATCH_EDGES => {
                batch.push(graph);
                sum += edges;
            }
            _ => {
                batches.push(vec![graph]);
                sum = edges;
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_room_for_large_graphs() {
        let of = |edges: &[u64]| {
            let graphs: Vec<u64> = (100..100 + edges.len() as u64).collect();
            let found = batches(&graphs, edges);
            assert_eq!(found.concat(), graphs);
            found.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [0; 0]);
        assert_eq!(of(&[0; 1025]), [512, 512, 1]);
        assert_eq!(of(&[65_535; 600]), [512, 88]);
        // A graph of as many edges as a batch, one of more, and two that fit together with none of both.
        assert_eq!(of(&[BATCH_EDGES - 1, 1, 1, BATCH_EDGES, BATCH_EDGES + 1, 5, 5]), [2, 1, 1, 1, 2]);
    }
}
