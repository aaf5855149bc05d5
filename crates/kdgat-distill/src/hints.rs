//! Hints: a hidden layer of the student learns to predict a hidden layer of the teacher (FitNets, Romero et al. 2015).

use tch::{Kind, TchError, Tensor};

use kdgat_graph::padding::Mask;
use kdgat_nn::attention::Backend;
use kdgat_nn::parameters::{Init, Scope};
use kdgat_nn::{ModelError, masked};

use super::losses::Projection;

/// Comparison of a student's hidden layer with its teacher's, and its weight in KD.
#[derive(Debug)]
pub struct Hints {
    regressor: Projection,
    weight: f64,
}

/// The distance of the hidden layers of a batch, a term of KD.
#[derive(Debug)]
pub struct Hint {
    /// Mean squared distance, a scalar.
    pub distance: Tensor,
    weight: f64,
}

impl Hint {
    /// Computes w_h·distance, which is added to KD.
    pub fn weighted(&self) -> Result<Tensor, TchError> {
        self.distance.f_mul_scalar(self.weight)
    }

    /// The distance times a factor.
    pub fn times(self, factor: f64) -> Result<Self, TchError> {
        Ok(Self { distance: self.distance.f_mul_scalar(factor)?, ..self })
    }

    /// The sum with another distance of the same weight.
    pub fn with(self, other: Self) -> Result<Self, TchError> {
        Ok(Self { distance: self.distance.f_add(&other.distance)?, ..self })
    }
}

/// Comparison of the vectors of a student's nodes with those of its teacher's, and its weight in KD (Ekström Kelvinius et al. 2023,
/// "Accelerating Molecular Graph Neural Networks via Knowledge Distillation").
#[derive(Debug)]
pub struct VectorHints {
    /// `[teacher columns, student columns]`, without a bias: the mapped vectors turn with the graph.
    map: Tensor,
    weight: f64,
}

impl VectorHints {
    /// Creates a learned map from the student's columns to the teacher's. It is trained with the student but is not part of it. `None` for a
    /// weight of 0.
    pub fn new(mut scope: Scope, [student, teacher]: [i64; 2], weight: f64) -> Result<Option<Self>, ModelError> {
        if weight == 0.0 {
            return Ok(None);
        }
        let shape = [teacher, student];
        let map = scope.sub("hint").sub("vectors").parameter("weight", &shape, Init::Linear { fan_in: student })?;
        Ok(Some(Self { map, weight }))
    }

    /// Compares the student's mapped vectors `[num_nodes, 3, student columns]` with the teacher's `[num_nodes, 3 * teacher columns]`.
    pub fn compare(&self, student: &Tensor, teacher: &Tensor) -> Result<Hint, ModelError> {
        let mapped = student.f_matmul(&self.map.f_transpose(0, 1)?)?.f_to_kind(Kind::Float)?;
        let distance = masked::squared_distance(&mapped.f_flatten(1, 2)?, teacher, None)?;
        Ok(Hint { distance, weight: self.weight })
    }
}

impl Hints {
    /// Creates a learned linear map from the student's columns to the teacher's if they differ. It is trained with the student but
    /// is not part of it. `None` for a weight of 0.
    pub fn new(mut scope: Scope, [student, teacher]: [i64; 2], weight: f64) -> Result<Option<Self>, ModelError> {
        if weight == 0.0 {
            return Ok(None);
        }
        let regressor = Projection::new(scope.sub("hint"), student, teacher)?;
        Ok(Some(Self { regressor, weight }))
    }

    /// Compares the student's mapped layer `[rows, student columns]` with the teacher's `[rows, teacher columns]`; rows are nodes
    /// for a VGAE, graphs for a GAT. `real` selects the rows that are not padding.
    pub fn compare(&self, student: &Tensor, teacher: &Tensor, real: Option<&Mask>) -> Result<Hint, ModelError> {
        let mapped = self.regressor.forward(student, Backend::Auto)?.f_to_kind(Kind::Float)?;
        Ok(Hint { distance: masked::squared_distance(&mapped, teacher, real)?, weight: self.weight })
    }
}
