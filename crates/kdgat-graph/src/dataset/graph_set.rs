//! A dataset of graphs in memory, as flat arrays.

use std::path::Path;

use serde::Serialize;

use super::error::{DatasetError, Origin};
use super::feature_rows::Rows;
use super::schema::{Feature, Level, Schema, SpaceSchema};
use super::space_set::SpaceSet;
use super::targets::Targets;
use crate::{PathKind, PathList, PathView, Split};

/// Most nodes of a graph: node numbers of a store have 16 bits.
pub const MOST_NODES: usize = u16::MAX as usize;
/// Most edges of a graph that row pointers of 16 bits can count; a store of larger graphs has wider ones.
pub(crate) const MOST_NARROW_EDGES: usize = u16::MAX as usize;
/// Most edges of a graph that are made from positions: more come from a cutoff in another unit of length.
pub(super) const MOST_MADE_EDGES: usize = MOST_NARROW_EDGES;
/// Most edges of a graph: indices of a batch have 32 bits and a sign.
const MOST_EDGES: usize = 1 << 30;

/// Graphs with their features and targets.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphSet {
    /// Name of the dataset.
    pub name: String,
    /// Its columns.
    pub schema: Schema,
    /// `[num_graphs]`: the graphs' names in their source.
    pub graph_ids: Vec<String>,
    /// `[num_graphs]`: the names of each graph's nodes in their source; empty unless nodes have the targets.
    pub node_ids: Vec<Vec<String>>,
    /// Names of the graphs of the source that are left out, because they have no target.
    pub without_targets: Vec<String>,
    /// Facts about the source that may surprise, one line each.
    pub notes: Vec<String>,
    /// `[num_graphs + 1]`: nodes of graph `g` are `node_pointers[g]..node_pointers[g + 1]`.
    pub node_pointers: Vec<u64>,
    /// `[num_nodes, schema.node_columns()]`: continuous features and one-hot categorical ones, in the order of the schema.
    pub node_features: Vec<f32>,
    /// `[num_graphs + 1]`: edges of graph `g` are `edge_pointers[g]..edge_pointers[g + 1]`.
    pub edge_pointers: Vec<u64>,
    /// `[num_edges]`: source of each edge, numbered within its graph.
    pub sources: Vec<u32>,
    /// `[num_edges]`: target of each edge, ascending within a graph; sources ascend for each target.
    pub targets: Vec<u32>,
    /// `[num_edges, schema.edge_columns()]`: as `node_features`.
    pub edge_features: Vec<f32>,
    /// `[num_graphs, number of targets]`: numbers of classes, labels of 0 and 1, or values. Empty if nodes have the targets.
    pub graph_targets: Vec<f32>,
    /// `[num_graphs, number of targets]`: what rounding to `graph_targets` has left of each value; empty if that is nothing beside the
    /// targets' spread.
    pub target_rests: Vec<f32>,
    /// `[num_nodes, number of targets]` if nodes have the targets, else empty; NaN for a node without any.
    pub node_targets: Vec<f32>,
    /// `[num_graphs]`: the set that the source assigns each graph to, if it does.
    pub splits: Option<Vec<Split>>,
    /// Edges that were left out.
    pub left_out: LeftOut,
    /// Positions of the nodes, if they have any.
    pub space: Option<SpaceSet>,
    /// `[num_graphs]`: hash of the positions of each graph's nodes as the source has them, if they have any.
    pub position_hashes: Option<Vec<u64>>,
    /// True if the source lists edges; false if they were made from positions, or there are none.
    pub lists_edges: bool,
    /// The making of the graphs from the source, such as "edges within 5, as 16 Gaussians": graphs made in another way mean something else.
    pub made: String,
}

/// Edges of a source that are not in the graphs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Edges from a node to itself: layers add the node itself where their formula has it.
    pub self_loops: u64,
    /// Edges that repeat another one of the same graph.
    pub repeated: u64,
}

impl GraphSet {
    /// Number of graphs.
    pub fn num_graphs(&self) -> usize {
        self.graph_ids.len()
    }

    /// Number of nodes of a graph.
    pub fn num_nodes(&self, graph: usize) -> usize {
        (self.node_pointers[graph + 1] - self.node_pointers[graph]) as usize
    }

    /// Number of edges of a graph.
    pub fn num_edges(&self, graph: usize) -> usize {
        (self.edge_pointers[graph + 1] - self.edge_pointers[graph]) as usize
    }

    /// Targets of a graph, `[number of targets]`; none if nodes have them.
    pub fn targets_of(&self, graph: usize) -> &[f32] {
        let count = if self.schema.level.is_graph() { self.schema.targets.len() } else { 0 };
        &self.graph_targets[graph * count..(graph + 1) * count]
    }

    /// The rests that rounding has left of the targets of a graph, `[number of targets]`; empty without rests.
    pub fn rests_of(&self, graph: usize) -> &[f32] {
        let count = if self.target_rests.is_empty() { 0 } else { self.schema.targets.len() };
        &self.target_rests[graph * count..(graph + 1) * count]
    }

    /// The listed paths of a graph; `None` for a kind that the source does not list.
    pub fn paths_of(&self, kind: PathKind, graph: usize) -> Option<PathView<'_>> {
        let parameters = self.schema.space.as_ref()?.paths.of(kind)?.len();
        Some(self.space.as_ref()?.paths[kind as usize].of(kind, graph, parameters))
    }

    /// True if each edge has its reverse.
    pub fn is_undirected(&self) -> bool {
        (0..self.num_graphs()).all(|graph| {
            let edges = self.edge_pointers[graph] as usize..self.edge_pointers[graph + 1] as usize;
            let pairs = || self.sources[edges.clone()].iter().zip(&self.targets[edges.clone()]);
            let mut forward: Vec<(u32, u32)> = pairs().map(|(&source, &target)| (source, target)).collect();
            let mut reverse: Vec<(u32, u32)> = pairs().map(|(&source, &target)| (target, source)).collect();
            forward.sort_unstable();
            reverse.sort_unstable();
            forward == reverse
        })
    }
}

/// Edges of all graphs in the order of a [`GraphSet`], with their features.
pub(super) struct Edges {
    pub features: Vec<Feature>,
    /// `[num_edges, columns of the features]`.
    pub values: Vec<f32>,
    pub pointers: Vec<u64>,
    pub sources: Vec<u32>,
    pub targets: Vec<u32>,
    pub left_out: LeftOut,
    /// See [`GraphSet::lists_edges`].
    pub are_listed: bool,
    /// See [`GraphSet::made`].
    pub made: String,
    /// Facts about the columns that may surprise.
    pub notes: Vec<String>,
}

impl Edges {
    /// True if an edge leads from one of two nodes of a graph to the other.
    pub fn join(&self, graph: u32, one: u16, other: u16) -> bool {
        let all = self.pointers[graph as usize] as usize..self.pointers[graph as usize + 1] as usize;
        let (sources, targets) = (&self.sources[all.clone()], &self.targets[all]);
        let leads = |from: u16, to: u16| {
            let [begin, end] = [u32::from(to), u32::from(to) + 1].map(|node| targets.partition_point(|&at| at < node));
            sources[begin..end].binary_search(&u32::from(from)).is_ok()
        };
        leads(one, other) || leads(other, one)
    }

    /// No edge in any of the graphs.
    pub fn none(num_graphs: usize) -> Self {
        Self {
            features: Vec::new(),
            values: Vec::new(),
            pointers: vec![0; num_graphs + 1],
            sources: Vec::new(),
            targets: Vec::new(),
            left_out: LeftOut::default(),
            are_listed: false,
            made: "no edges".to_owned(),
            notes: Vec::new(),
        }
    }
}

/// Graphs with positions and targets of their own, as their source has them.
pub(super) struct PlacedGraphs {
    pub ids: Vec<String>,
    /// The same as [`GraphSet::node_pointers`].
    pub pointers: Vec<u64>,
    pub nodes: Rows,
    pub edges: Edges,
    pub targets: Targets,
    pub schema: SpaceSchema,
    pub places: SpaceSet,
    /// The same as [`GraphSet::position_hashes`].
    pub position_hashes: Vec<u64>,
    /// Facts about the source that may surprise.
    pub notes: Vec<String>,
}

impl PlacedGraphs {
    /// The dataset of this name.
    pub fn into_set(self, name: String) -> GraphSet {
        let Self { ids, pointers, nodes, edges, targets, schema, places, position_hashes, notes } = self;
        GraphSet {
            name,
            schema: Schema {
                task: targets.task,
                level: Level::Graph,
                targets: targets.targets,
                node_features: nodes.features,
                edge_features: edges.features,
                space: Some(schema),
            },
            graph_ids: ids,
            node_ids: Vec::new(),
            without_targets: Vec::new(),
            notes: [notes, targets.notes, edges.notes].concat(),
            node_features: nodes.values,
            node_pointers: pointers,
            edge_features: edges.values,
            edge_pointers: edges.pointers,
            sources: edges.sources,
            targets: edges.targets,
            graph_targets: targets.values,
            target_rests: targets.rests,
            node_targets: Vec::new(),
            splits: targets.splits,
            left_out: edges.left_out,
            space: Some(places),
            position_hashes: Some(position_hashes),
            lists_edges: edges.are_listed,
            made: edges.made,
        }
    }
}

/// [`GraphSet::made`] of edges that the source lists.
pub(super) const LISTED: &str = "listed edges";
/// The end of [`GraphSet::made`] of listed edges to which the reverse of each was added.
pub(super) const BOTH_WAYS: &str = ", each in both directions";

/// An edge of a source, in the numbering of its graph.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawEdge {
    pub graph: u32,
    pub source: u32,
    pub target: u32,
    /// Row of its features.
    pub row: u32,
}

/// Edges in the order of the graphs, then of targets, then of sources.
pub(super) struct SortedEdges {
    pub pointers: Vec<u64>,
    pub sources: Vec<u32>,
    pub targets: Vec<u32>,
    /// For each edge, the row of its features.
    pub rows: Vec<u32>,
    pub left_out: LeftOut,
}

impl SortedEdges {
    /// Sorts edges, and leaves out self-loops and repeated edges; of the latter the first one stays.
    pub fn new(mut edges: Vec<RawEdge>, num_graphs: usize) -> Self {
        let mut left_out = LeftOut::default();
        let before = edges.len();
        edges.retain(|edge| edge.source != edge.target);
        left_out.self_loops = (before - edges.len()) as u64;
        edges.sort_unstable_by_key(|edge| (edge.graph, edge.target, edge.source, edge.row));
        let before = edges.len();
        edges.dedup_by_key(|edge| (edge.graph, edge.target, edge.source));
        left_out.repeated = (before - edges.len()) as u64;
        let mut pointers = vec![0; num_graphs + 1];
        edges.iter().for_each(|edge| pointers[edge.graph as usize + 1] += 1);
        for graph in 0..num_graphs {
            pointers[graph + 1] += pointers[graph];
        }
        let of = |value: fn(&RawEdge) -> u32| edges.iter().map(value).collect();
        Self {
            pointers,
            sources: of(|edge| edge.source),
            targets: of(|edge| edge.target),
            rows: of(|edge| edge.row),
            left_out,
        }
    }
}

/// Leaves out the graphs without targets, whose targets are NaN, and notes them.
pub(super) fn without_unlabelled(set: GraphSet) -> GraphSet {
    let is_unlabelled = |graph: usize| set.targets_of(graph).iter().any(|value| value.is_nan());
    let (left_out, kept): (Vec<usize>, Vec<usize>) = (0..set.num_graphs()).partition(|&graph| is_unlabelled(graph));
    if left_out.is_empty() {
        return set;
    }
    let (nodes, edges) = (Parts(&set.node_pointers), Parts(&set.edge_pointers));
    let id = |&graph: &usize| set.graph_ids[graph].clone();
    let without_targets: Vec<String> = left_out.iter().map(id).collect();
    let targets = set.schema.targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ");
    let note = format!(
        "{} of {} graphs have no value in {targets} and are left out, the first of them '{}'",
        left_out.len(),
        set.num_graphs(),
        without_targets[0]
    );
    GraphSet {
        graph_ids: kept.iter().map(id).collect(),
        without_targets,
        notes: [&set.notes[..], &[note]].concat(),
        node_features: nodes.kept(&set.node_features, set.schema.node_columns(), &kept),
        node_pointers: nodes.pointers(&kept),
        edge_features: edges.kept(&set.edge_features, set.schema.edge_columns(), &kept),
        edge_pointers: edges.pointers(&kept),
        sources: edges.kept(&set.sources, 1, &kept),
        targets: edges.kept(&set.targets, 1, &kept),
        graph_targets: kept.iter().flat_map(|&graph| set.targets_of(graph)).copied().collect(),
        target_rests: kept.iter().flat_map(|&graph| set.rests_of(graph)).copied().collect(),
        splits: set.splits.as_ref().map(|splits| kept.iter().map(|&graph| splits[graph]).collect()),
        space: set.space.as_ref().map(|space| SpaceSet {
            positions: nodes.kept(&space.positions, 3, &kept),
            kinds: nodes.kept(&space.kinds, 1, &kept),
            forces: if space.forces.is_empty() { Vec::new() } else { nodes.kept(&space.forces, 3, &kept) },
            cells: match space.cells.is_empty() {
                true => Vec::new(),
                false => kept.iter().flat_map(|&graph| &space.cells[graph * 9..(graph + 1) * 9]).copied().collect(),
            },
            paths: PathKind::ALL.map(|kind| {
                let mut list = PathList::default();
                kept.iter().filter_map(|&graph| set.paths_of(kind, graph)).for_each(|paths| list.push(kind, paths));
                list
            }),
        }),
        position_hashes: set.position_hashes.as_ref().map(|hashes| kept.iter().map(|&graph| hashes[graph]).collect()),
        ..set
    }
}

/// Rows of all graphs, one graph after the other, by their pointers.
struct Parts<'a>(&'a [u64]);

impl Parts<'_> {
    /// The rows of the kept graphs, each of `width` values.
    fn kept<T: Copy>(&self, values: &[T], width: usize, kept: &[usize]) -> Vec<T> {
        let of = |&graph: &usize| &values[self.0[graph] as usize * width..self.0[graph + 1] as usize * width];
        kept.iter().flat_map(of).copied().collect()
    }

    /// The pointers of the kept graphs.
    fn pointers(&self, kept: &[usize]) -> Vec<u64> {
        let mut pointers = vec![0];
        for &graph in kept {
            pointers.push(pointers[pointers.len() - 1] + self.0[graph + 1] - self.0[graph]);
        }
        pointers
    }
}

/// Refuses a dataset with a graph of more edges than a store can number.
pub(super) fn expect_few_edges(root: &Path, set: &GraphSet) -> Result<(), DatasetError> {
    let Some(graph) = (0..set.num_graphs()).find(|&graph| set.num_edges(graph) > MOST_EDGES) else { return Ok(()) };
    let (id, edges) = (&set.graph_ids[graph], set.num_edges(graph));
    let detail = format!(
        "graph {id} has {edges} edges; a graph can have at most {MOST_EDGES}: remove the graph or sample its edges"
    );
    Err(DatasetError::Unusable { root: root.to_owned(), detail })
}

/// Refuses a graph with more nodes than a store can number.
pub(super) fn expect_few_nodes(origin: Origin<'_>, nodes: usize, graph: &str) -> Result<(), DatasetError> {
    if nodes <= MOST_NODES {
        return Ok(());
    }
    let found = format!("graph {graph} has more than {MOST_NODES} nodes");
    Err(origin.error(found, format!("at most {MOST_NODES} nodes in a graph")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sorted_edges_are_the_distinct_ones_in_order(
            raw in prop::collection::vec((0u32..4, 0u32..5, 0u32..5), 0..80),
        ) {
            let edges = raw.iter().zip(0..).map(|(&(graph, source, target), row)| RawEdge { graph, source, target, row });
            let sorted = SortedEdges::new(edges.collect(), 4);
            let mut expected: Vec<(u32, u32, u32)> =
                raw.iter().filter(|edge| edge.1 != edge.2).map(|&(graph, source, target)| (graph, target, source)).collect();
            let loops = raw.len() - expected.len();
            expected.sort_unstable();
            expected.dedup();
            let graphs = (0..4).flat_map(|graph| sorted.pointers[graph]..sorted.pointers[graph + 1]).collect::<Vec<_>>();
            prop_assert_eq!(graphs, (0..expected.len() as u64).collect::<Vec<_>>());
            for (at, &(graph, target, source)) in expected.iter().enumerate() {
                prop_assert_eq!((sorted.sources[at], sorted.targets[at]), (source, target));
                // The features are those of the first of equal edges.
                let first = raw.iter().position(|&edge| edge == (graph, source, target)).unwrap();
                prop_assert_eq!(sorted.rows[at] as usize, first);
                let within = sorted.pointers[graph as usize]..sorted.pointers[graph as usize + 1];
                prop_assert!(within.contains(&(at as u64)));
            }
            prop_assert_eq!(sorted.left_out.self_loops as usize, loops);
            prop_assert_eq!(sorted.left_out.repeated as usize, raw.len() - loops - expected.len());
        }
    }
}
