//! Datasets of graphs that are no CAN windows: sources, training, curricula, exported networks.

mod export_networks;
mod graph_autoencoder;
mod graph_curriculum;
mod graph_datasets;
mod graph_learning;
mod graph_odd_sources;
mod graph_sources;
mod graph_targets;
mod path_tables;
mod path_training;
mod separate_tests;
mod space_sources;
mod space_training;
mod tree_pretraining;
mod tree_sources;
mod tree_training;
