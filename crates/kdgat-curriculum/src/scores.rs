//! Cached difficulty scores: a checksummed file with the digests of model and data.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::{CurriculumError, Scorer};
use kdgat_graph::Store;
use kdgat_nn::weights::{self, StateDict};
use kdgat_train::checkpoint;
use kdgat_train::checkpoint_kind::{Content, Kind};
use kdgat_train::memory::{Meter, retry_on_oom};

/// Difficulty of one graph, with its components.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GraphScore {
    /// Position in the store.
    pub graph: u64,
    /// Mean squared error of the continuous features, over the graph's nodes.
    pub reconstruction: f32,
    /// Mean cross entropy of the IDs over the graph's nodes.
    pub id: f32,
    /// Total: reconstruction + 0.1·id.
    pub difficulty: f32,
}

/// Difficulties of some graphs of a store.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// Model and data that the scores come from.
    pub origin: Origin,
    /// Positions in the store.
    pub graphs: Vec<u64>,
    /// Difficulty of each of `graphs`.
    pub difficulty: Vec<f32>,
}

/// Identity of the model and the data behind scores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Digest of the scoring model's weights, or of all that the difficulty depends on besides the data.
    pub model_digest: String,
    /// Digest of the store.
    pub data_digest: String,
}

#[derive(Serialize, Deserialize)]
struct Metadata {
    #[serde(flatten)]
    origin: Origin,
    /// Number of earlier scorings within the run.
    period: u64,
}

impl Content for Metadata {
    const KIND: Kind = Kind::Scores;
}

impl Scores {
    /// Scores graphs.
    pub fn compute(scorer: &Scorer, store: &Arc<Store>, graphs: &[u64], chunk: usize) -> Result<Self, CurriculumError> {
        let mut difficulty = Vec::with_capacity(graphs.len());
        scorer.score(store, graphs, chunk, |scores| {
            difficulty.extend(scores.iter().map(|score| score.difficulty));
            Ok(())
        })?;
        Ok(Self { origin: Origin::of(scorer, store), graphs: graphs.to_vec(), difficulty })
    }

    /// Reads the scores in `path` if they come from this model and these graphs; otherwise computes and writes them.
    ///
    /// A damaged or foreign file is replaced with a warning.
    pub fn cached(
        path: &Path,
        scorer: &Scorer,
        store: &Arc<Store>,
        graphs: &[u64],
        chunk: usize,
    ) -> Result<Self, CurriculumError> {
        let compute = || Ok(Self::compute(scorer, store, graphs, chunk)?.difficulty);
        Self::cached_or(path, Origin::of(scorer, store), graphs, compute)
    }

    /// Like [`Scores::cached`], for difficulties of any origin: `compute` returns that of each of `graphs`.
    pub fn cached_or(
        path: &Path,
        origin: Origin,
        graphs: &[u64],
        compute: impl FnOnce() -> Result<Vec<f32>, CurriculumError>,
    ) -> Result<Self, CurriculumError> {
        if path.exists() {
            match retry_on_oom(Meter::new(Device::Cpu), || Self::read(path)) {
                Ok(scores) if scores.origin == origin && scores.graphs == graphs => return Ok(scores),
                Ok(_) => tracing::warn!("{}: scores of another model or other graphs; scoring again", path.display()),
                Err(error) => tracing::warn!("{error}; scoring again"),
            }
        }
        let scores = Self { origin, graphs: graphs.to_vec(), difficulty: compute()? };
        retry_on_oom(Meter::new(Device::Cpu), || scores.write(path))?;
        Ok(scores)
    }

    /// Writes the scores atomically.
    pub fn write(&self, path: &Path) -> Result<(), CurriculumError> {
        self.write_for_run(path, 0)
    }

    /// Like [`Scores::write`], with the number of the scoring within a run.
    pub fn write_for_run(&self, path: &Path, period: u64) -> Result<(), CurriculumError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|source| CurriculumError::Write { path: path.to_owned(), source })?;
        }
        let graphs: Vec<i64> = self.graphs.iter().map(|&graph| graph as i64).collect();
        let tensors = StateDict::from([
            ("graph".to_owned(), Tensor::from_slice(&graphs)),
            ("difficulty".to_owned(), Tensor::from_slice(&self.difficulty)),
        ]);
        Ok(checkpoint::write(path, &tensors, &Metadata { origin: self.origin.clone(), period })?)
    }

    /// Reads scores written by [`Scores::write`].
    ///
    /// # Errors
    /// Fails if the file is missing, damaged, or not a file of scores.
    pub fn read(path: &Path) -> Result<Self, CurriculumError> {
        Ok(Self::read_of_run(path)?.0)
    }

    /// Like [`Scores::read`], with the number of the scoring.
    pub fn read_of_run(path: &Path) -> Result<(Self, u64), CurriculumError> {
        let (tensors, Metadata { origin, period }) = checkpoint::read(path)?;
        let tensors: StateDict = tensors;
        let column = |name: &str| {
            let missing = || checkpoint::CheckpointError::Damaged {
                path: path.to_owned(),
                reason: format!("it has no column '{name}'"),
                kind: Kind::Scores,
            };
            tensors.get(name).ok_or_else(missing)
        };
        let graphs = Vec::<i64>::try_from(column("graph")?).map_err(kdgat_nn::ModelError::from)?;
        let difficulty = weights::floats(column("difficulty")?)?;
        let graphs = graphs.into_iter().map(|graph| graph as u64).collect();
        Ok((Self { origin, graphs, difficulty }, period))
    }
}

impl Origin {
    /// Origin of the scores that this model gives to the graphs of this store.
    pub fn of(scorer: &Scorer, store: &Store) -> Self {
        Self { model_digest: scorer.digest().to_owned(), data_digest: store.digest().to_owned() }
    }
}
