//! Windows as graphs: their features, stores, builds, batches and the loader.

mod block_shuffle;
mod data_parts;
mod graph_batches;
mod graph_builds;
mod graph_features;
mod graph_loader;
mod graph_parts;
mod graph_store;
mod loader_threads;
mod profile_features;
mod rich_features;
mod rich_store;
mod validation_division;
