//! Losses of a VGAE with half-precision outputs: the outputs are rounded, the sums are not.

mod support;

use kdgat::nn::VgaeOutput;
use kdgat::nn::attention::Backend;
use kdgat::nn::vgae::task_loss;
use support::{PARITY_VOCABULARY, parity_batch};
use tch::{Device, Kind, Tensor};

const LATENT: i64 = 16;

#[test]
fn sums_are_taken_in_f32() {
    let batch = parity_batch("batch");
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
