//! The columns of a dataset of graphs: what its nodes and edges have, and what is to be predicted.

use serde::{Deserialize, Serialize};

use super::elements::{HEAVIEST_ELEMENT, symbol_of};
use crate::OfPaths;
use crate::feature_set::SpaceColumns;

/// Kind of prediction for each graph or node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// One of several classes.
    Classification,
    /// Several labels, each 0 or 1.
    MultiLabel,
    /// One or several numbers.
    Regression,
}

impl Task {
    /// Its name in files and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Classification => "classification",
            Self::MultiLabel => "multi-label",
            Self::Regression => "regression",
        }
    }
}

/// The owner of targets: a graph or a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Graphs.
    #[default]
    Graph,
    /// Nodes of graphs.
    Node,
}

impl Level {
    /// True for targets of graphs.
    pub fn is_graph(&self) -> bool {
        *self == Self::Graph
    }

    /// The plural of what has the targets: graphs or nodes.
    pub fn units(self) -> &'static str {
        match self {
            Self::Graph => "graphs",
            Self::Node => "nodes",
        }
    }
}

/// A target: a column to predict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Name of the column.
    pub name: String,
    /// Names of the classes, in the order of their numbers; empty unless the task is classification.
    pub classes: Vec<String>,
}

/// A feature of nodes or edges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// Name of the column.
    pub name: String,
    /// The values of a categorical feature, in the order of their numbers; `None` for a continuous one.
    pub values: Option<Vec<String>>,
}

impl Feature {
    /// Number of input columns: one for a continuous feature, one for each value of a categorical one.
    pub fn columns(&self) -> usize {
        self.values.as_ref().map_or(1, Vec::len)
    }
}

/// The columns of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// The task.
    pub task: Task,
    /// Owner of the targets: the graph or its nodes.
    pub level: Level,
    /// The targets; one for classification.
    pub targets: Vec<Target>,
    /// Features of nodes.
    pub node_features: Vec<Feature>,
    /// Features of edges.
    pub edge_features: Vec<Feature>,
    /// Positions of nodes; `None` without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<SpaceSchema>,
}

/// Positions of the nodes of a dataset, and what belongs to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceSchema {
    /// Kinds of nodes.
    pub kinds: Kinds,
    /// True if each node has a force, a target of networks in space.
    pub forces: bool,
    /// True if a graph has a periodic cell.
    pub periodic: bool,
    /// True if each graph is a tree, and its node 0 the root.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rooted: bool,
    /// Unit of lengths, if it is known.
    pub length_unit: Option<String>,
    /// Unit of energies, if it is known; that of forces is this one by that of lengths.
    pub energy_unit: Option<String>,
    /// Reason why no network in space can be trained on these positions.
    pub unfit: Option<String>,
    /// Names of the parameters of listed angles and dihedrals.
    #[serde(default, skip_serializing_if = "OfPaths::is_none")]
    pub paths: OfPaths<Vec<String>>,
}

/// Kinds of nodes in space, and the meaning of their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kinds {
    /// All nodes are of kind 0.
    Unknown,
    /// Chemical elements; the numbers are atomic numbers.
    Elements,
    /// Named kinds, the first one of number 1.
    Named(Vec<String>),
}

impl Kinds {
    /// Name of a kind.
    pub fn name(&self, kind: u16) -> String {
        let unknown = || "unknown".to_owned();
        match self {
            Self::Unknown => unknown(),
            Self::Elements => symbol_of(kind).map_or_else(unknown, str::to_owned),
            Self::Named(names) => {
                usize::from(kind).checked_sub(1).and_then(|at| names.get(at)).cloned().unwrap_or_else(unknown)
            }
        }
    }

    /// Number of different kinds, kind 0 included: rows of an embedding.
    pub fn count(&self) -> usize {
        match self {
            Self::Unknown => 1,
            Self::Elements => HEAVIEST_ELEMENT + 1,
            Self::Named(names) => names.len() + 1,
        }
    }
}

impl Schema {
    /// True if each graph has a class.
    pub fn has_classes(&self) -> bool {
        self.task == Task::Classification && self.level.is_graph()
    }

    /// Positions, for a network in space.
    ///
    /// # Errors
    /// No positions, or such that no network in space can use; the text says what to do.
    pub fn expect_positions(&self) -> Result<&SpaceSchema, String> {
        let missing = "the graphs have no positions, which a network in space reads: they are the columns pos_x, pos_y and pos_z of nodes.csv, \
                       or come with XYZ files and with npz files of molecules";
        let space = self.space.as_ref().ok_or_else(|| missing.to_owned())?;
        space.unfit.clone().map_or(Ok(space), Err)
    }

    /// The columns of graphs in space that a store of this dataset has.
    pub(crate) fn space_columns(&self) -> SpaceColumns {
        self.space.as_ref().map_or(SpaceColumns::default(), |space| SpaceColumns {
            positions: true,
            cells: space.periodic,
            forces: space.forces,
            paths: space.paths.map(|names| names.len() as u16),
        })
    }

    /// Name of the task with its level in `kdgat-graphs.toml`.
    pub fn task_name(&self) -> &'static str {
        match (self.level, self.task) {
            (Level::Graph, task) => task.as_str(),
            (Level::Node, Task::Classification) => "node-classification",
            (Level::Node, Task::MultiLabel) => "node-multi-label",
            (Level::Node, Task::Regression) => "node-regression",
        }
    }

    /// Number of input columns of a node.
    pub fn node_columns(&self) -> usize {
        self.node_features.iter().map(Feature::columns).sum()
    }

    /// The input columns of each categorical feature of nodes, by number.
    pub fn node_categories(&self) -> Vec<std::ops::Range<i64>> {
        let ends = self.node_features.iter().scan(0, |end, feature| {
            *end += feature.columns() as i64;
            Some(*end)
        });
        let categorical = self.node_features.iter().zip(ends).filter(|(feature, _)| feature.values.is_some());
        categorical.map(|(feature, end)| end - feature.columns() as i64..end).collect()
    }

    /// Number of input columns of an edge.
    pub fn edge_columns(&self) -> usize {
        self.edge_features.iter().map(Feature::columns).sum()
    }
}

/// Numbers the distinct values of a column: integers in numerical order, other texts in alphabetical order. Returns the values in that
/// order, and the number of each entry.
pub fn numbered(entries: &[String]) -> (Vec<String>, Vec<u32>) {
    let mut values: Vec<&String> = entries.iter().collect();
    values.sort_unstable();
    values.dedup();
    if values.iter().all(|value| value.parse::<i64>().is_ok()) {
        values.sort_by_key(|value| value.parse::<i64>().unwrap_or_default());
    }
    let order: std::collections::HashMap<&String, u32> = values.iter().copied().zip(0..).collect();
    let numbers = entries.iter().map(|entry| order[entry]).collect();
    (values.into_iter().cloned().collect(), numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_numbered_in_numerical_order() {
        let texts = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        assert_eq!(numbered(&texts(&["10", "-1", "2", "10"])), (texts(&["-1", "2", "10"]), vec![2, 0, 1, 2]));
        assert_eq!(numbered(&texts(&["C", "10", "C"])), (texts(&["10", "C"]), vec![1, 0, 1]));
        assert_eq!(numbered(&[]), (Vec::new(), Vec::new()));
    }
}
