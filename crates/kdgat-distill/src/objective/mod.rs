//! The training objectives of the stages, for the epoch loop.

mod gat;
mod graph;
mod graph_vgae;
mod nodes;
mod pretraining;
mod teacher_link;
mod vgae;

use tch::{Kind, Tensor};

use crate::{TargetName, TargetRows};
use kdgat_graph::padding::Mask;
use kdgat_nn::{ModelError, masked};
use kdgat_torch::rows::Rows;
use kdgat_train::objective::{Objective, ObjectiveError};

pub use gat::{GatDistillation, GatObjective, WITH_HINT as GAT_PARTS};
pub use graph::{ALL_PARTS as GRAPH_PARTS, ForceWeights, GraphDistillation, GraphObjective};
pub use graph_vgae::{GraphVgaeObjective, WITH_HINT as GRAPH_VGAE_PARTS};
pub use nodes::{Consistency, IGNORED_LABEL, NodeObjective};
pub use pretraining::{OF_MASKED as MASKED_PARTS, OF_TREES as TREE_PARTS, PretrainingObjective};
pub use teacher_link::TeacherLink;
pub use vgae::{Translation, VgaeDistillation, VgaeObjective, WITH_HINT as VGAE_PARTS};

/// An objective with a connection to its teacher.
pub trait Student: Objective {
    /// The connection; without a teacher it is empty.
    fn teacher(&self) -> &TeacherLink;

    /// The connection, to replace it.
    fn teacher_mut(&mut self) -> &mut TeacherLink;

    /// Turns activation checkpointing on or off: activations are recomputed in the backward pass instead of stored. Not implemented for all
    /// layers; others always store them.
    fn set_checkpointing(&mut self, _on: bool) {}

    /// The reason why training steps cannot be captured as CUDA graphs; `None` if a step on a padded batch is the step on the batch.
    fn capture_obstacle(&self) -> Option<&'static str> {
        None
    }

    /// Returns the connection at the end of the training.
    fn into_teacher(mut self) -> TeacherLink
    where
        Self: Sized,
    {
        std::mem::replace(self.teacher_mut(), TeacherLink::none())
    }
}

/// The names of the parts of a loss: all of `with_last`, or all but the last, which only some losses have.
fn parts(with_last: &'static [&'static str], has_last: bool) -> &'static [&'static str] {
    match has_last {
        true => with_last,
        false => with_last.split_last().map_or(&[], |(_, parts)| parts),
    }
}

/// A NaN scalar for a part of the loss that a run does not have: an empty field in its logs.
fn absent(like: &Tensor) -> Tensor {
    Tensor::full([0i64; 0].as_slice(), f64::NAN, (Kind::Float, like.device()))
}

/// Share of ones in `flags`, `[rows]`, over the rows that are not padding.
fn share(flags: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
    Ok(masked::mean_of_rows(&flags.f_to_kind(Kind::Float)?, real)?)
}

/// The target called `name`.
fn target(targets: &TargetRows, name: TargetName) -> Result<&Rows, ObjectiveError> {
    targets.get(name).ok_or_else(|| format!("the teacher returns no {name}").into())
}
