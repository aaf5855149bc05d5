//! Double deep Q-learning (van Hasselt et al. 2016): one update of the online network from a batch of transitions.
//!
//! The target of a transition is y = r + γ·Q⁻(s′, argmax Q(s′, ·)), the action chosen by the online network Q and valued by the
//! target network Q⁻, a copy that is renewed every so many updates; where nothing follows, y = r. The loss is Huber's with
//! δ = 1 (Huber 1964). A student also learns all Q-values of its teacher (Rusu et al. 2016, with mean squared
//! error): total = α·KD + (1−α)·Huber.

use tch::{Device, Reduction, Tensor};

use super::FusionError;
use crate::memory::{Meter, retry_on_oom};
use crate::nn::weights::StateDict;
use crate::nn::{FreshParameters, GivenTensors, ModelError, QNetwork, QNetworkConfig, Scope};
use crate::train::optimizer::{Adam, AdamOptions};
use crate::train::trainable::Trainable;

/// Where Huber's loss turns from square to linear.
pub const HUBER_DELTA: f64 = 1.0;

/// Settings of the update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DqnOptions {
    /// Discount of what follows.
    pub gamma: f64,
    /// Updates after which the target network is renewed.
    pub target_update_steps: u64,
    /// Weight of the teacher's part of the loss.
    pub kd_alpha: f64,
    pub adam: AdamOptions,
}

/// A batch of transitions.
#[derive(Debug)]
pub struct Transitions {
    /// `[n, inputs]`
    pub states: Tensor,
    /// `[n]`, i64
    pub actions: Tensor,
    /// `[n]`
    pub rewards: Tensor,
    /// What follows; none with γ = 0.
    pub next: Option<Next>,
    /// `[n, actions]`: the teacher's Q-values.
    pub teacher: Option<Tensor>,
}

/// What follows the transitions of a batch.
#[derive(Debug)]
pub struct Next {
    /// `[n, inputs]`
    pub states: Tensor,
    /// `[n]`: 1 where the episode goes on, else 0.
    pub continues: Tensor,
}

/// The parts of a loss, scalars on the device without a graph.
#[derive(Debug)]
pub struct DqnLoss {
    pub td: Tensor,
    pub kd: Option<Tensor>,
    pub total: Tensor,
}

/// Online and target network, and the optimiser's state.
#[derive(Debug)]
pub struct Dqn {
    online: QNetwork,
    trainable: Trainable,
    optimizer: Adam,
    target: QNetwork,
    /// The tensors that the target network reads.
    target_tensors: StateDict,
    updates: u64,
    options: DqnOptions,
    device: Device,
}

impl Dqn {
    /// Fresh networks, which are equal.
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

    /// The network that acts.
    pub fn network(&self) -> &QNetwork {
        &self.online
    }

    /// Trained values.
    pub fn num_parameters(&self) -> i64 {
        self.trainable.num_parameters()
    }

    /// y of each transition, `[n]`.
    pub fn targets(&self, batch: &Transitions) -> Result<Tensor, FusionError> {
        let Some(next) = &batch.next else { return Ok(batch.rewards.shallow_clone()) };
        tch::no_grad(|| {
            let chosen = self.online.forward(&next.states)?.f_argmax(1, true)?;
            let values = self.target.forward(&next.states)?.f_gather(1, &chosen, false)?.f_squeeze_dim(1)?;
            Ok(batch.rewards.f_add(&values.f_mul(&next.continues)?.f_mul_scalar(self.options.gamma)?)?)
        })
    }

    /// The loss of a batch, with its graph.
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

    /// One step of Adam, after which the target network is renewed if it is time. Waits for nothing on a GPU.
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

    /// The weights of the network that acts, on the CPU.
    pub fn deployed(&self) -> Result<StateDict, FusionError> {
        Ok(self.trainable.state_dict()?)
    }

    /// Everything that is needed to go on.
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

    /// Puts back what [`Dqn::state`] gave.
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
