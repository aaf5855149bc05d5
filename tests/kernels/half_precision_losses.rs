//! Losses of a VGAE and means of graphs in half precision: the values are rounded, sums and counts are not.

use kdgat::graph::Batch;
use kdgat::nn::VgaeOutput;
use kdgat::nn::attention::Backend;
use kdgat::nn::layers::mean_per_graph;
use kdgat::nn::vgae::task_loss;
use support::parity::{PARITY_VOCABULARY, parity_batch};
use support::process::alone;
use tch::{Device, Kind, Tensor};

const LATENT: i64 = 16;

#[test]
fn sums_are_taken_in_f32() {
    let batch = parity_batch("batch");
    let _alone = alone();
    tch::manual_seed(3);
    let rounded =
        |columns: i64| Tensor::randn([batch.num_nodes(), columns], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
    let outputs = [rounded(10).sigmoid(), rounded(PARITY_VOCABULARY), rounded(PARITY_VOCABULARY)];
    let latents = [rounded(LATENT), rounded(LATENT), rounded(LATENT)];
    let losses = |kind: Kind| {
        let [reconstruction, id_logits, successor_logits] = outputs.each_ref().map(|output| output.to_kind(kind));
        let [latent, mean, log_variance] = latents.each_ref().map(|output| output.to_kind(kind));
        let output = VgaeOutput {
            continuous: batch.continuous.shallow_clone(),
            reconstruction,
            id_logits,
            successor_logits,
            hidden: None,
            latent,
            mean,
            log_variance,
            kernel: Backend::Composed,
        };
        let loss = task_loss(&output, &batch).unwrap();
        [loss.reconstruction, loss.id, loss.successors, loss.kl, loss.total].map(|part| part.double_value(&[]))
    };
    let (half, single) = (losses(Kind::BFloat16), losses(Kind::Float));
    assert_eq!(
        half, single,
        "[reconstruction, id, successors, kl, total] of bf16 outputs, and of the same numbers in f32"
    );
}

/// In f16 the count of 70,000 nodes would be infinite, and in bf16 the sum of 300 ones would be 256.
#[test]
fn means_of_large_graphs_are_exact() {
    for (kind, nodes) in [(Kind::BFloat16, 300), (Kind::Half, 70_000)] {
        let batch = Batch {
            node_pointers: Tensor::from_slice(&[0, nodes]),
            graph_of_node: Tensor::zeros([nodes], (Kind::Int64, Device::Cpu)),
            ..parity_batch("batch")
        };
        let mean = mean_per_graph(&Tensor::ones([nodes, 2], (kind, Device::Cpu)), &batch).unwrap();
        assert_eq!((mean.kind(), mean.double_value(&[0, 1])), (kind, 1.0));
    }
}
