//! Fits a training on graphs into the memory limits before its first epoch: how many graphs a batch has and how many of them go through the model at
//! a time, from measured steps.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tch::Device;

use super::StageError;
use super::epochs::{Epochs, Graphs};
use super::measured::{Measured, Queues};
use super::training;
use crate::config::{Config, Residency};
use crate::graph::padding::SizeClass;
use crate::memory::budget::{
    BATCH_DATA, Component, LOADER_QUEUE, MemoryBudget, Moment, Shape, TARGETS, WholeBatches, WorstBatches, gibibytes,
};
use crate::memory::limits::{Limit, gpu_limit, host_limit};
use crate::memory::{self, Meter};
use crate::torch::allocator::{self, Phase};
use crate::torch::device;
use crate::train::console::Console;
use crate::train::fit::{BatchPlan, FitError, FitOptions};
use crate::train::panel::MemoryPlan;
use crate::train::run_directory::RunDirectory;

/// The file with a run's memory budget, by component.
const BUDGET: &str = "memory_budget.json";
/// Largest share of the available host memory to plan for: other programs may need more memory later.
const SHARE_OF_AVAILABLE: f64 = 0.9;
/// Graphs at a time below which steps are slow and batch norm has few samples, so another setting is better.
const FEW_GRAPHS: usize = 32;
/// Share by which the activations of a part of a batch may exceed the line through what was measured, where all else is known exactly.
const SPARE: f64 = 0.05;
/// Share by which complete batches may exceed the line through smaller ones.
const SPARE_OF_BATCHES: f64 = 0.01;
/// Epochs whose batches show the sizes that batches are padded to.
const FIRST_EPOCHS: u64 = 4;
/// Name of the component for targets that are cached in memory.
pub(super) const CACHED_TARGETS: &str = "cache of targets";

/// The content of [`BUDGET`]: the budget, and the limit that it must respect.
#[derive(Serialize)]
struct WrittenBudget<'a> {
    #[serde(flatten)]
    budget: &'a MemoryBudget,
    /// Limit for tensors on the training device, in bytes.
    limit_bytes: u64,
    limit_source: String,
    /// The part of the limit that was planned for, in bytes.
    planned_bytes: u64,
    /// The most that a batch can need, in bytes.
    expected_bytes: u64,
    /// Graphs, or nodes, that go through the model at a time.
    batch_graphs: usize,
}

/// The part of [`BUDGET`] that a resumed run reads.
#[derive(Deserialize)]
struct ReadBudget {
    expected_bytes: u64,
}

/// The sizes that a run decided when it started, saved in its `config.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decided {
    /// Graphs per batch.
    pub batch_graphs: usize,
    /// True if the backward pass recomputes activations (gradient checkpointing).
    pub recomputes: bool,
    /// True if steps are captured as CUDA graphs.
    pub captures_steps: bool,
}

/// Maximum number of prefetched batches: each worker of the loader has its share of `prefetch_batches`, at least one.
pub(super) fn waiting_batches(config: &Config, graphs_for_gpu: bool) -> usize {
    let workers = training::loader_workers(config, graphs_for_gpu);
    workers * (config.training.prefetch_batches / workers).max(1)
}

/// Batches announced to a teacher with this burst and prefetched at a time, of so many training and validation graphs. If the batch size is known, at
/// most those of an epoch; if it is still to be found, batches may become smaller and more numerous, so there is no such bound.
pub(super) fn queues(
    config: &Config,
    burst: usize,
    graphs: &Graphs,
    [training, validation]: [usize; 2],
    on_gpu: bool,
) -> Queues {
    let waiting = waiting_batches(config, on_gpu);
    if config.training.optimize_batch_size || graphs.budget.is_some() {
        return Queues { burst, waiting };
    }
    let batches = |count: usize| count.div_ceil(graphs.batch_graphs.max(1));
    let (training, validation) = (batches(training), batches(validation));
    let burst = burst.min(training.max(validation).max(1));
    Queues { burst, waiting: waiting.min(training.saturating_sub(burst).max(validation.saturating_sub(1))) }
}

/// Memory of a device to plan for, in bytes: the safety factor's share of the limit and, of host memory, not more than other programs leave.
pub(super) fn planned_bytes(config: &Config, device: Device, limit: &Limit) -> f64 {
    let target = config.memory.safety_factor * limit.bytes as f64;
    if device != Device::Cpu {
        return target;
    }
    let in_use = Meter::new(Device::Cpu).read().current_bytes;
    target.min(SHARE_OF_AVAILABLE * (memory::available_bytes() + in_use) as f64)
}

/// A memory limit, the part of it to plan for, and batches to fit into that.
pub(super) struct Room<'a> {
    pub limit: &'a Limit,
    /// Memory to plan for, in bytes.
    pub target: f64,
    pub worst: &'a WorstBatches,
    /// Plural of what batches consist of.
    pub unit: &'static str,
}

impl Room<'_> {
    /// Writes the budget of batches of which `at_once` go through the model at a time.
    pub(super) fn write(
        &self,
        budget: &MemoryBudget,
        at_once: usize,
        directory: &RunDirectory,
    ) -> Result<(), StageError> {
        let written = WrittenBudget {
            budget,
            limit_bytes: self.limit.bytes,
            limit_source: self.limit.source.to_string(),
            planned_bytes: self.target as u64,
            expected_bytes: budget.peak_bytes(self.worst.shape(at_once)) as u64,
            batch_graphs: at_once,
        };
        Ok(directory.write_json(BUDGET, &written)?)
    }

    pub(super) fn line(&self, budget: &MemoryBudget, batch: usize, at_once: usize) -> String {
        budget.line(self.unit, (batch, at_once), self.worst, self.limit, self.target)
    }

    pub(super) fn table(&self, budget: &MemoryBudget, at_once: usize) -> String {
        budget.table(self.unit, at_once, self.worst)
    }

    /// The flags that make batches of the same size elsewhere or later.
    pub(super) fn pinned(batch: usize) -> String {
        format!("to get the same batches elsewhere or later, use --optimize-batch-size false --batch-size {batch}")
    }
}

/// The inputs for sizing batches of graphs.
pub struct Sizing<'a> {
    pub config: &'a Config,
    /// True if a teacher computes targets.
    pub has_teacher: bool,
    /// True if the student can recompute activations in the backward pass.
    pub can_checkpoint: bool,
    pub directory: &'a RunDirectory,
    /// For a resumed run: the sizes that it decided when it started.
    pub decided: Option<Decided>,
    pub console: &'a mut Console,
}

/// A budget, and the number of graphs that it allows.
struct Settled {
    /// The budget. If the batch size is given, it includes complete batches.
    budget: MemoryBudget,
    /// Planned memory, in bytes.
    target: f64,
    /// Graphs that go through the model at a time; `None` if not even one fits.
    graphs: Option<usize>,
    /// The budget as measured.
    measured: MemoryBudget,
}

impl Sizing<'_> {
    /// Applies the memory limits and decides the number of graphs per batch, how many of them go through the model at a time at
    /// first, and whether the backward pass recomputes activations. Returns true if it does.
    ///
    /// # Errors
    /// If not even one graph fits; the message has a table of memory by component.
    pub fn settle(
        mut self,
        mut training: Measured,
        plan: &mut Epochs,
        options: &mut FitOptions,
    ) -> Result<bool, StageError> {
        let limit = limit_of(self.config, options.device)?;
        if let Some(decided) = self.decided {
            options.records_steps &= decided.captures_steps;
            plan.graphs.batch_graphs = decided.batch_graphs;
            training.student.set_checkpointing(decided.recomputes);
            show_written(self.directory, &limit, self.console);
            return Ok(decided.recomputes);
        }
        let cap = plan.graphs.batch_graphs.min(plan.graphs.training.len()).max(1);
        let worst = training.sizes.worst(&plan.graphs.training);
        let room = Room {
            limit: &limit,
            target: planned_bytes(self.config, options.device, &limit),
            worst: &worst,
            unit: "graphs",
        };

        let (mut settled, mut recomputes) = self.find(&mut training, plan, options.records_steps, &room, cap)?;
        let is_short = recomputes || settled.graphs.is_none_or(|graphs| graphs < cap);
        if options.records_steps && self.config.training.cuda_graphs.is_none() && is_short {
            // A CUDA graph holds the memory of a step; larger batches are worth more.
            options.records_steps = false;
            (settled, recomputes) = self.find(&mut training, plan, false, &room, cap)?;
            self.console.line("memory: steps are not captured as CUDA graphs, so that more graphs fit");
        }
        if recomputes {
            self.console.line(
                "memory: the backward pass recomputes activations (gradient checkpointing), so that more graphs fit",
            );
        }
        let smallest_bytes = settled.measured.peak_bytes(worst.shape(1));
        if smallest_bytes > limit.bytes as f64 {
            return Err(self.does_not_fit(Some(&settled.measured), &room, options.device));
        }
        if settled.budget.peak_bytes(worst.shape(1)) > limit.bytes as f64 {
            return Err(self.whole_batches_do_not_fit(&training, &settled, plan, &room));
        }
        let Settled { budget, target, graphs, .. } = settled;
        let (graphs, room) = (graphs.unwrap_or(1), Room { target, ..room });
        if self.config.training.optimize_batch_size {
            plan.graphs.batch_graphs = graphs;
            self.console.line(&room.line(&budget, graphs, graphs));
            self.console.line(&format!(
                "memory: the batch size was chosen for this machine's free memory; {}",
                Room::pinned(graphs)
            ));
        } else {
            if graphs < cap {
                options.micro_batch_graphs = Some(graphs);
                let line = format!("memory: batches of {cap} graphs go through the model {graphs} graphs at a time");
                self.console.line(&line);
            }
            self.console.line(&room.line(&budget, cap, graphs));
        }
        self.console.note(&room.table(&budget, graphs));
        room.write(&budget, graphs, self.directory)?;
        show_written(self.directory, &limit, self.console);
        Ok(recomputes)
    }

    /// Finds the number of graphs, at most `cap`, that go through the model at a time, and whether the backward pass recomputes activations,
    /// which the student is set to.
    fn find(
        &mut self,
        training: &mut Measured,
        plan: &Epochs,
        records_steps: bool,
        room: &Room,
        cap: usize,
    ) -> Result<(Settled, bool), StageError> {
        training.student.set_checkpointing(false);
        let settled = self.settled(training, plan, records_steps, room);
        let may_recompute = self.config.memory.gradient_checkpointing && self.can_checkpoint;
        let fits = settled.as_ref().is_ok_and(|settled| settled.graphs.is_some_and(|graphs| graphs >= cap));
        let is_scarce = settled.as_ref().err().is_none_or(|error| memory::is_out_of_memory(error));
        if fits || !may_recompute || !is_scarce {
            return self.expect_measured(settled, room, training.options.device).map(|settled| (settled, false));
        }
        // Recomputing activations costs time, so it is used only if it allows more graphs.
        training.student.set_checkpointing(true);
        let recomputing = self.settled(training, plan, records_steps, room);
        match (settled, recomputing) {
            (Ok(settled), Ok(recomputing)) if recomputing.graphs <= settled.graphs => {
                training.student.set_checkpointing(false);
                Ok((settled, false))
            }
            (_, recomputing) => {
                self.expect_measured(recomputing, room, training.options.device).map(|settled| (settled, true))
            }
        }
    }

    /// Turns running out of memory in a step of one graph into an error that names what to do.
    fn expect_measured(
        &self,
        settled: Result<Settled, StageError>,
        room: &Room,
        device: Device,
    ) -> Result<Settled, StageError> {
        settled.map_err(|error| match memory::is_out_of_memory(&error) {
            true => self.does_not_fit(None, room, device),
            false => error,
        })
    }

    /// Measures the budget, and computes the number of graphs that go through the model at a time under it, at most the configured batch size.
    fn settled(
        &self,
        training: &mut Measured,
        plan: &Epochs,
        records_steps: bool,
        room: &Room,
    ) -> Result<Settled, StageError> {
        let (graphs, on_gpu) = (&plan.graphs, training.options.device.is_cuda());
        let queues = queues(
            self.config,
            training.student.source().burst(),
            graphs,
            [&graphs.training, &graphs.validation].map(Vec::len),
            on_gpu,
        );
        let mut budget = training.budget(&graphs.training, graphs.batch_graphs, None, queues)?;
        if records_steps {
            budget.record_steps(queues.burst, padded_sizes(training, plan));
        }
        let cache = training.student.teacher().cache();
        if cache.as_ref().is_some_and(|cache| cache.filled_graphs > 0 && cache.filled_graphs < cache.used_graphs) {
            // Of batches that are cached in part, a visit copies the others, a whole burst at a time.
            let data = budget.components.iter().find(|component| component.name == BATCH_DATA);
            let copied =
                data.map(|data| Component { name: "batches cached in part", moment: Moment::Visit, ..data.clone() });
            budget.components.extend(copied);
        }
        // Targets that are cached already are among what is in use.
        let kept = Meter::new(Device::Cpu).read().phase_bytes(Phase::Cache);
        let to_come = training.student.teacher().memory_cache_bytes().saturating_sub(kept);
        if to_come > 0 && !on_gpu {
            budget.add(CACHED_TARGETS, Moment::Always, to_come as f64);
        }
        if let Some(cache) = cache.filter(|_| on_gpu && self.config.memory.graphs_on_device) {
            budget.add(CACHED_TARGETS, Moment::Always, cache.bytes as f64);
        }
        Ok(self.settled_with(training, budget, plan, room, queues.burst))
    }

    /// Computes the same from a budget of bursts of `burst` batches.
    fn settled_with(
        &self,
        training: &Measured,
        budget: MemoryBudget,
        plan: &Epochs,
        room: &Room,
        burst: usize,
    ) -> Settled {
        let graphs = &plan.graphs;
        let cap = graphs.batch_graphs.min(graphs.training.len()).max(1);
        let (worst, target) = (room.worst, room.target);
        if self.config.training.optimize_batch_size {
            let graphs = budget.largest_batch(worst, target, cap);
            return Settled { measured: budget.clone(), budget, target, graphs };
        }
        let (measured, whole) = (budget, whole_batches(training, plan, burst));
        // The size of complete batches is known almost exactly: the safety factor applies to the rest.
        let unsafe_share = 1.0 - self.config.memory.safety_factor;
        let with = |in_parts| {
            let mut budget = measured.with_whole_batches(&whole, in_parts);
            for Component { name, moment, bytes } in &mut budget.components {
                let spare = match *name {
                    BATCH_DATA | LOADER_QUEUE | TARGETS => SPARE_OF_BATCHES,
                    _ if *moment == Moment::Step => SPARE,
                    _ => 0.0,
                };
                *bytes = bytes.times(1.0 + spare);
            }
            let target = target + unsafe_share * budget.peak_bytes(Shape::default());
            let graphs = budget.largest_batch(worst, target, cap);
            Settled { budget, target, graphs, measured: measured.clone() }
        };
        let together = with(false);
        if together.graphs == Some(cap) { together } else { with(true) }
    }

    /// The error for complete batches that do not fit. A batch can go through the model in parts, but it is in memory as a whole, and so
    /// are the targets of all batches of a teacher visit; smaller parts do not help. `budget`: of one graph at a time.
    fn whole_batches_do_not_fit(
        &self,
        training: &Measured,
        settled: &Settled,
        plan: &Epochs,
        room: &Room,
    ) -> StageError {
        let (limit, on_gpu) = (room.limit, training.options.device.is_cuda());
        let graphs = &plan.graphs;
        let counts = [&graphs.training, &graphs.validation].map(Vec::len);
        let burst = queues(self.config, training.student.source().burst(), graphs, counts, on_gpu).burst;
        let bytes = settled.budget.peak_bytes(room.worst.shape(1));
        let targets = if self.has_teacher { format!(", {burst} of them with their targets,") } else { String::new() };
        let residency = self.config.distillation.residency();
        let remedy = match (self.smaller_burst(training, &settled.measured, plan, room, burst), residency) {
            (None, _) => String::new(),
            // A resident teacher has no burst to set.
            (Some(smaller), Residency::Resident) => format!(" or add --offload-teacher --teacher-burst {smaller}"),
            (Some(smaller), _) => format!(" or add --teacher-burst {smaller}"),
        };
        StageError::Memory(format!(
            "batches of {} graphs{targets} need {} however few graphs go through the model at a time, but the limit is {} ({}): \
             {} are missing; lower --batch-size{remedy}, or raise {}\n{}",
            plan.graphs.batch_graphs,
            gibibytes(bytes),
            gibibytes(limit.bytes as f64),
            limit.source,
            gibibytes(bytes - limit.bytes as f64),
            limit_flag(on_gpu),
            room.table(&settled.budget, 1).trim_end()
        ))
    }

    /// Finds a smaller burst that fits: the largest that leaves room for enough graphs at a time, else the smallest that fits at all.
    fn smaller_burst(
        &self,
        training: &Measured,
        measured: &MemoryBudget,
        plan: &Epochs,
        room: &Room,
        burst: usize,
    ) -> Option<usize> {
        if !self.has_teacher {
            return None;
        }
        let halves = std::iter::successors(Some(burst / 2), |burst| Some(burst / 2)).take_while(|burst| *burst > 0);
        let mut fitting = None;
        for smaller in halves {
            let settled = self.settled_with(training, measured.with_burst(burst, smaller), plan, room, smaller);
            if settled.graphs.is_some_and(|graphs| graphs >= FEW_GRAPHS.min(plan.graphs.batch_graphs)) {
                return Some(smaller);
            }
            if settled.budget.peak_bytes(room.worst.shape(1)) <= room.limit.bytes as f64 {
                fitting = Some(smaller);
            }
        }
        fitting
    }

    fn does_not_fit(&self, budget: Option<&MemoryBudget>, room: &Room, device: Device) -> StageError {
        let described = budget.map_or(String::new(), |budget| {
            let largest = budget.largest_component(room.worst.shape(1)).map_or("", |component| component.name);
            format!("; {largest} needs most:\n{}", room.table(budget, 1).trim_end())
        });
        StageError::Memory(format!(
            "not even one graph at a time fits into the memory of {} ({}); raise {}, or use a smaller model{described}",
            gibibytes(room.limit.bytes as f64),
            room.limit.source,
            limit_flag(device.is_cuda()),
        ))
    }
}

/// The memory limit of the training device. Sets the limit for host tensors, which the allocator enforces.
pub(super) fn limit_of(config: &Config, device: Device) -> Result<Limit, StageError> {
    let host = host_limit(config.memory.memory_limit.map(|size| size.0));
    allocator::set_limit(Some(host.bytes));
    device_limit(config, device)
}

/// The memory limit of the training device.
pub(super) fn device_limit(config: &Config, device: Device) -> Result<Limit, StageError> {
    let memory = &config.memory;
    if device == Device::Cpu {
        return Ok(host_limit(memory.memory_limit.map(|size| size.0)));
    }
    let used = device::device_memory(device).map_err(FitError::from)?;
    let free = Some(used.usable_bytes());
    Ok(gpu_limit(memory.gpu_memory_limit.map(|size| size.0), free))
}

/// The flag that raises the limit.
pub(super) fn limit_flag(on_gpu: bool) -> &'static str {
    if on_gpu { "--gpu-memory-limit" } else { "--memory-limit" }
}

/// Shows the budget that a run has written, which a resumed run reads again, in the panel.
fn show_written(directory: &RunDirectory, limit: &Limit, console: &mut Console) {
    let written = std::fs::read(directory.file(BUDGET)).ok();
    if let Some(read) = written.and_then(|text| serde_json::from_slice::<ReadBudget>(&text).ok()) {
        console.plan_memory(MemoryPlan { limit_bytes: limit.bytes, expected_bytes: read.expected_bytes });
    }
}

/// Number of sizes that batches are padded to, by their nodes and edges in the first epochs and in validation.
fn padded_sizes(training: &Measured, plan: &Epochs) -> usize {
    let class = |batch: &Vec<u64>| {
        let Shape { graphs, nodes, edges } = training.sizes.shape(batch);
        SizeClass { graphs: graphs as i64, nodes: nodes as i64, edges: edges as i64, successors: 0 }.rounded_up()
    };
    let batches = (0..FIRST_EPOCHS).flat_map(|epoch| plan.training(epoch)).chain(plan.validation());
    batches.map(|batch| class(&batch)).collect::<BTreeSet<_>>().len()
}

/// The batches of a burst for a given batch size: the largest burst of the first epoch, or a full burst of graphs of mean size,
/// whichever is larger.
fn whole_batches(training: &Measured, plan: &Epochs, burst: usize) -> WholeBatches {
    let (graphs, burst) = (&plan.graphs, burst.max(1));
    let sum = |batches: &[Vec<u64>]| training.sizes.shape(&batches.concat());
    let times = |shape: Shape, factor: f64| Shape {
        graphs: shape.graphs * factor,
        nodes: shape.nodes * factor,
        edges: shape.edges * factor,
    };
    let larger = |one: Shape, other: Shape| if other.nodes > one.nodes { other } else { one };
    let batches = plan.training(0);
    let bursts = batches.chunks(burst).map(sum).fold(Shape::default(), larger);
    let all = training.sizes.shape(&graphs.training);
    let share = (burst * graphs.batch_graphs) as f64 / graphs.training.len().max(1) as f64;
    // A curriculum's first epoch is its smallest. With a node limit, batches are smaller than this estimate.
    let share = if graphs.budget.is_some() { 0.0 } else { share.min(1.0) };
    let mean = times(larger(bursts, times(all, share)), 1.0 / burst as f64);
    let validation = graphs.validation_batches();
    let each = batches.iter().chain(&validation).map(|batch| training.sizes.shape(batch));
    WholeBatches { burst, mean, largest: each.fold(mean, larger) }
}
