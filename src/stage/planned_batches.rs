//! Batches of the sizes that a plan expects, with arbitrary features and edges, so that their memory can be measured without data:
//! [`PlannedBatches`] of sampled neighbours, [`PlannedGraphs`] of many graphs.

use std::path::Path;
use std::sync::Arc;

use tch::{Device, Kind, TchError, Tensor};

use crate::graph::{
    Adjacency, Batch, BatchMaker, BatchSource, EDGE_FEATURES, Level, Neighbourhood, NodeFeatures, NodeTargets, Space,
    StoreError,
};
use crate::nn::{Architecture, BatchNeeds};
use crate::nodes::LayerSize;

/// Batches whose size is proportional to their number of seeds.
pub struct PlannedBatches {
    /// Seeds of a full batch.
    pub seeds: usize,
    /// Expected layers of a full batch; empty for a model that reads the seeds alone.
    pub layers: Vec<LayerSize>,
    /// True if the targets of each layer are all of its sources, as in a whole graph.
    pub is_square: bool,
    /// Number of features.
    pub columns: i64,
    /// True for a model that normalises by degrees.
    pub degrees: bool,
}

impl BatchSource for PlannedBatches {
    fn path(&self) -> &Path {
        Path::new("the planned batches")
    }

    fn maker(&self, _: u64) -> Box<dyn BatchMaker + '_> {
        Box::new(Maker(self))
    }
}

struct Maker<'a>(&'a PlannedBatches);

impl BatchMaker for Maker<'_> {
    fn make(&mut self, nodes: &[u64]) -> Result<Batch, StoreError> {
        let made = self.0.neighbourhood(nodes.len()).and_then(|around| {
            let labels = vec![0; nodes.len()];
            Batch::of_seeds(nodes.to_vec(), &labels, around)
        });
        made.map_err(|source| StoreError::Tensor { tensor: "a planned batch", source })
    }
}

impl PlannedBatches {
    fn neighbourhood(&self, seeds: usize) -> Result<Neighbourhood, TchError> {
        let share = seeds as f64 / self.seeds.max(1) as f64;
        let count = |full: f64| ((full * share).round() as usize).max(1);
        let mut layers = Vec::new();
        // From the seeds outwards, so that each layer computes what the next one reads.
        let mut targets = if self.is_square { None } else { Some(seeds) };
        for size in self.layers.iter().rev() {
            let of_layer = targets.unwrap_or_else(|| count(size.targets).max(seeds));
            let sources = if self.is_square { of_layer } else { count(size.sources).max(of_layer) };
            match layers.first() {
                Some(first) if self.is_square => layers.push(Adjacency::shallow_clone(first)),
                _ => layers.insert(0, adjacency(sources, of_layer, count(size.edges))?),
            }
            targets = Some(sources);
        }
        let rows = targets.unwrap_or(seeds) as i64;
        let degrees = |layer: &Adjacency| Tensor::f_ones([layer.num_sources()], (Kind::Float, Device::Cpu));
        let with_degrees = layers.iter().filter(|_| self.degrees && !self.is_square);
        Ok(Neighbourhood {
            features: NodeFeatures::Dense(Tensor::f_ones([rows, self.columns], (Kind::Float, Device::Cpu))?),
            source_degrees: with_degrees.map(degrees).collect::<Result<_, _>>()?,
            seeds: match self.is_square {
                true => Some(Tensor::f_arange(seeds as i64, (Kind::Int64, Device::Cpu))?),
                false => None,
            },
            layers,
            own: None,
        })
    }
}

/// Edges in equal numbers for each target, from sources that are spread over all.
fn adjacency(sources: usize, targets: usize, edges: usize) -> Result<Adjacency, TchError> {
    let edges = edges.max(targets);
    let target_of = |edge: usize| (edge as u64 * targets as u64 / edges as u64) as usize;
    let source_of = |edge: usize| (edge as u64 * 2_654_435_761 % sources as u64) as usize;
    let list: Vec<[usize; 2]> = (0..edges).map(|edge| [target_of(edge), source_of(edge)]).collect();
    adjacency_of(sources, targets, &list)
}

/// The tensors of edges, given as target and source in order of target.
fn adjacency_of(sources: usize, targets: usize, edges: &[[usize; 2]]) -> Result<Adjacency, TchError> {
    let (mut rows, mut columns) = (vec![0i32; targets + 1], vec![0i32; sources + 1]);
    for &[target, source] in edges {
        rows[target + 1] += 1;
        columns[source + 1] += 1;
    }
    (0..targets).for_each(|target| rows[target + 1] += rows[target]);
    (0..sources).for_each(|source| columns[source + 1] += columns[source]);
    let (mut next, mut transposed) = (columns.clone(), vec![0i32; edges.len()]);
    for (edge, &[_, source]) in edges.iter().enumerate() {
        transposed[next[source] as usize] = edge as i32;
        next[source] += 1;
    }
    let ends = |end: usize| edges.iter().map(|edge| edge[end] as i32).collect::<Vec<_>>();
    Ok(Adjacency {
        row_pointers: Tensor::f_from_slice(&rows)?,
        sources: Tensor::f_from_slice(&ends(1))?,
        targets: Tensor::f_from_slice(&ends(0))?,
        column_pointers: Tensor::f_from_slice(&columns)?,
        transposed: Tensor::f_from_slice(&transposed)?,
        components: Arc::default(),
    })
}

/// Graphs of one size, as a student reads them.
pub struct PlannedGraphs {
    pub nodes: usize,
    /// Edges without self-loops; for a network in space, pairs of near nodes.
    pub edges: usize,
    /// The network whose features, targets and positions the batches have.
    pub student: Architecture,
    pub needs: BatchNeeds,
}

impl BatchSource for PlannedGraphs {
    fn path(&self) -> &Path {
        Path::new("the planned batches")
    }

    fn maker(&self, _: u64) -> Box<dyn BatchMaker + '_> {
        Box::new(GraphMaker(self))
    }
}

struct GraphMaker<'a>(&'a PlannedGraphs);

impl BatchMaker for GraphMaker<'_> {
    fn make(&mut self, graphs: &[u64]) -> Result<Batch, StoreError> {
        self.0.batch(graphs).map_err(|source| StoreError::Tensor { tensor: "a planned batch", source })
    }
}

impl PlannedGraphs {
    /// Columns of a node's features, and of an edge's.
    fn columns(&self) -> [i64; 2] {
        match &self.student {
            Architecture::Graph(config) => [config.node_features, config.edge_features],
            Architecture::GraphVgae(config) => [config.encoder.node_features, config.encoder.edge_features],
            other => [other.input().node_features(), EDGE_FEATURES as i64],
        }
    }

    /// Edges of so many graphs, as target and source in order of target, with one self-loop for each node if `loops` is set.
    fn edges(&self, graphs: usize, loops: bool) -> Vec<[usize; 2]> {
        let nodes = self.nodes;
        let mut edges = Vec::with_capacity(graphs * (self.edges + nodes));
        for graph in 0..graphs {
            for target in 0..nodes {
                let count = self.edges * (target + 1) / nodes - self.edges * target / nodes;
                // A node is its own neighbour only if it is alone.
                let step = |edge: usize| 1 + edge % (nodes - 1).max(1);
                let mut sources: Vec<usize> = (0..count).map(|edge| (target + step(edge)) % nodes).collect();
                sources.extend(loops.then_some(target));
                sources.sort_unstable();
                edges.extend(sources.into_iter().map(|source| [graph * nodes + target, graph * nodes + source]));
            }
        }
        edges
    }

    fn batch(&self, graphs: &[u64]) -> Result<Batch, TchError> {
        let (count, nodes, vocabulary) = (graphs.len(), graphs.len() * self.nodes, self.student.vocabulary_size());
        let [node_columns, edge_columns] = self.columns();
        let edges = self.edges(count, true);
        let adjacency = adjacency_of(nodes, nodes, &edges)?;
        let numbers = |of: &dyn Fn(usize) -> usize, end: usize| {
            Tensor::f_from_slice(&(0..end).map(|index| of(index) as i64).collect::<Vec<_>>())
        };
        let float = |shape: [i64; 2]| Tensor::f_full(shape, 0.5, (Kind::Float, Device::Cpu));
        let id = |node: usize| node % self.nodes % (vocabulary as usize).max(1);
        let successor = |&[target, source]: &[usize; 2]| source as i64 * vocabulary + id(target) as i64;
        let mut successors: Vec<i64> = edges.iter().map(successor).collect();
        successors.sort_unstable();
        successors.dedup();
        let id_index = numbers(&id, nodes)?;
        let (targets, node_targets) = self.targets(count, nodes)?;
        Ok(Batch {
            graph_index: Arc::new(graphs.to_vec()),
            can_ids: Arc::new((0..nodes).map(|node| id(node) as u32).collect()),
            id_input: match self.student.hashes_ids() {
                true => id_index.f_detach_copy()?,
                false => id_index.shallow_clone(),
            },
            id_index,
            continuous: float([nodes as i64, node_columns])?,
            edge_attributes: match self.needs.edge_features {
                true => Some(float([edges.len() as i64, edge_columns])?),
                false => None,
            },
            adjacency,
            successors: Tensor::f_from_slice(&successors)?,
            vocabulary_size: vocabulary,
            node_pointers: numbers(&|graph| graph * self.nodes, count + 1)?,
            graph_of_node: numbers(&|node| node / self.nodes, nodes)?,
            labels: numbers(&|_| 0, count)?,
            targets,
            node_targets,
            neighbourhood: None,
            space: match self.needs.space {
                Some(options) => Some(Box::new(self.space(count, options.cutoff.is_some())?)),
                None => None,
            },
            real: None,
            padded_form: None,
            memory: None,
        })
    }

    /// Targets of graphs and of nodes.
    fn targets(&self, graphs: usize, nodes: usize) -> Result<(Option<Tensor>, Option<Box<NodeTargets>>), TchError> {
        let Architecture::Graph(config) = &self.student else { return Ok((None, None)) };
        let values = |rows: usize| Tensor::f_zeros([rows as i64, config.outputs], (Kind::Float, Device::Cpu));
        Ok(match config.level {
            Level::Graph => (Some(values(graphs)?), None),
            Level::Node => {
                let pointers = Arc::new((0..=graphs).map(|graph| (graph * self.nodes) as u64).collect());
                let all = Tensor::f_arange(nodes as i64, (Kind::Int64, Device::Cpu))?;
                (None, Some(Box::new(NodeTargets { nodes: all, values: values(nodes)?, pointers })))
            }
        })
    }

    /// Positions, and pairs unless the network reads none.
    fn space(&self, graphs: usize, has_pairs: bool) -> Result<Space, TchError> {
        let nodes = graphs * self.nodes;
        let pairs = if has_pairs { self.edges(graphs, false) } else { Vec::new() };
        let ends = |end: usize| Tensor::f_from_slice(&pairs.iter().map(|pair| pair[end] as i64).collect::<Vec<_>>());
        let mut rows = vec![0i32; nodes + 1];
        pairs.iter().for_each(|&[target, _]| rows[target + 1] += 1);
        (0..nodes).for_each(|node| rows[node + 1] += rows[node]);
        // Each node in a place of its own, some of them within reach of each other.
        let place = |value: usize| [37, 101, 59][value % 3] * (value / 3 % self.nodes) % 113;
        let positions: Vec<f32> =
            (0..3 * nodes).map(|value| place(value) as f32 / 30.0 + value as f32 * 1e-5).collect();
        let forces = matches!(&self.student, Architecture::Graph(config) if config.gives_forces());
        let rows_of_three = [nodes as i64, 3];
        Ok(Space {
            positions: Tensor::f_from_slice(&positions)?.f_view(rows_of_three)?,
            kinds: Tensor::f_ones([nodes as i64], (Kind::Int64, Device::Cpu))?,
            targets: ends(0)?,
            sources: ends(1)?,
            row_pointers: Tensor::f_from_slice(&rows)?,
            shifts: None,
            forces: match forces {
                true => Some(Tensor::f_zeros(rows_of_three, (Kind::Float, Device::Cpu))?),
                false => None,
            },
            displaced: None,
            paths: Default::default(),
        })
    }
}
