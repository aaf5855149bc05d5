//! Fused against composed attention, forward and backward, at the sizes of a batch of 512 windows.
//!
//!     cargo bench --bench attention [-- PAIRS]

#[path = "../tests/attention_common/mod.rs"]
mod attention_common;

use std::time::{Duration, Instant};

use attention_common::{batch, normal};
use kdgat::graph::Adjacency;
use kdgat::nn::attention::{AttentionKernel, AttentionOptions, gat_conv};
use tch::{Kind, Tensor};

fn main() {
    let pairs = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(15);
    // 512 windows of 30 nodes and, with self-loops, 110 edges: some of the random edges coincide.
    let graph = batch(512, 30, 85, 1);
    let threads = tch::get_num_threads();
    println!(
        "{} nodes, {} edges, {threads} threads, medians of {pairs} pairs",
        graph.row_pointers.size()[0] - 1,
        graph.num_edges()
    );
    println!("{:>8} {:>22} {:>22} {:>7}", "heads×ch", "fused fwd+bwd ms", "composed fwd+bwd ms", "ratio");
    for (heads, channels) in [(1, 80), (4, 24), (8, 64), (4, 256)] {
        let mut times = [const { Vec::new() }; 2];
        for pair in 0..pairs + 2 {
            for (kernel, times) in [AttentionKernel::Fused, AttentionKernel::Composed].into_iter().zip(&mut times) {
                let time = step(kernel, &graph, heads, channels);
                // The first rounds pay for memory and caches.
                if pair >= 2 {
                    times.push(time);
                }
            }
        }
        let [fused, composed] =
            times.map(|times| (median(times.iter().map(|t| t.0)), median(times.iter().map(|t| t.1))));
        println!(
            "{:>8} {:>8.2} + {:>8.2} = {:>6.2} {:>6.2} + {:>6.2} = {:>6.2} {:>6.1}×",
            format!("{heads}×{channels}"),
            fused.0,
            fused.1,
            fused.0 + fused.1,
            composed.0,
            composed.1,
            composed.0 + composed.1,
            (composed.0 + composed.1) / (fused.0 + fused.1),
        );
    }
}

/// Time of a forward and of a backward.
fn step(kernel: AttentionKernel, graph: &Adjacency, heads: i64, channels: i64) -> (Duration, Duration) {
    let nodes = graph.row_pointers.size()[0] - 1;
    let leaf = |size: &[i64]| Tensor::rand(size, (Kind::Float, tch::Device::Cpu)).set_requires_grad(true);
    let values = leaf(&[nodes, heads * channels]);
    let (source, target, bias) = (leaf(&[1, heads, channels]), leaf(&[1, heads, channels]), leaf(&[heads * channels]));
    let gradient = normal(&[1, heads * channels], 1, Kind::Float).expand([nodes, heads * channels], false).contiguous();
    let start = Instant::now();
    let options = AttentionOptions::default();
    let output = gat_conv(kernel, &values, &source, &target, Some(&bias), graph, &options).unwrap().output;
    let forward = start.elapsed();
    kdgat::torch::autograd::backward_from(&[&output], &[Some(&gradient)], false).unwrap();
    (forward, start.elapsed() - forward)
}

fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut times: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
