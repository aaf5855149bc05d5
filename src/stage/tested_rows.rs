//! Rows of `kdgat evaluate --predictions` for the graphs or nodes of a test set.

use std::path::Path;

use super::StageError;
use super::predictions::Predictions;
use crate::evaluate::graphs::{Tested, argmax};
use crate::evaluate::tables::number;
use crate::graph::{Schema, Task};

/// A file of predictions, with a row per model and tested graph or node: the model, its fold, the cells that identify the row, targets and
/// predictions.
pub struct TestedRows {
    predictions: Predictions,
    schema: Schema,
}

/// The rows of a model.
pub struct ModelRows<'a> {
    /// Name of the model.
    pub model: &'a str,
    /// Its division.
    pub fold: &'a str,
    /// The cells that identify each row.
    pub places: Vec<Vec<String>>,
    /// Outputs and targets of each row.
    pub tested: &'a Tested,
}

impl TestedRows {
    /// Starts a file whose rows are identified by the columns `places`.
    ///
    /// # Errors
    /// If `path` cannot be written: this fails before anything is computed.
    pub fn create(path: &Path, places: &[&str], schema: &Schema) -> Result<Self, StageError> {
        let mut columns = ["model", "fold"].map(str::to_owned).to_vec();
        columns.extend(places.iter().map(|&name| name.to_owned()));
        match schema.task {
            Task::Classification => {
                columns.extend(["target", "predicted"].map(str::to_owned));
                columns.extend(schema.targets[0].classes.iter().map(|class| format!("probability_{class}")));
            }
            Task::MultiLabel => columns.extend(of_targets(schema, &["target", "predicted", "probability"])),
            Task::Regression => columns.extend(of_targets(schema, &["target", "predicted"])),
        }
        Ok(Self { predictions: Predictions::create(path, &columns)?, schema: schema.clone() })
    }

    /// Adds the rows of a model.
    ///
    /// # Errors
    /// A full disk.
    pub fn add(&mut self, rows: ModelRows<'_>) -> Result<(), StageError> {
        let ModelRows { model, fold, places, tested } = rows;
        for ((place, outputs), targets) in places.into_iter().zip(&tested.outputs).zip(&tested.targets) {
            let mut cells = vec![model.to_owned(), fold.to_owned()];
            cells.extend(place);
            cells.extend(self.values(outputs, targets));
            self.predictions.row(&cells)?;
        }
        Ok(())
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn finish(self) -> Result<(), StageError> {
        self.predictions.finish()
    }

    /// Targets and predictions of a row, as the header names them.
    fn values(&self, outputs: &[f64], targets: &[f64]) -> Vec<String> {
        match self.schema.task {
            Task::Classification => {
                let classes = &self.schema.targets[0].classes;
                let name = |class: usize| classes.get(class).cloned().unwrap_or_else(|| class.to_string());
                // Test items have a class.
                let target = targets.first().map_or_else(String::new, |&class| name(class as usize));
                let mut cells = vec![target, name(argmax(outputs))];
                cells.extend(outputs.iter().map(|&value| number(value)));
                cells
            }
            Task::MultiLabel => {
                let cells = |(&output, &target): (&f64, &f64)| {
                    [number(target), u8::from(output > 0.5).to_string(), number(output)]
                };
                outputs.iter().zip(targets).flat_map(cells).collect()
            }
            Task::Regression => {
                let cells = |(&output, &target): (&f64, &f64)| [number(target), number(output)];
                outputs.iter().zip(targets).flat_map(cells).collect()
            }
        }
    }
}

/// These columns for each target.
fn of_targets(schema: &Schema, kinds: &[&str]) -> Vec<String> {
    let of_target = |name: &str| kinds.iter().map(|kind| format!("{kind}_{name}")).collect::<Vec<_>>();
    schema.targets.iter().flat_map(|target| of_target(&target.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Level;
    use crate::graph::dataset::Target;

    fn schema(task: Task, targets: &[(&str, &[&str])]) -> Schema {
        let target = |(name, classes): &(&str, &[&str])| Target {
            name: (*name).to_owned(),
            classes: classes.iter().map(|&class| class.to_owned()).collect(),
        };
        let (level, targets) = (Level::Graph, targets.iter().map(target).collect());
        Schema { task, level, targets, node_features: Vec::new(), edge_features: Vec::new(), space: None }
    }

    fn written(schema: &Schema, outputs: &[f64], targets: &[f64]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let mut rows = TestedRows::create(&path, &["graph"], schema).unwrap();
        let tested = Tested { outputs: vec![outputs.to_vec()], targets: vec![targets.to_vec()], pointers: None };
        let places = vec![vec!["g 7".to_owned()]];
        rows.add(ModelRows { model: "gin/1", fold: "fold 0 of 10", places, tested: &tested }).unwrap();
        rows.finish().unwrap();
        std::fs::read_to_string(&path).unwrap()
    }

    #[test]
    fn each_task_has_its_columns() {
        let classes = schema(Task::Classification, &[("y", &["cat", "dog, big"])]);
        assert_eq!(
            written(&classes, &[0.25, 0.75], &[0.0]),
            "model,fold,graph,target,predicted,probability_cat,\"probability_dog, big\"\ngin/1,fold 0 of 10,g 7,cat,\"dog, big\",0.25,0.75\n"
        );
        let labels = schema(Task::MultiLabel, &[("y_a", &[]), ("y_b", &[])]);
        assert_eq!(
            written(&labels, &[0.25, 0.75], &[1.0, 1.0]),
            "model,fold,graph,target_y_a,predicted_y_a,probability_y_a,target_y_b,predicted_y_b,probability_y_b\n\
             gin/1,fold 0 of 10,g 7,1,0,0.25,1,1,0.75\n"
        );
        let values = schema(Task::Regression, &[("energy", &[])]);
        assert_eq!(
            written(&values, &[-1.5], &[2.0]),
            "model,fold,graph,target_energy,predicted_energy\ngin/1,fold 0 of 10,g 7,2,-1.5\n"
        );
    }
}
