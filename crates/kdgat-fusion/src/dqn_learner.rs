//! Training of a DQN: it tries weights ε-greedily on each graph, stores the rewards in a replay buffer, and learns from samples
//! of it.

use tch::Tensor;

use super::dqn::{Dqn, DqnOptions, Next, Transitions};
use super::learner::{Learned, Learner, LossSums, greedy};
use super::replay::{Replay, Transition};
use super::{ACTIONS, FusionError, World, weight};
use kdgat_base::random::{self, Purpose};
use kdgat_nn::weights::StateDict;
use kdgat_nn::{QNetwork, QNetworkConfig};
use kdgat_train::interrupt;
use kdgat_train::memory::{Meter, retry_on_oom};

/// Settings of a DQN agent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DqnLearnerOptions {
    /// Settings of the update.
    pub dqn: DqnOptions,
    /// Graphs acted on, and transitions learned from, per step.
    pub batch: usize,
    /// Number of transitions kept for learning.
    pub replay_capacity: usize,
    /// Schedule of random actions.
    pub exploration: Exploration,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Schedule of ε, the share of random actions: linear from `start` to `end` over `epochs`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exploration {
    /// ε at the start of the schedule, from 0 to 1.
    pub start: f64,
    /// ε at the end of the schedule, from 0 to 1.
    pub end: f64,
    /// Number of epochs from `start` to `end`.
    pub epochs: u64,
}

impl Exploration {
    /// ε in `epoch`.
    pub fn rate(&self, epoch: u64) -> f64 {
        let share = if self.epochs == 0 { 1.0 } else { (epoch as f64 / self.epochs as f64).min(1.0) };
        self.start + share * (self.end - self.start)
    }
}

/// A DQN agent in training.
#[derive(Debug)]
pub struct DqnLearner {
    dqn: Dqn,
    replay: Replay,
    options: DqnLearnerOptions,
    /// The teacher's Q-values, `[training graphs, ACTIONS]`, on the CPU.
    teacher: Option<Tensor>,
}

impl DqnLearner {
    /// Creates an untrained agent. `teacher`: Q-values of each training graph, `[training graphs, ACTIONS]`.
    pub fn new(
        config: &QNetworkConfig,
        options: DqnLearnerOptions,
        teacher: Option<Tensor>,
        world: &World,
    ) -> Result<Self, FusionError> {
        let dqn = Dqn::new(config, options.seed, options.dqn, world.device)?;
        Ok(Self { dqn, replay: Replay::new(options.replay_capacity), options, teacher })
    }

    /// Chooses ε-greedy actions.
    fn act(&self, world: &World, positions: &[usize], epoch: u64) -> Result<Vec<usize>, FusionError> {
        let states = world.states_at(&world.training, positions)?;
        let mut actions = greedy(self.dqn.network(), &states)?;
        let rate = self.options.exploration.rate(epoch);
        for (action, &position) in actions.iter_mut().zip(positions) {
            let bits = random::bits(self.options.seed, Purpose::Exploration, epoch, position as u64);
            if random::to_unit(bits) < rate {
                *action = random::to_below(random::mix(bits), ACTIONS as u64) as usize;
            }
        }
        Ok(actions)
    }

    fn transitions(&self, world: &World, drawn: &[Transition]) -> Result<Transitions, FusionError> {
        let positions: Vec<usize> = drawn.iter().map(|one| one.position as usize).collect();
        let actions: Vec<i64> = drawn.iter().map(|one| i64::from(one.action)).collect();
        let rewards: Vec<f32> = drawn.iter().map(|one| one.reward).collect();
        let next = match self.options.dqn.gamma > 0.0 {
            false => None,
            true => {
                let continues = |&position: &usize| world.training.continues[position];
                let after: Vec<usize> = positions.iter().map(|at| at + usize::from(continues(at))).collect();
                let continues: Vec<f32> = positions.iter().map(|at| f32::from(u8::from(continues(at)))).collect();
                let states = world.states_at(&world.training, &after)?;
                Some(Next { states, continues: Tensor::f_from_slice(&continues)?.f_to_device(world.device)? })
            }
        };
        let of_teacher = |values: &Tensor| {
            let rows: Vec<i64> = positions.iter().map(|&position| position as i64).collect();
            values.f_index_select(0, &Tensor::f_from_slice(&rows)?)?.f_to_device(world.device)
        };
        Ok(Transitions {
            states: world.states_at(&world.training, &positions)?,
            actions: Tensor::f_from_slice(&actions)?.f_to_device(world.device)?,
            rewards: Tensor::f_from_slice(&rewards)?.f_to_device(world.device)?,
            next,
            teacher: self.teacher.as_ref().map(of_teacher).transpose()?,
        })
    }
}

impl Learner for DqnLearner {
    fn epoch(&mut self, world: &World, epoch: u64, lr: f64) -> Result<Option<Learned>, FusionError> {
        let meter = Meter::new(world.device);
        let DqnLearnerOptions { batch, seed, .. } = self.options;
        let mut order: Vec<usize> = (0..world.training.len()).collect();
        random::shuffle(&mut order, seed, Purpose::Shuffle, epoch);
        let (mut losses, mut reward_sum, mut weight_sum) = (LossSums::default(), 0.0, 0.0);
        for (step, positions) in order.chunks(batch).enumerate() {
            if interrupt::requested() {
                return Ok(None);
            }
            // Act. Waits for the device: the actions are needed to store transitions.
            let actions = retry_on_oom(meter, || self.act(world, positions, epoch))?;
            for (&position, action) in positions.iter().zip(actions) {
                let reward = world.reward(&world.training, position, action);
                (reward_sum, weight_sum) = (reward_sum + reward, weight_sum + weight(action));
                self.replay.push(Transition {
                    position: position as u32,
                    action: action as u32,
                    reward: reward as f32,
                });
            }
            // Learn.
            let drawn = self.replay.sample(batch, seed, epoch, step as u64);
            let transitions = retry_on_oom(meter, || self.transitions(world, &drawn))?;
            let loss = self.dqn.update(&transitions, lr)?;
            losses.add(&loss.total, &loss.td, loss.kd.as_ref())?;
        }
        let count = order.len() as f64;
        Ok(Some(losses.finish(reward_sum / count, weight_sum / count)?))
    }

    fn network(&self) -> &QNetwork {
        self.dqn.network()
    }

    fn num_parameters(&self) -> i64 {
        self.dqn.num_parameters()
    }

    fn deployed(&self) -> Result<StateDict, FusionError> {
        self.dqn.deployed()
    }

    fn state(&self) -> Result<StateDict, FusionError> {
        let mut state = self.dqn.state()?;
        state.extend(self.replay.tensors());
        Ok(state)
    }

    fn load(&mut self, state: &StateDict, _: &World) -> Result<(), FusionError> {
        self.dqn.load(state)?;
        Ok(self.replay.load(state)?)
    }
}
