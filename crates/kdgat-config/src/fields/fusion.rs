//! Fields of the section `[fusion]`.

use std::path::PathBuf;

use crate::rules::*;
use crate::table::Limit::{Above, AtLeast, Below, Between};
use crate::table::config_section;
use crate::values::*;

config_section! {
/// The agent of `kdgat fusion`, which learns how much weight the classifier and the autoencoder get: see docs/fusion.md.
#[rules(OF_FUSION)]
fusion: FusionConfig {
    /// Learning algorithm of the agent.
    fusion: FusionKind = FusionKind::Dqn;
    /// The autoencoder to fuse: a run's folder or a weight file. none: for a size that starts with `teacher` the dataset's registered
    /// teacher, else its newest finished run of the same size.
    #[same_losses = true]
    fusion_vgae: Option<PathBuf> = None;
    /// The classifier to fuse, given or found in the same way.
    #[same_losses = true]
    fusion_gat: Option<PathBuf> = None;
    /// Discount factor of the next window's value. 0 treats each window as a separate episode (dqn).
    #[rules(OF_DQN)]
    fusion_gamma: f64 = 0.0, Below(0.0, 1.0);
    /// Transitions in the replay memory; the oldest are overwritten.
    replay_capacity: usize = 100_000, Between(1.0, 4e9);
    /// Updates of the network between two copies to the target network (dqn).
    #[rules(OF_DQN)]
    target_update_steps: usize = 100, AtLeast(1.0);
    /// Probability of trying a random weight in the first epoch (dqn).
    #[rules(OF_DQN)]
    epsilon_start: f64 = 1.0, Between(0.0, 1.0);
    /// Probability of trying a random weight after `epsilon_epochs` (dqn).
    #[rules(OF_DQN)]
    epsilon_end: f64 = 0.05, Between(0.0, 1.0);
    /// Epochs over which that probability falls from `epsilon_start` to `epsilon_end` (dqn).
    #[rules(OF_DQN)]
    epsilon_epochs: usize = 20;
    /// Width of the upper confidence bounds. Larger values try uncertain weights more often (bandit).
    #[rules(OF_BANDIT)]
    bandit_exploration: f64 = 1.0, AtLeast(0.0);
    /// Ridge penalty of the regressions (bandit).
    #[rules(OF_BANDIT)]
    bandit_ridge: f64 = 1.0, Above(0.0);
    /// Reward for a fused score on the correct side of one half; a wrong one is penalised by the same amount.
    reward_correctness: f64 = 1.0, AtLeast(0.0);
    /// Additional reward or penalty, multiplied by how closely the two models agree.
    reward_agreement: f64 = 0.25, AtLeast(0.0);
    /// Additional reward or penalty, multiplied by how far the fused score is from one half.
    reward_confidence: f64 = 0.5, AtLeast(0.0);
    /// Penalty for relying on one model alone.
    reward_balance: f64 = 0.05, AtLeast(0.0);
}}
