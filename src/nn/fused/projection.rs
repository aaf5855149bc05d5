//! A small linear layer applied to a block of rows, compared with given rows, and multiplied back, all while the block
//! lies in the core's cache.

use super::math::{self, LANES};
use crate::torch::simd::{Instructions, Kernel};

/// Rows that are worked on together: their differences stay in the core's fastest cache.
const ROWS: usize = 64;

/// A weight `[outputs, inputs]` and a bias `[outputs]`, copied so that rows of either direction fill whole vectors.
pub(super) struct Padded {
    inputs: usize,
    outputs: usize,
    /// `[inputs, padded outputs]`, as the gradient by the weight is added up
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
        (self.inputs + 1) * self.wide_outputs()
    }

    /// Adds the blocks' gradients up.
    pub(super) fn add_up(&self, shares: &[f32], of_weight: &mut [f32], of_bias: &mut [f32]) {
        let mut sums = vec![0.0_f64; self.gradient_elements()];
        for share in shares.chunks_exact(sums.len().max(1)) {
            for (sum, &value) in sums.iter_mut().zip(share) {
                *sum += f64::from(value);
            }
        }
        let wide = self.wide_outputs();
        for (output, row) in of_weight.chunks_exact_mut(self.inputs.max(1)).enumerate() {
            for (input, value) in row.iter_mut().enumerate() {
                *value = sums[input * wide + output] as f32;
            }
        }
        of_bias.iter_mut().zip(&sums[self.inputs * wide..]).for_each(|(to, &from)| *to = from as f32);
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
        let mut room = vec![0.0; ROWS * padded.wide_outputs()];
        let mut sum = 0.0;
        let chunks = latent.chunks(ROWS * inputs.max(1)).zip(target.chunks(ROWS * outputs.max(1)));
        for (chunk, (latent, target)) in chunks.enumerate() {
            let differences = &mut room[..target.len() / outputs.max(1) * padded.wide_outputs()];
            project::<I>(padded, latent, differences);
            sum += subtract(padded, target, differences);
            if let Some((of_latent, shares)) = &mut gradients {
                let first = chunk * ROWS * inputs;
                multiply_back::<I>(padded, differences, &mut of_latent[first..first + latent.len()]);
                add_to_shares::<I>(padded, latent, differences, shares);
            }
        }
        sum
    }
}

/// Calls `$function::<I, WIDTH>($column, ..)` for tiles that cover `$columns` columns, a multiple of [`LANES`]: wide
/// tiles are several sums at once, none of which waits for another.
macro_rules! for_each_tile {
    ($columns:expr, |$column:ident| $function:ident::<$i:ty>($($argument:expr),* $(,)?)) => {{
        let mut $column = 0;
        while $column + 64 <= $columns {
            $function::<$i, 64>($($argument),*);
            $column += 64;
        }
        if $column + 32 <= $columns {
            $function::<$i, 32>($($argument),*);
            $column += 32;
        }
        if $column < $columns {
            $function::<$i, 16>($($argument),*);
        }
    }};
}

/// Rows times weight, with the bias, into `[rows, padded outputs]`.
#[inline(always)]
fn project<I: Instructions>(padded: &Padded, latent: &[f32], projected: &mut [f32]) {
    let wide = padded.wide_outputs();
    for (row, projected) in latent.chunks_exact(padded.inputs.max(1)).zip(projected.chunks_exact_mut(wide.max(1))) {
        for_each_tile!(wide, |column| project_tile::<I>(padded, column, row, projected));
    }
}

#[inline(always)]
fn project_tile<I: Instructions, const WIDTH: usize>(
    padded: &Padded,
    column: usize,
    row: &[f32],
    projected: &mut [f32],
) {
    let mut sums = *tile::<WIDTH>(&padded.bias, column);
    let weights = padded.transposed.chunks_exact(padded.bias.len());
    for (&value, weights) in row.iter().zip(weights) {
        add_scaled::<I, WIDTH>(&mut sums, value, tile(weights, column));
    }
    projected[column..column + WIDTH].copy_from_slice(&sums);
}

/// Takes the targets `[rows, outputs]` off the projected rows; the sum of the squares.
#[inline(always)]
fn subtract(padded: &Padded, target: &[f32], projected: &mut [f32]) -> f64 {
    let (wide, outputs) = (padded.wide_outputs(), padded.outputs);
    for (row, target) in projected.chunks_exact_mut(wide.max(1)).zip(target.chunks_exact(outputs.max(1))) {
        for (value, &target) in row.iter_mut().zip(target) {
            *value -= target;
        }
        row[outputs..].fill(0.0);
    }
    math::sum(projected.len(), |index| projected[index] * projected[index])
}

/// Differences times weight.
#[inline(always)]
fn multiply_back<I: Instructions>(padded: &Padded, differences: &[f32], of_latent: &mut [f32]) {
    let (wide, inputs) = (padded.wide_outputs(), padded.inputs.max(1));
    for (row, result) in differences.chunks_exact(wide.max(1)).zip(of_latent.chunks_exact_mut(inputs)) {
        for_each_tile!(padded.wide_inputs(), |column| multiply_back_tile::<I>(padded, column, row, result));
    }
}

#[inline(always)]
fn multiply_back_tile<I: Instructions, const WIDTH: usize>(
    padded: &Padded,
    column: usize,
    row: &[f32],
    result: &mut [f32],
) {
    let mut sums = [0.0; WIDTH];
    for (&difference, weights) in row.iter().zip(padded.weight.chunks_exact(padded.wide_inputs())) {
        add_scaled::<I, WIDTH>(&mut sums, difference, tile(weights, column));
    }
    // Two ways, so that in the common one the sums never leave their vectors.
    match result.get_mut(column..column + WIDTH) {
        Some(result) => result.copy_from_slice(&sums),
        None => result[column..].iter_mut().zip(sums).for_each(|(result, sum)| *result = sum),
    }
}

/// Adds the outer products of rows and differences `[inputs, padded outputs]`, and the differences themselves.
#[inline(always)]
fn add_to_shares<I: Instructions>(padded: &Padded, latent: &[f32], differences: &[f32], shares: &mut [f32]) {
    let (wide, inputs) = (padded.wide_outputs(), padded.inputs);
    for (input, share) in shares.chunks_exact_mut(wide.max(1)).enumerate() {
        // The last share is the bias's, for which all inputs are one.
        let values = if input < inputs { Some(&latent[input..]) } else { None };
        for_each_tile!(wide, |column| add_to_share_tile::<I>(column, (values, inputs), differences, share));
    }
}

#[inline(always)]
fn add_to_share_tile<I: Instructions, const WIDTH: usize>(
    column: usize,
    (values, stride): (Option<&[f32]>, usize),
    differences: &[f32],
    share: &mut [f32],
) {
    let mut sums = *tile::<WIDTH>(share, column);
    let rows = differences.chunks_exact(share.len());
    match values {
        Some(values) => {
            for (&value, row) in values.iter().step_by(stride).zip(rows) {
                add_scaled::<I, WIDTH>(&mut sums, value, tile(row, column));
            }
        }
        None => {
            for row in rows {
                add_scaled::<I, WIDTH>(&mut sums, 1.0, tile(row, column));
            }
        }
    }
    share[column..column + WIDTH].copy_from_slice(&sums);
}

/// `sums += factor * row`.
#[inline(always)]
fn add_scaled<I: Instructions, const WIDTH: usize>(sums: &mut [f32; WIDTH], factor: f32, row: &[f32; WIDTH]) {
    for lane in 0..WIDTH {
        sums[lane] = math::fused::<I>(factor, row[lane], sums[lane]);
    }
}

/// `WIDTH` elements of `values` from `offset`.
#[inline(always)]
fn tile<const WIDTH: usize>(values: &[f32], offset: usize) -> &[f32; WIDTH] {
    match values[offset..offset + WIDTH].first_chunk() {
        Some(tile) => tile,
        // The slice has exactly WIDTH elements.
        None => unreachable!(),
    }
}
