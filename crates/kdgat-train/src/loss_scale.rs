//! Loss scaling for half precision (Micikevicius et al. 2018): small gradients underflow in f16, so the loss is multiplied by a
//! factor that is halved when gradients overflow and doubled after 2,000 steps without overflow.

use serde::{Deserialize, Serialize};
use tch::Kind;

const FIRST: f64 = 65_536.0;
const LARGEST: f64 = 16_777_216.0;
const GOOD_STEPS: u64 = 2_000;

/// The loss scale, saved with a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossScale {
    /// No scaling: f32, or bf16, which has the range of f32.
    #[default]
    None,
    /// Dynamic scaling for f16.
    Half {
        /// Current factor of the loss.
        factor: f64,
        /// Steps since the last overflow or increase.
        good_steps: u64,
    },
}

impl LossScale {
    /// Initial loss scale for a type of mixed precision.
    pub fn of(precision: Option<Kind>) -> Self {
        match precision {
            Some(Kind::Half) => Self::Half { factor: FIRST, good_steps: 0 },
            _ => Self::None,
        }
    }

    /// Current factor of the loss.
    pub fn factor(&self) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Half { factor, .. } => *factor,
        }
    }

    /// Adjusts the factor after a step; `finite` tells if its gradients were finite.
    pub fn note(&mut self, finite: bool) {
        let Self::Half { factor, good_steps } = self else { return };
        *good_steps = if finite { *good_steps + 1 } else { 0 };
        if !finite {
            *factor = (*factor / 2.0).max(1.0);
        } else if *good_steps == GOOD_STEPS {
            (*factor, *good_steps) = ((*factor * 2.0).min(LARGEST), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_falls_at_once_and_rises_slowly() {
        let mut scale = LossScale::of(Some(Kind::Half));
        scale.note(false);
        assert_eq!(scale.factor(), FIRST / 2.0);
        (0..GOOD_STEPS).for_each(|_| scale.note(true));
        assert_eq!(scale.factor(), FIRST);
        assert_eq!(LossScale::of(Some(Kind::BFloat16)).factor(), 1.0);
    }
}
