//! Rows of one graph's nodes that several processes compute: each has the rows of its own nodes, and its layers read those of all (the
//! one-dimensional partition of CAGNET, Tripathy, Yelick & Buluç 2020).

use std::ffi::CStr;
use std::sync::Arc;

use kdgat_graph::OwnRows;
use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use tch::{Kind, TchError, Tensor};

use super::ModelError;
use super::shared_statistics::{self, Sums};

/// The rows of all nodes, `[nodes, columns]`, from those of this process's nodes, `[own, columns]`: its own first, then the others in the order of
/// the nodes. Differentiable: the gradient of a row is the sum of those of all processes.
///
/// # Errors
/// No processes, one that ended or failed, or those of libtorch.
pub fn own_first(rows: &Tensor, own: OwnRows) -> Result<Tensor, ModelError> {
    gathered(rows, own, true)
}

/// The rows of all nodes in their order, like [`own_first`].
///
/// # Errors
/// Those of [`own_first`].
pub fn in_order(rows: &Tensor, own: OwnRows) -> Result<Tensor, ModelError> {
    gathered(rows, own, false)
}

fn gathered(rows: &Tensor, own: OwnRows, own_first: bool) -> Result<Tensor, ModelError> {
    let Some(sums) = shared_statistics::current() else {
        return Err(TchError::Torch("rows of several processes are exchanged in their steps alone".to_owned()).into());
    };
    Ok(autograd::apply_one(Gather { sums, own, own_first }, &[rows])?)
}

struct Gather {
    sums: Arc<dyn Sums>,
    own: OwnRows,
    own_first: bool,
}

impl Function for Gather {
    const NAME: &'static CStr = c"rows of all processes";

    fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        let (rows, OwnRows { first, count, stride, nodes, .. }) = (inputs[0], self.own);
        let columns = rows.size()[1];
        let mut all = Tensor::f_zeros([nodes, columns], (Kind::Float, rows.device()))?;
        all.f_narrow(0, first, count)?.f_copy_(rows)?;
        self.sums.gather(&mut all, (stride * columns) as usize)?;
        let all = match self.own_first && first > 0 {
            true => Tensor::f_cat(
                &[all.f_narrow(0, first, count)?, all.f_narrow(0, 0, first)?, after(&all, first + count)?],
                0,
            )?,
            false => all,
        };
        Ok(Forward { outputs: vec![all.f_to_kind(rows.f_kind()?)?], saved: Vec::new() })
    }

    fn backward(&self, _: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        let OwnRows { first, count, .. } = self.own;
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let wide = gradient.f_to_kind(Kind::Float)?;
        let mut all = match self.own_first && first > 0 {
            true => Tensor::f_cat(
                &[wide.f_narrow(0, count, first)?, wide.f_narrow(0, 0, count)?, after(&wide, first + count)?],
                0,
            )?,
            // The sum is made in place.
            false => wide.f_contiguous()?.f_detach_copy()?,
        };
        self.sums.sum(&mut all)?;
        Ok(vec![Some(all.f_narrow(0, first, count)?.f_to_kind(gradient.f_kind()?)?)])
    }
}

/// The rows from `start` on.
fn after(rows: &Tensor, start: i64) -> Result<Tensor, TchError> {
    rows.f_narrow(0, start, rows.size()[0] - start)
}
