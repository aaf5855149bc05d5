//! A frozen teacher that never costs the student its memory, and never changes a number.
//!
//! The training loop hands batches to come to a [`Teacher`] and takes their targets in order. The teacher runs on a
//! thread of its own and answers from its cache, from a forward, or from both in one batch; between visits its
//! weights lie in host memory ([`shuttle`]), ordered against the student's work by events ([`order`]). Where they
//! lie is a policy, chosen by hand or by the [`planner`] from measured numbers.

pub mod accelerator;
pub mod cache;
pub mod frozen;
pub mod hints;
pub mod losses;
pub mod model;
pub mod order;
pub mod planner;
pub mod registry;
pub mod shuttle;
pub mod targets;
pub mod teacher;
pub mod visit;
pub mod weights;

pub use cache::{Precision, StoreShape};
pub use model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
pub use registry::RegistryError;
pub use targets::{Per, TargetLayout, TargetName, TargetRows, TargetSpec, Targets};
pub use teacher::{CacheMode, CacheOptions, Residency, StepReport, Summary, Teacher, TeacherError, TeacherOptions};
pub use weights::{Weights, WeightsError};
