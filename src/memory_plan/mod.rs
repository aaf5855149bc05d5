//! Memory of a training, estimated from the architecture before anything runs ([`estimate`]), and what to change when it does
//! not fit ([`plan`]).

pub mod estimate;
pub mod plan;
