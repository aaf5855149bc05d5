//! Evaluation of trained models: scores of graphs, thresholds, metrics with confidence intervals, and their tables.
//!
//! [`models`] finds a model; a [`Scorer`](scores::Scorer) gives each graph a score that is higher the more it looks like an
//! attack. A [threshold](threshold), chosen on validation data and [recorded](records) with the model, turns scores into
//! decisions. [`metrics`] and [`ranking`] measure how right they are, and [`bootstrap`] adds confidence intervals. [`operator`] has
//! the figures of practice: false alarms an hour, attack episodes found. [`held_out`] excludes a model's training windows from the
//! choice of its threshold. [`gone`] watches for IDs that fall silent, [`harm`] compares a calibration with none. [`ensemble`] combines two models. [`calibration`] moves a model to another car; a model may have
//! [several calibrations](calibrations). [`teacher_worth`] compares distilled students with the same students alone.

#![warn(missing_docs)]

pub mod agreement;
pub mod attacked;
pub mod bootstrap;
pub mod calibration;
pub mod calibrations;
pub mod car;
pub mod curves;
pub mod ensemble;
pub mod error;
pub mod expected_accuracy;
pub mod gone;
pub mod graph_comparisons;
pub mod graph_runs;
pub mod graphs;
pub mod harm;
pub mod held_out;
pub mod id_list;
pub mod judge;
pub mod label_propagation;
pub mod logistic;
pub mod metrics;
pub mod models;
pub mod molecules;
pub mod operator;
pub mod profile;
pub mod ranking;
pub mod records;
pub mod retrieval;
pub mod rules;
pub mod scores;
pub mod speed;
pub mod tables;
pub mod teacher_worth;
#[cfg(test)]
mod test_runs;
pub mod text_table;
pub mod threshold;
pub mod tree_descriptors;
pub mod windows;

pub use calibration::{Calibration, CarScale, Scale};
pub use ensemble::Ensemble;
pub use error::EvaluateError;
pub use expected_accuracy::expected_accuracy;
pub use metrics::{Decision, METRICS, Sample};
pub use models::TrainedModel;
pub use scores::{Network, ScoreKind, Scorer};
