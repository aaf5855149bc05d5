//! Memory plan of a training run: an estimate from the architecture before anything runs ([`estimate`]), and changes to make if
//! it does not fit ([`plan`]). For datasets of many graphs: the text of a measured plan ([`graphs`]). For one large graph: the expected sizes of sampled batches ([`node_sizes`]) and the memory of a
//! training on them ([`nodes`]).

pub mod estimate;
pub mod graphs;
pub mod node_sizes;
pub mod nodes;
pub mod plan;
