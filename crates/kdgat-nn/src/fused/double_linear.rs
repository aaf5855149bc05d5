//! Linear layers in double precision, for scores: single precision would round a difference of logits of 20 by up to 1e-5, and a
//! probability of e⁻²⁰ by as much of its value.

use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{Device, Kind, TchError, Tensor};

use super::{Blocks, by_blocks, shape};

/// Partial sums of a product: they are added at the end, in the same order with any instructions.
const LANES: usize = 8;

/// `x Wᵀ + b`: `[rows, input]` in double precision, weights in single precision → `[rows, output]` in double precision. On the CPU, a row
/// has the same result in any batch.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor, TchError> {
    if x.device() != Device::Cpu {
        return x.f_linear(&weight.f_to_kind(Kind::Double)?, Some(&bias.f_to_kind(Kind::Double)?));
    }
    let single = |tensor: &Tensor| tensor.f_to_kind(Kind::Float)?.f_contiguous();
    let (x, weight, bias) = (x.f_contiguous()?, single(weight)?, single(bias)?);
    let [rows, input] = shape("x", &x)?;
    let [outputs, columns] = shape("weight", &weight)?;
    let bias = view::read::<f32>("bias", &bias)?;
    if columns != input || bias.len() != outputs {
        return Err(TchError::Shape(format!(
            "x has {input} columns, the weight {columns} columns and {outputs} rows, the bias {} elements",
            bias.len()
        )));
    }
    let output = Tensor::f_empty([rows as i64, outputs as i64], (Kind::Double, Device::Cpu))?;
    let (values, weight) = (view::read::<f64>("x", &x)?, view::read::<f32>("weight", &weight)?);
    let blocks = Blocks::new(rows, input.max(outputs), 1);
    by_blocks("output", output, blocks, outputs, |block, output| {
        dispatch(Products { x: &values[blocks.elements(block, input)], input, weight, bias, output });
    })
}

struct Products<'a> {
    /// `[rows, input]`
    x: &'a [f64],
    input: usize,
    /// `[outputs, input]`
    weight: &'a [f32],
    /// `[outputs]`
    bias: &'a [f32],
    /// `[rows, outputs]`
    output: &'a mut [f64],
}

impl Kernel for Products<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let (input, outputs) = (self.input.max(1), self.bias.len().max(1));
        for (row, output) in self.x.chunks_exact(input).zip(self.output.chunks_exact_mut(outputs)) {
            let products = self.weight.chunks_exact(input).zip(self.bias);
            for (output, (weight, &bias)) in output.iter_mut().zip(products) {
                *output = dot(row, weight) + f64::from(bias);
            }
        }
    }
}

/// Σ xᵢ·wᵢ.
#[inline(always)]
fn dot(x: &[f64], weight: &[f32]) -> f64 {
    let mut sums = [0.0f64; LANES];
    let (x, weight) = (x.chunks_exact(LANES), weight.chunks_exact(LANES));
    let rest = x.remainder().iter().zip(weight.remainder());
    let rest: f64 = rest.map(|(&x, &weight)| x * f64::from(weight)).sum();
    for (x, weight) in x.zip(weight) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * f64::from(weight[lane]);
        }
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Equal to torch's, and to the bit the same for a row alone.
        #[test]
        fn products_are_those_of_torch(rows in 1i64..40, input in 1i64..50, outputs in 1i64..20) {
            let options = (Kind::Double, Device::Cpu);
            let x = Tensor::randn([rows, input], options);
            let weight = Tensor::randn([outputs, input], (Kind::Float, Device::Cpu));
            let bias = Tensor::randn([outputs], (Kind::Float, Device::Cpu));
            let found = linear(&x, &weight, &bias).unwrap();
            let expected = x.linear(&weight.to_kind(Kind::Double), Some(&bias.to_kind(Kind::Double)));
            prop_assert!(f64::try_from((&found - expected).abs().max()).unwrap() < 1e-12);
            let alone = linear(&x.narrow(0, rows - 1, 1), &weight, &bias).unwrap();
            prop_assert_eq!(alone, found.narrow(0, rows - 1, 1));
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let tensor = |kind, shape: &[i64]| Tensor::zeros(shape, (kind, Device::Cpu));
        let error = linear(&tensor(Kind::Double, &[2, 3]), &tensor(Kind::Float, &[4, 5]), &tensor(Kind::Float, &[4]));
        assert!(error.unwrap_err().to_string().contains("x has 3 columns, the weight 5 columns and 4 rows"));
    }
}
