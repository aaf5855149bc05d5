//! The targets of graphs or of their nodes: the task by their texts, classes and values.

use super::error::{DatasetError, Origin};
use super::missing::is_missing;
use super::schema::{Target, Task, numbered};
use crate::Split;

/// Largest loss by rounding to 32 bits, in standard deviations of a target, that needs no rest.
const MOST_LOSS: f64 = 1e-6;
/// Most distinct integers of a target that is taken for a class.
const MOST_INFERRED_CLASSES: usize = 100;

/// The targets as a source has them, with a row for each graph or node.
pub(super) struct TargetCells<'a> {
    /// Names of the targets, at least one.
    pub names: Vec<String>,
    /// For each target, the text of each row.
    pub cells: Vec<Vec<String>>,
    /// The set of each row's graph, if the source assigns it.
    pub splits: Option<Vec<Split>>,
    /// The place of each row.
    pub origins: Vec<Origin<'a>>,
    /// The place of the names of the targets.
    pub header: Origin<'a>,
}

/// The targets of a dataset.
pub(super) struct Targets {
    pub task: Task,
    pub targets: Vec<Target>,
    /// `[rows, number of targets]`; NaN for a row without any.
    pub values: Vec<f32>,
    /// `[rows, number of targets]`: what rounding to `values` has left; empty if that is nothing beside the targets' spread.
    pub rests: Vec<f32>,
    pub splits: Option<Vec<Split>>,
    /// Facts about the texts that may surprise.
    pub notes: Vec<String>,
}

impl TargetCells<'_> {
    /// Converts the texts; without a task, to that which they suggest.
    ///
    /// # Errors
    /// A row with some of the targets, no row with any, a text that does not fit the task, a second class, or a class that no training
    /// graph has.
    pub fn parse(self, task: Option<Task>) -> Result<Targets, DatasetError> {
        let known = self.rows_with_targets()?;
        let task = task.unwrap_or_else(|| self.inferred(&known));
        let (targets, of_known, rests_of_known) = match task {
            Task::Classification => {
                let (targets, numbers) = self.classes(&known)?;
                (targets, numbers, Vec::new())
            }
            Task::MultiLabel | Task::Regression => {
                let (targets, exact) = self.values(task, &known)?;
                let (rounded, rests) = rounded(&exact, targets.len());
                (targets, rounded, rests)
            }
        };
        let of_rows = |of_known: &[f32], absent: f32| {
            let mut values = vec![absent; self.origins.len() * targets.len()];
            for (&row, of_row) in known.iter().zip(of_known.chunks_exact(targets.len())) {
                values[row * targets.len()..(row + 1) * targets.len()].copy_from_slice(of_row);
            }
            values
        };
        let values = of_rows(&of_known, f32::NAN);
        let rests = if rests_of_known.is_empty() { Vec::new() } else { of_rows(&rests_of_known, 0.0) };
        let notes = self.mixed(task, &known).into_iter().collect();
        Ok(Targets { task, targets, values, rests, splits: self.splits, notes })
    }

    /// The rows that have targets.
    fn rows_with_targets(&self) -> Result<Vec<usize>, DatasetError> {
        let mut known = Vec::with_capacity(self.origins.len());
        for (row, origin) in self.origins.iter().enumerate() {
            let missing: Vec<usize> =
                (0..self.names.len()).filter(|&target| is_missing(&self.cells[target][row])).collect();
            match missing.first() {
                None => known.push(row),
                Some(&target) if missing.len() < self.names.len() => {
                    let found = format!("'{}' has {}", self.names[target], quoted(&self.cells[target][row]));
                    return Err(origin.error(found, "a value, or no target of the graph at all"));
                }
                Some(_) => {}
            }
        }
        match known.is_empty() {
            true => Err(self.header.error(format!("no value in {}", self.names.join(", ")), "targets of some graphs")),
            false => Ok(known),
        }
    }

    /// The task that the texts of rows with targets suggest.
    fn inferred(&self, known: &[usize]) -> Task {
        let texts = || self.cells.iter().flat_map(|cells| known.iter().map(|&row| cells[row].as_str()));
        if self.cells.len() > 1 {
            let are_labels = texts().all(|text| text == "0" || text == "1");
            return if are_labels { Task::MultiLabel } else { Task::Regression };
        }
        let is_text = texts().any(|text| text.parse::<f64>().is_err());
        // A program that has no integers beside a missing value writes them as 1.0.
        let has_missing = known.len() < self.origins.len();
        let are_integers =
            texts().all(|text| text.parse::<i64>().is_ok() || (has_missing && whole_number(text).is_some()));
        let distinct = numbered(&texts().map(str::to_owned).collect::<Vec<_>>()).0.len();
        let few = distinct <= MOST_INFERRED_CLASSES.min(2.max(known.len() / 4));
        if is_text || (are_integers && few) { Task::Classification } else { Task::Regression }
    }

    /// A note if most classes are numbers and a few are not, so that the numbers are only names.
    fn mixed(&self, task: Task, known: &[usize]) -> Option<String> {
        if task != Task::Classification {
            return None;
        }
        let is_number = |row: &&usize| self.cells[0][**row].parse::<f64>().is_ok();
        let numbers = known.iter().filter(is_number).count();
        let other = known.iter().find(|row| !is_number(row)).filter(|_| 2 * numbers >= known.len())?;
        let (name, text, origin) = (&self.names[0], &self.cells[0][*other], self.origins[*other]);
        Some(format!("the numbers of {name} are read as names of classes, because {} has '{text}'", origin.text()))
    }

    fn classes(&self, known: &[usize]) -> Result<(Vec<Target>, Vec<f32>), DatasetError> {
        if let [_, second, ..] = &self.names[..] {
            let expected = "one target for classification; name it in kdgat-graphs.toml";
            return Err(self.header.error(format!("a second target '{second}'"), expected));
        }
        let texts = || known.iter().map(|&row| self.cells[0][row].as_str());
        // 1 and 1.0 are the same class.
        let whole: Option<Vec<String>> =
            texts().map(|text| whole_number(text).map(|number| number.to_string())).collect();
        let (classes, numbers) = numbered(&whole.unwrap_or_else(|| texts().map(str::to_owned).collect()));
        self.expect_trained_classes(&classes, &numbers, known)?;
        let target = Target { name: self.names[0].clone(), classes };
        Ok((vec![target], numbers.into_iter().map(|class| class as f32).collect()))
    }

    /// Refuses a class that no training graph has; `numbers` has the class of each row in `known`.
    fn expect_trained_classes(&self, classes: &[String], numbers: &[u32], known: &[usize]) -> Result<(), DatasetError> {
        let Some(splits) = &self.splits else { return Ok(()) };
        let mut trained = vec![false; classes.len()];
        let of_training = known.iter().zip(numbers).filter(|(row, _)| splits[**row] == Split::Train);
        of_training.for_each(|(_, &class)| trained[class as usize] = true);
        match known.iter().zip(numbers).find(|(_, class)| !trained[**class as usize]) {
            None => Ok(()),
            Some((&row, &class)) => {
                let found = format!("class '{}', which no training graph has", classes[class as usize]);
                Err(self.origins[row].error(found, "a class that is in the training split, too"))
            }
        }
    }

    /// The values of the rows in `known`, as they are written.
    fn values(&self, task: Task, known: &[usize]) -> Result<(Vec<Target>, Vec<f64>), DatasetError> {
        let mut values = Vec::with_capacity(known.len() * self.names.len());
        for &row in known {
            for (name, cells) in self.names.iter().zip(&self.cells) {
                let text = cells[row].as_str();
                let (fits, expected) = match task {
                    Task::MultiLabel => (whole_number(text).is_some_and(|label| label == 0 || label == 1), "0 or 1"),
                    _ => (text.parse::<f32>().is_ok_and(f32::is_finite), "a finite number"),
                };
                let parsed = text.parse::<f64>().ok().filter(|_| fits);
                let error = || self.origins[row].error(format!("'{name}' has '{text}'"), expected);
                values.push(parsed.ok_or_else(error)?);
            }
        }
        let target = |name: &String| Target { name: name.clone(), classes: Vec::new() };
        Ok((self.names.iter().map(target).collect(), values))
    }
}

/// Values `[rows, targets]` rounded to 32 bits, and what that leaves of each; nothing of any if it is small beside the spread of all targets.
fn rounded(exact: &[f64], targets: usize) -> (Vec<f32>, Vec<f32>) {
    let rounded: Vec<f32> = exact.iter().map(|&value| value as f32).collect();
    let rests: Vec<f32> =
        exact.iter().zip(&rounded).map(|(&exact, &value)| (exact - f64::from(value)) as f32).collect();
    let loses = |target: usize| {
        let of_target = || exact.iter().skip(target).step_by(targets.max(1));
        let count = of_target().count().max(1) as f64;
        let mean = of_target().sum::<f64>() / count;
        let deviation = (of_target().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
        let lost = rests
            .iter()
            .skip(target)
            .step_by(targets.max(1))
            .fold(0.0f64, |most, &rest| most.max(f64::from(rest.abs())));
        lost > MOST_LOSS * deviation && deviation > 0.0
    };
    let rests = if (0..targets).any(loses) { rests } else { Vec::new() };
    (rounded, rests)
}

/// The integer that a text writes, also as 3.0; `None` for any other text.
fn whole_number(text: &str) -> Option<i64> {
    // Integers up to here are exact in f64.
    let exact = -9_007_199_254_740_992.0..=9_007_199_254_740_992.0;
    let parsed = text.parse::<f64>().ok().filter(|number| number.fract() == 0.0 && exact.contains(number));
    parsed.map(|number| number as i64)
}

/// A cell for an error.
fn quoted(text: &str) -> String {
    if text.is_empty() { "an empty field".to_owned() } else { format!("'{text}'") }
}

/// The set that a text names.
pub(super) fn split_of(text: &str) -> Option<Split> {
    match text.to_ascii_lowercase().as_str() {
        "train" | "training" => Some(Split::Train),
        "validation" | "valid" | "val" => Some(Split::Validation),
        "test" => Some(Split::Test),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_leaves_a_rest_where_it_counts() {
        let exact = [-97_086.123_456_789, 0.1, -97_091.987_654_321, 0.7, -97_088.5, 0.3];
        let (values, rests) = rounded(&exact, 2);
        for ((&exact, &value), &rest) in exact.iter().zip(&values).zip(&rests) {
            assert!((f64::from(value) + f64::from(rest) - exact).abs() < 1e-9, "{value} + {rest}, not {exact}");
        }
        // Near 0, or far from it where all are equal, there is nothing to keep.
        assert!(rounded(&[0.1, 0.7, 0.3], 1).1.is_empty() && rounded(&[-97_086.1, -97_086.1], 1).1.is_empty());
    }
}
