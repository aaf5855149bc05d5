//! Variational graph autoencoder (Kipf & Welling 2016) with graph attention layers and three decoders.
//!
//! Encoder: ID embedding ‖ continuous features → attention layers → μ, log σ². Decoders: attention layers that
//! reconstruct the continuous features; a linear classifier of the node's ID; an MLP that predicts the set of its
//! successors' IDs.

use kdgat_graph::{Batch, EdgeScaling};
use kdgat_torch::test_cuda_library;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::ModelError;
use super::attention::Backend;
use super::blocks::{self, Block, Run, last};
use super::description::{MOST_LAYERS, expect_common, expect_sizes};
use super::fused::fan_out::fan_out;
use super::fused::latent::NoiseSeed;
use super::fused::step_seed::{self, LayerId};
use super::fused::{self, latent};
pub use super::layers::Mode;
use super::layers::{InputConfig, Linear, Mlp, pool_layers};
use super::parameters::Scope;
use super::vgae_layers::log_variance_layer;
pub use super::vgae_layers::{VgaeBlock, last_width};
pub use super::vgae_losses::{Difficulty, NodeErrors, VgaeLoss, difficulty, distilled_loss, is_one_pass, task_loss};
use super::vgae_losses::{graph_difficulty, node_errors};

/// Architecture of a VGAE: everything needed to rebuild a model around its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VgaeConfig {
    /// Widths of the encoder's layers; a trailing width equal to `latent` is dropped.
    pub hidden: Vec<i64>,
    /// Columns of the latent.
    pub latent: i64,
    /// Number of heads of the first encoder layer.
    pub heads: i64,
    /// Columns of the ID embedding.
    pub embedding: i64,
    /// Number of IDs in the vocabulary, UNKNOWN included.
    pub vocabulary_size: i64,
    /// Dropout probability of activations in training.
    pub dropout: f64,
    /// Scaling of edge features. If set, the layers are GATv2, which reads them, otherwise GAT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_scaling: Option<EdgeScaling>,
    /// Node input: feature set and ID embedding.
    #[serde(default, skip_serializing_if = "InputConfig::is_default")]
    pub input: InputConfig,
}

impl VgaeConfig {
    /// Widths of the encoder's attention layers.
    pub fn encoder_widths(&self) -> &[i64] {
        match self.hidden.split_last() {
            Some((last, rest)) if *last == self.latent && !rest.is_empty() => rest,
            _ => &self.hidden,
        }
    }

    /// Widths of the decoder's hidden attention layers: the encoder's in reverse, without its first.
    pub fn decoder_widths(&self) -> Vec<i64> {
        self.encoder_widths().iter().skip(1).rev().copied().collect()
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        expect_sizes(&[
            ("latent", self.latent),
            ("heads", self.heads),
            ("embedding", self.embedding),
            ("vocabulary_size", self.vocabulary_size),
        ])?;
        if self.encoder_widths().is_empty() || self.hidden.iter().any(|width| *width < 1) {
            return Err(ModelError::Architecture {
                field: "hidden",
                found: format!("{:?}", self.hidden),
                expected: "needs at least one width, each at least 1",
            });
        }
        if self.hidden.len() > MOST_LAYERS {
            let found = format!("{} widths", self.hidden.len());
            return Err(ModelError::Architecture { field: "hidden", found, expected: "needs at most 1024 widths" });
        }
        self.hidden.iter().try_for_each(|&width| expect_sizes(&[("hidden", width)]))?;
        expect_common(self.dropout, self.edge_scaling.as_ref(), &self.input)
    }
}

/// Outputs of a forward pass. Rows are nodes.
#[derive(Debug)]
pub struct VgaeOutput {
    /// Reconstructed continuous features, `[num_nodes, node_features]`; window features are in (0, 1).
    pub reconstruction: Tensor,
    /// Continuous features as the model read them, `[num_nodes, node_features]`.
    pub continuous: Tensor,
    /// Logits of each node's ID, `[num_nodes, vocabulary_size]`.
    pub id_logits: Tensor,
    /// Logits of the successors' IDs, `[num_nodes, vocabulary_size]`.
    pub successor_logits: Tensor,
    /// Output of the encoder's last hidden layer, `[num_nodes, width]`, if [`Vgae::keep_hidden`] was called.
    pub hidden: Option<Tensor>,
    /// z, `[num_nodes, latent]`.
    pub latent: Tensor,
    /// μ, `[num_nodes, latent]`.
    pub mean: Tensor,
    /// log σ², `[num_nodes, latent]`.
    pub log_variance: Tensor,
    /// Implementation that computes the losses of these outputs.
    pub kernel: Backend,
}

/// Output of the encoder and input of the decoders.
#[derive(Debug)]
pub struct Latent {
    /// z, `[num_nodes, latent]`, for readers other than the decoders.
    pub latent: Tensor,
    for_decoders: [Tensor; 3],
    mean: Tensor,
    log_variance: Tensor,
    hidden: Option<Tensor>,
}

impl Latent {
    /// Wraps z, μ and log σ², `[num_nodes, latent]` each.
    pub fn new(latent: &Tensor, mean: Tensor, log_variance: Tensor, kernel: Backend) -> Result<Self, ModelError> {
        let [for_features, for_ids, for_successors, latent] = fan_out(latent, kernel)?;
        Ok(Self { latent, for_decoders: [for_features, for_ids, for_successors], mean, log_variance, hidden: None })
    }
}

/// A variational graph autoencoder.
#[derive(Debug)]
pub struct Vgae {
    config: VgaeConfig,
    kernel: Backend,
    /// The input, and the encoder's hidden layers.
    encoder: Vec<VgaeBlock>,
    mean: Linear,
    log_variance: Linear,
    /// The decoder's hidden layers, and its output.
    decoder: Vec<VgaeBlock>,
    id_classifier: Linear,
    successor_decoder: Mlp,
    recomputes: bool,
    keeps_hidden: bool,
}

impl Vgae {
    /// Builds the model from the tensors of `scope`.
    pub fn new(mut scope: Scope, config: &VgaeConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        let (latent, ids) = (config.latent, config.vocabulary_size);
        let (mean, blocks) = (config.encoder_widths().len() + 1, VgaeBlock::names(config).len());
        Ok(Self {
            config: config.clone(),
            kernel,
            encoder: blocks::build(&mut scope, config, 0..mean, kernel)?,
            mean: Linear::new(scope.sub("z_mean"), last_width(config), latent)?,
            log_variance: log_variance_layer(&mut scope, config)?,
            decoder: blocks::build(&mut scope, config, mean + 1..blocks, kernel)?,
            id_classifier: Linear::new(scope.sub("canid_classifier"), latent, ids)?,
            successor_decoder: Mlp::new(scope.sub("neighborhood_decoder"), &[latent, latent, latent, ids])?,
            recomputes: false,
            keeps_hidden: false,
        })
    }

    /// Makes outputs include the output of the encoder's last hidden layer.
    pub fn keep_hidden(&mut self) {
        self.keeps_hidden = true;
    }

    /// Enables or disables gradient checkpointing: hidden layers are recomputed in the backward pass instead of storing
    /// their activations.
    pub fn set_checkpointing(&mut self, recomputes: bool) {
        self.recomputes = recomputes;
    }

    /// Implementation that computes the operations, and the losses of the outputs.
    pub fn kernel(&self) -> Backend {
        self.kernel
    }

    /// The model's architecture.
    pub fn config(&self) -> &VgaeConfig {
        &self.config
    }

    /// Encodes and decodes a batch.
    pub fn forward(&self, batch: &Batch, mode: Mode) -> Result<VgaeOutput, ModelError> {
        self.decode(batch, mode, self.latent(batch, mode)?)
    }

    /// Encodes a batch. In training, z is sampled by the step's seed; on a GPU or in half precision, from torch's
    /// generator, which the caller seeds.
    pub fn latent(&self, batch: &Batch, mode: Mode) -> Result<Latent, ModelError> {
        let [for_mean, for_log_variance, hidden] = fan_out(&self.encoder(batch, mode)?, self.kernel)?;
        let [for_draw, mean] = fan_out(&self.mean.forward(&for_mean, self.kernel)?, self.kernel)?;
        let [for_deviation, log_variance] =
            fan_out(&self.log_variance.forward(&for_log_variance, self.kernel)?, self.kernel)?;
        let drawn = match mode {
            Mode::Evaluation => for_draw,
            Mode::Training => draw(&for_draw, &for_deviation, self.kernel)?,
        };
        let latent = Latent::new(&drawn, mean, log_variance, self.kernel)?;
        Ok(Latent { hidden: self.keeps_hidden.then_some(hidden), ..latent })
    }

    /// Encodes a batch to μ and log σ², `[num_nodes, latent]` each.
    pub fn encode(&self, batch: &Batch, mode: Mode) -> Result<(Tensor, Tensor), ModelError> {
        self.moments(&self.encoder(batch, mode)?)
    }

    fn moments(&self, hidden: &Tensor) -> Result<(Tensor, Tensor), ModelError> {
        Ok((self.mean.forward(hidden, self.kernel)?, self.log_variance.forward(hidden, self.kernel)?))
    }

    /// Runs the three decoders.
    pub fn decode(&self, batch: &Batch, mode: Mode, latent: Latent) -> Result<VgaeOutput, ModelError> {
        let Latent { latent, for_decoders: [for_features, for_ids, for_successors], mean, log_variance, hidden } =
            latent;
        Ok(VgaeOutput {
            reconstruction: self.reconstruct(&for_features, batch, mode)?,
            id_logits: self.id_classifier.forward(&for_ids, self.kernel)?,
            successor_logits: self.successor_decoder.forward(
                &for_successors,
                self.config.dropout,
                self.kernel,
                mode,
            )?,
            continuous: self.config.input.continuous(batch)?,
            hidden,
            latent,
            mean,
            log_variance,
            kernel: self.kernel,
        })
    }

    /// Distillation targets of a teacher in evaluation mode: μ and its reconstruction, without the other decoders.
    pub fn targets(&self, batch: &Batch) -> Result<(Tensor, Tensor), ModelError> {
        let mean = self.mean.forward(&self.encoder(batch, Mode::Evaluation)?, self.kernel)?;
        let reconstruction = self.reconstruct(&mean, batch, Mode::Evaluation)?;
        Ok((mean, reconstruction))
    }

    /// Difficulty of each graph in evaluation mode, without the successor decoder, which it does not need.
    pub fn difficulty(&self, batch: &Batch) -> Result<Difficulty, ModelError> {
        self.difficulty_of(&self.node_errors(batch)?, batch)
    }

    /// Difficulty of each graph, from the errors of its nodes.
    pub fn difficulty_of(&self, errors: &NodeErrors, batch: &Batch) -> Result<Difficulty, ModelError> {
        graph_difficulty(errors, batch, self.kernel)
    }

    /// Attention weights of the edges for each encoder layer in evaluation mode, `[num_edges, heads]` each, in the
    /// order of the batch's adjacency.
    pub fn attention_weights(&self, batch: &Batch) -> Result<Vec<Tensor>, ModelError> {
        let run = self.run(batch, Mode::Evaluation);
        let (mut state, mut weights) = (Vec::new(), Vec::with_capacity(self.encoder.len()));
        for block in &self.encoder {
            if let (VgaeBlock::Hidden(conv, _), [.., x]) = (block, &state[..]) {
                weights.push(conv.attention_weights(x, run.edges()?, self.kernel)?);
            }
            state = block.forward(&self.config, state, &run)?;
        }
        Ok(weights)
    }

    fn encoder(&self, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        last(&mut blocks::through(&self.encoder, &self.config, Vec::new(), &self.run(batch, mode))?)
    }

    fn reconstruct(&self, latent: &Tensor, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        let state = vec![latent.shallow_clone()];
        last(&mut blocks::through(&self.decoder, &self.config, state, &self.run(batch, mode))?)
    }

    fn run<'a>(&'a self, batch: &'a Batch, mode: Mode) -> Run<'a> {
        Run::new(batch, self.config.edge_scaling.as_ref(), self.kernel, mode).recomputing(self.recomputes)
    }

    /// Contribution of each node to its graph's difficulty, in evaluation mode. Skips the successor decoder, which the
    /// difficulty does not use.
    pub fn node_errors(&self, batch: &Batch) -> Result<NodeErrors, ModelError> {
        let (mean, reconstruction) = self.targets(batch)?;
        let continuous = self.config.input.continuous(batch)?;
        node_errors(
            [&reconstruction, &continuous],
            &self.id_classifier.forward(&mean, self.kernel)?,
            batch,
            self.kernel,
        )
    }

    /// Like [`Vgae::node_errors`], with the means over each graph's nodes of: the error x̂ − x of each continuous
    /// feature, its square, and the cross entropy of the IDs, `[num_graphs, 2 * features + 1]`.
    pub fn error_profile(&self, batch: &Batch) -> Result<(NodeErrors, Tensor), ModelError> {
        let (mean, reconstruction) = self.targets(batch)?;
        let continuous = self.config.input.continuous(batch)?;
        let logits = self.id_classifier.forward(&mean, self.kernel)?;
        let errors = node_errors([&reconstruction, &continuous], &logits, batch, self.kernel)?;
        let residual = reconstruction.f_sub(&continuous)?;
        let columns = [&residual, &residual.f_square()?, &errors.id.f_unsqueeze(1)?];
        let profile = pool_layers(&columns, batch, self.kernel)?;
        Ok((errors, profile))
    }
}

/// Draws z of a training step by the step's seed; on a GPU or in half precision, from torch's generator.
pub(super) fn draw(mean: &Tensor, log_variance: &Tensor, kernel: Backend) -> Result<Tensor, ModelError> {
    let tensors = [mean, log_variance];
    // Tests compare a CPU run with a run on the software card, number by number: both then use torch's generator.
    if !fused::applies(Backend::Auto, &tensors) || test_cuda_library().is_some() {
        return reparameterize(mean, log_variance, &mean.f_randn_like()?);
    }
    let layer = LayerId::new("latent");
    let noise = NoiseSeed { seed: step_seed::of_layer(layer)?, rows_before: step_seed::rows_before(layer) };
    if fused::applies(kernel, &tensors) {
        return Ok(latent::draw(mean, log_variance, noise)?);
    }
    let (rows, columns) = mean.size2()?;
    reparameterize(mean, log_variance, &latent::noise([rows, columns], noise)?)
}

/// The reparameterisation z = μ + σ·ε (Kingma & Welling 2014), for tensors of one shape.
pub fn reparameterize(mean: &Tensor, log_variance: &Tensor, noise: &Tensor) -> Result<Tensor, ModelError> {
    let deviation = log_variance.f_mul_scalar(0.5)?.f_exp()?;
    Ok(mean.f_add(&deviation.f_mul(noise)?)?)
}
