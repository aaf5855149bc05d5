//! Classifiers as ONNX models, for run times that know nothing of kdgat.

mod builder;
mod classifier;
mod message;

pub use classifier::{OnnxError, classifier};
