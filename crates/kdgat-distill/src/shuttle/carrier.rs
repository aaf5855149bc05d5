//! Carries out the copies and forwards of a visit on a real device.

use std::ops::Range;

use kdgat_graph::Batch;
use kdgat_train::memory::{Meter, is_out_of_memory, retry_on_oom};
use kdgat_train::timeline::Work;
use tch::Tensor;

use crate::accelerator::{Accelerator, AcceleratorError, HostBlock};
use crate::model::{FrozenModel, LayerState, WeightViews};
use crate::order::{Stream, Streams};
use crate::targets::Targets;
use crate::teacher::TeacherError;
use crate::visit::{Machine, Part};

use super::Timings;
use super::block::{self, Layer};

/// Device memory and the weights in it.
#[derive(Debug)]
pub(super) struct Slot {
    memory: Tensor,
    views: WeightViews,
    bytes: usize,
}

/// A batch during its way through the model.
pub(super) struct Job {
    batch: Batch,
    on_device: bool,
    state: LayerState,
    /// Bytes of the state after the first layer.
    first_bytes: usize,
    targets: Option<Targets>,
}

impl Job {
    pub fn new(batch: Batch) -> Self {
        Self { batch, on_device: false, state: LayerState::new(), first_bytes: 0, targets: None }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Span {
    Copy,
    Exposed,
    Forward,
}

impl Span {
    /// The span's kind in a timeline.
    pub fn work(self) -> Work {
        match self {
            Self::Copy => Work::Copy,
            Self::Exposed => Work::WeightWait,
            Self::Forward => Work::Forward,
        }
    }
}

/// The device with the host block, the model and the batches of the current visit.
pub(super) struct Carrier<A: Accelerator> {
    pub accelerator: A,
    pub model: Box<dyn FrozenModel>,
    /// The weights in host memory; `None` while they are parked.
    pub host: Option<HostBlock>,
    pub layers: Vec<Layer>,
    pub jobs: Vec<Job>,
    /// Start and end events of work that the device may not have finished yet.
    pub spans: Vec<(Span, A::Event, A::Event)>,
    pub counted: Timings,
    /// Set when the weights are used directly from the host block: resident on a device that is the host.
    pub in_place: bool,
    pub held_bytes: usize,
    /// Largest observed ratio between a batch's state after some layer and after its first one.
    pub state_growth: f64,
    pub peak_bytes: usize,
}

impl<A: Accelerator> Carrier<A> {
    /// Bytes of all layers.
    pub fn bytes(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.offset + layer.bytes)
    }

    /// The targets of a batch that has passed all layers.
    pub fn take_targets(&mut self, batch: usize) -> Result<Targets, TeacherError> {
        let job = &mut self.jobs[batch];
        match job.targets.take() {
            Some(targets) => Ok(targets),
            None => Ok(self.model.target_layout().check(std::mem::take(&mut job.state), &job.batch)?),
        }
    }

    /// The whole block, `[bytes]`, u8.
    fn host(&self) -> Result<&Tensor, TeacherError> {
        self.host.as_ref().map(|host| &host.tensor).ok_or(TeacherError::Parked)
    }

    fn layers_of(&self, part: Part) -> &[Layer] {
        match part {
            Part::All => &self.layers,
            Part::Layer(layer) => &self.layers[layer..=layer],
        }
    }
}

impl<A: Accelerator> Streams for Carrier<A> {
    type Event = A::Event;
    type Error = TeacherError;

    fn record(&mut self, stream: Stream) -> Result<A::Event, TeacherError> {
        Ok(self.accelerator.record(stream)?)
    }

    fn finish(&mut self, stream: Stream) -> Result<(), TeacherError> {
        // The teacher's stream is the student's, to whose pool all its memory returns.
        if stream == Stream::Copy {
            self.accelerator.finish_copies()?;
        }
        Ok(())
    }

    fn wait(&mut self, stream: Stream, event: &A::Event) -> Result<(), TeacherError> {
        if stream != Stream::Teacher || self.accelerator.is_host() {
            return Ok(self.accelerator.wait(stream, event)?);
        }
        // The teacher only ever waits for its weights: the time between these two events is the exposed cost of the copy.
        let from = self.accelerator.record(stream)?;
        self.accelerator.wait(stream, event)?;
        let to = self.accelerator.record(stream)?;
        self.spans.push((Span::Exposed, from, to));
        Ok(())
    }
}

impl<A: Accelerator> Machine for Carrier<A> {
    type Slot = Slot;

    fn allocate(&mut self, bytes: usize) -> Result<Slot, TeacherError> {
        let memory = match self.in_place {
            true => self.host()?.shallow_clone(),
            false => retry_on_oom(Meter::new(self.accelerator.device()), || {
                Ok::<_, TeacherError>(self.accelerator.allocate(bytes)?)
            })?,
        };
        self.held_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.held_bytes);
        Ok(Slot { memory, views: WeightViews::default(), bytes })
    }

    fn copy(&mut self, part: Part, slot: &mut Slot) -> Result<(), TeacherError> {
        if !self.in_place {
            let layers = self.layers_of(part);
            let offset = layers.first().map_or(0, |layer| layer.offset);
            let bytes: usize = layers.iter().map(|layer| layer.bytes).sum();
            let from = self.host()?.f_narrow(0, offset as i64, bytes as i64)?;
            let mut to = slot.memory.f_narrow(0, 0, bytes as i64)?;
            let start = self.accelerator.record(Stream::Copy)?;
            self.accelerator.copy(&from, &mut to)?;
            let end = self.accelerator.record(Stream::Copy)?;
            self.spans.push((Span::Copy, start, end));
            self.counted.copies += 1;
            self.counted.copied_bytes += bytes as u64;
        }
        slot.views = block::views(self.layers_of(part), &slot.memory)?;
        Ok(())
    }

    fn forward(&mut self, part: Part, slot: &Slot, batch: usize) -> Result<(), TeacherError> {
        let Self { accelerator, model, jobs, layers, .. } = self;
        let job = &mut jobs[batch];
        let device = accelerator.device();
        let start = accelerator.record(Stream::Teacher)?;
        if !job.on_device {
            job.batch = retry_on_oom(Meter::new(device), || Ok::<_, TeacherError>(job.batch.to_device(device)?))?;
            job.on_device = true;
        }
        match part {
            Part::All => job.targets = Some(forward_whole(model.as_ref(), &slot.views, &job.batch, device)?),
            Part::Layer(layer) => {
                let state = std::mem::take(&mut job.state);
                let again = || state.iter().map(tch::Tensor::shallow_clone).collect();
                job.state = retry_on_oom(Meter::new(device), || {
                    Ok::<_, TeacherError>(model.forward_layer(layer, &slot.views, &job.batch, again())?)
                })?;
                let bytes = state_bytes(&job.state);
                if layer == 0 {
                    job.first_bytes = bytes;
                }
                self.state_growth = self.state_growth.max(bytes as f64 / job.first_bytes.max(1) as f64);
            }
        }
        let end = accelerator.record(Stream::Teacher)?;
        self.spans.push((Span::Forward, start, end));
        if part == Part::All || part == Part::Layer(layers.len() - 1) {
            self.counted.forwards += 1;
        }
        Ok(())
    }

    /// True if the states between two layers, with another batch, take no more memory than the weights that are not on the device:
    /// then `layer` needs less memory than all weights together.
    fn has_room(&self, waiting: Range<usize>) -> bool {
        let count = waiting.len().max(1);
        let bytes: usize = self.jobs[waiting].iter().map(|job| state_bytes(&job.state)).sum();
        let with_another = bytes as f64 * self.state_growth * (count + 1) as f64 / count as f64;
        with_another <= self.bytes().saturating_sub(self.held_bytes) as f64
    }

    fn free(&mut self, slot: Slot) {
        self.held_bytes -= slot.bytes;
    }
}

fn state_bytes(state: &LayerState) -> usize {
    state.iter().map(|tensor| tensor.numel() * tensor.kind().elt_size_in_bytes()).sum()
}

/// Runs a batch through all layers. If memory runs out even after the caches are freed, runs the graphs in two halves: a graph's
/// targets do not depend on the others of its batch.
fn forward_whole(
    model: &dyn FrozenModel,
    views: &WeightViews,
    batch: &Batch,
    device: tch::Device,
) -> Result<Targets, TeacherError> {
    let whole = retry_on_oom(Meter::new(device), || Ok::<_, TeacherError>(model.forward(views, batch)?));
    match whole {
        Err(error) if is_out_of_memory(&error) && batch.num_graphs() > 1 => {
            let middle = batch.num_graphs() / 2;
            let half = |graphs: std::ops::Range<usize>| {
                let graphs: Vec<usize> = graphs.collect();
                let graphs = retry_on_oom(Meter::new(device), || Ok::<_, TeacherError>(batch.select_graphs(&graphs)?))?;
                forward_whole(model, views, &graphs, device)
            };
            let (first, second) = (half(0..middle)?, half(middle..batch.num_graphs())?);
            retry_on_oom(Meter::new(device), || {
                let both = first.tensors.iter().zip(&second.tensors);
                let joined = both.map(|((name, first), (_, second))| Ok((*name, Tensor::f_cat(&[first, second], 0)?)));
                Ok(Targets { tensors: joined.collect::<Result<_, tch::TchError>>()? })
            })
        }
        outcome => outcome,
    }
}

impl From<AcceleratorError> for TeacherError {
    fn from(source: AcceleratorError) -> Self {
        Self::Device { source }
    }
}
