//! Export of trained networks as ONNX models, for runtimes without kdgat: [`classifier`] of CAN windows, [`graph_network`],
//! [`node_network`].

#![warn(missing_docs)]

mod builder;
mod classifier;
mod error;
mod graph_network;
mod message;
mod node_network;
mod operators;
#[cfg(test)]
mod test_models;

pub use classifier::classifier;
pub use error::OnnxError;
pub use graph_network::graph_network;
pub use node_network::node_network;
