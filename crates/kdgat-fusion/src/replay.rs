//! Replay buffer (Lin 1992): a ring of transitions, sampled uniformly.
//!
//! A transition refers to a training graph by position, so it takes twelve bytes; its states are read again when sampled.

use tch::Tensor;

use kdgat_base::random::{self, Purpose};
use kdgat_nn::ModelError;
use kdgat_nn::weights::StateDict;

/// An action on a graph and its reward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transition {
    /// Position of the graph among the training graphs.
    pub position: u32,
    /// Index of the weight chosen, below [`ACTIONS`](crate::ACTIONS).
    pub action: u32,
    /// Reward of that weight on the graph.
    pub reward: f32,
}

/// The last `capacity` transitions.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    transitions: Vec<Transition>,
    capacity: usize,
    /// Index of the next write.
    next: usize,
}

impl Replay {
    /// Creates an empty buffer.
    pub fn new(capacity: usize) -> Self {
        Self { transitions: Vec::new(), capacity: capacity.max(1), next: 0 }
    }

    /// Number of transitions.
    pub fn len(&self) -> usize {
        self.transitions.len()
    }

    /// True if there are no transitions.
    pub fn is_empty(&self) -> bool {
        self.transitions.is_empty()
    }

    /// All transitions, in storage order.
    pub fn transitions(&self) -> &[Transition] {
        &self.transitions
    }

    /// Adds a transition, replacing the oldest when full.
    pub fn push(&mut self, transition: Transition) {
        if self.transitions.len() < self.capacity {
            self.transitions.push(transition);
        } else {
            self.transitions[self.next] = transition;
        }
        self.next = (self.next + 1) % self.capacity;
    }

    /// Draws `count` transitions with replacement: a function of (seed, epoch, step).
    pub fn sample(&self, count: usize, seed: u64, epoch: u64, step: u64) -> Vec<Transition> {
        let key = random::bits(seed, Purpose::Replay, epoch, step);
        let draw = |index: u64| random::to_below(random::mix(key ^ index), self.transitions.len() as u64) as usize;
        (0..count as u64).map(|index| self.transitions[draw(index)]).collect()
    }

    /// Converts the buffer to tensors of a checkpoint.
    pub fn tensors(&self) -> StateDict {
        let whole = |value: fn(&Transition) -> u32| {
            Tensor::from_slice(&self.transitions.iter().map(|one| i64::from(value(one))).collect::<Vec<_>>())
        };
        let rewards: Vec<f32> = self.transitions.iter().map(|one| one.reward).collect();
        StateDict::from([
            ("replay.positions".to_owned(), whole(|one| one.position)),
            ("replay.actions".to_owned(), whole(|one| one.action)),
            ("replay.rewards".to_owned(), Tensor::from_slice(&rewards)),
            ("replay.next".to_owned(), Tensor::from_slice(&[self.next as i64])),
        ])
    }

    /// Restores tensors returned by [`Replay::tensors`].
    pub fn load(&mut self, tensors: &StateDict) -> Result<(), ModelError> {
        let find = |name: &str| {
            tensors.get(name).ok_or(ModelError::MissingTensor { name: name.to_owned(), expected: vec![-1] })
        };
        let positions = Vec::<i64>::try_from(find("replay.positions")?)?;
        let actions = Vec::<i64>::try_from(find("replay.actions")?)?;
        let rewards = Vec::<f32>::try_from(find("replay.rewards")?)?;
        let next = Vec::<i64>::try_from(find("replay.next")?)?;
        let transition = |((position, action), reward): ((i64, i64), f32)| Transition {
            position: position as u32,
            action: action as u32,
            reward,
        };
        self.transitions = positions.into_iter().zip(actions).zip(rewards).map(transition).collect();
        self.next = next.first().map_or(0, |&next| next as usize) % self.capacity;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transition(number: u32) -> Transition {
        Transition { position: number, action: number % 21, reward: number as f32 / 2.0 }
    }

    #[test]
    fn the_oldest_makes_room_and_a_checkpoint_brings_all_back() {
        let mut replay = Replay::new(4);
        (0..6).for_each(|number| replay.push(transition(number)));
        let positions: Vec<u32> = replay.transitions().iter().map(|one| one.position).collect();
        assert_eq!(positions, [4, 5, 2, 3]);
        let mut again = Replay::new(4);
        again.load(&replay.tensors()).unwrap();
        assert_eq!(again, replay);
        replay.push(transition(6));
        again.push(transition(6));
        assert_eq!((again.transitions()[2].position, &again), (6, &replay));
    }

    #[test]
    fn draws_are_even_and_a_function_of_their_place() {
        let mut replay = Replay::new(10);
        (0..10).for_each(|number| replay.push(transition(number)));
        assert_eq!(replay.sample(5, 1, 2, 3), replay.sample(5, 1, 2, 3));
        assert_ne!(replay.sample(5, 1, 2, 3), replay.sample(5, 1, 2, 4));
        let mut counts = [0; 10];
        replay.sample(10_000, 1, 0, 0).iter().for_each(|one| counts[one.position as usize] += 1);
        assert!(counts.iter().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }
}
