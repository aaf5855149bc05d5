//! Fused graph attention on a GPU, compared with composed attention there and with fused attention on the CPU. Without a GPU,
//! `crates/kdgat-nn/src/attention/gpu/tests.rs` tests the same kernels with emulated warps.

use kdgat::graph::Adjacency;
use kdgat::nn::attention::{AttentionDropout, AttentionOptions, Backend, gat_attention, gat_conv, gatv2_attention};
use kdgat::torch::cuda_program;
use kdgat::torch::device::{Stream, StreamGuard, cuda_device_count, cuda_sleep};
use std::sync::MutexGuard;
use support::attention::{adjacency, batch, normal, relative_difference};
use support::process::alone;
use tch::{Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);

type Named = Vec<(&'static str, Tensor)>;
type Run = fn(Device, Backend, &Adjacency, (i64, i64), Kind, &AttentionOptions) -> Named;

const LAYERS: [(&str, Run); 2] = [("GAT", run), ("GATv2", run_v2)];

/// Reserves the GPU for a test; prints why not if these tests cannot run here.
fn gpu() -> Option<MutexGuard<'static, ()>> {
    kdgat::torch::load_cuda();
    if let Err(error) = cuda_device_count() {
        println!("skipped: fused attention on a GPU: {}", error.to_string().lines().next().unwrap_or(""));
        return None;
    }
    if let Err(error) = cuda_program::compiler_version() {
        println!("skipped: fused attention on a GPU: {error}");
        return None;
    }
    Some(alone())
}

/// Multiples of `step`, whose products and sums are exact, so that no score is below zero on one device and above on another.
fn rounded(size: &[i64], seed: u64, kind: Kind, step: f64) -> Tensor {
    (normal(size, seed, Kind::Double) / step).round().to_kind(kind) * step
}

/// Output, weights and gradients for a fixed random loss, on the CPU.
fn run(
    device: Device,
    kernel: Backend,
    graph: &Adjacency,
    (heads, channels): (i64, i64),
    kind: Kind,
    options: &AttentionOptions,
) -> Named {
    let nodes = graph.row_pointers.size()[0] - 1;
    let real = if kind == Kind::Double { Kind::Double } else { Kind::Float };
    let leaf = |values: Tensor| values.to_device(device).set_requires_grad(true);
    let vector = |seed| leaf(rounded(&[1, heads, channels], seed, real, 0.25) / 16.0);
    let values = leaf(rounded(&[nodes, heads * channels], 1, kind, 0.125));
    let (source, target) = (vector(2), vector(3));
    let bias = leaf(normal(&[heads * channels], 4, real));
    let graph = graph.to_device(device).unwrap();
    let attended = gat_conv(kernel, &values, &source, &target, Some(&bias), &graph, options).unwrap();
    let weight = normal(&[nodes, heads * channels], 5, kind).to_device(device);
    (&attended.output * weight).sum(real).backward();
    let mut results = vec![
        ("output", attended.output.detach()),
        ("values", values.grad()),
        ("source", source.grad()),
        ("target", target.grad()),
        ("bias", bias.grad()),
    ];
    results.extend(attended.weights.map(|weights| ("weights", weights)));
    results.into_iter().map(|(name, tensor)| (name, tensor.to_device(Device::Cpu))).collect()
}

/// Output, weights and gradients of GATv2 with edge terms, on the CPU.
fn run_v2(
    device: Device,
    kernel: Backend,
    graph: &Adjacency,
    (heads, channels): (i64, i64),
    kind: Kind,
    options: &AttentionOptions,
) -> Named {
    let (nodes, row) = (graph.row_pointers.size()[0] - 1, heads * channels);
    let real = if kind == Kind::Double { Kind::Double } else { Kind::Float };
    let inputs = [
        rounded(&[nodes, row], 1, kind, 0.125),
        rounded(&[nodes, row], 2, kind, 0.125),
        normal(&[1, heads, channels], 3, real) / (channels as f64).sqrt(),
        normal(&[row], 4, real),
        rounded(&[graph.num_edges(), row], 5, kind, 0.125),
    ]
    .map(|input| input.to_device(device).set_requires_grad(true));
    let [source, target, vector, bias, edges] = &inputs;
    let graph = graph.to_device(device).unwrap();
    let attended = gatv2_attention(kernel, source, target, Some(edges), vector, Some(bias), &graph, options).unwrap();
    let weight = normal(&[nodes, row], 6, kind).to_device(device);
    (&attended.output * weight).sum(real).backward();
    let names = ["source", "target", "attention", "bias", "edge terms"];
    let mut results = vec![("output", attended.output.detach())];
    results.extend(names.into_iter().zip(inputs.iter().map(Tensor::grad)));
    results.extend(attended.weights.map(|weights| ("weights", weights)));
    results.into_iter().map(|(name, tensor)| (name, tensor.to_device(Device::Cpu))).collect()
}

fn assert_close(what: &str, found: &Named, expected: &Named, tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let difference = relative_difference(found, expected);
        assert!(difference <= tolerance, "{what}: {name} differs by {difference:e}, more than {tolerance:e}");
    }
}

#[test]
fn fused_on_a_gpu_equals_composed_there_and_fused_on_the_cpu() {
    let Some(_gpu) = gpu() else { return };
    let dropout = Some(AttentionDropout { probability: 0.3, seed: 5, first: 0 });
    let dropping = AttentionOptions { dropout, return_weights: true, ..Default::default() };
    let hub = (0..10_000).flat_map(|node| [(node, 3), (9_999, node)]);
    let graphs = [
        ("a batch", batch(512, 26, 57, 7)),
        ("a node of degree 10,000", adjacency(10_000, hub)),
        ("isolated nodes", adjacency(700, [])),
        ("no node", adjacency(0, [])),
    ];
    for (name, graph) in &graphs {
        for shape in [(1, 80), (4, 24), (8, 48), (4, 256), (3, 13)] {
            for options in [&AttentionOptions::default(), &dropping] {
                for (layer, run) in LAYERS {
                    let what = format!("{layer}, {name}, {shape:?}, dropout {:?}", options.dropout);
                    let fused = run(GPU, Backend::Fused, graph, shape, Kind::Float, options);
                    let composed = run(GPU, Backend::Composed, graph, shape, Kind::Float, options);
                    assert_close(&what, &fused, &composed, 1e-5);
                    let on_cpu = run(Device::Cpu, Backend::Fused, graph, shape, Kind::Float, options);
                    assert_close(&what, &fused, &on_cpu, 1e-5);
                }
            }
        }
    }
}

#[test]
fn other_types_on_a_gpu_equal_the_cpu() {
    let Some(_gpu) = gpu() else { return };
    let graph = batch(40, 26, 57, 9);
    for (kind, tolerance) in [(Kind::Double, 1e-12), (Kind::BFloat16, 1.0 / 128.0)] {
        let options = AttentionOptions::default();
        for (layer, run) in LAYERS {
            let [found, expected] =
                [GPU, Device::Cpu].map(|device| run(device, Backend::Fused, &graph, (4, 24), kind, &options));
            assert_close(&format!("{layer}, {kind:?}"), &found, &expected, tolerance);
        }
    }
}

#[test]
fn kernels_wait_for_what_was_put_on_the_current_stream() {
    let Some(_gpu) = gpu() else { return };
    let graph = batch(40, 26, 57, 11).to_device(GPU).unwrap();
    let nodes = graph.row_pointers.size()[0] - 1;
    let normal = |size: &[i64], seed| normal(size, seed, Kind::Float).to_device(GPU);
    let wanted = [normal(&[nodes, 4, 24], 1), normal(&[nodes, 4], 2), normal(&[nodes, 4], 3)];
    let weight = normal(&[nodes, 4, 24], 4);
    // Output and gradients.
    let attend = |kernel, values: &[Tensor; 3]| {
        let inputs = values.each_ref().map(|value| value.detach().set_requires_grad(true));
        let options = AttentionOptions::default();
        let [values, source, target] = &inputs;
        let output = gat_attention(kernel, values, source, target, &graph, &options).unwrap().output;
        (&output * &weight).sum(Kind::Float).backward();
        [output.detach(), values.grad(), source.grad(), target.grad()]
    };
    let expected = attend(Backend::Fused, &wanted);
    let composed = attend(Backend::Composed, &wanted);
    Stream::default_of(GPU).unwrap().synchronize().unwrap();
    for (fused, composed) in expected.iter().zip(&composed) {
        assert!(relative_difference(fused, composed) < 1e-5, "with given scores");
    }
    let side = Stream::from_pool(GPU, false).unwrap();
    let _guard = StreamGuard::enter(&side).unwrap();
    let mut values = wanted.each_ref().map(Tensor::zeros_like);
    // Long enough that kernels on another stream would read zeros.
    cuda_sleep(200_000_000).unwrap();
    for (value, wanted) in values.iter_mut().zip(&wanted) {
        value.copy_(wanted);
    }
    let found = attend(Backend::Fused, &values);
    side.synchronize().unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
}
