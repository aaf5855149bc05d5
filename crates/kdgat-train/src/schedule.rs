//! Learning rate schedule and early stopping.

use serde::{Deserialize, Serialize};

/// Schedule of the learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Schedule {
    /// Constant learning rate.
    Constant,
    /// Half a cosine from the initial rate to a hundredth of it (Loshchilov & Hutter 2017, without restarts).
    Cosine {
        /// Epochs of the half cosine.
        max_epochs: u64,
    },
    /// Multiplies the rate by `gamma` every `step_epochs` epochs.
    Step {
        /// Epochs between two reductions.
        step_epochs: u64,
        /// Factor of each reduction.
        gamma: f64,
    },
    /// Multiplies the rate by `gamma` after more than `patience_epochs` epochs without improvement of the validation loss.
    Plateau {
        /// Epochs without improvement that are tolerated.
        patience_epochs: u64,
        /// Factor of each reduction.
        gamma: f64,
    },
}

/// State of the schedule and of early stopping, which depends on the losses so far; saved in checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Validation loss of the best epoch so far: the lowest one, unless the run monitors a metric.
    pub best_loss: Option<f64>,
    /// Score of the best epoch so far, if the run monitors a metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_score: Option<f64>,
    /// The best epoch so far.
    pub best_epoch: u64,
    /// Epochs since then.
    pub epochs_since_best: u64,
    /// Epochs since the loss last improved or the learning rate was last reduced on a plateau.
    pub epochs_on_plateau: u64,
    /// Number of learning rate reductions on a plateau.
    pub reductions: u32,
}

impl Progress {
    /// Records the validation loss of an epoch; returns true if it is the best so far. A loss that is not finite never is.
    pub fn record(&mut self, epoch: u64, loss: f64, schedule: Schedule) -> bool {
        self.record_score(epoch, loss, None, schedule)
    }

    /// Records an epoch that a score judges instead of its validation loss: the lowest score is the best.
    pub fn record_score(&mut self, epoch: u64, loss: f64, score: Option<f64>, schedule: Schedule) -> bool {
        let (best, own) = if score.is_some() { (self.best_score, score) } else { (self.best_loss, Some(loss)) };
        let own = own.filter(|own| own.is_finite() && loss.is_finite());
        let improved = own.is_some_and(|own| best.is_none_or(|best| own < best));
        if improved {
            self.best_score = score;
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
    /// Factor of the initial learning rate in `epoch` (from 0).
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
    fn a_score_judges_instead_of_the_loss() {
        let mut progress = Progress::default();
        let recorded = [(1.0, -0.5), (0.5, -0.5), (2.0, -0.7), (0.1, f64::NAN)].map(|(loss, score)| {
            let epoch = progress.epochs_since_best + progress.best_epoch + 1;
            progress.record_score(epoch, loss, Some(score), Schedule::Constant)
        });
        assert_eq!(recorded, [true, false, true, false]);
        assert_eq!((progress.best_loss, progress.best_score), (Some(2.0), Some(-0.7)));
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
