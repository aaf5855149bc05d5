//! Alternating epochs of two trainings: long enough for reliable ratios on a machine whose speed changes by the second.

use std::time::Instant;

use kdgat::distill::{Residency, StoreShape, Weights};
use kdgat::graph::Batch;
use kdgat::nn::Architecture;
use kdgat::torch::device;
use tch::Device;

use super::models::random_tensors;
use super::rows::Rows;
use super::training::{Training, start_teacher, teacher_options};
use super::{Error, median};

/// Batches per visit of the teacher that fills the cache.
const BURST: usize = 16;

/// The same student twice: once alone, and once with a teacher whose targets are all cached in memory.
pub struct InTurn {
    alone: Training,
    taught: Training,
    device: Device,
}

impl InTurn {
    /// Trains both for one epoch, which fills the cache.
    pub fn start(
        student: &Architecture,
        teacher: &Architecture,
        batches: &[Batch],
        shape: &StoreShape,
        device: Device,
    ) -> Result<Self, Error> {
        let options = teacher_options(device, Residency::Forward, BURST, true);
        let weights = Weights::from_tensors(random_tensors(teacher, 7)?)?;
        let running = start_teacher(teacher, weights, &options, shape)?;
        let mut in_turn = Self {
            alone: Training::new(student, None, 1, device)?,
            taught: Training::new(student, Some((running, teacher)), BURST, device)?,
            device,
        };
        for _ in 0..2 {
            in_turn.round(batches, false)?;
        }
        Ok(in_turn)
    }

    /// Milliseconds of an epoch alone and of one with cached targets, in the given order.
    fn round(&mut self, batches: &[Batch], taught_first: bool) -> Result<[f64; 2], Error> {
        let mut milliseconds = [0.0; 2];
        for which in if taught_first { [1, 0] } else { [0, 1] } {
            let training = if which == 0 { &mut self.alone } else { &mut self.taught };
            device::synchronize(self.device)?;
            let start = Instant::now();
            training.run(batches)?;
            device::synchronize(self.device)?;
            milliseconds[which] = 1e3 * start.elapsed().as_secs_f64();
        }
        Ok(milliseconds)
    }

    /// Measures both in turn; adds a row for the time of an epoch with cached targets, and one for its ratio to an epoch without.
    pub fn report(mut self, name: &str, batches: &[Batch], rounds: usize, rows: &mut Rows) -> Result<(), Error> {
        let mut turns = Vec::with_capacity(rounds);
        for round in 0..rounds {
            turns.push(self.round(batches, round % 2 == 1)?);
        }
        let of = |value: fn(&[f64; 2]) -> f64| median(turns.iter().map(value).collect());
        let (alone, taught, ratio) = (of(|turn| turn[0]), of(|turn| turn[1]), of(|turn| turn[0] / turn[1]));
        let row = format!("{name}, an epoch of {} steps with kept targets", batches.len());
        rows.add(&row, ("epoch", "ms"), taught, Some(("without KD", alone, ratio)));
        rows.add(&row, ("share of one without KD", "ratio"), of(|turn| turn[1] / turn[0]), None);
        let finite = self.alone.loss_sum()?.is_finite() && self.taught.loss_sum()?.is_finite();
        if finite { Ok(()) } else { Err("a loss is not a number".into()) }
    }
}
