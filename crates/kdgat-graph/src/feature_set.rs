//! Which features nodes and edges have. `docs/data.md` defines each of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{EDGE_FEATURES, NODE_FEATURES};

/// Continuous node features of the rich set.
pub const RICH_NODE_FEATURES: usize = 35;

/// A set of node and edge features. Edges have [`EDGE_FEATURES`] features in either, with other meanings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureSet {
    /// 10 node features that lie between 0 and 1 (but for some counts), in place as they are.
    #[default]
    Window,
    /// 35 node features in their own units, which a model standardises before it reads them.
    Rich,
}

impl FeatureSet {
    /// Its name in configurations and stores.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Rich => "rich",
        }
    }

    /// Continuous features of a node; the ID is not one of them.
    pub const fn node_features(self) -> usize {
        match self {
            Self::Window => NODE_FEATURES,
            Self::Rich => RICH_NODE_FEATURES,
        }
    }

    /// The set whose nodes have that many features.
    pub fn of_width(node_features: usize) -> Option<Self> {
        [Self::Window, Self::Rich].into_iter().find(|set| set.node_features() == node_features)
    }

    /// Which edge feature says whether the reverse edge exists.
    pub(super) const fn reverse_exists(self) -> usize {
        match self {
            Self::Window => 8,
            Self::Rich => 9,
        }
    }

    /// Which node feature is above 0 where a window ends with a frame of the node, and 0 where it has no frame of it: the place
    /// of the last one, or their number.
    pub const fn shows_last_sender(self) -> usize {
        match self {
            Self::Window => 9,
            Self::Rich => 24,
        }
    }

    /// Whether it is the default, which files of before there were two do not name.
    pub fn is_window(&self) -> bool {
        *self == Self::Window
    }
}

// A batch has one width of edge features whatever the set.
const _: () = assert!(EDGE_FEATURES == 11);

impl fmt::Display for FeatureSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
