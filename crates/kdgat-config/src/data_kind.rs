//! The kind of data that a configuration names.

use std::path::Path;

/// Kind of data: it decides on the networks, on the presets' values and on the fields that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataKind {
    /// CAN windows, or no dataset is named.
    #[default]
    Windows,
    /// A dataset of graphs.
    Graphs,
    /// The nodes of one large graph.
    OneGraph,
}

impl DataKind {
    /// The kind of the data at a path. Looks at the files there, so it is asked once, when a configuration is loaded.
    pub fn of(path: Option<&Path>) -> Self {
        match path {
            Some(path) if kdgat_nodes::sources::is_node_dataset(path) => Self::OneGraph,
            Some(path) if kdgat_graph::dataset::is_dataset(path) => Self::Graphs,
            _ => Self::Windows,
        }
    }
}
