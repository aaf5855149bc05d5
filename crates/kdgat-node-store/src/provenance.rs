//! Origin of a graph: the source's files, the options of reading them, and facts that the graph does not show.

use serde::{Deserialize, Serialize};

/// Origin of a graph, kept with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Digest of the source's files.
    pub source_digest: String,
    /// Options of reading.
    pub options: GraphOptions,
    /// Facts about the source.
    pub notes: SourceNotes,
}

/// Options of reading a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GraphOptions {
    /// Adds the reverse of each edge.
    pub undirected: bool,
    /// Keeps the largest weakly connected component alone.
    pub largest_component: bool,
    /// Divides the features of each node by the sum of their absolute values.
    pub row_normalized: bool,
    /// Stores dense features in half precision.
    pub half: bool,
}

impl Default for GraphOptions {
    fn default() -> Self {
        Self { undirected: true, largest_component: true, row_normalized: false, half: false }
    }
}

/// Facts about the source of a graph that the graph does not show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceNotes {
    /// Number of nodes of the source.
    pub source_nodes: u64,
    /// Number of edges that the source lists.
    pub listed_edges: u64,
    /// Edges from a node to itself, which are removed.
    pub removed_self_loops: u64,
    /// Edges that repeat another one, which are removed. In an undirected graph, the reverse of an edge repeats it.
    pub removed_duplicates: u64,
    /// Nodes outside the largest component, which are removed.
    pub nodes_outside_component: u64,
    /// Nodes of the graph without a label.
    pub nodes_without_label: u64,
    /// Columns, arrays and files of the source that nothing reads, each with its file.
    pub ignored_columns: Vec<String>,
    /// Names of the classes, in the order of their numbers, if the source names them or has numbers with gaps.
    pub class_names: Option<Vec<String>>,
    /// Other facts that may surprise, one line each.
    pub remarks: Vec<String>,
}

impl SourceNotes {
    /// The lines to print: one for each change of the data.
    pub fn lines(&self) -> Vec<String> {
        let counted = |count: u64, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let mut lines = Vec::new();
        if self.removed_self_loops > 0 {
            lines.push(format!("removed {}", counted(self.removed_self_loops, "self-loop")));
        }
        if self.removed_duplicates > 0 {
            let edges = counted(self.removed_duplicates, "repeated edge");
            lines.push(format!("removed {edges} of {}", self.listed_edges));
        }
        if self.nodes_outside_component > 0 {
            let (outside, nodes) = (self.nodes_outside_component, self.source_nodes);
            let kept = nodes - outside;
            lines.push(format!("kept the largest component: {kept} of {}", counted(nodes, "node")));
        }
        if self.nodes_without_label > 0 {
            lines.push(format!("{} without a label", counted(self.nodes_without_label, "node")));
        }
        if !self.ignored_columns.is_empty() {
            lines.push(format!("ignored {}", self.ignored_columns.join(", ")));
        }
        lines.extend_from_slice(&self.remarks);
        lines
    }
}
