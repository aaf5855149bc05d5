//! The share of distillation in a student's loss, α, over a training.

use kdgat_nn::layers::Mode;

/// α of a training: constant, or moving linearly from its first to its last value, one step an epoch ("teacher annealing": Clark et al.
/// 2019, "BAM! Born-Again Multi-Task Networks for Natural Language Understanding").
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alpha {
    first: f64,
    last: f64,
    now: f64,
}

impl Alpha {
    /// The same α in all epochs.
    pub fn constant(alpha: f64) -> Self {
        Self::annealed(alpha, alpha)
    }

    /// α of the first and of the last epoch.
    pub fn annealed(first: f64, last: f64) -> Self {
        Self { first, last, now: first }
    }

    /// Moves on to `epoch`, from 0, of at most `max_epochs`.
    pub fn start_epoch(&mut self, epoch: u64, max_epochs: u64) {
        let progress = match max_epochs {
            0 | 1 => 0.0,
            _ => (epoch as f64 / (max_epochs - 1) as f64).min(1.0),
        };
        self.now = self.first + progress * (self.last - self.first);
    }

    /// α of this epoch's training. Validation has the last one in every epoch, so that the losses of epochs can be compared.
    pub fn of(self, mode: Mode) -> f64 {
        match mode {
            Mode::Training => self.now,
            Mode::Evaluation => self.last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_moves_from_its_first_to_its_last_value() {
        let mut alpha = Alpha::annealed(0.8, 0.2);
        let by_epoch = |epoch, alpha: &mut Alpha| {
            alpha.start_epoch(epoch, 4);
            assert_eq!(alpha.of(Mode::Evaluation), 0.2);
            alpha.of(Mode::Training)
        };
        let values: Vec<f64> = (0..5).map(|epoch| by_epoch(epoch, &mut alpha)).collect();
        let expected = [0.8, 0.6, 0.4, 0.2, 0.2];
        assert!(values.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 1e-12), "{values:?}");
        // A training of one epoch has no last epoch but its first.
        alpha.start_epoch(0, 1);
        assert_eq!(alpha.of(Mode::Training), 0.8);
    }

    #[test]
    fn a_constant_stays_exactly_what_it_is() {
        let mut alpha = Alpha::constant(0.7);
        for epoch in 0..9 {
            alpha.start_epoch(epoch, 7);
            assert_eq!([alpha.of(Mode::Training), alpha.of(Mode::Evaluation)], [0.7; 2]);
        }
    }
}
