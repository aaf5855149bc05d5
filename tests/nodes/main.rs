//! One large graph, through the command line.

mod node_store;
mod node_targets;
mod node_training;
