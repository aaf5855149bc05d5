//! Expansion of a length or an angle in Gaussians, as in SchNet (Schütt et al. 2018).

/// Gaussians with equally spaced centres: `exp(-(x - μ_c)² / (2 Δ²))` for `count` centres `μ_c` spaced by `Δ` from 0 on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gaussians {
    /// Distance of two centres.
    pub spacing: f64,
    /// Number of centres, at least 2.
    pub count: usize,
}

impl Gaussians {
    /// Centres from 0 to `end`.
    pub fn up_to(end: f64, count: usize) -> Self {
        Self { spacing: end / (count.max(2) - 1) as f64, count }
    }

    /// The last centre.
    pub fn end(&self) -> f64 {
        self.spacing * (self.count - 1) as f64
    }

    /// Writes the expansion of `x`.
    ///
    /// Beginning at the centre next to `x`, each value is its neighbour's times a factor that shrinks by e for each centre, so that two
    /// exponentials are enough for all.
    pub fn expand(&self, x: f64, to: &mut [f32]) {
        let position = x / self.spacing;
        let next = position.round().clamp(0.0, self.count as f64 - 1.0);
        let offset = position - next;
        let value = (-0.5 * offset * offset).exp();
        let (down, up) = to.split_at_mut(next as usize);
        if let Some(first) = up.first_mut() {
            *first = value as f32;
        }
        let outwards = |values: &mut dyn Iterator<Item = &mut f32>, ratio: f64| {
            let (mut value, mut ratio) = (value, ratio);
            for to in values {
                value *= ratio;
                ratio *= DECAY;
                *to = value as f32;
            }
        };
        outwards(&mut up.iter_mut().skip(1), (offset - 0.5).exp());
        outwards(&mut down.iter_mut().rev(), (-offset - 0.5).exp());
    }
}

/// 1 / e.
const DECAY: f64 = 0.367_879_441_171_442_33;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_is_that_of_the_formula(x in -7.0f64..15.0, end in 0.5f64..12.0, count in 2usize..60) {
            let basis = Gaussians::up_to(end, count);
            let mut found = vec![f32::NAN; count];
            basis.expand(x, &mut found);
            for (index, found) in found.into_iter().enumerate() {
                let offset = (x - end * index as f64 / (count - 1) as f64) / basis.spacing;
                let expected = (-0.5 * offset * offset).exp();
                prop_assert!((f64::from(found) - expected).abs() < 1e-6, "{} {}", found, expected);
            }
        }
    }
}
