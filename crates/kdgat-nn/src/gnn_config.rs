//! Architecture of a graph network: the kind of its layers, and their sizes.

use kdgat_graph::{Level, OfPaths};
use serde::{Deserialize, Serialize};

use super::description::expect_sizes;
use super::graph_pooling::Pooling;
use super::irreps::BondConfig;
use super::sgmp::PathConfig;
use super::space::SpaceConfig;
use super::target_scale::TargetScale;
use super::{InputConfig, ModelError};

/// The layers of a graph network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GnnKind {
    /// Graph isomorphism network.
    Gin,
    /// Graph convolutional network.
    Gcn,
    /// GraphSAGE, mean aggregator.
    Sage,
    /// Graph attention network.
    Gat,
    /// Multilayer perceptron on each node, without messages.
    Mlp,
    /// SchNet, for nodes with positions.
    SchNet,
    /// PaiNN, for nodes with positions.
    PaiNN,
    /// SGMP, over paths of three edges between nodes with positions.
    Sgmp,
    /// Representations of rotations and reflections, for nodes with positions.
    Irreps,
}

impl GnnKind {
    /// Its name in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gin => "gin",
            Self::Gcn => "gcn",
            Self::Sage => "sage",
            Self::Gat => "gat",
            Self::Mlp => "mlp",
            Self::SchNet => "schnet",
            Self::PaiNN => "painn",
            Self::Sgmp => "sgmp",
            Self::Irreps => "irreps",
        }
    }

    /// True for a network of pairs of near nodes, which may give forces.
    pub fn is_in_space(self) -> bool {
        matches!(self, Self::SchNet | Self::PaiNN | Self::Irreps)
    }
}

/// Architecture of a graph network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GnnConfig {
    /// Kind of the layers.
    pub kind: GnnKind,
    /// Number of features of a node.
    pub node_features: i64,
    /// Number of features of an edge that the layers read; 0: none. Only for GIN, which becomes GIN-E, and for representations with bonds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub edge_features: i64,
    /// Columns of a layer's output; for GAT, of each head.
    pub hidden: i64,
    /// Number of layers.
    pub layers: i64,
    /// Heads of a GAT layer, concatenated; 1 for the other kinds.
    pub heads: i64,
    /// Number of outputs: classes, or targets.
    pub outputs: i64,
    /// Columns of the embedding of a graph that the model predicts besides its outputs; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub embedding_columns: i64,
    /// Owner of the outputs: graphs, or their nodes.
    #[serde(default, skip_serializing_if = "Level::is_graph")]
    pub level: Level,
    /// Pooling of nodes to a graph's row; not used for outputs of nodes.
    pub pooling: Pooling,
    /// True if all nodes of a graph read and write a [virtual node](super::virtual_node). Not for an MLP.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub virtual_node: bool,
    /// Dropout probability of activations in training.
    pub dropout: f64,
    /// Scales of regression targets, one for each output; empty for other tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_scales: Vec<TargetScale>,
    /// Cutoff and radial basis of a network in space; `None` for the other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<SpaceConfig>,
    /// Expansion of lengths and angles of an SGMP; `None` for the other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<PathConfig>,
    /// The node input of CAN models, which is not used here.
    #[serde(skip)]
    pub input: InputConfig,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl GnnConfig {
    /// A network with one head, which sums the nodes of each graph, without edge features, virtual node and dropout. SchNet, PaiNN and SGMP
    /// also need [`GnnConfig::space`] or [`GnnConfig::paths`].
    pub fn new(kind: GnnKind, [node_features, hidden, layers, outputs]: [i64; 4]) -> Self {
        Self {
            kind,
            node_features,
            edge_features: 0,
            hidden,
            layers,
            heads: 1,
            outputs,
            embedding_columns: 0,
            level: Level::Graph,
            pooling: Pooling::Sum,
            virtual_node: false,
            dropout: 0.0,
            target_scales: Vec::new(),
            space: None,
            paths: None,
            input: InputConfig::default(),
        }
    }

    /// Columns of a layer's output.
    pub fn width(&self) -> i64 {
        self.hidden * self.heads
    }

    /// Columns of the row that the head reads: a graph's pooled row, or a node's.
    pub fn pooled_columns(&self) -> i64 {
        match self.kind {
            GnnKind::SchNet | GnnKind::PaiNN | GnnKind::Irreps | GnnKind::Sgmp => self.hidden,
            _ => self.width() * self.layers,
        }
    }

    /// Owner of the rows that the head reads.
    pub fn hidden_level(&self) -> Level {
        if self.kind.is_in_space() { Level::Node } else { self.level }
    }

    /// True if the network gives forces.
    pub fn gives_forces(&self) -> bool {
        self.space.as_ref().is_some_and(|space| space.forces)
    }

    /// Messages along the data's edges of a network of representations.
    pub fn bonds(&self) -> Option<&BondConfig> {
        self.space.as_ref()?.irreps.as_ref()?.bonds.as_ref()
    }

    /// True for a network of representations with messages along the data's edges.
    pub fn has_bonds(&self) -> bool {
        self.bonds().is_some()
    }

    /// Names of the parameters of the angles and dihedrals that a network takes from the data's tables; `None` unless paths send messages.
    pub fn path_parameters(&self) -> Option<OfPaths<Vec<String>>> {
        let bonds = self.bonds().filter(|bonds| bonds.paths)?;
        Some(bonds.listed.map(|parameters| parameters.names.clone()))
    }

    /// Columns of the input of layer `index`.
    pub fn input_columns(&self, index: i64) -> i64 {
        match (index, self.kind) {
            // The degree is a feature there.
            (0, GnnKind::Mlp) => self.node_features + 1,
            (0, _) => self.node_features,
            _ => self.width(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        // A network in space reads kinds and positions instead.
        let features = if self.kind.is_in_space() { self.node_features.max(1) } else { self.node_features };
        expect_sizes(&[
            ("node_features", features),
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("heads", self.heads),
            ("outputs", self.outputs),
        ])?;
        let refuse = |field, found: String, expected| Err(ModelError::Architecture { field, found, expected });
        if self.heads != 1 && self.kind != GnnKind::Gat {
            return refuse("heads", self.heads.to_string(), "must be 1 for all kinds but gat");
        }
        let reads_edges = self.kind == GnnKind::Gin || self.has_bonds();
        if self.edge_features != 0 && (!reads_edges || !(1..=1_000_000).contains(&self.edge_features)) {
            let expected = "must be 0 for all kinds but gin and irreps with bonds, and at most 1000000";
            return refuse("edge_features", self.edge_features.to_string(), expected);
        }
        if self.level == Level::Node && (self.embedding_columns > 0 || self.pooling == Pooling::Attention) {
            let found =
                format!("node with {} columns of an embedding and {:?} pooling", self.embedding_columns, self.pooling);
            return refuse("level", found, "must be graph for an embedding or attention pooling of graphs");
        }
        self.check_space()?;
        self.check_paths()?;
        if self.virtual_node && self.kind == GnnKind::Mlp {
            return refuse("virtual_node", "true".to_owned(), "must be false for an mlp, which sends no messages");
        }
        if !(0..=1_000_000).contains(&self.embedding_columns) {
            let found = self.embedding_columns.to_string();
            return refuse("embedding_columns", found, "must be from 0 to 1000000");
        }
        if self.pooled_columns() > 1_000_000 {
            let found = format!("{} with {} heads in {} layers", self.hidden, self.heads, self.layers);
            return refuse("hidden", found, "the product of the three must be at most 1000000");
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return refuse("dropout", self.dropout.to_string(), "must be at least 0 and below 1");
        }
        let usable = |scale: &TargetScale| scale.is_usable(self.node_features);
        let fits = self.target_scales.is_empty() || self.target_scales.len() as i64 == self.outputs;
        if !fits || !self.target_scales.iter().all(usable) {
            let found = format!("{:?}", self.target_scales);
            return refuse(
                "target_scales",
                found,
                "one finite mean and positive deviation for each output, with a weight for each node feature or none",
            );
        }
        Ok(())
    }

    fn check_paths(&self) -> Result<(), ModelError> {
        let refuse =
            |field, found: &str, expected| Err(ModelError::Architecture { field, found: found.to_owned(), expected });
        match (self.kind, &self.paths) {
            (GnnKind::Sgmp, Some(paths)) => paths.check()?,
            (GnnKind::Sgmp, None) => return refuse("paths", "none", "the cutoff and the Gaussians of an sgmp"),
            (kind, Some(_)) => return refuse("paths", kind.as_str(), "only an sgmp reads paths"),
            (_, None) => return Ok(()),
        }
        if self.virtual_node {
            return refuse("virtual_node", "true", "must be false for an sgmp");
        }
        if self.pooling == Pooling::Max {
            return refuse("pooling", "max", "must be sum, mean or attention for an sgmp, whose rows may be negative");
        }
        Ok(())
    }

    fn check_space(&self) -> Result<(), ModelError> {
        let refuse =
            |field, found: &str, expected| Err(ModelError::Architecture { field, found: found.to_owned(), expected });
        let Some(space) = &self.space else {
            return match self.kind.is_in_space() {
                true => refuse("space", "none", "the cutoff and the radial basis of schnet, painn or irreps"),
                false => Ok(()),
            };
        };
        if !self.kind.is_in_space() {
            return refuse("space", self.kind.as_str(), "only schnet, painn and irreps read positions");
        }
        space.check()?;
        match (self.kind, &space.irreps) {
            (GnnKind::Irreps, Some(irreps)) if irreps.irreps.count() as i64 != self.hidden => {
                let found = format!("{}, with {} features", self.hidden, irreps.irreps.count());
                return refuse("hidden", &found, "the number of features of the irreps");
            }
            (GnnKind::Irreps, Some(_)) => {}
            (GnnKind::Irreps, None) => return refuse("irreps", "none", "the representations of an irreps' nodes"),
            (kind, Some(_)) => return refuse("irreps", kind.as_str(), "only an irreps has representations"),
            (_, None) => {}
        }
        if self.virtual_node {
            return refuse("virtual_node", "true", "must be false for schnet, painn and irreps");
        }
        if self.pooling == Pooling::Max {
            return refuse(
                "pooling",
                self.kind.as_str(),
                "must be sum, mean or attention for schnet, painn and irreps",
            );
        }
        if space.forces && (self.outputs != 1 || self.level == Level::Node) {
            return refuse("forces", "true", "forces are the gradient of one output of graphs");
        }
        Ok(())
    }
}
