//! Random numbers as a pure function of their purpose: no generator, no state, no order.
//!
//! A [`Stream`] is identified by a path of numbers (seed, purpose, drive, message, …) and has one value for each
//! index. Any frame of any drive can therefore be recomputed alone, and threads change nothing.

use kdgat_base::random::{GOLDEN, finalize, to_below, to_unit};

/// Purpose of a stream; streams of different purposes are independent.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    /// The driver's target speeds.
    Driver = 1,
    /// Bends, lights and wipers.
    Road,
    /// Temperatures and levels at the beginning of a drive.
    Environment,
    /// Phase of a periodic message.
    Phase,
    /// Delay of each frame.
    Jitter,
    /// Sensor noise.
    Noise,
    /// Bursts of sporadic messages.
    Event,
    /// Clock error of a control unit.
    ClockDrift,
    /// Times, targets and content of attacks.
    AttackSchedule,
    /// Sensor noise in spoofed frames.
    AttackFrames,
    /// Length of the stays in a state.
    Route,
}

/// A source of random values, addressed by index.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The root stream of a seed.
    pub fn new(seed: u64) -> Stream {
        Stream { key: finalize(seed ^ 0x6B64_6761_7443_414E) }
    }

    /// The substream for `purpose`.
    pub fn purpose(self, purpose: Purpose) -> Stream {
        self.child(0x5055_5250 + purpose as u64)
    }

    /// The substream numbered `index`.
    pub fn child(self, index: u64) -> Stream {
        Stream { key: finalize(self.bits(index) ^ 0xA5A5_5A5A_C3C3_3C3C) }
    }

    /// The substream for something with a name.
    pub fn named(self, name: &str) -> Stream {
        let mut first = [0; 8];
        first.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..8]);
        self.child(u64::from_le_bytes(first))
    }

    /// 64 random bits.
    pub fn bits(self, index: u64) -> u64 {
        finalize(self.key.wrapping_add(index.wrapping_mul(GOLDEN)))
    }

    /// Uniform in [0, 1).
    pub fn uniform(self, index: u64) -> f64 {
        to_unit(self.bits(index))
    }

    /// Uniform in [low, high).
    pub fn between(self, index: u64, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform(index)
    }

    /// Log-uniform in [low, high], both above 0: each factor has the same probability. Computed with square roots alone, which are
    /// the same on every machine.
    pub fn log_between(self, index: u64, low: f64, high: f64) -> f64 {
        let bits = self.bits(index);
        let (mut value, mut factor) = (low, high / low);
        for bit in (40..64).rev() {
            factor = factor.sqrt();
            if bits >> bit & 1 == 1 {
                value *= factor;
            }
        }
        value.min(high)
    }

    /// Uniform whole number below `count`.
    pub fn below(self, index: u64, count: usize) -> usize {
        to_below(self.bits(index), count as u64) as usize
    }

    /// Approximately normal with mean 0 and variance 1: the scaled sum of four uniform numbers (Irwin-Hall), at most 2√3.
    pub fn bell(self, index: u64) -> f64 {
        let bits = self.bits(index);
        let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xFFFF).sum();
        (sum as f64 / 65_535.0 - 2.0) * 1.732_050_807_568_877_2
    }

    /// A smooth random curve over `position`, in [-1, 1]: values at whole positions, interpolated by 3t² − 2t³.
    pub fn curve(self, position: f64) -> f64 {
        let cell = position.floor();
        let t = position - cell;
        let value = |offset: f64| self.between((cell + offset) as i64 as u64, -1.0, 1.0);
        value(0.0) + (value(1.0) - value(0.0)) * t * t * (3.0 - 2.0 * t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_moments_they_claim() {
        let stream = Stream::new(7).purpose(Purpose::Noise);
        let count = 100_000;
        let mean = |values: &dyn Fn(u64) -> f64| (0..count).map(values).sum::<f64>() / count as f64;
        assert!((mean(&|index| stream.uniform(index)) - 0.5).abs() < 0.005);
        assert!(mean(&|index| stream.bell(index)).abs() < 0.01);
        assert!((mean(&|index| stream.bell(index).powi(2)) - 1.0).abs() < 0.02);
        assert!((mean(&|index| stream.log_between(index, 0.01, 4.0).ln()) - 0.2f64.ln()).abs() < 0.02);
        assert!((0..1000).all(|index| (0.01..=4.0).contains(&stream.log_between(index, 0.01, 4.0))));
        assert!((0..1000).all(|index| stream.below(index, 3) < 3 && stream.curve(index as f64 / 7.0).abs() <= 1.0));
    }

    #[test]
    fn purposes_and_seeds_differ() {
        let value = |seed, purpose| Stream::new(seed).purpose(purpose).bits(0);
        assert_ne!(value(1, Purpose::Noise), value(2, Purpose::Noise));
        assert_ne!(value(1, Purpose::Noise), value(1, Purpose::Jitter));
    }
}
