//! The losses of the stages, as the epoch loop asks for them.

mod gat;
mod teacher_link;
mod vgae;

use tch::{Kind, Tensor};

use crate::distill::{TargetName, TargetRows};
use crate::torch::rows::Rows;
use crate::train::objective::{Objective, ObjectiveError};

pub use gat::{GatDistillation, GatObjective, WITH_HINT as GAT_PARTS};
pub use teacher_link::TeacherLink;
pub use vgae::{Translation, VgaeDistillation, VgaeObjective, WITH_HINT as VGAE_PARTS};

/// An objective with a line to its teacher.
pub trait Student: Objective {
    /// The line; empty for a model that learns alone.
    fn teacher(&self) -> &TeacherLink;

    /// Whether activations are computed again in the backward pass instead of being kept.
    fn set_checkpointing(&mut self, on: bool);

    /// Gives the line up, at the end of the training.
    fn into_teacher(self) -> TeacherLink;
}

/// The scalar that stands for a part of the loss that a run does not have: an empty field in its logs.
fn absent(like: &Tensor) -> Tensor {
    Tensor::full([0i64; 0].as_slice(), f64::NAN, (Kind::Float, like.device()))
}

/// The target of that name.
fn target(targets: &TargetRows, name: TargetName) -> Result<&Rows, ObjectiveError> {
    targets.get(name).ok_or_else(|| format!("the teacher gives no {name}").into())
}
