//! Variational autoencoder of graphs of any kind (Kipf & Welling 2016): layers of a [graph network](super::gnn) encode the nodes.
//!
//! Standardised node features → layers → μ, log σ². Decoders of z: an MLP on each node for its continuous features and the logits of its
//! categorical ones, and, if edges are decoded, the inner product of two nodes' z as the logit of an edge between them.

use kdgat_graph::Batch;
use kdgat_torch::autocast::widened;
use tch::{Kind, Tensor};

use super::ModelError;
use super::attention::Backend;
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

/// A variational autoencoder of graphs.
#[derive(Debug)]
pub struct GraphVgae {
    config: GraphVgaeConfig,
    kernel: Backend,
    layers: Vec<GnnLayer>,
    mean: Linear,
    log_variance: Linear,
    decoder: Mlp,
}

impl GraphVgae {
    /// Builds the model from the tensors of `scope`.
    pub fn new(mut scope: Scope, config: &GraphVgaeConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        let layers = (0..config.encoder.layers).map(|index| GnnLayer::new(&mut scope, &config.encoder, index));
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
            mean: mean_layer(&mut scope, config)?,
            log_variance: Linear::new(scope.sub("z_logvar"), config.encoder.width(), config.latent())?,
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
        let mut rows = LayerRows { nodes: features.shallow_clone(), virtual_nodes: None };
        for layer in &self.layers {
            rows = layer.forward(rows, batch, &self.config.encoder, self.kernel, mode)?;
        }
        let hidden = rows.nodes;
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

/// Builds the linear layer for μ.
pub fn mean_layer(scope: &mut Scope, config: &GraphVgaeConfig) -> Result<Linear, ModelError> {
    Linear::new(scope.sub("z_mean"), config.encoder.width(), config.latent())
}

/// Builds the decoder of node features.
pub fn decoder(scope: &mut Scope, config: &GraphVgaeConfig) -> Result<Mlp, ModelError> {
    Mlp::new(scope.sub("decoder"), &[config.latent(), config.encoder.width(), config.encoder.node_features])
}

/// Names of the decoder's tensors.
pub fn decoder_tensors() -> Vec<String> {
    ["0.weight", "0.bias", "3.weight", "3.bias"].map(|name| format!("decoder.{name}")).to_vec()
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
