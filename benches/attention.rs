//! Fused against composed attention, forward and backward, at the sizes of a batch of 512 windows.
//!
//!     cargo bench --bench attention [-- [PAIRS] [fused] [1x80]]
//!
//! `fused` leaves the composed one out, `1x80` all other shapes.

#[path = "../tests/attention_common/mod.rs"]
mod attention_common;

use std::time::{Duration, Instant};

use attention_common::{batch, normal};
use kdgat::graph::Adjacency;
use kdgat::nn::attention::{AttentionKernel, AttentionOptions, gat_conv};
use kdgat::torch::autograd::backward_from;
use tch::{Kind, Tensor};

fn main() {
    // As kdgat itself runs: otherwise the C library maps large results anew in every step.
    kdgat::torch::allocator::install().unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let pairs = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(15);
    let kernels = match arguments.iter().any(|argument| argument == "fused") {
        true => vec![AttentionKernel::Fused],
        false => vec![AttentionKernel::Fused, AttentionKernel::Composed],
    };
    // 512 windows of 30 nodes and, with self-loops, 110 edges: some of the random edges coincide.
    let graph = batch(512, 30, 85, 1);
    let (nodes, threads) = (graph.row_pointers.size()[0] - 1, tch::get_num_threads());
    println!("{nodes} nodes, {} edges, {threads} threads, medians of {pairs} pairs", graph.num_edges());
    let wanted = arguments.iter().find(|argument| argument.contains('x'));
    for (heads, channels) in [(1, 80), (4, 24), (8, 64), (4, 256)] {
        if wanted.is_some_and(|wanted| *wanted != format!("{heads}x{channels}")) {
            continue;
        }
        let layer = Layer::new(nodes, heads, channels);
        let mut times = vec![Vec::new(); kernels.len()];
        for pair in 0..pairs + 2 {
            for (kernel, times) in kernels.iter().zip(&mut times) {
                let time = layer.step(*kernel, &graph);
                // The first rounds pay for memory and caches.
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
            print!("   {kernel:?}: forward {forward:.2} ms, backward {backward:.2} ms");
        }
        match sums[..] {
            [fused, composed] => println!("   ratio {:.1}", composed / fused),
            _ => println!(),
        }
    }
    one_graph();
}

/// What attention adds to the inference of one window.
fn one_graph() {
    let graph = batch(1, 26, 40, 1);
    let layer = Layer::new(26, 1, 80);
    let _unrecorded = tch::no_grad_guard();
    let mut times: Vec<Duration> = (0..2_000).map(|_| layer.step(AttentionKernel::Fused, &graph).0).collect();
    times.sort();
    println!("one graph, 1×80, forward: {:.1} µs", times[times.len() / 2].as_secs_f64() * 1e6);
}

struct Layer {
    values: Tensor,
    source: Tensor,
    target: Tensor,
    bias: Tensor,
    gradient: Tensor,
}

impl Layer {
    fn new(nodes: i64, heads: i64, channels: i64) -> Self {
        let leaf = |size: &[i64], seed| normal(size, seed, Kind::Float).set_requires_grad(true);
        Self {
            values: leaf(&[nodes, heads * channels], 1),
            source: leaf(&[1, heads, channels], 2),
            target: leaf(&[1, heads, channels], 3),
            bias: leaf(&[heads * channels], 4),
            gradient: normal(&[nodes, heads * channels], 5, Kind::Float),
        }
    }

    /// Time of a forward and of a backward.
    fn step(&self, kernel: AttentionKernel, graph: &Adjacency) -> (Duration, Duration) {
        let Self { values, source, target, bias, gradient } = self;
        for leaf in [values, source, target, bias] {
            kdgat::torch::grad::clear_grad(leaf).unwrap();
        }
        let start = Instant::now();
        let options = AttentionOptions::default();
        let output = gat_conv(kernel, values, source, target, Some(bias), graph, &options).unwrap().output;
        let forward = start.elapsed();
        if !output.requires_grad() {
            return (forward, Duration::ZERO);
        }
        backward_from(&[&output], &[Some(gradient)], false).unwrap();
        (forward, start.elapsed() - forward)
    }
}

/// In milliseconds.
fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut times: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
