//! Batches on the way from the loader to a step: read, filled up where steps are recorded, and brought to the device.

use kdgat_graph::padding::SizeClass;
use kdgat_graph::{Batch, StoreError};
use kdgat_torch::device::Uploader;

use super::error::FitError;
use super::step::StepBatch;
use crate::memory::{Meter, retry_on_oom};

/// Batches on the device, in their order.
pub(super) struct Burst {
    /// As the teacher reads them.
    pub batches: Vec<Batch>,
    /// The same filled up, where steps are recorded.
    filled_up: Option<Vec<Batch>>,
}

impl Burst {
    /// The next `count` batches of `loaded`; fewer at its end.
    ///
    /// # Errors
    /// When the store cannot be read, or memory has run out in spite of freeing what is cached.
    pub fn read(
        loaded: &mut impl Iterator<Item = Result<Batch, StoreError>>,
        count: usize,
        uploader: &mut Uploader,
        fills_up: bool,
    ) -> Result<Self, FitError> {
        let read = loaded.take(count).collect::<Result<Vec<_>, _>>()?;
        let meter = Meter::new(uploader.device());
        let mut upload = |batch: &Batch| retry_on_oom(meter, || Ok::<_, FitError>(batch.upload(uploader)?));
        let mut filled_up = fills_up.then(Vec::new);
        if let Some(filled_up) = &mut filled_up {
            for batch in &read {
                // Padded in host memory: on a GPU each of the tensors' ends would be a kernel.
                filled_up.push(upload(&batch.padded(SizeClass::of(batch))?)?);
            }
        }
        let batches = read.iter().map(upload).collect::<Result<_, _>>()?;
        Ok(Self { batches, filled_up })
    }

    /// Each batch as a step takes it.
    pub fn steps(&self) -> impl Iterator<Item = StepBatch<'_>> {
        let filled_up = |index| self.filled_up.as_ref().and_then(|batches| batches.get(index));
        self.batches.iter().enumerate().map(move |(index, batch)| StepBatch { batch, filled_up: filled_up(index) })
    }
}
