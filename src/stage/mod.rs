//! Stages: open data, build a model, get a teacher, fit, save. Wiring only; the numerics lie in [`crate::nn`],
//! [`crate::distill`] and [`crate::train`].

mod autoencoder;
mod classifier;
mod compare;
mod error;
mod evaluate;
mod objective;
mod outcome;
mod run;
mod setup;
mod teacher;
mod training;

pub use autoencoder::autoencoder;
pub use classifier::normal;
pub use compare::{CompareOptions, Comparison, compare};
pub use error::StageError;
pub use evaluate::{EvaluateOptions, evaluate};
pub use outcome::Outcome;
pub use setup::open_store;
