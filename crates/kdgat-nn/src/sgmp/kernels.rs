//! Elementwise passes between the matrix products of a piece of paths.

use kdgat_torch::simd::{Instructions, Kernel};

/// ReLU; unlike `max`, it lets NaN through.
#[inline(always)]
fn relu_of(value: f32) -> f32 {
    if value < 0.0 { 0.0 } else { value }
}

#[inline(always)]
fn row(values: &[f32], row: u32, width: usize) -> &[f32] {
    let start = row as usize * width;
    &values[start..start + width]
}

/// Adds to row `r` of `to` the rows `indices[r]` of two matrices, and applies ReLU if `relu` is set.
pub struct AddRows<'a> {
    pub to: &'a mut [f32],
    pub width: usize,
    pub from: [(&'a [f32], &'a [u32]); 2],
    pub relu: bool,
}

impl Kernel for AddRows<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let Self { to, width, from: [(one, of_one), (other, of_other)], relu } = self;
        for ((to, &of_one), &of_other) in to.chunks_exact_mut(width).zip(of_one).zip(of_other) {
            let (one, other) = (row(one, of_one, width), row(other, of_other, width));
            for ((to, one), other) in to.iter_mut().zip(one).zip(other) {
                let sum = *to + one + other;
                *to = if relu { relu_of(sum) } else { sum };
            }
        }
    }
}

/// Adds row `r` of `from` to row `indices[r]` of `to`.
pub struct Scatter<'a> {
    pub from: &'a [f32],
    pub width: usize,
    pub to: &'a mut [f32],
    pub indices: &'a [u32],
}

impl Kernel for Scatter<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (from, &index) in self.from.chunks_exact(self.width).zip(self.indices) {
            let start = index as usize * self.width;
            for (to, from) in self.to[start..start + self.width].iter_mut().zip(from) {
                *to += from;
            }
        }
    }
}

/// Adds ReLU of row `r` of `from` to row `indices[r] - base` of `to`.
pub struct ScatterRelu<'a> {
    pub from: &'a [f32],
    pub width: usize,
    pub to: &'a mut [f32],
    pub indices: &'a [u32],
    pub base: usize,
}

impl Kernel for ScatterRelu<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (from, &index) in self.from.chunks_exact(self.width).zip(self.indices) {
            let start = (index as usize - self.base) * self.width;
            for (to, from) in self.to[start..start + self.width].iter_mut().zip(from) {
                *to += relu_of(*from);
            }
        }
    }
}

/// Replaces each value of `values`, the input of a ReLU, by the gradient of its row where it is positive and by 0 elsewhere.
pub struct GateRows<'a> {
    pub values: &'a mut [f32],
    pub width: usize,
    pub gradients: &'a [f32],
    pub indices: &'a [u32],
    pub base: usize,
}

impl Kernel for GateRows<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (values, &index) in self.values.chunks_exact_mut(self.width).zip(self.indices) {
            let start = (index as usize - self.base) * self.width;
            for (value, &gradient) in values.iter_mut().zip(&self.gradients[start..start + self.width]) {
                *value = if *value > 0.0 { gradient } else { 0.0 };
            }
        }
    }
}

/// Sets gradients to 0 where the output of the ReLU is 0.
pub struct Gate<'a> {
    pub gradients: &'a mut [f32],
    pub outputs: &'a [f32],
}

impl Kernel for Gate<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (gradient, &output) in self.gradients.iter_mut().zip(self.outputs) {
            *gradient = if output > 0.0 { *gradient } else { 0.0 };
        }
    }
}

/// ReLU in place.
pub struct Relu<'a>(pub &'a mut [f32]);

impl Kernel for Relu<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        self.0.iter_mut().for_each(|value| *value = relu_of(*value));
    }
}

/// Columns that are summed at a time.
const PART: usize = 64;

/// Adds the sums of the columns of `from`.
pub struct AddColumnSums<'a> {
    pub from: &'a [f32],
    pub to: &'a mut [f32],
}

impl Kernel for AddColumnSums<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        // The rows of a piece are summed before they are added to the sum of many pieces, which would round away more of each.
        let width = self.to.len();
        for (part, to) in self.to.chunks_mut(PART).enumerate() {
            let mut sums = [0.0; PART];
            for row in self.from.chunks_exact(width) {
                sums.iter_mut().zip(&row[part * PART..][..to.len()]).for_each(|(sum, from)| *sum += from);
            }
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
        }
    }
}
