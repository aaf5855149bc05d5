//! Batches between loader and step: loaded, padded if steps are captured as CUDA graphs, and uploaded to the device.

use kdgat_graph::Batch;
use kdgat_graph::loader::EpochBatches;
use kdgat_graph::padding::SizeClass;
use kdgat_torch::device::Uploader;

use super::error::FitError;
use super::step::StepBatch;
use crate::memory::{Meter, retry_on_oom};

/// The next batch of the loader; `None` at its end. Memory is freed and the batch made again, where that is possible, if there was none for it.
///
/// # Errors
/// If the store cannot be read, or memory runs out.
pub(super) fn next_batch(loaded: &mut EpochBatches, meter: Meter) -> Result<Option<Batch>, FitError> {
    let repeats = loaded.can_repeat();
    let mut next = || Ok(loaded.next().transpose()?);
    if repeats { retry_on_oom(meter, next) } else { next() }
}

/// Consecutive batches on the device.
pub(super) struct Burst {
    /// Batches without padding, for the teacher.
    pub batches: Vec<Batch>,
    /// The same batches padded, if steps are captured as CUDA graphs.
    filled_up: Option<Vec<Batch>>,
}

impl Burst {
    /// Reads and uploads the next `count` batches of `loaded`; fewer at its end.
    ///
    /// # Errors
    /// If the store cannot be read, or memory runs out even after cached memory was freed.
    pub fn read(
        loaded: &mut EpochBatches,
        count: usize,
        uploader: &mut Uploader,
        fills_up: bool,
    ) -> Result<Self, FitError> {
        let meter = Meter::new(uploader.device());
        let mut read = Vec::new();
        while read.len() < count
            && let Some(batch) = next_batch(loaded, meter)?
        {
            read.push(batch);
        }
        let mut upload = |batch: &Batch| retry_on_oom(meter, || Ok::<_, FitError>(batch.upload(uploader)?));
        let mut filled_up = fills_up.then(Vec::new);
        if let Some(filled_up) = &mut filled_up {
            for batch in &mut read {
                // Padded where it was made: in host memory, if on a GPU each padded tensor would cost a kernel launch more.
                let padded = match batch.padded_form.take() {
                    Some(padded) => *padded,
                    None => batch.padded(SizeClass::of(batch))?,
                };
                filled_up.push(upload(&padded)?);
            }
        }
        let batches = read.iter().map(upload).collect::<Result<_, _>>()?;
        Ok(Self { batches, filled_up })
    }

    /// A batch in the form that a step takes.
    pub fn step(&self, index: usize) -> Option<StepBatch<'_>> {
        let filled_up = self.filled_up.as_ref().and_then(|batches| batches.get(index));
        self.batches.get(index).map(|batch| StepBatch { batch, filled_up })
    }
}
