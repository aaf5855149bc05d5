//! Settings of a network in space.

use serde::{Deserialize, Serialize};

use crate::ModelError;
use crate::irreps::IrrepsConfig;

/// Functions of a distance that the filters of pairs are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RadialBasis {
    /// Gaussians with equally spaced centres from 0 to the cutoff.
    Gaussian,
    /// sin(k π d / cutoff) / d for k = 1, 2, … (Klicpera et al. 2020, "Directional Message Passing for Molecular Graphs").
    Bessel,
}

/// Settings of a network in space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpaceConfig {
    /// Largest distance of two nodes that send messages to each other, in the unit of the positions.
    pub cutoff: f64,
    /// Number of kinds of nodes, 0 (unknown) included: rows of the embedding.
    pub kinds: i64,
    /// True if a node's features are read, too: a linear map of them is added to the embedding of its kind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub features: bool,
    /// Functions of a pair's distance.
    pub basis: RadialBasis,
    /// Number of these functions.
    pub radial_functions: i64,
    /// True if the network also gives the forces on the nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forces: bool,
    /// Representations of a network of those; `None` for the other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irreps: Option<IrrepsConfig>,
}

impl SpaceConfig {
    /// True if near nodes send messages; with bonds alone they do not.
    pub fn reads_pairs(&self) -> bool {
        self.irreps.as_ref().and_then(|irreps| irreps.bonds.as_ref()).is_none_or(|bonds| bonds.near_nodes)
    }

    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let refuse = |field, found: String, expected| Err(ModelError::Architecture { field, found, expected });
        if !(self.cutoff.is_finite() && self.cutoff > 0.0) {
            return refuse("cutoff", self.cutoff.to_string(), "must be a distance above 0");
        }
        if !(1..=1_000_000).contains(&self.kinds) {
            return refuse("kinds", self.kinds.to_string(), "must be from 1 to 1000000");
        }
        if !(2..=1000).contains(&self.radial_functions) {
            return refuse("radial_functions", self.radial_functions.to_string(), "must be from 2 to 1000");
        }
        self.irreps.as_ref().map_or(Ok(()), IrrepsConfig::check)
    }
}
