//! Work of a GPU that is recorded once and replayed: CUDA graphs, by which a step of many small kernels is one launch.
//!
//! A replay reads and writes the same memory as the recording: what changes is copied into the same tensors before. Torch's
//! generator goes on from one replay to the next, so that each draws other numbers, by the seed set before it.

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use tch::{Device, TchError};

use super::{DeviceError, Stream, StreamGuard, cuda_index, synchronize};
use crate::{ffi, recover};

/// Memory that recordings share which are replayed one after the other, and the stream on which they are made: a block
/// of the pool serves again on the stream that it was made on, and on no other.
#[derive(Clone, Copy, Debug)]
pub struct RecordingPool {
    id: [u64; 2],
    stream: Stream,
}

impl RecordingPool {
    /// A pool of `device`.
    ///
    /// # Errors
    /// Without that GPU.
    pub fn new(device: Device) -> Result<Self, DeviceError> {
        cuda_index("RecordingPool::new", device)?;
        super::cuda_device_count()?;
        let mut id = [0; 2];
        // SAFETY: both numbers are written before the call returns.
        unsafe { ffi::check(kdgat_graph_pool(id.as_mut_ptr()))? };
        // The default stream cannot be recorded.
        Ok(Self { id, stream: Stream::from_pool(device, false)? })
    }
}

/// Why nothing was recorded.
#[derive(Debug)]
pub enum RecordingError<E> {
    /// The work failed, and the recording of it was ended: all is as before.
    Work(E),
    /// Something cannot be recorded. Torch's generator is of no use after that: the process should end.
    Recording(DeviceError),
}

impl<E> From<DeviceError> for RecordingError<E> {
    fn from(error: DeviceError) -> Self {
        Self::Recording(error)
    }
}

/// A stretch of a GPU's work.
#[derive(Debug)]
pub struct Recording {
    graph: NonNull<c_void>,
    device: Device,
    /// What the pool had to take from the driver for it and no tensor holds.
    captured_bytes: u64,
}

// SAFETY: the object is used by one thread at a time, by `&mut self`, and its destructor selects its own device.
unsafe impl Send for Recording {}

/// Bytes of all recordings that are reserved and not allocated: no tensor of another pool can have them.
static CAPTURED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes that [`super::device_memory`] counts as reserved and not as allocated, and that are not free all the same: memory which
/// recordings use when they are replayed.
pub fn captured_bytes() -> u64 {
    CAPTURED_BYTES.load(Ordering::Relaxed)
}

impl Recording {
    /// Records what `work` gives the pool's device to do; nothing of it is done. All that `work` reads and writes on the
    /// device has to stay where it is as long as the recording, and `work` must not wait for the device.
    ///
    /// # Errors
    /// Of `work`, or of libtorch where something cannot be recorded.
    pub fn of<R, E: From<TchError>>(
        pool: RecordingPool,
        work: impl FnOnce() -> Result<R, E>,
    ) -> Result<(Self, R), RecordingError<E>> {
        let device = pool.stream.device();
        let mut recording = Self::new(device)?;
        synchronize(device)?;
        let unused_before = unused_bytes(device)?;
        let _current = StreamGuard::enter(&pool.stream)?;
        recording.begin(pool)?;
        let result = recover(work);
        // Ended even after an error: until then the device takes nothing else from this thread.
        recording.end()?;
        recording.captured_bytes = unused_bytes(device)?.saturating_sub(unused_before);
        CAPTURED_BYTES.fetch_add(recording.captured_bytes, Ordering::Relaxed);
        Ok((recording, result.map_err(RecordingError::Work)?))
    }

    fn new(device: Device) -> Result<Self, DeviceError> {
        let mut graph = ptr::null_mut();
        // SAFETY: `graph` is written before the call returns, and is ours.
        unsafe { ffi::check(kdgat_graph_new(&mut graph))? };
        match NonNull::new(graph) {
            Some(graph) => Ok(Self { graph, device, captured_bytes: 0 }),
            None => Err(TchError::Torch("libtorch made no recording".to_owned()).into()),
        }
    }

    fn begin(&mut self, pool: RecordingPool) -> Result<(), DeviceError> {
        // SAFETY: the object lives, exclusively borrowed.
        unsafe { Ok(ffi::check(kdgat_graph_begin(self.graph.as_ptr(), pool.id.as_ptr()))?) }
    }

    fn end(&mut self) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { Ok(ffi::check(kdgat_graph_end(self.graph.as_ptr()))?) }
    }

    /// Queues the work on the current stream. The host does not wait.
    ///
    /// # Errors
    /// Of the driver.
    pub fn replay(&mut self) -> Result<(), DeviceError> {
        // SAFETY: as above; what it reads and writes is there, by the contract of `of`.
        unsafe { Ok(ffi::check(kdgat_graph_replay(self.graph.as_ptr()))?) }
    }
}

impl Drop for Recording {
    /// Waits for the last replay, which may still be under way.
    fn drop(&mut self) {
        if let Err(error) = synchronize(self.device) {
            tracing::error!("waiting for a recorded step before it is freed: {error}");
        }
        CAPTURED_BYTES.fetch_sub(self.captured_bytes, Ordering::Relaxed);
        // SAFETY: the object was made by `kdgat_graph_new` and is used by nobody else.
        if let Err(error) = unsafe { ffi::check(kdgat_graph_free(self.graph.as_ptr())) } {
            tracing::error!("a recorded step could not be freed: {error}");
        }
    }
}

/// Reserved and not allocated.
fn unused_bytes(device: Device) -> Result<u64, DeviceError> {
    let memory = super::device_memory(device)?;
    Ok(u64::try_from(memory.reserved - memory.allocated).unwrap_or(0))
}

unsafe extern "C" {
    fn kdgat_graph_pool(pool: *mut u64) -> *mut c_char;
    fn kdgat_graph_new(graph: *mut *mut c_void) -> *mut c_char;
    fn kdgat_graph_begin(graph: *mut c_void, pool: *const u64) -> *mut c_char;
    fn kdgat_graph_end(graph: *mut c_void) -> *mut c_char;
    fn kdgat_graph_replay(graph: *mut c_void) -> *mut c_char;
    fn kdgat_graph_free(graph: *mut c_void) -> *mut c_char;
}
