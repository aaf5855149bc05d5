//! The learning rate by epoch, and when to stop early.

use serde::{Deserialize, Serialize};

/// How the learning rate changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Schedule {
    /// Always the same.
    Constant,
    /// From the initial rate along half a cosine to a hundredth of it (Loshchilov & Hutter 2017, without restarts).
    Cosine { max_epochs: u64 },
    /// Multiplied by `gamma` every `step_epochs`.
    Step { step_epochs: u64, gamma: f64 },
    /// Multiplied by `gamma` after `patience_epochs` without an improvement of the validation loss.
    Plateau { patience_epochs: u64, gamma: f64 },
}

/// The part of a schedule and of early stopping that depends on the losses seen: saved in checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Lowest validation loss so far.
    pub best_loss: Option<f64>,
    /// The epoch it was reached in.
    pub best_epoch: u64,
    /// Epochs since then.
    pub epochs_since_best: u64,
    /// Epochs since the learning rate was last lowered on a plateau, or the loss improved.
    pub epochs_on_plateau: u64,
    /// Times that the learning rate was lowered on a plateau.
    pub reductions: u32,
}

impl Progress {
    /// Takes in the validation loss of an epoch; returns whether it is the best so far. A loss that is not finite never is.
    pub fn record(&mut self, epoch: u64, loss: f64, schedule: Schedule) -> bool {
        let improved = self.best_loss.is_none_or(|best| loss < best) && loss.is_finite();
        if improved {
            (self.best_loss, self.best_epoch) = (Some(loss), epoch);
            (self.epochs_since_best, self.epochs_on_plateau) = (0, 0);
        } else {
            self.epochs_since_best += 1;
            self.epochs_on_plateau += 1;
        }
        if let Schedule::Plateau { patience_epochs, .. } = schedule
            && self.epochs_on_plateau > patience_epochs
        {
            self.reductions += 1;
            self.epochs_on_plateau = 0;
        }
        improved
    }
}

impl Schedule {
    /// The factor on the initial learning rate in `epoch` (from 0).
    pub fn factor(&self, epoch: u64, progress: &Progress) -> f64 {
        const FLOOR: f64 = 0.01;
        match *self {
            Self::Constant => 1.0,
            Self::Cosine { max_epochs } => {
                let position = epoch as f64 / max_epochs.max(1) as f64;
                FLOOR + (1.0 - FLOOR) * 0.5 * (1.0 + (std::f64::consts::PI * position).cos())
            }
            Self::Step { step_epochs, gamma } => gamma.powi((epoch / step_epochs.max(1)) as i32),
            Self::Plateau { gamma, .. } => gamma.powi(progress.reductions as i32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosine_falls_from_one_to_its_floor() {
        let schedule = Schedule::Cosine { max_epochs: 10 };
        let factors: Vec<f64> = (0..=10).map(|epoch| schedule.factor(epoch, &Progress::default())).collect();
        assert_eq!(factors[0], 1.0);
        assert!((factors[10] - 0.01).abs() < 1e-12);
        assert!(factors.windows(2).all(|pair| pair[1] < pair[0]), "{factors:?}");
    }

    #[test]
    fn a_plateau_lowers_the_rate_once_the_patience_is_spent() {
        let schedule = Schedule::Plateau { patience_epochs: 2, gamma: 0.5 };
        let mut progress = Progress::default();
        let factors: Vec<f64> = [1.0, 1.0, 1.0, 1.0, 0.5]
            .iter()
            .enumerate()
            .map(|(epoch, loss)| {
                progress.record(epoch as u64, *loss, schedule);
                schedule.factor(epoch as u64 + 1, &progress)
            })
            .collect();
        assert_eq!(factors, [1.0, 1.0, 1.0, 0.5, 0.5]);
        assert_eq!(progress.best_epoch, 4);
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_never_the_best() {
        let mut progress = Progress::default();
        assert!(!progress.record(0, f64::NAN, Schedule::Constant));
        assert!(progress.record(1, 3.0, Schedule::Constant));
        assert!(!progress.record(2, f64::NAN, Schedule::Constant));
        assert_eq!(progress.best_loss, Some(3.0));
    }
}
