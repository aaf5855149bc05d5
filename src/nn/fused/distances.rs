//! How far a student's latent and reconstruction are from its teacher's, and in which directions, in one pass over the
//! nodes. The order of a sum depends on the shape alone, not on where the teacher's rows lie.

use std::ops::Range;

use tch::{TchError, Tensor};

use super::distillation::Targets;
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
}

/// Rows of the student and of the teacher.
struct Compared<'a> {
    found: &'a [f32],
    wanted: Values<'a>,
    /// Of a row of the student, and of the teacher.
    columns: [usize; 2],
    /// What half the gradient by the student's rows is multiplied by.
    factor: f32,
}

impl<'a> Latents<'a> {
    /// Of the student's latent, and weight and bias of the projection if there is one; `factor` is that of the distance's
    /// gradients.
    pub(super) fn new(inputs: &'a [Tensor], targets: &'a Targets, factor: f64) -> Result<Self, TchError> {
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
        // The rows of the reconstruction, which are compared by the same blocks, count, too.
        let features = targets.reconstruction.numel() / nodes.max(1);
        let blocks = Blocks::new(nodes, inputs + outputs + features, rows);
        Ok(Self { compared: Compared::new(latent, &targets.latent, [inputs, outputs], factor)?, projection, blocks })
    }

    /// What sums are taken over.
    pub(super) fn blocks(&self) -> Blocks {
        self.blocks
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
            gradients.extend(linear::sums(shares, columns, self.compared.factor)?);
        }
        Ok((rest, sums.iter().sum(), gradients))
    }

    /// Of some rows, with room for the gradients by latent and projection.
    fn of_rows(&self, rows: Range<usize>, room: Option<(&mut [f32], &mut [f32])>) -> f64 {
        match &self.projection {
            Some(projection) => self.compared.projected(projection, rows, room),
            None => self.compared.direct(rows, room.map(|(latent, _)| latent)),
        }
    }
}

/// The squared distance of a student's reconstruction from its teacher's; where it is wanted, half its gradient, times
/// `factor`.
pub(super) fn of_reconstruction(
    reconstruction: &Tensor,
    target: &Rows,
    blocks: Blocks,
    factor: f64,
    with_gradient: bool,
) -> Result<(f64, Option<Tensor>), TchError> {
    let [nodes, features] = shape("reconstruction", reconstruction)?;
    expect_elements("reconstruction", reconstruction, blocks.rows * features)?;
    let compared = Compared::new(reconstruction, target, [features, features], factor)?;
    let mut gradient = if with_gradient { Some(empty(&[nodes as i64, features as i64])?) } else { None };
    let mut sums = vec![0.0; blocks.count()];
    {
        let sum_parts = Parts::new(&mut sums, 0..=blocks.count());
        let room = gradient.as_mut().map(|tensor| view::write::<f32>("gradient", tensor)).transpose()?;
        let parts = room.map(|room| Parts::new(room, blocks.bounds(features)));
        blocks.for_each(|block| {
            let room = parts.as_ref().map(|parts| parts.take(block));
            sum_parts.take(block)[0] = compared.direct(blocks.rows(block), room);
        });
    }
    Ok((sums.iter().sum(), gradient))
}

impl<'a> Compared<'a> {
    fn new(found: &'a Tensor, wanted: &'a Rows, columns: [usize; 2], factor: f64) -> Result<Self, TchError> {
        let nodes = found.numel() / columns[0].max(1);
        expect_values("a teacher's target", wanted, nodes * columns[1])?;
        let (found, wanted) = (view::read("an output of the student", found)?, wanted.read("a target")?);
        Ok(Self { found, wanted, columns, factor: factor as f32 })
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

    fn direct(&self, rows: Range<usize>, gradient: Option<&mut [f32]>) -> f64 {
        let values = rows.start * self.columns[0]..rows.end * self.columns[0];
        let mut room = Vec::new();
        let is_wanted = gradient.is_some();
        let differences = gradient.unwrap_or_else(|| {
            room.resize(values.len(), 0.0);
            &mut room
        });
        let (mut found, mut places) = (&self.found[values.clone()], &mut *differences);
        self.wanted.for_each_run(values, |wanted| {
            let (run, place);
            (run, found) = found.split_at(wanted.len());
            (place, places) = std::mem::take(&mut places).split_at_mut(wanted.len());
            dispatch(Subtract { found: run, wanted, differences: place });
        });
        let sum = dispatch(SumOfSquares(differences));
        if is_wanted {
            dispatch(Scale { values: differences, factor: self.factor });
        }
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

    use tch::{Device, Kind};

    use super::*;
    use crate::torch::parallel::OwnThreads;
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
        let [reconstruction, wanted] = [normal(nodes, 11), normal(nodes, 11)];
        let targets = Targets { latent: Rows::Whole(normal(nodes, outputs)), reconstruction: Rows::Whole(wanted) };
        let latents = Latents::new(&student, &targets, 0.3).unwrap();
        let ((), sum, gradients) = latents.distance(true, || ()).unwrap();
        for round in 0..30 {
            let _own = OwnThreads::new();
            // Loops meanwhile, more of them each time.
            let compare = |_| of_reconstruction(&reconstruction, &targets.reconstruction, latents.blocks(), 1.0, true);
            let decode = || (0..round).map(compare).filter(Result::is_ok).count();
            let (compared, found, found_gradients) = latents.distance(true, decode).unwrap();
            assert_eq!((compared, found), (round, sum));
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
            let (nodes, inputs, features) = (1000, 16, 11);
            let [latent, reconstruction] = [normal(nodes, inputs), normal(nodes, features)];
            let [mean, wanted] = [normal(nodes, outputs), normal(nodes, features)];
            let mut inputs_of_pass = vec![latent];
            if outputs != inputs {
                inputs_of_pass.extend([normal(outputs, inputs), normal(1, outputs).reshape([outputs])]);
            }
            let found = [false, true].map(|is_apart| {
                let rows = |matrix: &Tensor| match is_apart {
                    true => apart(matrix),
                    false => Rows::Whole(matrix.shallow_clone()),
                };
                let targets = Targets { latent: rows(&mean), reconstruction: rows(&wanted) };
                let latents = Latents::new(&inputs_of_pass, &targets, 0.3).unwrap();
                let ((), alone, none) = latents.distance(false, || ()).unwrap();
                let ((), sum, mut gradients) = latents.distance(true, || ()).unwrap();
                assert_eq!((alone, none.len()), (sum, 0), "gradients change the distance");
                let of_features = |with_gradient| {
                    of_reconstruction(&reconstruction, &targets.reconstruction, latents.blocks(), 0.7, with_gradient)
                };
                let [(alone, none), (of_features, gradient)] = [false, true].map(|with| of_features(with).unwrap());
                assert_eq!((alone, none.is_none()), (of_features, true), "a gradient changes the distance");
                gradients.extend(gradient);
                ([sum, of_features], gradients)
            });
            assert_eq!(found[0].0, found[1].0);
            assert_eq!(found[0].1.len(), 1 + inputs_of_pass.len());
            for (whole, apart) in found[0].1.iter().zip(&found[1].1) {
                assert!(whole == apart, "a gradient depends on where the targets lie, {outputs} columns");
            }
        }
    }
}
