//! Fused against composed attention, forward and backward, at the sizes of a batch of 512 windows.
//!
//!     cargo bench --bench attention [-- [PAIRS] [fused] [1x80] [cuda]]
//!
//! `fused` skips composed attention, `1x80` skips all other shapes, `cuda` measures on a GPU. Each time of fused attention is
//! followed by its minimum memory traffic (each row of values and results read or written once), as a share of the bytes that a
//! copy within device memory moves in the same time.

#[path = "../tests/support/attention.rs"]
mod attention_common;

use std::time::{Duration, Instant};

use attention_common::{batch, normal};
use kdgat::graph::Adjacency;
use kdgat::nn::attention::{AttentionOptions, Backend, gat_conv};
use kdgat::torch::autograd::backward_from;
use kdgat::torch::device::{copy, synchronize};
use tch::{Device, Kind, Tensor};

fn main() {
    kdgat::torch::load_cuda();
    // The allocator of the program: otherwise the C library maps new memory for large results in every step.
    kdgat::torch::allocator::install().unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let pairs = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(15);
    let kernels = match arguments.iter().any(|argument| argument == "fused") {
        true => vec![Backend::Fused],
        false => vec![Backend::Fused, Backend::Composed],
    };
    let device = match arguments.iter().any(|argument| argument == "cuda") {
        true => Device::Cuda(0),
        false => Device::Cpu,
    };
    // 512 windows of 30 nodes and 110 edges including self-loops; some of the random edges coincide.
    let graph = batch(512, 30, 85, 1).to_device(device).unwrap();
    let copied = copied_bytes_per_millisecond(device);
    let (nodes, threads) = (graph.row_pointers.size()[0] - 1, tch::get_num_threads());
    println!("{nodes} nodes, {} edges, {device:?}, {threads} threads, medians of {pairs} pairs", graph.num_edges());
    println!("a copy moves {:.0} GB/s", copied / 1e6);
    let wanted = arguments.iter().find(|argument| argument.contains('x'));
    for (heads, channels) in [(1, 80), (4, 24), (8, 64), (4, 256)] {
        if wanted.is_some_and(|wanted| *wanted != format!("{heads}x{channels}")) {
            continue;
        }
        let layer = Layer::new(nodes, heads, channels, device);
        let row_bytes = (4 * nodes * heads * channels) as f64;
        let mut times = vec![Vec::new(); kernels.len()];
        for pair in 0..pairs + 2 {
            for (kernel, times) in kernels.iter().zip(&mut times) {
                let time = layer.step(*kernel, &graph);
                // The first rounds include memory allocation and cold caches.
                if pair >= 2 {
                    times.push(time);
                }
            }
        }
        print!("{:>8}", format!("{heads}×{channels}"));
        let mut sums = Vec::new();
        for (kernel, times) in kernels.iter().zip(times) {
            let median_of = |part: fn(&(Duration, Duration)) -> Duration| median(times.iter().map(part));
            let (forward, backward) = (median_of(|time| time.0), median_of(|time| time.1));
            sums.push(median_of(|time| time.0 + time.1));
            print!("   {kernel:?}: forward {forward:.3} ms, backward {backward:.3} ms");
            if *kernel == Backend::Fused {
                // Forward: values and output. Backward: values, the output's gradient and the values' gradient.
                let share = |arrays: f64, milliseconds: f64| 100.0 * arrays * row_bytes / copied / milliseconds;
                print!(" ({:.0} % and {:.0} % of a copy)", share(2.0, forward), share(3.0, backward));
            }
        }
        match sums[..] {
            [fused, composed] => println!("   ratio {:.1}", composed / fused),
            _ => println!(),
        }
    }
    one_graph(device);
}

/// Bytes read or written per millisecond when copying a large array.
fn copied_bytes_per_millisecond(device: Device) -> f64 {
    let source = Tensor::zeros([64 << 20], (Kind::Float, device));
    let mut target = source.empty_like();
    let mut rates = Vec::new();
    for _ in 0..7 {
        let start = Instant::now();
        copy(&mut target, &source, true).unwrap();
        synchronize(device).unwrap();
        rates.push(2.0 * f64::from(256 << 20) / (start.elapsed().as_secs_f64() * 1e3));
    }
    rates.into_iter().fold(0.0, f64::max)
}

/// Measures the attention of a single window at inference.
fn one_graph(device: Device) {
    let graph = batch(1, 26, 40, 1).to_device(device).unwrap();
    let layer = Layer::new(26, 1, 80, device);
    let _unrecorded = tch::no_grad_guard();
    let mut times: Vec<Duration> = (0..2_000).map(|_| layer.step(Backend::Fused, &graph).0).collect();
    times.sort();
    println!("one graph, 1×80, forward: {:.1} µs", times[times.len() / 2].as_secs_f64() * 1e6);
}

struct Layer {
    device: Device,
    values: Tensor,
    source: Tensor,
    target: Tensor,
    bias: Tensor,
    gradient: Tensor,
}

impl Layer {
    fn new(nodes: i64, heads: i64, channels: i64, device: Device) -> Self {
        let normal = |size: &[i64], seed| normal(size, seed, Kind::Float).to_device(device);
        let leaf = |size: &[i64], seed| normal(size, seed).set_requires_grad(true);
        Self {
            device,
            values: leaf(&[nodes, heads * channels], 1),
            source: leaf(&[1, heads, channels], 2),
            target: leaf(&[1, heads, channels], 3),
            bias: leaf(&[heads * channels], 4),
            gradient: normal(&[nodes, heads * channels], 5),
        }
    }

    /// Times of a forward and of a backward pass.
    fn step(&self, kernel: Backend, graph: &Adjacency) -> (Duration, Duration) {
        let Self { device, values, source, target, bias, gradient } = self;
        for leaf in [values, source, target, bias] {
            kdgat::torch::grad::clear_grad(leaf).unwrap();
        }
        synchronize(*device).unwrap();
        let start = Instant::now();
        let options = AttentionOptions::default();
        let output = gat_conv(kernel, values, source, target, Some(bias), graph, &options).unwrap().output;
        synchronize(*device).unwrap();
        let forward = start.elapsed();
        if !output.requires_grad() {
            return (forward, Duration::ZERO);
        }
        backward_from(&[&output], &[Some(gradient)], false).unwrap();
        synchronize(*device).unwrap();
        (forward, start.elapsed() - forward)
    }
}

/// Median, in milliseconds.
fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut times: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
