//! The losses of forces, of a network in space that gives them: each task and distillation loss of values is then
//!
//! ```text
//! w_E·(squared distance of outputs) + w_F·(mean squared distance of forces, over nodes and axes)
//! ```
//!
//! with forces on the scale of the standardised outputs, whose gradient they are.

use kdgat_graph::Batch;
use kdgat_nn::masked;
use kdgat_train::objective::{ObjectiveError, Part};
use tch::{Kind, Tensor};

use super::{GraphObjective, Scales};

/// Weights of the losses of energies and of forces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ForceWeights {
    /// w_E, of the outputs.
    pub energies: f64,
    /// w_F, of the forces.
    pub forces: f64,
}

impl GraphObjective {
    /// Share of a part in the nodes of the whole batch, relative to its share in the rows over which losses are means: the factor of means over
    /// nodes among these losses. 0 for a part without such rows.
    pub(super) fn relative_nodes(&self, part: &Part) -> f64 {
        let nodes = (part.nodes.end - part.nodes.start) as f64 / self.whole.nodes.max(1.0);
        let rows = self.loss_rows(part) / self.whole.rows.max(1.0);
        if rows > 0.0 { nodes / rows } else { 0.0 }
    }

    /// A loss of outputs with that of forces, if the network gives any; those compared are on the same scale.
    pub(super) fn with_forces(
        &self,
        of_outputs: Tensor,
        [mine, theirs]: [Option<&Tensor>; 2],
        part: &Part,
    ) -> Result<Tensor, ObjectiveError> {
        let ForceWeights { energies, forces } = self.force_weights;
        let Some(mine) = mine else { return Ok(of_outputs) };
        let of_outputs = of_outputs.f_mul_scalar(energies)?;
        let Some(theirs) = theirs else { return Ok(of_outputs) };
        let distance =
            masked::squared_distance(mine, theirs, None)?.f_mul_scalar(forces * self.relative_nodes(part))?;
        Ok(of_outputs.f_add(&distance)?)
    }

    /// The targets of forces on the scale of the outputs, for a network that gives forces.
    pub(super) fn true_forces(&self, batch: &Batch) -> Result<Option<Tensor>, ObjectiveError> {
        if !self.model.config().gives_forces() {
            return Ok(None);
        }
        let forces = batch.space.as_ref().and_then(|space| space.forces.as_ref()).ok_or("the batch has no forces")?;
        Ok(Some(match &self.scales {
            Some(scales) => forces.f_div(&scales.own.deviations().f_to_kind(Kind::Float)?)?,
            None => forces.shallow_clone(),
        }))
    }

    /// A teacher's forces on the student's scale.
    pub(super) fn taught_forces(&self, forces: Tensor) -> Result<Tensor, ObjectiveError> {
        Ok(match &self.scales {
            Some(Scales { own, teacher: Some(teacher) }) => {
                let ratio = teacher.deviations().f_div(own.deviations())?.f_to_kind(Kind::Float)?;
                forces.f_mul(&ratio)?
            }
            _ => forces,
        })
    }

    /// Mean absolute error of the forces over nodes and axes, in the units of the data.
    pub(super) fn force_error(&self, forces: &Tensor, truth: &Tensor, part: &Part) -> Result<Tensor, ObjectiveError> {
        let errors = forces.detach().f_sub(truth)?.f_abs()?;
        let errors = match &self.scales {
            Some(scales) => errors.f_mul(&scales.own.deviations().f_to_kind(Kind::Float)?)?,
            None => errors,
        };
        Ok(errors.f_mean(Kind::Float)?.f_mul_scalar(self.relative_nodes(part))?)
    }
}
