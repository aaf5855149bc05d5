//! Curriculum: selects the graphs of an epoch by difficulty.
//!
//! A frozen VGAE scores every graph once ([`Scorer`], [`Scores`]); a [`Schedule`] sets for each epoch how many normal graphs to
//! draw per attack and how difficult they are; a [`Sampler`] draws them.

#![warn(missing_docs)]

mod error;
mod sampler;
mod schedule;
mod scorer;
mod scores;

pub use error::CurriculumError;
pub use sampler::{Bin, Choice, Sampler, Selection};
pub use schedule::{Pace, Schedule};
pub use scorer::Scorer;
pub use scores::{GraphScore, Scores};

/// Columns that a curriculum adds to `metrics.csv`.
pub const CURRICULUM_COLUMNS: &[&str] = &[
    "curriculum_ratio",
    "curriculum_percentile",
    "curriculum_normals",
    "curriculum_topped_up",
    "curriculum_difficulty",
];
