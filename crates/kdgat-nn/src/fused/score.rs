//! Errors of each node that make up its graph's difficulty, in one pass over a VGAE's outputs. Without gradients.

use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::vgae_loss::softmax_rows;
use super::{Blocks, empty, expect_elements, expect_ids, math, shape};

/// Mean squared error of each node's features and cross entropy of its ID, `[num_nodes]` each. A node's errors do not
/// depend on the rest of the batch.
pub fn node_errors(
    reconstruction: &Tensor,
    continuous: &Tensor,
    id_logits: &Tensor,
    id_index: &Tensor,
) -> Result<[Tensor; 2], TchError> {
    let ([nodes, features], [_, ids]) = (shape("reconstruction", reconstruction)?, shape("ID logits", id_logits)?);
    expect_elements("continuous features", continuous, nodes * features)?;
    expect_elements("ID logits", id_logits, nodes * ids)?;
    expect_elements("ID indices", id_index, nodes)?;
    let (reconstruction, continuous) = (reconstruction.f_contiguous()?, continuous.f_contiguous()?);
    let (id_logits, id_index) = (id_logits.f_contiguous()?, id_index.f_contiguous()?);
    let (found, wanted) =
        (view::read::<f32>("reconstruction", &reconstruction)?, view::read::<f32>("continuous", &continuous)?);
    let (logits, id_index) = (view::read::<f32>("ID logits", &id_logits)?, view::read::<i64>("ID indices", &id_index)?);
    expect_ids(id_index, ids)?;
    let (mut squares, mut entropies) = (empty(&[nodes as i64])?, empty(&[nodes as i64])?);
    let blocks = Blocks::new(nodes, features + ids, 1);
    let square_parts = Parts::new(view::write::<f32>("errors", &mut squares)?, blocks.bounds(1));
    let entropy_parts = Parts::new(view::write::<f32>("errors", &mut entropies)?, blocks.bounds(1));
    blocks.for_each(|block| {
        dispatch(Errors {
            found: &found[blocks.elements(block, features)],
            wanted: &wanted[blocks.elements(block, features)],
            features,
            logits: &logits[blocks.elements(block, ids)],
            id_index: &id_index[blocks.rows(block)],
            ids,
            squares: square_parts.take(block),
            entropies: entropy_parts.take(block),
        });
    });
    drop((square_parts, entropy_parts));
    Ok([squares, entropies])
}

struct Errors<'a> {
    found: &'a [f32],
    wanted: &'a [f32],
    features: usize,
    logits: &'a [f32],
    id_index: &'a [i64],
    ids: usize,
    squares: &'a mut [f32],
    entropies: &'a mut [f32],
}

impl Kernel for Errors<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let rows = self.found.chunks_exact(self.features).zip(self.wanted.chunks_exact(self.features));
        for (square, (found, wanted)) in self.squares.iter_mut().zip(rows) {
            let sum = math::sum(found.len(), |index| {
                let difference = found[index] - wanted[index];
                difference * difference
            });
            *square = (sum / self.features as f64) as f32;
        }
        let mut scratch = vec![0.0; self.logits.len()];
        let mut softmax = vec![0.0; 2 * self.id_index.len()];
        softmax_rows::<I>(self.logits, self.ids, &mut scratch, &mut softmax);
        let rows = self.logits.chunks_exact(self.ids).zip(softmax.as_chunks::<2>().0);
        for ((entropy, &id), (logits, softmax)) in self.entropies.iter_mut().zip(self.id_index).zip(rows) {
            *entropy = softmax[0] - logits[id as usize] + softmax[1];
        }
    }
}
