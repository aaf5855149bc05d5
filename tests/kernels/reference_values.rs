//! Reference values of other programs (`tests/data/parity`): their graphs, and the comparison with them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use kdgat::graph::assemble::Assembler;
use kdgat::graph::columns::Columns;
use kdgat::graph::{AssembleOptions, Batch, FeatureSet, Vocabulary};
use tch::Tensor;

/// Largest difference, relative to the largest value if that is above 1.
const TOLERANCE: f64 = 1e-5;

pub type Reference = HashMap<String, Tensor>;

pub fn reference(name: &str) -> Reference {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parity").join(name);
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

pub fn integers(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(&tensor.flatten(0, -1)).unwrap()
}

pub fn assert_close(what: &str, found: &Tensor, expected: &Tensor) {
    let distance = (found - expected).abs().max().double_value(&[]);
    let scale = expected.abs().max().double_value(&[]).max(1.0);
    assert!(found.size() == expected.size() && distance <= TOLERANCE * scale, "{what}: {distance:e} of {scale}");
}

/// The graphs of reference values: `x`, `edge_index` (sources, targets), `batch` (the graph of each node) and, if edges have features,
/// `edge_attr`.
pub fn batch(reference: &Reference, edge_features: usize) -> Batch {
    let x = &reference["x"];
    let of_node = integers(&reference["batch"]);
    let (sources, targets) = (integers(&reference["edge_index"].get(0)), integers(&reference["edge_index"].get(1)));
    let mut columns = Columns::new(FeatureSet::Columns {
        nodes: x.size()[1] as u16,
        edges: edge_features as u16,
        targets: 1,
        node_targets: 0,
        exact_targets: false,
        wide_edges: false,
        space: Default::default(),
    });
    columns.node_features = Vec::try_from(&x.flatten(0, -1)).unwrap();
    let features: Vec<f32> =
        reference.get("edge_attr").map_or(Vec::new(), |features| Vec::try_from(&features.flatten(0, -1)).unwrap());
    let mut first = 0;
    for graph in 0..=of_node[of_node.len() - 1] {
        let nodes = of_node.iter().filter(|&&of| of == graph).count() as i64;
        let within = first..first + nodes;
        let mut edges: Vec<usize> = (0..targets.len()).filter(|&edge| within.contains(&targets[edge])).collect();
        edges.sort_unstable_by_key(|&edge| (targets[edge], sources[edge]));
        let mut rows = vec![0u16; nodes as usize + 1];
        for edge in edges {
            columns.edge_features.extend_from_slice(&features[edge * edge_features..(edge + 1) * edge_features]);
            columns.sources.push((sources[edge] - first) as u16);
            columns.targets.push((targets[edge] - first) as u16);
            rows[(targets[edge] - first) as usize + 1] += 1;
        }
        (1..rows.len()).for_each(|node| rows[node] += rows[node - 1]);
        columns.row_pointers.extend(rows);
        columns.can_ids.extend(0..nodes as u32);
        columns.attack_free.extend((0..nodes).map(|_| 1));
        columns.graph_targets.push(0.0);
        columns.finish_graph(false, 0, 0, 0.0);
        first += nodes;
    }
    let mut options = AssembleOptions::new(Arc::new(Vocabulary::from_ids([])));
    options.edge_attributes = edge_features > 0;
    Assembler::default().assemble_columns(&columns, &options).unwrap()
}
