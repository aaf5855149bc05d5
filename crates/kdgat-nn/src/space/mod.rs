//! Networks for graphs in space, whose nodes have positions: SchNet, PaiNN and [those of representations](crate::irreps), with energies and
//! forces.
//!
//! Kinds of nodes → embedding → interactions of pairs within a cutoff → head of two layers on each node → sum, mean or attention over a graph's nodes.
//! The forces are the negative gradient of a graph's output by the positions of its nodes. Names and shapes of the tensors are those of
//! schnetpack's `PaiNN` or `SchNet` with an `Atomwise` output (Schütt et al. 2023, "SchNetPack 2.0").

mod config;
pub(crate) mod dense;
mod messages;
mod network;
mod painn;
pub(crate) mod pairs;
pub(crate) mod radial;
mod schnet;

pub use config::{RadialBasis, SpaceConfig};
pub use network::{SpaceAnswer, SpaceNetwork};
pub use pairs::Pairs;
pub use radial::Radial;
