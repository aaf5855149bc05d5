//! A frozen teacher that leaves the device's memory to the student and does not change the student's numbers.
//!
//! The training loop submits upcoming batches to a [`Teacher`] and takes their targets in order. The teacher runs on its own thread
//! and answers from its cache, from a forward, or from both within one batch. Between visits its weights are in host memory
//! ([`shuttle`]); events order the copies and forwards against the student's work ([`order`]). The user chooses the residency of the
//! weights, or the [`planner`] chooses it from measured numbers.

#![warn(missing_docs)]

pub mod accelerator;
pub mod alpha;
pub mod cache;
pub mod foreign;
pub mod frozen;
pub mod hints;
pub mod losses;
pub mod model;
pub mod objective;
pub mod order;
pub mod planner;
pub mod python_cache;
pub mod registry;
pub mod shuttle;
pub mod targets;
pub mod teacher;
pub mod vgae_terms;
pub mod visit;
pub mod weights;

pub use cache::{Precision, StoreShape};
pub use model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
pub use registry::RegistryError;
pub use targets::{Per, TargetLayout, TargetName, TargetRows, TargetSpec, Targets};
pub use teacher::{CacheMode, CacheOptions, Residency, StepReport, Summary, Teacher, TeacherError, TeacherOptions};
pub use weights::{Weights, WeightsError};
