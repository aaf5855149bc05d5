//! Batches of the sizes that a plan expects, with arbitrary features and edges, so that their memory can be measured without a graph.

use std::path::Path;
use std::sync::Arc;

use tch::{Device, Kind, TchError, Tensor};

use crate::graph::{Adjacency, Batch, BatchMaker, BatchSource, Neighbourhood, NodeFeatures, StoreError};
use crate::memory_plan::node_sizes::LayerSize;

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
        })
    }
}

/// Edges in equal numbers for each target, from sources that are spread over all.
fn adjacency(sources: usize, targets: usize, edges: usize) -> Result<Adjacency, TchError> {
    let edges = edges.max(targets);
    let target_of = |edge: usize| (edge as u64 * targets as u64 / edges as u64) as usize;
    let source_of = |edge: usize| (edge as u64 * 2_654_435_761 % sources as u64) as usize;
    let (mut rows, mut columns) = (vec![0i32; targets + 1], vec![0i32; sources + 1]);
    for edge in 0..edges {
        rows[target_of(edge) + 1] += 1;
        columns[source_of(edge) + 1] += 1;
    }
    (0..targets).for_each(|target| rows[target + 1] += rows[target]);
    (0..sources).for_each(|source| columns[source + 1] += columns[source]);
    let (mut next, mut transposed) = (columns.clone(), vec![0i32; edges]);
    for edge in 0..edges {
        let place = &mut next[source_of(edge)];
        transposed[*place as usize] = edge as i32;
        *place += 1;
    }
    let of_edges = |of: &dyn Fn(usize) -> usize| (0..edges).map(|edge| of(edge) as i32).collect::<Vec<_>>();
    Ok(Adjacency {
        row_pointers: Tensor::f_from_slice(&rows)?,
        sources: Tensor::f_from_slice(&of_edges(&source_of))?,
        targets: Tensor::f_from_slice(&of_edges(&target_of))?,
        column_pointers: Tensor::f_from_slice(&columns)?,
        transposed: Tensor::f_from_slice(&transposed)?,
        components: Arc::default(),
    })
}
