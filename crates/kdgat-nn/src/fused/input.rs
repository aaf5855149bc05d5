//! Input of a model: the embedding of each node's ID, concatenated with its continuous features.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::view;
use tch::{Device, Kind, TchError, Tensor};

use super::{Blocks, by_blocks, empty, expect_elements, expect_ids, shape};

/// Embedding `[ids, columns]`, indices `[num_nodes]` and features `[num_nodes, features]` → `[num_nodes, columns +
/// features]`.
pub fn embedding_and_features(embedding: &Tensor, index: &Tensor, features: &Tensor) -> Result<Tensor, TchError> {
    let function = Input { index: index.f_contiguous()?, features: features.f_contiguous()? };
    autograd::apply_one(function, &[&embedding.f_contiguous()?])
}

struct Input {
    index: Tensor,
    features: Tensor,
}

impl Function for Input {
    const NAME: &'static CStr = c"fused embedding and features";

    fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        let ([ids, columns], [nodes, features]) = (shape("embedding", inputs[0])?, shape("features", &self.features)?);
        expect_elements("the indices of IDs", &self.index, nodes)?;
        let embedding = view::read::<f32>("embedding", inputs[0])?;
        let index = view::read::<i64>("index", &self.index)?;
        let continuous = view::read::<f32>("features", &self.features)?;
        let width = columns + features;
        expect_ids(index, ids)?;
        let blocks = Blocks::new(nodes, width, 1);
        let output = empty(&[nodes as i64, width as i64])?;
        let output = by_blocks("output", output, blocks, width, |block, rows| {
            for (node, row) in blocks.rows(block).zip(rows.chunks_exact_mut(width.max(1))) {
                let id = index[node] as usize;
                row[..columns].copy_from_slice(&embedding[id * columns..(id + 1) * columns]);
                row[columns..].copy_from_slice(&continuous[node * features..(node + 1) * features]);
            }
        })?;
        Ok(Forward { outputs: vec![output], saved: vec![inputs[0].shallow_clone()] })
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let gradient = gradient.f_contiguous()?;
        let ([_, columns], [_, width]) = (shape("embedding", &saved[0])?, shape("gradient", &gradient)?);
        let mut result = Tensor::f_zeros(saved[0].size(), (Kind::Float, Device::Cpu))?;
        let sums = view::write::<f32>("gradient of the embedding", &mut result)?;
        let index = view::read::<i64>("index", &self.index)?;
        let rows = view::read::<f32>("gradient", &gradient)?.chunks_exact(width.max(1));
        // On one thread: only a few columns of each row are read, which is little compared to the surrounding work.
        for (&id, row) in index.iter().zip(rows) {
            let id = id as usize;
            for (sum, &value) in sums[id * columns..(id + 1) * columns].iter_mut().zip(row) {
                *sum += value;
            }
        }
        Ok(vec![Some(result)])
    }
}
