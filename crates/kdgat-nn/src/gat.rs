//! GAT classifier (Veličković et al. 2018) with jumping knowledge (Xu et al. 2018) by concatenation.
//!
//! ID embedding ‖ continuous features → attention layers with ReLU and dropout → concatenation of their outputs → mean
//! over each graph's nodes → fully connected head → logits of normal and attack.

use kdgat_graph::{Batch, EdgeScaling};
use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::attention::Backend;
use super::blocks::{self, Block, Run, last, pooled};
use super::description::{expect_common, expect_sizes};
use super::fused::fan_out::fan_out;
use super::fused::step_seed::LayerId;
use super::layers::{InputConfig, Mlp, Mode, NodeInput, pool_layers, relu_dropout};
use super::parameters::Scope;
use super::recompute::{Hidden, recomputed};
use super::{Conv, ModelError};

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

/// A block of a GAT: its input → [x], each attention layer [pooled…, x] → [pooled…, pooled, x], and its head → [logits], followed by the
/// pooled outputs if hidden rows are kept.
#[derive(Debug)]
pub enum GatBlock {
    /// The input of the first layer.
    Input(NodeInput),
    /// Attention, ReLU, dropout.
    Attention(LayerId, Conv),
    /// Fully connected layers.
    Head(Mlp),
}

impl Block for GatBlock {
    type Config = GatConfig;

    fn names(config: &GatConfig) -> Vec<String> {
        let layers = (0..config.layers).map(|index| format!("attention layer {index}"));
        ["input".to_owned()].into_iter().chain(layers).chain(["head".to_owned()]).collect()
    }

    fn edge_scaling(config: &GatConfig) -> Option<&EdgeScaling> {
        config.edge_scaling.as_ref()
    }

    fn new(scope: &mut Scope, config: &GatConfig, index: usize, _: Backend) -> Result<Self, ModelError> {
        let index = index as i64 - 1;
        if index < 0 {
            return Ok(Self::Input(NodeInput::new(scope, &config.input, config.vocabulary_size, config.embedding)?));
        }
        if index == config.layers {
            return Ok(Self::Head(head(scope, config)?));
        }
        let input = if index == 0 { config.input.columns(config.embedding) } else { config.hidden * config.heads };
        let shape = (input, config.hidden, config.heads);
        let mut convs = scope.sub("convs");
        let scope = convs.sub(index);
        Ok(Self::Attention(scope.layer_id(), Conv::new(scope, shape, config.edge_scaling.is_some())?))
    }

    fn forward(&self, config: &GatConfig, mut state: Vec<Tensor>, run: &Run) -> Result<Vec<Tensor>, ModelError> {
        match self {
            Self::Input(input) => state.push(input.of_batch(&config.input, run)?),
            Self::Attention(..) => {
                let x = self.attend(config, &last(&mut state)?, run)?;
                // Two readers: the order of the two gradients does not change their sum.
                let [x, for_pool] = fan_out(&x, run.kernel)?;
                state.extend([pool_layers(&[&for_pool], run.batch, run.kernel)?, x]);
            }
            Self::Head(head) => {
                let pooled = pooled(state)?;
                let logits = head.forward(&pooled, config.dropout, run.kernel, run.mode)?;
                state = if run.keeps_hidden { vec![logits, pooled] } else { vec![logits] };
            }
        }
        Ok(state)
    }
}

impl GatBlock {
    /// The output of an attention layer, `[num_nodes, hidden * heads]`; of other blocks, `x`.
    fn attend(&self, config: &GatConfig, x: &Tensor, run: &Run) -> Result<Tensor, ModelError> {
        let Self::Attention(layer, conv) = self else { return Ok(x.shallow_clone()) };
        let (layer, edges, dropout) = (*layer, run.edges()?, config.dropout);
        match run.recomputes && run.mode == Mode::Training {
            true => recomputed(Hidden { conv, norm: None, layer, dropout }, x, edges, run.kernel),
            false => relu_dropout(&conv.forward(x, edges, run.kernel)?, layer, dropout, run.kernel, run.mode),
        }
    }
}

/// A GAT classifier.
#[derive(Debug)]
pub struct Gat {
    config: GatConfig,
    kernel: Backend,
    /// All blocks but the head.
    body: Vec<GatBlock>,
    head: Mlp,
    recomputes: bool,
}

impl Gat {
    /// Builds the model from the tensors of `scope`.
    pub fn new(mut scope: Scope, config: &GatConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        let body = blocks::build(&mut scope, config, 0..config.layers as usize + 1, kernel)?;
        Ok(Self { config: config.clone(), kernel, body, head: head(&mut scope, config)?, recomputes: false })
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
        pooled(blocks::through(&self.body, &self.config, Vec::new(), &self.run(batch, mode))?)
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
        let mut outputs = self.layer_rows(batch, mode)?;
        Ok(outputs.split_off(1))
    }

    /// Attention weights of the edges for each layer in evaluation mode, `[num_edges, heads]` each, in the order of the
    /// batch's adjacency.
    pub fn attention_weights(&self, batch: &Batch) -> Result<Vec<Tensor>, ModelError> {
        let run = self.run(batch, Mode::Evaluation);
        let rows = self.layer_rows(batch, Mode::Evaluation)?;
        let layers = self.body.iter().filter_map(|block| match block {
            GatBlock::Attention(_, conv) => Some(conv),
            _ => None,
        });
        layers.zip(&rows).map(|(conv, x)| conv.attention_weights(x, run.edges()?, self.kernel)).collect()
    }

    /// The input of the first layer, and the output of each.
    fn layer_rows(&self, batch: &Batch, mode: Mode) -> Result<Vec<Tensor>, ModelError> {
        let run = self.run(batch, mode);
        let mut rows = Vec::with_capacity(self.body.len());
        for block in &self.body {
            let x = match rows.last() {
                None => last(&mut block.forward(&self.config, Vec::new(), &run)?)?,
                Some(x) => block.attend(&self.config, x, &run)?,
            };
            rows.push(x);
        }
        Ok(rows)
    }

    fn run<'a>(&'a self, batch: &'a Batch, mode: Mode) -> Run<'a> {
        Run::new(batch, self.config.edge_scaling.as_ref(), self.kernel, mode).recomputing(self.recomputes)
    }
}

/// Builds the fully connected head.
fn head(scope: &mut Scope, config: &GatConfig) -> Result<Mlp, ModelError> {
    let mut widths = vec![config.embedding_columns(); config.fc_layers as usize];
    widths.push(CLASSES);
    Ok(Mlp::new(scope.sub("fc_layers"), &widths)?.of_graphs())
}
