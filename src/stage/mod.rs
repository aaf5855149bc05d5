//! Stages: open data, build a model, start a teacher, fit, save. Wiring only; the numerics are in [`crate::nn`],
//! [`crate::distill`] and [`crate::train`].

mod autoencoder;
mod cache_settings;
mod classifier;
mod compare;
mod curriculum_log;
mod difficulty;
mod epochs;
mod error;
mod evaluate;
mod evaluated_models;
mod export;
mod export_c;
mod export_examples;
mod foreign;
mod fresh_student;
mod fusion;
mod fusion_models;
mod fusion_report;
mod graph_autoencoder;
mod graph_batches;
mod graph_peak;
mod graph_plan;
mod graph_results;
mod graphs;
mod memory_plan;
mod node_data;
mod node_features;
mod node_plan;
mod node_sizing;
mod node_targets;
mod node_teacher;
mod nodes;
mod outcome;
mod planned_batches;
mod predictions;
mod recorded_runs;
mod resume;
mod run;
mod run_data;
mod score_only;
mod setup;
mod sizing;
mod synthetic;
mod teacher;
mod teacher_cache;
mod tested;
mod tested_autoencoders;
mod tested_graphs;
mod tested_nodes;
mod tested_rows;
mod training;
mod validation;
mod workload;

pub use compare::{CompareOptions, Comparison, compare};
pub use error::StageError;
pub use evaluate::{EvaluateOptions, evaluate};
pub use export::{ExportOptions, Exported, export};
pub use export_c::{ExportCOptions, ExportedC, ExportedCalibration, export_c};
pub use fusion::{FusionOutcome, fusion};
pub use fusion_models::model_of_dataset;
pub use graph_plan::plan_graphs;
pub use memory_plan::{PlannedSize, plan_memory};
pub use node_data::{build_node_store, graph_options, simulate_citations};
pub use node_plan::{PlannedGraph, plan_nodes};
pub use node_targets::{NodeTargets, node_targets};
pub use outcome::Outcome;
pub use run_data::RunData;
pub use score_only::score_only;
pub use setup::{
    SIMULATED, build_options, build_store_part, data_digest, find_store, gather_notes, gather_store, limit_memory,
    merge_gathered, merge_store_parts, open_store, recorded_dataset,
};
pub use teacher_cache::{Cached, cache_teacher};
pub use tested::evaluate_tested;
pub use workload::run_stage;
