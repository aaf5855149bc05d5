//! The simplest model of rooted trees in space: logistic regression on numbers that describe a tree as a whole.

use kdgat_graph::{GraphView, Schema, Store, StoreError};

use super::graphs::Tested;
use super::logistic::Logistic;

/// Name of the feature of nodes with their radii.
const RADIUS: &str = "radius";
/// Numbers that describe a tree, in the order of [`describe`].
pub const DESCRIPTORS: [&str; 12] = [
    "ln points",
    "ln length",
    "ln tips",
    "ln branch points",
    "ln depth",
    "ln longest way from the root",
    "ln largest extent",
    "ln middle extent",
    "ln smallest extent",
    "mean radius",
    "largest radius",
    "ln mean segment",
];

/// Describes a tree whose root is its first node. `radius`: the column of the nodes' radii among `columns`, if they have any.
pub fn describe(tree: &GraphView, radius: Option<usize>, columns: usize) -> [f32; DESCRIPTORS.len()] {
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
    let radii: Vec<f64> = radius.map_or_else(Vec::new, |column| {
        (0..nodes).map(|node| f64::from(tree.node_features[node * columns + column])).collect()
    });
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
    values.map(|value| value as f32)
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
    let mut columns = 0;
    let mut radius = None;
    for feature in &schema.node_features {
        if feature.name == RADIUS && feature.values.is_none() {
            radius = Some(columns);
        }
        columns += feature.columns();
    }
    let described = |graphs: &[u64]| -> Result<Vec<([f32; DESCRIPTORS.len()], usize)>, StoreError> {
        let one = |&graph: &u64| {
            let view = store.try_graph(graph)?;
            Ok((describe(&view, radius, columns), view.class() as usize))
        };
        graphs.iter().map(one).collect()
    };
    let (training, test) = (described(training)?, described(test)?);
    let count = training.len() as f64;
    let means: [f64; DESCRIPTORS.len()] =
        std::array::from_fn(|at| training.iter().map(|(row, _)| f64::from(row[at])).sum::<f64>() / count);
    let deviations: [f64; DESCRIPTORS.len()] = std::array::from_fn(|at| {
        let squares = training.iter().map(|(row, _)| (f64::from(row[at]) - means[at]).powi(2));
        let deviation = (squares.sum::<f64>() / count).sqrt();
        if deviation > 0.0 { deviation } else { 1.0 }
    });
    let scaled = |row: &[f32; DESCRIPTORS.len()]| -> [f32; DESCRIPTORS.len()] {
        std::array::from_fn(|at| ((f64::from(row[at]) - means[at]) / deviations[at]) as f32)
    };
    let models: Vec<Logistic> = (0..schema.targets[0].classes.len())
        .map(|class| Logistic::fit(DESCRIPTORS.len(), || training.iter().map(|(row, of)| (scaled(row), *of == class))))
        .collect();
    let outputs = test.iter().map(|(row, _)| {
        let shares: Vec<f64> = models.iter().map(|model| model.probability(&scaled(row))).collect();
        let total: f64 = shares.iter().sum();
        shares.into_iter().map(|share| share / total).collect()
    });
    let outputs = outputs.collect();
    Ok(Some(Tested { outputs, targets: test.iter().map(|(_, class)| vec![*class as f64]).collect(), pointers: None }))
}
