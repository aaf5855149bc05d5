//! Batches for the benches: from a file of graphs that other programs read too, or from simulated traffic.

use std::path::Path;
use std::sync::Arc;

use kdgat::can::{Dataset, SimulationOptions, simulate};
use kdgat::distill::StoreShape;
use kdgat::graph::edge_list::{self, EdgeListFile};
use kdgat::graph::{AssembleOptions, Batch, BuildOptions, Split, Store, assemble, open_or_build};

use super::Error;

/// Vocabulary size of a file of graphs; equals that of the Python program.
const FILE_VOCABULARY: i64 = 40;

/// Graphs that [`write_graphs`] writes.
const STEP_GRAPHS: usize = 6000;
/// One in this many graphs has an attack.
const ATTACK_EVERY: usize = 14;

/// Writes the graphs that kdgat and the Python program are measured with: drives of the simulated car, where every 14th graph has
/// an attack. The file is the same each time.
pub fn write_graphs(path: &Path) -> Result<(), Error> {
    let (store, _folder) = simulated(&SimulationOptions { attack_free_drives: 12, ..SimulationOptions::default() })?;
    let training = |attack| {
        let mut graphs: Vec<u64> =
            [Split::Train, Split::Validation].iter().flat_map(|&split| store.select(split, Some(attack))).collect();
        graphs.sort_unstable();
        graphs
    };
    let (mut benign, mut attacks) = (training(false).into_iter(), training(true).into_iter());
    let next = |graph| if graph % ATTACK_EVERY == ATTACK_EVERY - 1 { attacks.next() } else { benign.next() };
    let graphs: Option<Vec<u64>> = (0..STEP_GRAPHS).map(next).collect();
    let graphs = graphs.ok_or_else(|| format!("the simulated car has too few graphs for {STEP_GRAPHS}"))?;
    let (nodes, edges) = graphs
        .iter()
        .map(|&graph| store.graph(graph))
        .fold((0, 0), |(nodes, edges), view| (nodes + view.num_nodes(), edges + view.sources.len()));
    let mean = |count: usize| count as f64 / STEP_GRAPHS as f64;
    eprintln!(
        "{STEP_GRAPHS} graphs of the simulated car, on average {:.1} nodes and {:.1} edges: {}",
        mean(nodes),
        mean(edges),
        path.display()
    );
    if store.vocabulary().len() as i64 > FILE_VOCABULARY {
        let found = store.vocabulary().len();
        return Err(format!("the simulated car has {found} IDs, the Python program knows {FILE_VOCABULARY}").into());
    }
    Ok(edge_list::write(&store, &graphs, path)?)
}

/// Builds a store of simulated traffic; returns it with its folder.
fn simulated(options: &SimulationOptions) -> Result<(Store, tempfile::TempDir), Error> {
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("sim");
    simulate(options, &root)?;
    let store = open_or_build(&Dataset::open(&root)?, &BuildOptions::default(), &folder.path().join("stores"), &())?;
    Ok((store, folder))
}

/// Source of the graphs.
pub enum Graphs {
    /// A safetensors file with `x`, `edge_index`, pointers and `y`.
    File(Box<EdgeListFile>),
    /// A store of simulated traffic, with its temporary folder.
    Simulated(Box<Store>, tempfile::TempDir),
}

impl Graphs {
    /// Opens the graphs of a file, or simulates traffic.
    pub fn open(file: Option<&Path>) -> Result<Self, Error> {
        if let Some(path) = file {
            return Ok(Self::File(Box::new(EdgeListFile::open(path)?)));
        }
        let (store, folder) = simulated(&SimulationOptions::default())?;
        Ok(Self::Simulated(Box::new(store), folder))
    }

    pub fn count(&self) -> usize {
        match self {
            Self::File(file) => file.num_graphs(),
            Self::Simulated(store, _) => store.num_graphs() as usize,
        }
    }

    /// Size of the vocabulary that batches refer to.
    pub fn vocabulary_size(&self) -> i64 {
        match self {
            Self::File(_) => FILE_VOCABULARY,
            Self::Simulated(store, _) => store.vocabulary().len() as i64,
        }
    }

    /// `count` consecutive batches of `size` graphs, starting over when the graphs run out.
    pub fn batches(&self, size: usize, count: usize) -> Result<Vec<Batch>, Error> {
        let numbers = |batch: usize| (0..size).map(move |graph| (batch * size + graph) % self.count());
        (0..count).map(|batch| self.batch(&numbers(batch).collect::<Vec<_>>())).collect()
    }

    fn batch(&self, graphs: &[usize]) -> Result<Batch, Error> {
        match self {
            Self::File(file) => Ok(file.batch(graphs, FILE_VOCABULARY)?),
            Self::Simulated(store, _) => {
                let vocabulary = Arc::new(store.vocabulary().clone());
                let options = AssembleOptions::new(vocabulary);
                let graphs: Vec<u64> = graphs.iter().map(|&graph| graph as u64).collect();
                Ok(assemble(store, &graphs, &options)?)
            }
        }
    }

    /// Shape that determines the layout of a target cache for `used` graphs.
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
