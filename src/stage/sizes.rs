//! The sizes by which the memory of a batch of graphs is counted: nodes, and edges or what the network computes instead of them.

use super::StageError;
use crate::graph::paths::Neighbours;
use crate::graph::{GraphView, PairCounter, Store};
use crate::memory::budget::{Shape, WorstBatches};
use crate::nn::{Architecture, BatchNeeds, GnnKind};

/// The quantity that a network computes besides nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Counted {
    /// Edges, and the self-loop that layers add to each node.
    Edges,
    /// Pairs of nodes within this distance, which the loader makes.
    Pairs(f64),
    /// Paths of three edges, whose rows torch's operations keep. The fused pass of a CPU keeps none, and counts edges.
    Paths,
}

impl Counted {
    /// The quantity of networks that read the same batches; `fused` if an SGMP visits paths in a fused pass.
    pub fn by<'a>(networks: impl IntoIterator<Item = &'a Architecture> + Clone, fused: bool) -> Self {
        let is_sgmp =
            |network: &&Architecture| matches!(network, Architecture::Graph(config) if config.kind == GnnKind::Sgmp);
        if !fused && networks.clone().into_iter().any(|network| is_sgmp(&network)) {
            return Self::Paths;
        }
        let needs = BatchNeeds::of_all(networks.into_iter().map(Architecture::needs));
        needs.space.and_then(|space| space.cutoff).map_or(Self::Edges, Self::Pairs)
    }

    /// Its plural.
    pub fn name(self) -> &'static str {
        match self {
            Self::Edges => "edges",
            Self::Pairs(_) => "pairs of near nodes",
            Self::Paths => "paths",
        }
    }

    /// The number in a graph, `graph` being its position in the store.
    fn of(self, graph: u64, view: &GraphView<'_>, counter: &mut PairCounter) -> Result<u64, StageError> {
        Ok(match self {
            Self::Edges => (view.num_edges() + view.num_nodes()) as u64,
            Self::Pairs(cutoff) => counter.count(graph, view, cutoff)?.pairs,
            Self::Paths => {
                let sources: Vec<i32> = view.sources.iter().map(|&source| i32::from(source)).collect();
                let ends = (0..view.num_nodes()).map(|node| view.edges_of(node).end as i32);
                let pointers: Vec<i32> = std::iter::once(0).chain(ends).collect();
                let neighbours = Neighbours::of_incoming(&pointers, &sources);
                neighbours.count_paths().iter().sum()
            }
        })
    }
}

/// Nodes and counted quantity of each graph.
#[derive(Debug, Clone)]
pub enum Sizes {
    /// By position in the store.
    Each(Vec<[u64; 2]>),
    /// The same for all.
    Alike([u64; 2]),
}

impl Sizes {
    /// Counts the graphs of a store.
    ///
    /// # Errors
    /// A damaged shard, or a graph whose pairs cannot be made.
    pub fn of(store: &Store, counted: Counted) -> Result<Self, StageError> {
        let mut counter = PairCounter::default();
        let mut size = |graph| {
            let view = store.try_graph(graph)?;
            Ok([view.num_nodes() as u64, counted.of(graph, &view, &mut counter)?])
        };
        Ok(Self::Each((0..store.num_graphs()).map(&mut size).collect::<Result<_, StageError>>()?))
    }

    /// Nodes and counted quantity of a graph.
    pub fn of_graph(&self, graph: u64) -> (u64, u64) {
        let [nodes, counted] = match self {
            Self::Each(sizes) => sizes[graph as usize],
            Self::Alike(size) => *size,
        };
        (nodes, counted)
    }

    /// The size of a batch.
    pub fn shape(&self, batch: &[u64]) -> Shape {
        Shape::sum(batch.iter().map(|&graph| self.of_graph(graph)))
    }

    /// The worst batches of these graphs.
    pub fn worst(&self, graphs: &[u64]) -> WorstBatches {
        WorstBatches::new(graphs.iter().map(|&graph| self.of_graph(graph)))
    }

    /// Positions of the batches with most nodes and with most of the counted quantity, of a middle one and of the smallest.
    pub fn different(&self, batches: &[Vec<u64>]) -> Vec<usize> {
        let shapes: Vec<Shape> = batches.iter().map(|batch| self.shape(batch)).collect();
        let mut by_nodes: Vec<usize> = (0..shapes.len()).collect();
        by_nodes.sort_by(|&a, &b| shapes[b].nodes.total_cmp(&shapes[a].nodes));
        let by_edges = (0..shapes.len()).max_by(|&a, &b| shapes[a].edges.total_cmp(&shapes[b].edges));
        let middle = by_nodes.get(by_nodes.len() / 2);
        let mut chosen: Vec<usize> = Vec::new();
        for batch in [by_nodes.first(), by_edges.as_ref(), middle, by_nodes.last()].into_iter().flatten() {
            if !chosen.contains(batch) {
                chosen.push(*batch);
            }
        }
        chosen
    }
}
