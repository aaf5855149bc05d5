//! A small linear layer applied to a block of rows, compared with given rows, and multiplied back, all while the block
//! lies in the core's cache.

use super::math::{self, LANES};
use crate::torch::simd::{Instructions, Kernel};

/// Rows that are worked on together, so that what is loaded of the weight serves all of them.
const TILE: usize = 4;

/// A weight `[outputs, inputs]` and a bias `[outputs]`, copied so that rows of either direction fill whole vectors.
pub(super) struct Padded {
    inputs: usize,
    outputs: usize,
    /// `[inputs, padded outputs]`
    transposed: Vec<f32>,
    /// `[outputs, padded inputs]`
    weight: Vec<f32>,
    /// `[padded outputs]`
    bias: Vec<f32>,
}

impl Padded {
    pub(super) fn new(weight: &[f32], bias: &[f32], inputs: usize) -> Self {
        let outputs = bias.len();
        let (wide_inputs, wide_outputs) = (inputs.next_multiple_of(LANES), outputs.next_multiple_of(LANES));
        let mut padded = Self {
            inputs,
            outputs,
            transposed: vec![0.0; inputs * wide_outputs],
            weight: vec![0.0; outputs * wide_inputs],
            bias: vec![0.0; wide_outputs],
        };
        padded.bias[..outputs].copy_from_slice(bias);
        for output in 0..outputs {
            for input in 0..inputs {
                let value = weight[output * inputs + input];
                padded.transposed[input * wide_outputs + output] = value;
                padded.weight[output * wide_inputs + input] = value;
            }
        }
        padded
    }

    fn wide_inputs(&self) -> usize {
        self.inputs.next_multiple_of(LANES)
    }

    fn wide_outputs(&self) -> usize {
        self.bias.len()
    }

    /// Numbers of a block's gradients by weight and bias.
    pub(super) fn gradient_elements(&self) -> usize {
        self.outputs * self.wide_inputs() + self.wide_outputs()
    }

    /// Adds the blocks' gradients up.
    pub(super) fn add_up(&self, shares: &[f32], of_weight: &mut [f32], of_bias: &mut [f32]) {
        let mut sums = vec![0.0_f64; self.gradient_elements()];
        for share in shares.chunks_exact(sums.len().max(1)) {
            for (sum, &value) in sums.iter_mut().zip(share) {
                *sum += f64::from(value);
            }
        }
        let (weight, bias) = sums.split_at(self.outputs * self.wide_inputs());
        let rows = weight.chunks_exact(self.wide_inputs().max(1)).zip(of_weight.chunks_exact_mut(self.inputs.max(1)));
        for (from, to) in rows {
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = from as f32);
        }
        of_bias.iter_mut().zip(bias).for_each(|(to, &from)| *to = from as f32);
    }
}

/// The squared distance of a block's projected rows from their targets and, where there is room for them, half its
/// gradients: by the rows, and by weight and bias (`[Padded::gradient_elements]`, added to).
pub(super) struct Project<'a> {
    pub(super) padded: &'a Padded,
    /// `[rows, inputs]`
    pub(super) latent: &'a [f32],
    /// `[rows, outputs]`
    pub(super) target: &'a [f32],
    pub(super) gradients: Option<(&'a mut [f32], &'a mut [f32])>,
}

impl Kernel for Project<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<I: Instructions>(self) -> f64 {
        let Self { padded, latent, target, mut gradients } = self;
        let (inputs, outputs) = (padded.inputs, padded.outputs);
        let mut room = Room {
            rows: vec![0.0; TILE * padded.wide_inputs()],
            differences: vec![0.0; TILE * padded.wide_outputs()],
            squares: [0.0; LANES],
        };
        let rows = target.len() / outputs.max(1);
        let mut sum = 0.0;
        for first in (0..rows).step_by(TILE) {
            let count = (rows - first).min(TILE);
            room.take_rows(&latent[first * inputs..(first + count) * inputs], inputs);
            room.compare::<I>(padded, &target[first * outputs..(first + count) * outputs], count);
            sum += room.take_sum();
            if let Some((of_latent, shares)) = &mut gradients {
                room.multiply_back::<I>(padded, &mut of_latent[first * inputs..(first + count) * inputs]);
                room.add_to_shares::<I>(padded, shares);
            }
        }
        sum
    }
}

/// What lies in the core's cache: [`TILE`] rows, of which those beyond the block's end are zero.
struct Room {
    /// `[TILE, padded inputs]`
    rows: Vec<f32>,
    /// `[TILE, padded outputs]`: projected less target
    differences: Vec<f32>,
    squares: [f32; LANES],
}

impl Room {
    #[inline(always)]
    fn take_rows(&mut self, latent: &[f32], inputs: usize) {
        let wide = self.rows.len() / TILE;
        self.rows.fill(0.0);
        for (row, from) in self.rows.chunks_exact_mut(wide.max(1)).zip(latent.chunks_exact(inputs.max(1))) {
            row[..inputs].copy_from_slice(from);
        }
    }

    /// Projects the rows; a row beyond `count` and a column beyond the outputs differ by nothing.
    #[inline(always)]
    fn compare<I: Instructions>(&mut self, padded: &Padded, target: &[f32], count: usize) {
        let (wide, outputs, wide_inputs) = (padded.wide_outputs(), padded.outputs, padded.wide_inputs());
        for (chunk, bias) in padded.bias.as_chunks::<LANES>().0.iter().enumerate() {
            let column = chunk * LANES;
            let mut projected = [*bias; TILE];
            for input in 0..padded.inputs {
                let weights = lanes(&padded.transposed, input * wide + column);
                for (row, projected) in projected.iter_mut().enumerate() {
                    let value = self.rows[row * wide_inputs + input];
                    for lane in 0..LANES {
                        projected[lane] = math::fused::<I>(value, weights[lane], projected[lane]);
                    }
                }
            }
            let columns = (outputs - column).min(LANES);
            for (row, projected) in projected.iter().enumerate() {
                let mut difference = [0.0; LANES];
                if row < count {
                    let wanted = &target[row * outputs + column..][..columns];
                    for (difference, (found, wanted)) in difference.iter_mut().zip(projected.iter().zip(wanted)) {
                        *difference = found - wanted;
                    }
                }
                for lane in 0..LANES {
                    self.squares[lane] = math::fused::<I>(difference[lane], difference[lane], self.squares[lane]);
                }
                self.differences[row * wide + column..][..LANES].copy_from_slice(&difference);
            }
        }
    }

    /// The squares since the last call.
    #[inline(always)]
    fn take_sum(&mut self) -> f64 {
        std::mem::take(&mut self.squares).iter().map(|&lane| f64::from(lane)).sum()
    }

    /// Differences times weight.
    #[inline(always)]
    fn multiply_back<I: Instructions>(&self, padded: &Padded, of_latent: &mut [f32]) {
        let (wide, inputs, wide_inputs) = (padded.wide_outputs(), padded.inputs, padded.wide_inputs());
        for column in (0..wide_inputs).step_by(LANES) {
            let mut sums = [[0.0_f32; LANES]; TILE];
            for output in 0..padded.outputs {
                let weights = lanes(&padded.weight, output * wide_inputs + column);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let difference = self.differences[row * wide + output];
                    for lane in 0..LANES {
                        sums[lane] = math::fused::<I>(difference, weights[lane], sums[lane]);
                    }
                }
            }
            let columns = (inputs - column).min(LANES);
            for (to, sums) in of_latent.chunks_exact_mut(inputs).zip(&sums) {
                to[column..column + columns].copy_from_slice(&sums[..columns]);
            }
        }
    }

    /// The outer products of differences and rows, and the differences themselves.
    #[inline(always)]
    fn add_to_shares<I: Instructions>(&self, padded: &Padded, shares: &mut [f32]) {
        let (wide, wide_inputs) = (padded.wide_outputs(), padded.wide_inputs());
        let (of_weight, of_bias) = shares.split_at_mut(padded.outputs * wide_inputs);
        for column in (0..wide_inputs).step_by(LANES) {
            let rows: [[f32; LANES]; TILE] = std::array::from_fn(|row| *lanes(&self.rows, row * wide_inputs + column));
            for output in 0..padded.outputs {
                let sums = lanes_mut(of_weight, output * wide_inputs + column);
                for (row, values) in rows.iter().enumerate() {
                    let difference = self.differences[row * wide + output];
                    for lane in 0..LANES {
                        sums[lane] = math::fused::<I>(difference, values[lane], sums[lane]);
                    }
                }
            }
        }
        for differences in self.differences.chunks_exact(wide.max(1)) {
            for (sum, &difference) in of_bias.iter_mut().zip(differences) {
                *sum += difference;
            }
        }
    }
}

/// A vector's worth of `values` from `offset`.
#[inline(always)]
fn lanes(values: &[f32], offset: usize) -> &[f32; LANES] {
    match values[offset..offset + LANES].first_chunk() {
        Some(lanes) => lanes,
        // The slice has exactly that many elements.
        None => unreachable!(),
    }
}

/// As [`lanes`], to be written.
#[inline(always)]
fn lanes_mut(values: &mut [f32], offset: usize) -> &mut [f32; LANES] {
    match values[offset..offset + LANES].first_chunk_mut() {
        Some(lanes) => lanes,
        // The slice has exactly that many elements.
        None => unreachable!(),
    }
}
