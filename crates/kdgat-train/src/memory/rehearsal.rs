//! Memory of captured steps, measured before a run by capturing them in the order in which the run will: what CUDA graphs of one pool hold depends on
//! the allocator.

use kdgat_torch::device::Uploader;
use tch::TchError;

use super::probe::{Probe, difference};
use super::{Meter, retry_on_oom};
use crate::burst::Burst;
use crate::fit::FitError;
use crate::met_sizes::{MetSizes, Way};
use crate::optimizer::Adam;
use crate::recorded::Work;
use crate::step::{StepBatch, StepOptions, StepRunner};

/// A batch whose work a run captures.
#[derive(Clone, Debug, PartialEq)]
pub struct Rehearsal {
    /// Its graphs.
    pub graphs: Vec<u64>,
    /// Factor of the loss of its step; `None`: it is validated.
    pub scale: Option<f64>,
}

/// Bytes of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CaptureBytes {
    /// Peak of the first step of this size, which is not captured, beside the batch and its targets; 0 of a size that has captures.
    pub first: f64,
    /// Peak while the work is captured, beside the batch, its targets and what earlier captures hold.
    pub capture: f64,
    /// Held from then on, by this and all earlier captures.
    pub held: f64,
}

impl Probe<'_> {
    /// Captures the work of these batches, in this order, and frees it.
    ///
    /// # Errors
    /// If memory runs out, or the work cannot be captured.
    pub fn rehearse(mut self, rehearsals: &[Rehearsal]) -> Result<Vec<CaptureBytes>, FitError> {
        let padding = self.loader.clone().padding();
        self.restoring(|probe| {
            let meter = Meter::new(probe.device);
            let mut adam = retry_on_oom(meter, || Adam::new(probe.trainable, probe.adam))?;
            let runner = retry_on_oom(meter, || StepRunner::new(probe.trainable, probe.device, probe.precision));
            let mut runner = runner?;
            // Allocates what later steps reuse.
            if let Some(first) = rehearsals.first() {
                let (graphs, start) = (&first.graphs, meter.read().current_bytes);
                let batch = probe.load(graphs)?;
                probe.sample(meter, &runner, &mut adam, (graphs, &batch), start)?;
            }
            probe.objective.source_mut().forget();
            let mut uploader = Uploader::new(probe.device)?;
            let (start, mut met) = (meter.read().current_bytes, MetSizes::default());
            let mut measured = Vec::new();
            for Rehearsal { graphs, scale } in rehearsals {
                let mut bytes = CaptureBytes::default();
                loop {
                    let mut loaded = padding.epoch(vec![graphs.clone()], 0);
                    let burst = Burst::read(&mut loaded, 1, &mut uploader, true)?;
                    let missing = || FitError::Objective("the loader returned no padded batch".into());
                    let StepBatch { batch, filled_up } = burst.step(0).ok_or_else(missing)?;
                    let padded = filled_up.ok_or_else(missing)?;
                    probe.receive(meter, (graphs, batch), start)?;
                    let options = scale.map(|scale| StepOptions { seed: 0, scale, accumulates: false });
                    let work = match options {
                        Some(options) => Work::Gradients(probe.trainable, options),
                        None => Work::Validation,
                    };
                    let (class, kind) = (padded.size_class(), work.kind());
                    let way = met.way(class, kind);
                    meter.reset_peak();
                    let before = meter.read().current_bytes;
                    drop(runner.recorded_once(probe.objective, padded, work)?);
                    let peak = difference(meter.read().peak_bytes, before);
                    met.note(class, kind, way);
                    match way {
                        Way::Computed => bytes.first = peak,
                        Way::Captured | Way::Replayed => bytes.capture = peak,
                    }
                    // A validation of a size without steps is never captured.
                    if way != Way::Computed || kind.is_none() {
                        break;
                    }
                }
                probe.objective.source_mut().forget();
                measured.push(CaptureBytes { held: difference(meter.read().current_bytes, start), ..bytes });
            }
            // A teacher's thread that runs out of memory frees them.
            if runner.recorded_sizes() != met.captured_sizes() {
                let freed = "out of memory: CUDA graphs were freed while their memory was measured";
                return Err(TchError::Torch(freed.to_owned()).into());
            }
            Ok(measured)
        })
    }
}
