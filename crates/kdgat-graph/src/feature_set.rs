//! The sets of node and edge features. `docs/data.md` defines each feature.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::path_list::OfPaths;
use super::profile::deviations::{self, DEVIATIONS};
use super::{EDGE_FEATURES, NODE_FEATURES};

/// Number of continuous node features of the rich set.
pub const RICH_NODE_FEATURES: usize = 35;

/// A set of node and edge features. All sets of CAN windows have [`EDGE_FEATURES`] edge features, with different meanings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureSet {
    /// 10 node features, between 0 and 1 except for some counts, used without standardisation.
    #[default]
    Window,
    /// 35 node features in their own units, which a model standardises first.
    Rich,
    /// Deviations from a car's profile. The store holds the frames; batches hold the features, computed with the profile of the
    /// model that reads them.
    Profile,
    /// Columns of a dataset of graphs other than CAN windows, as its schema lists them.
    Columns {
        /// Number of node features.
        nodes: u16,
        /// Number of edge features.
        edges: u16,
        /// Number of targets of a graph.
        targets: u16,
        /// Number of targets of a node.
        node_targets: u16,
        /// True if graphs also have what rounding to 32 bits has left of each target.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        exact_targets: bool,
        /// True if a graph may have more edges than 16 bits can count.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        wide_edges: bool,
        /// Positions of nodes.
        #[serde(default, skip_serializing_if = "SpaceColumns::are_none")]
        space: SpaceColumns,
    },
}

/// Columns of graphs in space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SpaceColumns {
    /// True if nodes have positions and kinds; without them there is nothing else.
    pub positions: bool,
    /// True if graphs may have periodic cells.
    pub cells: bool,
    /// True if nodes have forces as targets.
    pub forces: bool,
    /// Number of parameters of listed angles and dihedrals.
    #[serde(default, skip_serializing_if = "OfPaths::is_none")]
    pub paths: OfPaths<u16>,
}

impl SpaceColumns {
    /// True for graphs without positions.
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

impl FeatureSet {
    /// Its name in configurations and stores.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Rich => "rich",
            Self::Profile => "profile",
            Self::Columns { .. } => "columns",
        }
    }

    /// True for graphs that are no CAN windows.
    pub const fn is_columns(self) -> bool {
        matches!(self, Self::Columns { .. })
    }

    /// Number of targets of a graph besides its label.
    pub const fn targets(self) -> usize {
        match self {
            Self::Columns { targets, .. } => targets as usize,
            _ => 0,
        }
    }

    /// True if row pointers have 32 bits instead of 16.
    pub const fn has_wide_rows(self) -> bool {
        matches!(self, Self::Columns { wide_edges: true, .. })
    }

    /// Number of targets of a graph of which the rest after rounding is known, too: all or none.
    pub const fn target_rests(self) -> usize {
        match self {
            Self::Columns { targets, exact_targets: true, .. } => targets as usize,
            _ => 0,
        }
    }

    /// Number of targets of a node.
    pub const fn node_targets(self) -> usize {
        match self {
            Self::Columns { node_targets, .. } => node_targets as usize,
            _ => 0,
        }
    }

    /// The columns of graphs in space.
    pub const fn space(self) -> SpaceColumns {
        match self {
            Self::Columns { space, .. } => space,
            _ => {
                let paths = OfPaths { angles: None, dihedrals: None };
                SpaceColumns { positions: false, cells: false, forces: false, paths }
            }
        }
    }

    /// Number of edge features.
    pub const fn edge_features(self) -> usize {
        match self {
            Self::Columns { edges, .. } => edges as usize,
            _ => EDGE_FEATURES,
        }
    }

    /// Number of continuous node features of a batch, without the ID.
    pub const fn node_features(self) -> usize {
        match self {
            Self::Window => NODE_FEATURES,
            Self::Rich => RICH_NODE_FEATURES,
            Self::Profile => DEVIATIONS,
            Self::Columns { nodes, .. } => nodes as usize,
        }
    }

    /// Number of node features in a store.
    pub const fn stored_node_features(self) -> usize {
        match self {
            Self::Profile => 0,
            set => set.node_features(),
        }
    }

    /// True if the features need the frames before a window, and stores hold the frames themselves.
    pub const fn needs_history(self) -> bool {
        matches!(self, Self::Profile)
    }

    /// The set of CAN windows with this number of node features.
    pub fn of_width(node_features: usize) -> Option<Self> {
        [Self::Window, Self::Rich, Self::Profile].into_iter().find(|set| set.node_features() == node_features)
    }

    /// Index of the edge feature that is 1 if the reverse edge exists.
    pub(super) const fn reverse_exists(self) -> usize {
        match self {
            Self::Window | Self::Profile => 8,
            Self::Rich => 9,
            Self::Columns { .. } => 0,
        }
    }

    /// Index of a node feature that is above 0 for the node of a window's last frame, and 0 for a node without a frame in the
    /// window: the position of its last frame, or the number of its frames.
    pub const fn shows_last_sender(self) -> usize {
        match self {
            Self::Profile => deviations::SHARE,
            Self::Window => 9,
            Self::Rich => 24,
            Self::Columns { .. } => 0,
        }
    }
}

// The width of edge features in a batch is the same for all sets of CAN windows.
const _: () = assert!(EDGE_FEATURES == 11);

impl fmt::Display for FeatureSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
