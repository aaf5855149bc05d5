//! Parts of a layer of representations: linear map, gate, layer norm, and functions of an edge's direction and length.

use tch::{Kind, TchError, Tensor};

use super::representations::{Irrep, Irreps, Part};
use crate::ModelError;
use crate::attention::Backend;
use crate::fused::smooth_activation::Smooth;
use crate::layers::Mode;
use crate::parameters::{Init, Scope};
use crate::space::dense::{activated, of_mode, product};

/// Added to a mean square before its root.
const EPSILON: f64 = 1e-5;

/// Factors that give activations of a standard normal variable a mean square of 1, as e3nn has drawn them.
const OF_SILU: f64 = 1.679_176_792_398_941_8;
const OF_SIGMOID: f64 = 1.846_705_534_215_476_5;
const OF_TANH: f64 = 1.593_733_447_259_269_5;

/// The columns of a part as `[nodes, components, count]`.
fn part_of(x: &Tensor, (first, part): (usize, Part)) -> Result<Tensor, TchError> {
    let (components, count) = (part.irrep.components() as i64, part.count as i64);
    x.f_narrow(1, first as i64, components * count)?.f_reshape([-1, components, count])
}

/// A linear map of each representation, without a bias: e3nn's `Linear`.
#[derive(Debug)]
pub struct IrrepsLinear {
    /// The maps one after the other, each `[inputs, outputs]`.
    weight: Tensor,
    input: Irreps,
    output: Irreps,
    kernel: Backend,
}

impl IrrepsLinear {
    /// Creates a map.
    pub fn new(mut scope: Scope, [input, output]: [&Irreps; 2], kernel: Backend) -> Result<Self, ModelError> {
        let count: usize = input.parts().map(|(_, part)| part.count * output.count_of(part.irrep)).sum();
        let weight = scope.parameter("weight", &[count as i64], Init::Normal)?;
        Ok(Self { weight, input: input.clone(), output: output.clone(), kernel })
    }

    /// Maps the rows of the nodes, `[nodes, inputs]` → `[nodes, outputs]`; representations that the input lacks are 0.
    pub fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor, ModelError> {
        let weight = of_mode(&self.weight, mode);
        let mut first_weights = Vec::new();
        let mut next = 0;
        for (first, part) in self.input.parts() {
            first_weights.push((part.irrep, first, part, next));
            next += part.count * self.output.count_of(part.irrep);
        }
        let mut columns = Vec::new();
        for (_, part) in self.output.parts() {
            let found = first_weights.iter().find(|(irrep, ..)| *irrep == part.irrep);
            let Some(&(_, first, input, first_weight)) = found else {
                let size = [x.size()[0], part.columns() as i64];
                columns.push(Tensor::f_zeros(size, (x.f_kind()?, x.device()))?);
                continue;
            };
            let (inputs, outputs) = (input.count as i64, part.count as i64);
            let weight = weight.f_narrow(0, first_weight as i64, inputs * outputs)?.f_view([inputs, outputs])?;
            let weight = weight.f_transpose(0, 1)?.f_mul_scalar(1.0 / (inputs as f64).sqrt())?.f_contiguous()?;
            let rows = part_of(x, (first, input))?.f_reshape([-1, inputs])?.f_contiguous()?;
            let rows = product(&rows, &weight, None, self.kernel)?;
            columns.push(rows.f_view([-1, part.columns() as i64])?);
        }
        Ok(Tensor::f_cat(&columns, 1)?)
    }
}

/// The nonlinearity of representations: e3nn's `Gate`. Scalars pass SiLU, those that mirroring turns around tanh; each other feature is
/// multiplied by the sigmoid of a scalar of its own.
#[derive(Debug)]
pub struct Gate {
    output: Irreps,
    kernel: Backend,
}

impl Gate {
    /// A gate for these representations.
    pub fn new(output: &Irreps, kernel: Backend) -> Self {
        Self { output: output.clone(), kernel }
    }

    /// The gate's input: the representations, with a scalar more for each feature above degree 0.
    pub fn input(&self) -> Irreps {
        let gates = Part { count: self.num_gates(), irrep: Irrep { degree: 0, odd: false } };
        Irreps::new(self.output.parts().map(|(_, part)| part).chain([gates]))
    }

    fn num_gates(&self) -> usize {
        self.output.parts().filter(|(_, part)| part.irrep.degree > 0).map(|(_, part)| part.count).sum()
    }

    /// Applies the gate to the rows of the nodes.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let input = self.input();
        let scalars = self.output.num_scalars() as i64;
        let of = |x: &Tensor, activation| activated(x, activation, self.kernel);
        let mut gates = None;
        let mut next_gate = 0;
        let mut columns = Vec::new();
        for (first, part) in input.parts() {
            let rows = part_of(x, (first, part))?;
            let gated = match part.irrep {
                irrep if irrep.is_invariant() => {
                    let sigmoid = of(&rows.f_narrow(2, scalars, self.num_gates() as i64)?, Smooth::Sigmoid)?;
                    gates = Some(sigmoid.f_mul_scalar(OF_SIGMOID)?);
                    of(&rows.f_narrow(2, 0, scalars)?, Smooth::Silu)?.f_mul_scalar(OF_SILU)?
                }
                // tanh x = 2 σ(2 x) − 1.
                irrep if irrep.degree == 0 => {
                    let sigmoid = of(&rows.f_mul_scalar(2.0)?, Smooth::Sigmoid)?;
                    sigmoid.f_mul_scalar(2.0 * OF_TANH)?.f_sub_scalar(OF_TANH)?
                }
                _ => {
                    let count = part.count as i64;
                    let gate = gates.as_ref().map(|gates| gates.f_narrow(2, next_gate, count)).transpose()?;
                    next_gate += count;
                    gate.map_or(Ok(rows.shallow_clone()), |gate| rows.f_mul(&gate))?
                }
            };
            columns.push(gated.f_flatten(1, 2)?);
        }
        Ok(Tensor::f_cat(&columns, 1)?)
    }
}

/// Layer norm of representations (Liao & Smidt 2023, "Equiformer"): scalars that mirroring leaves have mean 0 and variance 1, the others of a
/// part are divided by the root of their mean square; times a weight for each feature, plus a bias for the former.
#[derive(Debug)]
pub struct IrrepsNorm {
    irreps: Irreps,
    /// `[features]`
    weight: Tensor,
    /// `[scalars]`
    bias: Tensor,
}

impl IrrepsNorm {
    /// Creates a layer norm.
    pub fn new(mut scope: Scope, irreps: &Irreps) -> Result<Self, ModelError> {
        Ok(Self {
            irreps: irreps.clone(),
            weight: scope.parameter("weight", &[irreps.count() as i64], Init::Constant(1.0))?,
            bias: scope.parameter("bias", &[irreps.num_scalars() as i64], Init::Constant(0.0))?,
        })
    }

    /// Applies it to the rows of the nodes.
    pub fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor, ModelError> {
        let (weight, bias) = (of_mode(&self.weight, mode), of_mode(&self.bias, mode));
        let mut columns = Vec::new();
        let mut next = 0;
        for (first, part) in self.irreps.parts() {
            let rows = part_of(x, (first, part))?;
            let weight = weight.f_narrow(0, next, part.count as i64)?;
            next += part.count as i64;
            let is_invariant = part.irrep.is_invariant();
            let rows = match is_invariant {
                true => rows.f_sub(&rows.f_mean_dim([2i64].as_slice(), true, None::<Kind>)?)?,
                false => rows,
            };
            let squares = rows.f_square()?.f_mean_dim([1i64, 2].as_slice(), true, None::<Kind>)?;
            let normed = rows.f_mul(&squares.f_add_scalar(EPSILON)?.f_rsqrt()?)?.f_mul(&weight)?;
            let normed = if is_invariant { normed.f_add(&bias)? } else { normed };
            columns.push(normed.f_flatten(1, 2)?);
        }
        Ok(Tensor::f_cat(&columns, 1)?)
    }
}

/// Numbers that turning and mirroring leave: scalars as they are, lengths of the others, `[nodes, features]`.
pub fn invariants(irreps: &Irreps, x: &Tensor) -> Result<Tensor, TchError> {
    // A length has no derivative at 0.
    const LEAST: f64 = 1e-8;
    let mut columns = Vec::new();
    for (first, part) in irreps.parts() {
        let rows = part_of(x, (first, part))?;
        columns.push(match part.irrep.is_invariant() {
            true => rows.f_squeeze_dim(1)?,
            false => {
                let squares = rows.f_square()?.f_sum_dim_intlist([1i64].as_slice(), false, None::<Kind>)?;
                squares.f_add_scalar(LEAST)?.f_sqrt()?
            }
        });
    }
    Tensor::f_cat(&columns, 1)
}

/// Real spherical harmonics of degrees 0 to 2 with a mean square of 1: unit vectors `[lines, 3]` → `[lines, 9]`, in e3nn's order.
pub fn harmonics(directions: &Tensor) -> Result<Tensor, TchError> {
    let axis = |axis: i64| directions.f_narrow(1, axis, 1);
    let [x, y, z] = [axis(0)?, axis(1)?, axis(2)?];
    let times = |left: &Tensor, right: &Tensor, factor: f64| left.f_mul(right)?.f_mul_scalar(factor);
    let [root_3, root_5, root_15] = [3.0_f64, 5.0, 15.0].map(f64::sqrt);
    let sides = x.f_square()?.f_add(&z.f_square()?)?.f_mul_scalar(0.5)?;
    let columns = [
        x.f_ones_like()?,
        directions.f_mul_scalar(root_3)?,
        times(&x, &z, root_15)?,
        times(&x, &y, root_15)?,
        y.f_square()?.f_sub(&sides)?.f_mul_scalar(root_5)?,
        times(&y, &z, root_15)?,
        z.f_square()?.f_sub(&x.f_square()?)?.f_mul_scalar(root_15 / 2.0)?,
    ];
    Tensor::f_cat(&columns, 1)
}

/// 1 − (p+1)(p+2)/2 r^p + p(p+2) r^(p+1) − p(p+1)/2 r^(p+2) with p = 6 and r = d / cutoff, and 0 from the cutoff on (Klicpera et al. 2020,
/// "Directional Message Passing for Molecular Graphs"): distances `[lines, 1]` → the same shape.
pub fn polynomial_cutoff(cutoff: f64, distances: &Tensor) -> Result<Tensor, TchError> {
    let ratio = distances.f_mul_scalar(1.0 / cutoff)?;
    let sixth = ratio.f_square()?.f_mul(&ratio)?.f_square()?;
    let rest = ratio.f_mul_scalar(-21.0)?.f_add_scalar(48.0)?.f_mul(&ratio)?.f_add_scalar(-28.0)?;
    let is_near = distances.f_lt(cutoff)?.f_to_kind(Kind::Float)?;
    sixth.f_mul(&rest)?.f_add_scalar(1.0)?.f_mul(&is_near)
}
