//! Facts about a dataset of graphs, for `kdgat data check`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::graph_set::{GraphSet, LeftOut};
use super::schema::{Schema, Task};
use super::space_set::SpaceSet;
use crate::{OfPaths, PairCount, PairCounter, Split};

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
    /// Positions of nodes, if they have any.
    pub space: Option<SpaceSummary>,
    /// Smallest, mean and largest number of a graph's paths of three edges, if nodes have positions and edges are listed.
    pub paths: Option<[f64; 3]>,
    /// Facts about the source that may surprise, such as graphs that are left out.
    pub notes: Vec<String>,
    /// Pitfalls: facts that may mislead.
    pub warnings: Vec<String>,
}

/// Facts about positions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpaceSummary {
    /// Name of each kind of nodes, and the number of nodes of it.
    pub kinds: Vec<(String, usize)>,
    /// Graphs with a periodic cell.
    pub periodic_graphs: usize,
    /// Smallest, mean and largest length of a force, if there are forces.
    pub forces: Option<[f64; 3]>,
    /// Smallest, mean and largest number of a graph's listed angles and dihedrals.
    #[serde(skip_serializing_if = "OfPaths::is_none")]
    pub listed: OfPaths<[f64; 3]>,
    /// Neighbours within a cutoff; `None` if a graph has millions of images within it.
    pub neighbours: Option<Neighbours>,
}

/// Numbers of neighbours.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Neighbours {
    /// The cutoff, in the unit of the positions.
    pub cutoff: f64,
    /// Smallest, mean and largest number of pairs of a graph.
    pub pairs: [f64; 3],
    /// Mean and largest number of neighbours of a node.
    pub of_node: [f64; 2],
    /// Nodes without a neighbour.
    pub alone: u64,
}

impl SpaceSummary {
    fn of(set: &GraphSet, cutoff: f64) -> Option<Self> {
        let (space, schema) = (set.space.as_ref()?, set.schema.space.as_ref()?);
        let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
        space.kinds.iter().for_each(|&kind| *counts.entry(kind).or_default() += 1);
        let lengths = space.forces.as_chunks::<3>().0.iter();
        let lengths = lengths.map(|force| force.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt());
        Some(Self {
            kinds: counts.into_iter().map(|(kind, count)| (schema.kinds.name(kind), count)).collect(),
            periodic_graphs: space.cells.chunks_exact(9).filter(|cell| cell.iter().any(|&value| value != 0.0)).count(),
            forces: schema.forces.then(|| extent(lengths)),
            listed: OfPaths::of_all(|kind| {
                let pointers = schema.paths.of(kind).map(|_| &space.paths[kind as usize].pointers)?;
                Some(extent(pointers.windows(2).map(|ends| (ends[1] - ends[0]) as f64)))
            }),
            neighbours: neighbours(set, space, cutoff),
        })
    }
}

fn neighbours(set: &GraphSet, space: &SpaceSet, cutoff: f64) -> Option<Neighbours> {
    let mut counter = PairCounter::default();
    let counts = (0..set.num_graphs()).map(|graph| {
        let nodes = set.node_pointers[graph] as usize..set.node_pointers[graph + 1] as usize;
        let cell = if space.cells.is_empty() { &[][..] } else { &space.cells[graph * 9..(graph + 1) * 9] };
        counter.count_in(graph as u64, &space.positions[nodes.start * 3..nodes.end * 3], cell, cutoff).ok()
    });
    let counts = counts.collect::<Option<Vec<PairCount>>>()?;
    let (pairs, nodes) = (counts.iter().map(|count| count.pairs).sum::<u64>() as f64, space.kinds.len());
    Some(Neighbours {
        cutoff,
        pairs: extent(counts.iter().map(|count| count.pairs as f64)),
        of_node: [pairs / nodes.max(1) as f64, counts.iter().map(|count| count.most).max().unwrap_or(0) as f64],
        alone: counts.iter().map(|count| count.alone).sum(),
    })
}

/// Number of a graph's paths of three edges.
fn paths_of(set: &GraphSet, graph: usize) -> u64 {
    let edges = set.edge_pointers[graph] as usize..set.edge_pointers[graph + 1] as usize;
    let mut row_pointers = vec![0; set.num_nodes(graph) + 1];
    // A graph has at most 2^30 edges.
    set.targets[edges.clone()].iter().for_each(|&target| row_pointers[target as usize + 1] += 1);
    (1..row_pointers.len()).for_each(|node| row_pointers[node] += row_pointers[node - 1]);
    let sources: Vec<i32> = set.sources[edges].iter().map(|&source| source as i32).collect();
    crate::paths::Neighbours::of_incoming(&row_pointers, &sources).count_paths().iter().sum()
}

/// Smallest, mean and largest value.
fn extent(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let (mut least, mut most, mut sum, mut count) = (f64::INFINITY, 0.0_f64, 0.0, 0_u64);
    for value in values {
        (least, most, sum, count) = (least.min(value), most.max(value), sum + value, count + 1);
    }
    [least, sum / count.max(1) as f64, most]
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
    /// Counts the facts of a dataset; neighbours of nodes with positions are those within the cutoff.
    pub fn of(set: &GraphSet, cutoff: f64) -> Self {
        let graphs = set.num_graphs();
        let target_values: Vec<TargetValues> =
            (0..set.schema.targets.len()).map(|target| values_of(set, target)).collect();
        let of_split = |split: Split| set.splits.iter().flatten().filter(|found| **found == split).count();
        let splits = set.splits.as_ref().map(|_| [Split::Train, Split::Validation, Split::Test].map(of_split));
        let mut summary = Self {
            name: set.name.clone(),
            schema: set.schema.clone(),
            graphs,
            nodes: extent((0..graphs).map(|graph| set.num_nodes(graph) as f64)),
            edges: extent((0..graphs).map(|graph| set.num_edges(graph) as f64)),
            undirected: set.is_undirected(),
            graphs_without_edges: (0..graphs).filter(|&graph| set.num_edges(graph) == 0).count(),
            left_out: set.left_out,
            target_values,
            with_targets: rows_with_targets(set).count(),
            splits,
            space: SpaceSummary::of(set, cutoff),
            paths: (set.space.is_some() && set.lists_edges)
                .then(|| extent((0..graphs).map(|graph| paths_of(set, graph) as f64))),
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
        match (&self.space, self.graphs_without_edges) {
            (_, 0) => {}
            // Networks in space make pairs of their own.
            (Some(_), without) if without == self.graphs => {}
            (_, without) => warnings.push(format!("{without} graphs have no edge")),
        }
        if let Some(unfit) = self.schema.space.as_ref().and_then(|space| space.unfit.as_ref()) {
            warnings.push(format!("no schnet, painn or irreps can be trained, an sgmp can: {unfit}"));
        }
        if let Some(Neighbours { alone, cutoff, .. }) = self.space.as_ref().and_then(|space| space.neighbours.as_ref())
            && *alone > 0
        {
            warnings.push(format!("{alone} nodes have no neighbour within {cutoff}"));
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
