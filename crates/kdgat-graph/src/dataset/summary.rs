//! Facts about a dataset of graphs, for `kdgat data check`.

use serde::Serialize;

use super::graph_set::{GraphSet, LeftOut};
use super::schema::{Schema, Task};
use crate::Split;

/// Facts about a dataset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the dataset.
    pub name: String,
    /// Its columns.
    pub schema: Schema,
    /// Number of graphs.
    pub graphs: usize,
    /// Smallest, mean and largest number of nodes of a graph.
    pub nodes: [f64; 3],
    /// Smallest, mean and largest number of edges of a graph.
    pub edges: [f64; 3],
    /// True if each edge has its reverse.
    pub undirected: bool,
    /// Graphs without an edge.
    pub graphs_without_edges: usize,
    /// Edges of the source that are not in the graphs.
    pub left_out: LeftOut,
    /// For each target: the number of graphs or nodes of each class, or smallest, mean, standard deviation and largest value.
    pub target_values: Vec<TargetValues>,
    /// Number of graphs or nodes with targets.
    pub with_targets: usize,
    /// Graphs of the training, validation and test split, if the source assigns graphs to them.
    pub splits: Option<[usize; 3]>,
    /// Facts about the source that may surprise, such as graphs that are left out.
    pub notes: Vec<String>,
    /// Pitfalls: facts that may mislead.
    pub warnings: Vec<String>,
}

/// Values of a target.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetValues {
    /// Number of graphs or nodes of each class.
    Classes(Vec<usize>),
    /// Number of graphs or nodes with the label.
    Positives(usize),
    /// Smallest value, mean, population standard deviation, largest value.
    Moments([f64; 4]),
}

impl Summary {
    /// Counts the facts of a dataset.
    pub fn of(set: &GraphSet) -> Self {
        let graphs = set.num_graphs();
        let extent = |size: &dyn Fn(usize) -> usize| {
            let sizes = (0..graphs).map(|graph| size(graph) as f64);
            let sum: f64 = sizes.clone().sum();
            [sizes.clone().fold(f64::INFINITY, f64::min), sum / graphs.max(1) as f64, sizes.fold(0.0, f64::max)]
        };
        let target_values: Vec<TargetValues> =
            (0..set.schema.targets.len()).map(|target| values_of(set, target)).collect();
        let of_split = |split: Split| set.splits.iter().flatten().filter(|found| **found == split).count();
        let splits = set.splits.as_ref().map(|_| [Split::Train, Split::Validation, Split::Test].map(of_split));
        let mut summary = Self {
            name: set.name.clone(),
            schema: set.schema.clone(),
            graphs,
            nodes: extent(&|graph| set.num_nodes(graph)),
            edges: extent(&|graph| set.num_edges(graph)),
            undirected: set.is_undirected(),
            graphs_without_edges: (0..graphs).filter(|&graph| set.num_edges(graph) == 0).count(),
            left_out: set.left_out,
            target_values,
            with_targets: rows_with_targets(set).count(),
            splits,
            notes: set.notes.clone(),
            warnings: Vec::new(),
        };
        summary.warnings = summary.misleading();
        summary
    }

    fn misleading(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.schema.node_features.is_empty() {
            warnings.push("nodes have no feature: a model can only use degrees and structure".to_owned());
        }
        if self.graphs_without_edges > 0 {
            warnings.push(format!("{} graphs have no edge", self.graphs_without_edges));
        }
        for (target, values) in self.schema.targets.iter().zip(&self.target_values) {
            match values {
                TargetValues::Classes(counts) => {
                    let (largest, class) = counts.iter().zip(&target.classes).max().unwrap_or((&0, &target.name));
                    let share = *largest as f64 / self.with_targets.max(1) as f64;
                    if share > 0.9 {
                        let (percent, units) = (100.0 * share, self.schema.level.units());
                        warnings.push(format!(
                            "{percent:.1} % of the {units} are of class {class}: compare accuracies with that"
                        ));
                    }
                }
                TargetValues::Moments([smallest, .., largest]) if smallest == largest => {
                    warnings.push(format!("target {} is the same for all {}", target.name, self.schema.level.units()));
                }
                TargetValues::Moments(_) | TargetValues::Positives(_) => {}
            }
        }
        if let Some([train, validation, test]) = self.splits {
            for (name, graphs) in [("training", train), ("validation", validation), ("test", test)] {
                if graphs == 0 {
                    warnings.push(format!("no graph is in the {name} split"));
                }
            }
        }
        warnings
    }
}

/// Targets of each graph or node that has any.
fn rows_with_targets(set: &GraphSet) -> impl Iterator<Item = &[f32]> {
    let rows = if set.schema.level.is_graph() { &set.graph_targets } else { &set.node_targets };
    rows.chunks_exact(set.schema.targets.len().max(1)).filter(|row| !row.iter().any(|value| value.is_nan()))
}

fn values_of(set: &GraphSet, target: usize) -> TargetValues {
    let values = rows_with_targets(set).map(|row| row[target]);
    match set.schema.task {
        Task::Classification => {
            let mut counts = vec![0; set.schema.targets[target].classes.len()];
            values.for_each(|class| counts[class as usize] += 1);
            TargetValues::Classes(counts)
        }
        Task::MultiLabel => TargetValues::Positives(values.filter(|value| *value > 0.0).count()),
        Task::Regression => {
            let values: Vec<f64> = values.map(f64::from).collect();
            let count = values.len().max(1) as f64;
            let mean = values.iter().sum::<f64>() / count;
            let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
            let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
            let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            TargetValues::Moments([smallest, mean, variance.sqrt(), largest])
        }
    }
}
