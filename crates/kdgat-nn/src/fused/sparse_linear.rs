//! A linear layer on sparse rows, `X Wᵀ + b`, such as bags of words.
//!
//! The forward adds rows of Wᵀ by the values of each row of X, the backward rows of the gradient by the values of each
//! column of X (see [`sparse_sums`](super::sparse_sums)). No result depends on the number of threads.

use std::ffi::CStr;

use kdgat_base::random;
use kdgat_graph::SparseRows;
use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::simd::dispatch;
use kdgat_torch::view;
use tch::{Device, Kind, TchError, Tensor};

use super::neighbours::column_sums;
use super::sparse_sums::{Lines, Plan, Sums, Tile, copied_tiles, tiles, transposed_from_tiles, transposed_tiles};
use super::step_seed::{self, LayerId};
use super::{applies, empty, expect_elements, shape};
use crate::attention::Backend;
use crate::layers::{Mode, composed_dropout};
use crate::{ModelError, segments};

/// Sparse rows as a layer reads them, with dropout. All linear maps of the same input drop the same values.
#[derive(Debug)]
pub struct SparseInput {
    x: SparseRows,
    dropout: Option<ValueDropout>,
}

impl SparseInput {
    /// The rows with the dropout of `layer` in the current step.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn new(
        x: &SparseRows,
        layer: LayerId,
        probability: f64,
        kernel: Backend,
        mode: Mode,
    ) -> Result<Self, ModelError> {
        let x = x.shallow_clone();
        if applies(kernel, &[&x.values]) {
            let drops = mode == Mode::Training && probability > 0.0;
            let seed = drops.then(|| step_seed::of_layer(layer)).transpose()?;
            let rows_before = step_seed::rows_before(layer);
            let dropout = seed.map(|seed| ValueDropout { rows_before, ..ValueDropout::new(probability, seed) });
            return Ok(Self { x, dropout });
        }
        let values = composed_dropout(&x.values, probability, mode)?;
        Ok(Self { x: SparseRows { values, ..x }, dropout: None })
    }

    /// Number of rows.
    pub fn num_rows(&self) -> i64 {
        self.x.num_rows()
    }

    /// Number of columns.
    pub fn columns(&self) -> i64 {
        self.x.columns
    }

    /// Type and device of the values.
    pub fn options(&self) -> (Kind, Device) {
        (self.x.values.kind(), self.x.values.device())
    }

    /// Applies a linear layer to the first `rows` rows: → `[rows, output]`, for a weight `[output, columns]` and an optional bias
    /// `[output]`.
    ///
    /// Composed of torch's operations, it needs memory for a row of the output for each value.
    ///
    /// # Errors
    /// Shapes that do not match, or errors of libtorch.
    pub fn linear(
        &self,
        rows: i64,
        weight: &Tensor,
        bias: Option<&Tensor>,
        kernel: Backend,
    ) -> Result<Tensor, ModelError> {
        let ([outputs, columns], x) = (shape("weight", weight)?, &self.x);
        if columns as i64 != x.columns || rows > x.num_rows() {
            let found = [x.num_rows(), x.columns];
            let text = format!("x is {found:?}, the weight is for {columns} columns of {rows} rows");
            return Err(TchError::Shape(text).into());
        }
        if let Some(bias) = bias {
            expect_elements("bias", bias, outputs)?;
        }
        if applies(kernel, &[&x.values, weight]) && bias.is_none_or(|bias| applies(kernel, &[bias])) {
            let mut inputs = vec![weight.f_contiguous()?];
            inputs.extend(bias.map(Tensor::f_contiguous).transpose()?);
            let function = SparseLinear { x: x.shallow_clone(), rows: rows as usize, dropout: self.dropout };
            let mut results = autograd::apply(function, &inputs.iter().collect::<Vec<_>>())?;
            return Ok(results.pop().unwrap_or_default());
        }
        self.composed(rows, weight, bias)
    }

    fn composed(&self, rows: i64, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, ModelError> {
        let x = &self.x;
        let values = match self.dropout {
            None => x.values.shallow_clone(),
            Some(dropout) => x.values.f_mul(&dropout.factors(x)?)?,
        };
        let values = values.f_to_kind(weight.f_kind()?)?.f_unsqueeze(1)?;
        let picked = weight.f_transpose(0, 1)?.f_index_select(0, &x.column_index)?.f_mul(&values)?;
        let counts = x.row_pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?.f_to_kind(Kind::Int64)?;
        let numbers = Tensor::f_arange(x.num_rows(), (Kind::Int64, x.values.device()))?;
        // With the number of values given, the host does not wait for the device.
        let row_of_value = numbers.f_repeat_interleave_self_tensor(&counts, 0, x.values.size()[0])?;
        let sums = segments::sums(&picked, &x.row_pointers, &row_of_value)?.f_narrow(0, 0, rows)?;
        Ok(match bias {
            None => sums,
            Some(bias) => sums.f_add(bias)?,
        })
    }
}

/// Dropout of the values of a sparse matrix, a pure function of seed, row and column. Zeros stay zeros, so the result is
/// distributed as with dropout of all elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueDropout {
    /// A value is dropped if its 32 random bits are below this.
    threshold: u32,
    /// Factor of values that are not dropped.
    pub(super) scale: f32,
    seed: u64,
    /// Rows of the whole batch before the first one.
    rows_before: u64,
}

impl ValueDropout {
    fn new(probability: f64, seed: u64) -> Self {
        let threshold = (probability * 4_294_967_296.0) as u32;
        Self { threshold, scale: (1.0 / (1.0 - probability)) as f32, seed, rows_before: 0 }
    }

    #[inline(always)]
    pub(super) fn keeps(self, row: usize, column: usize) -> bool {
        let bits = random::mix(self.seed ^ ((self.rows_before + row as u64) << 32 | column as u64));
        (bits >> 32) as u32 >= self.threshold
    }

    /// Factors of all values of a matrix on the CPU, in the order of rows.
    fn factors(self, x: &SparseRows) -> Result<Tensor, TchError> {
        let pointers = view::read::<i32>("row_pointers", &x.row_pointers)?;
        let columns = view::read::<i32>("column_index", &x.column_index)?;
        let factor = |row, column: &i32| if self.keeps(row, *column as usize) { self.scale } else { 0.0 };
        let of_row = |(row, ends): (usize, &[i32])| {
            columns[ends[0] as usize..ends[1] as usize].iter().map(move |column| factor(row, column))
        };
        Tensor::f_from_slice(&pointers.windows(2).enumerate().flat_map(of_row).collect::<Vec<f32>>())
    }
}

struct SparseLinear {
    x: SparseRows,
    /// Number of rows of the result.
    rows: usize,
    dropout: Option<ValueDropout>,
}

impl Function for SparseLinear {
    const NAME: &'static CStr = c"linear layer on sparse rows";

    fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        let [outputs, columns] = shape("weight", inputs[0])?;
        let bias = inputs.get(1).map(|bias| view::read::<f32>("bias", bias)).transpose()?;
        let plan = Plan::of_forward(self.x.values.numel(), [self.x.num_rows() as usize, columns]);
        let weight = transposed_tiles(view::read("weight", inputs[0])?, [outputs, columns], plan.tile)?;
        let tiles = tiles(view::read("weight", &weight)?, [columns, outputs], plan.tile);
        let lines = Lines {
            pointers: view::read("row_pointers", &self.x.row_pointers)?,
            others: view::read("column_index", &self.x.column_index)?,
            values: view::read("values", &self.x.values)?,
            limit: None,
            dropout: self.dropout,
            are_rows: true,
        };
        let mut result = empty(&[self.rows as i64, outputs as i64])?;
        let blocks = lines.blocks(self.rows, plan);
        let bounds = blocks.iter().map(|block| block.start).chain([self.rows]).map(|row| row * outputs);
        let parts = Parts::new(view::write::<f32>("result", &mut result)?, bounds);
        parallel_for(blocks.len(), 1, |range| {
            for block in range {
                let (block, output) = (blocks[block].clone(), parts.take(block));
                dispatch(Sums { lines, plan, block, tiles: &tiles, bias, stride: outputs, output });
            }
        });
        drop(parts);
        Ok(Forward { outputs: vec![result], saved: Vec::new() })
    }

    fn backward(&self, _: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(needed.iter().map(|_| None).collect()) };
        let gradient = gradient.f_contiguous()?;
        let mut results = vec![needed[0].then(|| self.gradient_of_weight(&gradient)).transpose()?];
        if let Some(&needed) = needed.get(1) {
            results.push(needed.then(|| column_sums(&gradient)).transpose()?);
        }
        Ok(results)
    }
}

impl SparseLinear {
    fn gradient_of_weight(&self, gradient: &Tensor) -> Result<Tensor, TchError> {
        let ([rows, outputs], columns) = (shape("gradient", gradient)?, self.x.columns as usize);
        let plan = Plan::of_backward(self.x.values.numel(), [self.x.num_rows() as usize, columns]);
        let gradient = copied_tiles(view::read("gradient", gradient)?, [rows, outputs], plan.tile)?;
        let tiles = tiles(view::read("gradient", &gradient)?, [rows, outputs], plan.tile);
        let lines = Lines {
            pointers: view::read("column_pointers", &self.x.column_pointers)?,
            others: view::read("row_index", &self.x.row_index)?,
            values: view::read("transposed_values", &self.x.transposed_values)?,
            limit: (self.rows < self.x.num_rows() as usize).then_some(self.rows),
            dropout: self.dropout,
            are_rows: false,
        };
        let blocks = lines.blocks(columns, plan);
        let mut sums = empty(&[columns as i64, outputs as i64])?;
        let of_tile = |tile: &Tile<'_>| {
            let (first, width) = (tile.first * columns, tile.width());
            blocks.iter().map(move |block| first + block.start * width)
        };
        let bounds = tiles.iter().flat_map(of_tile).chain([columns * outputs]);
        let parts = Parts::new(view::write::<f32>("sums", &mut sums)?, bounds);
        // All blocks of a tile one after another: its rows of the gradient stay in the cache.
        parallel_for(tiles.len() * blocks.len(), 1, |range| {
            for part in range {
                let tile = &tiles[part / blocks.len()];
                let block = blocks[part % blocks.len()].clone();
                let (stride, output) = (tile.width(), parts.take(part));
                dispatch(Sums { lines, plan, block, tiles: std::slice::from_ref(tile), bias: None, stride, output });
            }
        });
        drop(parts);
        transposed_from_tiles(view::read("sums", &sums)?, [columns, outputs], plan.tile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_graphs::{numbers, relative_difference};
    use kdgat_torch::philox::philox;
    use proptest::prelude::*;

    /// A random matrix in which each value is zero with a probability of 1 − `share`.
    fn matrix([rows, columns]: [usize; 2], share: f64, seed: u64) -> SparseRows {
        let (mut pointers, mut index, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..rows {
            for column in 0..columns {
                let words = philox(seed, (row * columns + column) as u64);
                if f64::from(words[0]) / 4_294_967_296.0 < share {
                    index.push(column as i32);
                    values.push((f64::from(words[1]) / 2_147_483_648.0 - 1.0) as f32);
                }
            }
            pointers.push(index.len() as i32);
        }
        SparseRows::new(columns, &pointers, &index, &values).unwrap()
    }

    /// Result and gradients with respect to weight and bias.
    fn results(x: &SparseRows, [rows, outputs]: [i64; 2], apply: impl Fn(&Tensor, &Tensor) -> Tensor) -> [Tensor; 3] {
        let weight = numbers(&[outputs, x.columns], 1).set_requires_grad(true);
        let bias = numbers(&[outputs], 2).set_requires_grad(true);
        let y = apply(&weight, &bias);
        (&y * numbers(&[rows, outputs], 3)).sum(Kind::Float).backward();
        [y.detach(), weight.grad(), bias.grad()]
    }

    fn with(kernel: Backend, x: &SparseRows, shape: [i64; 2], dropout: Option<ValueDropout>) -> [Tensor; 3] {
        let input = SparseInput { x: x.shallow_clone(), dropout };
        results(x, shape, |weight, bias| input.linear(shape[0], weight, Some(bias), kernel).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Fused and composed layers are the dense one, also for the first rows alone.
        #[test]
        fn a_sparse_layer_is_the_dense_one(
            rows in 0usize..70, others in 0usize..20, columns in 1usize..60, outputs in 1i64..90, share in 0.0f64..0.6,
        ) {
            let x = matrix([rows + others, columns], share, 5);
            let dense = x.to_dense().unwrap().narrow(0, 0, rows as i64);
            let shape = [rows as i64, outputs];
            let expected = results(&x, shape, |weight, bias| dense.linear(weight, Some(bias)));
            for kernel in [Backend::Fused, Backend::Composed] {
                for (found, expected) in with(kernel, &x, shape, None).iter().zip(&expected) {
                    let difference = relative_difference(found, expected);
                    prop_assert!(difference < 1e-5, "{kernel:?}: {difference:e}");
                }
            }
        }
    }

    /// The backward drops the values that the forward drops: both are those of the matrix without them.
    #[test]
    fn forward_and_backward_have_the_same_mask() {
        let x = matrix([90, 50], 0.3, 8);
        let dropout = ValueDropout::new(0.4, 77);
        let dense = x.to_dense().unwrap();
        let mask: Vec<f32> =
            (0..90 * 50).map(|at| if dropout.keeps(at / 50, at % 50) { dropout.scale } else { 0.0 }).collect();
        let dropped = dense * Tensor::from_slice(&mask).reshape([90, 50]);
        for rows in [90, 31] {
            let part = dropped.narrow(0, 0, rows);
            let expected = results(&x, [rows, 40], |weight, bias| part.linear(weight, Some(bias)));
            for kernel in [Backend::Fused, Backend::Composed] {
                for (found, expected) in with(kernel, &x, [rows, 40], Some(dropout)).iter().zip(&expected) {
                    assert!(relative_difference(found, expected) < 1e-5, "{kernel:?}");
                }
            }
        }
        let kept = mask.iter().filter(|&&factor| factor > 0.0).count() as f64 / mask.len() as f64;
        // Four standard errors.
        assert!((kept - 0.6).abs() < 4.0 * (0.24 / mask.len() as f64).sqrt(), "{kept} kept");
    }

    #[test]
    fn composed_dropout_keeps_the_mean() {
        let x = SparseRows::new(1, &(0..=40_000).collect::<Vec<_>>(), &[0; 40_000], &[1.0; 40_000]).unwrap();
        let weight = Tensor::ones([1, 1], (Kind::Float, Device::Cpu));
        let input = SparseInput::new(&x, LayerId::new("a"), 0.25, Backend::Composed, Mode::Training).unwrap();
        let y = input.linear(40_000, &weight, None, Backend::Composed).unwrap();
        let mean = y.mean(Kind::Float).double_value(&[]);
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!((y.max().double_value(&[]) - 4.0 / 3.0).abs() < 1e-6 && y.min().double_value(&[]) == 0.0);
    }

    #[test]
    fn numbers_of_threads_change_no_bit() {
        let x = matrix([1500, 300], 0.2, 3);
        let threads = tch::get_num_threads();
        let dropout = Some(ValueDropout::new(0.1, 4));
        let found = [1, 2, 4].map(|count| {
            tch::set_num_threads(count);
            with(Backend::Fused, &x, [1500, 100], dropout)
        });
        tch::set_num_threads(threads);
        for other in &found[1..] {
            assert!(found[0].iter().zip(other).all(|(one, other)| one.equal(other)));
        }
    }

    /// A row's result is the same in every batch.
    #[test]
    fn a_row_depends_on_itself_alone() {
        let weight = numbers(&[70, 64], 1);
        let input = SparseInput { x: matrix([40, 64], 0.3, 3), dropout: None };
        let all = input.linear(40, &weight, None, Backend::Fused).unwrap();
        let first = input.linear(7, &weight, None, Backend::Fused).unwrap();
        assert!(first.equal(&all.narrow(0, 0, 7)));
    }

    #[test]
    fn other_columns_are_refused() {
        let input = SparseInput { x: matrix([4, 5], 0.5, 1), dropout: None };
        let error = |rows, weight: &Tensor| input.linear(rows, weight, None, Backend::Auto).unwrap_err().to_string();
        assert!(error(4, &numbers(&[3, 6], 1)).contains("x is [4, 5], the weight is for 6 columns"));
        assert!(error(5, &numbers(&[3, 5], 1)).contains("of 5 rows"));
    }
}
