//! Curriculum: selects the graphs of an epoch by difficulty.
//!
//! A frozen VGAE scores every CAN window once ([`Scorer`], [`Scores`]), the task loss of a network graphs of other kinds
//! ([`TaskScorer`]); a [`Schedule`] sets for each epoch how many graphs to draw and how difficult they are; a [`Sampler`] draws them.

#![warn(missing_docs)]

mod error;
mod sampler;
mod schedule;
mod scorer;
mod scores;
mod task_scorer;

pub use error::CurriculumError;
pub use sampler::{Bin, Choice, Sampler, Selection};
pub use schedule::{Pace, Schedule};
pub use scorer::Scorer;
pub use scores::{GraphScore, Origin, Scores};
pub use task_scorer::{OutputSource, TaskScorer};

/// Columns that a curriculum adds to `metrics.csv`.
pub const CURRICULUM_COLUMNS: &[&str] = &[
    "curriculum_ratio",
    "curriculum_percentile",
    "curriculum_normals",
    "curriculum_topped_up",
    "curriculum_difficulty",
];

/// Columns that a curriculum of a dataset of graphs adds to `metrics.csv`.
pub const GRAPH_CURRICULUM_COLUMNS: &[&str] = &[
    "curriculum_share",
    "curriculum_percentile",
    "curriculum_graphs",
    "curriculum_topped_up",
    "curriculum_difficulty",
];
