//! Fused graph attention on a GPU against composed attention there and fused attention on the CPU. (Without a GPU the same
//! kernels are tested with emulated warps, in `src/nn/attention/gpu/tests.rs`.)

mod attention_common;

use attention_common::{adjacency, batch, normal, relative_difference};
use kdgat::graph::Adjacency;
use kdgat::nn::attention::{AttentionDropout, AttentionKernel, AttentionOptions, gat_attention, gat_conv};
use kdgat::torch::cuda_program;
use kdgat::torch::device::{Stream, StreamGuard, cuda_device_count, cuda_sleep};
use tch::{Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);

type Named = Vec<(&'static str, Tensor)>;

/// Whether there is what these tests need; if not, says so.
fn can_run() -> bool {
    kdgat::torch::load_cuda();
    if let Err(error) = cuda_device_count() {
        println!("skipped: fused attention on a GPU: {}", error.to_string().lines().next().unwrap_or(""));
        return false;
    }
    if let Err(error) = cuda_program::compiler_version() {
        println!("skipped: fused attention on a GPU: {error}");
        return false;
    }
    true
}

/// Output, weights and gradients for a fixed random loss, on the CPU.
fn run(
    device: Device,
    kernel: AttentionKernel,
    graph: &Adjacency,
    (heads, channels): (i64, i64),
    kind: Kind,
    options: &AttentionOptions,
) -> Named {
    let nodes = graph.row_pointers.size()[0] - 1;
    let real = if kind == Kind::Double { Kind::Double } else { Kind::Float };
    let leaf = |values: Tensor| values.to_device(device).set_requires_grad(true);
    let vector = |seed| leaf(normal(&[1, heads, channels], seed, real) / (channels as f64).sqrt());
    let values = leaf(normal(&[nodes, heads * channels], 1, kind));
    let (source, target) = (vector(2), vector(3));
    let bias = leaf(normal(&[heads * channels], 4, real));
    let graph = graph.to_device(device);
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

fn assert_close(what: &str, found: &Named, expected: &Named, tolerance: f64) {
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let difference = relative_difference(found, expected);
        assert!(difference <= tolerance, "{what}: {name} differs by {difference:e}, more than {tolerance:e}");
    }
}

#[test]
fn fused_on_a_gpu_equals_composed_there_and_fused_on_the_cpu() {
    if !can_run() {
        return;
    }
    let dropout = Some(AttentionDropout { probability: 0.3, seed: 5 });
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
                let what = format!("{name}, {shape:?}, dropout {:?}", options.dropout);
                let fused = run(GPU, AttentionKernel::Fused, graph, shape, Kind::Float, options);
                let composed = run(GPU, AttentionKernel::Composed, graph, shape, Kind::Float, options);
                assert_close(&what, &fused, &composed, 1e-5);
                let on_cpu = run(Device::Cpu, AttentionKernel::Fused, graph, shape, Kind::Float, options);
                assert_close(&what, &fused, &on_cpu, 1e-5);
            }
        }
    }
}

#[test]
fn other_types_on_a_gpu_equal_the_cpu() {
    if !can_run() {
        return;
    }
    let graph = batch(40, 26, 57, 9);
    for (kind, tolerance) in [(Kind::Double, 1e-12), (Kind::BFloat16, 1.0 / 128.0)] {
        let options = AttentionOptions::default();
        let [found, expected] =
            [GPU, Device::Cpu].map(|device| run(device, AttentionKernel::Fused, &graph, (4, 24), kind, &options));
        assert_close(&format!("{kind:?}"), &found, &expected, tolerance);
    }
}

#[test]
fn kernels_wait_for_what_was_put_on_the_current_stream() {
    if !can_run() {
        return;
    }
    let graph = batch(40, 26, 57, 11).to_device(GPU);
    let nodes = graph.row_pointers.size()[0] - 1;
    let normal = |size: &[i64], seed| normal(size, seed, Kind::Float).to_device(GPU);
    let wanted = normal(&[nodes, 4, 24], 1);
    let scores = [normal(&[nodes, 4], 2), normal(&[nodes, 4], 3)];
    let attend = |values: &Tensor| {
        let options = AttentionOptions::default();
        gat_attention(AttentionKernel::Fused, values, &scores[0], &scores[1], &graph, &options).unwrap().output
    };
    let expected = attend(&wanted);
    Stream::default_of(GPU).unwrap().synchronize().unwrap();
    let side = Stream::from_pool(GPU, false).unwrap();
    let _guard = StreamGuard::enter(&side).unwrap();
    let mut values = wanted.zeros_like();
    // Long, so that a kernel on another stream would read zeros.
    cuda_sleep(200_000_000).unwrap();
    values.copy_(&wanted);
    let found = attend(&values);
    side.synchronize().unwrap();
    assert_eq!(found, expected);
}
