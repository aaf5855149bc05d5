//! Dropout of attention weights, as a pure function of a seed and the weight's position.

use kdgat_base::random;
use kdgat_torch::philox::philox;
use tch::{TchError, Tensor};

use super::element::Real;

/// Sets each weight to zero with `probability` and divides the others by `1 - probability`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDropout {
    /// Probability of dropping a weight, in `[0, 1)`.
    pub probability: f64,
    /// Seed of the mask: the same seed always drops the same positions, on any number of threads.
    pub seed: u64,
    /// Position of the first weight: those before it are other processes'.
    pub first: usize,
}

impl AttentionDropout {
    /// Factor of weights that are not dropped.
    pub(super) fn kept_scale(self) -> f64 {
        1.0 / (1.0 - self.probability)
    }

    /// Seed of a GPU's kernels, which count positions from this process's first weight: each process draws its own.
    pub(super) fn seed_of_part(self) -> u64 {
        if self.first == 0 { self.seed } else { random::mix(self.seed ^ random::mix(self.first as u64)) }
    }

    /// A weight is dropped if its random word is below this.
    pub(super) fn threshold(self) -> u32 {
        (self.probability * 4_294_967_296.0) as u32
    }

    /// Applies the mask to `weights`; `first` is the position (edge × heads + head) of the first one.
    #[inline(always)]
    pub(super) fn apply<R: Real>(self, first: usize, weights: &mut [R]) {
        let scale = R::from_f64(self.kept_scale());
        let threshold = self.threshold();
        let mut words = [0; 4];
        for (offset, weight) in weights.iter_mut().enumerate() {
            let position = self.first + first + offset;
            if offset == 0 || position.is_multiple_of(4) {
                words = philox(self.seed, (position / 4) as u64);
            }
            *weight = if words[position % 4] >= threshold { *weight * scale } else { R::ZERO };
        }
    }

    /// Factors of all positions, `[edges, heads]`, f32.
    pub(super) fn factors(self, edges: i64, heads: i64) -> Result<Tensor, TchError> {
        let mut factors = vec![1.0_f32; usize::try_from(edges * heads).unwrap_or(0)];
        self.apply(0, &mut factors);
        Tensor::f_from_slice(&factors)?.f_reshape([edges, heads])
    }
}
