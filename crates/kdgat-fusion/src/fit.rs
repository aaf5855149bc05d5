//! The epoch loop of an agent.
//!
//! ```text
//! for epoch:                     from the checkpoint, if resuming
//!     act on every training graph, learn
//!     act greedily on every held-out graph
//!     write a row of metrics.csv, the best weights, a checkpoint
//!     stop early when the regret no longer falls
//! ```
//!
//! The validation loss is the *regret*: the mean difference between the reward of each graph's best weight and that of the chosen
//! weight. A checkpoint is written after every epoch; an interrupted epoch is repeated with the same numbers.

use std::time::Instant;

use kdgat_base::files;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Reduction;

use super::agent::BATCH_GRAPHS;
use super::dqn::HUBER_DELTA;
use super::learner::{Learned, Learner, greedy};
use super::{FusionError, World, weight};
use kdgat_nn::weights::StateDict;
use kdgat_train::checkpoint;
use kdgat_train::checkpoint_kind::{Content, Kind};
use kdgat_train::console::{Console, LoopFacts};
use kdgat_train::fit::{Ending, LAST, METRICS};
use kdgat_train::logs::CsvLog;
use kdgat_train::memory::{self, Meter, retry_on_oom};
use kdgat_train::metrics::{EpochMetrics, metrics_header, metrics_row};
use kdgat_train::run_directory::RunDirectory;
use kdgat_train::schedule::{Progress, Schedule};

/// Metrics logged per epoch in addition to the total loss.
pub const PARTS: [&str; 4] = ["td_loss", "kd_loss", "reward", "weight"];

/// Settings of the loop.
#[derive(Debug, Clone)]
pub struct FitOptions {
    /// Largest number of epochs.
    pub max_epochs: u64,
    /// Epochs without a lower regret before early stopping.
    pub patience: u64,
    /// Learning rate at the start.
    pub lr: f64,
    /// Course of the learning rate.
    pub schedule: Schedule,
    /// Digest of everything the result depends on.
    pub identity: String,
}

/// Outcome of a training run.
#[derive(Debug, Clone)]
pub struct FitSummary {
    /// The reason why training ended.
    pub ending: Ending,
    /// Number of finished epochs.
    pub epochs: u64,
    /// State of early stopping and of the schedule at the end.
    pub progress: Progress,
    /// Metrics of the best epoch.
    pub best: Value,
    /// Peak memory use, in bytes.
    pub peak_memory_bytes: u64,
}

/// Progress of a run, stored in its checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct AgentPosition {
    /// Number of finished epochs.
    epoch: u64,
    progress: Progress,
    best: Value,
    peak_memory_bytes: u64,
    identity: String,
}

impl Content for AgentPosition {
    const KIND: Kind = Kind::RunState;
}

/// Means over the held-out validation graphs, acting greedily.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Validated {
    /// Huber loss of all actions' values against their rewards.
    td_loss: f64,
    reward: f64,
    regret: f64,
    weight: f64,
}

/// Trains the agent. Calls `save_best` with the weights, the epoch and the regret whenever the regret is the lowest so far.
pub fn fit(
    learner: &mut dyn Learner,
    world: &World,
    run: &RunDirectory,
    console: &mut Console,
    options: &FitOptions,
    resumes: bool,
    save_best: &mut dyn FnMut(&StateDict, u64, f64) -> Result<(), FusionError>,
) -> Result<FitSummary, FusionError> {
    let mut position = AgentPosition { identity: options.identity.clone(), ..AgentPosition::default() };
    if resumes {
        position = restore(learner, world, run, options)?;
    }
    let first = position.epoch;
    let header = metrics_header(&PARTS);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let is_done = |row: &csv::StringRecord| row[0].parse::<u64>().is_ok_and(|epoch| epoch < first);
    let mut log = CsvLog::resume(&run.file(METRICS), &header, is_done)?;
    let (device, patience) = (world.device, options.patience);
    console.begin(&LoopFacts { device, patience, metrics: &run.file(METRICS) });

    let ending = loop {
        if position.epoch >= options.max_epochs {
            break Ending::MaxEpochs;
        }
        if position.progress.epochs_since_best >= options.patience {
            break Ending::EarlyStopping;
        }
        let epoch = position.epoch;
        let start = Instant::now();
        memory::reset_peak(world.device);
        let lr = options.lr * options.schedule.factor(epoch, &position.progress);
        console.start_epoch(epoch, options.max_epochs, 1, 0);
        let Some(learned) = learner.epoch(world, epoch, lr)? else { break Ending::Interrupted };
        if !learned.loss.is_finite() {
            return Err(FusionError::NotFinite { loss: learned.loss, epoch });
        }
        let validated = validate(learner, world)?;
        let metrics = epoch_metrics(epoch, lr, &learned, &validated, world, start.elapsed().as_secs_f64());
        log.write(&metrics_row(&metrics))?;

        position.epoch += 1;
        position.peak_memory_bytes = position.peak_memory_bytes.max(metrics.peak_memory_bytes);
        let improved = position.progress.record(epoch, validated.regret, options.schedule);
        if improved {
            save_best(&learner.deployed()?, epoch, validated.regret)?;
            position.best = metrics.json();
        }
        // The checkpoint counts the rows written so far, so the rows must reach the disk first.
        log.sync()?;
        write_checkpoint(learner, run, &position)?;
        console.finish_epoch(&metrics, options.max_epochs, improved, &format!("val reward {:.4}", validated.reward));
    };
    Ok(FitSummary {
        ending,
        epochs: position.epoch,
        progress: position.progress,
        best: position.best,
        peak_memory_bytes: position.peak_memory_bytes,
    })
}

fn validate(learner: &dyn Learner, world: &World) -> Result<Validated, FusionError> {
    let of = &world.validation;
    let positions: Vec<usize> = (0..of.len()).collect();
    let (mut td_loss, mut reward, mut regret, mut weight_sum) = (0.0, 0.0, 0.0, 0.0);
    for chunk in positions.chunks(BATCH_GRAPHS) {
        let (loss, actions) = retry_on_oom(Meter::new(world.device), || {
            let states = world.states_at(of, chunk)?;
            let values = tch::no_grad(|| learner.network().forward(&states))?;
            let loss = values.f_huber_loss(&world.rewards(of, chunk)?, Reduction::Mean, HUBER_DELTA)?;
            Ok::<_, FusionError>((f64::try_from(loss)?, greedy(learner.network(), &states)?))
        })?;
        td_loss += loss * chunk.len() as f64;
        for (&position, action) in chunk.iter().zip(actions) {
            let brought = world.reward(of, position, action);
            let best = (0..super::ACTIONS).map(|other| world.reward(of, position, other)).fold(brought, f64::max);
            (reward, regret) = (reward + brought, regret + best - brought);
            weight_sum += weight(action);
        }
    }
    let count = of.len() as f64;
    Ok(Validated {
        td_loss: td_loss / count,
        reward: reward / count,
        regret: regret / count,
        weight: weight_sum / count,
    })
}

fn epoch_metrics(
    epoch: u64,
    lr: f64,
    learned: &Learned,
    validated: &Validated,
    world: &World,
    seconds: f64,
) -> EpochMetrics {
    EpochMetrics {
        epoch,
        train_loss: learned.loss,
        val_loss: validated.regret,
        parts: vec![
            (PARTS[0], learned.td_loss, validated.td_loss),
            (PARTS[1], learned.kd_loss, f64::NAN),
            (PARTS[2], learned.reward, validated.reward),
            (PARTS[3], learned.weight, validated.weight),
        ],
        lr,
        graphs_per_second: world.training.len() as f64 / seconds,
        peak_memory_bytes: memory::peak_bytes(world.device),
        seconds,
        steps: learned.steps,
    }
}

fn write_checkpoint(learner: &dyn Learner, run: &RunDirectory, position: &AgentPosition) -> Result<(), FusionError> {
    let path = run.file(LAST);
    if let Some(folder) = path.parent() {
        let error = files::failed("create", folder);
        std::fs::create_dir_all(folder).map_err(error)?;
    }
    Ok(checkpoint::write(&path, &learner.state()?, position)?)
}

fn restore(
    learner: &mut dyn Learner,
    world: &World,
    run: &RunDirectory,
    options: &FitOptions,
) -> Result<AgentPosition, FusionError> {
    let path = run.file(LAST);
    let (state, position): (StateDict, AgentPosition) =
        retry_on_oom(Meter::new(tch::Device::Cpu), || Ok::<_, FusionError>(checkpoint::read(&path)?))?;
    if position.identity != options.identity {
        return Err(FusionError::OtherIdentity { path, found: position.identity, expected: options.identity.clone() });
    }
    learner.load(&state, world)?;
    Ok(position)
}
