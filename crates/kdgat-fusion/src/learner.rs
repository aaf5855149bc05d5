//! Interface between the epoch loop and a learning agent.

use tch::Tensor;

use super::{FusionError, World};
use kdgat_nn::weights::StateDict;
use kdgat_nn::{ModelError, QNetwork};

/// An agent that learns from a world, one epoch at a time. All its randomness is a function of the epoch.
pub trait Learner {
    /// Acts on every training graph once and learns. Returns `None` if interrupted; the agent must not be used afterwards.
    fn epoch(&mut self, world: &World, epoch: u64, lr: f64) -> Result<Option<Learned>, FusionError>;
    /// The network that acts: its action is the one with the largest value.
    fn network(&self) -> &QNetwork;
    /// Number of trained parameters.
    fn num_parameters(&self) -> i64;
    /// Weights of that network, on the CPU.
    fn deployed(&self) -> Result<StateDict, FusionError>;
    /// Everything needed to resume.
    fn state(&self) -> Result<StateDict, FusionError>;
    /// Restores a state returned by [`Learner::state`].
    fn load(&mut self, state: &StateDict, world: &World) -> Result<(), FusionError>;
}

/// Means over an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Learned {
    /// Number of steps.
    pub steps: u64,
    /// Total loss.
    pub loss: f64,
    /// Loss of the temporal differences.
    pub td_loss: f64,
    /// NaN without a teacher.
    pub kd_loss: f64,
    /// Reward of the actions tried.
    pub reward: f64,
    /// Fusion weight of the actions tried.
    pub weight: f64,
}

/// Sums of the losses of an epoch, accumulated on the device and read once at its end.
#[derive(Debug, Default)]
pub struct LossSums {
    /// Total, TD and KD loss.
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

    /// Computes the means of the losses and adds the mean reward and weight of the actions.
    pub fn finish(self, reward: f64, weight: f64) -> Result<Learned, ModelError> {
        let mean = |sum: &Option<Tensor>| match sum {
            Some(sum) => Ok::<_, ModelError>(f64::try_from(sum)? / self.steps as f64),
            None => Ok(f64::NAN),
        };
        let [loss, td_loss, kd_loss] = [mean(&self.sums[0])?, mean(&self.sums[1])?, mean(&self.sums[2])?];
        Ok(Learned { steps: self.steps, loss, td_loss, kd_loss, reward, weight })
    }
}

/// The action with the largest value for each state; `states` is `[n, inputs]`.
pub fn greedy(network: &QNetwork, states: &Tensor) -> Result<Vec<usize>, FusionError> {
    let actions = tch::no_grad(|| network.forward(states))?.f_argmax(1, false)?;
    Ok(Vec::<i64>::try_from(actions)?.into_iter().map(|action| action as usize).collect())
}
