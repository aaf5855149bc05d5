//! How good a trained model is: scores of graphs, thresholds, metrics with confidence intervals, and their tables.
//!
//! A model is [found](models) and made a [`Scorer`](scores::Scorer), which gives each graph a number that is higher the
//! more it looks like an attack. A [threshold](threshold) chosen on validation data, and [recorded](records) with the
//! model, turns numbers into decisions; [`metrics`] and [`ranking`] count how right they are, and [`bootstrap`] says how
//! sure that is. [`held_out`] keeps a model's training windows out of the choice. [`calibration`] moves a model to another car; a model may
//! have [several](calibrations).

pub mod bootstrap;
pub mod calibration;
pub mod calibrations;
pub mod curves;
pub mod error;
pub mod held_out;
pub mod id_list;
pub mod judge;
pub mod metrics;
pub mod models;
pub mod profile;
pub mod ranking;
pub mod records;
pub mod scores;
pub mod speed;
pub mod tables;
pub mod threshold;
pub mod windows;

pub use calibration::{Calibration, CarScale, Scale};
pub use error::EvaluateError;
pub use metrics::{Decision, METRICS, Sample};
pub use models::TrainedModel;
pub use scores::{Network, ScoreKind, Scorer};
