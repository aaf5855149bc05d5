//! Double deep Q-learning (van Hasselt et al. 2016): updates the online network from a batch of transitions.
//!
//! The target of a transition is y = r + γ·Q⁻(s′, argmax Q(s′, ·)): the online network Q chooses the action, and the target
//! network Q⁻, a copy refreshed every `target_update_steps` updates, values it. At the end of an episode y = r. The loss is
//! Huber's with δ = 1 (Huber 1964). A student also learns all Q-values of its teacher with mean squared error (policy
//! distillation after Rusu et al. 2016): total = α·KD + (1−α)·Huber.

use tch::{Device, Reduction, Tensor};

use super::FusionError;
use kdgat_nn::weights::StateDict;
use kdgat_nn::{FreshParameters, GivenTensors, ModelError, QNetwork, QNetworkConfig, Scope};
use kdgat_train::memory::{Meter, retry_on_oom};
use kdgat_train::optimizer::{Adam, AdamOptions};
use kdgat_train::trainable::Trainable;

/// δ: the error at which the Huber loss changes from quadratic to linear.
pub const HUBER_DELTA: f64 = 1.0;

/// Settings of the update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DqnOptions {
    /// Discount factor γ.
    pub gamma: f64,
    /// Updates between refreshes of the target network.
    pub target_update_steps: u64,
    /// Weight α of the distillation loss.
    pub kd_alpha: f64,
    /// Settings of the optimiser.
    pub adam: AdamOptions,
}

/// A batch of transitions.
#[derive(Debug)]
pub struct Transitions {
    /// States, `[n, inputs]`.
    pub states: Tensor,
    /// Actions, `[n]`, i64.
    pub actions: Tensor,
    /// Rewards, `[n]`.
    pub rewards: Tensor,
    /// Next states; `None` with γ = 0.
    pub next: Option<Next>,
    /// The teacher's Q-values, `[n, actions]`.
    pub teacher: Option<Tensor>,
}

/// Next states of a batch of transitions.
#[derive(Debug)]
pub struct Next {
    /// States, `[n, inputs]`.
    pub states: Tensor,
    /// 1 if the episode continues, else 0, `[n]`.
    pub continues: Tensor,
}

/// Loss components: scalars on the device, without an autograd graph when returned by [`Dqn::update`].
#[derive(Debug)]
pub struct DqnLoss {
    /// Loss of the temporal differences.
    pub td: Tensor,
    /// Distillation loss; `None` without a teacher.
    pub kd: Option<Tensor>,
    /// The loss that is minimised: `td`, mixed with `kd` if there is a teacher.
    pub total: Tensor,
}

/// Online and target networks with the optimiser.
#[derive(Debug)]
pub struct Dqn {
    online: QNetwork,
    trainable: Trainable,
    optimizer: Adam,
    target: QNetwork,
    /// Tensors of the target network.
    target_tensors: StateDict,
    updates: u64,
    options: DqnOptions,
    device: Device,
}

impl Dqn {
    /// Creates freshly initialised networks, with the target equal to the online network.
    pub fn new(config: &QNetworkConfig, seed: u64, options: DqnOptions, device: Device) -> Result<Self, FusionError> {
        retry_on_oom(Meter::new(device), || {
            let mut parameters = FreshParameters::new(seed, device);
            let online = QNetwork::new(Scope::root(&mut parameters), config)?;
            let trainable = Trainable::new(parameters.into_tensors(), device)?;
            let optimizer = Adam::new(&trainable, options.adam)?;
            let copies =
                trainable.tensors().iter().map(|named| Ok((named.name.clone(), named.tensor.f_detach_copy()?)));
            let target_tensors = copies.collect::<Result<StateDict, ModelError>>()?;
            let given = target_tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
            let target = QNetwork::new(Scope::root(&mut GivenTensors::new(given)), config)?;
            Ok(Self { online, trainable, optimizer, target, target_tensors, updates: 0, options, device })
        })
    }

    /// The online network, which chooses actions.
    pub fn network(&self) -> &QNetwork {
        &self.online
    }

    /// Number of trained parameters.
    pub fn num_parameters(&self) -> i64 {
        self.trainable.num_parameters()
    }

    /// Targets y of the transitions, `[n]`.
    pub fn targets(&self, batch: &Transitions) -> Result<Tensor, FusionError> {
        let Some(next) = &batch.next else { return Ok(batch.rewards.shallow_clone()) };
        tch::no_grad(|| {
            let chosen = self.online.forward(&next.states)?.f_argmax(1, true)?;
            let values = self.target.forward(&next.states)?.f_gather(1, &chosen, false)?.f_squeeze_dim(1)?;
            Ok(batch.rewards.f_add(&values.f_mul(&next.continues)?.f_mul_scalar(self.options.gamma)?)?)
        })
    }

    /// Loss of a batch, with its autograd graph.
    fn loss(&self, batch: &Transitions) -> Result<DqnLoss, FusionError> {
        let values = self.online.forward(&batch.states)?;
        let taken = values.f_gather(1, &batch.actions.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?;
        let td = taken.f_huber_loss(&self.targets(batch)?, Reduction::Mean, HUBER_DELTA)?;
        let Some(teacher) = &batch.teacher else { return Ok(DqnLoss { total: td.shallow_clone(), td, kd: None }) };
        let kd = values.f_mse_loss(teacher, Reduction::Mean)?;
        let alpha = self.options.kd_alpha;
        let total = kd.f_mul_scalar(alpha)?.f_add(&td.f_mul_scalar(1.0 - alpha)?)?;
        Ok(DqnLoss { td, kd: Some(kd), total })
    }

    /// Takes one Adam step and refreshes the target network when due. Does not wait for a GPU.
    pub fn update(&mut self, batch: &Transitions, lr: f64) -> Result<DqnLoss, FusionError> {
        let meter = Meter::new(self.device);
        let loss = retry_on_oom(meter, || {
            self.trainable.zero_gradients()?;
            let loss = self.loss(batch)?;
            loss.total.f_backward()?;
            Ok::<_, FusionError>(loss)
        })?;
        retry_on_oom(meter, || Ok::<_, FusionError>(self.optimizer.step(&mut self.trainable, lr).map(drop)?))?;
        self.updates += 1;
        if self.updates.is_multiple_of(self.options.target_update_steps) {
            self.renew_target()?;
        }
        let detached = |tensor: Tensor| tensor.f_detach();
        Ok(DqnLoss { td: detached(loss.td)?, kd: loss.kd.map(detached).transpose()?, total: detached(loss.total)? })
    }

    fn renew_target(&mut self) -> Result<(), FusionError> {
        for named in self.trainable.tensors() {
            if let Some(target) = self.target_tensors.get_mut(&named.name) {
                tch::no_grad(|| target.f_copy_(&named.tensor))?;
            }
        }
        Ok(())
    }

    /// Weights of the online network, on the CPU.
    pub fn deployed(&self) -> Result<StateDict, FusionError> {
        Ok(self.trainable.state_dict()?)
    }

    /// Everything needed to resume.
    pub fn state(&self) -> Result<StateDict, FusionError> {
        let mut state = StateDict::new();
        for (name, tensor) in self.trainable.state_dict()? {
            state.insert(format!("model.{name}"), tensor);
        }
        for (name, tensor) in &self.target_tensors {
            state.insert(format!("target.{name}"), tensor.f_to_device(Device::Cpu)?.f_detach_copy()?);
        }
        for (name, tensor) in self.optimizer.state()? {
            state.insert(format!("optimizer.{name}"), tensor);
        }
        state.insert("updates".to_owned(), Tensor::from_slice(&[self.updates as i64]));
        Ok(state)
    }

    /// Restores a state returned by [`Dqn::state`].
    pub fn load(&mut self, state: &StateDict) -> Result<(), FusionError> {
        let find = |name: &str| {
            let missing = || ModelError::MissingTensor { name: name.to_owned(), expected: vec![] };
            state.get(name).ok_or_else(missing)
        };
        let part = |prefix: &str| {
            let of_part = |(name, tensor): (&String, &Tensor)| {
                Some((name.strip_prefix(prefix)?.to_owned(), tensor.shallow_clone()))
            };
            state.iter().filter_map(of_part).collect::<StateDict>()
        };
        self.trainable.load_state_dict(&part("model."))?;
        for (name, tensor) in &mut self.target_tensors {
            tch::no_grad(|| tensor.f_copy_(find(&format!("target.{name}"))?).map_err(ModelError::from))?;
        }
        self.optimizer.load(|name| Ok(find(&format!("optimizer.{name}"))?.shallow_clone()))?;
        self.updates = i64::try_from(find("updates")?.f_flatten(0, -1)?)? as u64;
        Ok(())
    }
}
