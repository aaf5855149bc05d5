//! Input of a model that hashes IDs: the hash embedding of each node's ID, concatenated with its continuous features.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::view;
use tch::{Device, Kind, TchError, Tensor};

use super::{Blocks, by_blocks, empty, expect_elements, shape};
use crate::id_hash::{Hash, HashEmbedding, IdHash};

/// CAN IDs `[num_nodes]` and features `[num_nodes, features]` → `[num_nodes, columns + features]`.
pub fn hashed_and_features(hash: &HashEmbedding, ids: &Tensor, features: &Tensor) -> Result<Tensor, TchError> {
    let (functions, of_weights) = hash.shape.functions();
    let (ids, features) = (ids.f_contiguous()?, features.f_contiguous()?);
    let function = Input { hashes: Hashes { shape: hash.shape, functions, of_weights }, ids, features };
    let inputs = [hash.buckets.f_contiguous()?, hash.weights.f_contiguous()?];
    autograd::apply_one(function, &inputs.each_ref())
}

struct Input {
    hashes: Hashes,
    ids: Tensor,
    features: Tensor,
}

/// Hash functions that map an ID to its rows.
struct Hashes {
    shape: IdHash,
    functions: Vec<Hash>,
    of_weights: Hash,
}

/// Buckets and weights as slices.
struct Tables<'a> {
    buckets: &'a [f32],
    columns: usize,
    weights: &'a [f32],
}

impl Hashes {
    fn tables<'a>(&self, [buckets, weights]: [&'a Tensor; 2]) -> Result<Tables<'a>, TchError> {
        let [rows, columns] = shape("buckets", buckets)?;
        expect_elements("buckets", buckets, self.shape.buckets as usize * columns)?;
        expect_elements("weights of buckets", weights, (self.shape.weight_rows() * self.shape.probes) as usize)?;
        debug_assert_eq!(rows as i64, self.shape.buckets);
        let (buckets, weights) = (view::read("buckets", buckets)?, view::read("weights of buckets", weights)?);
        Ok(Tables { buckets, columns, weights })
    }

    /// For each hash function, the start of the bucket in its table and the position of the weight in its table.
    fn places(&self, id: i64, columns: usize) -> impl Iterator<Item = (usize, usize)> {
        let first_weight = self.of_weights.of(id, self.shape.weight_rows()) * self.functions.len();
        let bucket = move |hash: &Hash| hash.of(id, self.shape.buckets) * columns;
        self.functions.iter().enumerate().map(move |(probe, hash)| (bucket(hash), first_weight + probe))
    }
}

impl Function for Input {
    const NAME: &'static CStr = c"fused hash embedding and features";

    fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        let [nodes, features] = shape("features", &self.features)?;
        expect_elements("IDs", &self.ids, nodes)?;
        let Tables { buckets, columns, weights } = self.hashes.tables([inputs[0], inputs[1]])?;
        let ids = view::read::<i64>("IDs", &self.ids)?;
        let continuous = view::read::<f32>("features", &self.features)?;
        let width = columns + features;
        let blocks = Blocks::new(nodes, width, 1);
        let hashes = &self.hashes;
        let output = by_blocks("output", empty(&[nodes as i64, width as i64])?, blocks, width, |block, rows| {
            for (node, row) in blocks.rows(block).zip(rows.chunks_exact_mut(width.max(1))) {
                let (embedded, rest) = row.split_at_mut(columns);
                embedded.fill(0.0);
                for (bucket, weight) in hashes.places(ids[node], columns) {
                    for (sum, &value) in embedded.iter_mut().zip(&buckets[bucket..bucket + columns]) {
                        *sum += weights[weight] * value;
                    }
                }
                rest.copy_from_slice(&continuous[node * features..(node + 1) * features]);
            }
        })?;
        Ok(Forward { outputs: vec![output], saved: vec![inputs[0].shallow_clone(), inputs[1].shallow_clone()] })
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None, None]) };
        let gradient = gradient.f_contiguous()?;
        let [_, width] = shape("gradient", &gradient)?;
        let Tables { buckets, columns, weights } = self.hashes.tables([&saved[0], &saved[1]])?;
        let zeros = |like: &Tensor| Tensor::f_zeros(like.size(), (Kind::Float, Device::Cpu));
        let mut results = [zeros(&saved[0])?, zeros(&saved[1])?];
        let [of_buckets, of_weights] = &mut results;
        let of_buckets = view::write::<f32>("gradient of buckets", of_buckets)?;
        let of_weights = view::write::<f32>("gradient of weights", of_weights)?;
        let ids = view::read::<i64>("IDs", &self.ids)?;
        let rows = view::read::<f32>("gradient", &gradient)?.chunks_exact(width.max(1));
        // On one thread: only a few columns of each row are read, which is little compared to the surrounding work.
        for (&id, row) in ids.iter().zip(rows) {
            for (bucket, weight) in self.hashes.places(id, columns) {
                let (mut dot, row) = (0.0, &row[..columns]);
                let of_bucket = &mut of_buckets[bucket..bucket + columns];
                for ((sum, &value), &gradient) in of_bucket.iter_mut().zip(&buckets[bucket..]).zip(row) {
                    *sum += weights[weight] * gradient;
                    dot += value * gradient;
                }
                of_weights[weight] += dot;
            }
        }
        Ok(results.into_iter().map(Some).collect())
    }
}
