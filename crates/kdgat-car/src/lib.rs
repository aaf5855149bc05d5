//! A trained detector as C99 source code: everything between a CAN frame and its verdict, without libtorch, without allocation.
//!
//! The C sources in `c/` are the same for every model. An export adds the two files that differ: `kdgat_config.h` (sizes and
//! choices of the model, which the sources are compiled for) and `kdgat_tables.c` (weights, vocabulary, statistics).

#![warn(missing_docs)]

mod error;
mod example;
mod files;
mod layers;
mod matrix;
mod measure;
mod model;
mod network;
mod readme;
mod saved;
mod text;
mod weights;
mod window;

pub use error::CarError;
pub use files::{CarFile, CarFiles, VectorResult, Vectors, write};
pub use measure::{CalibrationBytes, Measured, measure};
pub use model::{CarModel, CarPartner, UsualScale};
pub use saved::CarCalibration;
pub use text::CText;
pub use weights::{Precision, as_exported};
