//! Fusion: an agent that learns, graph by graph, how much to trust the classifier and how much the autoencoder.
//!
//! Both frozen models turn a graph into a [state](states) of 15 values, computed once and [cached](state_file). An action is one
//! of [`ACTIONS`] weights a; the fused score is a·P(attack) + (1−a)·anomaly, with the anomaly on the
//! [scale of benign graphs](anomaly), and a [reward](reward) rates it. The agent is a [double deep Q-network](dqn) or
//! [Neural-LinUCB](linucb); [`fit`](mod@fit) trains it, [`agent`] stores it, and [`baselines`] are what it has to beat.

#![warn(missing_docs)]

#[macro_use]
extern crate kdgat_base;

pub mod agent;
pub mod anomaly;
pub mod bandit_learner;
pub mod baselines;
pub mod dqn;
pub mod dqn_learner;
pub mod error;
pub mod fit;
pub mod learner;
pub mod linucb;
pub mod replay;
pub mod report;
pub mod reward;
pub mod scaling;
pub mod small_mlp;
pub mod state_cache;
pub mod state_file;
pub mod states;
pub mod world;

pub use agent::Agent;
pub use anomaly::AnomalyScale;
pub use error::FusionError;
pub use reward::Reward;
pub use scaling::StateScaling;
pub use state_file::{StateFile, StateKey};
pub use states::{STATE, STATE_COLUMNS};
pub use world::{Observations, World};

/// Number of fusion weights.
pub const ACTIONS: usize = 21;

/// Classifier weight of an action: 0, 0.05, …, 1.
pub fn weight(action: usize) -> f64 {
    action as f64 / (ACTIONS - 1) as f64
}

/// Fused score: a·P(attack) + (1−a)·anomaly.
pub fn fused(weight: f64, probability: f64, anomaly: f64) -> f64 {
    weight * probability + (1.0 - weight) * anomaly
}
