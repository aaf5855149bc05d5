//! Fits a training on the nodes of one large graph into the memory limit: the size of sampled batches, and the memory that is left for
//! features.

use tch::Device;

use super::StageError;
use super::sizing::{self, BUDGET, WrittenBudget, waiting_batches};
use crate::config::Config;
use crate::distill::objective::Student;
use crate::graph::Loader;
use crate::memory;
use crate::memory::budget::{BatchBuffers, MemoryBudget, Moment, Shape, WorstBatches, gibibytes, largest_fitting};
use crate::memory::limits::{Limit, host_limit};
use crate::memory::probe::Probe;
use crate::train::fit::FitOptions;
use crate::train::run_directory::RunDirectory;
use crate::train::trainable::Trainable;

/// The inputs for fitting batches of sampled neighbours into the memory.
pub struct NodeSizing<'a> {
    pub config: &'a Config,
    pub device: Device,
    pub directory: &'a RunDirectory,
    /// Makes the batches.
    pub loader: &'a Loader,
    /// The seeds of an epoch.
    pub seeds: &'a [u64],
    /// Bytes of arrays by node that are no tensors.
    pub array_bytes: f64,
    /// Peak bytes of a validation on the whole graph, beside its features and edges; 0 if it reads samples.
    pub validation_bytes: f64,
    /// Seeds of a sampled validation; 0 if it reads the whole graph.
    pub validation: usize,
    /// Wanted seeds of a batch.
    pub wanted: usize,
    /// Seeds of a batch in a run that is resumed: they stay, because the losses depend on them.
    pub decided: Option<usize>,
}

/// The size of the batches, and the memory that they leave.
#[derive(Debug)]
pub struct Fitted {
    /// Seeds per batch.
    pub batch_nodes: usize,
    /// Number of buffers for batches, and the bytes of each.
    pub buffers: (usize, f64),
    /// Host memory that the limit leaves for features, in bytes.
    pub free_bytes: f64,
    /// Lines for the user.
    pub notes: Vec<String>,
}

impl NodeSizing<'_> {
    /// Measures batches, and takes the largest number of seeds, up to the wanted one, that fits.
    ///
    /// # Errors
    /// If not even one seed fits, or if the number is fixed (`optimize_batch_size`) and does not; the message has a table of memory by
    /// component.
    pub fn fit(
        self,
        student: &mut impl Student,
        trainable: &mut Trainable,
        options: &FitOptions,
    ) -> Result<Fitted, StageError> {
        let limit = host_limit(self.config.memory.memory_limit.map(|size| size.0));
        let burst = student.source().burst();
        let available = self.wanted.min(self.seeds.len()).max(1);
        let worst = WorstBatches::uniform(1.0, 0.0, self.seeds.len().max(1));
        let measured = Probe {
            objective: student,
            trainable,
            loader: self.loader,
            graphs: self.seeds,
            size_of: &|_| (1, 0),
            cap: available,
            waiting_batches: waiting_batches(self.config, false),
            adam: options.adam,
            precision: options.precision,
            device: self.device,
        }
        .measure_up_to(available);
        let mut budget = match measured {
            Ok(budget) => budget,
            Err(error) if memory::is_out_of_memory(&error) => return Err(self.nothing_fits(&limit, &error)),
            Err(error) => return Err(error.into()),
        };
        budget.add("arrays by node", Moment::Always, self.array_bytes);
        if self.validation_bytes > 0.0 {
            budget.add("validation", Moment::Visit, self.validation_bytes);
        }
        let target = planned_bytes(self.config, &limit);
        let fixed = !self.config.training.optimize_batch_size;
        let buffers_of = |nodes: usize| {
            let steps = self.seeds.len().max(self.validation).div_ceil(nodes.max(1));
            BatchBuffers { burst, waiting: waiting_batches(self.config, false), steps }
        };
        let budget_of = |nodes: usize| budget.with_buffers(buffers_of(nodes), nodes);
        let peak = |nodes: usize| budget_of(nodes).peak_bytes(worst.shape(nodes));
        let largest = match peak(available) <= target {
            true => Some(available),
            // Fewer seeds give longer epochs: the search takes a full queue for all.
            false => largest_fitting(available, |nodes| {
                let buffers = BatchBuffers { steps: usize::MAX, ..buffers_of(nodes) };
                budget.with_buffers(buffers, nodes).peak_bytes(worst.shape(nodes)) <= target
            }),
        };
        let batch_nodes = match (self.decided, largest) {
            (Some(decided), _) => decided.min(available),
            (None, _) if fixed && peak(available) <= limit.bytes as f64 => available,
            (None, Some(nodes)) if !fixed => nodes,
            (None, None) if !fixed && peak(1) <= limit.bytes as f64 => 1,
            (None, found) => return Err(self.does_not_fit(&budget_of(available), &worst, &limit, available, found)),
        };
        let mut notes = Vec::new();
        if self.decided.is_none() {
            notes.push(format!(
                "memory: batches of {batch_nodes} nodes take at most {}, measured; planned: {} of {} ({})",
                gibibytes(peak(batch_nodes)),
                gibibytes(target),
                gibibytes(limit.bytes as f64),
                limit.source
            ));
            if batch_nodes < available {
                notes.push(format!(
                    "memory: batches of {available} nodes would take {}; to get the same batches elsewhere or later, use \
                     --optimize-batch-size false --batch-size {batch_nodes}",
                    gibibytes(peak(available))
                ));
            }
            let written = WrittenBudget {
                budget: &budget_of(batch_nodes),
                limit_bytes: limit.bytes,
                limit_source: limit.source.to_string(),
                planned_bytes: target as u64,
                batch_graphs: batch_nodes,
            };
            self.directory.write_json(BUDGET, &written)?;
        }
        let buffers = buffers_of(batch_nodes);
        let buffer_bytes = budget_of(batch_nodes).buffer_bytes(buffers, worst.shape(batch_nodes));
        let buffers = (buffers.count(), buffer_bytes);
        Ok(Fitted { batch_nodes, buffers, free_bytes: (target - peak(batch_nodes)).max(0.0), notes })
    }

    fn nothing_fits(&self, limit: &Limit, error: &dyn std::error::Error) -> StageError {
        StageError::Memory(format!(
            "not even a small batch fits into the memory of {} ({}): {error}; lower --fanouts or --hidden, or raise --memory-limit",
            gibibytes(limit.bytes as f64),
            limit.source
        ))
    }

    fn does_not_fit(
        &self,
        budget: &MemoryBudget,
        worst: &WorstBatches,
        limit: &Limit,
        nodes: usize,
        fitting: Option<usize>,
    ) -> StageError {
        let peak = budget.peak_bytes(worst.shape(nodes));
        let remedy = match fitting {
            Some(fitting) => format!("lower --batch-size to {fitting} or use --optimize-batch-size"),
            None if self.validation_bytes > 0.0 => {
                "use --node-validation sampled, lower --fanouts or --hidden".to_owned()
            }
            None => "lower --fanouts, --hidden, --num-workers or --prefetch-batches".to_owned(),
        };
        let fixed = budget.peak_bytes(Shape::default());
        StageError::Memory(format!(
            "batches of {nodes} nodes with their sampled neighbours need {}, of which {} whatever the batch, but the limit is {} ({}): \
             {remedy}, or raise --memory-limit\n{}",
            gibibytes(peak),
            gibibytes(fixed),
            gibibytes(limit.bytes as f64),
            limit.source,
            budget.table_of("nodes", nodes, worst).trim_end()
        ))
    }
}

/// Host memory to plan for, in bytes.
pub fn planned_bytes(config: &Config, limit: &Limit) -> f64 {
    sizing::planned_bytes(config, Device::Cpu, limit)
}
