//! Training of Neural-LinUCB (Xu et al. 2022): LinUCB explores on the network's last hidden layer, which is refitted each epoch.
//!
//! In an epoch, LinUCB tries for each graph, batch by batch, the weight with the highest upper confidence bound and observes its
//! reward. Then the network, with its head fixed to θ, is fitted to the rewards in the replay buffer (squared error; with a
//! teacher, also to its Q-values). Finally the regressions are recomputed from the whole replay buffer. (Xu et al. keep adding to
//! sums over old features. Here the transitions are still available, so θ always matches the features it is multiplied with.)

use tch::{Device, Kind, Reduction, Tensor};

use super::learner::{Learned, Learner, LossSums};
use super::linucb::LinUcb;
use super::replay::{Replay, Transition};
use super::{ACTIONS, FusionError, World, weight};
use kdgat_base::random::{self, Purpose};
use kdgat_nn::weights::StateDict;
use kdgat_nn::{FreshParameters, ModelError, QNetwork, QNetworkConfig, Scope};
use kdgat_train::interrupt;
use kdgat_train::memory::{Meter, retry_on_oom};
use kdgat_train::optimizer::{Adam, AdamOptions};
use kdgat_train::trainable::Trainable;

/// Transitions whose features are computed at a time when the regressions are recomputed.
const REBUILD_ROWS: usize = 4096;

/// Settings of the agent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BanditOptions {
    /// λ of the ridge regressions.
    pub ridge: f64,
    /// α of the confidence bounds.
    pub exploration: f64,
    /// Number of transitions kept for learning.
    pub replay_capacity: usize,
    /// Graphs explored at a time, and transitions per step of the network's fit.
    pub batch: usize,
    /// Weight α of the distillation loss.
    pub kd_alpha: f64,
    /// Settings of the optimiser.
    pub adam: AdamOptions,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// A Neural-LinUCB agent in training.
#[derive(Debug)]
pub struct BanditLearner {
    network: QNetwork,
    trainable: Trainable,
    optimizer: Adam,
    regressions: LinUcb,
    replay: Replay,
    options: BanditOptions,
    /// The teacher's Q-values, `[training graphs, ACTIONS]`, on the CPU.
    teacher: Option<Tensor>,
    device: Device,
}

impl BanditLearner {
    /// Creates an untrained agent. `teacher`: Q-values of each training graph, `[training graphs, ACTIONS]`.
    pub fn new(
        config: &QNetworkConfig,
        options: BanditOptions,
        teacher: Option<Tensor>,
        world: &World,
    ) -> Result<Self, FusionError> {
        let device = world.device;
        retry_on_oom(Meter::new(device), || {
            let mut parameters = FreshParameters::new(options.seed, device);
            let network = QNetwork::new(Scope::root(&mut parameters), config)?;
            let trainable = Trainable::new(parameters.into_tensors(), device)?;
            let optimizer = Adam::new(&trainable, options.adam)?;
            let columns = network.feature_columns() + 1;
            let regressions = LinUcb::new(ACTIONS as i64, columns, options.ridge, options.exploration)?;
            let replay = Replay::new(options.replay_capacity);
            let teacher = teacher.as_ref().map(Tensor::shallow_clone);
            Ok(Self { network, trainable, optimizer, regressions, replay, options, teacher, device })
        })
    }

    /// Features φ, `[n, d]`: the last hidden layer and a constant 1, divided by √d.
    fn features(&self, world: &World, positions: &[usize]) -> Result<Tensor, FusionError> {
        let hidden = self.network.features(&world.states_at(&world.training, positions)?)?;
        let one = Tensor::f_ones([positions.len() as i64, 1], (hidden.kind(), self.device))?;
        Ok(Tensor::f_cat(&[hidden, one], 1)?.f_mul_scalar(self.scale())?)
    }

    /// Scale of the features: 1 / √d.
    fn scale(&self) -> f64 {
        1.0 / ((self.network.feature_columns() + 1) as f64).sqrt()
    }

    /// Features without gradients for the regressions: in double precision, on the CPU, `[n, d]`.
    fn plain_features(&self, world: &World, positions: &[usize]) -> Result<Tensor, FusionError> {
        let features = tch::no_grad(|| self.features(world, positions))?;
        Ok(features.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?)
    }

    /// Tries the weight with the highest bound on each graph of a batch and observes the reward. Returns the sums of rewards and
    /// weights.
    fn explore(&mut self, world: &World, positions: &[usize]) -> Result<(f64, f64), FusionError> {
        let meter = Meter::new(self.device);
        let features = retry_on_oom(meter, || self.plain_features(world, positions))?;
        let chosen =
            retry_on_oom(meter, || Ok::<_, FusionError>(self.regressions.bounds(&features)?.f_argmax(1, false)?))?;
        let chosen = Vec::<i64>::try_from(chosen)?;
        let (mut rewards, mut weights) = (0.0, 0.0);
        for (row, (&position, action)) in positions.iter().zip(chosen).enumerate() {
            let action = action as usize;
            let reward = world.reward(&world.training, position, action);
            self.regressions.observe(action, &features.f_select(0, row as i64)?, reward)?;
            self.replay.push(Transition { position: position as u32, action: action as u32, reward: reward as f32 });
            (rewards, weights) = (rewards + reward, weights + weight(action));
        }
        Ok((rewards, weights))
    }

    /// Takes one step of the network's fit. Returns the losses: total, of rewards, of the teacher.
    fn refine(
        &mut self,
        world: &World,
        drawn: &[Transition],
        lr: f64,
    ) -> Result<(Tensor, Tensor, Option<Tensor>), FusionError> {
        let meter = Meter::new(self.device);
        let losses = retry_on_oom(meter, || {
            self.trainable.zero_gradients()?;
            let losses = self.losses(world, drawn)?;
            losses.0.f_backward()?;
            Ok::<_, FusionError>(losses)
        })?;
        retry_on_oom(meter, || Ok::<_, FusionError>(self.optimizer.step(&mut self.trainable, lr).map(drop)?))?;
        let (total, td, kd) = losses;
        Ok((total.f_detach()?, td.f_detach()?, kd.map(|kd| kd.f_detach()).transpose()?))
    }

    fn losses(&self, world: &World, drawn: &[Transition]) -> Result<(Tensor, Tensor, Option<Tensor>), FusionError> {
        let positions: Vec<usize> = drawn.iter().map(|one| one.position as usize).collect();
        let actions: Vec<i64> = drawn.iter().map(|one| i64::from(one.action)).collect();
        let rewards: Vec<f32> = drawn.iter().map(|one| one.reward).collect();
        let features = self.features(world, &positions)?;
        let theta = self.regressions.theta().f_to_kind(Kind::Float)?.f_to_device(self.device)?;
        let values = features.f_matmul(&theta.f_transpose(0, 1)?)?;
        let actions = Tensor::f_from_slice(&actions)?.f_to_device(self.device)?.f_unsqueeze(1)?;
        let rewards = Tensor::f_from_slice(&rewards)?.f_to_device(self.device)?;
        let td = values.f_gather(1, &actions, false)?.f_squeeze_dim(1)?.f_mse_loss(&rewards, Reduction::Mean)?;
        let Some(teacher) = &self.teacher else { return Ok((td.shallow_clone(), td, None)) };
        let rows: Vec<i64> = positions.iter().map(|&position| position as i64).collect();
        let teacher = teacher.f_index_select(0, &Tensor::f_from_slice(&rows)?)?.f_to_device(self.device)?;
        let kd = values.f_mse_loss(&teacher, Reduction::Mean)?;
        let alpha = self.options.kd_alpha;
        let total = kd.f_mul_scalar(alpha)?.f_add(&td.f_mul_scalar(1.0 - alpha)?)?;
        Ok((total, td, Some(kd)))
    }

    /// Recomputes the regressions from the replay buffer and sets the head to them.
    fn rebuild(&mut self, world: &World) -> Result<(), FusionError> {
        let meter = Meter::new(self.device);
        let sums = retry_on_oom(meter, || {
            let mut sums = self.regressions.sums()?;
            for transitions in self.replay.transitions().chunks(REBUILD_ROWS) {
                let positions: Vec<usize> = transitions.iter().map(|one| one.position as usize).collect();
                let actions: Vec<usize> = transitions.iter().map(|one| one.action as usize).collect();
                let rewards: Vec<f64> = transitions.iter().map(|one| f64::from(one.reward)).collect();
                sums.add(&self.plain_features(world, &positions)?, &actions, &rewards)?;
            }
            Ok::<_, FusionError>(sums)
        })?;
        retry_on_oom(meter, || Ok::<_, FusionError>(self.regressions.rebuild(&sums)?))?;
        self.set_head()
    }

    /// Sets the head so that it returns θᵀφ.
    fn set_head(&mut self) -> Result<(), FusionError> {
        let theta =
            self.regressions.theta().f_mul_scalar(self.scale())?.f_to_kind(Kind::Float)?.f_to_device(self.device)?;
        let columns = self.network.feature_columns();
        let [weight, bias] = self.network.head().parameters();
        tch::no_grad(|| {
            weight.shallow_clone().f_copy_(&theta.f_narrow(1, 0, columns)?)?;
            bias.shallow_clone().f_copy_(&theta.f_select(1, columns)?)?;
            Ok::<_, ModelError>(())
        })?;
        Ok(())
    }
}

impl Learner for BanditLearner {
    fn epoch(&mut self, world: &World, epoch: u64, lr: f64) -> Result<Option<Learned>, FusionError> {
        let BanditOptions { batch, seed, .. } = self.options;
        let mut order: Vec<usize> = (0..world.training.len()).collect();
        random::shuffle(&mut order, seed, Purpose::Shuffle, epoch);
        let (mut rewards, mut weights) = (0.0, 0.0);
        for positions in order.chunks(batch) {
            if interrupt::requested() {
                return Ok(None);
            }
            let (reward, weight) = self.explore(world, positions)?;
            (rewards, weights) = (rewards + reward, weights + weight);
        }
        let mut losses = LossSums::default();
        for step in 0..order.len().div_ceil(batch) {
            if interrupt::requested() {
                return Ok(None);
            }
            let drawn = self.replay.sample(batch, seed, epoch, step as u64);
            let (total, td, kd) = self.refine(world, &drawn, lr)?;
            losses.add(&total, &td, kd.as_ref())?;
        }
        self.rebuild(world)?;
        let count = order.len() as f64;
        Ok(Some(losses.finish(rewards / count, weights / count)?))
    }

    fn network(&self) -> &QNetwork {
        &self.network
    }

    fn num_parameters(&self) -> i64 {
        self.trainable.num_parameters()
    }

    fn deployed(&self) -> Result<StateDict, FusionError> {
        Ok(self.trainable.state_dict()?)
    }

    fn state(&self) -> Result<StateDict, FusionError> {
        let mut state = self.replay.tensors();
        for (name, tensor) in self.trainable.state_dict()? {
            state.insert(format!("model.{name}"), tensor);
        }
        for (name, tensor) in self.optimizer.state()? {
            state.insert(format!("optimizer.{name}"), tensor);
        }
        Ok(state)
    }

    fn load(&mut self, state: &StateDict, world: &World) -> Result<(), FusionError> {
        let model = |(name, tensor): (&String, &Tensor)| {
            Some((name.strip_prefix("model.")?.to_owned(), tensor.shallow_clone()))
        };
        self.trainable.load_state_dict(&state.iter().filter_map(model).collect())?;
        self.optimizer.load(|name| {
            let name = format!("optimizer.{name}");
            state.get(&name).map(Tensor::shallow_clone).ok_or(ModelError::MissingTensor { name, expected: vec![] })
        })?;
        self.replay.load(state)?;
        self.rebuild(world)
    }
}
