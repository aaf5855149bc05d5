//! Hash embeddings of IDs (Svenstrup et al. 2017): a few rows of a small table, combined by learned weights.
//!
//! For an ID, `k` hash functions choose `k` rows of a table of buckets, and another one chooses a row of `k` weights;
//! the embedding is the weighted sum. The table does not grow with the number of IDs, and any ID, seen or not, has an
//! embedding. Two IDs collide only if all their buckets and their weights coincide.

use kdgat_base::random;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::ModelError;
use super::parameters::{Init, Scope};

/// Rows of weights per bucket.
const WEIGHTS_PER_BUCKET: i64 = 4;
/// Maximum number of hash functions for buckets.
pub const MOST_PROBES: i64 = 8;
/// 2³¹ − 1: a prime above all CAN IDs, such that products fit into 64 bits.
const PRIME: i64 = (1 << 31) - 1;

/// Shape of a hash embedding. The hash functions are the same in every model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdHash {
    /// k, the number of buckets combined for an ID.
    pub probes: i64,
    /// Number of rows of the table.
    pub buckets: i64,
}

impl IdHash {
    pub(super) fn check(&self) -> Result<(), ModelError> {
        if !(1..=MOST_PROBES).contains(&self.probes) {
            let found = self.probes.to_string();
            return Err(ModelError::Architecture { field: "probes", found, expected: "1 to 8 hash functions" });
        }
        if !(1..PRIME / WEIGHTS_PER_BUCKET).contains(&self.buckets) {
            let found = self.buckets.to_string();
            return Err(ModelError::Architecture {
                field: "buckets",
                found,
                expected: "at least 1, below 500 million",
            });
        }
        Ok(())
    }

    /// Number of rows of weights.
    pub fn weight_rows(&self) -> i64 {
        WEIGHTS_PER_BUCKET * self.buckets
    }

    /// The bucket of an ID under hash function `probe`.
    pub fn bucket(&self, id: i64, probe: i64) -> usize {
        Hash::number(probe).of(id, self.buckets)
    }

    /// The row of an ID's weights.
    pub fn weight_row(&self, id: i64) -> usize {
        Hash::number(MOST_PROBES).of(id, self.weight_rows())
    }

    /// Coefficients a and b of hash function `probe`: `((a·id + b) mod (2³¹ − 1)) mod rows`. [`MOST_PROBES`] is that of the weights.
    pub fn coefficients(&self, probe: i64) -> [u32; 2] {
        // Both are below 2³¹.
        let Hash { a, b } = Hash::number(probe);
        [a as u32, b as u32]
    }

    /// The hash functions for the buckets, and the one for the weights.
    pub(super) fn functions(&self) -> (Vec<Hash>, Hash) {
        ((0..self.probes).map(Hash::number).collect(), Hash::number(MOST_PROBES))
    }
}

/// A hash function `((a·x + b) mod p) mod rows` (Carter & Wegman 1979).
#[derive(Debug, Clone, Copy)]
pub(super) struct Hash {
    a: i64,
    b: i64,
}

impl Hash {
    fn number(number: i64) -> Self {
        /// Arbitrary but fixed: trained weights depend on it.
        const SEED: u64 = 0x4944_4861_7368; // "IDHash"
        let draw = |which: u64| random::mix(random::mix(SEED ^ which) ^ number as u64);
        let below = |bits: u64, bound: i64| random::to_below(bits, bound as u64) as i64;
        Self { a: 1 + below(draw(1), PRIME - 1), b: below(draw(2), PRIME) }
    }

    /// Hashes an ID of up to 32 bits; any other number also has a valid row.
    pub(super) fn of(self, id: i64, rows: i64) -> usize {
        // Both remainders are non-negative, and the result is below `rows`.
        self.a.wrapping_mul(id).wrapping_add(self.b).rem_euclid(PRIME).rem_euclid(rows) as usize
    }

    /// Hashes each of the IDs `[num_nodes]`.
    fn of_all(self, ids: &Tensor, rows: i64) -> Result<Tensor, ModelError> {
        let sums = ids.f_mul_scalar(self.a)?.f_add_scalar(self.b)?;
        Ok(sums.f_remainder(PRIME)?.f_remainder(rows)?)
    }
}

/// Tensors of a hash embedding.
#[derive(Debug)]
pub struct HashEmbedding {
    /// Number of buckets and hash functions.
    pub shape: IdHash,
    /// Rows of the table, `[buckets, columns]`.
    pub buckets: Tensor,
    /// Weights of the rows, `[weight_rows, probes]`.
    pub weights: Tensor,
}

impl HashEmbedding {
    /// Creates an embedding of `columns` columns.
    pub fn new(scope: &mut Scope, shape: IdHash, columns: i64) -> Result<Self, ModelError> {
        shape.check()?;
        let mut scope = scope.sub("id_hash");
        let buckets = scope.parameter("buckets", &[shape.buckets, columns], Init::Normal)?;
        let weights = scope.parameter("weights", &[shape.weight_rows(), shape.probes], Init::Normal)?;
        Ok(Self { shape, buckets, weights })
    }

    /// Embeds CAN IDs, `[num_nodes]` → `[num_nodes, columns]`, composed of torch's operations.
    pub fn composed(&self, ids: &Tensor) -> Result<Tensor, ModelError> {
        let IdHash { probes, buckets } = self.shape;
        let (functions, of_weights) = self.shape.functions();
        let chosen = functions.iter().map(|hash| hash.of_all(ids, buckets)).collect::<Result<Vec<_>, _>>()?;
        let chosen = Tensor::f_stack(&chosen, 1)?.f_flatten(0, -1)?;
        let rows = self.buckets.f_index_select(0, &chosen)?.f_view([-1, probes, self.buckets.size()[1]])?;
        let weights = self.weights.f_index_select(0, &of_weights.of_all(ids, self.shape.weight_rows())?)?;
        let weighted = rows.f_mul(&weights.f_unsqueeze(2)?)?;
        Ok(weighted.f_sum_dim_intlist([1i64].as_slice(), false, weighted.kind())?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn all_standard_ids_have_embeddings_of_their_own() {
        let shape = IdHash { probes: 2, buckets: 128 };
        let places = |id: i64| (shape.bucket(id, 0), shape.bucket(id, 1), shape.weight_row(id));
        let distinct: HashSet<_> = (0..2048).map(places).collect();
        assert!(distinct.len() > 2040, "{} of 2048", distinct.len());
        let used: HashSet<usize> = (0..2048).map(|id| shape.bucket(id, 1)).collect();
        assert_eq!(used.len(), 128);
    }

    #[test]
    fn tensors_are_hashed_as_numbers_are() {
        let ids = [0, 1, 0x7ff, 0x1fff_ffff, 0xffff_ffff];
        let shape = IdHash { probes: 3, buckets: 97 };
        let (functions, of_weights) = shape.functions();
        for (probe, hash) in functions.iter().enumerate() {
            let found = Vec::<i64>::try_from(hash.of_all(&Tensor::from_slice(&ids), 97).unwrap()).unwrap();
            assert_eq!(found, ids.map(|id| shape.bucket(id, probe as i64) as i64));
        }
        let found = of_weights.of_all(&Tensor::from_slice(&ids), shape.weight_rows()).unwrap();
        assert_eq!(Vec::<i64>::try_from(found).unwrap(), ids.map(|id| shape.weight_row(id) as i64));
    }

    /// Trained weights depend on these functions.
    #[test]
    fn the_hash_functions_stay_the_same() {
        let shape = IdHash { probes: 2, buckets: 128 };
        let places = [0x123, 0x18FE_F100].map(|id| [shape.bucket(id, 0), shape.bucket(id, 1), shape.weight_row(id)]);
        assert_eq!(places, [[34, 5, 202], [63, 79, 398]]);
    }
}
