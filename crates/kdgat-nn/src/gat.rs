//! GAT classifier (Veličković et al. 2018) with jumping knowledge (Xu et al. 2018) by concatenation.
//!
//! ID embedding ‖ continuous features → attention layers with ReLU and dropout → concatenation of their outputs → mean
//! over each graph's nodes → fully connected head → logits of normal and attack.

use kdgat_graph::{Batch, EdgeScaling};
use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::attention::Backend;
use super::description::{expect_common, expect_sizes};
use super::fused::fan_out::fan_out;
use super::fused::step_seed::LayerId;
use super::layers::{InputConfig, Mlp, Mode, NodeInput, pool_layers, relu_dropout};
use super::parameters::Scope;
use super::recompute::{Hidden, recomputed};
use super::{Conv, EdgeInput, ModelError};

/// Number of classes: normal and attack.
pub const CLASSES: i64 = 2;
/// Maximum number of columns of a graph's pooled embedding: the head's weights have its square.
const MOST_POOLED_COLUMNS: i64 = 1_000_000_000;

/// Architecture of a GAT classifier: everything needed to rebuild a model around its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatConfig {
    /// Channels per head in every layer.
    pub hidden: i64,
    /// Number of attention layers.
    pub layers: i64,
    /// Number of heads in every layer, concatenated.
    pub heads: i64,
    /// Columns of the ID embedding.
    pub embedding: i64,
    /// Number of fully connected layers in the head.
    pub fc_layers: i64,
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

impl GatConfig {
    /// Columns of a graph's pooled embedding.
    pub fn embedding_columns(&self) -> i64 {
        self.hidden * self.heads * self.layers
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        expect_sizes(&[
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("heads", self.heads),
            ("embedding", self.embedding),
            ("fc_layers", self.fc_layers),
            ("vocabulary_size", self.vocabulary_size),
        ])?;
        // Each is in its range, so the product does not overflow.
        if self.embedding_columns() > MOST_POOLED_COLUMNS {
            return Err(ModelError::Architecture {
                field: "hidden",
                found: format!("{} with {} heads in {} layers", self.hidden, self.heads, self.layers),
                expected: "the product of the three must be at most 1000000000",
            });
        }
        expect_common(self.dropout, self.edge_scaling.as_ref(), &self.input)
    }
}

/// A GAT classifier.
#[derive(Debug)]
pub struct Gat {
    config: GatConfig,
    kernel: Backend,
    input: NodeInput,
    convs: Vec<(LayerId, Conv)>,
    head: Mlp,
    recomputes: bool,
}

impl Gat {
    /// Builds the model from the tensors of `scope`.
    pub fn new(mut scope: Scope, config: &GatConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        let input = NodeInput::new(&mut scope, &config.input, config.vocabulary_size, config.embedding)?;
        let mut convs = Vec::new();
        for index in 0..config.layers {
            let layer = scope.sub("convs").sub(index).layer_id();
            convs.push((layer, conv_layer(&mut scope, config, index)?));
        }
        let head = head(&mut scope, config)?;
        Ok(Self { config: config.clone(), kernel, input, convs, head, recomputes: false })
    }

    /// The model's architecture.
    pub fn config(&self) -> &GatConfig {
        &self.config
    }

    /// Enables or disables gradient checkpointing: attention layers are recomputed in the backward pass instead of
    /// storing their activations.
    pub fn set_checkpointing(&mut self, recomputes: bool) {
        self.recomputes = recomputes;
    }

    /// Computes the logits, `[num_graphs, CLASSES]`.
    pub fn forward(&self, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        let pooled = self.embed(batch, mode)?;
        self.classify(&pooled, mode)
    }

    /// Pooled embedding of each graph, `[num_graphs, hidden * heads * layers]`.
    pub fn embed(&self, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        if !self.recomputes || mode == Mode::Evaluation {
            return self.pool(&self.layer_outputs(batch, mode)?, batch);
        }
        // Pool each output as soon as it is computed: the backward, in reverse order, then needs the gradient of one
        // layer's output at a time instead of all.
        let mut pooled = Vec::with_capacity(self.convs.len());
        self.run_layers(batch, mode, |x| {
            pooled.push(self.pool(std::slice::from_ref(x), batch)?);
            Ok(())
        })?;
        Ok(Tensor::f_cat(&pooled, 1)?)
    }

    /// Means over each graph's nodes of the outputs of [`Self::layer_outputs`], concatenated: `[num_graphs, hidden *
    /// heads * layers]`.
    pub fn pool(&self, layers: &[Tensor], batch: &Batch) -> Result<Tensor, ModelError> {
        pool_layers(&layers.iter().collect::<Vec<_>>(), batch, self.kernel)
    }

    /// Logits of pooled embeddings: `[num_graphs, columns]` → `[num_graphs, CLASSES]`.
    pub fn classify(&self, pooled: &Tensor, mode: Mode) -> Result<Tensor, ModelError> {
        self.head.forward(pooled, self.config.dropout, self.kernel, mode)
    }

    /// Log odds of an attack, logit of attack − logit of normal, of pooled embeddings: `[num_graphs, columns]` → `[num_graphs]`. The head
    /// computes in double precision: what is rounded away in log odds of −20 is missing, relatively, in the probability.
    pub fn log_odds(&self, pooled: &Tensor) -> Result<Tensor, ModelError> {
        let logits = self.head.forward_double(pooled)?;
        Ok(logits.f_select(1, 1)?.f_sub(&logits.f_select(1, 0)?)?)
    }

    /// Output of each attention layer after ReLU and dropout, `[num_nodes, hidden * heads]` each.
    pub fn layer_outputs(&self, batch: &Batch, mode: Mode) -> Result<Vec<Tensor>, ModelError> {
        let mut outputs = Vec::with_capacity(self.convs.len());
        self.run_layers(batch, mode, |x| {
            outputs.push(x.shallow_clone());
            Ok(())
        })?;
        Ok(outputs)
    }

    /// Attention weights of the edges for each layer in evaluation mode, `[num_edges, heads]` each, in the order of the
    /// batch's adjacency.
    pub fn attention_weights(&self, batch: &Batch) -> Result<Vec<Tensor>, ModelError> {
        let edges = EdgeInput::new(batch, self.config.edge_scaling.as_ref())?;
        let mut x = self.input.forward(&batch.id_input, &self.config.input.continuous(batch)?, self.kernel)?;
        let mut weights = Vec::with_capacity(self.convs.len());
        for ((_, conv), output) in self.convs.iter().zip(self.layer_outputs(batch, Mode::Evaluation)?) {
            weights.push(conv.attention_weights(&x, &edges, self.kernel)?);
            x = output;
        }
        Ok(weights)
    }

    /// Calls `visit` with the output of each attention layer.
    fn run_layers(
        &self,
        batch: &Batch,
        mode: Mode,
        mut visit: impl FnMut(&Tensor) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let edges = EdgeInput::new(batch, self.config.edge_scaling.as_ref())?;
        let mut x = self.input.forward(&batch.id_input, &self.config.input.continuous(batch)?, self.kernel)?;
        let (dropout, kernel) = (self.config.dropout, self.kernel);
        for (layer, conv) in &self.convs {
            x = match self.recomputes && mode == Mode::Training {
                true => recomputed(Hidden { conv, norm: None, layer: *layer, dropout }, &x, &edges, kernel)?,
                false => relu_dropout(&conv.forward(&x, &edges, kernel)?, *layer, dropout, kernel, mode)?,
            };
            // Two readers: the order of the two gradients does not change their sum.
            let for_visit;
            [x, for_visit] = fan_out(&x, kernel)?;
            visit(&for_visit)?;
        }
        Ok(())
    }
}

/// Builds attention layer `index`.
pub fn conv_layer(scope: &mut Scope, config: &GatConfig, index: i64) -> Result<Conv, ModelError> {
    let input = if index == 0 { config.input.columns(config.embedding) } else { config.hidden * config.heads };
    let shape = (input, config.hidden, config.heads);
    Conv::new(scope.sub("convs").sub(index), shape, config.edge_scaling.is_some())
}

/// Builds the fully connected head.
pub fn head(scope: &mut Scope, config: &GatConfig) -> Result<Mlp, ModelError> {
    let mut widths = vec![config.embedding_columns(); config.fc_layers as usize];
    widths.push(CLASSES);
    Ok(Mlp::new(scope.sub("fc_layers"), &widths)?.of_graphs())
}
