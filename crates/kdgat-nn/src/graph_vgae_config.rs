//! Architecture of a variational autoencoder of graphs of any kind.

use std::ops::Range;

use kdgat_graph::{Level, NodeScaling};
use serde::{Deserialize, Serialize};

use super::{GnnConfig, GnnKind, ModelError};

/// Architecture of a [`GraphVgae`](super::GraphVgae).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphVgaeConfig {
    /// The encoder: layers of GIN, GCN or GAT, whose outputs are the columns of the latent of each node.
    pub encoder: GnnConfig,
    /// Columns of each categorical feature of nodes, ascending; all other columns are continuous.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<Range<i64>>,
    /// Standardisation of the node features over the training graphs; columns of categories stay as they are.
    pub scaling: NodeScaling,
    /// True if edges are decoded, too.
    #[serde(default)]
    pub decodes_edges: bool,
    /// Names of the classes that the training graphs are of; empty: all graphs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
}

impl GraphVgaeConfig {
    /// A VGAE with `layers` layers of `hidden` columns and `latent` columns of the latent, for continuous features of nodes and without decoded
    /// edges or dropout.
    pub fn new(kind: GnnKind, scaling: NodeScaling, [hidden, layers, latent]: [i64; 3]) -> Self {
        let encoder =
            GnnConfig { level: Level::Node, ..GnnConfig::new(kind, [scaling.width() as i64, hidden, layers, latent]) };
        Self { encoder, categories: Vec::new(), scaling, decodes_edges: false, classes: Vec::new() }
    }

    /// Columns of the latent.
    pub fn latent(&self) -> i64 {
        self.encoder.outputs
    }

    /// The columns of the continuous features, in runs.
    pub fn continuous(&self) -> Vec<Range<i64>> {
        continuous_columns(&self.categories, self.encoder.node_features)
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        self.encoder.check()?;
        let refuse = |field, found, expected| Err(ModelError::Architecture { field, found, expected });
        let GnnConfig { kind, node_features, level, virtual_node, .. } = self.encoder;
        if !matches!(kind, GnnKind::Gin | GnnKind::Gcn | GnnKind::Gat) || level != Level::Node || virtual_node {
            let found = format!("{} of level {level:?}, virtual node {virtual_node}", kind.as_str());
            return refuse("encoder", found, "must be gin, gcn or gat with outputs of nodes and without virtual nodes");
        }
        expect_columns(&self.categories, &self.scaling, node_features)
    }
}

/// The columns of `node_features` that are no category's, in runs.
pub(super) fn continuous_columns(categories: &[Range<i64>], node_features: i64) -> Vec<Range<i64>> {
    let starts = std::iter::once(0).chain(categories.iter().map(|columns| columns.end));
    let ends = categories.iter().map(|columns| columns.start).chain([node_features]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|columns| !columns.is_empty()).collect()
}

/// Checks the categories and the scaling of `node_features` columns.
pub(super) fn expect_columns(
    categories: &[Range<i64>],
    scaling: &NodeScaling,
    node_features: i64,
) -> Result<(), ModelError> {
    let refuse = |field, found, expected| Err(ModelError::Architecture { field, found, expected });
    let starts = categories.iter().map(|columns| columns.start);
    let ends = std::iter::once(0).chain(categories.iter().map(|columns| columns.end));
    let is_ordered = starts.zip(ends).all(|(start, last_end)| start >= last_end);
    let fits = |columns: &Range<i64>| !columns.is_empty() && columns.end <= node_features;
    if !is_ordered || !categories.iter().all(fits) {
        let found = format!("{categories:?}");
        return refuse("categories", found, "ranges of node features, ascending and without overlap");
    }
    if let Some(found) = scaling.problem_of_width(node_features as usize) {
        return refuse("scaling", found, "a finite mean and a deviation above 0 for each node feature");
    }
    Ok(())
}
