//! An agent's environment: graphs with their states, labels, and the outputs of both models.

use std::sync::Arc;

use tch::{Device, Tensor};

use super::scaling::VALUES;
use super::states::{attack_probability, difficulty};
use super::{ACTIONS, AnomalyScale, FusionError, Reward, StateFile, StateScaling, fused, weight};
use kdgat_graph::Store;

/// Graphs for one purpose: training, validation, or a test file.
#[derive(Debug, Clone, PartialEq)]
pub struct Observations {
    /// Positions in the store, ascending.
    pub graphs: Vec<u64>,
    /// For each graph, true if it has an attack.
    pub attack: Vec<bool>,
    /// The classifier's P(attack) of each graph.
    pub probability: Vec<f64>,
    /// The autoencoder's anomaly of each graph.
    pub anomaly: Vec<f64>,
    /// For each graph, true if the next in this list is the next window of the same file.
    pub continues: Vec<bool>,
}

impl Observations {
    /// Collects the observations of graphs of a store.
    pub fn new(store: &Store, states: &StateFile, scale: &AnomalyScale, graphs: Vec<u64>) -> Result<Self, FusionError> {
        let mut attack = Vec::with_capacity(graphs.len());
        let mut files = Vec::with_capacity(graphs.len());
        for &graph in &graphs {
            let view = store.try_graph(graph)?;
            attack.push(view.attack);
            files.push(view.file);
        }
        let follows =
            |at: usize| graphs.get(at + 1) == Some(&(graphs[at] + 1)) && files.get(at + 1) == Some(&files[at]);
        Ok(Self {
            continues: (0..graphs.len()).map(follows).collect(),
            probability: graphs.iter().map(|&graph| attack_probability(states.row(graph))).collect(),
            anomaly: graphs.iter().map(|&graph| scale.anomaly(difficulty(states.row(graph)))).collect(),
            attack,
            graphs,
        })
    }

    /// Checks that there are graphs with and without an attack.
    ///
    /// # Errors
    /// Gives the counts and what to do; `what` names these graphs.
    pub fn check_labels(&self, what: &str) -> Result<(), FusionError> {
        let attacks = self.attack.iter().filter(|attack| **attack).count();
        if attacks > 0 && attacks < self.len() {
            return Ok(());
        }
        Err(FusionError::Input(format!(
            "{attacks} of {} {what} have an attack; fusion needs graphs with and without: raise --validation-fraction, or put \
             logs into train_01_attack_free/ and train_02_with_attacks/",
            self.len()
        )))
    }

    /// Number of graphs.
    pub fn len(&self) -> usize {
        self.graphs.len()
    }

    /// True if there are no graphs.
    pub fn is_empty(&self) -> bool {
        self.graphs.is_empty()
    }

    /// Fused score of the graph at `position`.
    pub fn fused(&self, position: usize, weight: f64) -> f64 {
        fused(weight, self.probability[position], self.anomaly[position])
    }

    /// Fused scores of all graphs with one weight.
    pub fn fused_by(&self, weight: f64) -> Vec<f64> {
        (0..self.len()).map(|position| self.fused(position, weight)).collect()
    }
}

/// Everything that learning reads.
#[derive(Debug)]
pub struct World {
    /// Validation graphs of the fused models that the agent and its baselines are trained on.
    pub training: Observations,
    /// The other validation graphs, held out: they select the epoch, the fixed weight and the thresholds.
    pub validation: Observations,
    /// States of the graphs, stored on disk.
    pub states: Arc<StateFile>,
    /// Scaling of the states that networks read.
    pub scaling: StateScaling,
    /// Reward of an action.
    pub reward: Reward,
    /// Device that the networks compute on.
    pub device: Device,
}

impl World {
    /// Reward of an action on the graph at `position`.
    pub fn reward(&self, of: &Observations, position: usize, action: usize) -> f64 {
        self.reward.of(weight(action), of.probability[position], of.anomaly[position], of.attack[position])
    }

    /// Rewards of all actions on graphs, `[positions, ACTIONS]`.
    pub fn rewards(&self, of: &Observations, positions: &[usize]) -> Result<Tensor, FusionError> {
        let all = |&position: &usize| (0..ACTIONS).map(move |action| self.reward(of, position, action) as f32);
        let rewards: Vec<f32> = positions.iter().flat_map(all).collect();
        Ok(Tensor::f_from_slice(&rewards)?
            .f_reshape([positions.len() as i64, ACTIONS as i64])?
            .f_to_device(self.device)?)
    }

    /// Scaled states of graphs, `[positions, 15]`.
    pub fn states_at(&self, of: &Observations, positions: &[usize]) -> Result<Tensor, FusionError> {
        scaled(&self.states, &self.scaling, positions.iter().map(|&position| of.graphs[position]), self.device)
    }
}

/// Scaled states of graphs of a store, `[graphs, 15]`, on `device`.
pub fn scaled(
    states: &StateFile,
    scaling: &StateScaling,
    graphs: impl Iterator<Item = u64>,
    device: Device,
) -> Result<Tensor, FusionError> {
    let values: Vec<f32> = graphs.flat_map(|graph| scaling.apply(states.row(graph))).collect();
    Ok(Tensor::f_from_slice(&values)?.f_reshape([-1, VALUES as i64])?.f_to_device(device)?)
}
