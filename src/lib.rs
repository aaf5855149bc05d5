//! kdgat distils large graph networks into small ones on machines that are too small for both.
//!
//! Data flows one way: CAN logs become frames ([`can`]), windows of frames become graphs in a mapped
//! store ([`graph`]), batches of graphs train a model ([`nn`], [`train`]), and a frozen teacher on a
//! thread of its own ([`distill`]) supplies the targets. A [`stage`] wires these together.

// Helpers of the tests in tests/ name the crate.
#[cfg(test)]
extern crate self as kdgat;

pub mod can;
pub mod cli;
pub mod config;
pub mod curriculum;
pub mod detect;
pub mod distill;
pub mod doctor;
pub mod evaluate;
pub mod files;
pub mod fusion;
pub mod graph;
pub mod interrupt;
pub mod memory;
pub mod nn;
pub mod onnx;
pub mod random;
pub mod report;
pub mod stage;
pub mod sweep;
pub mod terminal;
pub mod torch;
pub mod train;
