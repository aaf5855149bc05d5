//! Compares the GPU kernels, run on the CPU with emulated warps, with attention composed of torch's operations; and
//! compiles them with NVRTC where it is installed.

#[path = "../../../../../tests/support/attention.rs"]
mod attention_common;

use tch::{Device, Kind, Tensor};

use attention_common::{adjacency, batch, normal, relative_difference};
use kdgat_graph::Adjacency;
use kdgat_torch::cuda_program::{self, ProgramError};

use super::super::kernels::Shape;
use super::super::{
    AttentionDropout, AttentionOptions, Backend, composed, gat_attention, gat_conv, gatv2_attention, run,
};
use super::{GpuGat, GpuGatV2, Layer, LayerKind};
use crate::test_graphs::first_targets;

type Named = Vec<(&'static str, Tensor)>;

/// Output, weights and gradients of `layer(values, source, target, bias)` for a fixed random loss.
fn results(
    shape: Shape,
    graph: &Adjacency,
    kind: Kind,
    projected: bool,
    layer: impl Fn(&[&Tensor]) -> super::super::Attended,
) -> Named {
    let real = if kind == Kind::Double { Kind::Double } else { Kind::Float };
    let (heads, row) = (shape.heads as i64, shape.row() as i64);
    let (sources, targets) = (graph.num_sources(), graph.num_targets());
    // Scores have a variance of one in both cases.
    let ([of_source, of_target], scale) = match projected {
        true => ([vec![row], vec![row]], (shape.channels as f64).sqrt()),
        false => ([vec![sources, heads], vec![targets, heads]], 1.0),
    };
    let inputs = [
        normal(&[sources, row], 1, kind),
        normal(&of_source, 2, real) / scale,
        normal(&of_target, 3, real) / scale,
        normal(&[row], 4, real),
    ]
    .map(|input| input.set_requires_grad(true));
    let attended = layer(&inputs.each_ref());
    (&attended.output * normal(&[targets, row], 5, kind)).sum(real).backward();
    let gradients = ["values", "source", "target", "bias"].into_iter().zip(inputs.iter().map(Tensor::grad));
    [("output", attended.output.detach())]
        .into_iter()
        .chain(gradients)
        .chain(attended.weights.map(|weights| ("weights", weights)))
        .collect()
}

fn on_emulated_gpu(graph: &Adjacency, shape: Shape, kind: Kind, projected: bool, options: &AttentionOptions) -> Named {
    results(shape, graph, kind, projected, |inputs| {
        run(
            GpuGat { layer: layer(LayerKind::Gat, graph, shape, kind, options), projected },
            options.return_weights,
            inputs,
        )
        .unwrap()
    })
}

fn layer(of: LayerKind, graph: &Adjacency, shape: Shape, kind: Kind, options: &AttentionOptions) -> Layer {
    Layer::new(of, Device::Cpu, kind, graph, shape, options).unwrap()
}

fn of_torch(graph: &Adjacency, shape: Shape, kind: Kind, projected: bool, options: &AttentionOptions) -> Named {
    let (heads, channels) = (shape.heads as i64, shape.channels as i64);
    results(shape, graph, kind, projected, |inputs| {
        let [values, source, target, bias] = inputs else { unreachable!("four inputs are made above") };
        if projected {
            let [source, target] = [source, target].map(|vector| vector.reshape([1, heads, channels]));
            let kernel = Backend::Composed;
            return gat_conv(kernel, values, &source, &target, Some(*bias), graph, options).unwrap();
        }
        let mut attended =
            composed::attend(&values.reshape([-1, heads, channels]), source, target, graph, options).unwrap();
        attended.output = (attended.output.reshape([-1, heads * channels]) + *bias).to_kind(kind);
        attended
    })
}

/// Like [`results`], for GATv2 on an emulated GPU or composed of torch's operations.
fn results_of_v2(
    graph: &Adjacency,
    shape: Shape,
    kind: Kind,
    options: &AttentionOptions,
    with_edges: bool,
    emulated: bool,
) -> Named {
    let real = if kind == Kind::Double { Kind::Double } else { Kind::Float };
    let (heads, channels, row) = (shape.heads as i64, shape.channels as i64, shape.row() as i64);
    let (sources, targets) = (graph.num_sources(), graph.num_targets());
    let mut inputs = vec![
        normal(&[sources, row], 1, kind),
        normal(&[targets, row], 2, kind),
        normal(&[row], 3, real) / (channels as f64).sqrt(),
        normal(&[row], 4, real),
    ];
    if with_edges {
        inputs.push(normal(&[graph.num_edges(), row], 6, kind));
    }
    let inputs: Vec<Tensor> = inputs.into_iter().map(|input| input.set_requires_grad(true)).collect();
    let attended = if emulated {
        let function = GpuGatV2 { layer: layer(LayerKind::GatV2, graph, shape, kind, options) };
        run(function, options.return_weights, &inputs.iter().collect::<Vec<_>>()).unwrap()
    } else {
        let [source, target, vector, bias, edge_term @ ..] = &inputs[..] else { unreachable!("four are made above") };
        let vector = vector.reshape([1, heads, channels]);
        let (kernel, edge_term) = (Backend::Composed, edge_term.first());
        gatv2_attention(kernel, source, target, edge_term, &vector, Some(bias), graph, options).unwrap()
    };
    (&attended.output * normal(&[targets, row], 5, kind)).sum(real).backward();
    let names = ["source", "target", "attention", "bias", "edge terms"];
    [("output", attended.output.detach())]
        .into_iter()
        .chain(names.into_iter().zip(inputs.iter().map(Tensor::grad)))
        .chain(attended.weights.map(|weights| ("weights", weights)))
        .collect()
}

fn assert_named_equal(what: &str, found: &Named, expected: &Named, tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let difference = relative_difference(found, expected);
        assert!(difference <= tolerance, "{what}: {name} differs by {difference:e}, more than {tolerance:e}");
    }
}

/// Checks GAT with projected and with given scores, and GATv2 with and without edge terms.
fn assert_equal(graph: &Adjacency, shape: (usize, usize), kind: Kind, options: &AttentionOptions, tolerance: f64) {
    let shape = Shape { heads: shape.0, channels: shape.1 };
    for with_edges in [true, false] {
        let [found, expected] =
            [true, false].map(|emulated| results_of_v2(graph, shape, kind, options, with_edges, emulated));
        assert_named_equal(&format!("GATv2, {shape:?}, {kind:?}, edges {with_edges}"), &found, &expected, tolerance);
    }
    for projected in [true, false] {
        let found = on_emulated_gpu(graph, shape, kind, projected, options);
        let expected = of_torch(graph, shape, kind, projected, options);
        assert_named_equal(&format!("GAT, {shape:?}, {kind:?}, projected {projected}"), &found, &expected, tolerance);
    }
}

#[test]
fn kernels_are_composed_attention_for_the_shapes_of_the_models() {
    let graph = batch(1, 24, 80, 7);
    for shape in [(1, 80), (4, 24), (1, 256), (3, 33)] {
        assert_equal(&graph, shape, Kind::Float, &AttentionOptions::default(), 1e-5);
    }
}

#[test]
fn kernels_are_composed_attention_for_unusual_graphs() {
    let hub = (0..300).flat_map(|node| [(3, node), (node, 299)]);
    let graphs = [
        ("no node", adjacency(0, [])),
        ("one node", adjacency(1, [])),
        ("isolated nodes", adjacency(70, [])),
        ("a node of degree 300", adjacency(300, hub)),
        ("degrees around a warp's width", adjacency(40, (31..34).flat_map(|node| (0..node).map(move |to| (node, to))))),
        ("one cycle", adjacency(100, (0..100).map(|node| (node, (node + 1) % 100)))),
        ("sources that are no targets", first_targets(&batch(1, 60, 300, 23), 17)),
    ];
    for (name, graph) in &graphs {
        println!("{name}");
        assert_equal(graph, (2, 13), Kind::Float, &AttentionOptions::default(), 1e-5);
    }
}

#[test]
fn kernels_are_composed_attention_with_other_slopes_dropout_and_weights() {
    let graph = batch(1, 40, 200, 11);
    for negative_slope in [0.0, 0.2, 0.7] {
        let dropout = Some(AttentionDropout { probability: 0.3, seed: 0x1234_5678_9abc_def0, first: 0 });
        let options = AttentionOptions { negative_slope, dropout, return_weights: true };
        assert_equal(&graph, (4, 24), Kind::Float, &options, 1e-5);
    }
    let options = AttentionOptions { return_weights: true, ..AttentionOptions::default() };
    assert_equal(&graph, (4, 24), Kind::Float, &options, 1e-5);
}

#[test]
fn kernels_are_composed_attention_in_other_types() {
    let graph = batch(1, 40, 150, 13);
    let dropout = Some(AttentionDropout { probability: 0.2, seed: 3, first: 0 });
    for dropout in [None, dropout] {
        let options = AttentionOptions { dropout, ..AttentionOptions::default() };
        assert_equal(&graph, (4, 24), Kind::Double, &options, 1e-13);
        // Eight significant bits; the composed implementation rounds output and gradients in more than one place.
        assert_equal(&graph, (4, 24), Kind::BFloat16, &options, 2e-2);
    }
}

#[test]
fn results_are_the_same_in_every_run() {
    let graph = batch(1, 50, 300, 17);
    let shape = Shape { heads: 4, channels: 24 };
    let run = || on_emulated_gpu(&graph, shape, Kind::Float, true, &AttentionOptions::default());
    for ((name, first), (_, second)) in run().iter().zip(&run()) {
        assert_eq!(first, second, "{name}");
    }
}

#[test]
fn nvrtc_compiles_the_kernels_for_old_and_new_gpus() {
    match cuda_program::compiler_version() {
        Err(ProgramError::CompilerMissing) => {
            return println!("skipped: compiling for a GPU needs NVRTC (scripts/test --all installs it)");
        }
        version => println!("NVRTC {:?}", version.unwrap()),
    }
    let source = |heads, channels, kind| super::program::source(LayerKind::Gat, Shape { heads, channels }, kind);
    let architectures = cuda_program::architectures().unwrap();
    println!("it supports {architectures:?}");
    assert!(architectures.contains(&90), "{architectures:?}");
    for (heads, channels, kind) in [(1, 80, Kind::Float), (4, 256, Kind::BFloat16), (4, 24, Kind::Double)] {
        for layer in [LayerKind::Gat, LayerKind::GatV2] {
            let source = super::program::source(layer, Shape { heads, channels }, kind);
            cuda_program::compile_for(&source, 90).unwrap();
        }
    }
    for architecture in [architectures[0], architectures[architectures.len() - 1]] {
        let code = cuda_program::compile_for(&source(4, 24, Kind::Float), architecture).unwrap();
        assert_eq!(code[..4], *b"\x7fELF", "machine code for {architecture}");
    }
    // A GPU newer than all supported ones gets assembly, which the driver translates.
    let newer = cuda_program::compile_for(&source(4, 24, Kind::Float), 100_000).unwrap();
    assert!(String::from_utf8_lossy(&newer).contains(".entry attend("), "assembly");
    assert_eq!(newer.last(), Some(&0), "a text for C ends with zero");
    let message = cuda_program::compile_for(&source(4, 24, Kind::Float), 20).unwrap_err().to_string();
    assert!(
        message.contains(&format!("supports GPUs of [{}", architectures[0])) && message.contains("not of 20"),
        "{message}"
    );
}

#[test]
fn what_nvrtc_does_not_accept_is_shown() {
    if cuda_program::compiler_version().is_err() {
        return println!("skipped: compiling for a GPU needs NVRTC (scripts/test --all installs it)");
    }
    let mut source = super::program::source(LayerKind::Gat, Shape { heads: 1, channels: 8 }, Kind::Float);
    source.text = "extern \"C\" __global__ void attend(int nodes) { nodez = 1; }";
    let message = cuda_program::compile_for(&source, 90).unwrap_err().to_string();
    assert!(message.contains("\"nodez\" is undefined"), "{message}");
}

#[test]
fn values_with_heads_apart_keep_their_shape() {
    for graph in [batch(1, 24, 80, 7), first_targets(&batch(1, 24, 80, 7), 9)] {
        let (sources, targets) = (graph.num_sources(), graph.num_targets());
        let shape = Shape { heads: 4, channels: 6 };
        let scores = [normal(&[sources, 4], 2, Kind::Float), normal(&[targets, 4], 3, Kind::Float)];
        let values = normal(&[sources, 4, 6], 1, Kind::Float);
        let options = AttentionOptions::default();
        let function = GpuGat { layer: layer(LayerKind::Gat, &graph, shape, Kind::Float, &options), projected: false };
        let found = run(function, false, &[&values, &scores[0], &scores[1]]).unwrap().output;
        for kernel in [Backend::Fused, Backend::Composed] {
            let expected = gat_attention(kernel, &values, &scores[0], &scores[1], &graph, &options).unwrap().output;
            assert_eq!((found.size(), expected.size()), (vec![targets, 4, 6], vec![targets, 4, 6]));
            assert!(relative_difference(&found, &expected) < 1e-5);
        }
    }
}
