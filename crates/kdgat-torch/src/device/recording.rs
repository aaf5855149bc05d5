//! CUDA graphs: GPU work recorded once and replayed, so that a step of many small kernels is a single launch.
//!
//! A replay reads and writes the same memory as the recording: new inputs must be copied into the same tensors before.
//! Torch's generator advances from one replay to the next, so each draws different numbers, determined by the seed set
//! before it.

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use tch::{Device, TchError};

use super::memory::change_captured;
use super::{DeviceError, Stream, StreamGuard, cuda_index, synchronize};
use crate::{ffi, recover};

/// Memory shared by CUDA graphs that are replayed one after the other, and the stream that records them: a block of the
/// pool is reused only on the stream that allocated it.
#[derive(Clone, Copy, Debug)]
pub struct RecordingPool {
    id: [u64; 2],
    stream: Stream,
}

impl RecordingPool {
    /// Creates a pool on `device`.
    ///
    /// # Errors
    /// If the GPU does not exist.
    pub fn new(device: Device) -> Result<Self, DeviceError> {
        cuda_index("RecordingPool::new", device)?;
        super::cuda_device_count()?;
        let mut id = [0; 2];
        // SAFETY: the call writes both numbers before it returns.
        unsafe { ffi::check(kdgat_graph_pool(id.as_mut_ptr()))? };
        // CUDA cannot record the default stream.
        Ok(Self { id, stream: Stream::from_pool(device, false)? })
    }
}

/// Errors in recording a CUDA graph.
#[derive(Debug)]
pub enum RecordingError<E> {
    /// The work failed and its recording was ended; the state is as before.
    Work(E),
    /// An operation cannot be recorded. Torch's generator is unusable after that: the process should exit.
    Recording(DeviceError),
}

impl<E> From<DeviceError> for RecordingError<E> {
    fn from(error: DeviceError) -> Self {
        Self::Recording(error)
    }
}

/// A recorded CUDA graph.
#[derive(Debug)]
pub struct Recording {
    graph: NonNull<c_void>,
    device: Device,
    /// Bytes that the pool took from the driver for this recording and that no tensor holds.
    captured_bytes: u64,
}

// SAFETY: one thread at a time uses the object, by `&mut self`, and its destructor selects its own device.
unsafe impl Send for Recording {}

/// Bytes of all recordings that are reserved but not allocated: tensors of other pools cannot use them.
static CAPTURED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes that CUDA graphs use in a replay. [`super::device_memory`] counts them as reserved and not allocated, but they
/// are not free.
pub fn captured_bytes() -> u64 {
    CAPTURED_BYTES.load(Ordering::Relaxed)
}

impl Recording {
    /// Records the work that `work` queues on the pool's device, without running it. All device memory that `work`
    /// reads or writes must stay in place as long as the recording exists, and `work` must not wait for the device.
    ///
    /// # Errors
    /// An error of `work`, or of libtorch if something cannot be recorded.
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
        // Ended even after an error: until then, the device accepts no other work from this thread.
        recording.end()?;
        recording.captured_bytes = unused_bytes(device)?.saturating_sub(unused_before);
        change_captured(device, || {
            CAPTURED_BYTES.fetch_add(recording.captured_bytes, Ordering::Relaxed);
        })?;
        Ok((recording, result.map_err(RecordingError::Work)?))
    }

    fn new(device: Device) -> Result<Self, DeviceError> {
        let mut graph = ptr::null_mut();
        // SAFETY: the call writes `graph` before it returns, and we own it.
        unsafe { ffi::check(kdgat_graph_new(&mut graph))? };
        match NonNull::new(graph) {
            Some(graph) => Ok(Self { graph, device, captured_bytes: 0 }),
            None => Err(TchError::Torch("libtorch returned no CUDA graph".to_owned()).into()),
        }
    }

    fn begin(&mut self, pool: RecordingPool) -> Result<(), DeviceError> {
        // SAFETY: the object is alive and exclusively borrowed.
        unsafe { Ok(ffi::check(kdgat_graph_begin(self.graph.as_ptr(), pool.id.as_ptr()))?) }
    }

    fn end(&mut self) -> Result<(), DeviceError> {
        // SAFETY: see above.
        unsafe { Ok(ffi::check(kdgat_graph_end(self.graph.as_ptr()))?) }
    }

    /// Queues the recorded work on the current stream. The host does not wait.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn replay(&mut self) -> Result<(), DeviceError> {
        // SAFETY: see above; the memory it reads and writes exists, by the contract of `of`.
        unsafe { Ok(ffi::check(kdgat_graph_replay(self.graph.as_ptr()))?) }
    }
}

impl Drop for Recording {
    /// Waits for the last replay, which may still be running.
    fn drop(&mut self) {
        if let Err(error) = synchronize(self.device) {
            tracing::error!("cannot wait for a CUDA graph before freeing it: {error}");
        }
        let less = || {
            CAPTURED_BYTES.fetch_sub(self.captured_bytes, Ordering::Relaxed);
        };
        if let Err(error) = change_captured(self.device, less) {
            tracing::error!("cannot read the memory of {:?}: {error}", self.device);
        }
        // SAFETY: the object was created by `kdgat_graph_new`, and nobody else uses it.
        if let Err(error) = unsafe { ffi::check(kdgat_graph_free(self.graph.as_ptr())) } {
            tracing::error!("cannot free a CUDA graph: {error}");
        }
    }
}

/// Bytes that are reserved but not allocated.
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
