//! Metrics of models of `kdgat train` on the graphs of their test set, or on the nodes of these graphs.

use kdgat_base::random;
use serde::{Deserialize, Deserializer, Serialize};

use super::bootstrap::quantile;
use super::ranking::Ranking;
use kdgat_graph::{Schema, Task};

/// Outputs of a model for the rows of a test set, graphs or nodes, and the truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Tested {
    /// `[rows, outputs]`: class probabilities, label probabilities, or values in the units of the targets.
    pub outputs: Vec<Vec<f64>>,
    /// `[rows, number of targets]`: number of the class, labels, or values.
    pub targets: Vec<Vec<f64>>,
    /// `[num_graphs + 1]`: rows of graph `g` are `pointers[g]..pointers[g + 1]`, if they are nodes of several graphs. Intervals resample
    /// graphs then, because nodes of one graph are not independent. `None`: each row is resampled by itself.
    pub pointers: Option<Vec<usize>>,
}

/// A metric of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Its value; NaN if the test set does not define it.
    #[serde(deserialize_with = "number_or_nan")]
    pub value: f64,
    /// 95 % confidence interval from resampled graphs (of one large graph, nodes); `None` for a metric without one.
    pub interval: Option<[f64; 2]>,
}

/// Reads a number; null, which JSON has in place of NaN, is NaN.
fn number_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

impl Tested {
    /// The metrics of a task, the most important first. `resamples` of the graphs give the first one its interval.
    pub fn metrics(&self, schema: &Schema, resamples: u64, seed: u64) -> Vec<Metric> {
        let all: Vec<usize> = (0..self.targets.len()).collect();
        let mut metrics: Vec<Metric> = self.values(schema, &all).into_iter().map(plain).collect();
        if let Some(first) = metrics.first_mut() {
            first.interval = self.interval(schema, resamples, seed);
        }
        metrics
    }

    fn interval(&self, schema: &Schema, resamples: u64, seed: u64) -> Option<[f64; 2]> {
        let graphs = self.pointers.as_ref().map_or(self.targets.len(), |pointers| pointers.len() - 1);
        let rows = |graph: usize| match &self.pointers {
            Some(pointers) => pointers[graph]..pointers[graph + 1],
            None => graph..graph + 1,
        };
        let first = |drawn: &[usize]| {
            let rows: Vec<usize> = drawn.iter().flat_map(|&graph| rows(graph)).collect();
            self.values(schema, &rows).first().map_or(f64::NAN, |(_, value)| *value)
        };
        interval(graphs, resamples, seed, first)
    }

    /// Share of the graphs or nodes whose class is right, for one target with classes.
    pub fn accuracy(&self) -> f64 {
        let pairs = self.outputs.iter().zip(&self.targets);
        let right = pairs.filter(|(outputs, target)| argmax(outputs) == target[0] as usize).count();
        right as f64 / self.targets.len() as f64
    }

    /// Names and values of the metrics over these graphs.
    fn values(&self, schema: &Schema, graphs: &[usize]) -> Vec<(String, f64)> {
        match schema.task {
            Task::Classification => self.of_classes(schema, graphs),
            Task::MultiLabel => self.of_labels(schema, graphs),
            Task::Regression => self.of_values(schema, graphs),
        }
    }

    fn of_classes(&self, schema: &Schema, graphs: &[usize]) -> Vec<(String, f64)> {
        let classes = schema.targets[0].classes.len();
        let mut confusion = vec![vec![0.0; classes]; classes];
        for &graph in graphs {
            confusion[self.targets[graph][0] as usize][argmax(&self.outputs[graph])] += 1.0;
        }
        let right: f64 = (0..classes).map(|class| confusion[class][class]).sum();
        let f1 = |class: usize| {
            let of_class: f64 = confusion[class].iter().sum();
            let called: f64 = confusion.iter().map(|row| row[class]).sum();
            if of_class + called > 0.0 { 2.0 * confusion[class][class] / (of_class + called) } else { f64::NAN }
        };
        let known: Vec<f64> = (0..classes).map(f1).filter(|value| value.is_finite()).collect();
        let mut metrics = vec![
            ("accuracy".to_owned(), right / graphs.len() as f64),
            ("macro_f1".to_owned(), known.iter().sum::<f64>() / known.len() as f64),
        ];
        if classes == 2 {
            let scores: Vec<f64> = graphs.iter().map(|&graph| self.outputs[graph][1]).collect();
            let labels: Vec<bool> = graphs.iter().map(|&graph| self.targets[graph][0] > 0.5).collect();
            metrics.push(("roc_auc".to_owned(), Ranking::new(&scores, &labels).metrics().roc_auc));
        }
        metrics
    }

    fn of_labels(&self, schema: &Schema, graphs: &[usize]) -> Vec<(String, f64)> {
        let count = schema.targets.len();
        let auc = |label: usize| {
            let scores: Vec<f64> = graphs.iter().map(|&graph| self.outputs[graph][label]).collect();
            let labels: Vec<bool> = graphs.iter().map(|&graph| self.targets[graph][label] > 0.5).collect();
            Ranking::new(&scores, &labels).metrics().roc_auc
        };
        let known: Vec<f64> = (0..count).map(auc).filter(|value| value.is_finite()).collect();
        let right = |&graph: &usize| {
            let pairs = self.outputs[graph].iter().zip(&self.targets[graph]);
            pairs.filter(|(output, target)| (**output > 0.5) == (**target > 0.5)).count() as f64
        };
        vec![
            ("mean_roc_auc".to_owned(), known.iter().sum::<f64>() / known.len() as f64),
            ("label_accuracy".to_owned(), graphs.iter().map(right).sum::<f64>() / (graphs.len() * count) as f64),
        ]
    }

    fn of_values(&self, schema: &Schema, graphs: &[usize]) -> Vec<(String, f64)> {
        let count = graphs.len() as f64;
        let mut metrics = Vec::new();
        for (target, known) in schema.targets.iter().enumerate() {
            let errors = || graphs.iter().map(|&graph| self.outputs[graph][target] - self.targets[graph][target]);
            let squares: f64 = errors().map(|error| error * error).sum();
            let mean = graphs.iter().map(|&graph| self.targets[graph][target]).sum::<f64>() / count;
            let around: f64 = graphs.iter().map(|&graph| (self.targets[graph][target] - mean).powi(2)).sum();
            metrics.push((format!("{} MAE", known.name), errors().map(f64::abs).sum::<f64>() / count));
            metrics.push((format!("{} RMSE", known.name), (squares / count).sqrt()));
            metrics.push((format!("{} R2", known.name), if around > 0.0 { 1.0 - squares / around } else { f64::NAN }));
        }
        metrics
    }
}

/// 95 % confidence interval of a statistic of `graphs` graphs: its quantiles over resamples, whose graphs it gets by position. `None` without any
/// finite value.
pub fn interval(graphs: usize, resamples: u64, seed: u64, statistic: impl Fn(&[usize]) -> f64) -> Option<[f64; 2]> {
    let count = graphs as u64;
    let drawn = |round: u64| {
        let bits = (0..count).map(move |at| random::mix(seed ^ random::mix(round * count + at)));
        bits.map(|bits| (bits % count) as usize).collect::<Vec<_>>()
    };
    let resamples = if graphs == 0 { 0 } else { resamples };
    let mut values: Vec<f64> =
        (0..resamples).map(|round| statistic(&drawn(round))).filter(|value| value.is_finite()).collect();
    values.sort_unstable_by(f64::total_cmp);
    (!values.is_empty()).then(|| [quantile(&values, 0.025), quantile(&values, 0.975)])
}

fn plain((name, value): (String, f64)) -> Metric {
    Metric { name, value, interval: None }
}

/// The first of the largest values.
pub fn argmax(values: &[f64]) -> usize {
    (0..values.len()).max_by(|&one, &other| values[one].total_cmp(&values[other]).then(other.cmp(&one))).unwrap_or(0)
}

/// Results of always predicting the most frequent class, or the mean, of the training set: the simplest baseline.
pub fn baseline(schema: &Schema, training: &[Vec<f64>], test: &[Vec<f64>]) -> Tested {
    let outputs = match schema.task {
        Task::Classification => {
            let mut counts = vec![0.0; schema.targets[0].classes.len()];
            training.iter().for_each(|target| counts[target[0] as usize] += 1.0);
            counts.iter().map(|count| count / training.len().max(1) as f64).collect()
        }
        Task::MultiLabel | Task::Regression => {
            let mean = |target: usize| {
                training.iter().map(|targets| targets[target]).sum::<f64>() / training.len().max(1) as f64
            };
            (0..schema.targets.len()).map(mean).collect::<Vec<f64>>()
        }
    };
    Tested { outputs: vec![outputs; test.len()], targets: test.to_vec(), pointers: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_graph::Level;
    use kdgat_graph::dataset::Target;

    fn schema(task: Task, classes: &[&str]) -> Schema {
        let classes = classes.iter().map(|class| (*class).to_owned()).collect();
        let targets = vec![Target { name: "y".to_owned(), classes }];
        Schema { task, level: Level::Graph, targets, node_features: Vec::new(), edge_features: Vec::new(), space: None }
    }

    fn value(metrics: &[Metric], name: &str) -> f64 {
        metrics.iter().find(|metric| metric.name == name).unwrap().value
    }

    #[test]
    fn classes_are_counted() {
        let outputs = vec![vec![0.9, 0.1], vec![0.4, 0.6], vec![0.3, 0.7], vec![0.8, 0.2]];
        let tested = Tested { outputs, targets: vec![vec![0.0], vec![0.0], vec![1.0], vec![1.0]], pointers: None };
        let metrics = tested.metrics(&schema(Task::Classification, &["a", "b"]), 200, 1);
        assert_eq!(value(&metrics, "accuracy"), 0.5);
        assert_eq!(value(&metrics, "macro_f1"), 0.5);
        assert_eq!(value(&metrics, "roc_auc"), 0.75);
        let [low, high] = metrics[0].interval.unwrap();
        assert!(low <= 0.5 && high >= 0.5 && low < high);
        let all =
            baseline(&schema(Task::Classification, &["a", "b"]), &[vec![1.0], vec![1.0], vec![0.0]], &tested.targets);
        assert_eq!(value(&all.metrics(&schema(Task::Classification, &["a", "b"]), 0, 1), "accuracy"), 0.5);
    }

    /// Nodes of a graph are drawn together: where a graph's nodes are all right or all wrong, resampled graphs vary more than nodes would.
    #[test]
    fn intervals_of_nodes_resample_their_graphs() {
        let schema = schema(Task::Classification, &["a", "b"]);
        let outputs = (0..200).map(|node| if (node / 50) % 2 == 0 { vec![0.9, 0.1] } else { vec![0.1, 0.9] }).collect();
        let of = |pointers| Tested { outputs, targets: vec![vec![0.0]; 200], pointers };
        let by_graph: Tested = of(Some(vec![0, 50, 100, 150, 200]));
        let by_node = Tested { pointers: None, ..by_graph.clone() };
        let width = |tested: &Tested| {
            let [low, high] = tested.metrics(&schema, 400, 1)[0].interval.unwrap();
            high - low
        };
        // Four draws of 0 or 1 have a mean of 0 or 1 in more than 2.5 % of all cases; 200 draws have a standard error of 0.035.
        assert_eq!(width(&by_graph), 1.0);
        assert!(width(&by_node) < 0.2, "{}", width(&by_node));
        assert_eq!(value(&by_graph.metrics(&schema, 0, 1), "accuracy"), 0.5);
    }

    #[test]
    fn values_have_errors_in_their_units() {
        let tested =
            Tested { outputs: vec![vec![1.0], vec![4.0]], targets: vec![vec![2.0], vec![2.0]], pointers: None };
        let metrics = tested.metrics(&schema(Task::Regression, &[]), 0, 1);
        assert_eq!((value(&metrics, "y MAE"), value(&metrics, "y RMSE")), (1.5, 2.5f64.sqrt()));
        assert!(value(&metrics, "y R2").is_nan(), "the targets do not vary");
    }

    #[test]
    fn an_undefined_value_survives_json() {
        let metric = Metric { name: "y R2".to_owned(), value: f64::NAN, interval: None };
        let read: Metric = serde_json::from_str(&serde_json::to_string(&metric).unwrap()).unwrap();
        assert!(read.value.is_nan() && read.interval.is_none());
    }
}
