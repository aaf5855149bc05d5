//! A small linear layer applied to a block of rows, compared with given rows, and multiplied back, all while the block
//! lies in the core's cache.

use super::math::{self, LANES};
use crate::torch::simd::{Instructions, Kernel};

/// Rows that are worked on together: their differences stay in the core's fastest cache.
const ROWS: usize = 64;

/// Rows, or inputs, that are worked on at once: their sums do not wait for one another, and a weight that was read
/// serves all of them.
const TOGETHER: usize = 4;

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

    /// Adds the blocks' gradients up, times `factor`.
    pub(super) fn add_up(&self, factor: f32, shares: &[f32], of_weight: &mut [f32], of_bias: &mut [f32]) {
        let mut sums = vec![0.0_f64; self.gradient_elements()];
        for share in shares.chunks_exact(sums.len().max(1)) {
            for (sum, &value) in sums.iter_mut().zip(share) {
                *sum += f64::from(value);
            }
        }
        let wide = self.wide_outputs();
        for (output, row) in of_weight.chunks_exact_mut(self.inputs.max(1)).enumerate() {
            for (input, value) in row.iter_mut().enumerate() {
                *value = sums[input * wide + output] as f32 * factor;
            }
        }
        of_bias.iter_mut().zip(&sums[self.inputs * wide..]).for_each(|(to, &from)| *to = from as f32 * factor);
    }
}

/// The squared distance of a block's projected rows from their targets and, where there is room for them, its gradients:
/// by the rows, times `factor / 2`, and half of those by weight and bias (`[Padded::gradient_elements]`, added to).
pub(super) struct Project<'a> {
    pub(super) padded: &'a Padded,
    /// `[rows, inputs]`
    pub(super) latent: &'a [f32],
    /// A row of `outputs` for each row of the latent, wherever it lies.
    pub(super) targets: &'a [&'a [f32]],
    pub(super) factor: f32,
    pub(super) gradients: Option<(&'a mut [f32], &'a mut [f32])>,
}

impl Kernel for Project<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<I: Instructions>(self) -> f64 {
        let Self { padded, latent, targets, factor, mut gradients } = self;
        let inputs = padded.inputs;
        let mut room = vec![0.0; ROWS * padded.wide_outputs()];
        let mut sum = 0.0;
        let chunks = latent.chunks(ROWS * inputs.max(1)).zip(targets.chunks(ROWS));
        for (chunk, (latent, targets)) in chunks.enumerate() {
            let differences = &mut room[..targets.len() * padded.wide_outputs()];
            sum += project::<I>(padded, latent, targets, differences);
            if let Some((of_latent, shares)) = &mut gradients {
                let first = chunk * ROWS * inputs;
                multiply_back::<I>(padded, factor, differences, &mut of_latent[first..first + latent.len()]);
                add_to_shares::<I>(padded, latent, differences, shares);
            }
        }
        sum
    }
}

/// Calls `$function::<I, WIDTH>($column, ..)` for tiles that cover `$columns` columns, a multiple of [`LANES`].
macro_rules! for_each_tile {
    ($columns:expr, |$column:ident| $function:ident::<$i:ty>($($argument:expr),* $(,)?)) => {{
        let mut $column = 0;
        while $column + 48 <= $columns {
            $function::<$i, 48>($($argument),*);
            $column += 48;
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

/// Rows times weight, with the bias, less the targets, into `[rows, padded outputs]`; the sum of the squares.
#[inline(always)]
fn project<I: Instructions>(padded: &Padded, latent: &[f32], targets: &[&[f32]], differences: &mut [f32]) -> f64 {
    let wide = padded.wide_outputs();
    let mut squares = [0.0_f32; LANES];
    for first in (0..differences.len() / wide.max(1)).step_by(TOGETHER) {
        for_each_tile!(wide, |column| project_tile::<I>(
            padded,
            column,
            first,
            latent,
            targets,
            differences,
            &mut squares
        ));
    }
    squares.iter().map(|&sum| f64::from(sum)).sum()
}

/// The targets are taken off while the sums are in their vectors: what has to come from far away is waited for beside the
/// products of the rows that follow.
#[inline(always)]
fn project_tile<I: Instructions, const WIDTH: usize>(
    padded: &Padded,
    column: usize,
    first: usize,
    latent: &[f32],
    targets: &[&[f32]],
    differences: &mut [f32],
    squares: &mut [f32; LANES],
) {
    let (wide, inputs) = (padded.wide_outputs(), padded.inputs);
    let count = differences.len() / wide;
    let numbers = together::<TOGETHER>(first, count);
    let [a, b, c, d] = numbers.map(|row| &latent[row * inputs..][..inputs]);
    let bias = *tile::<WIDTH>(&padded.bias, column);
    let (mut sums_a, mut sums_b, mut sums_c, mut sums_d) = (bias, bias, bias, bias);
    for ((((weights, &a), &b), &c), &d) in padded.transposed.chunks_exact(wide).zip(a).zip(b).zip(c).zip(d) {
        let weights = tile(weights, column);
        add_scaled::<I, WIDTH>(&mut sums_a, a, weights);
        add_scaled::<I, WIDTH>(&mut sums_b, b, weights);
        add_scaled::<I, WIDTH>(&mut sums_c, c, weights);
        add_scaled::<I, WIDTH>(&mut sums_d, d, weights);
    }
    let mut finish = Finish { targets, differences, squares, numbers, first, column, wide };
    // One by one, so that the sums never leave their vectors.
    finish.row::<I, WIDTH>(0, sums_a);
    finish.row::<I, WIDTH>(1, sums_b);
    finish.row::<I, WIDTH>(2, sums_c);
    finish.row::<I, WIDTH>(3, sums_d);
}

/// What becomes of the sums of rows that are worked on together.
struct Finish<'a> {
    targets: &'a [&'a [f32]],
    differences: &'a mut [f32],
    squares: &'a mut [f32; LANES],
    numbers: [usize; TOGETHER],
    first: usize,
    column: usize,
    wide: usize,
}

impl Finish<'_> {
    /// Takes the row's targets off, and keeps the differences and their squares. The last row may stand in the place of rows
    /// that are not there: what is kept of it once more is the same, and its squares count once.
    #[inline(always)]
    fn row<I: Instructions, const WIDTH: usize>(&mut self, number: usize, mut sums: [f32; WIDTH]) {
        let (row, is_there) = (self.numbers[number], self.first + number < self.targets.len());
        subtract::<WIDTH>(&mut sums, self.targets[row], self.column);
        self.differences[row * self.wide + self.column..][..WIDTH].copy_from_slice(&sums);
        if is_there {
            sums.as_chunks::<LANES>().0.iter().for_each(|values| add_squares::<I>(self.squares, values));
        }
    }
}

/// Takes a row of targets off. Beyond its end, where a row of sums is zero, there is nothing to take off.
#[inline(always)]
fn subtract<const WIDTH: usize>(sums: &mut [f32; WIDTH], target: &[f32], column: usize) {
    let rest = &target[column.min(target.len())..];
    let mut padded = [0.0; WIDTH];
    // A whole tile by its length as a constant: otherwise each lane is taken off by itself.
    let target = match rest.first_chunk() {
        Some(target) => target,
        None => {
            padded[..rest.len()].copy_from_slice(rest);
            &padded
        }
    };
    for lane in 0..WIDTH {
        sums[lane] -= target[lane];
    }
}

#[inline(always)]
fn add_squares<I: Instructions>(sums: &mut [f32; LANES], values: &[f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] = math::fused::<I>(values[lane], values[lane], sums[lane]);
    }
}

/// Rows of differences that are multiplied back at once: there are fewer columns than in the other products, so more rows
/// are needed for their sums not to wait for one another.
const BACK_TOGETHER: usize = 8;

/// Differences times weight, times `factor`.
#[inline(always)]
fn multiply_back<I: Instructions>(padded: &Padded, factor: f32, differences: &[f32], of_latent: &mut [f32]) {
    for first in (0..differences.len() / padded.wide_outputs().max(1)).step_by(BACK_TOGETHER) {
        for_each_tile!(padded.wide_inputs(), |column| multiply_back_tile::<I>(
            padded,
            column,
            first,
            factor,
            differences,
            of_latent
        ));
    }
}

#[inline(always)]
fn multiply_back_tile<I: Instructions, const WIDTH: usize>(
    padded: &Padded,
    column: usize,
    first: usize,
    factor: f32,
    differences: &[f32],
    of_latent: &mut [f32],
) {
    let (wide, inputs, outputs) = (padded.wide_outputs(), padded.inputs, padded.outputs);
    let numbers = together::<BACK_TOGETHER>(first, differences.len() / wide);
    let rows = numbers.map(|row| &differences[row * wide..][..outputs]);
    let mut sums = [[0.0; WIDTH]; BACK_TOGETHER];
    for (output, weights) in (0..outputs).zip(padded.weight.chunks_exact(padded.wide_inputs())) {
        let weights = tile(weights, column);
        for row in 0..BACK_TOGETHER {
            add_scaled::<I, WIDTH>(&mut sums[row], rows[row][output], weights);
        }
    }
    for (row, mut sums) in numbers.into_iter().zip(sums) {
        sums.iter_mut().for_each(|sum| *sum *= factor);
        store(&mut of_latent[row * inputs..][..inputs], column, &sums);
    }
}

/// Puts sums into a row that may end within them.
#[inline(always)]
fn store<const WIDTH: usize>(row: &mut [f32], column: usize, sums: &[f32; WIDTH]) {
    // Two ways, so that in the common one the sums never leave their vectors.
    match row.get_mut(column..column + WIDTH) {
        Some(row) => row.copy_from_slice(sums),
        None => row[column..].iter_mut().zip(sums).for_each(|(result, &sum)| *result = sum),
    }
}

/// Adds the outer products of rows and differences `[inputs, padded outputs]`, and the differences themselves.
#[inline(always)]
fn add_to_shares<I: Instructions>(padded: &Padded, latent: &[f32], differences: &[f32], shares: &mut [f32]) {
    let (wide, inputs) = (padded.wide_outputs(), padded.inputs);
    let (of_weight, of_bias) = shares.split_at_mut(inputs * wide);
    for first in (0..inputs).step_by(TOGETHER) {
        for_each_tile!(wide, |column| add_products_tile::<I>(padded, column, first, latent, differences, of_weight));
    }
    for_each_tile!(wide, |column| add_rows_tile::<I>(column, differences, of_bias));
}

#[inline(always)]
fn add_products_tile<I: Instructions, const WIDTH: usize>(
    padded: &Padded,
    column: usize,
    first: usize,
    latent: &[f32],
    differences: &[f32],
    shares: &mut [f32],
) {
    let (wide, inputs) = (padded.wide_outputs(), padded.inputs);
    let [a, b, c, d] = together::<TOGETHER>(first, inputs);
    let mut sums_a = *tile::<WIDTH>(shares, a * wide + column);
    let mut sums_b = *tile::<WIDTH>(shares, b * wide + column);
    let mut sums_c = *tile::<WIDTH>(shares, c * wide + column);
    let mut sums_d = *tile::<WIDTH>(shares, d * wide + column);
    for (values, row) in latent.chunks_exact(inputs).zip(differences.chunks_exact(wide)) {
        let row = tile(row, column);
        add_scaled::<I, WIDTH>(&mut sums_a, values[a], row);
        add_scaled::<I, WIDTH>(&mut sums_b, values[b], row);
        add_scaled::<I, WIDTH>(&mut sums_c, values[c], row);
        add_scaled::<I, WIDTH>(&mut sums_d, values[d], row);
    }
    shares[a * wide + column..][..WIDTH].copy_from_slice(&sums_a);
    shares[b * wide + column..][..WIDTH].copy_from_slice(&sums_b);
    shares[c * wide + column..][..WIDTH].copy_from_slice(&sums_c);
    shares[d * wide + column..][..WIDTH].copy_from_slice(&sums_d);
}

#[inline(always)]
fn add_rows_tile<I: Instructions, const WIDTH: usize>(column: usize, differences: &[f32], share: &mut [f32]) {
    let mut sums = *tile::<WIDTH>(share, column);
    for row in differences.chunks_exact(share.len()) {
        add_scaled::<I, WIDTH>(&mut sums, 1.0, tile(row, column));
    }
    share[column..column + WIDTH].copy_from_slice(&sums);
}

/// The numbers `first..first + COUNT`, the last of `count` in the place of those that are not there: what is worked out for
/// it more than once is the same each time.
#[inline(always)]
fn together<const COUNT: usize>(first: usize, count: usize) -> [usize; COUNT] {
    std::array::from_fn(|position| (first + position).min(count - 1))
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
