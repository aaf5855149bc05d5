//! Memory plan of a training run: an estimate from the architecture before anything runs ([`estimate`]), and changes to make if
//! it does not fit ([`plan`]).

pub mod estimate;
pub mod plan;
