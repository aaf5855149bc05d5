//! SGMP, a network over paths of three edges in space (Zhang & Zhao 2021, "Representation learning on spatial networks").
//!
//! Node features → embedding → interactions, each added to the embedding: a node gets the sum of a network over all paths i→j→k→p that begin
//! at it, which reads the four nodes and the lengths, angles and torsion of the path. These do not change when the graph is turned or moved, and
//! with the torsion's sign it is told from its mirror image. Names of tensors are those of the published code.

pub mod geometry;
mod interaction;
mod kernels;
mod network;
mod sums;

pub use network::{PathConfig, Sgmp};
pub(crate) use network::{neighbours_of, positions};
pub use sums::PathGraph;
