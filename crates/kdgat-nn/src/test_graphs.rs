//! Adjacencies for tests.

use kdgat_graph::edge_list::{EdgeList, from_edge_list};
use kdgat_graph::{Adjacency, Batch};
use kdgat_torch::philox::philox;
use tch::{Kind, Tensor};

/// The adjacency of `(source, target)` pairs, with exactly one self-loop for each target. The targets are the first of the
/// `sources` nodes.
pub(crate) fn adjacency([sources, targets]: [usize; 2], edges: impl IntoIterator<Item = (usize, usize)>) -> Adjacency {
    let mut pairs: Vec<(usize, usize)> = edges.into_iter().map(|(source, target)| (target, source)).collect();
    pairs.extend((0..targets).map(|node| (node, node)));
    pairs.sort_unstable();
    pairs.dedup();
    let pointers = |keys: &[usize], nodes: usize| {
        let counts = (0..=nodes).map(|node| keys.partition_point(|&key| key < node) as i32);
        Tensor::from_slice(&counts.collect::<Vec<_>>())
    };
    let indices =
        |values: Vec<usize>| Tensor::from_slice(&values.into_iter().map(|value| value as i32).collect::<Vec<_>>());
    let (to, from): (Vec<usize>, Vec<usize>) = pairs.into_iter().unzip();
    let mut transposed: Vec<usize> = (0..from.len()).collect();
    transposed.sort_by_key(|&edge| (from[edge], to[edge]));
    let by_source: Vec<usize> = transposed.iter().map(|&edge| from[edge]).collect();
    Adjacency {
        row_pointers: pointers(&to, targets),
        column_pointers: pointers(&by_source, sources),
        sources: indices(from),
        targets: indices(to),
        transposed: indices(transposed),
        components: Default::default(),
    }
}

/// A batch of graphs with these `(source, target)` edges, and zeros as features of windows.
pub(crate) fn graphs(edges: &[(i64, i64)], node_pointers: &[i64]) -> Batch {
    let (sources, targets): (Vec<i64>, Vec<i64>) = edges.iter().copied().unzip();
    let (graphs, nodes) = (node_pointers.len() - 1, node_pointers[node_pointers.len() - 1] as usize);
    let list = EdgeList {
        id_index: &vec![0; nodes],
        continuous: &vec![0.0; 10 * nodes],
        sources: &sources,
        targets: &targets,
        edge_attributes: None,
        node_pointers,
        labels: &vec![0; graphs],
        vocabulary_size: 1,
    };
    from_edge_list(&list).unwrap()
}

/// `count` random edges from one of `sources` nodes to one of the first `targets`, independent of torch's generator.
pub(crate) fn random_edges([sources, targets]: [usize; 2], count: usize, seed: u64) -> Vec<(usize, usize)> {
    let edge = |number| {
        let words = philox(seed, number);
        (words[0] as usize % sources, words[1] as usize % targets)
    };
    (0..count as u64).map(edge).collect()
}

/// The edges that lead to the first `targets` nodes.
pub(crate) fn first_targets(graph: &Adjacency, targets: usize) -> Adjacency {
    let [from, to] = [&graph.sources, &graph.targets].map(|nodes| Vec::<i32>::try_from(nodes).unwrap());
    let edges = from.into_iter().zip(to).map(|(source, target)| (source as usize, target as usize));
    adjacency([graph.num_sources() as usize, targets], edges.filter(|&(_, target)| target < targets))
}

/// Numbers between -1 and 1, independent of torch's generator.
pub(crate) fn numbers(size: &[i64], seed: u64) -> Tensor {
    let count: i64 = size.iter().product();
    let value = |index| (f64::from(philox(seed, index)[0]) / 2_147_483_648.0 - 1.0) as f32;
    Tensor::from_slice(&(0..count as u64).map(value).collect::<Vec<f32>>()).reshape(size)
}

/// Largest difference, relative to the largest magnitude of the two, or to 1 if that is smaller.
pub(crate) fn relative_difference(left: &Tensor, right: &Tensor) -> f64 {
    assert_eq!(left.size(), right.size());
    if left.numel() == 0 {
        return 0.0;
    }
    let (left, right) = (left.to_kind(Kind::Double), right.to_kind(Kind::Double));
    let scale = left.abs().max().maximum(&right.abs().max()).double_value(&[]).max(1.0);
    (left - right).abs().max().double_value(&[]) / scale
}

/// All edges that lead to `nodes`, and the nodes at their ends: `nodes` first, then the others in the order of their appearance.
pub(crate) fn edges_into(graph: &Adjacency, nodes: &[usize]) -> (Adjacency, Vec<usize>) {
    let [pointers, from] = [&graph.row_pointers, &graph.sources].map(|tensor| Vec::<i32>::try_from(tensor).unwrap());
    let (mut found, mut edges) = (nodes.to_vec(), Vec::new());
    for (target, &node) in nodes.iter().enumerate() {
        for &source in &from[pointers[node] as usize..pointers[node + 1] as usize] {
            let place = found.iter().position(|&known| known == source as usize).unwrap_or_else(|| {
                found.push(source as usize);
                found.len() - 1
            });
            edges.push((place, target));
        }
    }
    (adjacency([found.len(), nodes.len()], edges), found)
}

/// Number of edges to each node, itself included, f32.
pub(crate) fn degrees(graph: &Adjacency) -> Tensor {
    graph.row_pointers.diff(1, -1, None::<Tensor>, None::<Tensor>).to_kind(Kind::Float)
}
