//! What a teacher is asked for: named tensors with one row a node or one row a graph.

use serde::{Deserialize, Serialize};
use tch::{Kind, TchError, Tensor};

use kdgat_graph::Batch;
use kdgat_torch::rows::Rows;

use super::model::ModelError;

/// The output of a teacher that a distillation loss compares with the student's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetName {
    /// VGAE: the mean μ of the latent, `[num_nodes, latent]`.
    Latent,
    /// VGAE: the reconstructed continuous features, `[num_nodes, node features of the set]`.
    Reconstruction,
    /// GAT: class logits, `[num_graphs, classes]`.
    Logits,
    /// VGAE, for hints: what the encoder's last hidden layer gives, `[num_nodes, width]`.
    HiddenNodes,
    /// GAT, for hints: the pooled outputs of all attention layers, `[num_graphs, hidden * heads * layers]`.
    HiddenGraphs,
}

impl TargetName {
    /// The name as it stands in files and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Latent => "latent",
            Self::Reconstruction => "reconstruction",
            Self::Logits => "logits",
            Self::HiddenNodes => "hidden layer of nodes",
            Self::HiddenGraphs => "hidden layer of graphs",
        }
    }

    /// What its rows belong to.
    pub fn per(self) -> Per {
        match self {
            Self::Latent | Self::Reconstruction | Self::HiddenNodes => Per::Node,
            Self::Logits | Self::HiddenGraphs => Per::Graph,
        }
    }
}

impl std::fmt::Display for TargetName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// What a row of a target belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// One row a node.
    Node,
    /// One row a graph.
    Graph,
}

/// One target: `[rows, columns]`, f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetSpec {
    /// What it is.
    pub name: TargetName,
    /// What its rows belong to.
    pub per: Per,
    /// Values in a row.
    pub columns: usize,
}

/// The targets of a teacher, in the order in which it returns them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetLayout(pub Vec<TargetSpec>);

impl TargetLayout {
    /// The targets of a VGAE: latent and reconstruction, per node.
    pub fn vgae(latent: usize, features: usize) -> Self {
        Self(vec![
            TargetSpec { name: TargetName::Latent, per: Per::Node, columns: latent },
            TargetSpec { name: TargetName::Reconstruction, per: Per::Node, columns: features },
        ])
    }

    /// The targets of a classifier: logits, per graph.
    pub fn classifier(classes: usize) -> Self {
        Self(vec![TargetSpec { name: TargetName::Logits, per: Per::Graph, columns: classes }])
    }

    /// The same, and after them a hidden layer.
    pub fn with_hidden(mut self, name: TargetName, columns: usize) -> Self {
        self.0.push(TargetSpec { name, per: name.per(), columns });
        self
    }

    /// Values of all targets that a node adds.
    pub fn values_per_node(&self) -> usize {
        self.values_per(Per::Node)
    }

    /// Values of all targets that a graph adds, its nodes not counted.
    pub fn values_per_graph(&self) -> usize {
        self.values_per(Per::Graph)
    }

    fn values_per(&self, per: Per) -> usize {
        self.0.iter().filter(|spec| spec.per == per).map(|spec| spec.columns).sum()
    }

    /// In words, for messages and for the key of a cache: `latent [nodes, 16] + reconstruction [nodes, 10]`.
    pub fn describe(&self) -> String {
        let describe = |spec: &TargetSpec| {
            let rows = if spec.per == Per::Node { "nodes" } else { "graphs" };
            format!("{} [{rows}, {}]", spec.name, spec.columns)
        };
        self.0.iter().map(describe).collect::<Vec<_>>().join(" + ")
    }

    /// The tensors that a model's last layer left, as targets; an error names the one that is not as declared.
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
    /// In the order of the teacher's [`TargetLayout`].
    pub tensors: Vec<(TargetName, Tensor)>,
}

impl Targets {
    /// The target of that name, if the teacher gives it.
    pub fn get(&self, name: TargetName) -> Option<&Tensor> {
        self.tensors.iter().find(|(found, _)| *found == name).map(|(_, tensor)| tensor)
    }

    /// The same as rows, which need not lie in tensors.
    pub fn into_rows(self) -> TargetRows {
        TargetRows { rows: self.tensors.into_iter().map(|(name, tensor)| (name, Rows::Whole(tensor))).collect() }
    }

    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        Self { tensors: self.tensors.iter().map(|(name, tensor)| (*name, tensor.shallow_clone())).collect() }
    }
}

/// The teacher's outputs for one batch, wherever they lie.
#[derive(Debug)]
pub struct TargetRows {
    /// In the order of the teacher's [`TargetLayout`].
    pub rows: Vec<(TargetName, Rows)>,
}

impl TargetRows {
    /// The target of that name, if the teacher gives it.
    pub fn get(&self, name: TargetName) -> Option<&Rows> {
        self.rows.iter().find(|(found, _)| *found == name).map(|(_, rows)| rows)
    }

    /// In tensors: handles to those that there are, or copies.
    pub fn gathered(&self) -> Result<Targets, TchError> {
        let gathered = |(name, rows): &(TargetName, Rows)| Ok((*name, rows.gathered()?));
        Ok(Targets { tensors: self.rows.iter().map(gathered).collect::<Result<_, TchError>>()? })
    }
}
