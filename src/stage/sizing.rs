//! The size of batches and the limits of memory, before the first epoch.

use serde::Serialize;
use tch::Device;

use super::StageError;
use super::objective::Student;
use super::setup::Data;
use super::training::{self, Graphs, StagePlan};
use crate::config::{Config, MemoryEstimation, Residency};
use crate::graph::Loader;
use crate::memory::budget::{MemoryBudget, Method, Moment, Shape, WorstBatches, gibibytes};
use crate::memory::estimate::{Circumstances, estimate};
use crate::memory::limits::{Limit, gpu_limit, host_limit};
use crate::memory::probe::Probe;
use crate::memory::{self, Meter};
use crate::nn::Architecture;
use crate::torch::allocator::{self, Phase};
use crate::torch::device;
use crate::train::console::Console;
use crate::train::fit::{FitError, FitOptions};
use crate::train::panel::MemoryPlan;
use crate::train::run_directory::RunDirectory;
use crate::train::trainable::Trainable;

/// The budget of a run, by component.
const BUDGET: &str = "memory_budget.json";
/// Host memory that is in use by others may become free, and the other way round: this share of it is planned for at most.
const SHARE_OF_AVAILABLE: f64 = 0.9;
/// Components of a budget that are there as a whole, however few graphs go through the model at a time.
const WHOLE: [&str; 6] = ["parameters", "gradients", "optimiser states", "teacher", "batch data", "targets"];

/// The budget as a run keeps it: with what it was held against.
#[derive(Serialize)]
struct WrittenBudget<'a> {
    #[serde(flatten)]
    budget: &'a MemoryBudget,
    /// Of tensors on the device that is trained on.
    limit_bytes: u64,
    limit_source: String,
    /// The part of the limit that was planned for.
    planned_bytes: u64,
    /// Graphs that go through the model at a time.
    batch_graphs: usize,
}

/// What batches are sized by.
pub struct Sizing<'a> {
    pub config: &'a Config,
    pub data: &'a Data,
    pub architecture: &'a Architecture,
    /// Of the teacher that the student learns from.
    pub teacher: Option<&'a Architecture>,
    pub directory: &'a RunDirectory,
    /// What the first part of the run decided.
    pub decided: Option<Decided>,
    pub loader: &'a Loader,
    pub console: &'a mut Console,
}

/// What a run that is gone on with was sized by: part of its `config.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decided {
    /// Graphs of a batch.
    pub batch_graphs: Option<usize>,
    /// Activations are computed again in the backward pass.
    pub recomputes: bool,
}

/// Batches that wait for the training loop at most: each of the loader's workers has its share of them, and one at least.
pub(super) fn waiting_batches(config: &Config) -> usize {
    let training = &config.training;
    training.num_workers * (training.prefetch_batches / training.num_workers).max(1)
}

impl Sizing<'_> {
    /// Puts the limits in force and settles how many graphs a batch has, how many of them go through the model at a time at
    /// first, and whether activations are computed again, which is returned.
    ///
    /// # Errors
    /// If not even one graph fits: with the table of what takes how much.
    pub fn settle(
        mut self,
        student: &mut impl Student,
        trainable: &mut Trainable,
        plan: &mut impl StagePlan,
        options: &mut FitOptions,
    ) -> Result<bool, StageError> {
        let limit = self.limit()?;
        if let Some(decided) = self.decided {
            self.go_on(decided, &limit, student, plan, options)?;
            return Ok(decided.recomputes);
        }
        let memory = &self.config.memory;
        let cap = plan.graphs().batch_graphs.min(plan.graphs().training.len()).max(1);
        let finds_size = self.config.training.optimize_batch_size;
        let worst = self.worst(&plan.graphs().training);
        let target = self.target_bytes(&limit);

        student.set_checkpointing(false);
        let mut budget = self.budget(student, trainable, plan, options, finds_size, false)?;
        let fitting = |budget: &MemoryBudget| budget.largest_batch(&worst, target, cap);
        let (mut graphs, mut recomputes) = (fitting(&budget), false);
        if memory.gradient_checkpointing && graphs.is_none_or(|graphs| graphs < cap) {
            // Computing activations twice costs time: only where it lets more graphs in.
            student.set_checkpointing(true);
            // What could not be measured before would not be now, after the same wait.
            let measures = budget.method == Method::Measured;
            let recomputing = self.budget(student, trainable, plan, options, measures, true)?;
            if fitting(&recomputing) > graphs {
                (graphs, budget, recomputes) = (fitting(&recomputing), recomputing, true);
                self.console
                    .line("memory: activations are computed again in the backward pass, so that more graphs fit");
            } else {
                student.set_checkpointing(false);
            }
        }
        if budget.peak_bytes(worst.shape(1)) > limit.bytes as f64 {
            return Err(self.does_not_fit(&limit, &worst));
        }
        if !finds_size {
            self.expect_whole_batches_fit(student, &budget, plan, &limit)?;
        }
        let graphs = graphs.unwrap_or(1);
        if finds_size {
            plan.set_batch_graphs(graphs);
        } else if graphs < cap {
            options.micro_batch_graphs = Some(graphs);
            let line = format!("memory: batches of {cap} graphs go through the model {graphs} graphs at a time");
            self.console.line(&line);
        }
        self.console.line(&budget.line(graphs, &worst, &limit, target));
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

    /// The first part of the run has decided: losses go on only with the same batches, cut in the same places. Where that
    /// fits no more, steps find out, as they do when memory becomes scarce while training.
    fn go_on(
        &mut self,
        decided: Decided,
        limit: &Limit,
        student: &mut impl Student,
        plan: &mut impl StagePlan,
        options: &FitOptions,
    ) -> Result<(), StageError> {
        if let Some(batch_graphs) = decided.batch_graphs {
            plan.set_batch_graphs(batch_graphs);
        }
        student.set_checkpointing(decided.recomputes);
        let graphs = plan.graphs();
        let batch_graphs = graphs.batch_graphs.min(graphs.training.len()).max(1);
        let budget = self.closed_form(student, plan, options, decided.recomputes)?;
        let expected_bytes = budget.peak_bytes(self.worst(&graphs.training).shape(batch_graphs)) as u64;
        self.console.plan_memory(MemoryPlan { limit_bytes: limit.bytes, expected_bytes });
        Ok(())
    }

    /// The limit of the device that is trained on. Host tensors are kept below theirs by the allocator.
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

    /// Bytes that are planned for.
    fn target_bytes(&self, limit: &Limit) -> f64 {
        let target = self.config.memory.safety_factor * limit.bytes as f64;
        if self.data.device != Device::Cpu {
            return target;
        }
        let in_use = Meter::new(Device::Cpu).read().current_bytes;
        target.min(SHARE_OF_AVAILABLE * (memory::available_bytes() + in_use) as f64)
    }

    fn worst(&self, graphs: &[u64]) -> WorstBatches {
        WorstBatches::new(graphs.iter().map(|&graph| self.size_of(graph)))
    }

    /// Nodes, and edges with the self-loops that attention adds.
    fn size_of(&self, graph: u64) -> (u64, u64) {
        let view = self.data.store.graph(graph);
        (view.num_nodes() as u64, (view.num_edges() + view.num_nodes()) as u64)
    }

    /// Measured where that is configured and of use.
    fn budget(
        &mut self,
        student: &mut impl Student,
        trainable: &mut Trainable,
        plan: &impl StagePlan,
        options: &FitOptions,
        measures: bool,
        checkpointing: bool,
    ) -> Result<MemoryBudget, StageError> {
        if !measures || self.config.memory.memory_estimation == MemoryEstimation::Static {
            return self.closed_form(student, plan, options, checkpointing);
        }
        let graphs = &plan.graphs().training;
        let size_of = |graph| self.size_of(graph);
        let probe = Probe {
            objective: student,
            trainable,
            loader: self.loader,
            graphs,
            size_of: &size_of,
            cap: plan.graphs().batch_graphs,
            waiting_batches: waiting_batches(self.config),
            adam: options.adam,
            precision: options.precision,
            device: self.data.device,
        };
        match probe.measure() {
            Ok(mut budget) => {
                if options.records_steps {
                    budget.record_steps();
                }
                self.add_targets_to_come(student, &mut budget);
                Ok(budget)
            }
            // Something else may have taken the memory for a moment: the architecture says whether it can fit at all.
            Err(error) if memory::is_out_of_memory(&error) => {
                tracing::warn!("no batch could be measured ({error}); the budget comes from the architecture");
                self.closed_form(student, plan, options, checkpointing)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What is kept so far is among the rest that was there.
    fn add_targets_to_come(&self, student: &impl Student, budget: &mut MemoryBudget) {
        let kept = Meter::new(Device::Cpu).read().phase_bytes(Phase::Cache);
        let to_come = student.teacher().memory_cache_bytes().saturating_sub(kept);
        if to_come > 0 && self.data.device == Device::Cpu {
            budget.add("targets still to be kept", Moment::Always, to_come as f64);
        }
    }

    /// The budget from the architecture, with the teacher: on the host it is at work already, and its weights were counted.
    fn closed_form(
        &self,
        student: &impl Student,
        plan: &impl StagePlan,
        options: &FitOptions,
        checkpointing: bool,
    ) -> Result<MemoryBudget, StageError> {
        let graphs = &plan.graphs().training;
        let circumstances = Circumstances {
            cuda: self.data.device.is_cuda(),
            fused: training::computes_fused(self.config, self.data.device.is_cuda()),
            checkpointing,
            offload_optimizer: options.adam.offload,
            burst: self.burst(student, plan.graphs()),
            waiting_batches: waiting_batches(self.config),
            nodes_per_graph: self.worst(graphs).shape(graphs.len()).nodes / graphs.len().max(1) as f64,
            resident_teacher: self.config.distillation.residency() != Residency::Layer,
            teacher_counted: !self.data.device.is_cuda(),
            hints: training::hints(self.config),
        };
        let on_gpu = self.data.device.is_cuda();
        let mut budget = estimate(self.architecture, self.teacher, &circumstances)?;
        if options.records_steps {
            budget.record_steps();
        }
        if !on_gpu {
            budget.note_teacher(Meter::new(Device::Cpu).read());
        }
        self.add_targets_to_come(student, &mut budget);
        Ok(budget)
    }

    /// Batches that are announced to the teacher at a time: no more than an epoch has. Where the size is to be found, batches
    /// may become smaller, and more.
    fn burst(&self, student: &impl Student, graphs: &Graphs) -> usize {
        let batches = |of: &[u64]| of.len().div_ceil(graphs.batch_graphs.max(1));
        if self.config.training.optimize_batch_size || graphs.node_budget.is_some() {
            return student.burst();
        }
        student.burst().min(batches(&graphs.training).max(batches(&graphs.validation)).max(1))
    }

    /// Parts of a batch go through the model one after the other, but the batch is there as a whole, and so are the targets
    /// of all batches that a visit of the teacher serves. Where they do not fit, no step can help.
    fn expect_whole_batches_fit(
        &self,
        student: &impl Student,
        budget: &MemoryBudget,
        plan: &impl StagePlan,
        limit: &Limit,
    ) -> Result<(), StageError> {
        let burst = self.burst(student, plan.graphs());
        let announced: Vec<_> = plan.training(0).into_iter().take(burst).collect();
        let sizes = announced.iter().flatten().map(|&graph| self.size_of(graph));
        let (nodes, edges) = sizes.fold((0, 0), |(nodes, edges), size| (nodes + size.0, edges + size.1));
        let each = |sum: u64| sum as f64 / burst as f64;
        let mean = Shape { graphs: 1.0, nodes: each(nodes), edges: each(edges) };
        let whole = budget.components.iter().filter(|component| WHOLE.contains(&component.name));
        let bytes = whole.map(|component| component.bytes.at(mean)).sum::<f64>();
        if bytes <= limit.bytes as f64 {
            return Ok(());
        }
        let targets =
            if self.teacher.is_some() { format!(", {burst} of them with their targets,") } else { String::new() };
        // What a visit computes on takes memory, too: half of the burst would be tight. A resident teacher has none to be set.
        let remedy = match self.config.distillation.residency() {
            _ if self.teacher.is_none() || burst == 1 => String::new(),
            Residency::Resident => format!(" or add --offload-teacher --teacher-burst {}", (burst / 4).max(1)),
            _ => format!(" or add --teacher-burst {}", (burst / 4).max(1)),
        };
        Err(StageError::Memory(format!(
            "batches of {} graphs{targets} take {} however few graphs go through the model at a time, and the limit is {} ({}); lower \
             --batch-size{remedy}, or raise {}",
            plan.graphs().batch_graphs,
            gibibytes(bytes),
            gibibytes(limit.bytes as f64),
            limit.source,
            self.limit_flag()
        )))
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
            hints: false,
        };
        let described = estimate(self.architecture, None, &circumstances).map(|budget| {
            let largest = budget.largest_component(worst.shape(1)).map_or("", |component| component.name);
            format!("most of it is for {largest}:\n{}", budget.table(1, worst))
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
