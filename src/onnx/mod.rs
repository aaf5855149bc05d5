//! Export of classifiers as ONNX models, for runtimes without kdgat.

mod builder;
mod classifier;
mod message;

pub use classifier::{OnnxError, classifier};
