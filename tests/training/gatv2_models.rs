//! Models with `conv = "gatv2"`: the layer equals its formula, tensors have PyTorch Geometric's names, and frozen teachers equal
//! their models.

use std::sync::Arc;

use kdgat::can::Dataset;
use kdgat::distill::frozen::{self, Asked, TeacherVocabulary};
use kdgat::distill::{StoreShape, TargetName, Teacher, TeacherOptions, Weights};
use kdgat::graph::{
    AssembleOptions, Batch, BuildOptions, EDGE_FEATURES, EdgeScaling, Split, Store, assemble, open_or_build,
};
use kdgat::nn::attention::Backend;
use kdgat::nn::parameters::{FreshParameters, NamedTensor};
use kdgat::nn::vgae::Mode;
use kdgat::nn::{Architecture, Gat, GatConfig, GatV2Conv, ModelError, Scope, Vgae, VgaeConfig};
use kdgat::torch::draw;
use tch::{Device, Kind, Tensor};

struct Quiet;

impl kdgat::graph::Progress for Quiet {
    fn report(&self, _: &kdgat::graph::Event<'_>) {}
}

fn batch(edge_attributes: bool) -> (Batch, EdgeScaling, i64) {
    let folder = tempfile::tempdir().unwrap();
    let dataset = Dataset::open(support::stage::dataset()).unwrap();
    let store: Store = open_or_build(&dataset, &BuildOptions::default(), folder.path(), &Quiet).unwrap();
    let vocabulary = Arc::new(store.vocabulary().clone());
    let size = vocabulary.len() as i64;
    let scaling = EdgeScaling::of(&store, &store.select(Split::Train, Some(false))).unwrap();
    let graphs: Vec<u64> = store.select(Split::Train, None).into_iter().step_by(40).collect();
    let options = AssembleOptions {
        vocabulary,
        unknown_drop: None,
        edge_attributes,
        hashed_ids: false,
        profile: None,
        short_profiles: false,
        space: None,
    };
    (assemble(&store, &graphs, &options).unwrap(), scaling, size)
}

/// Rows of a tensor.
fn rows(tensor: &Tensor) -> Vec<Vec<f64>> {
    Vec::<Vec<f64>>::try_from(&tensor.to_kind(Kind::Double).reshape([tensor.size()[0], -1])).unwrap()
}

fn linear(x: &[f64], weight: &[Vec<f64>], bias: &[f64]) -> Vec<f64> {
    weight.iter().zip(bias).map(|(row, bias)| bias + row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()).collect()
}

#[test]
fn the_layer_equals_its_formula() {
    let (batch, scaling, _) = batch(true);
    let (heads, channels, input) = (3, 4, 5);
    let mut parameters = FreshParameters::new(1, Device::Cpu);
    let conv = GatV2Conv::new(Scope::root(&mut parameters), input, channels, heads).unwrap();
    let mut tensors = parameters.into_tensors();
    let names: Vec<&str> = tensors.iter().map(|named| named.name.as_str()).collect();
    let expected = ["lin_l.weight", "lin_l.bias", "lin_r.weight", "lin_r.bias", "lin_edge.weight", "att", "bias"];
    assert_eq!(names, expected);
    for (seed, named) in (5..).zip(&mut tensors) {
        let drawn = draw::normal(&named.tensor.size(), Kind::Float, seed).unwrap();
        tch::no_grad(|| named.tensor.copy_(&(drawn * 0.5)));
    }
    let nodes = batch.num_nodes();
    let x = draw::normal(&[nodes, input], Kind::Float, 4).unwrap();
    let attributes = scaling.apply(batch.edge_attributes.as_ref().unwrap()).unwrap();

    let table = |name: &str| rows(&tensors.iter().find(|named| named.name == name).unwrap().tensor);
    let column = |name: &str| table(name).concat();
    let zeros = vec![0.0; (heads * channels) as usize];
    let (left, right, edge) = (table("lin_l.weight"), table("lin_r.weight"), table("lin_edge.weight"));
    let nodes_x = rows(&x);
    let sources: Vec<Vec<f64>> = nodes_x.iter().map(|x| linear(x, &left, &column("lin_l.bias"))).collect();
    let targets: Vec<Vec<f64>> = nodes_x.iter().map(|x| linear(x, &right, &column("lin_r.bias"))).collect();
    let edges: Vec<Vec<f64>> = rows(&attributes).iter().map(|e| linear(e, &edge, &zeros)).collect();
    let (attention, bias) = (column("att"), column("bias"));
    let index = |tensor: &Tensor| Vec::<i64>::try_from(&tensor.to_kind(Kind::Int64)).unwrap();
    let (from, to) = (index(&batch.adjacency.sources), index(&batch.adjacency.targets));

    let mut expected = vec![vec![0.0; zeros.len()]; nodes as usize];
    for (node, row) in expected.iter_mut().enumerate() {
        let incoming: Vec<usize> = (0..from.len()).filter(|&edge| to[edge] as usize == node).collect();
        for head in 0..heads as usize {
            let columns = head * channels as usize..(head + 1) * channels as usize;
            let score = |edge: usize| -> f64 {
                let sum = |c: usize| sources[from[edge] as usize][c] + targets[node][c] + edges[edge][c];
                columns.clone().map(|c| attention[c] * if sum(c) > 0.0 { sum(c) } else { 0.2 * sum(c) }).sum()
            };
            let weights: Vec<f64> = incoming.iter().map(|&edge| score(edge).exp()).collect();
            let total: f64 = weights.iter().sum();
            for column in columns.clone() {
                let terms =
                    incoming.iter().zip(&weights).map(|(&edge, w)| w / total * sources[from[edge] as usize][column]);
                row[column] = bias[column] + terms.sum::<f64>();
            }
        }
    }
    for kernel in [Backend::Composed, Backend::Fused] {
        let found = rows(&conv.forward(&x, &attributes, &batch.adjacency, kernel).unwrap());
        for (found, expected) in found.concat().iter().zip(expected.concat()) {
            assert!((found - expected).abs() < 1e-4 * expected.abs().max(1.0), "{kernel:?}: {found}, {expected}");
        }
    }
}

fn teacher(architecture: Architecture, tensors: Vec<NamedTensor>, batch: &Batch) -> kdgat::distill::Targets {
    let weights = Weights::from_tensors(tensors.into_iter().map(|named| (named.name, named.tensor))).unwrap();
    let model =
        frozen::model(architecture, TeacherVocabulary::Shared, Backend::Auto, Asked::OUTPUTS_AND_HINTS).unwrap();
    let options = TeacherOptions::new(Device::Cpu);
    let mut teacher = Teacher::start(model, weights, &options, &StoreShape::default()).unwrap();
    teacher.submit(vec![batch.shallow_clone()]);
    teacher.targets().unwrap()
}

fn assert_same(what: &str, found: &Tensor, expected: &Tensor) {
    let difference = (found - expected).abs().max().double_value(&[]);
    assert!(difference < 1e-5, "{what}: differs by {difference:e}");
}

#[test]
fn a_frozen_teacher_answers_as_the_model() {
    let (batch, scaling, vocabulary_size) = batch(true);
    let edge_scaling = Some(scaling);
    let _no_grad = tch::no_grad_guard();

    let config = GatConfig {
        hidden: 6,
        layers: 2,
        heads: 2,
        embedding: 4,
        fc_layers: 2,
        vocabulary_size,
        dropout: 0.1,
        edge_scaling: edge_scaling.clone(),
        input: Default::default(),
    };
    let mut parameters = FreshParameters::new(2, Device::Cpu);
    let model = Gat::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
    let targets = teacher(Architecture::Gat(config), parameters.into_tensors(), &batch);
    let logits = model.forward(&batch, Mode::Evaluation).unwrap();
    assert_same("logits", targets.get(TargetName::Logits).unwrap(), &logits);
    let pooled = model.embed(&batch, Mode::Evaluation).unwrap();
    assert_same("hint", targets.get(TargetName::HiddenGraphs).unwrap(), &pooled);

    let config = VgaeConfig {
        hidden: vec![16, 12, 8],
        latent: 8,
        heads: 2,
        embedding: 4,
        vocabulary_size,
        dropout: 0.1,
        edge_scaling,
        input: Default::default(),
    };
    let mut parameters = FreshParameters::new(3, Device::Cpu);
    let mut model = Vgae::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
    model.keep_hidden();
    let targets = teacher(Architecture::Vgae(config), parameters.into_tensors(), &batch);
    let (mean, reconstruction) = model.targets(&batch).unwrap();
    assert_same("latent", targets.get(TargetName::Latent).unwrap(), &mean);
    assert_same("reconstruction", targets.get(TargetName::Reconstruction).unwrap(), &reconstruction);
    let hidden = model.forward(&batch, Mode::Evaluation).unwrap().hidden.unwrap();
    assert_same("hint", targets.get(TargetName::HiddenNodes).unwrap(), &hidden);
}

#[test]
fn a_batch_without_edge_features_is_refused() {
    let (batch, _, vocabulary_size) = batch(false);
    let config = GatConfig {
        hidden: 4,
        layers: 1,
        heads: 1,
        embedding: 2,
        fc_layers: 1,
        vocabulary_size,
        dropout: 0.0,
        edge_scaling: Some(EdgeScaling { mean: [0.0; EDGE_FEATURES], deviation: [1.0; EDGE_FEATURES] }),
        input: Default::default(),
    };
    let mut parameters = FreshParameters::new(2, Device::Cpu);
    let model = Gat::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
    let error = model.forward(&batch, Mode::Evaluation).unwrap_err();
    assert!(matches!(error, ModelError::NoEdgeFeatures), "{error}");
}
