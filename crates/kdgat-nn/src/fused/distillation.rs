//! How far a VGAE's latent is from its teacher's: `mean|P·z + b − μ|²`, three matrix products forward and next to nothing backward.
//!
//! They need nothing but z, and nobody asks for their results before the gradients of z are added up: the threads of a step's
//! loops do them where they would wait for the next one, beside the decoders, forward and backward, and the loss.
//!
//! The projected latent is never stored: a block's rows are projected, compared with the teacher's and, while they lie
//! in the core's cache, multiplied back into the gradients of z, P and b (see [`super::distances`]). The backward hands
//! those on, scaled where the loss was.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function};
use kdgat_torch::parallel::Pieces;
use kdgat_torch::rows::Rows;
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::distances::Latents;
use super::linear;

/// What the teacher gave, rows are nodes; f32 on the CPU, tensors contiguous. Kept rows are read where they lie.
pub struct Targets {
    /// μ, `[num_nodes, teacher_latent]`
    pub latent: Rows,
    /// `[num_nodes, features]`
    pub reconstruction: Rows,
}

/// Weights of `α·(w_z·mean|P·z + b − μ|² + w_x·mean|x̂ − x̂'|²) + (1 − α)·task`.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// α
    pub alpha: f64,
    /// w_z
    pub latent: f64,
    /// w_x
    pub reconstruction: f64,
}

/// What a loss with distillation is made of, besides the outputs of the student.
pub struct Taught {
    /// The distance of the latents, a scalar with its graph. Its value is 0 until the comparison is over.
    pub latent: Tensor,
    /// x̂', `[num_nodes, features]`
    pub reconstruction: Rows,
    /// Of the parts.
    pub weights: Weights,
}

impl Taught {
    /// Another handle to the same.
    pub fn shallow_clone(&self) -> Result<Self, TchError> {
        let (latent, reconstruction) = (self.latent.shallow_clone(), self.reconstruction.contiguous()?);
        Ok(Self { latent, reconstruction, weights: self.weights })
    }
}

/// Compares z, `[num_nodes, latent]`, with its target, by weight `[teacher_latent, latent]` and bias `[teacher_latent]` of a
/// projection; without one the latents have the same columns. `rest` runs on this thread and may take gradients. When this
/// returns the comparison is over.
pub fn beside<R>(
    latent: &Tensor,
    projection: Option<[&Tensor; 2]>,
    targets: Targets,
    weights: Weights,
    rest: impl FnOnce(&Taught) -> R,
) -> Result<(R, Taught), TchError> {
    let inputs = [latent].into_iter().chain(projection.into_iter().flatten());
    let inputs = inputs.map(Tensor::f_contiguous).collect::<Result<Vec<_>, _>>()?;
    let of_inputs: Vec<&Tensor> = inputs.iter().collect();
    let Targets { latent: target, reconstruction } = targets;
    let values = target.numel().max(1) as f64;
    // What the gradients are multiplied by when the total alone is trained on, and not scaled. Never zero.
    let weight = f64::from((weights.alpha * weights.latent) as f32);
    let factor = of_squares(if weight == 0.0 { 1.0 } else { weight }, values);
    let latents = Latents::new(&inputs, &target, factor)?;
    let mut room = if autograd::is_recorded(&of_inputs)? { Some(latents.room()?) } else { None };
    let gradients = room.as_ref().map(|room| room.each_ref().map(Tensor::shallow_clone));
    let (compared, sum) = latents.distance(room.as_mut(), |pieces| {
        let comparison = Comparison { pieces: pieces.clone(), gradients, factor, values, projection: latents.sizes() };
        let latent = autograd::apply(comparison, &of_inputs)?.pop().unwrap_or_default();
        let taught = Taught { latent, reconstruction, weights };
        Ok::<_, TchError>((rest(&taught), taught))
    })?;
    let (rest, taught) = compared?;
    _ = taught.latent.f_data()?.f_fill_(sum / values)?;
    Ok((rest, taught))
}

/// What the differences are multiplied by, for a gradient by the mean of so many squares.
fn of_squares(of_mean: f64, values: f64) -> f64 {
    2.0 * of_mean / values
}

/// The place of the comparison in the graph: before the decoders, so that its backward comes after theirs.
struct Comparison {
    pieces: Pieces,
    /// Half the gradients by z and, by blocks, by the projection, times `factor`; there when the pieces are finished.
    gradients: Option<[Tensor; 2]>,
    factor: f64,
    /// That are compared.
    values: f64,
    /// Columns of z, and of the target, where there is a projection.
    projection: Option<[usize; 2]>,
}

impl Function for Comparison {
    const NAME: &'static CStr = c"fused comparison of latents";

    fn forward(&mut self, _: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        Ok(Forward { outputs: vec![Tensor::from(0.0_f32)], saved: Vec::new() })
    }

    fn backward(
        &self,
        _: Vec<Tensor>,
        gradients: Vec<Option<Tensor>>,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let [Some(of_mean)] = &gradients[..] else { return Ok(needed.iter().map(|_| None).collect()) };
        let Some([of_latent, shares]) = &self.gradients else {
            return Err(TchError::Shape("no gradients were taken of a comparison".to_owned()));
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
