//! How far a student's latent and reconstruction are from its teacher's, and in which directions, in one pass over the
//! nodes. The order of a sum depends on the shape alone, not on where the teacher's rows lie.

use std::ops::Range;

use tch::{TchError, Tensor};

use super::distillation::Targets;
use super::linear;
use super::projection::{Projection, SumOfSquares};
use super::{Blocks, empty, expect_elements, shape};
use crate::torch::parallel::Parts;
use crate::torch::rows::{Rows, Values};
use crate::torch::simd::{Instructions, Kernel, dispatch};
use crate::torch::view;

/// The outputs of a student beside those of its teacher.
pub(super) struct Outputs<'a> {
    latent: Compared<'a>,
    reconstruction: Compared<'a>,
    /// Of the latent; without one its columns are compared as they are.
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

impl<'a> Outputs<'a> {
    /// Of the student's latent and reconstruction, with weight and bias of the projection if there is one; `factors` are
    /// those of the two distances' gradients.
    pub(super) fn new(
        [latent, reconstruction]: [&'a Tensor; 2],
        projection: &[&'a Tensor],
        targets: &'a Targets,
        factors: [f64; 2],
    ) -> Result<Self, TchError> {
        let ([nodes, inputs], [_, features]) = (shape("latent", latent)?, shape("reconstruction", reconstruction)?);
        expect_elements("reconstruction", reconstruction, nodes * features)?;
        let (projection, outputs, rows) = match projection {
            [weight, bias] => {
                let [outputs, _] = shape("weight of the projection", weight)?;
                expect_elements("weight of the projection", weight, inputs * outputs)?;
                expect_elements("bias of the projection", bias, outputs)?;
                let (weight, bias) = (view::read("weight", weight)?, view::read("bias", bias)?);
                let projection = Projection::new(weight, bias, inputs, factors[0] as f32);
                (Some(projection), outputs, linear::rows_of_a_share([inputs, outputs]))
            }
            _ => (None, inputs, 1),
        };
        let compared = |found, wanted: &'a Rows, columns: [usize; 2], factor| -> Result<Compared<'a>, TchError> {
            expect_values("a teacher's target", wanted, nodes * columns[1])?;
            let (found, wanted) = (view::read("an output of the student", found)?, wanted.read("a target")?);
            Ok(Compared { found, wanted, columns, factor: factor as f32 })
        };
        Ok(Self {
            latent: compared(latent, &targets.latent, [inputs, outputs], factors[0])?,
            reconstruction: compared(reconstruction, &targets.reconstruction, [features, features], factors[1])?,
            projection,
            blocks: Blocks::new(nodes, inputs + outputs + features, rows),
        })
    }

    /// The squared distances of latent and reconstruction; where they are wanted, half their gradients, times their
    /// factors: by latent, by reconstruction and, if there is a projection, by its weight and bias.
    pub(super) fn distances(&self, with_gradients: bool) -> Result<([f64; 2], Vec<Tensor>), TchError> {
        let blocks = self.blocks;
        let ([inputs, _], [features, _]) = (self.latent.columns, self.reconstruction.columns);
        // A block's own gradients of the projection, one after the other: added up in the blocks' order.
        let share = self.projection.as_ref().map_or(0, |_| linear::share_elements(self.latent.columns));
        let mut gradients = Vec::new();
        if with_gradients {
            let nodes = blocks.rows as i64;
            gradients.extend([empty(&[nodes, inputs as i64])?, empty(&[nodes, features as i64])?]);
            gradients.push(empty(&[blocks.count() as i64, share as i64])?);
        }
        let mut sums = vec![[0.0; 2]; blocks.count()];
        {
            let sum_parts = Parts::new(&mut sums, 0..=blocks.count());
            let shares = (0..=blocks.count()).map(|block| block * share).collect();
            let bounds: [Vec<usize>; 3] = [blocks.bounds(inputs).collect(), blocks.bounds(features).collect(), shares];
            let parts = gradients.iter_mut().zip(bounds);
            let parts = parts.map(|(tensor, bounds)| Ok(Parts::new(view::write::<f32>("gradient", tensor)?, bounds)));
            let parts = parts.collect::<Result<Vec<_>, TchError>>()?;
            blocks.for_each(|block| {
                let mut room = parts.iter().map(|part| part.take(block));
                let room = [room.next(), room.next(), room.next()];
                sum_parts.take(block)[0] = self.of_rows(blocks.rows(block), room);
            });
        }
        if let (Some(shares), Some(_)) = (gradients.pop(), &self.projection) {
            let shares = view::read("shares of the gradient", &shares)?;
            gradients.extend(linear::sums(shares, self.latent.columns, self.latent.factor)?);
        }
        let added = |which: usize| sums.iter().map(|of_block| of_block[which]).sum();
        Ok(([added(0), added(1)], gradients))
    }

    /// Of some rows, with room for the gradients by latent, reconstruction, and projection.
    fn of_rows(&self, rows: Range<usize>, [latent, reconstruction, share]: [Option<&mut [f32]>; 3]) -> [f64; 2] {
        let of_latent = match &self.projection {
            Some(projection) => self.latent.projected(projection, rows.clone(), latent.zip(share)),
            None => self.latent.direct(rows.clone(), latent),
        };
        [of_latent, self.reconstruction.direct(rows, reconstruction)]
    }
}

impl Compared<'_> {
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
    use std::sync::Arc;

    use tch::{Device, Kind};

    use super::*;
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
    fn where_the_targets_lie_changes_no_bit() {
        let normal = |rows: i64, columns: i64| Tensor::randn([rows, columns], (Kind::Float, Device::Cpu));
        for outputs in [48, 16] {
            let (nodes, inputs, features) = (1000, 16, 11);
            let [latent, reconstruction] = [normal(nodes, inputs), normal(nodes, features)];
            let [mean, wanted] = [normal(nodes, outputs), normal(nodes, features)];
            let (weight, bias) = (normal(outputs, inputs), normal(1, outputs).reshape([outputs]));
            let projection = if outputs == inputs { vec![] } else { vec![&weight, &bias] };
            let found = [false, true].map(|is_apart| {
                let rows = |matrix: &Tensor| match is_apart {
                    true => apart(matrix),
                    false => Rows::Whole(matrix.shallow_clone()),
                };
                let targets = Targets { latent: rows(&mean), reconstruction: rows(&wanted) };
                let outputs = Outputs::new([&latent, &reconstruction], &projection, &targets, [0.3, 0.7]).unwrap();
                let (alone, none) = outputs.distances(false).unwrap();
                let (sums, gradients) = outputs.distances(true).unwrap();
                assert_eq!((alone, none.len()), (sums, 0), "gradients change the distances");
                (sums, gradients)
            });
            assert_eq!(found[0].0, found[1].0);
            assert_eq!(found[0].1.len(), 2 + projection.len());
            for (whole, apart) in found[0].1.iter().zip(&found[1].1) {
                assert!(whole == apart, "a gradient depends on where the targets lie, {outputs} columns");
            }
        }
    }
}
