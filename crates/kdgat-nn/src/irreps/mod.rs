//! Networks of irreducible representations of rotations and reflections, to degree 2, that need no weights of an edge.
//!
//! A node has scalars, vectors and symmetric matrices without a trace, as [`Irreps`] says. A layer multiplies those of a node's neighbours with
//! the spherical harmonics of the edges, each product with weights from the edge's length ([`sum_of_products`]). Layers, norms and the order of
//! the weights are those of e3nn 0.5 (Geiger & Smidt 2022, "e3nn: Euclidean Neural Networks").

mod bonds;
mod coupling;
mod edges;
mod hops;
mod layer;
mod network;
mod parts;
mod product;
mod representations;

pub use bonds::{BondPaths, Bonds, PathParameters};
pub use coupling::{Block, Coupling, wigner};
pub use edges::{Edges, Entries};
pub use hops::PathMessages;
pub use layer::{EdgeFeatures, IrrepsLayer, LayerOptions};
pub use network::{BondConfig, IrrepsConfig, IrrepsNetwork, NodesInSpace};
pub use parts::{Gate, IrrepsLinear, IrrepsNorm, harmonics, invariants, polynomial_cutoff};
pub use product::sum_of_products;
pub use representations::{Irrep, Irreps, MAX_DEGREE, Part};
