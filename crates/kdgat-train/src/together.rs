//! Steps that several processes make together: each computes its share of a batch, and the gradients of all shares add up to those of the
//! whole batch.
//!
//! Process `r` of `n` has a contiguous share of each batch's graphs. Losses are weighted by the rows over which they are means; batch
//! normalisation uses the statistics of all shares; masks and noise are those of the rows' positions in the whole batch. So a step is that
//! of one process with the whole batch, up to rounding.
//!
//! A network with batch normalisation, or over the rows of one whole graph, exchanges packets while it computes, so all processes divide their shares into the same number of
//! parts, and a process that runs out of memory makes all repeat the step. Without, each recovers by itself.

use std::sync::Arc;

use kdgat_graph::Batch;
use kdgat_nn::fused::step_seed::RowsBefore;
use kdgat_nn::parameters::Role;
use kdgat_nn::shared_statistics::Sums;
use parking_lot::Mutex;
use tch::{Kind, TchError, Tensor};

use super::error::FitError;
use super::objective::{Objective, Part, WholeBatch};
use super::processes::{ProcessError, Processes, Stride};
use super::trainable::Trainable;
use crate::interrupt;

/// Numbers of a packet before those of a normalisation: whether a process has ended its part, and whether it has failed.
const HEADER: usize = 2;
/// Error of a part that another process's failure ended.
const REPEATED: &str = "another process repeats the step";

/// The share of process `rank` of a batch: contiguous, equal but for one graph, the larger ones first.
pub fn share_of(batch: &[u64], rank: usize, size: usize) -> &[u64] {
    let start = |rank: usize| (batch.len() * rank).div_ceil(size.max(1));
    &batch[start(rank)..start(rank + 1)]
}

/// The processes of a training, and what they exchange in a step.
#[derive(Debug)]
pub(super) struct Together {
    processes: Arc<Processes>,
    /// `None` for a network that exchanges nothing while it computes: without batch normalisation and rows of a graph.
    packets: Option<Arc<Packets>>,
    /// True if each step and each validation exchanges rows of a graph.
    exchanges_rows: bool,
    /// True once a process wants to stop.
    pub stops: bool,
}

/// A step, as all processes see it.
#[derive(Debug, Clone)]
pub(super) struct SharedStep {
    /// Graphs, nodes and edges of the whole batch.
    pub graphs: usize,
    pub nodes: i64,
    pub edges: i64,
    /// Rows over which losses of the whole batch are means.
    pub rows: f64,
    /// Rows of the processes before this one.
    pub before: RowsBefore,
    /// Parts into which each share is divided.
    pub parts: usize,
    /// True if some process has fewer graphs than parts.
    pub lacks_graphs: bool,
}

impl Together {
    pub fn new(processes: &Arc<Processes>, trainable: &Trainable, exchanges_rows: bool) -> Self {
        let buffers = trainable.tensors().iter().filter(|named| named.role == Role::Buffer);
        let widest = buffers.filter(|named| named.tensor.is_floating_point()).map(|named| named.tensor.numel()).max();
        let packets = widest.or(exchanges_rows.then_some(0)).map(|columns| {
            Arc::new(Packets {
                processes: Arc::clone(processes),
                length: HEADER + 1 + 2 * columns,
                state: Mutex::default(),
            })
        });
        Self { processes: Arc::clone(processes), packets, exchanges_rows, stops: false }
    }

    /// True if the processes exchange rows of a graph while they compute.
    pub fn exchanges_rows(&self) -> bool {
        self.exchanges_rows
    }

    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Exchanges what the processes have of a batch: `batch` is this one's share, if it has one, which it wants to compute in `parts` parts.
    pub fn start(
        &mut self,
        objective: &mut dyn Objective,
        batch: Option<&Batch>,
        parts: usize,
    ) -> Result<SharedStep, FitError> {
        let [graphs, nodes, edges, rows, weight] = match batch {
            Some(batch) => [
                batch.num_graphs() as f64,
                batch.num_nodes() as f64,
                batch.adjacency.num_edges() as f64,
                objective.rows(&Part::whole(batch)),
                objective.label_weight(batch).map_err(FitError::Objective)?,
            ],
            None => [0.0; 5],
        };
        let own = [graphs, nodes, edges, rows, weight, parts as f64, f64::from(u8::from(interrupt::requested()))];
        let all = self.processes.exchange(&own)?;
        let sum = |column: usize| all.iter().map(|row| row[column]).sum::<f64>();
        let before = |column: usize| all[..self.processes.rank()].iter().map(|row| row[column]).sum::<f64>() as u64;
        self.stops |= sum(6) > 0.0;
        objective.set_whole_batch(WholeBatch { nodes: sum(1), rows: sum(3), label_weight: sum(4) / sum(0).max(1.0) });
        let parts = match self.packets {
            // Each part would compute the whole graph.
            Some(_) if self.exchanges_rows => 1,
            Some(_) => all.iter().map(|row| row[5] as usize).max().unwrap_or(1).max(1),
            None => parts,
        };
        Ok(SharedStep {
            graphs: sum(0) as usize,
            nodes: sum(1) as i64,
            edges: sum(2) as i64,
            rows: sum(3),
            before: RowsBefore { nodes: before(1), graphs: before(0), targets: before(3) },
            parts,
            lacks_graphs: all.iter().any(|row| (row[0] as usize) < parts),
        })
    }

    /// Tells the objective the amounts of a validation batch: `batch` is this process's share, if it has one.
    pub fn start_validation(&self, objective: &mut dyn Objective, batch: Option<&Batch>) -> Result<(), FitError> {
        let mut whole = match batch {
            Some(batch) => [batch.num_nodes() as f64, objective.rows(&Part::whole(batch))],
            None => [0.0; 2],
        };
        self.processes.add_up(&mut whole)?;
        let [nodes, rows] = whole;
        objective.set_whole_batch(WholeBatch { nodes, rows, label_weight: 0.0 });
        Ok(())
    }

    /// Agrees on the number of parts again, after a process has failed.
    pub fn agree(&self, step: &mut SharedStep, parts: usize) -> Result<(), FitError> {
        if self.packets.is_none() {
            step.parts = parts;
            return Ok(());
        }
        let parts = if self.exchanges_rows { 1 } else { parts };
        let all = self.processes.exchange(&[parts as f64])?;
        step.parts = all.iter().map(|row| row[0] as usize).max().unwrap_or(1).max(1);
        // Conservative: the sizes of the shares are known to their processes alone.
        step.lacks_graphs |= step.parts > 1;
        Ok(())
    }

    /// The exchanges of batch normalisation and of rows of a graph.
    pub fn sums(&self) -> Option<Arc<dyn Sums>> {
        self.packets.as_ref().map(|packets| Arc::<Packets>::clone(packets) as Arc<dyn Sums>)
    }

    /// The exchanges of a validation: none, unless networks exchange rows. Statistics of batch normalisation do not move there.
    pub fn sums_of_validation(&self) -> Option<Arc<dyn Sums>> {
        self.sums().filter(|_| self.exchanges_rows)
    }

    /// Ends a part of this process: waits until all have ended theirs. Returns the sum of their weights.
    pub fn end_part(&self, weight: f64) -> Result<f64, FitError> {
        match &self.packets {
            Some(packets) => packets.end_part(weight),
            None => Ok(weight),
        }
    }

    /// Tells the others that this process repeats the step, unless one of them was first. Returns true if they repeat it, too.
    pub fn fail(&self) -> Result<bool, FitError> {
        let Some(packets) = &self.packets else { return Ok(false) };
        if packets.take_failure()? {
            return Ok(true);
        }
        packets.exchange(&[0.0, 1.0])?;
        Ok(true)
    }

    /// The failure of another process that ended the attempt.
    pub fn take_failure(&self) -> Result<bool, FitError> {
        self.packets.as_ref().map_or(Ok(false), |packets| packets.take_failure())
    }

    /// Gives all processes the buffers of process 0, if some have not computed all parts of a step.
    pub fn share_buffers(&self, trainable: &Trainable, step: &SharedStep) -> Result<(), FitError> {
        if self.packets.is_none() || !step.lacks_graphs {
            return Ok(());
        }
        for named in trainable.tensors().iter().filter(|named| named.role == Role::Buffer) {
            let mut value = named.tensor.f_detach()?.f_contiguous()?;
            self.processes.take_from_first(&mut value)?;
            tch::no_grad(|| named.tensor.shallow_clone().f_copy_(&value))?;
        }
        Ok(())
    }

    /// Gives all processes the tensors of process 0.
    pub fn share_tensors(&self, trainable: &Trainable) -> Result<(), FitError> {
        for named in trainable.tensors() {
            let mut value = named.tensor.f_detach()?.f_contiguous()?;
            self.processes.take_from_first(&mut value)?;
            tch::no_grad(|| named.tensor.shallow_clone().f_copy_(&value))?;
        }
        Ok(())
    }

    /// Replaces the gradients by their sums over the processes.
    pub fn add_up_gradients(&self, trainable: &mut Trainable) -> Result<(), FitError> {
        Ok(self.processes.sum(&mut trainable.gradients)?)
    }

    /// The sum of `[values]`, f64, over the processes.
    pub fn total(&self, values: &Tensor) -> Result<Tensor, FitError> {
        let mut numbers: Vec<f64> = Vec::try_from(values.f_to_kind(Kind::Double)?)?;
        self.processes.add_up(&mut numbers)?;
        Ok(Tensor::f_from_slice(&numbers)?.f_to_device(values.device())?)
    }
}

/// Packets of equal length, which all processes exchange in the same order while they compute a part.
#[derive(Debug)]
struct Packets {
    processes: Arc<Processes>,
    length: usize,
    state: Mutex<State>,
}

/// Reasons to end an attempt besides an error of this process.
#[derive(Debug, Default)]
struct State {
    is_repeated: bool,
    error: Option<ProcessError>,
}

impl Packets {
    /// Exchanges a packet that begins with `numbers`.
    fn exchange(&self, numbers: &[f64]) -> Result<Vec<Vec<f64>>, ProcessError> {
        let mut packet = numbers.to_vec();
        packet.resize(self.length, 0.0);
        self.processes.exchange(&packet)
    }

    fn end_part(&self, weight: f64) -> Result<f64, FitError> {
        loop {
            let all = self.exchange(&[1.0, 0.0, weight])?;
            if all.iter().any(|row| row[1] > 0.0) {
                self.state.lock().is_repeated = true;
                return Err(TchError::Torch(REPEATED.to_owned()).into());
            }
            // A process without this part waits here for the packets of the others.
            if all.iter().all(|row| row[0] > 0.0) {
                return Ok(all.iter().map(|row| row[HEADER]).sum());
            }
        }
    }

    fn take_failure(&self) -> Result<bool, FitError> {
        let mut state = self.state.lock();
        match state.error.take() {
            Some(error) => Err(error.into()),
            None => Ok(std::mem::take(&mut state.is_repeated)),
        }
    }
}

impl Packets {
    /// Keeps the error of a process until the attempt has ended.
    fn kept<T>(&self, result: Result<T, ProcessError>) -> Result<T, TchError> {
        result.map_err(|error| {
            let text = error.to_string();
            self.state.lock().error = Some(error);
            TchError::Torch(text)
        })
    }

    /// The packets of all processes in the middle of a part.
    fn met(&self, numbers: &[f64]) -> Result<Vec<Vec<f64>>, TchError> {
        let own = [&[0.0, 0.0][..], numbers].concat();
        if own.len() > self.length {
            return Err(TchError::Shape(format!("{} numbers in a packet of {}", own.len(), self.length)));
        }
        let all = self.kept(self.exchange(&own))?;
        if all.iter().any(|row| row[1] > 0.0) {
            self.state.lock().is_repeated = true;
            return Err(TchError::Torch(REPEATED.to_owned()));
        }
        Ok(all)
    }

    /// Meets the other processes before they exchange rows, of which each has some.
    fn meet_all(&self) -> Result<(), TchError> {
        match self.met(&[])?.iter().any(|row| row[0] > 0.0) {
            true => {
                Err(TchError::Torch("a process has ended its part of a batch whose rows the others need".to_owned()))
            }
            false => Ok(()),
        }
    }
}

impl Sums for Packets {
    fn gather(&self, values: &mut Tensor, stride: usize) -> Result<(), TchError> {
        self.meet_all()?;
        self.kept(self.processes.gather_shares(values, Stride(stride)))
    }

    fn sum(&self, values: &mut Tensor) -> Result<(), TchError> {
        self.meet_all()?;
        self.kept(self.processes.sum(values))
    }

    fn add_up(&self, numbers: &mut [f64]) -> Result<(), TchError> {
        let all = self.met(numbers)?;
        numbers.fill(0.0);
        // Packets of processes that have ended their part hold its weight.
        for row in all.iter().filter(|row| row[0] == 0.0) {
            numbers.iter_mut().zip(&row[HEADER..]).for_each(|(sum, number)| *sum += number);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_graphs_in_order_and_the_first_process_is_never_without() {
        for graphs in 0..20_u64 {
            let batch: Vec<u64> = (100..100 + graphs).collect();
            for size in 1..7 {
                let shares: Vec<&[u64]> = (0..size).map(|rank| share_of(&batch, rank, size)).collect();
                assert_eq!(shares.concat(), batch);
                let counts: Vec<usize> = shares.iter().map(|share| share.len()).collect();
                let most = counts.iter().max().unwrap();
                assert!(counts[0] == *most && counts.iter().all(|count| most - count <= 1), "{counts:?}");
            }
        }
    }
}
