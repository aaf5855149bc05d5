//! What the shuttle needs of a device: memory, a copy, streams with events, and time.

mod cpu;
mod cuda;

use kdgat_torch::device::{DeviceError, StreamGuard};
use tch::{Device, TchError, Tensor};

use super::order::Stream;
use super::targets::Targets;

pub use cpu::Cpu;
pub use cuda::Cuda;

/// A device as the teacher thread drives it.
///
/// Nothing here lets the host wait: copies and forwards are queued, and events order them.
pub trait Accelerator: Send + 'static {
    /// A point in a stream, with its time.
    type Event: Clone + Send + 'static;

    /// Where tensors of the teacher live.
    fn device(&self) -> Device;

    /// Whether work is done when its call returns, in memory that is the host's.
    fn is_host(&self) -> bool;

    /// Host memory that copies to the device can be made from without waiting, or plain memory with the reason.
    fn host_block(&mut self, bytes: usize) -> Result<HostBlock, AcceleratorError>;

    /// `[bytes]`, u8, from the pool of the student's stream.
    fn allocate(&mut self, bytes: usize) -> Result<Tensor, AcceleratorError>;

    /// Queues a copy on [`Stream::Copy`].
    fn copy(&mut self, from: &Tensor, to: &mut Tensor) -> Result<(), AcceleratorError>;

    /// Lets the host wait until no copy reads host memory any more: called before a host block is let go.
    fn finish_copies(&mut self) -> Result<(), AcceleratorError>;

    /// Called once on the teacher's thread, whose current stream is the teacher's while the guard lives.
    fn enter_thread(&mut self) -> Result<StreamGuard, AcceleratorError>;

    /// Marks the present end of a stream.
    fn record(&mut self, stream: Stream) -> Result<Self::Event, AcceleratorError>;

    /// Lets later work of `stream` wait for `event`.
    fn wait(&mut self, stream: Stream, event: &Self::Event) -> Result<(), AcceleratorError>;

    /// Milliseconds between two points, or nothing while the device has not come so far.
    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Option<f64>;

    /// Called on the student's thread: its current stream waits for `events`, and the memory of `targets` returns to
    /// its pool only after what that stream does with it.
    fn student_takes(events: &[Self::Event], targets: &Targets) -> Result<(), AcceleratorError>;

    /// What is used and free.
    fn memory(&self) -> MemoryState;
}

/// A device's memory in bytes, as far as it can be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// What could be allocated now.
    pub free_bytes: Option<u64>,
    /// What was free when tensors took the most.
    pub free_at_peak_bytes: Option<u64>,
    /// Tensors now.
    pub allocated_bytes: Option<u64>,
    /// The most that tensors took.
    pub peak_bytes: Option<u64>,
}

/// Host memory for weights.
#[derive(Debug)]
pub struct HostBlock {
    /// `[bytes]`, u8.
    pub tensor: Tensor,
    /// Why the memory is not page-locked, where it should be.
    pub not_page_locked: Option<String>,
}

/// Why a device did not do as told.
#[derive(Debug, thiserror::Error)]
pub enum AcceleratorError {
    /// libtorch failed, for instance for want of memory.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// A device that this program cannot drive.
    #[error("the teacher cannot run on {device:?}: {reason}")]
    Unsupported {
        /// The device that was asked for.
        device: Device,
        /// Why not.
        reason: String,
    },
    /// Streams, events or page-locked memory failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
