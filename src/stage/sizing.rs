//! Decides the batch size within the memory limits, before the first epoch.

use serde::Serialize;
use tch::Device;

use super::StageError;
use super::epochs::{Epochs, Graphs};
use super::graph_peak::{self, Question};
use super::setup::Data;
use super::teacher;
use super::training;
use crate::config::{Config, MemoryEstimation, Residency};
use crate::distill::objective::Student;
use crate::graph::Loader;
use crate::memory::budget::{MemoryBudget, Method, Moment, Shape, WholeBatches, WorstBatches, gibibytes};
use crate::memory::limits::{Limit, gpu_limit, host_limit};
use crate::memory::probe::Probe;
use crate::memory::{self, Meter};
use crate::memory_plan::estimate::{Circumstances, ComparedLayers, estimate};
use crate::nn::Architecture;
use crate::torch::allocator::{self, Phase};
use crate::torch::device;
use crate::train::console::Console;
use crate::train::fit::{BatchPlan, FitError, FitOptions};
use crate::train::panel::MemoryPlan;
use crate::train::run_directory::RunDirectory;
use crate::train::trainable::Trainable;

/// The file with a run's memory budget, by component.
pub(super) const BUDGET: &str = "memory_budget.json";
/// Largest share of the available host memory to plan for: other programs may need more memory later.
const SHARE_OF_AVAILABLE: f64 = 0.9;
/// Graphs at a time below which steps are slow and batch norm has few samples, so another setting is better.
const FEW_GRAPHS: usize = 32;

/// The content of [`BUDGET`]: the budget, and the limit that it must respect.
#[derive(Serialize)]
pub(super) struct WrittenBudget<'a> {
    #[serde(flatten)]
    pub budget: &'a MemoryBudget,
    /// Limit for tensors on the training device, in bytes.
    pub limit_bytes: u64,
    pub limit_source: String,
    /// The part of the limit that was planned for, in bytes.
    pub planned_bytes: u64,
    /// Graphs that go through the model at a time.
    pub batch_graphs: usize,
}

/// The inputs for sizing batches.
pub struct Sizing<'a> {
    pub config: &'a Config,
    pub data: &'a Data,
    pub architecture: &'a Architecture,
    /// The architectures of the teacher's networks; none without a teacher.
    pub teachers: &'a [Architecture],
    pub directory: &'a RunDirectory,
    /// For a resumed run: the sizes that it decided when it started.
    pub decided: Option<Decided>,
    pub loader: &'a Loader,
    pub console: &'a mut Console,
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

/// Memory of a device to plan for, in bytes: the safety factor's share of the limit and, of host memory, not more than other programs leave.
pub(super) fn planned_bytes(config: &Config, device: Device, limit: &Limit) -> f64 {
    let target = config.memory.safety_factor * limit.bytes as f64;
    if device != Device::Cpu {
        return target;
    }
    let in_use = Meter::new(Device::Cpu).read().current_bytes;
    target.min(SHARE_OF_AVAILABLE * (memory::available_bytes() + in_use) as f64)
}

/// A budget, and the number of graphs that it allows.
struct Settled {
    /// The budget. If the batch size is given, it includes complete batches.
    budget: MemoryBudget,
    /// Planned memory, in bytes.
    target: f64,
    /// Graphs that go through the model at a time; `None` if not even one fits.
    graphs: Option<usize>,
    /// Peak memory with one graph per batch, in bytes.
    smallest_bytes: f64,
}

impl Sizing<'_> {
    /// Applies the memory limits and decides the number of graphs per batch, how many of them go through the model at a time at
    /// first, and whether the backward pass recomputes activations. Returns true if it does.
    ///
    /// # Errors
    /// If not even one graph fits; the message has a table of memory by component.
    pub fn settle(
        mut self,
        student: &mut impl Student,
        trainable: &mut Trainable,
        plan: &mut Epochs,
        options: &mut FitOptions,
    ) -> Result<bool, StageError> {
        let limit = self.limit()?;
        if let Some(decided) = self.decided {
            options.records_steps &= decided.captures_steps;
            self.go_on(decided, &limit, student, plan, options)?;
            return Ok(decided.recomputes);
        }
        let cap = plan.graphs.batch_graphs.min(plan.graphs.training.len()).max(1);
        let finds_size = self.config.training.optimize_batch_size;
        let worst = self.worst(&plan.graphs.training);

        let (mut settled, mut recomputes) = self.find(student, trainable, plan, options, (&limit, &worst), cap)?;
        let is_short = recomputes || settled.graphs.is_none_or(|graphs| graphs < cap);
        if options.records_steps && self.config.training.cuda_graphs.is_none() && is_short {
            // A CUDA graph holds the memory of a step; larger batches are worth more.
            options.records_steps = false;
            (settled, recomputes) = self.find(student, trainable, plan, options, (&limit, &worst), cap)?;
            self.console.line("memory: steps are not captured as CUDA graphs, so that more graphs fit");
        }
        if recomputes {
            self.console.line(
                "memory: the backward pass recomputes activations (gradient checkpointing), so that more graphs fit",
            );
        }
        if settled.smallest_bytes > limit.bytes as f64 {
            return Err(self.does_not_fit(&limit, &worst));
        }
        let Settled { budget, target, graphs, .. } = settled;
        if budget.peak_bytes(worst.shape(1)) > limit.bytes as f64 {
            return Err(self.whole_batches_do_not_fit(
                student,
                &budget,
                plan,
                (&limit, &worst),
                options,
                recomputes,
            )?);
        }
        let graphs = graphs.unwrap_or(1);
        if finds_size {
            plan.graphs.batch_graphs = graphs;
            self.console.line(&budget.line((graphs, graphs), &worst, &limit, target));
            self.console.line(&format!(
                "memory: the batch size was chosen for this machine's free memory; to get the same batches elsewhere or later, use \
                 --optimize-batch-size false --batch-size {graphs}"
            ));
        } else {
            if graphs < cap {
                options.micro_batch_graphs = Some(graphs);
                let line = format!("memory: batches of {cap} graphs go through the model {graphs} graphs at a time");
                self.console.line(&line);
            }
            self.console.line(&budget.line((cap, graphs), &worst, &limit, target));
        }
        self.console.note(&budget.table(graphs, &worst));
        let expected_bytes = budget.peak_bytes(worst.shape(graphs)) as u64;
        self.console.plan_memory(MemoryPlan { limit_bytes: limit.bytes, expected_bytes });
        let written = WrittenBudget {
            budget: &budget,
            limit_bytes: limit.bytes,
            limit_source: limit.source.to_string(),
            planned_bytes: target as u64,
            batch_graphs: graphs,
        };
        self.directory.write_json(BUDGET, &written)?;
        Ok(recomputes)
    }

    /// Finds the number of graphs, at most `cap`, that go through the model at a time, and whether the backward pass recomputes activations,
    /// which the student is set to.
    fn find(
        &mut self,
        student: &mut impl Student,
        trainable: &mut Trainable,
        plan: &Epochs,
        options: &FitOptions,
        (limit, worst): (&Limit, &WorstBatches),
        cap: usize,
    ) -> Result<(Settled, bool), StageError> {
        student.set_checkpointing(false);
        let measures = self.config.training.optimize_batch_size;
        let budget = self.budget(student, trainable, plan, options, measures, false)?;
        let settled = self.settled(budget, plan, limit, worst, self.burst(student, &plan.graphs));
        if !self.config.memory.gradient_checkpointing || settled.graphs.is_some_and(|graphs| graphs >= cap) {
            return Ok((settled, false));
        }
        // Recomputing activations costs time, so it is used only if it allows more graphs.
        student.set_checkpointing(true);
        // If measuring failed before, it would fail again, after the same wait.
        let measures = settled.budget.method == Method::Measured;
        let recomputing = self.budget(student, trainable, plan, options, measures, true)?;
        let recomputing = self.settled(recomputing, plan, limit, worst, self.burst(student, &plan.graphs));
        if recomputing.graphs > settled.graphs {
            return Ok((recomputing, true));
        }
        student.set_checkpointing(false);
        Ok((settled, false))
    }

    /// Applies the sizes of a resumed run: only the same batches, split in the same places, continue the same losses. If they no longer
    /// fit, the steps handle it as they do when memory becomes scarce during training.
    fn go_on(
        &mut self,
        decided: Decided,
        limit: &Limit,
        student: &mut impl Student,
        plan: &mut Epochs,
        options: &FitOptions,
    ) -> Result<(), StageError> {
        plan.graphs.batch_graphs = decided.batch_graphs;
        student.set_checkpointing(decided.recomputes);
        let graphs = &plan.graphs;
        let batch_graphs = graphs.batch_graphs.min(graphs.training.len()).max(1);
        let burst = self.burst(student, graphs);
        let budget = self.closed_form(student, plan, options, decided.recomputes, burst)?;
        let expected_bytes = budget.peak_bytes(self.worst(&graphs.training).shape(batch_graphs)) as u64;
        self.console.plan_memory(MemoryPlan { limit_bytes: limit.bytes, expected_bytes });
        Ok(())
    }

    /// Computes the number of graphs that go through the model at a time under this budget, at most the configured batch size.
    fn settled(
        &self,
        budget: MemoryBudget,
        plan: &Epochs,
        limit: &Limit,
        worst: &WorstBatches,
        burst: usize,
    ) -> Settled {
        let graphs = &plan.graphs;
        let cap = graphs.batch_graphs.min(graphs.training.len()).max(1);
        let smallest_bytes = budget.peak_bytes(worst.shape(1));
        let target = self.target_bytes(limit);
        if self.config.training.optimize_batch_size {
            let graphs = budget.largest_batch(worst, target, cap);
            return Settled { budget, target, graphs, smallest_bytes };
        }
        let whole = self.whole_batches(plan, burst);
        // The size of complete batches is known exactly: the safety factor applies to the rest.
        let unsafe_share = 1.0 - self.config.memory.safety_factor;
        let with = |in_parts| {
            let budget = budget.with_whole_batches(&whole, in_parts);
            let target = target + unsafe_share * budget.peak_bytes(Shape::default());
            let graphs = budget.largest_batch(worst, target, cap);
            Settled { budget, target, graphs, smallest_bytes }
        };
        let together = with(false);
        if together.graphs == Some(cap) { together } else { with(true) }
    }

    /// The batches of a burst for a given batch size: the largest burst of the first epoch, or a full burst of graphs of mean size,
    /// whichever is larger.
    fn whole_batches(&self, plan: &Epochs, burst: usize) -> WholeBatches {
        let (graphs, burst) = (&plan.graphs, burst.max(1));
        let sum = |batches: &[Vec<u64>]| {
            let sizes = batches.iter().flatten().map(|&graph| self.size_of(graph));
            sizes.fold(Shape::default(), |sum, (nodes, edges)| Shape {
                graphs: sum.graphs + 1.0,
                nodes: sum.nodes + nodes as f64,
                edges: sum.edges + edges as f64,
            })
        };
        let times = |shape: Shape, factor: f64| Shape {
            graphs: shape.graphs * factor,
            nodes: shape.nodes * factor,
            edges: shape.edges * factor,
        };
        let larger = |one: Shape, other: Shape| if other.nodes > one.nodes { other } else { one };
        let batches = plan.training(0);
        let bursts = batches.chunks(burst).map(sum).fold(Shape::default(), larger);
        let all = sum(std::slice::from_ref(&graphs.training));
        let share = (burst * graphs.batch_graphs) as f64 / graphs.training.len().max(1) as f64;
        // A curriculum's first epoch is its smallest. With a node limit, batches are smaller than this estimate.
        let share = if graphs.budget.is_some() { 0.0 } else { share.min(1.0) };
        let mean = times(larger(bursts, times(all, share)), 1.0 / burst as f64);
        let validation = graphs.validation_batches();
        let each = batches.iter().chain(&validation).map(|batch| sum(std::slice::from_ref(batch)));
        WholeBatches { burst, mean, largest: each.fold(mean, larger) }
    }

    /// The memory limit of the training device. Also sets the limit for host tensors, which the allocator enforces.
    fn limit(&self) -> Result<Limit, StageError> {
        let memory = &self.config.memory;
        let host = host_limit(memory.memory_limit.map(|size| size.0));
        allocator::set_limit(Some(host.bytes));
        if self.data.device == Device::Cpu {
            return Ok(host);
        }
        let used = device::device_memory(self.data.device).map_err(FitError::from)?;
        let free = Some(used.usable_bytes());
        Ok(gpu_limit(memory.gpu_memory_limit.map(|size| size.0), free))
    }

    fn target_bytes(&self, limit: &Limit) -> f64 {
        planned_bytes(self.config, self.data.device, limit)
    }

    fn worst(&self, graphs: &[u64]) -> WorstBatches {
        WorstBatches::new(graphs.iter().map(|&graph| self.size_of(graph)))
    }

    /// Number of nodes, and of edges including the self-loops that attention adds.
    fn size_of(&self, graph: u64) -> (u64, u64) {
        let view = self.data.store.graph(graph);
        (view.num_nodes() as u64, (view.num_edges() + view.num_nodes()) as u64)
    }

    /// The budget: measured if `measures` is set and measuring is configured, else computed from the architecture.
    fn budget(
        &mut self,
        student: &mut impl Student,
        trainable: &mut Trainable,
        plan: &Epochs,
        options: &FitOptions,
        measures: bool,
        checkpointing: bool,
    ) -> Result<MemoryBudget, StageError> {
        if !measures || self.config.memory.memory_estimation == MemoryEstimation::Static {
            return self.closed_form(student, plan, options, checkpointing, self.burst(student, &plan.graphs));
        }
        let measured = match self.architecture {
            // Not by the teacher itself, whose cache would be filled in part.
            Architecture::Graph(architecture) if self.data.device == Device::Cpu && !student.teacher().keeps_all() => {
                let (teacher, link, graphs) = (self.teachers.first(), student.teacher(), &plan.graphs);
                let question =
                    Question::of_training(self.config, self.data, architecture, teacher, link, graphs, options);
                graph_peak::budget(&question)
            }
            _ => self.probe(student, trainable, plan, options),
        };
        match measured {
            Ok(mut budget) => {
                if options.records_steps {
                    budget.record_steps();
                }
                self.add_targets_to_come(student, &mut budget);
                Ok(budget)
            }
            // Another program may have used the memory for a moment; the estimate shows if the training can fit at all.
            Err(error) if memory::is_out_of_memory(&error) => {
                tracing::warn!("no batch could be measured ({error}); estimating the budget from the architecture");
                self.closed_form(student, plan, options, checkpointing, self.burst(student, &plan.graphs))
            }
            Err(error) => Err(error),
        }
    }

    /// Measures the budget in steps of the student itself.
    fn probe(
        &self,
        student: &mut impl Student,
        trainable: &mut Trainable,
        plan: &Epochs,
        options: &FitOptions,
    ) -> Result<MemoryBudget, StageError> {
        let size_of = |graph| self.size_of(graph);
        let probe = Probe {
            objective: student,
            trainable,
            loader: self.loader,
            graphs: &plan.graphs.training,
            size_of: &size_of,
            cap: plan.graphs.batch_graphs,
            waiting_batches: waiting_batches(self.config, self.data.device.is_cuda()),
            adam: options.adam,
            precision: options.precision,
            device: self.data.device,
        };
        Ok(probe.measure()?)
    }

    /// Adds the memory of targets that will be cached later; those cached so far are already counted.
    fn add_targets_to_come(&self, student: &impl Student, budget: &mut MemoryBudget) {
        let kept = Meter::new(Device::Cpu).read().phase_bytes(Phase::Cache);
        let to_come = student.teacher().memory_cache_bytes().saturating_sub(kept);
        if to_come > 0 && self.data.device == Device::Cpu {
            budget.add("targets yet to be cached", Moment::Always, to_come as f64);
        }
    }

    /// The budget computed from the architecture, including the teacher. On the host the teacher has already started, and its weights
    /// are counted.
    fn closed_form(
        &self,
        student: &impl Student,
        plan: &Epochs,
        options: &FitOptions,
        checkpointing: bool,
        burst: usize,
    ) -> Result<MemoryBudget, StageError> {
        let graphs = &plan.graphs.training;
        let circumstances = Circumstances {
            cuda: self.data.device.is_cuda(),
            fused: training::computes_fused(self.config, self.data.device.is_cuda()),
            checkpointing,
            offload_optimizer: options.adam.offload,
            burst,
            waiting_batches: self.waiting_batches(&plan.graphs, burst),
            nodes_per_graph: self.worst(graphs).shape(graphs.len()).nodes / graphs.len().max(1) as f64,
            resident_teacher: self.residency() != Residency::Layer,
            teacher_counted: !self.data.device.is_cuda(),
            compared: teacher::compared_layers(self.config),
        };
        let on_gpu = self.data.device.is_cuda();
        let mut budget = estimate(self.architecture, self.teachers, &circumstances)?;
        if options.records_steps {
            budget.record_steps();
        }
        if !on_gpu {
            let reading = Meter::new(Device::Cpu).read();
            if !self.teachers.is_empty() && self.residency() != Residency::Resident {
                // A visit copies the weights, even on the host.
                budget.add("teacher's copy", Moment::Visit, reading.phase_bytes(Phase::Teacher) as f64);
            }
            budget.note_teacher(reading);
        }
        self.add_targets_to_come(student, &mut budget);
        Ok(budget)
    }

    /// Batches announced to the teacher at a time, at most those of an epoch. If the batch size is still to be found, batches may become
    /// smaller and more numerous, so there is no such bound.
    fn burst(&self, student: &impl Student, graphs: &Graphs) -> usize {
        let batches = |of: &[u64]| of.len().div_ceil(graphs.batch_graphs.max(1));
        if self.config.training.optimize_batch_size || graphs.budget.is_some() {
            return student.source().burst();
        }
        student.source().burst().min(batches(&graphs.training).max(batches(&graphs.validation)).max(1))
    }

    /// Prefetched batches in addition to those of a burst. If the batch size is known, at most those left of an epoch.
    fn waiting_batches(&self, graphs: &Graphs, burst: usize) -> usize {
        let waiting = waiting_batches(self.config, self.data.device.is_cuda());
        if self.config.training.optimize_batch_size || graphs.budget.is_some() {
            return waiting;
        }
        let batches = |of: &[u64]| of.len().div_ceil(graphs.batch_graphs.max(1));
        let left = batches(&graphs.training).saturating_sub(burst).max(batches(&graphs.validation).saturating_sub(1));
        waiting.min(left)
    }

    /// The error for complete batches that do not fit. A batch can go through the model in parts, but it is in memory as a whole, and so
    /// are the targets of all batches of a teacher visit; smaller parts do not help.
    fn whole_batches_do_not_fit(
        &self,
        student: &impl Student,
        budget: &MemoryBudget,
        plan: &Epochs,
        (limit, worst): (&Limit, &WorstBatches),
        options: &FitOptions,
        checkpointing: bool,
    ) -> Result<StageError, StageError> {
        let burst = self.burst(student, &plan.graphs);
        let bytes = budget.peak_bytes(worst.shape(1));
        let targets =
            if self.teachers.is_empty() { String::new() } else { format!(", {burst} of them with their targets,") };
        let remedy =
            match (self.smaller_burst(student, plan, (limit, worst), options, checkpointing)?, self.residency()) {
                (None, _) => String::new(),
                // A resident teacher has no burst to set.
                (Some(smaller), Residency::Resident) => format!(" or add --offload-teacher --teacher-burst {smaller}"),
                (Some(smaller), _) => format!(" or add --teacher-burst {smaller}"),
            };
        Ok(StageError::Memory(format!(
            "batches of {} graphs{targets} need {} however few graphs go through the model at a time, but the limit is {} ({}): \
             {} are missing; lower --batch-size{remedy}, or raise {}\n{}",
            plan.graphs.batch_graphs,
            gibibytes(bytes),
            gibibytes(limit.bytes as f64),
            limit.source,
            gibibytes(bytes - limit.bytes as f64),
            self.limit_flag(),
            budget.table(1, worst).trim_end()
        )))
    }

    /// Finds a smaller burst that fits: the largest that leaves room for enough graphs at a time, else the smallest that fits at all.
    fn smaller_burst(
        &self,
        student: &impl Student,
        plan: &Epochs,
        (limit, worst): (&Limit, &WorstBatches),
        options: &FitOptions,
        checkpointing: bool,
    ) -> Result<Option<usize>, StageError> {
        let burst = self.burst(student, &plan.graphs);
        if self.teachers.is_empty() {
            return Ok(None);
        }
        let halves = std::iter::successors(Some(burst / 2), |burst| Some(burst / 2)).take_while(|burst| *burst > 0);
        let mut fitting = None;
        for smaller in halves {
            let budget = self.closed_form(student, plan, options, checkpointing, smaller)?;
            let settled = self.settled(budget, plan, limit, worst, smaller);
            if settled.graphs.is_some_and(|graphs| graphs >= FEW_GRAPHS.min(plan.graphs.batch_graphs)) {
                return Ok(Some(smaller));
            }
            if settled.budget.peak_bytes(worst.shape(1)) <= limit.bytes as f64 {
                fitting = Some(smaller);
            }
        }
        Ok(fitting)
    }

    fn residency(&self) -> Residency {
        self.config.distillation.residency()
    }

    fn limit_flag(&self) -> &'static str {
        if self.data.device.is_cuda() { "--gpu-memory-limit" } else { "--memory-limit" }
    }

    fn does_not_fit(&self, limit: &Limit, worst: &WorstBatches) -> StageError {
        let circumstances = Circumstances {
            cuda: self.data.device.is_cuda(),
            fused: training::computes_fused(self.config, self.data.device.is_cuda()),
            checkpointing: self.config.memory.gradient_checkpointing,
            offload_optimizer: self.config.memory.offload_optimizer,
            burst: 1,
            waiting_batches: 1,
            nodes_per_graph: worst.shape(1).nodes,
            resident_teacher: true,
            teacher_counted: true,
            compared: ComparedLayers::default(),
        };
        let described = estimate(self.architecture, &[], &circumstances).map(|budget| {
            let largest = budget.largest_component(worst.shape(1)).map_or("", |component| component.name);
            format!("{largest} needs most:\n{}", budget.table(1, worst))
        });
        StageError::Memory(format!(
            "not even one graph at a time fits into the memory of {} ({}); raise {}, or use a smaller model; {}",
            gibibytes(limit.bytes as f64),
            limit.source,
            self.limit_flag(),
            described.unwrap_or_default()
        ))
    }
}
