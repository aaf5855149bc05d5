//! The device operations that the shuttle needs: memory, copies, streams with events, and timing.

mod cpu;
mod cuda;

use kdgat_torch::allocator::Outside;
use kdgat_torch::device::{DeviceError, PinnedBlock, StreamGuard};
use kdgat_train::processes::CommonBlock;
use tch::{Device, Kind, TchError, Tensor};

use super::order::Stream;
use super::targets::Targets;

pub use cpu::Cpu;
pub use cuda::Cuda;

/// A device, driven by the teacher's thread.
///
/// No method except [`Accelerator::finish_copies`] blocks the host: copies and forwards are queued and ordered by events.
pub trait Accelerator: Send + 'static {
    /// A timestamped point in a stream.
    type Event: Clone + Send + 'static;

    /// The device of the teacher's tensors.
    fn device(&self) -> Device;

    /// True if work is done when its call returns and the device's memory is host memory.
    fn is_host(&self) -> bool;

    /// Allocates host memory that can be copied to the device asynchronously, or ordinary memory with the reason for the refusal.
    fn host_block(&mut self, bytes: usize) -> Result<HostBlock, AcceleratorError>;

    /// Maps a [block that several processes have in common](kdgat_train::processes::CommonBlock), of `bytes`, like [`Accelerator::host_block`].
    fn common_block(&mut self, block: &CommonBlock, bytes: usize) -> Result<HostBlock, AcceleratorError> {
        let memory = PinnedBlock::shared(&block.file, bytes, Device::Cpu)?;
        HostBlock::over(&memory, None)
    }

    /// Allocates `[bytes]`, u8, from the pool of the student's stream.
    fn allocate(&mut self, bytes: usize) -> Result<Tensor, AcceleratorError>;

    /// Queues a copy on [`Stream::Copy`].
    fn copy(&mut self, from: &Tensor, to: &mut Tensor) -> Result<(), AcceleratorError>;

    /// Blocks the host until no copy reads host memory any more: called before a host block is dropped.
    fn finish_copies(&mut self) -> Result<(), AcceleratorError>;

    /// Makes the teacher's stream current on the teacher's thread while the guard lives. Called once on that thread.
    fn enter_thread(&mut self) -> Result<StreamGuard, AcceleratorError>;

    /// Records an event at the current end of `stream`.
    fn record(&mut self, stream: Stream) -> Result<Self::Event, AcceleratorError>;

    /// Makes later work on `stream` wait for `event`.
    fn wait(&mut self, stream: Stream, event: &Self::Event) -> Result<(), AcceleratorError>;

    /// Milliseconds between two events; `None` until the device has passed both.
    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Option<f64>;

    /// Makes the current stream of the student's thread wait for `events`, and returns the memory of `targets` to its pool only
    /// after that stream's later uses. Called on the student's thread.
    fn student_takes(events: &[Self::Event], targets: &Targets) -> Result<(), AcceleratorError>;

    /// Used and free memory.
    fn memory(&self) -> MemoryState;
}

/// A device's memory in bytes, where known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// Bytes that can be allocated now.
    pub free_bytes: Option<u64>,
    /// Bytes that were free at the peak.
    pub free_at_peak_bytes: Option<u64>,
    /// Bytes of tensors now, and on a GPU of CUDA graphs.
    pub allocated_bytes: Option<u64>,
    /// Their peak.
    pub peak_bytes: Option<u64>,
}

/// Host memory for weights.
#[derive(Debug)]
pub struct HostBlock {
    /// `[bytes]`, u8.
    pub tensor: Tensor,
    /// The reason why the memory is not page-locked although the device needs it to be.
    pub not_page_locked: Option<String>,
    /// The count of this process's part, if several have the memory in common.
    pub counted: Option<Outside>,
}

impl HostBlock {
    /// All bytes of `memory`.
    fn over(memory: &PinnedBlock, not_page_locked: Option<String>) -> Result<Self, AcceleratorError> {
        let tensor = memory.tensor(0, &[memory.len() as i64], Kind::Uint8)?;
        Ok(Self { tensor, not_page_locked, counted: None })
    }
}

/// A failure of the device.
#[derive(Debug, thiserror::Error)]
pub enum AcceleratorError {
    /// libtorch failed, for example out of memory.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// A device that this program cannot drive.
    #[error("the teacher cannot run on {device:?}: {reason}")]
    Unsupported {
        /// The requested device.
        device: Device,
        /// The reason.
        reason: String,
    },
    /// Streams, events or page-locked memory failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
