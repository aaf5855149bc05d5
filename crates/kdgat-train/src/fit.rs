//! The epoch loop.
//!
//! ```text
//! for each epoch
//!     for each burst of batches                      (prefetched by the loader's threads; of several processes, each has its share)
//!         announce the burst                         (the teacher's visit, or its cache)
//!         for each batch
//!             seed by (run, epoch, step)
//!             loss, backward                         (the student's activations exist only here)
//!             add up the gradients of all processes  (if there are several)
//!             clip, Adam, zero the gradients         (on one flat tensor; of several processes, each updates its share)
//!     validate in evaluation mode                    (the average of the weights, if one is kept)
//!     write metrics.csv, last/, and best.safetensors if the epoch is the best so far
//!     early stopping, learning rate schedule
//! ```
//!
//! No step waits for the device: losses are summed there and read every `log_every_n_steps` steps. On a GPU a step returns
//! once its work is queued, so a logged step is timed between two synchronisations. The last step of an epoch is always
//! logged: the wall clock of the epoch ends with its synchronisation.

use std::time::Instant;

use tch::{Kind, Tensor};

pub use super::batch_plan::BatchPlan;
use super::burst::Burst;
use super::checkpoint::CheckpointError;
use super::console::{Console, LoopFacts, Pulse};
pub use super::error::FitError;
use super::last_state;
use super::logs::number;
use super::loss_scale::LossScale;
use super::metrics::{EpochMetrics, metrics_row};
use super::objective::Objective;
use super::optimizer::Adam;
pub use super::options::FitOptions;
use super::run_directory::RunDirectory;
use super::run_logs::RunLogs;
use super::state::Position;
use super::step::{StepBatch, StepOptions, StepRunner};
pub use super::summary::{Ending, FitSummary};
use super::threads::own_threads;
use super::timeline::{TIMELINE, Timeline};
use super::together::{Together, share_of};
use super::trainable::Trainable;
use super::validation;
use crate::interrupt;
use crate::memory::{self, Activity, Meter, MicroBatch, Sampler, retry_on_oom};
use kdgat_base::random::{self, Purpose};
use kdgat_graph::Loader;
use kdgat_graph::loader::EpochBatches;
use kdgat_torch::device::{self, Uploader};

/// File of the state that a resumed run needs.
pub const LAST: &str = "last/state.safetensors";
/// File of the model of the best epoch.
pub const BEST: &str = "best.safetensors";

/// File of the losses by epoch.
pub const METRICS: &str = "metrics.csv";
/// File of the memory over time.
pub const MEMORY: &str = "memory.csv";

/// Callback that writes the model; called when an epoch is the best so far.
pub type SaveBest<'a> = dyn FnMut(&Trainable, &Position) -> Result<(), CheckpointError> + 'a;

/// Everything the loop works on.
pub struct Fit<'a> {
    /// The objective, which computes the losses.
    pub objective: &'a mut dyn Objective,
    /// The trained tensors.
    pub trainable: &'a mut Trainable,
    /// Loader of training batches.
    pub training_loader: &'a Loader,
    /// Loader of validation batches.
    pub validation_loader: &'a Loader,
    /// Plan of the batches.
    pub plan: &'a mut dyn BatchPlan,
    /// The run's folder.
    pub run: &'a RunDirectory,
    /// Progress display.
    pub console: &'a mut Console,
    /// Callback that writes the best model.
    pub save_best: &'a mut SaveBest<'a>,
}

/// Trains until all epochs are done, early stopping ends the run, or a stop is requested.
pub fn fit(mut fit: Fit, options: &FitOptions, resume: bool) -> Result<FitSummary, FitError> {
    // Dropped on every way out, which writes the last row.
    let _sampler = Sampler::start(&fit.run.file(MEMORY), options.device, options.memory_sample_interval)?;
    let mut loop_state = LoopState::start(&mut fit, options, resume)?;
    let _threads = options
        .uses_own_threads
        .then(|| own_threads(fit.trainable, options.adam.kernel, options.device, options.precision));
    let metrics = &fit.run.file(METRICS);
    fit.console.begin(&LoopFacts { device: options.device, patience: options.patience, metrics });
    let ending = loop {
        if loop_state.position.epoch >= options.max_epochs {
            break Ending::MaxEpochs;
        }
        if loop_state.position.progress.epochs_since_best >= options.patience.max(1) {
            break Ending::EarlyStopping;
        }
        if !loop_state.epoch(&mut fit, options)? {
            break Ending::Interrupted;
        }
    };
    memory::set_activity(Activity::Setup);
    Ok(loop_state.summary(ending))
}

/// State that changes while the loop runs.
struct LoopState {
    position: Position,
    optimizer: Adam,
    runner: StepRunner,
    /// `None` if this process trains alone.
    together: Option<Together>,
    meter: Meter,
    uploader: Uploader,
    /// `[1 + parts]`, f64, on the device: sums of the total loss and its parts over this epoch's graphs. Of several processes, each has
    /// its contribution.
    sums: Tensor,
    logs: RunLogs,
    /// `None` without a teacher.
    timeline: Option<Timeline>,
    last: Option<EpochMetrics>,
    best: Option<EpochMetrics>,
    peak_memory_bytes: u64,
    clock: Clock,
    epoch_clock: EpochClock,
}

/// Amounts of data in a batch.
#[derive(Clone, Copy)]
struct Amounts {
    graphs: usize,
    nodes: i64,
    edges: i64,
}

/// Seconds of this thread by activity. On a GPU those of steps and optimiser only include queueing the work.
#[derive(Default)]
struct Clock {
    data_wait: f64,
    teacher_wait: f64,
    optimizer: f64,
    steps: f64,
    /// Wall-clock seconds of training in all epochs, waiting included.
    wall: f64,
}

/// Wall clock of an epoch's training, part of which may have run before the run was resumed.
struct EpochClock {
    start: Instant,
    seconds_before: f64,
}

impl EpochClock {
    fn start(seconds_before: f64) -> Self {
        Self { start: Instant::now(), seconds_before }
    }

    fn seconds(&self) -> f64 {
        self.seconds_before + self.start.elapsed().as_secs_f64()
    }
}

impl LoopState {
    fn start(fit: &mut Fit, options: &FitOptions, resume: bool) -> Result<Self, FitError> {
        let parts = fit.objective.parts();
        let meter = Meter::new(options.device);
        let uploader = Uploader::new(options.device)?;
        let mut optimizer = retry_on_oom(meter, || Adam::new(fit.trainable, options.adam))?;
        let mut runner = retry_on_oom(meter, || StepRunner::new(fit.trainable, options.device, options.precision))?;
        let zeros = || Ok::<_, FitError>(Tensor::f_zeros([1 + parts.len() as i64], (Kind::Double, options.device))?);
        let mut sums = retry_on_oom(meter, zeros)?;
        let loss_scale = LossScale::of(options.precision);
        let micro_batch = options.micro_batch_graphs.map_or_else(MicroBatch::default, MicroBatch::at_most);
        let mut position =
            Position { identity: options.identity.clone(), loss_scale, micro_batch, ..Position::default() };
        if resume && fit.run.file(LAST).exists() {
            position = retry_on_oom(meter, || last_state::restore(fit, options, &mut optimizer, &mut sums))?;
        }
        let together = options
            .processes
            .as_ref()
            .map(|processes| Together::new(processes, fit.trainable, fit.objective.exchanges_rows()));
        if let Some(together) = &together {
            together.share_tensors(fit.trainable)?;
            if !together.processes().is_first() {
                let _ = sums.f_zero_()?;
            }
        }
        runner.begin_with(position.micro_batch.clone());
        let (epoch, step) = (position.epoch, position.step);
        let logs = RunLogs::start(fit.run, &*fit.objective, fit.plan.columns(), (epoch, step), options)?;
        // In a resumed run, the rows after its position are already dropped.
        let logged = |epoch| EpochMetrics::logged(&fit.run.file(METRICS), fit.objective.parts(), epoch);
        let last = epoch.checked_sub(1).and_then(logged);
        let best = position.progress.best_loss.and_then(|_| logged(position.progress.best_epoch));
        let has_teacher = !fit.objective.source().step_columns().is_empty();
        let timeline = has_teacher.then(|| Timeline::start(&fit.run.file(TIMELINE), epoch)).transpose()?;
        Ok(Self {
            position,
            optimizer,
            runner,
            together,
            meter,
            uploader,
            sums,
            logs,
            timeline,
            last,
            best,
            peak_memory_bytes: 0,
            clock: Clock::default(),
            epoch_clock: EpochClock::start(0.0),
        })
    }

    /// Trains one epoch. Returns false if a stop was requested; the state up to that step is then saved.
    fn epoch(&mut self, fit: &mut Fit, options: &FitOptions) -> Result<bool, FitError> {
        let epoch = self.position.epoch;
        let lr = options.lr * options.schedule.factor(epoch, &self.position.progress);
        fit.plan.prepare(epoch).map_err(FitError::Objective)?;
        if let Some(timeline) = &self.timeline {
            timeline.start_epoch(fit.objective, epoch);
        }
        let batches = fit.plan.training(epoch);
        let total_steps = batches.len() as u64;
        memory::reset_peak(options.device);
        memory::set_epoch(epoch);
        memory::set_activity(Activity::Training);
        fit.console.start_epoch(epoch, options.max_epochs, total_steps, self.position.step);
        fit.objective.start_epoch(epoch);
        fit.objective.source_mut().start_epoch(epoch, options.max_epochs);
        self.epoch_clock = EpochClock::start(self.position.epoch_seconds);

        let rest: Vec<Vec<u64>> = batches.into_iter().skip(self.position.step as usize).collect();
        let rest = self.own_shares(rest);
        let is_idle: Vec<bool> = rest.iter().map(|share| share.is_empty() && self.together.is_some()).collect();
        let shares = rest.into_iter().zip(&is_idle).filter(|(_, is_idle)| !**is_idle).map(|(share, _)| share);
        let mut loaded = fit.training_loader.epoch(shares.collect(), epoch);
        let (mut burst, mut used) = (None, 0);
        for is_idle in is_idle {
            if !is_idle && burst.as_ref().is_none_or(|burst: &Burst| used >= burst.batches.len()) {
                // Frees the batches of the last burst first.
                drop(burst.take());
                (burst, used) = (self.read_burst(&mut loaded, fit, options)?, 0);
            }
            let batch = match &burst {
                Some(burst) if !is_idle => burst.step(used),
                _ => None,
            };
            if batch.is_none() && !is_idle {
                return Err(FitError::Objective("the loader ended before the epoch".into()));
            }
            used += usize::from(batch.is_some());
            self.step(fit, options, batch, lr, total_steps)?;
            // Accumulated gradients are not saved: the stop waits for their optimiser step.
            if self.is_to_stop() && self.has_stepped(options, total_steps) {
                self.clock.wall += self.epoch_clock.start.elapsed().as_secs_f64();
                self.save(fit)?;
                return Ok(false);
            }
        }
        drop((burst, loaded));
        self.position.epoch_seconds = self.epoch_clock.seconds();
        self.clock.wall += self.epoch_clock.start.elapsed().as_secs_f64();
        self.finish_epoch(fit, options, lr, total_steps)?;
        Ok(true)
    }

    /// This process's share of each batch: all of it if it trains alone.
    fn own_shares(&self, batches: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
        let Some(together) = &self.together else { return batches };
        let (rank, size) = (together.processes().rank(), together.processes().size());
        batches.into_iter().map(|batch| share_of(&batch, rank, size).to_vec()).collect()
    }

    /// True if a stop was requested, in any process.
    fn is_to_stop(&self) -> bool {
        self.together.as_ref().map_or_else(interrupt::requested, |together| together.stops)
    }

    /// Reads the next batches and announces them to the objective; `None` at the end of the epoch.
    fn read_burst(
        &mut self,
        loaded: &mut EpochBatches,
        fit: &mut Fit,
        options: &FitOptions,
    ) -> Result<Option<Burst>, FitError> {
        let start = Instant::now();
        let fills_up = options.records_steps && self.runner.can_record();
        let burst = Burst::read(loaded, fit.objective.source().burst().max(1), &mut self.uploader, fills_up)?;
        self.clock.data_wait += start.elapsed().as_secs_f64();
        if burst.batches.is_empty() {
            return Ok(None);
        }
        fit.objective.source_mut().announce(&burst.batches).map_err(FitError::Objective)?;
        Ok(Some(burst))
    }

    fn step(
        &mut self,
        fit: &mut Fit,
        options: &FitOptions,
        step_batch: Option<StepBatch>,
        lr: f64,
        total_steps: u64,
    ) -> Result<(), FitError> {
        let next = self.position.step + 1;
        let is_logged = next.is_multiple_of(options.log_every_n_steps) || next == total_steps;
        if is_logged {
            device::synchronize(options.device)?;
        }
        let asked = Instant::now();
        if let Some(StepBatch { batch, .. }) = step_batch {
            fit.objective.receive(batch).map_err(FitError::Objective)?;
        }
        let start = Instant::now();
        self.clock.teacher_wait += (start - asked).as_secs_f64();
        let (epoch, step) = (self.position.epoch, self.position.step);
        let share = share_of_step(step, total_steps, options.accumulate_grad_batches);
        let step_options = StepOptions {
            seed: random::bits(options.seed, Purpose::Step, epoch, step) as i64,
            scale: share * self.position.loss_scale.factor(),
            accumulates: !step.is_multiple_of(options.accumulate_grad_batches),
        };
        let (losses, amounts) = self.gradients(fit, step_batch, step_options)?;
        self.sums = retry_on_oom(self.meter, || validation::add(&self.sums, &losses, amounts.graphs as f64))?;

        let mut norm = None;
        let computed = Instant::now();
        self.position.step += 1;
        self.position.total_steps += 1;
        if self.has_stepped(options, total_steps) {
            let optimizer_start = Instant::now();
            norm = self.optimizer_step(fit, lr)?;
            self.clock.optimizer += optimizer_start.elapsed().as_secs_f64();
        }
        self.position.epoch_graphs += amounts.graphs as u64;
        if let Some(timeline) = &mut self.timeline {
            timeline.note_step(fit.objective, (epoch, step), [asked, start, computed])?;
        }
        if is_logged {
            device::synchronize(options.device)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        self.position.epoch_seconds = self.epoch_clock.seconds();
        self.clock.steps += seconds;
        fit.console.advance(|| self.pulse());
        if is_logged {
            self.log_step(fit, amounts, (lr, norm, seconds))?;
        }
        if options.clear_cache_every_n > 0
            && self.position.total_steps.is_multiple_of(options.clear_cache_every_n)
            && options.device.is_cuda()
        {
            self.meter.release_kept();
        }
        Ok(())
    }

    /// Adds the gradients of a batch, of which this process has all or a share. Returns its losses, or this process's contribution to them,
    /// and the amounts of the whole batch.
    fn gradients(
        &mut self,
        fit: &mut Fit,
        batch: Option<StepBatch>,
        step_options: StepOptions,
    ) -> Result<(Tensor, Amounts), FitError> {
        let Fit { objective, trainable, console, .. } = fit;
        if let Some(together) = &mut self.together {
            let batch = batch.map(|step| step.batch);
            let mut step = together.start(*objective, batch, self.runner.wanted_parts(batch))?;
            let losses = self.runner.gradients_together(
                *objective,
                trainable,
                batch,
                (&*together, &mut step),
                step_options,
                console,
            )?;
            let amounts = Amounts { graphs: step.graphs, nodes: step.nodes, edges: step.edges };
            return Ok((losses, amounts));
        }
        let step_batch = batch.ok_or_else(|| FitError::Objective("the loader ended before the epoch".into()))?;
        let StepBatch { batch, .. } = step_batch;
        let amounts =
            Amounts { graphs: batch.num_graphs(), nodes: batch.num_nodes(), edges: batch.adjacency.num_edges() };
        Ok((self.runner.gradients(*objective, trainable, step_batch, step_options, console)?, amounts))
    }

    /// The sums over this epoch's graphs so far, of all processes.
    fn whole_sums(&self) -> Result<Tensor, FitError> {
        match &self.together {
            Some(together) => together.total(&self.sums),
            None => Ok(self.sums.shallow_clone()),
        }
    }

    /// True if the last batch completed an optimiser step (gradient accumulation).
    fn has_stepped(&self, options: &FitOptions, total_steps: u64) -> bool {
        self.position.step.is_multiple_of(options.accumulate_grad_batches) || self.position.step == total_steps
    }

    /// Makes one update; `None` if gradients overflowed in half precision and were discarded.
    fn optimizer_step(&mut self, fit: &mut Fit, lr: f64) -> Result<Option<Tensor>, FitError> {
        if let Some(together) = &self.together {
            together.add_up_gradients(fit.trainable)?;
        }
        if let LossScale::Half { .. } = self.position.loss_scale {
            let factor = self.position.loss_scale.factor();
            let _ = fit.trainable.gradients.f_div_scalar_(factor)?;
            let finite = fit.trainable.gradients.f_norm()?.f_double_value(&[])?.is_finite();
            self.position.loss_scale.note(finite);
            if !finite {
                let _ = fit.trainable.gradients.f_zero_()?;
                return Ok(None);
            }
        }
        let norm = retry_on_oom(self.meter, || self.optimizer.step(fit.trainable, lr))?;
        if let Some(together) = &self.together {
            self.optimizer.gather(fit.trainable, together.processes())?;
        }
        Ok(Some(norm))
    }

    /// Progress of a step for the panel.
    fn pulse(&self) -> Pulse {
        Pulse {
            step: self.position.step,
            graphs_per_second: self.position.epoch_graphs as f64 / self.position.epoch_seconds.max(1e-9),
            steps_seconds: self.clock.steps,
            optimizer_seconds: self.clock.optimizer,
            data_wait_seconds: self.clock.data_wait,
            teacher_wait_seconds: self.clock.teacher_wait,
        }
    }

    /// Reads the running mean (which waits for the device), shows it and writes a row of `steps.csv`.
    fn log_step(
        &mut self,
        fit: &mut Fit,
        amounts: Amounts,
        (lr, norm, seconds): (f64, Option<Tensor>, f64),
    ) -> Result<(), FitError> {
        let mean = self.whole_sums()?.f_double_value(&[0])? / self.position.epoch_graphs as f64;
        if !mean.is_finite() {
            return Err(self.not_finite(fit, format!("the training loss is {mean}")));
        }
        let norm = norm.map_or(Ok(f64::NAN), |norm| norm.f_double_value(&[]))?;
        let mut row = vec![
            self.position.epoch.to_string(),
            (self.position.step - 1).to_string(),
            number(mean),
            number(lr),
            number(norm),
            amounts.graphs.to_string(),
            amounts.nodes.to_string(),
            amounts.edges.to_string(),
            format!("{:.3}", seconds * 1e3),
        ];
        row.extend(fit.objective.source_mut().step_values());
        self.logs.step(&row, self.position.total_steps - 1)?;
        let columns = fit.objective.source().step_columns();
        fit.console.step(
            self.position.step,
            mean,
            self.meter.read(),
            &fit.objective.source().status(),
            (columns, &row),
        );
        Ok(())
    }

    fn finish_epoch(&mut self, fit: &mut Fit, options: &FitOptions, lr: f64, steps: u64) -> Result<(), FitError> {
        self.exchange_average(fit)?;
        let validation =
            validation::losses(fit, options, (&mut self.runner, self.together.as_ref()), &mut self.uploader)?;
        let graphs = self.position.epoch_graphs.max(1) as f64;
        let training: Vec<f64> = Vec::<f64>::try_from(self.whole_sums()?)?.iter().map(|sum| sum / graphs).collect();
        let names = fit.objective.parts();
        let peak = memory::peak_bytes(options.device);
        let metrics = EpochMetrics {
            epoch: self.position.epoch,
            train_loss: training[0],
            val_loss: validation[0],
            parts: names.iter().zip(&training[1..]).zip(&validation[1..]).map(|((&n, &t), &v)| (n, t, v)).collect(),
            lr,
            graphs_per_second: graphs / self.position.epoch_seconds.max(1e-9),
            peak_memory_bytes: peak,
            seconds: self.position.epoch_seconds,
            steps,
        };
        self.peak_memory_bytes = self.peak_memory_bytes.max(peak);
        let mut row = metrics_row(&metrics);
        row.extend(fit.plan.values(metrics.epoch));
        self.logs.epoch(&row, metrics.epoch)?;
        let score = options.monitor.score(&metrics);
        let progress = &mut self.position.progress;
        let improved = progress.record_score(metrics.epoch, metrics.val_loss, score, options.schedule);
        if improved {
            if self.writes() {
                retry_on_oom(self.meter, || Ok::<_, FitError>((fit.save_best)(fit.trainable, &self.position)?))?;
            }
            self.best = Some(metrics.clone());
        }
        self.exchange_average(fit)?;
        fit.console.finish_epoch(&metrics, options.max_epochs, improved, &fit.objective.source().status());
        self.last = Some(metrics);
        self.position.epoch += 1;
        (self.position.step, self.position.epoch_graphs, self.position.epoch_seconds) = (0, 0, 0.0);
        retry_on_oom(self.meter, || {
            let _ = self.sums.f_zero_()?;
            Ok::<_, FitError>(())
        })?;
        self.save(fit)?;
        // Between two epochs only weights are in use, so what the GPU cached for all sizes so far is released. The host's
        // allocator never caches more than one step needs, and allocating that again would slow the first steps of the next
        // epoch.
        if options.device.is_cuda() {
            self.meter.release_kept();
        }
        Ok(())
    }

    /// Puts the average of the weights in their place, or back.
    fn exchange_average(&mut self, fit: &mut Fit) -> Result<(), FitError> {
        self.optimizer.exchange_average(fit.trainable, self.together.as_ref().map(Together::processes))
    }

    /// Writes `last/` once the logs are on the disk: a single file, so that its parts are consistent. Refuses to overwrite
    /// a good state with one from which no step recovers (NaN or infinite tensors).
    fn save(&self, fit: &Fit) -> Result<(), FitError> {
        memory::set_activity(Activity::Checkpoint);
        if let Some(name) = retry_on_oom(self.meter, || fit.trainable.not_finite())? {
            return Err(self.not_finite(fit, format!("tensor {name} of the model is not finite")));
        }
        let sums = self.whole_sums()?;
        let optimizer = match &self.together {
            Some(together) => self.optimizer.collect(together.processes())?,
            None => Some(retry_on_oom(self.meter, || self.optimizer.state())?),
        };
        let Some(optimizer) = optimizer.filter(|_| self.writes()) else { return Ok(()) };
        // The state counts these rows, so it must not reach the disk before them.
        self.logs.sync()?;
        let position = Position { micro_batch: self.runner.micro_batch().clone(), ..self.position.clone() };
        retry_on_oom(self.meter, || last_state::write(fit, &optimizer, &sums, &position))
    }

    /// True if this process writes the run's checkpoints.
    fn writes(&self) -> bool {
        self.together.as_ref().is_none_or(|together| together.processes().is_first())
    }

    /// Error for a loss or tensor that is not finite, with the position in the run.
    fn not_finite(&self, fit: &Fit, what: String) -> FitError {
        let path = fit.run.file(LAST);
        let state = match path.exists() {
            true => format!("the last good state is in {}", path.display()),
            false => "no epoch was finished, so there is nothing to resume".to_owned(),
        };
        let (epoch, step) = (self.position.epoch + 1, self.position.step);
        FitError::NotFinite { what, epoch, step, state }
    }

    fn summary(self, ending: Ending) -> FitSummary {
        let Clock { data_wait, teacher_wait, optimizer, wall, .. } = self.clock;
        let share = |seconds: f64| seconds / wall.max(1e-9);
        FitSummary {
            ending,
            position: self.position,
            last: self.last,
            best: self.best,
            peak_memory_bytes: self.peak_memory_bytes,
            recoveries: self.runner.recoveries,
            data_wait_share: share(data_wait),
            teacher_wait_share: share(teacher_wait),
            optimizer_share: share(optimizer),
            optimizer_bytes: self.optimizer.bytes(),
        }
    }
}

/// Share of a batch in the optimiser step that it belongs to. The last one of an epoch may have fewer batches.
pub fn share_of_step(step: u64, total_steps: u64, accumulate: u64) -> f64 {
    let first = step / accumulate * accumulate;
    1.0 / accumulate.min(total_steps - first) as f64
}
