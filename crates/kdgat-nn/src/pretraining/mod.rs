//! Pre-training: a graph network whose head answers questions that the graphs themselves answer, so that labels are not needed.
//!
//! - **Masked features**, for graphs of any kind: the features of some nodes are hidden and predicted ([`masked`]).
//! - **GT-SSL**, for rooted trees in space (Zhang et al. 2024, "Representation learning of geometric trees"): which of two related nodes is the
//!   child, which nodes are not related, and where a node's children grow ([`growth`]).
//!
//! The network's head has outputs for each node. All tensors but the head's are those of the network that is trained afterwards.

pub mod growth;
pub mod masked;
mod order;
pub mod trees;

use std::ops::Range;
use std::sync::Arc;

use kdgat_graph::{Batch, Level, NodeScaling};
use kdgat_torch::autocast::widened;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::attention::Backend;
use super::graph_vgae_config::expect_columns;
use super::layers::Mode;
use super::parameters::Scope;
use super::sgmp::geometry::Vector;
use super::{Draw, Gnn, GnnConfig, GnnKind, ModelError};
use growth::{Bins, Growth};
use masked::MaskedErrors;
use trees::Trees;

/// A network with its question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PretrainingConfig {
    /// The network; its outputs are of nodes.
    pub network: GnnConfig,
    /// The question.
    pub pretext: Pretext,
    /// Columns of each categorical feature of nodes, ascending; all other columns are continuous.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<Range<i64>>,
    /// Standardisation of the node features over the training graphs; columns of categories stay as they are. Hidden features are replaced by
    /// its means.
    pub scaling: NodeScaling,
}

/// The question that a head answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "objective", rename_all = "kebab-case")]
pub enum Pretext {
    /// The features of this share of each graph's nodes, at least of one node.
    Masked {
        /// Above 0 and below 1.
        share: f64,
    },
    /// Order and growth of a tree.
    GtSsl {
        /// Columns in which a child is below its parent.
        columns: i64,
        /// Bins of the distances and of the angles of a node's children.
        bins: [usize; 2],
    },
}

impl Pretext {
    /// Its name in the configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Masked { .. } => "masked",
            Self::GtSsl { .. } => "gt-ssl",
        }
    }
}

impl PretrainingConfig {
    /// Outputs of each node that the question needs.
    pub fn outputs(pretext: &Pretext, node_features: i64) -> i64 {
        match pretext {
            Pretext::Masked { .. } => node_features,
            Pretext::GtSsl { columns, bins: [distances, angles] } => columns + (distances + angles) as i64,
        }
    }

    /// The bins of growth, up to the network's cutoff; `None` for masked features.
    pub fn bins(&self) -> Option<Bins> {
        match (&self.pretext, &self.network.paths) {
            (Pretext::GtSsl { bins, .. }, Some(paths)) => Some(Bins::new(paths.cutoff, *bins)),
            _ => None,
        }
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        let refuse = |field, found, expected| Err(ModelError::Architecture { field, found, expected });
        let network = &self.network;
        network.check()?;
        expect_columns(&self.categories, &self.scaling, network.node_features)?;
        if network.level != Level::Node || network.gives_forces() || network.embedding_columns != 0 {
            let found = format!("{} of {}", network.kind.as_str(), network.level.units());
            return refuse("network", found, "must have outputs of nodes, no forces and no embedding");
        }
        match self.pretext {
            Pretext::Masked { share } if !(share > 0.0 && share < 1.0) => {
                return refuse("share", share.to_string(), "must be above 0 and below 1");
            }
            Pretext::GtSsl { columns, bins } => {
                if network.kind != GnnKind::Sgmp {
                    return refuse("network", network.kind.as_str().to_owned(), "must be sgmp for the growth of trees");
                }
                if !(1..=1000).contains(&columns) || bins.iter().any(|count| !(2..=1000).contains(count)) {
                    let found = format!("{columns} columns, {bins:?} bins");
                    return refuse("pretext", found, "must have 1 to 1000 columns and 2 to 1000 bins of each kind");
                }
            }
            Pretext::Masked { .. } => {}
        }
        let expected = Self::outputs(&self.pretext, network.node_features);
        if network.outputs != expected {
            let found = format!("{} instead of {expected}", network.outputs);
            return refuse("outputs", found, "must be those that the question needs");
        }
        Ok(())
    }
}

/// Values of some nodes of a batch.
#[derive(Debug)]
pub struct NodeValues {
    /// `[rows]`, i64.
    pub nodes: Tensor,
    /// `[rows]`, f32.
    pub values: Tensor,
}

/// The terms of GT-SSL, before they are averaged.
#[derive(Debug)]
pub struct TreeTerms {
    /// For each node with a parent: by how much it is above its parent, summed over the columns.
    pub order: NodeValues,
    /// `[rows of order]`, f32: 1 where the node is less above its parent than the parent above the node.
    pub is_ordered: Tensor,
    /// For each node with a drawn unrelated one: by how much the two are nearer than 1.
    pub distance: NodeValues,
    /// For each node with a parent and children: earth mover's distance of predicted and real distances of its children, as a share of the cutoff.
    pub growth_distance: NodeValues,
    /// The same for angles, as a share of π.
    pub growth_angle: NodeValues,
}

/// A network in pre-training.
#[derive(Debug)]
pub struct Pretraining {
    config: PretrainingConfig,
    network: Gnn,
}

impl Pretraining {
    /// Builds the network from the tensors of `scope`.
    pub fn new(scope: Scope, config: &PretrainingConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        Ok(Self { network: Gnn::new(scope, &config.network, kernel)?, config: config.clone() })
    }

    /// The architecture.
    pub fn config(&self) -> &PretrainingConfig {
        &self.config
    }

    /// The errors of the hidden features of masked nodes.
    ///
    /// # Errors
    /// A batch that does not fit the network, and those of libtorch.
    pub fn masked_errors(&self, batch: &Batch, mode: Mode, share: f64, draw: Draw) -> Result<MaskedErrors, ModelError> {
        let nodes = masked::masked_nodes(batch, share, draw)?.to_device(batch.continuous.device());
        let hidden = masked::hidden(batch, &nodes, &self.config.scaling)?;
        let decoded = self.network.forward(&hidden, mode)?.f_index_select(0, &nodes)?;
        MaskedErrors::new(nodes, &decoded, batch, &self.config)
    }

    /// The terms of GT-SSL. Order and distances are of the network's outputs on the whole trees; growth is predicted from the geometry of each
    /// node's ancestors alone, without their features.
    ///
    /// # Errors
    /// A batch whose graphs are no trees rooted at their first nodes, and those of libtorch.
    pub fn tree_terms(&self, batch: &Batch, mode: Mode, draw: Draw) -> Result<TreeTerms, ModelError> {
        let (Pretext::GtSsl { columns, .. }, Some(bins)) = (self.config.pretext, self.config.bins()) else {
            let (found, expected) = (self.config.pretext.as_str().to_owned(), "gt-ssl for the terms of trees");
            return Err(ModelError::Architecture { field: "pretext", found, expected });
        };
        let trees = Trees::of(batch)?;
        let outputs = widened(&self.network.forward(batch, mode)?)?.f_narrow(1, 0, columns)?;
        let (order, is_ordered) = order::order(&outputs, &trees)?;
        let distance = order::distance(&outputs, &trees, &batch.graph_index, draw)?;

        let positions = super::sgmp::positions(batch)?;
        let growth = Growth::of(&trees, &positions, bins);
        let grown = self.grown(batch, &trees, positions, (columns, bins), mode)?;
        let [growth_distance, growth_angle] = growth.compare(&grown)?;
        Ok(TreeTerms { order, is_ordered, distance, growth_distance, growth_angle })
    }

    /// Logits of the growth of each node from its ancestors, `[num_nodes, bins]`.
    fn grown(
        &self,
        batch: &Batch,
        trees: &Trees,
        positions: Vec<Vector>,
        (columns, bins): (i64, Bins),
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        let means = Tensor::f_from_slice(&self.config.scaling.mean)?.f_to_device(batch.continuous.device())?;
        let features = means.f_expand([batch.num_nodes(), -1], false)?.f_contiguous()?;
        let ancestors = Arc::new(trees.ancestors(positions));
        let outputs = widened(&self.network.forward_along(&features, &ancestors, mode)?)?;
        Ok(outputs.f_narrow(1, columns, bins.count() as i64)?)
    }

    /// The trees of a batch, all as one, with the predicted and the real growth of their nodes; `None` for masked features.
    ///
    /// # Errors
    /// As [`Pretraining::tree_terms`].
    pub fn grown_tree(&self, batch: &Batch) -> Result<Option<GrownTree>, ModelError> {
        let (Pretext::GtSsl { columns, .. }, Some(bins)) = (self.config.pretext, self.config.bins()) else {
            return Ok(None);
        };
        let (trees, positions) = (Trees::of(batch)?, super::sgmp::positions(batch)?);
        let growth = Growth::of(&trees, &positions, bins);
        let grown = self.grown(batch, &trees, positions.clone(), (columns, bins), Mode::Evaluation)?;
        let nodes = growth.nodes.iter().zip(growth.predicted_means(&grown)?).zip(&growth.means);
        let growth =
            nodes.map(|((&node, predicted), &real)| NodeGrowth { node: node as usize, predicted, real }).collect();
        Ok(Some(GrownTree { positions, parents: trees.parents, growth }))
    }
}

/// A tree with the growth of its nodes, for a drawing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrownTree {
    /// Position of each node.
    pub positions: Vec<[f64; 3]>,
    /// Parent of each node; `None` for the root.
    pub parents: Vec<Option<u32>>,
    /// The nodes with a parent and children.
    pub growth: Vec<NodeGrowth>,
}

/// Mean distance of a node's children, and mean angle between the edge to it and those to them, in radians.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeGrowth {
    /// The node.
    pub node: usize,
    /// Means of the predicted distributions.
    pub predicted: [f64; 2],
    /// Means over the children.
    pub real: [f64; 2],
}

impl NodeValues {
    /// The sum of the values divided by `nodes`, a scalar.
    pub fn sum_per(&self, nodes: i64) -> Result<Tensor, ModelError> {
        Ok(self.values.f_sum(Kind::Float)?.f_div_scalar(nodes.max(1) as f64)?)
    }
}
