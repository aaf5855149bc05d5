//! Early stopping of unpromising trials: the median rule, or asynchronous successive halving (ASHA).

use serde::{Deserialize, Serialize};

use super::plan::Direction;

/// Early-stopping settings of a sweep, section `[early_stopping]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStopping {
    pub rule: Rule,
    /// Column of `metrics.csv` to compare; the sweep's metric if absent.
    pub metric: Option<String>,
    /// Direction in which that column improves; required for a column other than the sweep's metric.
    pub direction: Option<Direction>,
    /// Epochs that every trial runs before it can be stopped; the first rung of ASHA.
    #[serde(default = "ten")]
    pub min_epochs: u64,
    /// Number of other trials that must have reached the same epoch before the median rule applies.
    #[serde(default = "three")]
    pub min_trials: usize,
    /// Reduction factor of ASHA: one in `reduction` trials continues past a rung, and each rung has `reduction` times the epochs.
    #[serde(default = "three")]
    pub reduction: usize,
}

fn ten() -> u64 {
    10
}

fn three() -> usize {
    3
}

/// Early-stopping rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Stops a trial whose best value so far is worse than the median of the other trials' running means at the same epoch
    /// (Golovin et al. 2017, Google Vizier, section 3.2).
    Median,
    /// Asynchronous successive halving (Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning): a trial
    /// that reaches a rung continues if it is among the best 1/`reduction` of the trials that have reached it.
    Asha,
}

impl EarlyStopping {
    /// Messages for settings that are out of range.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut refuse = |name: &str, found: u64, least: u64| {
            if found < least {
                problems
                    .push(format!("[early_stopping] {name} = {found} is out of range: it must be at least {least}"));
            }
        };
        refuse("min_epochs", self.min_epochs, 1);
        refuse("min_trials", self.min_trials as u64, 1);
        // With a reduction of 1 every trial would continue: nothing would ever be stopped.
        refuse("reduction", self.reduction as u64, 2);
        problems
    }

    /// Returns the reason to stop a trial, or `None` if it should continue. `trial` has one value per epoch, `others` those of
    /// the other trials, running or done. `direction` is the sweep's, used unless the rule has its own.
    pub fn reason(&self, direction: Direction, trial: &[f64], others: &[Vec<f64>]) -> Option<String> {
        let direction = self.direction.unwrap_or(direction);
        match self.rule {
            Rule::Median => self.by_median(direction, trial, others),
            Rule::Asha => self.by_halving(direction, trial, others),
        }
    }

    fn by_median(&self, direction: Direction, trial: &[f64], others: &[Vec<f64>]) -> Option<String> {
        let epochs = trial.len();
        if (epochs as u64) < self.min_epochs.max(1) {
            return None;
        }
        let reached = others.iter().filter(|other| other.len() >= epochs);
        let mut means: Vec<f64> = reached.map(|other| other[..epochs].iter().sum::<f64>() / epochs as f64).collect();
        if means.len() < self.min_trials.max(1) {
            return None;
        }
        means.sort_by(f64::total_cmp);
        let middle = means.len() / 2;
        let median = if means.len() % 2 == 1 { means[middle] } else { (means[middle - 1] + means[middle]) / 2.0 };
        let best = best(direction, trial)?;
        direction.prefers(median, best).then(|| {
            format!(
                "after {epochs} epochs its best value is {best:.5}; the median of the means of {} other trials is {median:.5}",
                means.len()
            )
        })
    }

    fn by_halving(&self, direction: Direction, trial: &[f64], others: &[Vec<f64>]) -> Option<String> {
        let reduction = self.reduction.max(2);
        // The last rung that the trial has reached.
        let mut rung = usize::try_from(self.min_epochs.max(1)).ok().filter(|&rung| rung <= trial.len())?;
        while let Some(next) = rung.checked_mul(reduction).filter(|&next| next <= trial.len()) {
            rung = next;
        }
        let own = best(direction, &trial[..rung])?;
        let reached = others.iter().filter(|other| other.len() >= rung);
        let values: Vec<f64> = reached.filter_map(|other| best(direction, &other[..rung])).collect();
        let better = values.iter().filter(|&&value| direction.prefers(value, own)).count();
        let at_rung = values.len() + 1;
        // With fewer than `reduction` trials at a rung there is nothing to rank yet: all continue.
        let kept = at_rung / reduction;
        (kept > 0 && better >= kept).then(|| {
            format!("at the rung of {rung} epochs {better} of {at_rung} trials are better; the best {kept} continue")
        })
    }
}

/// Best value that is not NaN.
fn best(direction: Direction, values: &[f64]) -> Option<f64> {
    let numbers = values.iter().copied().filter(|value| !value.is_nan());
    numbers.reduce(|best, value| if direction.prefers(value, best) { value } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(rule: Rule, min_epochs: u64) -> EarlyStopping {
        EarlyStopping { rule, metric: None, direction: None, min_epochs, min_trials: 3, reduction: 3 }
    }

    #[test]
    fn the_median_rule_ends_the_worse_half_only() {
        let median = rule(Rule::Median, 2);
        let others = vec![vec![1.0, 0.8, 0.6], vec![1.0, 0.9, 0.8], vec![1.0, 0.7, 0.4]];
        let reason = |trial: &[f64]| median.reason(Direction::Minimize, trial, &others);
        assert!(reason(&[2.0, 1.9]).unwrap().contains("after 2 epochs"));
        assert_eq!(reason(&[2.0, 0.5]), None);
        assert_eq!(reason(&[2.0]), None, "before min_epochs");
        assert_eq!(reason(&[2.0, 1.9, 1.8, 1.7]), None, "no other trial has reached this epoch");
        assert_eq!(median.reason(Direction::Minimize, &[2.0, 1.9], &others[..2]), None, "too few to compare with");
        assert!(median.reason(Direction::Maximize, &[0.1, 0.1], &others).is_some());
    }

    #[test]
    fn another_column_has_its_own_direction() {
        let median = EarlyStopping { direction: Some(Direction::Minimize), ..rule(Rule::Median, 2) };
        let others = vec![vec![1.0, 0.8], vec![1.0, 0.9], vec![1.0, 0.7]];
        let reason = |trial: &[f64]| median.reason(Direction::Maximize, trial, &others);
        assert_eq!(reason(&[0.1, 0.1]), None, "the trial with the best loss of a maximised sweep was stopped");
        assert!(reason(&[2.0, 1.9]).is_some());
    }

    #[test]
    fn settings_out_of_range_are_reported() {
        assert_eq!(rule(Rule::Asha, 1).problems(), Vec::<String>::new());
        let wrong = EarlyStopping { min_trials: 0, reduction: 1, ..rule(Rule::Asha, 0) }.problems();
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert_eq!(wrong[2], "[early_stopping] reduction = 1 is out of range: it must be at least 2");
    }

    #[test]
    fn of_three_at_a_rung_the_best_continues() {
        let asha = rule(Rule::Asha, 2);
        let others = vec![vec![1.0, 0.5, 0.5], vec![1.0, 0.9, 0.9]];
        let reason = |trial: &[f64]| asha.reason(Direction::Minimize, trial, &others);
        assert_eq!(reason(&[1.0, 0.4]), None);
        assert!(reason(&[1.0, 0.6]).unwrap().contains("rung of 2"));
        assert_eq!(reason(&[1.0]), None, "not at a rung yet");
        assert_eq!(asha.reason(Direction::Minimize, &[1.0, 9.0], &others[..1]), None, "two cannot be thirds");
        // A rung that overflows is never reached.
        let huge = EarlyStopping { reduction: 1 << 63, ..asha.clone() };
        assert_eq!(huge.reason(Direction::Minimize, &[1.0, 0.6], &others), None);
        // The rung of 6 epochs: no other trial has reached it.
        assert_eq!(reason(&[1.0, 0.9, 0.9, 0.9, 0.9, 0.9]), None);
    }
}
