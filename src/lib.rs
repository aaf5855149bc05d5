//! kdgat distils large graph networks into small ones on machines too small to hold both.
//!
//! Data flows one way: CAN logs become frames ([`can`]), windows of frames become graphs in a mapped
//! store ([`graph`]), batches of graphs train a model ([`nn`], [`train`]), and a frozen teacher on its
//! own thread ([`distill`]) computes the targets. A [`stage`] wires these together.

// Test helpers shared with tests/ refer to the crate by name.
#[cfg(test)]
extern crate self as kdgat;

// Shadows `eprintln!` and `eprint!`. Must precede all modules.
#[macro_use]
extern crate kdgat_base;

pub use kdgat_base::{exit, files, random, shell};
pub use kdgat_can as can;
pub use kdgat_car as car;
pub use kdgat_config as config;
pub use kdgat_curriculum as curriculum;
pub use kdgat_detect as detect;
pub use kdgat_distill as distill;
pub use kdgat_evaluate as evaluate;
pub use kdgat_fusion as fusion;
pub use kdgat_graph as graph;
pub use kdgat_nn as nn;
pub use kdgat_nodes as nodes;
pub use kdgat_onnx as onnx;
pub use kdgat_report as report;
pub use kdgat_sweep as sweep;
pub use kdgat_torch as torch;
pub use kdgat_train as train;
pub use kdgat_train::{interrupt, memory, notices};

pub mod cli;
pub mod doctor;
pub mod stage;
