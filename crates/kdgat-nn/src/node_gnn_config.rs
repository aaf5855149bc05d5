//! Architecture of a network that classifies the nodes of one large graph.

use serde::{Deserialize, Serialize};

use super::description::expect_sizes;
use super::{InputConfig, ModelError};

/// The layers of a node network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeGnnKind {
    /// GraphSAGE (Hamilton et al. 2017).
    Sage,
    /// Graph convolutional network (Kipf & Welling 2017).
    Gcn,
    /// Graph attention network (Veličković et al. 2018).
    Gat,
    /// Graph attention network with dynamic attention (Brody et al. 2022).
    GatV2,
    /// A multilayer perceptron whose outputs are propagated by personalised PageRank (Gasteiger et al. 2019).
    Appnp,
    /// Multilayer perceptron on each node, without messages.
    Mlp,
}

impl NodeGnnKind {
    /// Its name in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sage => "sage",
            Self::Gcn => "gcn",
            Self::Gat => "gat",
            Self::GatV2 => "gatv2",
            Self::Appnp => "appnp",
            Self::Mlp => "mlp",
        }
    }

    /// True if its layers attend to neighbours.
    pub fn has_attention(self) -> bool {
        matches!(self, Self::Gat | Self::GatV2)
    }
}

/// Aggregation of neighbours by GraphSAGE.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Aggregator {
    /// A map of the neighbours' mean plus a map of the node: `W_l·mean_j x_j + b + W_r·x_i`.
    #[default]
    Mean,
    /// One map of the mean of the neighbours and the node: `W·(Σ_j x_j + x_i)/(d + 1) + b`.
    Gcn,
}

/// Normalisation after each hidden layer, before the activation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// None.
    #[default]
    None,
    /// Batch normalisation, over nodes.
    Batch,
    /// Layer normalisation, of each node.
    Layer,
}

/// Activation of hidden layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// Rectified linear unit.
    Relu,
    /// Exponential linear unit.
    Elu,
}

impl Activation {
    /// The activation of the paper: ELU for attention, ReLU for the others.
    pub fn of_kind(kind: NodeGnnKind) -> Self {
        if kind.has_attention() { Self::Elu } else { Self::Relu }
    }
}

/// Architecture of a node network.
///
/// The last layer gives the outputs, without normalisation, activation and dropout. APPNP's layers are those of its
/// perceptron, followed by steps of propagation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeGnnConfig {
    /// Kind of the layers.
    pub kind: NodeGnnKind,
    /// Aggregation of neighbours; only for GraphSAGE.
    #[serde(default, skip_serializing_if = "is_default")]
    pub aggregator: Aggregator,
    /// Number of features of a node, positions included.
    pub node_features: i64,
    /// The last features are this many positions of the node in its graph, which do not come from the data.
    #[serde(default, skip_serializing_if = "is_default")]
    pub positions: i64,
    /// Columns of a hidden layer's output; for attention, of each head.
    pub hidden: i64,
    /// Number of layers with weights.
    pub layers: i64,
    /// Heads of a hidden attention layer, concatenated; 1 for the other kinds.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub heads: i64,
    /// Heads of the last attention layer, averaged; 1 for the other kinds.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub output_heads: i64,
    /// Number of outputs: classes.
    pub outputs: i64,
    /// Normalisation after each hidden layer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub norm: Norm,
    /// True to add a hidden layer's input to its output, before normalisation, where their widths are equal.
    #[serde(default, skip_serializing_if = "is_default")]
    pub residual: bool,
    /// Activation of hidden layers.
    pub activation: Activation,
    /// Dropout probability of hidden activations in training.
    pub dropout: f64,
    /// Dropout probability of the input features in training.
    #[serde(default, skip_serializing_if = "is_default")]
    pub input_dropout: f64,
    /// Dropout probability of attention weights in training; only for attention.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attention_dropout: f64,
    /// Probability of returning to the node in a step of propagation, α; only for APPNP.
    #[serde(default = "usual_teleport", skip_serializing_if = "is_usual_teleport")]
    pub teleport: f64,
    /// Number of steps of propagation; only for APPNP.
    #[serde(default = "usual_steps", skip_serializing_if = "is_usual_steps")]
    pub steps: i64,
    /// The node input of CAN models, which is not used here.
    #[serde(skip)]
    pub input: InputConfig,
}

/// α of APPNP unless it is configured.
pub const TELEPORT: f64 = 0.1;
/// Number of steps of APPNP unless it is configured.
pub const STEPS: i64 = 10;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> i64 {
    1
}

fn is_one(value: &i64) -> bool {
    *value == 1
}

fn usual_teleport() -> f64 {
    TELEPORT
}

fn is_usual_teleport(value: &f64) -> bool {
    *value == TELEPORT
}

fn usual_steps() -> i64 {
    STEPS
}

fn is_usual_steps(value: &i64) -> bool {
    *value == STEPS
}

impl NodeGnnConfig {
    /// An architecture with the usual options of its kind: one head, no normalisation, no dropout.
    pub fn new(kind: NodeGnnKind, [node_features, hidden, layers, outputs]: [i64; 4]) -> Self {
        Self {
            kind,
            aggregator: Aggregator::default(),
            node_features,
            positions: 0,
            hidden,
            layers,
            heads: 1,
            output_heads: 1,
            outputs,
            norm: Norm::default(),
            residual: false,
            activation: Activation::of_kind(kind),
            dropout: 0.0,
            input_dropout: 0.0,
            attention_dropout: 0.0,
            teleport: TELEPORT,
            steps: STEPS,
            input: InputConfig::default(),
        }
    }

    /// Number of features that come from the data.
    pub fn data_features(&self) -> i64 {
        self.node_features - self.positions
    }

    /// Columns of a hidden layer's output.
    pub fn width(&self) -> i64 {
        self.hidden * self.heads
    }

    /// Number of layers of a forward: those with weights, and the steps of propagation.
    pub fn num_layers(&self) -> i64 {
        self.layers + if self.kind == NodeGnnKind::Appnp { self.steps } else { 0 }
    }

    /// Number of layers that read edges, and so the number of adjacencies that a forward needs.
    pub fn message_layers(&self) -> i64 {
        match self.kind {
            NodeGnnKind::Mlp => 0,
            NodeGnnKind::Appnp => self.steps,
            _ => self.layers,
        }
    }

    /// Position in [`Neighbourhood::layers`](kdgat_graph::Neighbourhood::layers) of the edges that layer `index` reads; `None` if
    /// it reads none.
    pub fn edges_of_layer(&self, index: i64) -> Option<usize> {
        let without = self.num_layers() - self.message_layers();
        usize::try_from(index - without).ok()
    }

    /// True if the layers need the degrees of sources, which a batch must contain unless it has all edges of its nodes.
    pub fn needs_source_degrees(&self) -> bool {
        matches!(self.kind, NodeGnnKind::Gcn | NodeGnnKind::Appnp)
    }

    /// Columns of the input of layer `index`.
    pub fn input_columns(&self, index: i64) -> i64 {
        if index == 0 { self.node_features } else { self.output_columns(index - 1) }
    }

    /// Columns of the output of layer `index`.
    pub fn output_columns(&self, index: i64) -> i64 {
        if self.is_hidden(index) { self.width() } else { self.outputs }
    }

    /// True if layer `index` is followed by normalisation, activation and dropout.
    pub(super) fn is_hidden(&self, index: i64) -> bool {
        index + 1 < self.layers
    }

    /// Checks that a model can be built.
    ///
    /// # Errors
    /// Names the first invalid field.
    pub fn check(&self) -> Result<(), ModelError> {
        expect_sizes(&[
            ("node_features", self.node_features),
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("heads", self.heads),
            ("heads", self.output_heads),
            ("outputs", self.outputs),
            ("steps", self.steps),
        ])?;
        let refuse = |field, found: String, expected| Err(ModelError::Architecture { field, found, expected });
        if !(0..=self.node_features).contains(&self.positions) {
            return refuse("positions", self.positions.to_string(), "must be at least 0 and at most node_features");
        }
        if self.width() > 1_000_000 {
            let found = format!("{} with {} heads", self.hidden, self.heads);
            return refuse("hidden", found, "the product of the two must be at most 1000000");
        }
        if self.steps > 1000 {
            return refuse("steps", self.steps.to_string(), "must be at most 1000");
        }
        for (field, share) in [
            ("dropout", self.dropout),
            ("input_dropout", self.input_dropout),
            ("attention_dropout", self.attention_dropout),
        ] {
            if !(0.0..1.0).contains(&share) {
                return refuse(field, share.to_string(), "must be at least 0 and below 1");
            }
        }
        if !(self.teleport > 0.0 && self.teleport < 1.0) {
            return refuse("teleport", self.teleport.to_string(), "must be above 0 and below 1");
        }
        self.check_of_kind()
    }

    /// Checks the fields that only some kinds read.
    fn check_of_kind(&self) -> Result<(), ModelError> {
        let kind = self.kind;
        for (field, set, read, expected) in [
            ("aggregator", self.aggregator != Aggregator::Mean, kind == NodeGnnKind::Sage, "only sage reads it"),
            ("heads", self.heads != 1, kind.has_attention(), "must be 1 for all kinds but gat and gatv2"),
            ("output_heads", self.output_heads != 1, kind.has_attention(), "must be 1 for all kinds but gat and gatv2"),
            ("attention_dropout", self.attention_dropout != 0.0, kind.has_attention(), "only gat and gatv2 read it"),
            ("teleport", self.teleport != TELEPORT, kind == NodeGnnKind::Appnp, "only appnp reads it"),
            ("steps", self.steps != STEPS, kind == NodeGnnKind::Appnp, "only appnp reads it"),
        ] {
            if set && !read {
                let found = format!("set for {}", kind.as_str());
                return Err(ModelError::Architecture { field, found, expected });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_know_their_widths_and_edges() {
        let gat = NodeGnnConfig { heads: 4, ..NodeGnnConfig::new(NodeGnnKind::Gat, [30, 8, 3, 5]) };
        let widths: Vec<_> = (0..3).map(|index| (gat.input_columns(index), gat.output_columns(index))).collect();
        assert_eq!(widths, [(30, 32), (32, 32), (32, 5)]);
        assert_eq!((0..3).map(|index| gat.edges_of_layer(index)).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
        let appnp = NodeGnnConfig { steps: 2, ..NodeGnnConfig::new(NodeGnnKind::Appnp, [30, 8, 2, 5]) };
        assert_eq!((appnp.num_layers(), appnp.message_layers()), (4, 2));
        assert_eq!((0..4).map(|index| appnp.edges_of_layer(index)).collect::<Vec<_>>(), [None, None, Some(0), Some(1)]);
        assert_eq!((appnp.input_columns(3), appnp.output_columns(3)), (5, 5));
        let mlp = NodeGnnConfig::new(NodeGnnKind::Mlp, [30, 8, 2, 5]);
        assert_eq!((mlp.message_layers(), mlp.edges_of_layer(1)), (0, None));
    }

    #[test]
    fn usual_options_are_not_written() {
        let config = NodeGnnConfig::new(NodeGnnKind::GatV2, [30, 8, 2, 5]);
        let json = serde_json::to_value(&config).unwrap();
        let expected = serde_json::json!({
            "kind": "gatv2", "node_features": 30, "hidden": 8, "layers": 2, "outputs": 5, "activation": "elu", "dropout": 0.0,
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<NodeGnnConfig>(json).unwrap(), config);
        let other = NodeGnnConfig { norm: Norm::Layer, residual: true, teleport: 0.2, positions: 8, ..config };
        assert_eq!(serde_json::from_value::<NodeGnnConfig>(serde_json::to_value(&other).unwrap()).unwrap(), other);
    }

    #[test]
    fn fields_that_would_be_ignored_are_refused() {
        let config = |kind| NodeGnnConfig::new(kind, [30, 8, 2, 5]);
        let refused = |config: NodeGnnConfig| config.check().unwrap_err().to_string();
        for kind in [NodeGnnKind::Sage, NodeGnnKind::Gat, NodeGnnKind::Appnp, NodeGnnKind::Mlp] {
            config(kind).check().unwrap();
        }
        assert!(refused(NodeGnnConfig { heads: 2, ..config(NodeGnnKind::Sage) }).starts_with("heads"));
        assert!(
            refused(NodeGnnConfig { aggregator: Aggregator::Gcn, ..config(NodeGnnKind::Gcn) })
                .starts_with("aggregator")
        );
        assert!(refused(NodeGnnConfig { steps: 3, ..config(NodeGnnKind::Mlp) }).starts_with("steps = set for mlp"));
        assert!(refused(NodeGnnConfig { attention_dropout: 0.1, ..config(NodeGnnKind::Gcn) }).contains("gatv2"));
        assert!(refused(NodeGnnConfig { input_dropout: 1.0, ..config(NodeGnnKind::Mlp) }).contains("below 1"));
        assert!(refused(NodeGnnConfig { positions: 31, ..config(NodeGnnKind::Mlp) }).starts_with("positions = 31"));
        assert!(refused(NodeGnnConfig { layers: 0, ..config(NodeGnnKind::Mlp) }).starts_with("layers"));
    }
}
