//! Batches on the way from the loader to a step: read, filled up where steps are recorded, and brought to the device.

use tch::{Device, TchError};

use super::error::FitError;
use super::step::StepBatch;
use crate::graph::padding::SizeClass;
use crate::graph::{Batch, StoreError};

/// Batches on the device, in their order.
pub(super) struct Burst {
    /// As the teacher reads them.
    pub batches: Vec<Batch>,
    /// The same filled up, where steps are recorded.
    filled_up: Option<Vec<Batch>>,
}

impl Burst {
    /// The next `count` batches of `loaded`; fewer at its end.
    pub fn read(
        loaded: &mut impl Iterator<Item = Result<Batch, StoreError>>,
        count: usize,
        device: Device,
        fills_up: bool,
    ) -> Result<Self, FitError> {
        let read = loaded.take(count).collect::<Result<Vec<_>, _>>()?;
        // Filled up where they were read: on a GPU each of the tensors' ends would be a kernel.
        let filled_up = |batch: &Batch| Ok(batch.padded(SizeClass::of(batch))?.to_device(device));
        let filled_up = fills_up.then(|| read.iter().map(filled_up).collect::<Result<_, TchError>>()).transpose()?;
        // On a GPU this copies from host memory; on a CPU it is another handle.
        let batches = read.iter().map(|batch| batch.to_device(device)).collect();
        Ok(Self { batches, filled_up })
    }

    /// Each batch as a step takes it.
    pub fn steps(&self) -> impl Iterator<Item = StepBatch<'_>> {
        let filled_up = |index| self.filled_up.as_ref().and_then(|batches| batches.get(index));
        self.batches.iter().enumerate().map(move |(index, batch)| StepBatch { batch, filled_up: filled_up(index) })
    }
}
