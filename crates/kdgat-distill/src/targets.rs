//! The targets of a teacher: named tensors with one row per node or one row per graph.

use serde::{Deserialize, Serialize};
use tch::{Kind, TchError, Tensor};

use kdgat_graph::Batch;
use kdgat_torch::rows::Rows;

use super::model::ModelError;

/// An output of a teacher that a distillation loss compares with the student's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetName {
    /// VGAE: the mean μ of the latent, `[num_nodes, latent]`.
    Latent,
    /// VGAE: the reconstructed continuous features, `[num_nodes, node_features]`.
    Reconstruction,
    /// GAT: class logits, `[num_graphs, classes]`.
    Logits,
    /// Graph network for targets of nodes: logits or standardised values, `[num_nodes, outputs]`.
    NodeLogits,
    /// For hints: the output of a VGAE's last hidden layer of the encoder, `[num_nodes, width]`, or the outputs of all layers of a graph
    /// network for targets of nodes, `[num_nodes, width * layers]`.
    HiddenNodes,
    /// From a file: an embedding of each graph, `[num_graphs, any width]`.
    Embedding,
    /// Network in space: forces, on the scale of its outputs, `[num_nodes, 3]`.
    Forces,
    /// Network in space, for hints: the vectors of a PaiNN, `[num_nodes, 3 * hidden]`.
    Vectors,
    /// GAT, for hints: the pooled outputs of all attention layers, `[num_graphs, hidden * heads * layers]`.
    HiddenGraphs,
}

impl TargetName {
    /// The name in files and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Latent => "latent",
            Self::Reconstruction => "reconstruction",
            Self::Logits => "logits",
            Self::NodeLogits => "logits of nodes",
            Self::Embedding => "embedding",
            Self::Forces => "forces",
            Self::Vectors => "vectors of nodes",
            Self::HiddenNodes => "hidden layer of nodes",
            Self::HiddenGraphs => "hidden layer of graphs",
        }
    }

    /// Row unit of the target.
    pub fn per(self) -> Per {
        match self {
            Self::Latent
            | Self::Reconstruction
            | Self::NodeLogits
            | Self::HiddenNodes
            | Self::Forces
            | Self::Vectors => Per::Node,
            Self::Logits | Self::Embedding | Self::HiddenGraphs => Per::Graph,
        }
    }
}

impl std::fmt::Display for TargetName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Row unit of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// One row per node.
    Node,
    /// One row per graph.
    Graph,
}

/// Name, row unit and width of a target `[rows, columns]`, f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetSpec {
    /// The target's name.
    pub name: TargetName,
    /// The row unit.
    pub per: Per,
    /// Values per row.
    pub columns: usize,
}

/// The targets of a teacher, in the order in which the model returns them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetLayout(pub Vec<TargetSpec>);

impl TargetLayout {
    /// The targets of a VGAE, per node: the latent `[num_nodes, latent]`, if it is compared, and the reconstruction `[num_nodes, features]`.
    pub fn vgae(latent: Option<usize>, features: usize) -> Self {
        let latent = latent.map(|columns| TargetSpec { name: TargetName::Latent, per: Per::Node, columns });
        let reconstruction = TargetSpec { name: TargetName::Reconstruction, per: Per::Node, columns: features };
        Self(latent.into_iter().chain([reconstruction]).collect())
    }

    /// The target of a classifier: logits `[num_graphs, classes]`.
    pub fn classifier(classes: usize) -> Self {
        Self(vec![TargetSpec { name: TargetName::Logits, per: Per::Graph, columns: classes }])
    }

    /// The target of a network for targets of nodes: logits or values `[num_nodes, outputs]`.
    pub fn of_nodes(outputs: usize) -> Self {
        Self(vec![TargetSpec { name: TargetName::NodeLogits, per: Per::Node, columns: outputs }])
    }

    /// Appends a hidden layer, or another target, of width `columns`.
    pub fn with_hidden(mut self, name: TargetName, columns: usize) -> Self {
        self.0.push(TargetSpec { name, per: name.per(), columns });
        self
    }

    /// Number of values per node, over all targets.
    pub fn values_per_node(&self) -> usize {
        self.values_per(Per::Node)
    }

    /// Number of values per graph, over the targets with one row per graph.
    pub fn values_per_graph(&self) -> usize {
        self.values_per(Per::Graph)
    }

    fn values_per(&self, per: Per) -> usize {
        self.0.iter().filter(|spec| spec.per == per).map(|spec| spec.columns).sum()
    }

    /// The layout as text, for messages and the cache's key: `latent [nodes, 16] + reconstruction [nodes, 10]`.
    pub fn describe(&self) -> String {
        let describe = |spec: &TargetSpec| {
            let rows = if spec.per == Per::Node { "nodes" } else { "graphs" };
            format!("{} [{rows}, {}]", spec.name, spec.columns)
        };
        self.0.iter().map(describe).collect::<Vec<_>>().join(" + ")
    }

    /// Converts the tensors of a model's last layer to targets; fails with the first one that does not match the layout.
    pub fn check(&self, tensors: Vec<Tensor>, batch: &Batch) -> Result<Targets, ModelError> {
        if tensors.len() != self.0.len() {
            return Err(ModelError::TargetCount { expected: self.describe(), found: tensors.len() });
        }
        let mut named = Vec::with_capacity(tensors.len());
        for (spec, tensor) in self.0.iter().zip(tensors) {
            let rows = match spec.per {
                Per::Node => batch.num_nodes(),
                Per::Graph => batch.num_graphs() as i64,
            };
            let expected = vec![rows, spec.columns as i64];
            if tensor.size() != expected || tensor.kind() != Kind::Float {
                return Err(ModelError::TargetShape {
                    name: spec.name,
                    found: format!("{:?} {:?}", tensor.kind(), tensor.size()),
                    expected: format!("Float {expected:?}"),
                });
            }
            named.push((spec.name, tensor.detach()));
        }
        Ok(Targets { tensors: named })
    }
}

/// The teacher's outputs for one batch, rows in the batch's order.
#[derive(Debug)]
pub struct Targets {
    /// Names and tensors, in the order of the teacher's [`TargetLayout`].
    pub tensors: Vec<(TargetName, Tensor)>,
}

impl Targets {
    /// The target called `name`, if the teacher returns it.
    pub fn get(&self, name: TargetName) -> Option<&Tensor> {
        self.tensors.iter().find(|(found, _)| *found == name).map(|(_, tensor)| tensor)
    }

    /// Converts the tensors to [`TargetRows`] without a copy.
    pub fn into_rows(self) -> TargetRows {
        TargetRows { rows: self.tensors.into_iter().map(|(name, tensor)| (name, Rows::Whole(tensor))).collect() }
    }

    /// Other handles to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        Self { tensors: self.tensors.iter().map(|(name, tensor)| (*name, tensor.shallow_clone())).collect() }
    }
}

/// The teacher's outputs for one batch, as tensors or as rows in cached records.
#[derive(Debug)]
pub struct TargetRows {
    /// Names and rows, in the order of the teacher's [`TargetLayout`].
    pub rows: Vec<(TargetName, Rows)>,
}

impl TargetRows {
    /// The target called `name`, if the teacher returns it.
    pub fn get(&self, name: TargetName) -> Option<&Rows> {
        self.rows.iter().find(|(found, _)| *found == name).map(|(_, rows)| rows)
    }

    /// Returns the targets as tensors; copies rows that are not in a tensor.
    pub fn gathered(&self) -> Result<Targets, TchError> {
        let gathered = |(name, rows): &(TargetName, Rows)| Ok((*name, rows.gathered()?));
        Ok(Targets { tensors: self.rows.iter().map(gathered).collect::<Result<_, TchError>>()? })
    }
}
