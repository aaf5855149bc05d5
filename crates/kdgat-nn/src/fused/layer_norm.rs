//! Layer normalisation (Ba et al. 2016), an activation and dropout.
//!
//! With x̂ = (x − mean) / √(variance + ε) by row, `y = dropout(activation(weight · x̂ + bias))`. The forward reads x and writes y
//! while a row is in a core's nearest cache; the backward reads x, y and the gradient once. Neither x̂ nor a mask is stored.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::dropout::{Dropout, GROUP};
use super::elementwise::{Elementwise, after_dropout};
use super::math::LANES;
use super::norm::EPSILON;
use super::{Blocks, empty, expect_elements, like, rows_of_whole_groups, shape};

/// Applies normalisation, activation and dropout: `[rows, columns]` → the same shape.
pub fn layer_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    activation: Elementwise,
    dropout: Option<Dropout>,
) -> Result<Tensor, TchError> {
    let [_, columns] = shape("x", x)?;
    expect_elements("weight", weight, columns)?;
    expect_elements("bias", bias, columns)?;
    let dropout = dropout.map(|dropout| dropout.of_width(columns));
    let function = LayerNorm { activation, dropout };
    autograd::apply_one(function, &[&x.f_contiguous()?, weight, bias])
}

struct LayerNorm {
    activation: Elementwise,
    dropout: Option<Dropout>,
}

impl Function for LayerNorm {
    const NAME: &'static CStr = c"fused layer norm, activation and dropout";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let [rows, columns] = shape("x", inputs[0])?;
        let x = view::read::<f32>("x", inputs[0])?;
        let (weight, bias) = (view::read::<f32>("weight", inputs[1])?, view::read::<f32>("bias", inputs[2])?);
        let blocks = Blocks::new(rows, columns, rows_of_whole_groups(columns, GROUP));
        let (mut output, mut statistics) = (like(inputs[0])?, empty(&[rows as i64, 2])?);
        let parts = Parts::new(view::write::<f32>("output", &mut output)?, blocks.bounds(columns));
        let of_rows = Parts::new(view::write::<f32>("statistics", &mut statistics)?, blocks.bounds(2));
        blocks.for_each(|block| {
            let elements = blocks.elements(block, columns);
            let first = elements.start;
            let (statistics, output) = (of_rows.take(block), parts.take(block));
            let Self { activation, dropout } = *self;
            dispatch(Normalize { x: &x[elements], weight, bias, activation, dropout, first, statistics, output });
        });
        drop((parts, of_rows));
        let saved = match recorded {
            true => vec![inputs[0].shallow_clone(), output.shallow_clone(), inputs[1].shallow_clone(), statistics],
            false => Vec::new(),
        };
        Ok(Forward { outputs: vec![output], saved })
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        let (Some(gradient), [x, output, weight, statistics]) = (&gradients[0], &saved[..]) else {
            return Ok(vec![None, None, None]);
        };
        let gradient = gradient.f_contiguous()?;
        let [rows, columns] = shape("x", x)?;
        let blocks = Blocks::new(rows, columns, 1);
        let (mut of_x, mut by_block) = (like(x)?, empty(&[blocks.count() as i64, 2, columns as i64])?);
        {
            let (x, output) = (view::read::<f32>("x", x)?, view::read::<f32>("output", output)?);
            let gradient = view::read::<f32>("gradient", &gradient)?;
            let (weight, statistics) = (view::read("weight", weight)?, view::read::<f32>("statistics", statistics)?);
            let scale = self.dropout.map_or(1.0, Dropout::scale);
            let parts = Parts::new(view::write::<f32>("gradient of x", &mut of_x)?, blocks.bounds(columns));
            let bounds = (0..=blocks.count()).map(|block| block * 2 * columns);
            let sums = Parts::new(view::write::<f32>("sums by block", &mut by_block)?, bounds);
            blocks.for_each(|block| {
                let elements = blocks.elements(block, columns);
                let (of_weight, of_bias) = sums.take(block).split_at_mut(columns);
                dispatch(Backward {
                    x: &x[elements.clone()],
                    output: &output[elements.clone()],
                    gradient: &gradient[elements],
                    weight,
                    statistics: &statistics[blocks.elements(block, 2)],
                    activation: self.activation,
                    scale,
                    of_x: parts.take(block),
                    of_weight,
                    of_bias,
                });
            });
        }
        let mut sums = vec![0.0_f64; 2 * columns];
        for of_block in view::read::<f32>("sums by block", &by_block)?.chunks_exact((2 * columns).max(1)) {
            sums.iter_mut().zip(of_block).for_each(|(sum, &value)| *sum += f64::from(value));
        }
        let sums: Vec<f32> = sums.into_iter().map(|sum| sum as f32).collect();
        let (of_weight, of_bias) = sums.split_at(columns);
        Ok(vec![Some(of_x), Some(Tensor::f_from_slice(of_weight)?), Some(Tensor::f_from_slice(of_bias)?)])
    }
}

/// Sum of `term` over the positions of a row: [`LANES`] partial sums, so that the order depends on the length alone.
#[inline(always)]
fn sum_of_row(length: usize, term: impl Fn(usize) -> f32) -> f32 {
    let (mut lanes, whole) = ([0.0_f32; LANES], length / LANES * LANES);
    for first in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(first + lane);
        }
    }
    let rest: f32 = (whole..length).map(&term).sum();
    lanes.iter().sum::<f32>() + rest
}

struct Normalize<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    activation: Elementwise,
    dropout: Option<Dropout>,
    /// Position of the first element in the whole tensor.
    first: usize,
    /// Mean and inverse deviation of each row, `[rows, 2]`.
    statistics: &'a mut [f32],
    output: &'a mut [f32],
}

impl Kernel for Normalize<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.weight.len();
        if columns == 0 {
            return;
        }
        // The mask of the block is drawn into the output.
        if let Some(dropout) = self.dropout {
            dropout.factors::<I>(self.first, self.output);
        }
        let (weight, bias) = (&self.weight[..columns], &self.bias[..columns]);
        let rows = self.output.chunks_exact_mut(columns).zip(self.x.chunks_exact(columns));
        let (statistics, _) = self.statistics.as_chunks_mut::<2>();
        for ((output, x), statistics) in rows.zip(statistics) {
            let mean = sum_of_row(columns, |column| x[column]) / columns as f32;
            let squares = sum_of_row(columns, |column| {
                let distance = x[column] - mean;
                distance * distance
            });
            let inverse = 1.0 / (squares / columns as f32 + EPSILON as f32).sqrt();
            *statistics = [mean, inverse];
            match self.dropout {
                None => {
                    for column in 0..columns {
                        let z = (x[column] - mean) * inverse * weight[column] + bias[column];
                        output[column] = self.activation.of::<I>(z) + 0.0;
                    }
                }
                Some(_) => {
                    for column in 0..columns {
                        let z = (x[column] - mean) * inverse * weight[column] + bias[column];
                        output[column] = after_dropout(self.activation.of::<I>(z), output[column]);
                    }
                }
            }
        }
    }
}

struct Backward<'a> {
    x: &'a [f32],
    output: &'a [f32],
    gradient: &'a [f32],
    weight: &'a [f32],
    statistics: &'a [f32],
    activation: Elementwise,
    scale: f32,
    of_x: &'a mut [f32],
    of_weight: &'a mut [f32],
    of_bias: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    /// With g the gradient before the activation, times the weight: `inverse · (g − mean of g − x̂ · mean of g·x̂)`.
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.weight.len();
        self.of_weight.fill(0.0);
        self.of_bias.fill(0.0);
        if columns == 0 {
            return;
        }
        let (weight, of_weight) = (&self.weight[..columns], &mut self.of_weight[..columns]);
        let of_bias = &mut self.of_bias[..columns];
        let rows = self.x.chunks_exact(columns).zip(self.output.chunks_exact(columns));
        let rows = rows.zip(self.gradient.chunks_exact(columns)).zip(self.of_x.chunks_exact_mut(columns));
        let (statistics, _) = self.statistics.as_chunks::<2>();
        for ((((x, output), gradient), of_x), &[mean, inverse]) in rows.zip(statistics) {
            for column in 0..columns {
                let of_z = self.activation.gradient(gradient[column], output[column], self.scale);
                of_weight[column] += of_z * ((x[column] - mean) * inverse);
                of_bias[column] += of_z;
                of_x[column] = of_z * weight[column];
            }
            let share = 1.0 / columns as f32;
            let constant = share * sum_of_row(columns, |column| of_x[column]);
            let slope = share * sum_of_row(columns, |column| of_x[column] * ((x[column] - mean) * inverse));
            for column in 0..columns {
                let normal = (x[column] - mean) * inverse;
                of_x[column] = inverse * (of_x[column] - constant - normal * slope);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::test_graphs::{numbers, relative_difference};

    /// Result and gradients with respect to x, weight and bias.
    fn results(rows: i64, columns: i64, apply: impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor) -> Vec<Tensor> {
        let inputs = [numbers(&[rows, columns], 1) * 3.0 + 1.0, numbers(&[columns], 2), numbers(&[columns], 3)];
        let inputs = inputs.map(|input| input.set_requires_grad(true));
        let y = apply(&inputs[0], &inputs[1], &inputs[2]);
        (&y * numbers(&[rows, columns], 4)).sum(Kind::Float).backward();
        [y.detach()].into_iter().chain(inputs.iter().map(Tensor::grad)).collect()
    }

    #[test]
    fn results_and_gradients_are_torchs() {
        for (rows, columns) in [(1, 2), (7, 5), (200, 64), (33, 129), (3000, 16)] {
            for activation in [Elementwise::Identity, Elementwise::Relu, Elementwise::Elu, Elementwise::Sigmoid] {
                for dropout in [None, Dropout::new(0.3, 9)] {
                    let found = results(rows, columns, |x, weight, bias| {
                        layer_norm(x, weight, bias, activation, dropout).unwrap()
                    });
                    let ones = Tensor::ones([rows, columns], tch::kind::FLOAT_CPU);
                    let mask = super::super::elementwise::with_dropout(&ones, Elementwise::Identity, dropout).unwrap();
                    let expected = results(rows, columns, |x, weight, bias| {
                        let z = x.layer_norm([columns], Some(weight), Some(bias), EPSILON, true);
                        let active = match activation {
                            Elementwise::Identity => z,
                            Elementwise::Relu => z.relu(),
                            Elementwise::Elu => z.elu(),
                            Elementwise::Sigmoid => z.sigmoid(),
                        };
                        active * &mask
                    });
                    for (found, expected) in found.iter().zip(&expected) {
                        let difference = relative_difference(found, expected);
                        assert!(difference < 1e-5, "{rows} x {columns}, {activation:?}: {difference:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_of_threads_change_no_bit() {
        let threads = tch::get_num_threads();
        let found = [1, 2, 4].map(|count| {
            tch::set_num_threads(count);
            results(3000, 50, |x, weight, bias| {
                layer_norm(x, weight, bias, Elementwise::Elu, Dropout::new(0.2, 1)).unwrap()
            })
        });
        tch::set_num_threads(threads);
        for other in &found[1..] {
            assert!(found[0].iter().zip(other).all(|(one, other)| one.equal(other)));
        }
    }
}
