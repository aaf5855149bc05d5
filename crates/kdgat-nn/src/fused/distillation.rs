//! The distance of a VGAE's latent from its teacher's, `mean|P·z + b − μ|²`: three matrix products forward and almost
//! nothing backward.
//!
//! The products need nothing but z, and nobody needs their results before the gradients of z are added up. So the
//! threads of a step's loops compute them where they would otherwise wait for the next loop: beside the decoders,
//! forward and backward, and the loss.
//!
//! The projected latent is never stored: a block's rows are projected, compared with the teacher's and, while they are
//! in the core's cache, multiplied back into the gradients with respect to z, P and b (see [`super::distances`]). The
//! backward passes those on, scaled if the loss was.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Pieces;
use kdgat_torch::rows::Rows;
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::distances::Latents;
use super::linear;

/// Outputs of the teacher, one row per node; f32 on the CPU, tensors contiguous. Cached rows are read in place.
pub struct Targets {
    /// μ, `[num_nodes, teacher_latent]`
    pub latent: Rows,
    /// x̂', `[num_nodes, features]`
    pub reconstruction: Rows,
}

/// Derivatives of the training loss with respect to its terms, of which it is a linear function.
#[derive(Clone, Copy, Debug)]
pub struct Derivatives {
    /// With respect to the task loss.
    pub task: f64,
    /// With respect to the distance of the latents, `mean|P·z + b − μ|²`.
    pub latent: f64,
    /// With respect to the distance of the reconstructions, `mean|x̂ − x̂'|²`.
    pub reconstruction: f64,
}

/// Terms and weights of a loss with distillation, besides the outputs of the student.
pub struct Taught {
    /// The distance of the latents, a scalar with its graph. Its value is 0 until the comparison is done.
    pub latent: Tensor,
    /// x̂', `[num_nodes, features]`
    pub reconstruction: Rows,
    /// Derivatives of the training loss with respect to its terms.
    pub derivatives: Derivatives,
}

impl Taught {
    /// Another handle to the same data.
    pub fn shallow_clone(&self) -> Result<Self, TchError> {
        let (latent, reconstruction) = (self.latent.shallow_clone(), self.reconstruction.contiguous()?);
        Ok(Self { latent, reconstruction, derivatives: self.derivatives })
    }
}

/// Compares z, `[num_nodes, latent]`, with its target, through a projection of weight `[teacher_latent, latent]` and
/// bias `[teacher_latent]`; without a projection, the latents must have the same number of columns. `rest` runs on this
/// thread and may compute gradients. The comparison is done when this returns.
pub fn beside<R>(
    latent: &Tensor,
    projection: Option<[&Tensor; 2]>,
    targets: Targets,
    derivatives: Derivatives,
    rest: impl FnOnce(&Taught) -> R,
) -> Result<(R, Taught), TchError> {
    let inputs = [latent].into_iter().chain(projection.into_iter().flatten());
    let inputs = inputs.map(Tensor::f_contiguous).collect::<Result<Vec<_>, _>>()?;
    let of_inputs: Vec<&Tensor> = inputs.iter().collect();
    let Targets { latent: target, reconstruction } = targets;
    let values = target.numel().max(1) as f64;
    // The factor of the gradients if the total alone is trained on, without scaling. Never zero.
    let weight = f64::from(derivatives.latent as f32);
    let factor = of_squares(if weight == 0.0 { 1.0 } else { weight }, values);
    let latents = Latents::new(&inputs, &target, factor)?;
    let mut room = if autograd::is_recorded(&of_inputs)? { Some(latents.room()?) } else { None };
    let gradients = room.as_ref().map(|room| room.each_ref().map(Tensor::shallow_clone));
    let (compared, sum) = latents.distance(room.as_mut(), |pieces| {
        let comparison = Comparison { pieces: pieces.clone(), gradients, factor, values, projection: latents.sizes() };
        let latent = autograd::apply(comparison, &of_inputs)?.pop().unwrap_or_default();
        let taught = Taught { latent, reconstruction, derivatives };
        Ok::<_, TchError>((rest(&taught), taught))
    })?;
    let (rest, taught) = compared?;
    _ = taught.latent.f_data()?.f_fill_(sum / values)?;
    Ok((rest, taught))
}

/// Factor of the differences, for the gradient of a mean of `values` squares.
fn of_squares(of_mean: f64, values: f64) -> f64 {
    2.0 * of_mean / values
}

/// The comparison's node in the graph. It is recorded before the decoders, so that its backward comes after theirs.
struct Comparison {
    pieces: Pieces,
    /// Half the gradients with respect to z and, by block, the projection, times `factor`; complete when the pieces are
    /// finished.
    gradients: Option<[Tensor; 2]>,
    factor: f64,
    /// Number of compared values.
    values: f64,
    /// Columns of z and of the target, if there is a projection.
    projection: Option<[usize; 2]>,
}

impl Function for Comparison {
    const NAME: &'static CStr = c"fused comparison of latents";

    fn forward(&mut self, _: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        Ok(Forward { outputs: vec![Tensor::from(0.0_f32)], saved: Vec::new() })
    }

    fn backward(&self, _: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let [Some(of_mean)] = &gradients[..] else { return Ok(needed.iter().map(|_| None).collect()) };
        let Some([of_latent, shares]) = &self.gradients else {
            return Err(TchError::Shape("a comparison of latents has no gradients".to_owned()));
        };
        let factor = of_squares(of_mean.f_double_value(&[])?, self.values);
        self.pieces.finish();
        let mut results = vec![of_latent.shallow_clone()];
        if let Some(sizes) = self.projection {
            let shares = view::read("shares of the gradient", shares)?;
            results.extend(linear::sums(shares, sizes, self.factor as f32)?);
        }
        let scaled = |gradient: Tensor| match factor == self.factor {
            true => Ok(gradient),
            false => gradient.f_mul_scalar(factor / self.factor),
        };
        results.into_iter().map(|gradient| scaled(gradient).map(Some)).collect()
    }
}
