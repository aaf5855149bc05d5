//! How far rows of a student are from its teacher's, and in which directions, in one pass over the nodes. The order of a sum
//! depends on the shape alone, not on where the teacher's rows lie.

use std::ops::Range;

use tch::{TchError, Tensor};

use super::linear;
use super::projection::{Projection, SumOfSquares};
use super::{Blocks, empty, expect_elements, shape};
use crate::torch::parallel::{Parts, beside};
use crate::torch::rows::{Rows, Values};
use crate::torch::simd::{Instructions, Kernel, dispatch};
use crate::torch::view;

/// A student's latent beside its teacher's.
pub(super) struct Latents<'a> {
    compared: Compared<'a>,
    /// Without one the columns are compared as they are.
    projection: Option<Projection<'a>>,
    blocks: Blocks,
    /// What half the gradients are multiplied by.
    factor: f32,
}

/// Rows of the student and of the teacher.
pub(super) struct Compared<'a> {
    found: &'a [f32],
    wanted: Values<'a>,
    /// Of a row of the student, and of the teacher.
    columns: [usize; 2],
}

impl<'a> Latents<'a> {
    /// Of the student's latent, and weight and bias of the projection if there is one; `factor` is that of the distance's
    /// gradients.
    pub(super) fn new(inputs: &'a [Tensor], target: &'a Rows, factor: f64) -> Result<Self, TchError> {
        let [latent, projection @ ..] = inputs else {
            return Err(TchError::Shape("there is no latent to compare".to_owned()));
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

    /// The squared distance; where they are wanted, half its gradients, times the factor: by latent and, if there is a
    /// projection, by its weight and bias. `rest` runs on this thread, and others compute meanwhile (see [`beside`]).
    pub(super) fn distance<R>(
        &self,
        with_gradients: bool,
        rest: impl FnOnce() -> R,
    ) -> Result<(R, f64, Vec<Tensor>), TchError> {
        let (blocks, columns) = (self.blocks, self.compared.columns);
        // A block's own gradients of the projection, one after the other: added up in the blocks' order.
        let share = self.projection.as_ref().map_or(0, |_| linear::share_elements(columns));
        let mut gradients = Vec::new();
        if with_gradients {
            gradients.push(empty(&[blocks.rows as i64, columns[0] as i64])?);
            gradients.push(empty(&[blocks.count() as i64, share as i64])?);
        }
        let mut sums = vec![0.0; blocks.count()];
        let rest = {
            let sum_parts = Parts::new(&mut sums, 0..=blocks.count());
            let shares = (0..=blocks.count()).map(|block| block * share).collect();
            let bounds: [Vec<usize>; 2] = [blocks.bounds(columns[0]).collect(), shares];
            let parts = gradients.iter_mut().zip(bounds);
            let parts = parts.map(|(tensor, bounds)| Ok(Parts::new(view::write::<f32>("gradient", tensor)?, bounds)));
            let parts = parts.collect::<Result<Vec<_>, TchError>>()?;
            let compare = |block| {
                let mut room = parts.iter().map(|part| part.take(block));
                let room = room.next().zip(room.next());
                sum_parts.take(block)[0] = self.of_rows(blocks.rows(block), room);
            };
            beside(blocks.count(), compare, rest)
        };
        if let (Some(shares), Some(_)) = (gradients.pop(), &self.projection) {
            let shares = view::read("shares of the gradient", &shares)?;
            gradients.extend(linear::sums(shares, columns, self.factor)?);
        }
        Ok((rest, sums.iter().sum(), gradients))
    }

    /// Of some rows, with room for the gradients by latent and projection.
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

    /// The squared distance of rows that have as many columns as the teacher's; `differences` gets half its gradient, times
    /// `factor`.
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

/// [`expect_elements`] of rows that need not lie in a tensor.
fn expect_values(name: &str, rows: &Rows, expected: usize) -> Result<(), TchError> {
    match rows {
        Rows::Whole(tensor) => expect_elements(name, tensor, expected),
        Rows::Apart(_) if rows.numel() == expected => Ok(()),
        Rows::Apart(_) => {
            Err(TchError::Shape(format!("{name} has {} values, {expected} elements are expected", rows.numel())))
        }
    }
}

struct Subtract<'a> {
    found: &'a [f32],
    wanted: &'a [f32],
    differences: &'a mut [f32],
}

impl Kernel for Subtract<'_> {
    type Output = ();

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
    type Output = ();

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
    use crate::torch::parallel::{OwnThreads, parallel_for};
    use crate::torch::rows::{Blocks as Bytes, Pieces};

    /// The rows of `matrix` in a block of bytes, three rows a piece, the last piece first.
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
        Rows::Apart(Pieces::new(blocks, places, Arc::new(starts), columns).unwrap())
    }

    #[test]
    fn who_computes_beside_what_changes_no_bit() {
        let normal = |rows: i64, columns: i64| Tensor::randn([rows, columns], (Kind::Float, Device::Cpu));
        let (nodes, inputs, outputs) = (5000, 16, 48);
        let student = [normal(nodes, inputs), normal(outputs, inputs), normal(1, outputs).reshape([outputs])];
        let target = Rows::Whole(normal(nodes, outputs));
        let latents = Latents::new(&student, &target, 0.3).unwrap();
        let ((), sum, gradients) = latents.distance(true, || ()).unwrap();
        for round in 0..30 {
            let _own = OwnThreads::new();
            // Loops meanwhile, more of them each time.
            let decoded = AtomicUsize::new(0);
            let decode = || {
                for _ in 0..round {
                    parallel_for(64, 1, |range| _ = decoded.fetch_add(range.len(), Ordering::Relaxed));
                }
            };
            let ((), found, found_gradients) = latents.distance(true, decode).unwrap();
            assert_eq!((decoded.into_inner(), found), (64 * round, sum));
            assert!(found_gradients == gradients, "a gradient depends on who computes it");
            // Unwinding takes the work back from whoever is at it.
            let panics = || latents.distance(true, || panic!("out of memory")).map(|((), ..)| ());
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        }
    }

    #[test]
    fn where_the_targets_lie_changes_no_bit() {
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
                let ((), alone, none) = latents.distance(false, || ()).unwrap();
                let ((), sum, gradients) = latents.distance(true, || ()).unwrap();
                assert_eq!((alone, none.len()), (sum, 0), "gradients change the distance");
                assert_eq!(gradients.len(), inputs_of_pass.len());
                (sum, gradients)
            });
            assert_eq!(whole.0, apart.0);
            for (whole, apart) in whole.1.iter().zip(&apart.1) {
                assert!(whole == apart, "a gradient depends on where the targets lie, {outputs} columns");
            }
        }
    }
}
