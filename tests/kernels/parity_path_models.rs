//! SGMP equals a plain computation over all paths at once: names of tensors, outputs, and gradients.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use kdgat::graph::assemble::Assembler;
use kdgat::graph::columns::Columns;
use kdgat::graph::{AssembleOptions, Batch, FeatureSet, Level, Space, Vocabulary};
use kdgat::nn::attention::Backend;
use kdgat::nn::layers::Mode;
use kdgat::nn::sgmp::PathConfig;
use kdgat::nn::{FreshParameters, Gnn, GnnConfig, GnnKind, InputConfig, Pooling, Scope};
use tch::{Device, Kind, Tensor};

const TOLERANCE: f64 = 1e-5;

fn reference() -> HashMap<String, Tensor> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parity/path_models.safetensors");
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

fn integers(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(&tensor.flatten(0, -1)).unwrap()
}

fn batch(reference: &HashMap<String, Tensor>) -> Batch {
    let x = &reference["x"];
    let mut columns = Columns::new(FeatureSet::Columns {
        nodes: x.size()[1] as u16,
        edges: 0,
        targets: 1,
        node_targets: 0,
        space: Default::default(),
    });
    columns.node_features = Vec::try_from(&x.flatten(0, -1)).unwrap();
    let of_node = integers(&reference["batch"]);
    let (sources, targets) = (integers(&reference["edge_index"].get(0)), integers(&reference["edge_index"].get(1)));
    let mut first = 0;
    for graph in 0..=of_node[of_node.len() - 1] {
        let nodes = of_node.iter().filter(|&&of| of == graph).count() as i64;
        let within = first..first + nodes;
        let mut edges: Vec<(i64, i64)> = targets.iter().copied().zip(sources.iter().copied()).collect();
        edges.retain(|(target, _)| within.contains(target));
        edges.sort_unstable();
        let mut rows = vec![0u16; nodes as usize + 1];
        for (target, source) in edges {
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
    let options = AssembleOptions::new(Arc::new(Vocabulary::from_ids([])));
    let mut batch = Assembler::default().assemble_columns(&columns, &options).unwrap();
    let none = |shape: &[i64], kind| Tensor::zeros(shape, (kind, Device::Cpu));
    batch.space = Some(Box::new(Space {
        positions: reference["positions"].shallow_clone(),
        kinds: none(&[first], Kind::Int64),
        targets: none(&[0], Kind::Int64),
        sources: none(&[0], Kind::Int64),
        row_pointers: none(&[first + 1], Kind::Int),
        shifts: None,
        forces: None,
    }));
    batch
}

fn assert_close(what: &str, found: &Tensor, expected: &Tensor) {
    let distance = (found - expected).abs().max().double_value(&[]);
    let scale = expected.abs().max().double_value(&[]).max(1.0);
    assert!(found.size() == expected.size() && distance <= TOLERANCE * scale, "{what}: {distance:e} of {scale}");
}

#[test]
fn sgmp_equals_the_plain_computation() {
    let reference = reference();
    let batch = batch(&reference);
    for (name, pooling) in [("sum", Pooling::Sum), ("mean", Pooling::Mean)] {
        let config = GnnConfig {
            kind: GnnKind::Sgmp,
            node_features: 3,
            edge_features: 0,
            hidden: 8,
            layers: 2,
            heads: 1,
            outputs: 4,
            embedding_columns: 0,
            level: Level::Graph,
            pooling,
            virtual_node: false,
            dropout: 0.0,
            target_scales: Vec::new(),
            space: None,
            paths: Some(PathConfig { cutoff: 10.0, gaussians: PathConfig::GAUSSIANS }),
            input: InputConfig::default(),
        };
        for kernel in [Backend::Fused, Backend::Composed] {
            let mut fresh = FreshParameters::new(0, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut fresh), &config, kernel).unwrap();
            let tensors = fresh.into_tensors();
            let prefix = format!("{name}.state.");
            let known = reference.keys().filter(|name| name.starts_with(&prefix)).count();
            assert_eq!(tensors.len(), known, "other tensors than the reference");
            for named in &tensors {
                tch::no_grad(|| named.tensor.shallow_clone().copy_(&reference[&format!("{prefix}{}", named.name)]));
            }
            let outputs = model.forward(&batch, Mode::Training).unwrap();
            assert_close(&format!("{name}, {kernel:?}: outputs"), &outputs, &reference[&format!("{name}.outputs")]);
            outputs.square().mean(Kind::Float).backward();
            for named in &tensors {
                let expected = &reference[&format!("{name}.gradient.{}", named.name)];
                assert_close(&format!("{name}, {kernel:?}: {}", named.name), &named.tensor.grad(), expected);
            }
            let shared = tch::no_grad(|| model.forward(&batch, Mode::Evaluation)).unwrap();
            assert_close("evaluation", &shared, &outputs);
        }
    }
}
