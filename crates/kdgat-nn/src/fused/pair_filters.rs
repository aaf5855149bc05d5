//! SchNet's filters of lines, a network of two layers of each line's distance d, and their slopes, the derivatives by d:
//!
//! ```text
//! a = W₁ φ(d) + b₁      w = c(d)·(W₂ s(a) + b₂)
//! a' = W₁ φ'(d)         w' = c(d)·W₂ (s'(a) ∘ a') + c'(d)·(W₂ s(a) + b₂)
//! ```
//!
//! with the basis φ, the shifted softplus s and the cutoff function c. A loss of filters has the gradient Σ_f g_f·w'_f by a distance, so forces
//! need no way back through the layers, and a loss of forces reaches the weights through w'. Rows of a, s(a) and s'(a) ∘ a' exist for a block of
//! lines at a time; the backward computes them again.

use std::ffi::CStr;
use std::ops::Range;

use kdgat_torch::autograd::{self, Forward, Function};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::product::{Left, Product, Start};
use kdgat_torch::simd::rows::Matrix;
use kdgat_torch::simd::transpose::transposed;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{Kind, TchError, Tensor};

use super::linear::{ROWS, add_share, rows_of_a_share, share_elements, sums};
use super::smooth_activation::Smooth;
use super::{Blocks, empty, expect_elements, shape};
use crate::space::Radial;

/// Filters of the lines, `[lines, columns]`, from distances `[lines, 1]` and the layers W₁ `[columns, functions]`, b₁, W₂ `[columns, columns]`
/// and b₂. They have a gradient by the distances if `radial` has slopes. That gradient can be differentiated by the layers, but not by the
/// distances again: forces need no such derivative.
///
/// # Errors
/// Shapes that do not fit, and those of libtorch.
pub fn pair_filters(radial: &Radial, distances: &Tensor, layers: [&Tensor; 4]) -> Result<Tensor, TchError> {
    let constant = |tensor: &Tensor| tensor.f_detach()?.f_contiguous();
    let radial = Radial {
        functions: constant(&radial.functions)?,
        fading: constant(&radial.fading)?,
        slopes: match &radial.slopes {
            Some([functions, fading]) => Some([constant(functions)?, constant(fading)?]),
            None => None,
        },
    };
    let mut inputs = vec![distances.f_contiguous()?];
    for tensor in layers {
        inputs.push(tensor.f_contiguous()?);
    }
    let mut outputs = autograd::apply(PairFilters { radial }, &inputs.iter().collect::<Vec<_>>())?;
    outputs.truncate(1);
    Ok(outputs.pop().unwrap_or_default())
}

struct PairFilters {
    radial: Radial,
}

impl Function for PairFilters {
    const NAME: &'static CStr = c"filters of pairs";
    const TWICE: bool = true;

    /// Outputs are the filters and, if distances may have a gradient, their slopes.
    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let lines = Lines::read(&self.radial)?;
        let layers = Layers::read(&inputs[1..], lines.functions)?;
        expect_elements("distances", inputs[0], lines.count())?;
        let columns = layers.columns;
        let new = || empty(&[lines.count() as i64, columns as i64]);
        let (mut filters, mut slopes) = (new()?, lines.slopes.is_some().then(new).transpose()?);
        {
            let blocks = Blocks::new(lines.count(), 2 * columns, ROWS);
            let write = |tensor| view::write::<f32>("filters", tensor);
            let parts = |values| Parts::new(values, blocks.bounds(columns));
            let filters = parts(write(&mut filters)?);
            let slopes = slopes.as_mut().map(write).transpose()?.map(parts);
            let weights = [transposed(layers.first, lines.functions), transposed(layers.second, columns)];
            blocks.for_each(|block| {
                let of_slopes = slopes.as_ref().map(|slopes| slopes.take(block));
                let mut rows = Rows::default();
                let of_block = lines.part(blocks.rows(block));
                rows.write(&of_block, &layers, &weights, filters.take(block), of_slopes);
            });
        }
        let mut saved = Vec::new();
        if recorded {
            saved.extend(inputs[1..].iter().chain(&slopes.as_ref()).map(|tensor| tensor.shallow_clone()));
        }
        Ok(Forward { outputs: [Some(filters), slopes].into_iter().flatten().collect(), saved })
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        mut gradients: Vec<Option<Tensor>>,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let of_slopes = if gradients.len() > 1 { gradients.remove(1) } else { None };
        let of_filters = gradients.remove(0);
        let of_distances = match (&of_filters, saved.get(4), &of_slopes) {
            (Some(gradient), Some(slopes), None) if needed[0] => {
                Some(gradient.f_mul(slopes)?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float)?)
            }
            _ => None,
        };
        let mut results = vec![of_distances];
        if needed[1..].contains(&true) {
            let gradients =
                [of_filters, of_slopes].map(|gradient| gradient.map(|gradient| gradient.f_contiguous()).transpose());
            let [of_filters, of_slopes] = gradients;
            let layers: Vec<&Tensor> = saved[..4].iter().collect();
            results.extend(self.of_layers(&layers, [of_filters?.as_ref(), of_slopes?.as_ref()])?.map(Some));
        }
        results.resize_with(needed.len(), || None);
        Ok(results)
    }
}

impl PairFilters {
    /// Gradients of W₁, b₁, W₂ and b₂ from those of the filters and of their slopes.
    fn of_layers(&self, layers: &[&Tensor], gradients: [Option<&Tensor>; 2]) -> Result<[Tensor; 4], TchError> {
        let lines = Lines::read(&self.radial)?;
        let layers = Layers::read(layers, lines.functions)?;
        let columns = layers.columns;
        for gradient in gradients.into_iter().flatten() {
            expect_elements("gradient of the filters", gradient, lines.count() * columns)?;
        }
        let [of_filters, of_slopes] = gradients;
        let of_filters = of_filters.map(|gradient| view::read::<f32>("gradient", gradient)).transpose()?;
        let of_slopes = of_slopes.map(|gradient| view::read::<f32>("gradient", gradient)).transpose()?;
        let sizes = [[lines.functions, columns], [columns, columns]];
        let blocks = Blocks::new(lines.count(), 2 * columns, rows_of_a_share(sizes[1]));
        let [of_first, of_second] = sizes.map(share_elements);
        let new = |share: usize| empty(&[(blocks.count() * share) as i64]);
        let (mut first, mut second) = (new(of_first)?, new(of_second)?);
        {
            let parts = |tensor, share: usize| -> Result<_, TchError> {
                Ok(Parts::new(
                    view::write::<f32>("shares", tensor)?,
                    (0..=blocks.count()).map(move |block| block * share),
                ))
            };
            let (first, second) = (parts(&mut first, of_first)?, parts(&mut second, of_second)?);
            let weights = transposed(layers.first, lines.functions);
            blocks.for_each(|block| {
                let mut shares = [first.take(block), second.take(block)];
                let mut rows = Rows::default();
                let own = blocks.rows(block);
                shares.iter_mut().for_each(|share| share.fill(0.0));
                let [of_first, of_second] = shares;
                for start in own.clone().step_by(ROWS) {
                    let chunk = start..(start + ROWS).min(own.end);
                    let elements = chunk.start * columns..chunk.end * columns;
                    let gradients = [of_filters, of_slopes].map(|rows| rows.map(|rows| &rows[elements.clone()]));
                    rows.add(&lines.part(chunk), &layers, &weights, gradients, [of_first, of_second]);
                }
            });
        }
        let [first, second] = [(&first, sizes[0]), (&second, sizes[1])]
            .map(|(shares, sizes)| sums(view::read("shares", shares)?, sizes, 1.0));
        let ([of_w1, of_b1], [of_w2, of_b2]) = (first?, second?);
        Ok([of_w1, of_b1, of_w2, of_b2])
    }
}

/// Functions of the lines' distances.
#[derive(Clone, Copy)]
struct Lines<'a> {
    /// φ, `[lines, functions]`.
    values: &'a [f32],
    /// c, `[lines]`.
    fading: &'a [f32],
    /// φ' and c'.
    slopes: Option<[&'a [f32]; 2]>,
    /// Functions of a line.
    functions: usize,
}

impl<'a> Lines<'a> {
    fn read(radial: &'a Radial) -> Result<Self, TchError> {
        let [lines, functions] = shape("radial functions", &radial.functions)?;
        let read = |tensor: &'a Tensor, elements: usize| {
            expect_elements("radial functions", tensor, elements)?;
            view::read::<f32>("radial functions", tensor)
        };
        let both = |[values, fading]: [&'a Tensor; 2]| -> Result<_, TchError> {
            Ok([read(values, lines * functions)?, read(fading, lines)?])
        };
        let [values, fading] = both([&radial.functions, &radial.fading])?;
        let slopes = radial.slopes.as_ref().map(|slopes| both(slopes.each_ref())).transpose()?;
        Ok(Self { values, fading, slopes, functions })
    }

    fn count(&self) -> usize {
        self.fading.len()
    }

    fn part(&self, lines: Range<usize>) -> Self {
        let of = |[values, fading]: [&'a [f32]; 2]| {
            [&values[lines.start * self.functions..lines.end * self.functions], &fading[lines.clone()]]
        };
        let [values, fading] = of([self.values, self.fading]);
        Self { values, fading, slopes: self.slopes.map(of), functions: self.functions }
    }

    /// φ or φ' as the left side of a product.
    fn left(&self, values: &'a [f32]) -> Left<'a> {
        Left::rows(values, [self.count(), self.functions])
    }
}

/// The two layers.
struct Layers<'a> {
    /// W₁, `[columns, functions]`.
    first: &'a [f32],
    /// b₁, `[columns]`.
    first_bias: &'a [f32],
    /// W₂, `[columns, columns]`.
    second: &'a [f32],
    /// b₂, `[columns]`.
    second_bias: &'a [f32],
    columns: usize,
}

impl<'a> Layers<'a> {
    fn read(tensors: &[&'a Tensor], functions: usize) -> Result<Self, TchError> {
        let [first, first_bias, second, second_bias] = tensors else {
            return Err(TchError::Shape(format!("{} tensors of two layers", tensors.len())));
        };
        let columns = first_bias.numel();
        let read = |tensor: &'a Tensor, elements: usize| {
            expect_elements("a filter network's layer", tensor, elements)?;
            view::read::<f32>("a filter network's layer", tensor)
        };
        Ok(Self {
            first: read(first, columns * functions)?,
            first_bias: read(first_bias, columns)?,
            second: read(second, columns * columns)?,
            second_bias: read(second_bias, columns)?,
            columns,
        })
    }
}

/// Rows of a block of lines, `[lines, columns]` each; those of slopes are empty without slopes.
#[derive(Default)]
struct Rows {
    /// a, then s(a).
    values: Vec<f32>,
    /// a', then s'(a) ∘ a'.
    slopes: Vec<f32>,
    /// s'(a).
    derivatives: Vec<f32>,
    /// Gradients of the second layer's results, then of a.
    of_values: Vec<f32>,
    /// Gradients of its results for the slopes, then of a'.
    of_slopes: Vec<f32>,
    scratch: Vec<f32>,
}

impl Rows {
    /// Writes filters and slopes of a block; `weights` are W₁ᵀ and W₂ᵀ.
    fn write(
        &mut self,
        lines: &Lines,
        layers: &Layers,
        [first, second]: &[Vec<f32>; 2],
        filters: &mut [f32],
        slopes: Option<&mut [f32]>,
    ) {
        self.activate(lines, layers, first);
        let (size, columns) = ([lines.count(), layers.columns], layers.columns);
        let right = Matrix::new(second, columns);
        Product { left: Left::rows(&self.values, size), right, start: Start::Row(layers.second_bias) }.write(filters);
        let slopes = slopes.unwrap_or_default();
        if lines.slopes.is_some() {
            Product { left: Left::rows(&self.slopes, size), right, start: Start::Zero }.write(slopes);
        }
        dispatch(Fade { lines, columns, filters, slopes });
    }

    /// Computes s(a), s'(a) and s'(a) ∘ a'; `first` is W₁ᵀ.
    fn activate(&mut self, lines: &Lines, layers: &Layers, first: &[f32]) {
        let (columns, elements) = (layers.columns, lines.count() * layers.columns);
        self.values.resize(elements, 0.0);
        self.derivatives.resize(elements, 0.0);
        let right = Matrix::new(first, columns);
        let start = Start::Row(layers.first_bias);
        Product { left: lines.left(lines.values), right, start }.write(&mut self.values);
        if let Some([functions, _]) = lines.slopes {
            self.slopes.resize(elements, 0.0);
            Product { left: lines.left(functions), right, start: Start::Zero }.write(&mut self.slopes);
        }
        let Self { values, slopes, derivatives, .. } = self;
        dispatch(Activate { values, slopes, derivatives });
    }

    /// Adds the gradients of both layers to their shares; `first` is W₁ᵀ.
    fn add(
        &mut self,
        lines: &Lines,
        layers: &Layers,
        first: &[f32],
        gradients: [Option<&[f32]>; 2],
        [of_first, of_second]: [&mut [f32]; 2],
    ) {
        let (columns, count) = (layers.columns, lines.count());
        let (elements, functions) = (count * columns, lines.functions);
        self.activate(lines, layers, first);
        // Gradients of slopes exist only if there are slopes.
        let gradients = [gradients[0], gradients[1].filter(|_| lines.slopes.is_some())];
        let has_slopes = gradients[1].is_some();
        for rows in [&mut self.of_values, &mut self.of_slopes, &mut self.scratch] {
            rows.resize(elements, 0.0);
        }
        let Self { values, slopes, derivatives, of_values, of_slopes, scratch } = self;
        dispatch(FadeGradients { lines, columns, gradients, of_values, of_slopes });
        add_share(values, of_values, [count, columns, columns], of_second);
        let mut back = |rows: &mut Vec<f32>| {
            let (left, right) = (Left::rows(rows, [count, columns]), Matrix::new(layers.second, columns));
            Product { left, right, start: Start::Zero }.write(scratch);
            std::mem::swap(rows, scratch);
        };
        if has_slopes {
            let (left, right) = (Left::transposed(of_slopes, [count, columns]), Matrix::new(slopes, columns));
            Product { left, right, start: Start::Kept }.write(&mut of_second[..columns * columns]);
            back(of_slopes);
        }
        back(of_values);
        let slopes = if has_slopes { &slopes[..] } else { &[] };
        dispatch(ActivateGradients { derivatives, slopes, of_values, of_slopes });
        add_share(lines.values, of_values, [count, functions, columns], of_first);
        if let (true, Some([values, _])) = (has_slopes, lines.slopes) {
            let (left, right) = (Left::transposed(of_slopes, [count, columns]), Matrix::new(values, functions));
            Product { left, right, start: Start::Kept }.write(&mut of_first[..functions * columns]);
        }
    }
}

/// Replaces a by s(a) and a' by s'(a) ∘ a'.
struct Activate<'a> {
    values: &'a mut [f32],
    slopes: &'a mut [f32],
    derivatives: &'a mut [f32],
}

impl Kernel for Activate<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (value, derivative) in self.values.iter_mut().zip(&mut *self.derivatives) {
            [*value, *derivative, _] = Smooth::ShiftedSoftplus.at::<I>(*value);
        }
        for (slope, &derivative) in self.slopes.iter_mut().zip(&*self.derivatives) {
            *slope *= derivative;
        }
    }
}

/// Multiplies the second layer's results by the cutoff function: w = c·u and w' = c·u' + c'·u.
struct Fade<'a> {
    lines: &'a Lines<'a>,
    columns: usize,
    filters: &'a mut [f32],
    slopes: &'a mut [f32],
}

impl Kernel for Fade<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.columns.max(1);
        if let Some([_, fading_slopes]) = self.lines.slopes {
            let rows = self.slopes.chunks_exact_mut(columns).zip(self.filters.chunks_exact(columns));
            for ((slopes, filters), (&fading, &change)) in rows.zip(self.lines.fading.iter().zip(fading_slopes)) {
                for (slope, &filter) in slopes.iter_mut().zip(filters) {
                    *slope = fading * *slope + change * filter;
                }
            }
        }
        for (filters, &fading) in self.filters.chunks_exact_mut(columns).zip(self.lines.fading) {
            filters.iter_mut().for_each(|filter| *filter *= fading);
        }
    }
}

/// The gradients of u and u': c·g + c'·g' and c·g'.
struct FadeGradients<'a> {
    lines: &'a Lines<'a>,
    columns: usize,
    gradients: [Option<&'a [f32]>; 2],
    of_values: &'a mut [f32],
    of_slopes: &'a mut [f32],
}

impl Kernel for FadeGradients<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.columns.max(1);
        let rows = |line: usize| line * columns..(line + 1) * columns;
        for (line, &fading) in self.lines.fading.iter().enumerate() {
            let of_values = &mut self.of_values[rows(line)];
            match self.gradients[0] {
                Some(gradient) => {
                    for (to, &gradient) in of_values.iter_mut().zip(&gradient[rows(line)]) {
                        *to = fading * gradient;
                    }
                }
                None => of_values.fill(0.0),
            }
            let (Some(gradient), Some([_, changes])) = (self.gradients[1], self.lines.slopes) else { continue };
            let (change, of_slopes) = (changes[line], &mut self.of_slopes[rows(line)]);
            for ((to, of_slope), &gradient) in of_values.iter_mut().zip(of_slopes).zip(&gradient[rows(line)]) {
                *to += change * gradient;
                *of_slope = fading * gradient;
            }
        }
    }
}

/// The gradients of a and a' from those of s(a) and s'(a) ∘ a'. `slopes` is the latter, s''(a) = s'(a)·(1 − s'(a)).
struct ActivateGradients<'a> {
    derivatives: &'a [f32],
    slopes: &'a [f32],
    of_values: &'a mut [f32],
    of_slopes: &'a mut [f32],
}

impl Kernel for ActivateGradients<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (to, &derivative) in self.of_values.iter_mut().zip(self.derivatives) {
            *to *= derivative;
        }
        let rows = self.of_values.iter_mut().zip(&mut *self.of_slopes);
        for ((to, of_slope), (&derivative, &slope)) in rows.zip(self.derivatives.iter().zip(self.slopes)) {
            *to += *of_slope * slope * (1.0 - derivative);
            *of_slope *= derivative;
        }
    }
}
