//! Batches of the nodes of one large graph, with the features and edges around them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kdgat_graph::{Adjacency, Batch, BatchMaker, BatchSource, Neighbourhood, OwnRows, StoreError};
use parking_lot::Mutex;
use tch::{TchError, Tensor};

use super::adjacency::adjacency_of;
use super::block::{Block, TooManyEdges};
use super::clusters::Clusters;
use super::feature_rows::{FeatureRows, RowReader};
use super::gather::{degrees_of, features_of};
use super::induced::Subgraph;
use super::sampler::{Fanout, SampledLayers, Sampler};
use super::{NodeGraph, NodesError};

/// Part of the graph that a model reads for a batch of seeds.
#[derive(Debug, Clone)]
pub enum Reach {
    /// The seeds alone, for a model without messages.
    None,
    /// The whole graph, in every batch.
    Whole {
        /// Number of layers that send messages.
        layers: usize,
        /// The nodes whose rows this process computes; `None` for all.
        own: Option<OwnRows>,
    },
    /// Sampled neighbours, with one fan-out for each layer, from the seeds outwards: the first one is that of the last layer.
    Sampled(Vec<Fanout>),
    /// The nodes of the seeds' clusters and the edges between them (ClusterGCN, Chiang et al. 2019).
    Clusters {
        /// The clusters; [`cluster_batches`](super::clusters::cluster_batches) makes batches of whole ones.
        clusters: Arc<Clusters>,
        /// Number of layers that send messages.
        layers: usize,
    },
}

/// Options of making batches.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// Part of the graph that the model reads.
    pub reach: Reach,
    /// Seed of the run: samples depend on it, the epoch, the hop and the node.
    pub seed: u64,
    /// True for a model that normalises by degrees: blocks of sampled neighbours come with the degrees in the whole graph. A whole graph
    /// and clusters do not need them: their degrees are those of their own edges.
    pub degrees: bool,
}

/// Makes batches of nodes; the source of a [`Loader`](kdgat_graph::Loader).
#[derive(Debug)]
pub struct NodeBatches {
    graph: Arc<NodeGraph>,
    labels: Arc<Vec<i64>>,
    rows: Arc<FeatureRows>,
    prepared: Arc<Prepared>,
    seed: u64,
    degrees: bool,
    /// True if every epoch has the samples of the same epoch.
    has_fixed_samples: bool,
    path: PathBuf,
}

/// Epoch of fixed samples: no training has it.
const FIXED_EPOCH: u64 = u64::MAX;

/// A [`Reach`] with what all its batches share.
#[derive(Debug)]
enum Prepared {
    Nothing,
    /// Features and edges of the whole graph; behind a lock because tensors are not `Sync`.
    Whole(Mutex<Neighbourhood>),
    Sampled(Vec<Fanout>),
    Clusters(Arc<Clusters>, usize),
}

impl NodeBatches {
    /// Batches of the nodes of `graph`. `labels` (`[num_nodes]`) has -100 for each node whose label must not be used; `path` names the
    /// graph's file in errors.
    ///
    /// # Errors
    /// Other numbers of labels or clustered nodes than of nodes, a whole graph with more than 2^31 edges, or those of libtorch.
    pub fn new(
        graph: Arc<NodeGraph>,
        labels: Arc<Vec<i64>>,
        options: BatchOptions,
        path: &Path,
    ) -> Result<Self, NodesError> {
        expect_all(&graph, "labels", labels.len())?;
        let BatchOptions { reach, seed, degrees } = options;
        let prepared = match reach {
            Reach::None => Prepared::Nothing,
            Reach::Whole { layers, own: None } => Prepared::Whole(Mutex::new(whole(&graph, layers)?)),
            Reach::Whole { layers, own: Some(own) } => {
                Prepared::Whole(Mutex::new(part_of_whole(&graph, (layers, degrees), own)?))
            }
            Reach::Sampled(fanouts) => Prepared::Sampled(fanouts),
            Reach::Clusters { clusters, layers } => {
                expect_all(&graph, "clusters", clusters.num_nodes())?;
                Prepared::Clusters(clusters, layers)
            }
        };
        let rows = Arc::new(FeatureRows::mapped(&graph.features));
        let (prepared, path) = (Arc::new(prepared), path.to_path_buf());
        Ok(Self { graph, labels, rows, prepared, seed, degrees, has_fixed_samples: false, path })
    }

    /// The same batches, whose features come from these rows of the same graph. Batches of a whole graph have read theirs already.
    pub fn reading(self, rows: Arc<FeatureRows>) -> Self {
        Self { rows, ..self }
    }

    /// The same batches with the same samples in every epoch, for validation.
    pub fn with_fixed_samples(self) -> Self {
        Self { has_fixed_samples: true, ..self }
    }

    /// Batches of the same nodes, features and edges, which they share, with other labels.
    ///
    /// # Errors
    /// Another number of labels than of nodes.
    pub fn with_labels(&self, labels: Arc<Vec<i64>>) -> Result<Self, NodesError> {
        expect_all(&self.graph, "labels", labels.len())?;
        let Self { graph, rows, prepared, seed, degrees, has_fixed_samples, path, .. } = self;
        let (graph, rows, prepared) = (Arc::clone(graph), Arc::clone(rows), Arc::clone(prepared));
        let (seed, degrees, has_fixed_samples) = (*seed, *degrees, *has_fixed_samples);
        Ok(Self { graph, labels, rows, prepared, seed, degrees, has_fixed_samples, path: path.clone() })
    }
}

fn expect_all(graph: &NodeGraph, name: &str, found: usize) -> Result<(), NodesError> {
    match graph.num_nodes() {
        count if count == found => Ok(()),
        count => Err(NodesError::options(format!("{found} nodes have {name}, the graph has {count} nodes"))),
    }
}

/// Features and edges of the whole graph.
fn whole(graph: &NodeGraph, layers: usize) -> Result<Neighbourhood, NodesError> {
    let nodes: Vec<u32> = (0..graph.num_nodes() as u32).collect();
    // At most as many as nodes.
    let lengths: Vec<u32> = graph.row_pointers.windows(2).map(|ends| (ends[1] - ends[0]) as u32).collect();
    let mut block = Block::default();
    block.clear();
    block.push_rows(&nodes, &lengths, &graph.sources, &graph.sources)?;
    block.set_num_sources(nodes.len());
    Ok(Neighbourhood {
        features: features_of(&graph.features, &nodes)?,
        layers: repeated(adjacency_of(&block)?, layers),
        source_degrees: Vec::new(),
        seeds: None,
        own: None,
    })
}

/// Features of a process's own nodes, and the edges to them from all nodes.
fn part_of_whole(
    graph: &NodeGraph,
    (layers, with_degrees): (usize, bool),
    own: OwnRows,
) -> Result<Neighbourhood, NodesError> {
    let row_of = |&node: &u32| own.row_of(i64::from(node)) as u32;
    let nodes: Vec<u32> = (own.first as u32..(own.first + own.count) as u32).collect();
    let pointers = &graph.row_pointers[own.first as usize..=(own.first + own.count) as usize];
    // At most as many as nodes.
    let lengths: Vec<u32> = pointers.windows(2).map(|ends| (ends[1] - ends[0]) as u32).collect();
    let neighbours = &graph.sources[pointers[0] as usize..pointers[pointers.len() - 1] as usize];
    let rows: Vec<u32> = neighbours.iter().map(row_of).collect();
    let mut block = Block::default();
    block.clear();
    block.push_rows(&nodes, &lengths, neighbours, &rows)?;
    block.set_num_sources(graph.num_nodes());
    let degrees = || {
        let others = (0..own.first as u32).chain((own.first + own.count) as u32..own.nodes as u32);
        let order: Vec<u32> = nodes.iter().copied().chain(others).collect();
        degrees_of(graph, &order)
    };
    let degrees = with_degrees.then(degrees).transpose()?;
    Ok(Neighbourhood {
        features: features_of(&graph.features, &nodes)?,
        layers: repeated(adjacency_of(&block)?, layers),
        source_degrees: degrees.iter().flat_map(|degrees| (0..layers).map(|_| degrees.shallow_clone())).collect(),
        seeds: None,
        own: Some(own),
    })
}

/// The same edges for each layer.
fn repeated(adjacency: Adjacency, layers: usize) -> Vec<Adjacency> {
    (0..layers).map(|_| adjacency.shallow_clone()).collect()
}

impl BatchSource for NodeBatches {
    fn path(&self) -> &Path {
        &self.path
    }

    fn maker(&self, epoch: u64) -> Box<dyn BatchMaker + '_> {
        let around = match &*self.prepared {
            Prepared::Nothing => Around::Nothing,
            Prepared::Whole(whole) => Around::Whole(whole.lock().shallow_clone()),
            Prepared::Sampled(fanouts) => {
                let sampler = Sampler::new(&*self.graph, fanouts, self.seed);
                Around::Sampled { sampler, layers: SampledLayers::default() }
            }
            Prepared::Clusters(clusters, layers) => {
                Around::Clusters { clusters, layers: *layers, subgraph: Subgraph::new(&self.graph), nodes: Vec::new() }
            }
        };
        let epoch = if self.has_fixed_samples { FIXED_EPOCH } else { epoch };
        Box::new(NodeMaker { source: self, epoch, around, rows: None })
    }
}

struct NodeMaker<'a> {
    source: &'a NodeBatches,
    epoch: u64,
    around: Around<'a>,
    /// Made with the first batch that needs it.
    rows: Option<RowReader<'a>>,
}

/// Makes what is around the seeds of a batch; reuses its memory.
enum Around<'a> {
    Nothing,
    Whole(Neighbourhood),
    Sampled { sampler: Sampler<&'a NodeGraph>, layers: SampledLayers },
    Clusters { clusters: &'a Clusters, layers: usize, subgraph: Subgraph<'a>, nodes: Vec<u32> },
}

impl BatchMaker for NodeMaker<'_> {
    fn make(&mut self, nodes: &[u64]) -> Result<Batch, StoreError> {
        let source = self.source;
        let seeds = source.seeds(nodes)?;
        let labels: Vec<i64> = seeds.iter().map(|&node| source.labels[node as usize]).collect();
        let neighbourhood = self.neighbourhood(&seeds)?;
        Batch::of_seeds(nodes.to_vec(), &labels, neighbourhood).map_err(of_tensor("labels"))
    }
}

impl NodeBatches {
    /// The nodes by their numbers in 32 bits.
    fn seeds(&self, nodes: &[u64]) -> Result<Vec<u32>, StoreError> {
        let count = self.graph.num_nodes() as u64;
        let seed = |&node: &u64| match node < count {
            // Below the number of nodes, which fits.
            true => Ok(node as u32),
            false => Err(StoreError::Parameter {
                name: "a node of a batch",
                value: format!("{node} (the graph has {count} nodes)"),
                expected: "smaller than the number of nodes",
            }),
        };
        nodes.iter().map(seed).collect()
    }
}

impl NodeMaker<'_> {
    fn neighbourhood(&mut self, seeds: &[u32]) -> Result<Neighbourhood, StoreError> {
        let NodeBatches { graph, degrees: with_degrees, rows: source, .. } = self.source;
        let reader = &mut self.rows;
        let mut features = |nodes: &[u32]| match reader {
            Some(reader) => reader.read(nodes),
            None => reader.insert(source.reader()?).read(nodes),
        };
        match &mut self.around {
            Around::Nothing => Ok(Neighbourhood {
                features: features(seeds)?,
                layers: Vec::new(),
                source_degrees: Vec::new(),
                seeds: None,
                own: None,
            }),
            Around::Whole(whole) => {
                Ok(Neighbourhood { seeds: Some(rows(seeds.iter().copied())?), ..whole.shallow_clone() })
            }
            Around::Sampled { sampler, layers } => {
                sampler.sample(seeds, self.epoch, layers).map_err(of_size(seeds.len()))?;
                let nodes = layers.nodes();
                let degrees =
                    |block: &Block| degrees_of(graph, &nodes[..block.num_sources()]).map_err(of_tensor("degrees"));
                let blocks_with_degrees = layers.layers().filter(|_| *with_degrees);
                Ok(Neighbourhood {
                    features: features(nodes)?,
                    source_degrees: blocks_with_degrees.map(degrees).collect::<Result<_, _>>()?,
                    layers: layers.layers().map(adjacency).collect::<Result<_, _>>()?,
                    seeds: layers.seed_rows().map(|found| rows(found.iter().copied())).transpose()?,
                    own: None,
                })
            }
            Around::Clusters { clusters, layers, subgraph, nodes } => {
                clusters.union(seeds, nodes);
                let edges = adjacency(subgraph.block(nodes).map_err(of_size(seeds.len()))?)?;
                Ok(Neighbourhood {
                    features: features(nodes)?,
                    layers: repeated(edges, *layers),
                    source_degrees: Vec::new(),
                    // Each seed is in its cluster.
                    seeds: Some(rows(seeds.iter().filter_map(|&seed| subgraph.row(seed)))?),
                    own: None,
                })
            }
        }
    }
}

fn adjacency(block: &Block) -> Result<Adjacency, StoreError> {
    adjacency_of(block).map_err(of_tensor("adjacency"))
}

/// An index of rows, i64.
fn rows(rows: impl Iterator<Item = u32>) -> Result<Tensor, StoreError> {
    Tensor::f_from_slice(&rows.map(i64::from).collect::<Vec<_>>()).map_err(of_tensor("seeds"))
}

fn of_tensor(tensor: &'static str) -> impl Fn(TchError) -> StoreError {
    move |source| StoreError::Tensor { tensor, source }
}

/// The error of a batch of this many nodes.
fn of_size(nodes: usize) -> impl Fn(TooManyEdges) -> StoreError {
    move |_| StoreError::Parameter {
        name: "batch_size",
        value: nodes.to_string(),
        expected: "small enough for 2^31 edges in each layer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adjacency::tests::check;
    use crate::test_graphs::random_graph;
    use kdgat_graph::{Loader, NodeFeatures};

    const NODES: u64 = 200;

    fn source(reach: Reach, degrees: bool) -> Arc<NodeBatches> {
        let graph = Arc::new(random_graph(NODES as usize, 3000, 5));
        let labels = (0..NODES as i64).map(|node| if node % 4 == 0 { -100 } else { node % 3 }).collect();
        let options = BatchOptions { reach, seed: 9, degrees };
        Arc::new(NodeBatches::new(graph, Arc::new(labels), options, Path::new("graph")).unwrap())
    }

    fn integers(tensor: &Tensor) -> Vec<i64> {
        Vec::<i64>::try_from(&tensor.to_kind(tch::Kind::Int64)).unwrap()
    }

    /// Numbers of the nodes whose features a batch has: the graphs of the tests have the number as the first feature.
    fn nodes(neighbourhood: &Neighbourhood) -> Vec<u32> {
        match &neighbourhood.features {
            NodeFeatures::Dense(rows) => integers(&rows.select(1, 0)).into_iter().map(|node| node as u32).collect(),
            NodeFeatures::Sparse(_) => panic!("dense features expected"),
        }
    }

    fn all_tensors(batch: &Batch) -> Vec<i64> {
        let around = batch.neighbourhood.as_ref().unwrap();
        let mut all = integers(&batch.labels);
        all.extend(nodes(around).into_iter().map(i64::from));
        for layer in &around.layers {
            let parts =
                [&layer.row_pointers, &layer.sources, &layer.targets, &layer.column_pointers, &layer.transposed];
            parts.into_iter().for_each(|part| all.extend(integers(part)));
        }
        around.source_degrees.iter().for_each(|degrees| all.extend(integers(degrees)));
        around.seeds.iter().for_each(|seeds| all.extend(integers(seeds)));
        all
    }

    fn clusters() -> Reach {
        let clusters = Arc::new(Clusters::new((0..NODES as u32).map(|node| node % 7).collect()));
        Reach::Clusters { clusters, layers: 2 }
    }

    /// Each seed's features are found at its row, and labels are those given.
    #[test]
    fn every_reach_gives_the_seeds_their_rows() {
        let sampled = Reach::Sampled(vec![Fanout::AtMost(5), Fanout::AtMost(3)]);
        for (reach, layers) in
            [(Reach::None, 0), (Reach::Whole { layers: 3, own: None }, 3), (sampled, 2), (clusters(), 2)]
        {
            let source = source(reach, false);
            let mut maker = source.maker(1);
            for seeds in [&[5, 8, 199, 0][..], &[7], &[], &[3, 9, 3]] {
                let batch = maker.make(seeds).unwrap();
                let around = batch.neighbourhood.as_ref().unwrap();
                let nodes = nodes(around);
                let rows = around.seeds.as_ref().map_or_else(|| (0..seeds.len() as i64).collect(), integers);
                let found: Vec<u64> = rows.iter().map(|&row| u64::from(nodes[row as usize])).collect();
                assert_eq!(found, seeds, "{:?}", source.prepared);
                assert_eq!(*batch.graph_index, seeds);
                let label = |&node: &u64| if node % 4 == 0 { -100 } else { node as i64 % 3 };
                assert_eq!(integers(&batch.labels), seeds.iter().map(label).collect::<Vec<_>>());
                assert_eq!(around.layers.len(), layers);
                let mut rows_before = nodes.len() as i64;
                for layer in &around.layers {
                    check(layer);
                    assert_eq!(layer.num_sources(), rows_before);
                    rows_before = layer.num_targets();
                }
                assert!(around.source_degrees.is_empty());
            }
        }
    }

    #[test]
    fn a_loader_makes_the_same_bits_with_any_number_of_threads() {
        let sampled = Reach::Sampled(vec![Fanout::AtMost(5), Fanout::All, Fanout::AtMost(2)]);
        for reach in [sampled, Reach::Whole { layers: 2, own: None }, clusters(), Reach::None] {
            let source = source(reach, true);
            let all: Vec<u64> = (0..NODES).collect();
            let batches: Vec<Vec<u64>> = all.chunks(13).map(<[u64]>::to_vec).collect();
            let made = |workers| -> Vec<Vec<i64>> {
                let loader = Loader::over(source.clone(), workers, 4);
                loader.epoch(batches.clone(), 2).map(|batch| all_tensors(&batch.unwrap())).collect()
            };
            let one = made(1);
            assert_eq!(one.len(), batches.len());
            assert!(one == made(2) && one == made(4), "{:?}", source.prepared);
        }
    }

    #[test]
    fn degrees_are_those_of_the_whole_graph() {
        let source = source(Reach::Sampled(vec![Fanout::AtMost(2), Fanout::AtMost(1)]), true);
        let batch = source.maker(0).make(&[5, 6]).unwrap();
        let around = batch.neighbourhood.unwrap();
        let nodes = nodes(&around);
        assert_eq!(around.source_degrees.len(), 2);
        for (layer, degrees) in around.layers.iter().zip(&around.source_degrees) {
            let expected: Vec<i64> = nodes[..layer.num_sources() as usize]
                .iter()
                .map(|&node| source.graph.neighbours(node).len() as i64 + 1)
                .collect();
            assert_eq!(integers(degrees), expected);
        }
    }

    #[test]
    fn a_batch_of_clusters_has_their_nodes_and_the_edges_between_them() {
        let source = source(clusters(), false);
        let around = source.maker(0).make(&[14, 8, 21]).unwrap().neighbourhood.unwrap();
        let nodes = nodes(&around);
        let expected: Vec<u32> = (0..NODES as u32).filter(|node| node % 7 < 2).collect();
        assert_eq!(nodes, expected);
        let inside = |node: u32| source.graph.neighbours(node).iter().filter(|&&source| source % 7 < 2).count();
        let edges: usize = nodes.iter().map(|&node| inside(node) + 1).sum();
        assert_eq!(around.layers[0].num_edges() as usize, edges);
        assert_eq!(around.layers[0].sources.data_ptr(), around.layers[1].sources.data_ptr());
    }

    #[test]
    fn batches_of_a_whole_graph_share_its_tensors() {
        let source = source(Reach::Whole { layers: 2, own: None }, false);
        let pointers = |epoch| {
            let around = source.maker(epoch).make(&[epoch]).unwrap().neighbourhood.unwrap();
            match &around.features {
                NodeFeatures::Dense(rows) => {
                    [rows.data_ptr(), around.layers[0].sources.data_ptr(), around.layers[1].sources.data_ptr()]
                }
                NodeFeatures::Sparse(_) => panic!("dense features expected"),
            }
        };
        assert_eq!(pointers(0), pointers(1));
    }

    #[test]
    fn fixed_samples_are_those_of_one_epoch() {
        let sampled = || source(Reach::Sampled(vec![Fanout::AtMost(3), Fanout::AtMost(2)]), true);
        let seeds: Vec<u64> = (0..20).collect();
        let of = |source: &NodeBatches, epoch| all_tensors(&source.maker(epoch).make(&seeds).unwrap());
        let (usual, fixed) = (sampled(), Arc::into_inner(sampled()).unwrap().with_fixed_samples());
        assert_ne!(of(&usual, 0), of(&usual, 1));
        assert_eq!(of(&fixed, 0), of(&fixed, 1));
        assert_ne!(of(&fixed, 0), of(&usual, 0));
    }

    #[test]
    fn unknown_nodes_and_missing_labels_are_refused() {
        let error = source(Reach::None, false).maker(0).make(&[0, NODES]).unwrap_err().to_string();
        assert_eq!(
            error,
            "a node of a batch is 200 (the graph has 200 nodes), but must be smaller than the number of nodes"
        );
        let options = BatchOptions { reach: Reach::None, seed: 0, degrees: false };
        let graph = Arc::new(random_graph(10, 20, 1));
        let new = |labels, reach| {
            let options = BatchOptions { reach, ..options.clone() };
            NodeBatches::new(graph.clone(), Arc::new(vec![0; labels]), options, Path::new("graph"))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(new(9, Reach::None), "9 nodes have labels, the graph has 10 nodes");
        assert_eq!(new(10, clusters()), "200 nodes have clusters, the graph has 10 nodes");
    }
}
