//! Variational autoencoder of graphs of any kind (Kipf & Welling 2016): layers of a [graph network](super::gnn) encode the nodes.
//!
//! Standardised node features → layers → μ, log σ². Decoders of z: an MLP on each node for its continuous features and the logits of its
//! categorical ones, and, if edges are decoded, the inner product of two nodes' z as the logit of an edge between them.

use kdgat_graph::Batch;
use kdgat_torch::autocast::widened;
use tch::{Kind, Tensor};

use super::ModelError;
use super::attention::Backend;
use super::blocks::{self, Block, Run, last, with_mean, with_reconstruction};
use super::gnn::{GnnLayer, LayerRows, node_input};
pub use super::graph_vgae_config::GraphVgaeConfig;
pub use super::graph_vgae_losses::{GraphErrors, GraphVgaeLoss, graph_errors, task_loss};
use super::layers::{Linear, Mlp, Mode};
use super::parameters::Scope;
use super::vgae::draw;

/// Outputs of a forward pass. Rows are nodes.
#[derive(Debug)]
pub struct GraphVgaeOutput {
    /// Node features as the model read them, `[num_nodes, node_features]`.
    pub features: Tensor,
    /// Decoded features, `[num_nodes, node_features]`: values of continuous ones, logits of categorical ones.
    pub decoded: Tensor,
    /// Output of the encoder's last layer, `[num_nodes, width]`.
    pub hidden: Tensor,
    /// z, `[num_nodes, latent]`.
    pub latent: Tensor,
    /// μ, `[num_nodes, latent]`.
    pub mean: Tensor,
    /// log σ², `[num_nodes, latent]`.
    pub log_variance: Tensor,
}

/// A block between the input of a VGAE of graphs and its reconstruction: each layer of the encoder [x] → [x], the first from the batch's
/// features; the mean [x] → [hidden, μ, x], the first two if they are kept; the decoder → [μ, reconstruction, hidden].
#[derive(Debug)]
pub enum GraphVgaeBlock {
    /// A layer of the encoder.
    Layer(Box<GnnLayer>),
    /// The linear layer for μ.
    Mean(Linear),
    /// The decoder of node features.
    Decoder(Mlp),
}

impl Block for GraphVgaeBlock {
    type Config = GraphVgaeConfig;

    fn names(config: &GraphVgaeConfig) -> Vec<String> {
        let layers = (0..config.encoder.layers).map(|index| format!("layer {index}"));
        layers.chain(["latent", "decoder"].map(str::to_owned)).collect()
    }

    fn new(scope: &mut Scope, config: &GraphVgaeConfig, index: usize, _: Backend) -> Result<Self, ModelError> {
        Ok(match index as i64 - config.encoder.layers {
            0 => Self::Mean(Linear::new(scope.sub("z_mean"), config.encoder.width(), config.latent())?),
            1 => Self::Decoder(decoder(scope, config)?),
            _ => Self::Layer(Box::new(GnnLayer::new(scope, &config.encoder, index as i64)?)),
        })
    }

    fn forward(&self, config: &GraphVgaeConfig, mut state: Vec<Tensor>, run: &Run) -> Result<Vec<Tensor>, ModelError> {
        let Run { batch, kernel, mode, .. } = *run;
        let x = match state.pop() {
            Some(x) => x,
            None => features(config, batch)?,
        };
        Ok(match self {
            Self::Layer(layer) => {
                let rows = LayerRows { nodes: x, virtual_nodes: None };
                vec![layer.forward(rows, batch, &config.encoder, kernel, mode)?.nodes]
            }
            Self::Mean(linear) => {
                let mean = linear.forward(&x, kernel)?;
                with_mean(state, x, mean, run)
            }
            Self::Decoder(decoder) => {
                let decoded = decoder.forward(&x, config.encoder.dropout, kernel, mode)?;
                with_reconstruction(state, reconstruction(&decoded, config)?, run)
            }
        })
    }
}

/// A variational autoencoder of graphs.
#[derive(Debug)]
pub struct GraphVgae {
    config: GraphVgaeConfig,
    kernel: Backend,
    layers: Vec<GraphVgaeBlock>,
    mean: Linear,
    log_variance: Linear,
    decoder: Mlp,
}

impl GraphVgae {
    /// Builds the model from the tensors of `scope`.
    pub fn new(mut scope: Scope, config: &GraphVgaeConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        let (width, latent) = (config.encoder.width(), config.latent());
        Ok(Self {
            layers: blocks::build(&mut scope, config, 0..config.encoder.layers as usize, kernel)?,
            mean: Linear::new(scope.sub("z_mean"), width, latent)?,
            log_variance: Linear::new(scope.sub("z_logvar"), width, latent)?,
            decoder: decoder(&mut scope, config)?,
            config: config.clone(),
            kernel,
        })
    }

    /// The model's architecture.
    pub fn config(&self) -> &GraphVgaeConfig {
        &self.config
    }

    /// Encodes and decodes a batch. In training, z is drawn by the step's seed; in evaluation it is μ.
    ///
    /// # Errors
    /// If the batch has another number of node or edge features.
    pub fn forward(&self, batch: &Batch, mode: Mode) -> Result<GraphVgaeOutput, ModelError> {
        let features = features(&self.config, batch)?;
        let run = Run::new(batch, None, self.kernel, mode);
        let hidden = last(&mut blocks::through(&self.layers, &self.config, vec![features.shallow_clone()], &run)?)?;
        let mean = self.mean.forward(&hidden, self.kernel)?;
        let log_variance = self.log_variance.forward(&hidden, self.kernel)?;
        let latent = match mode {
            Mode::Training => draw(&mean, &log_variance, self.kernel)?,
            Mode::Evaluation => mean.shallow_clone(),
        };
        let decoded = self.decoder.forward(&latent, self.config.encoder.dropout, self.kernel, mode)?;
        Ok(GraphVgaeOutput { features, decoded, hidden, latent, mean, log_variance })
    }
}

/// The node features of a batch as the model reads and reconstructs them, standardised, `[num_nodes, node_features]`.
///
/// # Errors
/// If the batch has another number of node or edge features.
pub fn features(config: &GraphVgaeConfig, batch: &Batch) -> Result<Tensor, ModelError> {
    Ok(config.scaling.apply(&node_input(&config.encoder, batch)?)?)
}

/// Builds the decoder of node features.
fn decoder(scope: &mut Scope, config: &GraphVgaeConfig) -> Result<Mlp, ModelError> {
    Mlp::new(scope.sub("decoder"), &[config.latent(), config.encoder.width(), config.encoder.node_features])
}

/// The reconstruction that distillation compares, `[num_nodes, node_features]`, of [decoded](GraphVgaeOutput::decoded) features: values of
/// continuous ones, probabilities of the values of categorical ones.
pub fn reconstruction(decoded: &Tensor, config: &GraphVgaeConfig) -> Result<Tensor, ModelError> {
    let decoded = widened(decoded)?;
    let mut runs: Vec<(i64, Tensor)> = Vec::new();
    for columns in config.continuous() {
        runs.push((columns.start, decoded.f_narrow(1, columns.start, columns.end - columns.start)?));
    }
    for columns in &config.categories {
        let logits = decoded.f_narrow(1, columns.start, columns.end - columns.start)?;
        runs.push((columns.start, logits.f_softmax(-1, Kind::Float)?));
    }
    runs.sort_by_key(|(start, _)| *start);
    let parts: Vec<Tensor> = runs.into_iter().map(|(_, columns)| columns).collect();
    Ok(Tensor::f_cat(&parts, 1)?)
}
