//! Fits a training on sampled neighbours of one large graph into the memory limit: how many seeds a batch has.

use super::StageError;
use super::measured::{Measured, Queues};
use super::sizing::{Room, planned_bytes, waiting_batches};
use crate::config::Config;
use crate::memory;
use crate::memory::budget::{BatchBuffers, MemoryBudget, Moment, Shape, WorstBatches, gibibytes, largest_fitting};
use crate::memory::limits::host_limit;
use crate::train::run_directory::RunDirectory;
use tch::Device;

/// The inputs for fitting batches of sampled neighbours of one large graph.
pub struct NodeSizing<'a> {
    pub config: &'a Config,
    pub directory: &'a RunDirectory,
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

/// The size of batches of sampled neighbours, and the memory that they leave.
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

/// Batches of seeds with their sampled neighbours, in buffers.
pub(super) struct SeedBatches<'a> {
    /// Measured with a full queue of the loader.
    pub budget: &'a MemoryBudget,
    pub queues: Queues,
    /// Seeds of an epoch, of training or of validation, whichever has more.
    pub seeds: usize,
}

impl SeedBatches<'_> {
    /// The buffers for batches of so many seeds.
    pub fn buffers(&self, nodes: usize) -> BatchBuffers {
        let Queues { burst, waiting } = self.queues;
        BatchBuffers { burst, waiting, steps: self.seeds.div_ceil(nodes.max(1)) }
    }

    /// The budget of batches of so many seeds.
    pub fn budget_of(&self, nodes: usize) -> MemoryBudget {
        self.budget.with_buffers(self.buffers(nodes), nodes)
    }

    /// The largest number of seeds, at most `wanted`, that peaks at no more than this.
    pub fn largest(&self, wanted: usize, worst: &WorstBatches, target: f64) -> Option<usize> {
        if self.budget_of(wanted).peak_bytes(worst.shape(wanted)) <= target {
            return Some(wanted);
        }
        // Fewer seeds give longer epochs: the search takes a full queue for all.
        largest_fitting(wanted, |nodes| {
            let buffers = BatchBuffers { steps: usize::MAX, ..self.buffers(nodes) };
            self.budget.with_buffers(buffers, nodes).peak_bytes(worst.shape(nodes)) <= target
        })
    }
}

impl NodeSizing<'_> {
    /// Measures batches, and takes the largest number of seeds, up to the wanted one, that fits.
    ///
    /// # Errors
    /// If not even one seed fits, or if the number is fixed (`optimize_batch_size`) and does not; the message has a table of memory by
    /// component.
    pub fn fit(self, mut training: Measured) -> Result<Fitted, StageError> {
        let limit = host_limit(self.config.memory.memory_limit.map(|size| size.0));
        let queues = Queues { burst: training.student.source().burst(), waiting: waiting_batches(self.config, false) };
        let available = self.wanted.min(self.seeds.len()).max(1);
        let worst = WorstBatches::uniform(1.0, 0.0, self.seeds.len().max(1));
        let measured = training.budget(self.seeds, available, Some(available), queues);
        let mut budget = measured.map_err(|error| match memory::is_out_of_memory(&error) {
            true => StageError::Memory(format!(
                "not even a small batch fits into the memory of {} ({}): {error}; lower --fanouts or --hidden, or raise --memory-limit",
                gibibytes(limit.bytes as f64),
                limit.source
            )),
            false => error,
        })?;
        budget.add("arrays by node", Moment::Always, self.array_bytes);
        if self.validation_bytes > 0.0 {
            budget.add("validation", Moment::Visit, self.validation_bytes);
        }
        let target = planned_bytes(self.config, Device::Cpu, &limit);
        let room = Room { limit: &limit, target, worst: &worst, unit: "nodes" };
        let fixed = !self.config.training.optimize_batch_size;
        let batches = SeedBatches { budget: &budget, queues, seeds: self.seeds.len().max(self.validation) };
        let peak = |nodes: usize| batches.budget_of(nodes).peak_bytes(worst.shape(nodes));
        let batch_nodes = match (self.decided, batches.largest(available, &worst, target)) {
            (Some(decided), _) => decided.min(available),
            (None, _) if fixed && peak(available) <= limit.bytes as f64 => available,
            (None, Some(nodes)) if !fixed => nodes,
            (None, None) if !fixed && peak(1) <= limit.bytes as f64 => 1,
            (None, found) => return Err(self.does_not_fit(&batches.budget_of(available), &room, available, found)),
        };
        let mut notes = Vec::new();
        let of_batch = batches.budget_of(batch_nodes);
        if self.decided.is_none() {
            notes.push(room.line(&of_batch, batch_nodes, batch_nodes));
            if batch_nodes < available {
                let bytes = gibibytes(peak(available));
                let pinned = Room::pinned(batch_nodes);
                notes.push(format!("memory: batches of {available} nodes would take {bytes}; {pinned}"));
            }
            room.write(&of_batch, batch_nodes, self.directory)?;
        }
        let buffers = batches.buffers(batch_nodes);
        let buffers = (buffers.count(), of_batch.buffer_bytes(buffers, worst.shape(batch_nodes)));
        Ok(Fitted { batch_nodes, buffers, free_bytes: (target - peak(batch_nodes)).max(0.0), notes })
    }

    fn does_not_fit(&self, budget: &MemoryBudget, room: &Room, nodes: usize, fitting: Option<usize>) -> StageError {
        let remedy = match fitting {
            Some(fitting) => format!("lower --batch-size to {fitting} or use --optimize-batch-size"),
            None if self.validation_bytes > 0.0 => {
                "use --node-validation sampled, lower --fanouts or --hidden".to_owned()
            }
            None => "lower --fanouts, --hidden, --num-workers or --prefetch-batches".to_owned(),
        };
        StageError::Memory(format!(
            "batches of {nodes} nodes with their sampled neighbours need {}, of which {} whatever the batch, but the limit is {} ({}): \
             {remedy}, or raise --memory-limit\n{}",
            gibibytes(budget.peak_bytes(room.worst.shape(nodes))),
            gibibytes(budget.peak_bytes(Shape::default())),
            gibibytes(room.limit.bytes as f64),
            room.limit.source,
            room.table(budget, nodes).trim_end()
        ))
    }
}
