//! Batches to measure with: of a file of graphs that other programs read too, or of simulated traffic.

use std::path::Path;
use std::sync::Arc;

use kdgat::can::{Dataset, SimulationOptions, simulate};
use kdgat::distill::StoreShape;
use kdgat::graph::batch::EdgeListFile;
use kdgat::graph::{AssembleOptions, Batch, BuildOptions, Store, assemble, open_or_build};

use super::Error;

/// Rows of the vocabulary of a file of graphs, as the program that kdgat is compared with takes them.
const FILE_VOCABULARY: i64 = 40;

/// Where graphs come from.
pub enum Graphs {
    /// A safetensors file with `x`, `edge_index`, pointers and `y`.
    File(Box<EdgeListFile>),
    /// A store of simulated traffic, in a folder that goes away with it.
    Simulated(Box<Store>, tempfile::TempDir),
}

impl Graphs {
    /// The graphs of a file, or simulated ones.
    pub fn open(file: Option<&Path>) -> Result<Self, Error> {
        if let Some(path) = file {
            return Ok(Self::File(Box::new(EdgeListFile::open(path)?)));
        }
        let folder = tempfile::tempdir()?;
        let root = folder.path().join("sim");
        simulate(&SimulationOptions::default(), &root)?;
        let store =
            open_or_build(&Dataset::open(&root)?, &BuildOptions::default(), &folder.path().join("stores"), &())?;
        Ok(Self::Simulated(Box::new(store), folder))
    }

    pub fn count(&self) -> usize {
        match self {
            Self::File(file) => file.num_graphs(),
            Self::Simulated(store, _) => store.num_graphs() as usize,
        }
    }

    /// Rows of the vocabulary that batches refer to.
    pub fn vocabulary_size(&self) -> i64 {
        match self {
            Self::File(_) => FILE_VOCABULARY,
            Self::Simulated(store, _) => store.vocabulary().len() as i64,
        }
    }

    /// `count` batches of `size` graphs, one after the other; from the beginning again where there are too few.
    pub fn batches(&self, size: usize, count: usize) -> Result<Vec<Batch>, Error> {
        let numbers = |batch: usize| (0..size).map(move |graph| (batch * size + graph) % self.count());
        (0..count).map(|batch| self.batch(&numbers(batch).collect::<Vec<_>>())).collect()
    }

    fn batch(&self, graphs: &[usize]) -> Result<Batch, Error> {
        match self {
            Self::File(file) => Ok(file.batch(graphs, FILE_VOCABULARY)?),
            Self::Simulated(store, _) => {
                let vocabulary = Arc::new(store.vocabulary().clone());
                let options =
                    AssembleOptions { vocabulary, unknown_drop: None, edge_attributes: false, hashed_ids: false };
                let graphs: Vec<u64> = graphs.iter().map(|&graph| graph as u64).collect();
                Ok(assemble(store, &graphs, &options)?)
            }
        }
    }

    /// What a cache of a teacher's targets for all graphs of a store is laid out by.
    pub fn shape_of(store: &Store) -> StoreShape {
        let nodes = |graph| store.graph(graph).num_nodes() as u32;
        StoreShape {
            dataset_digest: store.digest().to_owned(),
            node_counts: (0..store.num_graphs()).map(nodes).collect(),
            used: None,
        }
    }

    /// What a cache of a teacher's targets for `used` graphs is laid out by.
    pub fn shape(&self, used: usize) -> StoreShape {
        let nodes = |graph| match self {
            Self::File(file) => file.columns().graph(graph).num_nodes(),
            Self::Simulated(store, _) => store.graph(graph as u64).num_nodes(),
        };
        StoreShape {
            dataset_digest: "bench".to_owned(),
            node_counts: (0..self.count()).map(|graph| nodes(graph) as u32).collect(),
            used: Some((0..used.min(self.count()) as u64).collect()),
        }
    }
}
