//! The fused kernels give the same numbers for each instruction set. In a process of its own, because the choice is global to a process.

use kdgat::nn::attention::{AttentionOptions, Backend, gat_conv};
use kdgat::torch::simd::{Level, limit_level};
use support::attention::{batch, normal, relative_difference};
use support::process::runs_alone;
use tch::{Kind, Tensor};

fn results(heads: i64, channels: i64) -> Vec<Tensor> {
    let graph = batch(20, 26, 60, 3);
    let leaf = |size: &[i64], seed| normal(size, seed, Kind::Float).set_requires_grad(true);
    let values = leaf(&[520, heads * channels], 1);
    let (source, target) = (leaf(&[1, heads, channels], 2), leaf(&[1, heads, channels], 3));
    let options = AttentionOptions::default();
    let attended = gat_conv(Backend::Fused, &values, &source, &target, None, &graph, &options).unwrap();
    (&attended.output * normal(&[520, heads * channels], 4, Kind::Float)).sum(Kind::Float).backward();
    vec![attended.output.detach(), values.grad(), source.grad(), target.grad()]
}

#[test]
fn all_levels_agree() {
    if !runs_alone(module_path!(), "all_levels_agree") {
        return;
    }
    for (heads, channels) in [(1, 80), (4, 24), (3, 13), (8, 64)] {
        limit_level(Level::Avx512);
        let widest = results(heads, channels);
        for level in Level::available() {
            limit_level(level);
            for (index, (found, expected)) in results(heads, channels).iter().zip(&widest).enumerate() {
                // Attention vectors are unscaled: gradients of up to a thousand cancel.
                let difference = relative_difference(found, expected);
                assert!(difference < 2e-5, "{level:?}, {heads}×{channels}, result {index}: {difference:e}");
            }
        }
    }
}
