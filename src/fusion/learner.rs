//! What the epoch loop asks of an agent that learns.

use tch::Tensor;

use super::{FusionError, World};
use crate::nn::weights::StateDict;
use crate::nn::{ModelError, QNetwork};

/// An agent that learns from a world, an epoch at a time. Everything random in it is a function of the epoch.
pub trait Learner {
    /// Acts on every training graph once, and learns. `None` when it was interrupted; the agent is then of no use any more.
    fn epoch(&mut self, world: &World, epoch: u64, lr: f64) -> Result<Option<Learned>, FusionError>;
    /// The network that acts: the action of the largest value.
    fn network(&self) -> &QNetwork;
    /// Its trained values.
    fn num_parameters(&self) -> i64;
    /// The weights of that network, on the CPU.
    fn deployed(&self) -> Result<StateDict, FusionError>;
    /// Everything that is needed to go on.
    fn state(&self) -> Result<StateDict, FusionError>;
    /// Puts back what [`Learner::state`] gave.
    fn load(&mut self, state: &StateDict, world: &World) -> Result<(), FusionError>;
}

/// Means over an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Learned {
    pub steps: u64,
    pub loss: f64,
    pub td_loss: f64,
    /// NaN without a teacher.
    pub kd_loss: f64,
    /// Of the actions that were tried.
    pub reward: f64,
    /// The fusion weight that was tried.
    pub weight: f64,
}

/// Losses of an epoch, added up on the device: read once at its end.
#[derive(Debug, Default)]
pub struct LossSums {
    /// Total, TD, KD.
    sums: [Option<Tensor>; 3],
    steps: u64,
}

impl LossSums {
    /// Adds the losses of a step.
    pub fn add(&mut self, total: &Tensor, td: &Tensor, kd: Option<&Tensor>) -> Result<(), ModelError> {
        self.steps += 1;
        for (sum, loss) in self.sums.iter_mut().zip([Some(total), Some(td), kd]) {
            if let Some(loss) = loss {
                *sum = Some(match sum.take() {
                    Some(sum) => sum.f_add(loss)?,
                    None => loss.f_detach_copy()?,
                });
            }
        }
        Ok(())
    }

    /// The means, with those of the actions.
    pub fn finish(self, reward: f64, weight: f64) -> Result<Learned, ModelError> {
        let mean = |sum: &Option<Tensor>| match sum {
            Some(sum) => Ok::<_, ModelError>(f64::try_from(sum)? / self.steps as f64),
            None => Ok(f64::NAN),
        };
        let [loss, td_loss, kd_loss] = [mean(&self.sums[0])?, mean(&self.sums[1])?, mean(&self.sums[2])?];
        Ok(Learned { steps: self.steps, loss, td_loss, kd_loss, reward, weight })
    }
}

/// The action of the largest value for each state of `[n, inputs]`.
pub fn greedy(network: &QNetwork, states: &Tensor) -> Result<Vec<usize>, FusionError> {
    let actions = tch::no_grad(|| network.forward(states))?.f_argmax(1, false)?;
    Ok(Vec::<i64>::try_from(actions)?.into_iter().map(|action| action as usize).collect())
}
