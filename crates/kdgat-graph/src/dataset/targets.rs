//! The targets of graphs or of their nodes: the task by their texts, classes and values.

use super::error::{DatasetError, Origin};
use super::schema::{Target, Task, numbered};
use crate::Split;

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
    /// `[rows, number of targets]`.
    pub values: Vec<f32>,
    pub splits: Option<Vec<Split>>,
}

impl TargetCells<'_> {
    /// Converts the texts; without a task, to that which they suggest.
    ///
    /// # Errors
    /// A text that does not fit the task, a second class, or a class that no training graph has.
    pub fn parse(self, task: Option<Task>) -> Result<Targets, DatasetError> {
        let task = task.unwrap_or_else(|| self.inferred());
        let (targets, values) = if task == Task::Classification { self.classes()? } else { self.values(task)? };
        Ok(Targets { task, targets, values, splits: self.splits })
    }

    /// The task that the texts suggest.
    fn inferred(&self) -> Task {
        let Self { cells, .. } = self;
        let are = |fits: fn(&str) -> bool| cells.iter().flatten().all(|cell| fits(cell));
        if cells.len() > 1 {
            return if are(|cell| cell == "0" || cell == "1") { Task::MultiLabel } else { Task::Regression };
        }
        let is_text = cells.iter().flatten().any(|cell| cell.parse::<f64>().is_err());
        let are_integers = are(|cell| cell.parse::<i64>().is_ok());
        let few = numbered(&cells[0]).0.len() <= MOST_INFERRED_CLASSES.min(2.max(cells[0].len() / 4));
        if is_text || (are_integers && few) { Task::Classification } else { Task::Regression }
    }

    fn classes(&self) -> Result<(Vec<Target>, Vec<f32>), DatasetError> {
        if let [_, second, ..] = &self.names[..] {
            let expected = "one target for classification; name it in kdgat-graphs.toml";
            return Err(self.header.error(format!("a second target '{second}'"), expected));
        }
        let (classes, numbers) = numbered(&self.cells[0]);
        self.expect_trained_classes(&classes, &numbers)?;
        let target = Target { name: self.names[0].clone(), classes };
        Ok((vec![target], numbers.into_iter().map(|class| class as f32).collect()))
    }

    /// Refuses a class that no training graph has.
    fn expect_trained_classes(&self, classes: &[String], numbers: &[u32]) -> Result<(), DatasetError> {
        let Some(splits) = &self.splits else { return Ok(()) };
        let mut trained = vec![false; classes.len()];
        let of_training = splits.iter().zip(numbers).filter(|(split, _)| **split == Split::Train);
        of_training.for_each(|(_, &class)| trained[class as usize] = true);
        match numbers.iter().position(|&class| !trained[class as usize]) {
            None => Ok(()),
            Some(graph) => {
                let found = format!("class '{}', which no training graph has", classes[numbers[graph] as usize]);
                Err(self.origins[graph].error(found, "a class that is in the training split, too"))
            }
        }
    }

    fn values(&self, task: Task) -> Result<(Vec<Target>, Vec<f32>), DatasetError> {
        let mut values = Vec::with_capacity(self.origins.len() * self.names.len());
        for (graph, origin) in self.origins.iter().enumerate() {
            for (name, cells) in self.names.iter().zip(&self.cells) {
                let text = cells[graph].as_str();
                let (fits, expected) = match task {
                    Task::MultiLabel => (matches!(text, "0" | "1"), "0 or 1"),
                    _ => (text.parse::<f32>().is_ok_and(f32::is_finite), "a finite number"),
                };
                let parsed = text.parse::<f32>().ok().filter(|_| fits);
                values.push(parsed.ok_or_else(|| origin.error(format!("'{name}' has '{text}'"), expected))?);
            }
        }
        let target = |name: &String| Target { name: name.clone(), classes: Vec::new() };
        Ok((self.names.iter().map(target).collect(), values))
    }
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
