//! Stages: open data, build a model, get a teacher, fit, save. Wiring only; the numerics lie in [`crate::nn`],
//! [`crate::distill`] and [`crate::train`].

mod autoencoder;
mod classifier;
mod error;
pub mod objective;
mod outcome;
mod run;
mod setup;
mod teacher;
mod teacher_cache;
mod training;

pub use autoencoder::autoencoder;
pub use classifier::normal;
pub use error::StageError;
pub use outcome::Outcome;
pub use setup::open_store;
pub use teacher_cache::{Cached, cache_teacher};
