//! Distances of a student's rows from its teacher's, and their gradients, in one pass over the nodes. The order of a
//! sum depends on the shape alone, not on where the teacher's rows are stored.

use std::ops::Range;

use kdgat_torch::parallel::{Parts, Pieces, beside};
use kdgat_torch::rows::{Rows, Values};
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::linear;
use super::projection::{Projection, SumOfSquares};
use super::{Blocks, empty, expect_elements, shape};

/// A student's latent and its teacher's.
pub(super) struct Latents<'a> {
    compared: Compared<'a>,
    /// The projection; without one, the columns are compared directly.
    projection: Option<Projection<'a>>,
    blocks: Blocks,
    /// Factor of half the gradients.
    factor: f32,
}

/// Rows of the student and of the teacher.
pub(super) struct Compared<'a> {
    found: &'a [f32],
    wanted: Values<'a>,
    /// Number of columns of the student's rows and of the teacher's.
    columns: [usize; 2],
}

impl<'a> Latents<'a> {
    /// Wraps the student's latent, followed by weight and bias of the projection if there is one; `factor` is that of
    /// the distance's gradients.
    pub(super) fn new(inputs: &'a [Tensor], target: &'a Rows, factor: f64) -> Result<Self, TchError> {
        let [latent, projection @ ..] = inputs else {
            return Err(TchError::Shape("no latent to compare".to_owned()));
        };
        let [nodes, inputs] = shape("latent", latent)?;
        let (projection, outputs, rows) = match projection {
            [weight, bias] => {
                let [outputs, _] = shape("weight of the projection", weight)?;
                expect_elements("weight of the projection", weight, inputs * outputs)?;
                expect_elements("bias of the projection", bias, outputs)?;
                let (weight, bias) = (view::read("weight", weight)?, view::read("bias", bias)?);
                let projection = Projection::new(weight, bias, inputs, factor as f32);
                (Some(projection), outputs, linear::rows_of_a_share([inputs, outputs]))
            }
            _ => (None, inputs, 1),
        };
        let blocks = Blocks::new(nodes, inputs + outputs, rows);
        let compared = Compared::new(latent, target, [inputs, outputs])?;
        Ok(Self { compared, projection, blocks, factor: factor as f32 })
    }

    /// Uninitialised buffers for half the gradients, times the factor: with respect to the latent, and to each block's
    /// projection if there is one.
    pub(super) fn room(&self) -> Result<[Tensor; 2], TchError> {
        let (blocks, share) = (self.blocks, self.share_elements());
        Ok([
            empty(&[blocks.rows as i64, self.compared.columns[0] as i64])?,
            empty(&[blocks.count() as i64, share as i64])?,
        ])
    }

    /// The squared distance. Writes the gradients into `room` if given. `rest` runs on this thread while others compute
    /// (see [`beside`]).
    pub(super) fn distance<R>(
        &self,
        room: Option<&mut [Tensor; 2]>,
        rest: impl FnOnce(&Pieces) -> R,
    ) -> Result<(R, f64), TchError> {
        let (blocks, share) = (self.blocks, self.share_elements());
        let mut sums = vec![0.0; blocks.count()];
        let rest = {
            let sum_parts = Parts::new(&mut sums, 0..=blocks.count());
            let parts = match room {
                Some([latent, shares]) => Some([
                    Parts::new(view::write("gradient", latent)?, blocks.bounds(self.compared.columns[0])),
                    Parts::new(view::write("gradient", shares)?, (0..=blocks.count()).map(|block| block * share)),
                ]),
                None => None,
            };
            let compare = |block| {
                let room = parts.as_ref().map(|[latent, shares]| (latent.take(block), shares.take(block)));
                sum_parts.take(block)[0] = self.of_rows(blocks.rows(block), room);
            };
            beside(blocks.count(), compare, rest)
        };
        Ok((rest, sums.iter().sum()))
    }

    /// Number of columns before and after the projection, if there is one.
    pub(super) fn sizes(&self) -> Option<[usize; 2]> {
        self.projection.as_ref().map(|_| self.compared.columns)
    }

    /// Number of elements in a block's gradient with respect to the projection.
    fn share_elements(&self) -> usize {
        self.sizes().map_or(0, linear::share_elements)
    }

    /// The squared distance of some rows; writes the gradients with respect to latent and projection into `room`.
    fn of_rows(&self, rows: Range<usize>, room: Option<(&mut [f32], &mut [f32])>) -> f64 {
        match &self.projection {
            Some(projection) => self.compared.projected(projection, rows, room),
            None => match room {
                Some((latent, _)) => self.compared.direct(rows, latent, self.factor),
                None => self.compared.direct(rows.clone(), &mut vec![0.0; rows.len() * self.compared.columns[0]], 1.0),
            },
        }
    }
}

impl<'a> Compared<'a> {
    pub(super) fn new(found: &'a Tensor, wanted: &'a Rows, columns: [usize; 2]) -> Result<Self, TchError> {
        let nodes = found.numel() / columns[0].max(1);
        expect_values("a teacher's target", wanted, nodes * columns[1])?;
        let (found, wanted) = (view::read("an output of the student", found)?, wanted.read("a target")?);
        Ok(Self { found, wanted, columns })
    }

    fn projected(
        &self,
        projection: &Projection,
        rows: Range<usize>,
        mut gradients: Option<(&mut [f32], &mut [f32])>,
    ) -> f64 {
        let [inputs, outputs] = self.columns;
        if let Some((_, share)) = &mut gradients {
            share.fill(0.0);
        }
        let targets = self.wanted.rows(rows.clone(), outputs);
        projection.distance(&self.found[rows.start * inputs..rows.end * inputs], &targets, gradients)
    }

    /// The squared distance of rows with as many columns as the teacher's. Writes half its gradient, times `factor`, to
    /// `differences`.
    pub(super) fn direct(&self, rows: Range<usize>, differences: &mut [f32], factor: f32) -> f64 {
        let values = rows.start * self.columns[0]..rows.end * self.columns[0];
        let (mut found, mut places) = (&self.found[values.clone()], &mut *differences);
        self.wanted.for_each_run(values, |wanted| {
            let (run, place);
            (run, found) = found.split_at(wanted.len());
            (place, places) = std::mem::take(&mut places).split_at_mut(wanted.len());
            dispatch(Subtract { found: run, wanted, differences: place });
        });
        let sum = dispatch(SumOfSquares(differences));
        dispatch(Scale { values: differences, factor });
        sum
    }
}

/// [`expect_elements`] for rows that may be stored in pieces.
fn expect_values(name: &str, rows: &Rows, expected: usize) -> Result<(), TchError> {
    match rows {
        Rows::Whole(tensor) => expect_elements(name, tensor, expected),
        Rows::Apart(_) if rows.numel() == expected => Ok(()),
        Rows::Apart(_) => Err(TchError::Shape(format!("{name} has {} values, expected {expected}", rows.numel()))),
    }
}

struct Subtract<'a> {
    found: &'a [f32],
    wanted: &'a [f32],
    differences: &'a mut [f32],
}

impl Kernel for Subtract<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (difference, (&found, &wanted)) in self.differences.iter_mut().zip(self.found.iter().zip(self.wanted)) {
            *difference = found - wanted;
        }
    }
}

struct Scale<'a> {
    values: &'a mut [f32],
    factor: f32,
}

impl Kernel for Scale<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for value in self.values {
            *value *= self.factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tch::{Device, Kind};

    use super::*;
    use kdgat_torch::parallel::{OwnThreads, parallel_for};
    use kdgat_torch::rows::{Blocks as Bytes, Pieces as RowPieces};

    /// The rows of `matrix` in one block of bytes, in pieces of three rows, the last piece first.
    fn apart(matrix: &Tensor) -> Rows {
        let [rows, columns] = shape("matrix", matrix).unwrap();
        let values = view::read::<f32>("matrix", matrix).unwrap();
        let starts: Vec<usize> = (0..rows).step_by(3).chain([rows]).collect();
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        for piece in starts.windows(2).rev() {
            places.push((0, bytes.len() as u32));
            bytes.extend(values[piece[0] * columns..piece[1] * columns].iter().flat_map(|value| value.to_le_bytes()));
        }
        places.reverse();
        let blocks = Arc::new(Bytes::new(vec![Tensor::from_slice(&bytes)]).unwrap());
        Rows::Apart(RowPieces::new(blocks, places, Arc::new(starts), columns).unwrap())
    }

    /// The squared distance and its gradients.
    fn with_gradients(latents: &Latents, rest: impl FnOnce(&Pieces)) -> (f64, [Tensor; 2]) {
        let mut room = latents.room().unwrap();
        let ((), sum) = latents.distance(Some(&mut room), rest).unwrap();
        (sum, room)
    }

    #[test]
    fn results_do_not_depend_on_the_threads() {
        let normal = |rows: i64, columns: i64| Tensor::randn([rows, columns], (Kind::Float, Device::Cpu));
        let (nodes, inputs, outputs) = (5000, 16, 48);
        let student = [normal(nodes, inputs), normal(outputs, inputs), normal(1, outputs).reshape([outputs])];
        let target = Rows::Whole(normal(nodes, outputs));
        let latents = Latents::new(&student, &target, 0.3).unwrap();
        let expected = with_gradients(&latents, |_| ());
        for round in 0..30 {
            let _own = OwnThreads::new();
            // Loops run meanwhile, more of them in each round.
            let decoded = AtomicUsize::new(0);
            let decode = |_: &Pieces| {
                for _ in 0..round {
                    parallel_for(64, 1, |range| _ = decoded.fetch_add(range.len(), Ordering::Relaxed));
                }
            };
            assert!(with_gradients(&latents, decode) == expected, "the result depends on the threads");
            assert_eq!(decoded.into_inner(), 64 * round);
            // Unwinding withdraws the work from other threads.
            let panics = || latents.distance(None, |_| panic!("out of memory")).map(|((), ..)| ());
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        }
    }

    #[test]
    fn results_do_not_depend_on_where_targets_are_stored() {
        let normal = |rows: i64, columns: i64| Tensor::randn([rows, columns], (Kind::Float, Device::Cpu));
        for outputs in [48, 16] {
            let (nodes, inputs) = (1000, 16);
            let [latent, mean] = [normal(nodes, inputs), normal(nodes, outputs)];
            let mut inputs_of_pass = vec![latent];
            if outputs != inputs {
                inputs_of_pass.extend([normal(outputs, inputs), normal(1, outputs).reshape([outputs])]);
            }
            let [whole, apart] = [Rows::Whole(mean.shallow_clone()), apart(&mean)].map(|target| {
                let latents = Latents::new(&inputs_of_pass, &target, 0.3).unwrap();
                let ((), alone) = latents.distance(None, |_| ()).unwrap();
                let (sum, gradients) = with_gradients(&latents, |_| ());
                assert_eq!(alone, sum, "gradients change the distance");
                (sum, gradients)
            });
            assert!(whole == apart, "the result depends on where the targets are stored, {outputs} columns");
        }
    }
}
