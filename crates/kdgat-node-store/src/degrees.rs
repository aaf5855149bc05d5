//! Expected sizes of batches of sampled neighbours, from the degrees of a graph alone.
//!
//! Nodes are classes by degree, and each edge leads from a random end to a random end (the configuration model, Bollobás 1980). With
//! `c(d)` the probability that a node of degree `d` is in the batch before a hop and `p(d) = min(1, f / d)` that it draws a given neighbour,
//! it has drawn this neighbour after the hop with probability `r'(d) = r(d) + (c(d) − r(d)) · p(d)`. A random edge has then not been drawn
//! with probability `s = Σ_d (n_d · d / E) · (1 − r'(d))`, and a node is in the batch with `c'(d) = 1 − (1 − c₀) · s^d`. In an
//! undirected graph one neighbour of a node that was drawn is the node that drew it, so that `1 / d` of its draws find no new node. Graphs
//! with many triangles have fewer distinct nodes in a batch than that.

/// Standard deviation of the logarithm of the degrees that are assumed without a graph: the mean is about 1.6 times the median.
const ASSUMED_SPREAD: f64 = 1.0;
/// Degrees up to this one have a class each; above, a class spans 2 %.
const EXACT: usize = 256;
const CLASS_RATIO: f64 = 1.02;

/// Number of nodes by degree.
#[derive(Debug, Clone)]
pub struct Degrees {
    /// Degree and number of nodes of each class, ascending.
    classes: Vec<(f64, f64)>,
    /// True if each edge has its reverse.
    is_undirected: bool,
}

/// Expected size of the edges of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSize {
    /// Rows that the layer reads.
    pub sources: f64,
    /// Rows that it computes.
    pub targets: f64,
    /// Edges, one self-loop for each target included.
    pub edges: f64,
}

/// Expected size of a batch.
#[derive(Debug, Clone)]
pub struct BatchSize {
    /// The layers in the order of the model: the first is the widest.
    pub layers: Vec<LayerSize>,
    /// Probability that a node of each class of degrees is in the batch.
    visited: Vec<f64>,
}

impl Degrees {
    /// The degrees of a graph's rows; `is_undirected` if each edge has its reverse.
    pub fn of_rows(row_pointers: &[u64], is_undirected: bool) -> Self {
        let mut counts: Vec<(f64, f64)> = Vec::new();
        for ends in row_pointers.windows(2) {
            let degree = (ends[1] - ends[0]) as usize;
            let class = class_of(degree);
            if counts.len() <= class {
                counts.resize(class + 1, (0.0, 0.0));
            }
            counts[class].0 += degree as f64;
            counts[class].1 += 1.0;
        }
        let classes = counts.into_iter().filter(|(_, nodes)| *nodes > 0.0);
        Self { classes: classes.map(|(edges, nodes)| (edges / nodes, nodes)).collect(), is_undirected }
    }

    /// Degrees of a graph that need not exist: log-normal, with this mean.
    pub fn assumed(nodes: f64, edges: f64, is_undirected: bool) -> Self {
        const CLASSES: i32 = 400;
        // Equal steps of ten standard deviations around the median.
        let step = |class: i32| (f64::from(class) + 0.5) / f64::from(CLASSES) * 10.0 - 5.0;
        let weight = |class| (-step(class).powi(2) / 2.0).exp();
        let total: f64 = (0..CLASSES).map(weight).sum();
        let classes = (0..CLASSES).map(|class| ((ASSUMED_SPREAD * step(class)).exp(), nodes * weight(class) / total));
        let classes: Vec<(f64, f64)> = classes.collect();
        let found: f64 = classes.iter().map(|(degree, nodes)| degree * nodes).sum();
        let scaled = classes.into_iter().map(|(degree, nodes)| (degree * edges / found, nodes));
        Self { classes: scaled.collect(), is_undirected }
    }

    /// Number of nodes.
    pub fn nodes(&self) -> f64 {
        self.classes.iter().map(|(_, nodes)| nodes).sum()
    }

    /// Number of directed edges.
    pub fn edges(&self) -> f64 {
        self.classes.iter().map(|(degree, nodes)| degree * nodes).sum()
    }

    /// Expected size of a batch of `seeds`, with these fan-outs from the seeds outwards (infinite: all neighbours).
    pub fn batch(&self, seeds: f64, fanouts: &[f64]) -> BatchSize {
        let share = (seeds / self.nodes().max(1.0)).min(1.0);
        let edges = self.edges().max(1.0);
        let mut among = vec![share; self.classes.len()];
        // By all nodes, and by seeds alone.
        let (mut drawn, mut of_seeds) = (vec![0.0; self.classes.len()], vec![0.0; self.classes.len()]);
        let sum = |among: &[f64]| among.iter().zip(&self.classes).map(|(share, (_, nodes))| share * nodes).sum::<f64>();
        let mut layers = Vec::new();
        for &fanout in fanouts {
            let targets = sum(&among);
            let of_class = among.iter().zip(&self.classes);
            let num_edges = of_class.map(|(share, (degree, nodes))| share * nodes * (degree.min(fanout) + 1.0)).sum();
            let mut kept = 0.0;
            let by_class = drawn.iter_mut().zip(&mut of_seeds).zip(&among).zip(&self.classes);
            for (((drawn, of_seeds), among), (degree, nodes)) in by_class {
                let of_row = (fanout / degree.max(1e-9)).min(1.0);
                *drawn += (among - *drawn) * of_row;
                *of_seeds += (share - *of_seeds) * of_row;
                let back = if self.is_undirected { (1.0 / degree.max(1.0)).min(1.0) } else { 0.0 };
                kept += nodes * degree / edges * (1.0 - *of_seeds - (*drawn - *of_seeds) * (1.0 - back));
            }
            for (among, (degree, _)) in among.iter_mut().zip(&self.classes) {
                *among = 1.0 - (1.0 - share) * kept.powf(*degree);
            }
            layers.insert(0, LayerSize { sources: sum(&among), targets, edges: num_edges });
        }
        BatchSize { layers, visited: among }
    }

    /// Share of the rows of a batch that are among the `rows` most likely ones: those of the largest degrees.
    pub fn hot_share(&self, batch: &BatchSize, rows: f64) -> f64 {
        let (mut left, mut hot, mut all) = (rows, 0.0, 0.0);
        for ((_, nodes), visited) in self.classes.iter().zip(&batch.visited).rev() {
            let taken = nodes.min(left);
            left -= taken;
            hot += taken * visited;
            all += nodes * visited;
        }
        if all > 0.0 { hot / all } else { 0.0 }
    }
}

fn class_of(degree: usize) -> usize {
    match degree <= EXACT {
        true => degree,
        false => EXACT + 1 + ((degree as f64 / EXACT as f64).ln() / CLASS_RATIO.ln()) as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assumed_degrees_have_the_given_sums() {
        let degrees = Degrees::assumed(1e6, 1.5e7, true);
        assert!((degrees.nodes() / 1e6 - 1.0).abs() < 1e-9 && (degrees.edges() / 1.5e7 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn rows_are_counted_by_degree() {
        let degrees = Degrees::of_rows(&[0, 3, 3, 10_003, 10_006], false);
        assert_eq!(degrees.classes, [(0.0, 1.0), (3.0, 2.0), (10_000.0, 1.0)]);
        assert_eq!((degrees.nodes(), degrees.edges()), (4.0, 10_006.0));
    }

    /// Laws: all neighbours of all nodes are the whole graph, and a batch that is tiny in its graph is a tree.
    #[test]
    fn the_whole_graph_and_trees_are_exact() {
        let degrees = Degrees::of_rows(&(0..=1000u64).map(|node| 4 * node).collect::<Vec<_>>(), false);
        let whole = degrees.batch(1000.0, &[f64::INFINITY, 2.0]);
        assert_eq!(whole.layers[1], LayerSize { sources: 1000.0, targets: 1000.0, edges: 5000.0 });
        assert_eq!(whole.layers[0].edges, 3000.0);
        let large = Degrees::assumed(1e9, 1e11, true);
        let tree = large.batch(10.0, &[1.0, 1.0]);
        // Each seed draws a neighbour, and then both draw another one, as degrees are large.
        assert!((tree.layers[1].sources / 20.0 - 1.0).abs() < 0.02, "{tree:?}");
        assert!((tree.layers[0].sources / 40.0 - 1.0).abs() < 0.03, "{tree:?}");
        assert!(degrees.hot_share(&whole, 1000.0) > 0.999 && degrees.hot_share(&whole, 0.0) == 0.0);
        assert!((degrees.hot_share(&whole, 250.0) - 0.25).abs() < 1e-9, "equal degrees");
    }

    #[test]
    fn hubs_are_hot() {
        let degrees = Degrees::assumed(1e6, 1e7, true);
        let batch = degrees.batch(1000.0, &[10.0, 5.0]);
        let share = degrees.hot_share(&batch, 1e5);
        assert!(share > 0.3 && share < 0.9, "a tenth of the rows answers {share}");
        let rows = batch.layers[0].sources;
        assert!((20_000.0..66_000.0).contains(&rows), "{rows} rows");
    }
}
