//! The simplest model of rooted trees in space: logistic regression on numbers that describe a tree as a whole.

use kdgat_graph::{GraphView, Schema, Store, StoreError};

use super::graphs::Tested;
use super::logistic::Logistic;

/// Name of the feature of nodes with their radii.
const RADIUS: &str = "radius";
/// Columns of the nodes' features that describe a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DescribedColumns {
    /// Number of all columns.
    pub count: usize,
    /// That of the radii, if nodes have any.
    pub radius: Option<usize>,
    /// Those of categories, such as the types of points: one for each value.
    pub categories: Vec<usize>,
}

impl DescribedColumns {
    /// The columns of a dataset.
    pub fn of(schema: &Schema) -> Self {
        let mut found = Self::default();
        for feature in &schema.node_features {
            let next = found.count + feature.columns();
            if feature.values.is_some() {
                found.categories.extend(found.count..next);
            } else if feature.name == RADIUS {
                found.radius = Some(found.count);
            }
            found.count = next;
        }
        found
    }
}

/// Describes a tree whose root is its first node: logarithms of the numbers of points, tips and branch points, of the length, of depth and longest way
/// from the root, of the largest, middle and smallest extent and of the mean segment; mean and largest radius; and the share of each category.
pub fn describe(tree: &GraphView, columns: &DescribedColumns) -> Vec<f32> {
    let nodes = tree.num_nodes();
    let place = |node: usize| &tree.space.positions[3 * node..3 * node + 3];
    let between = |one: usize, other: usize| {
        let squares = place(one).iter().zip(place(other)).map(|(one, other)| f64::from(one - other).powi(2));
        squares.sum::<f64>().sqrt()
    };
    let neighbours: Vec<&[u16]> = (0..nodes).map(|node| &tree.sources[tree.edges_of(node)]).collect();
    // From the root outwards: edges and length from it to each node.
    let mut reached: Vec<Option<(usize, f64)>> = vec![None; nodes];
    let (mut waiting, mut length) = (Vec::new(), 0.0);
    if let Some(root) = reached.first_mut() {
        *root = Some((0, 0.0));
        waiting.push((0, 0, 0.0));
    }
    while let Some((node, depth, way)) = waiting.pop() {
        for &child in neighbours[node] {
            let child = usize::from(child);
            if reached[child].is_none() {
                let step = between(node, child);
                length += step;
                reached[child] = Some((depth + 1, way + step));
                waiting.push((child, depth + 1, way + step));
            }
        }
    }
    let depth = reached.iter().flatten().map(|(depth, _)| *depth).max().unwrap_or(0);
    let longest = reached.iter().flatten().map(|(_, way)| *way).fold(0.0, f64::max);
    let degrees = || neighbours.iter().skip(1).map(|neighbours| neighbours.len());
    let (tips, branches) =
        (degrees().filter(|&degree| degree == 1).count(), degrees().filter(|&degree| degree > 2).count());
    let mut extents = [0, 1, 2].map(|axis| {
        let values = (0..nodes).map(|node| f64::from(place(node)[axis]));
        let ends =
            values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)]);
        (ends[1] - ends[0]).max(0.0)
    });
    extents.sort_by(f64::total_cmp);
    let of_column = |column: usize| -> Vec<f64> {
        (0..nodes).map(|node| f64::from(tree.node_features[node * columns.count + column])).collect()
    };
    let radii = columns.radius.map_or_else(Vec::new, of_column);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let ln = |value: f64| value.ln_1p();
    let [smallest, middle, largest] = extents;
    let values = [
        ln(nodes as f64),
        ln(length),
        ln(tips as f64),
        ln(branches as f64),
        ln(depth as f64),
        ln(longest),
        ln(largest),
        ln(middle),
        ln(smallest),
        mean(&radii),
        radii.iter().copied().fold(0.0, f64::max),
        ln(length / (nodes.max(2) - 1) as f64),
    ];
    let shares = columns.categories.iter().map(|&column| mean(&of_column(column)));
    values.into_iter().chain(shares).map(|value| value as f32).collect()
}

/// Probabilities of the classes of test trees by logistic regression on the standardised descriptors of training trees, of each class against the
/// others; `None` for graphs that are no rooted trees with classes.
///
/// # Errors
/// A graph that cannot be read.
pub fn classify(store: &Store, schema: &Schema, training: &[u64], test: &[u64]) -> Result<Option<Tested>, StoreError> {
    if !schema.has_classes() || !schema.space.as_ref().is_some_and(|space| space.rooted) || training.is_empty() {
        return Ok(None);
    }
    let columns = DescribedColumns::of(schema);
    let described = |graphs: &[u64]| -> Result<Vec<(Vec<f32>, usize)>, StoreError> {
        let one = |&graph: &u64| {
            let view = store.try_graph(graph)?;
            Ok((describe(&view, &columns), view.class() as usize))
        };
        graphs.iter().map(one).collect()
    };
    let (training, test) = (described(training)?, described(test)?);
    let (count, numbers) = (training.len() as f64, training[0].0.len());
    let sums = |of: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
        (0..numbers).map(|at| training.iter().map(|(row, _)| of(at, f64::from(row[at]))).sum()).collect()
    };
    let means: Vec<f64> = sums(&|_, value| value).into_iter().map(|sum| sum / count).collect();
    let squares = sums(&|at, value| (value - means[at]).powi(2));
    let deviations: Vec<f64> =
        squares.into_iter().map(|sum| if sum > 0.0 { (sum / count).sqrt() } else { 1.0 }).collect();
    let scaled = |row: &[f32]| -> Vec<f32> {
        let values = row.iter().zip(&means).zip(&deviations);
        values.map(|((&value, mean), deviation)| ((f64::from(value) - mean) / deviation) as f32).collect()
    };
    let models: Vec<Logistic> = (0..schema.targets[0].classes.len())
        .map(|class| Logistic::fit(numbers, || training.iter().map(|(row, of)| (scaled(row), *of == class))))
        .collect();
    let outputs = test.iter().map(|(row, _)| {
        let shares: Vec<f64> = models.iter().map(|model| model.probability(&scaled(row))).collect();
        let total: f64 = shares.iter().sum();
        shares.into_iter().map(|share| share / total).collect()
    });
    let outputs = outputs.collect();
    Ok(Some(Tested { outputs, targets: test.iter().map(|(_, class)| vec![*class as f64]).collect(), pointers: None }))
}
