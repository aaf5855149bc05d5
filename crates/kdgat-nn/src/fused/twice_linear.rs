//! Linear layers that can be differentiated twice, as forces need it, with the products of [`super::linear`].
//!
//! x Wᵀ is the derivative by g of Φ(x, W, g) = Σ g ∘ (x Wᵀ). Those by x and W are products of the same kind, and so are their own derivatives:
//! those of Φ, with the incoming gradient in the place of the argument that Φ was differentiated by.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::product::Start;
use kdgat_torch::simd::rows::Matrix;
use kdgat_torch::view;
use tch::{Kind, TchError, Tensor};

use super::linear::{ROWS, add_share, applied, rows_of_a_share, rows_times, share_elements, sums};
use super::{Blocks, empty, expect_elements, shape};

/// Applies the layer: `[rows, input]` → `[rows, output]`, for a weight `[output, input]` and an optional bias `[output]`, f32 on the CPU.
/// [`super::linear::applies`] tells for which tensors this is fast.
///
/// # Errors
/// Shapes that do not fit, and those of libtorch.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
    derivative(By::G, &[Some(x), Some(weight), bias].into_iter().flatten().collect::<Vec<_>>())
}

/// An argument of Φ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// At W and g.
    X,
    /// At x and g.
    W,
    /// At x and W, plus a bias if there is one.
    G,
}

/// The derivative of Φ by an argument, at the others.
fn derivative(by: By, others: &[&Tensor]) -> Result<Tensor, TchError> {
    let others = others.iter().map(|tensor| tensor.f_contiguous()).collect::<Result<Vec<_>, _>>()?;
    autograd::apply_one(Derivative(by), &others.iter().collect::<Vec<_>>())
}

struct Derivative(By);

impl Function for Derivative {
    const NAME: &'static CStr = c"linear layer, differentiable twice";
    const TWICE: bool = true;

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let output = match (self.0, inputs) {
            (By::G, [x, weight, bias @ ..]) => of_layer(x, weight, bias.first().copied())?,
            (By::X, [weight, g]) => of_rows(weight, g)?,
            (By::W, [x, g]) => of_weight(x, g)?,
            _ => return Err(TchError::Shape(format!("{} arguments of a linear layer", inputs.len()))),
        };
        Ok(Forward::saving_inputs(vec![output], inputs, recorded))
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let (Some(gradient), [first, second, ..]) = (&gradients[0], &saved[..]) else {
            return Ok(needed.iter().map(|_| None).collect());
        };
        let [of_first, of_second] = match self.0 {
            By::G => [(By::X, [second, gradient]), (By::W, [first, gradient])],
            By::X => [(By::W, [gradient, second]), (By::G, [gradient, first])],
            By::W => [(By::X, [gradient, second]), (By::G, [first, gradient])],
        };
        let mut results = Vec::with_capacity(needed.len());
        for ((by, others), &is_needed) in [of_first, of_second].into_iter().zip(needed) {
            results.push(is_needed.then(|| derivative(by, &others)).transpose()?);
        }
        if let Some(&is_needed) = needed.get(2) {
            let over_rows = || gradient.f_sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
            results.push(is_needed.then(over_rows).transpose()?);
        }
        Ok(results)
    }
}

/// x Wᵀ + b, `[rows, output]`.
fn of_layer(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
    let ([_, columns], [outputs, of_weight]) = (shape("x", x)?, shape("weight", weight)?);
    if columns != of_weight {
        return Err(TchError::Shape(format!("x has {columns} columns, the weight is for {of_weight}")));
    }
    if let Some(bias) = bias {
        expect_elements("bias", bias, outputs)?;
    }
    applied(x, weight, bias)
}

/// g W, `[rows, input]`.
fn of_rows(weight: &Tensor, g: &Tensor) -> Result<Tensor, TchError> {
    let ([_, outputs], [of_weight, columns]) = (shape("g", g)?, shape("weight", weight)?);
    if outputs != of_weight {
        return Err(TchError::Shape(format!("g has {outputs} columns, the weight {of_weight} rows")));
    }
    rows_times(g, Matrix::new(view::read("weight", weight)?, columns), Start::Zero)
}

/// gᵀ x, `[output, input]`: sums of shares of the rows, which depend on the shape alone.
fn of_weight(x: &Tensor, g: &Tensor) -> Result<Tensor, TchError> {
    let ([rows, columns], [of_g, outputs]) = (shape("x", x)?, shape("g", g)?);
    if rows != of_g {
        return Err(TchError::Shape(format!("x has {rows} rows, g {of_g}")));
    }
    let (x, g) = (view::read::<f32>("x", x)?, view::read::<f32>("g", g)?);
    let share = share_elements([columns, outputs]);
    let blocks = Blocks::new(rows, columns + outputs, rows_of_a_share([columns, outputs]));
    let mut shares = empty(&[(blocks.count() * share) as i64])?;
    let parts = Parts::new(view::write::<f32>("shares", &mut shares)?, (0..=blocks.count()).map(|block| block * share));
    blocks.for_each(|block| {
        let share = parts.take(block);
        share.fill(0.0);
        let own = blocks.rows(block);
        for first in own.clone().step_by(ROWS) {
            let rows = first..(first + ROWS).min(own.end);
            let [x, g] =
                [(x, columns), (g, outputs)].map(|(values, width)| &values[rows.start * width..rows.end * width]);
            add_share(x, g, [rows.len(), columns, outputs], share);
        }
    });
    drop(parts);
    let [of_weight, _] = sums(view::read("shares", &shares)?, [columns, outputs], 1.0)?;
    Ok(of_weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    /// Values, gradients, and the gradients of a function of a gradient equal those of torch's layer.
    #[test]
    fn values_and_both_derivatives_are_those_of_torch() {
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        for ([rows, columns, outputs], has_bias) in [([700, 20, 33], true), ([5, 128, 64], false), ([1, 3, 1], true)] {
            let (x, weight, bias) = (random(&[rows, columns]), random(&[outputs, columns]), random(&[outputs]));
            let of = |function: &dyn Fn(&Tensor, &Tensor, Option<&Tensor>) -> Tensor| {
                let leaves = [&x, &weight, &bias].map(|leaf| leaf.copy().set_requires_grad(true));
                let [x, weight, bias] = &leaves;
                let values = function(x, weight, has_bias.then_some(bias));
                // The slope by x depends on the weight, and through the activation on all.
                let sum = values.tanh().sum(Kind::Float);
                let slope = autograd::recorded_gradients(&[&sum], &[x]).unwrap().remove(0).unwrap();
                (slope.square().sum(Kind::Float) + &sum).backward();
                let grad = |leaf: &Tensor| if leaf.grad().defined() { leaf.grad() } else { leaf.zeros_like() };
                let gradients = leaves.iter().map(grad);
                [values.detach(), slope.detach()].into_iter().chain(gradients).collect::<Vec<_>>()
            };
            let (found, expected) = (of(&|x, w, b| linear(x, w, b).unwrap()), of(&|x, w, b| x.linear(w, b)));
            for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let scale = 1.0 + expected.abs().max().double_value(&[]);
                let error = (found - expected).abs().max().double_value(&[]) / scale;
                assert!(error < 1e-5, "{rows} rows, part {part}: {error}");
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let of = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        let error = linear(&of(&[4, 3]), &of(&[2, 5]), None).unwrap_err().to_string();
        assert!(error.contains("x has 3 columns, the weight is for 5"), "{error}");
        assert!(linear(&of(&[4, 3]), &of(&[2, 3]), Some(&of(&[3]))).is_err());
    }
}
