//! A trained agent in one file: its network, the scaling of its inputs, and the anomaly scale.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::learner::greedy;
use super::world::scaled;
use super::{AnomalyScale, FusionError, Observations, Reward, StateFile, StateScaling, weight};
use kdgat_distill::frozen::weight_file;
use kdgat_evaluate::EvaluateError;
use kdgat_nn::weights::{self, StateDict};
use kdgat_nn::{DatasetIdentity, GivenTensors, QNetwork, QNetworkConfig, Scope};
use kdgat_train::checkpoint::{self, CheckpointError};
use kdgat_train::checkpoint_kind::{Content, Kind};
use kdgat_train::memory::{Meter, retry_on_oom};

/// Graphs per forward pass of a network.
pub const BATCH_GRAPHS: usize = 4096;

/// A model whose outputs are fused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FusedModel {
    /// Name of its run.
    pub name: String,
    /// Path of its weight file.
    pub path: PathBuf,
    /// Content digest of its weights.
    pub digest: String,
}

/// Everything about an agent except its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentDescription {
    /// `dqn` or `bandit`.
    pub fusion: String,
    /// Widths of the network.
    pub network: QNetworkConfig,
    /// Scaling of the states that the network reads.
    pub scaling: StateScaling,
    /// Reward that it was trained for.
    pub reward: Reward,
    /// The autoencoder whose scores it weighs.
    pub vgae: FusedModel,
    /// The classifier whose scores it weighs.
    pub gat: FusedModel,
    /// Identity of the dataset that it was trained on.
    pub dataset: DatasetIdentity,
    /// Frames in a window of its graphs.
    pub window: usize,
    /// Name of its size, as in `student`.
    pub size: String,
    /// Epoch that the weights are from; `val_loss` is its validation loss (regret).
    pub epoch: u64,
    /// Validation loss (regret) of that epoch, if known.
    pub val_loss: Option<f64>,
    /// Digest of the weights of its teacher agent, if it had one.
    pub teacher_digest: Option<String>,
    /// Version of kdgat that wrote the file.
    pub created_by_version: String,
}

impl Content for AgentDescription {
    const KIND: Kind = Kind::Agent;
}

/// A trained agent for inference.
#[derive(Debug)]
pub struct Agent {
    /// Everything but the weights, as stored with them.
    pub description: AgentDescription,
    /// Scale that maps the autoencoder's error to [0, 1].
    pub anomaly: AnomalyScale,
    /// Content digest of the network's weights.
    pub digest: String,
    network: QNetwork,
    device: Device,
}

/// Writes an agent atomically.
pub fn write(
    path: &Path,
    network: &StateDict,
    anomaly: &AnomalyScale,
    description: &AgentDescription,
) -> Result<(), FusionError> {
    let mut tensors = anomaly.tensors();
    tensors.extend(network.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())));
    Ok(checkpoint::write(path, &tensors, description)?)
}

impl Agent {
    /// Reads a file written by [`write`], or the run's folder that holds it.
    ///
    /// # Errors
    /// Fails if the file is missing, damaged, or not an agent.
    pub fn read(path: &Path, device: Device) -> Result<Self, FusionError> {
        let file = weight_file(path).map_err(EvaluateError::from)?;
        retry_on_oom(Meter::new(device), || Self::read_once(&file, device))
    }

    fn read_once(path: &Path, device: Device) -> Result<Self, FusionError> {
        let (tensors, description): (StateDict, AgentDescription) = checkpoint::read(path)?;
        let anomaly = AnomalyScale::from_tensors(&tensors)?;
        if !description.scaling.is_whole() {
            let reason = "its scaling does not have a mean and a deviation for each value of a state".to_owned();
            return Err(CheckpointError::Damaged { path: path.to_owned(), reason, kind: Kind::Agent }.into());
        }
        let of_network = || tensors.iter().filter(|(name, _)| !AnomalyScale::owns(name));
        let digest = weights::digest(of_network().map(|(name, tensor)| (name.as_str(), tensor)))?;
        let on_device = of_network().map(|(name, tensor)| Ok((name.clone(), tensor.f_to_device(device)?)));
        let mut given = GivenTensors::new(on_device.collect::<Result<Vec<_>, tch::TchError>>()?);
        let network = QNetwork::new(Scope::root(&mut given), &description.network)?;
        given.check_all_used(|_| false)?;
        Ok(Self { description, anomaly, digest, network, device })
    }

    /// Number of trained parameters.
    pub fn num_parameters(&self) -> usize {
        let QNetworkConfig { inputs, hidden, actions } = &self.description.network;
        let widths: Vec<i64> = std::iter::once(*inputs).chain(hidden.iter().copied()).collect();
        let of_hidden: i64 = widths.windows(2).map(|pair| pair[0] * pair[1] + 3 * pair[1]).sum();
        let last = widths.last().copied().unwrap_or(0);
        (of_hidden + (last + 1) * actions) as usize
    }

    /// Q-values of graphs, `[graphs, actions]`, on the CPU.
    pub fn values(&self, states: &StateFile, graphs: &[u64]) -> Result<Tensor, FusionError> {
        let mut parts = Vec::new();
        for chunk in graphs.chunks(BATCH_GRAPHS) {
            parts.push(retry_on_oom(Meter::new(self.device), || {
                let states = scaled(states, &self.description.scaling, chunk.iter().copied(), self.device)?;
                Ok::<_, FusionError>(tch::no_grad(|| self.network.forward(&states))?.f_to_device(Device::Cpu)?)
            })?);
        }
        if parts.is_empty() {
            let shape = [0, self.description.network.actions];
            return Ok(Tensor::f_zeros(shape, (tch::Kind::Float, Device::Cpu))?);
        }
        Ok(Tensor::f_cat(&parts, 0)?)
    }

    /// Fusion weight that the agent chooses for each graph.
    pub fn weights(&self, states: &StateFile, graphs: &[u64]) -> Result<Vec<f64>, FusionError> {
        let mut chosen = Vec::with_capacity(graphs.len());
        for chunk in graphs.chunks(BATCH_GRAPHS) {
            let actions = retry_on_oom(Meter::new(self.device), || {
                let states = scaled(states, &self.description.scaling, chunk.iter().copied(), self.device)?;
                greedy(&self.network, &states)
            })?;
            chosen.extend(actions.into_iter().map(weight));
        }
        Ok(chosen)
    }

    /// Fused score of each graph, which decides whether it is an attack.
    pub fn scores(&self, states: &StateFile, graphs: &Observations) -> Result<Vec<f64>, FusionError> {
        let weights = self.weights(states, &graphs.graphs)?;
        Ok(weights.into_iter().enumerate().map(|(position, weight)| graphs.fused(position, weight)).collect())
    }
}
