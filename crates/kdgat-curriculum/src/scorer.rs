//! Difficulty of graphs, scored by a frozen VGAE in evaluation mode.
//!
//! The loader's thread prefetches graphs in chunks, so memory does not grow with their number. z is the mean, so scoring is
//! deterministic.

use std::sync::Arc;

use tch::{Device, Tensor};

use super::{CurriculumError, GraphScore};
use kdgat_distill::frozen::LoadedModel;
use kdgat_graph::{AssembleOptions, Batch, CarProfile, Loader, LoaderOptions, Store, StoreError, Vocabulary};
use kdgat_nn::attention::Backend;
use kdgat_nn::graph_vgae::graph_errors;
use kdgat_nn::layers::Mode;
use kdgat_nn::parameters::GivenTensors;
use kdgat_nn::weights;
use kdgat_nn::{Architecture, Draw, GraphVgae, ModelError, Scope, Vgae};
use kdgat_torch::device;
use kdgat_train::interrupt;
use kdgat_train::memory::{Meter, by_halves, retry_on_oom};

/// Chunks prefetched while one is scored.
pub(super) const CHUNKS_AHEAD: usize = 2;

/// Maximum nodes per chunk of more than one graph: 500 windows of ordinary traffic have fewer. Windows of random IDs have up to
/// four times as many nodes and would otherwise determine the memory that scoring needs.
const CHUNK_NODES: usize = 16_384;

/// A frozen VGAE that scores difficulty.
#[derive(Debug)]
pub struct Scorer {
    model: Network,
    vocabulary: Arc<Vocabulary>,
    edge_features: bool,
    hashed_ids: bool,
    profile: Option<CarProfile>,
    digest: String,
    device: Device,
}

#[derive(Debug)]
enum Network {
    /// A VGAE of CAN windows.
    Windows(Vgae),
    /// A VGAE of graphs of any kind.
    Graphs(GraphVgae),
}

impl Network {
    /// Reconstruction error, cross entropy of the IDs or of categorical features, and difficulty of each graph, `[num_graphs]` each.
    fn errors(&self, batch: &Batch) -> Result<[Tensor; 3], ModelError> {
        match self {
            Self::Windows(model) => {
                let difficulty = model.difficulty(batch)?;
                Ok([difficulty.reconstruction, difficulty.id, difficulty.total])
            }
            Self::Graphs(model) => {
                let output = model.forward(batch, Mode::Evaluation)?;
                let errors = graph_errors(&output, model.config(), batch, Draw::FIXED)?;
                let or_zero = |term: Option<Tensor>| term.map_or_else(|| errors.total.f_zeros_like(), Ok);
                Ok([or_zero(errors.features)?, or_zero(errors.categories)?, errors.total])
            }
        }
    }
}

impl Scorer {
    /// Builds the scorer from a model on disk.
    ///
    /// # Errors
    /// Fails if the model is not a VGAE, or its weights do not fit its architecture.
    pub fn new(model: LoadedModel, device: Device, kernel: Backend) -> Result<Self, CurriculumError> {
        let (edge_features, hashed_ids) = (model.architecture.reads_edge_features(), model.architecture.hashes_ids());
        let profile = model.architecture.input().profile.clone();
        weights::expect_finite(model.weights.iter())?;
        let on_device = |(name, tensor): (&str, &Tensor)| Ok((name.to_owned(), tensor.f_to_device(device)?));
        let tensors = retry_on_oom(Meter::new(device), || {
            model.weights.iter().map(on_device).collect::<Result<Vec<_>, CurriculumError>>()
        })?;
        let mut given = GivenTensors::new(tensors);
        let scope = Scope::root(&mut given);
        let network = match &model.architecture {
            Architecture::Vgae(config) => Network::Windows(Vgae::new(scope, config, kernel)?),
            Architecture::GraphVgae(config) => Network::Graphs(GraphVgae::new(scope, config, kernel)?),
            other => return Err(CurriculumError::NoVgae { path: model.path, found: other.model_name() }),
        };
        given.check_all_used(|_| false)?;
        Ok(Self {
            model: network,
            vocabulary: Arc::new(model.vocabulary),
            edge_features,
            hashed_ids,
            profile,
            digest: model.weights.digest().to_owned(),
            device,
        })
    }

    /// Digest of the model's weights.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Scores graphs in chunks of at most `chunk` graphs and passes each chunk's scores to `take`, in the order of `graphs`. Chunks
    /// with many nodes have fewer graphs, so memory depends neither on the number of graphs nor on their size.
    ///
    /// A graph's scores do not depend on its chunk, except for rounding.
    pub fn score(
        &self,
        store: &Arc<Store>,
        graphs: &[u64],
        chunk: usize,
        mut take: impl FnMut(&[GraphScore]) -> Result<(), CurriculumError>,
    ) -> Result<(), CurriculumError> {
        let assemble = AssembleOptions {
            vocabulary: Arc::clone(&self.vocabulary),
            unknown_drop: None,
            edge_attributes: self.edge_features,
            hashed_ids: self.hashed_ids,
            profile: self.profile.clone(),
            short_profiles: false,
            space: None,
        };
        let loader =
            Loader::start(Arc::clone(store), LoaderOptions { assemble, workers: 1, prefetch_batches: CHUNKS_AHEAD });
        let chunks = chunks(store, graphs, chunk)?;
        // Reading the node counts mapped pages all over the store.
        store.release_pages()?;
        let mut done = 0;
        for batch in loader.epoch(chunks, 0) {
            if interrupt::requested() {
                return Err(CurriculumError::Interrupted { done, total: graphs.len() });
            }
            let scores = by_halves(Meter::new(self.device), &batch?, &mut |batch| {
                self.score_batch(&batch.to_device(self.device)?)
            })?;
            done += scores.len();
            take(&scores)?;
            store.release_pages()?;
            if self.device.is_cuda() {
                // Return the chunk's memory to other users of the card.
                device::empty_cache(self.device)?;
            }
        }
        Ok(())
    }

    /// Scores the graphs of one batch.
    pub fn score_batch(&self, batch: &Batch) -> Result<Vec<GraphScore>, CurriculumError> {
        let errors = tch::no_grad(|| self.model.errors(batch))?;
        let [reconstruction, id, total] = errors.each_ref().map(weights::floats);
        let (reconstruction, id, total) = (reconstruction?, id?, total?);
        let scores = batch.graph_index.iter().enumerate().map(|(position, &graph)| {
            let value = total[position];
            if !value.is_finite() {
                return Err(CurriculumError::NotFinite { graph, value });
            }
            Ok(GraphScore { graph, reconstruction: reconstruction[position], id: id[position], difficulty: value })
        });
        scores.collect()
    }
}

/// Splits graphs, in order, into chunks of at most `chunk` graphs and [`CHUNK_NODES`] nodes.
pub(super) fn chunks(store: &Store, graphs: &[u64], chunk: usize) -> Result<Vec<Vec<u64>>, StoreError> {
    let mut chunks: Vec<Vec<u64>> = Vec::with_capacity(graphs.len().div_ceil(chunk.max(1)));
    let mut nodes = 0;
    for &graph in graphs {
        let of_graph = store.try_graph(graph)?.num_nodes();
        nodes += of_graph;
        match chunks.last_mut() {
            Some(last) if last.len() < chunk && nodes <= CHUNK_NODES => last.push(graph),
            _ => {
                nodes = of_graph;
                chunks.push(vec![graph]);
            }
        }
    }
    Ok(chunks)
}
