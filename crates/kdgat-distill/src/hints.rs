//! Hints: a hidden layer of the teacher that a hidden layer of the student is led towards (FitNets, Romero et al. 2015).

use tch::{Kind, Tensor};

use kdgat_graph::padding::Mask;
use kdgat_nn::attention::Backend;
use kdgat_nn::parameters::Scope;
use kdgat_nn::{ModelError, masked};

use super::losses::Projection;

/// How a student's hidden layer is compared with its teacher's, and how much that counts.
#[derive(Debug)]
pub struct Hints {
    regressor: Projection,
    weight: f64,
}

/// A distillation loss with its hint, scalars.
#[derive(Debug)]
pub struct Hinted {
    /// Mean squared distance of the hidden layers.
    pub hint: Tensor,
    /// The distillation of the outputs and the weighted hint.
    pub kd: Tensor,
    /// α·KD + (1−α)·task.
    pub total: Tensor,
}

impl Hints {
    /// A learned linear map from the student's columns to the teacher's where they differ. It is trained with the student but
    /// is not part of it. `None` for a weight of 0.
    pub fn new(mut scope: Scope, [student, teacher]: [i64; 2], weight: f64) -> Result<Option<Self>, ModelError> {
        if weight == 0.0 {
            return Ok(None);
        }
        let regressor = Projection::new(scope.sub("hint"), student, teacher)?;
        Ok(Some(Self { regressor, weight }))
    }

    /// Mean squared distance of the student's mapped layer `[rows, student columns]` from the teacher's
    /// `[rows, teacher columns]`; rows are nodes for a VGAE, graphs for a GAT. Where the batch is filled up, of its real rows.
    pub fn distance(&self, student: &Tensor, teacher: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
        let mapped = self.regressor.forward(student, Backend::Auto)?.f_to_kind(Kind::Float)?;
        Ok(masked::squared_distance(&mapped, teacher, real)?)
    }

    /// Adds the hint to the distillation of the outputs: `kd` and `total` are without it, `alpha` is α.
    pub fn add_to(&self, hint: Tensor, [kd, total]: [&Tensor; 2], alpha: f64) -> Result<Hinted, ModelError> {
        let weighted = hint.f_mul_scalar(self.weight)?;
        let total = total.f_add(&weighted.f_mul_scalar(alpha)?)?;
        Ok(Hinted { kd: kd.f_add(&weighted)?, total, hint })
    }
}
