//! GIN, GIN-E, GCN, GraphSAGE and GAT, each with and without a virtual node, equal PyTorch Geometric: names of tensors, outputs, and gradients.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use kdgat::graph::assemble::Assembler;
use kdgat::graph::columns::Columns;
use kdgat::graph::{AssembleOptions, Batch, FeatureSet, Level, Vocabulary};
use kdgat::nn::attention::Backend;
use kdgat::nn::layers::Mode;
use kdgat::nn::{FreshParameters, Gnn, GnnConfig, GnnKind, InputConfig, Pooling, Scope};
use tch::{Device, Kind, Tensor};

const TOLERANCE: f64 = 1e-5;
const EDGE_FEATURES: usize = 3;

fn reference() -> HashMap<String, Tensor> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parity/graph_models.safetensors");
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

fn integers(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(&tensor.flatten(0, -1)).unwrap()
}

fn batch(reference: &HashMap<String, Tensor>) -> Batch {
    let x = &reference["x"];
    let of_node = integers(&reference["batch"]);
    let (sources, targets) = (integers(&reference["edge_index"].get(0)), integers(&reference["edge_index"].get(1)));
    let mut columns = Columns::new(FeatureSet::Columns {
        nodes: x.size()[1] as u16,
        edges: EDGE_FEATURES as u16,
        targets: 1,
        node_targets: 0,
        space: Default::default(),
    });
    columns.node_features = Vec::try_from(&x.flatten(0, -1)).unwrap();
    let edge_features: Vec<f32> = Vec::try_from(&reference["edge_attr"].flatten(0, -1)).unwrap();
    let mut first = 0;
    for graph in 0..=of_node[of_node.len() - 1] {
        let nodes = of_node.iter().filter(|&&of| of == graph).count() as i64;
        let within = first..first + nodes;
        let mut edges: Vec<(i64, i64, &[f32])> = sources
            .iter()
            .zip(&targets)
            .zip(edge_features.chunks_exact(EDGE_FEATURES))
            .map(|((&source, &target), features)| (target, source, features))
            .collect();
        edges.retain(|(target, ..)| within.contains(target));
        edges.sort_unstable_by_key(|&(target, source, _)| (target, source));
        let mut rows = vec![0u16; nodes as usize + 1];
        for (target, source, features) in edges {
            columns.edge_features.extend_from_slice(features);
            columns.sources.push((source - first) as u16);
            columns.targets.push((target - first) as u16);
            rows[(target - first) as usize + 1] += 1;
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
    options.edge_attributes = true;
    Assembler::default().assemble_columns(&columns, &options).unwrap()
}

fn assert_close(what: &str, found: &Tensor, expected: &Tensor) {
    let distance = (found - expected).abs().max().double_value(&[]);
    let scale = expected.abs().max().double_value(&[]).max(1.0);
    assert!(found.size() == expected.size() && distance <= TOLERANCE * scale, "{what}: {distance:e} of {scale}");
}

#[test]
fn graph_networks_equal_pytorch_geometric() {
    let reference = reference();
    let batch = batch(&reference);
    for (name, kind, pooling) in [
        ("gin", GnnKind::Gin, Pooling::Sum),
        ("gine", GnnKind::Gin, Pooling::Sum),
        ("gcn", GnnKind::Gcn, Pooling::Mean),
        ("sage", GnnKind::Sage, Pooling::Sum),
        ("gat", GnnKind::Gat, Pooling::Mean),
        ("max", GnnKind::Sage, Pooling::Max),
        ("attention", GnnKind::Gin, Pooling::Attention),
        ("virtual_gin", GnnKind::Gin, Pooling::Sum),
        ("virtual_gine", GnnKind::Gin, Pooling::Mean),
        ("virtual_gcn", GnnKind::Gcn, Pooling::Mean),
        ("virtual_sage", GnnKind::Sage, Pooling::Sum),
        ("virtual_gat", GnnKind::Gat, Pooling::Mean),
    ] {
        let heads = if kind == GnnKind::Gat { 2 } else { 1 };
        let config = GnnConfig {
            kind,
            node_features: 5,
            edge_features: if name.ends_with("gine") { EDGE_FEATURES as i64 } else { 0 },
            hidden: 8,
            layers: 3,
            heads,
            outputs: 4,
            embedding_columns: 0,
            level: Level::Graph,
            pooling,
            virtual_node: name.starts_with("virtual_"),
            dropout: 0.0,
            target_scales: Vec::new(),
            space: None,
            paths: None,
            input: InputConfig::default(),
        };
        let of = |part: &str, tensor: &str| &reference[&format!("{name}.{part}.{tensor}")];
        for kernel in [Backend::Fused, Backend::Composed] {
            let mut fresh = FreshParameters::new(0, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut fresh), &config, kernel).unwrap();
            let mut tensors = fresh.into_tensors();
            let prefix = format!("{name}.state.");
            let known = reference.keys().filter(|name| name.starts_with(&prefix)).count();
            assert_eq!(tensors.len(), known, "{name} has other tensors than the reference");
            for named in &mut tensors {
                tch::no_grad(|| named.tensor.copy_(of("state", &named.name)));
            }
            let what = format!("{name}, {kernel:?}");
            let evaluated = tch::no_grad(|| model.forward(&batch, Mode::Evaluation).unwrap());
            assert_close(&what, &evaluated, &reference[&format!("{name}.evaluation")]);
            let trained = model.forward(&batch, Mode::Training).unwrap();
            assert_close(&what, &trained.detach(), &reference[&format!("{name}.training")]);
            trained.square().mean(Kind::Float).backward();
            for named in tensors.iter().filter(|named| named.tensor.requires_grad()) {
                assert_close(&format!("{what}, {}", named.name), &named.tensor.grad(), of("gradient", &named.name));
            }
        }
    }
}
