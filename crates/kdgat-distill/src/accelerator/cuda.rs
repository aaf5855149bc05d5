//! A GPU: copies run on a stream of their own from page-locked memory, ordered by events.
//!
//! Weights are allocated from the pool of the *student's* stream. The caching allocator keeps one pool per stream: memory from the
//! copy stream's pool would not be available to the student between visits.

use std::sync::Arc;

use kdgat_torch::device::{self, DeviceError, Event, PinnedBlock, StreamGuard};
use kdgat_train::processes::CommonBlock;
use tch::{Device, Kind, Tensor};

use super::{Accelerator, AcceleratorError, HostBlock, MemoryState};
use crate::order::Stream;
use crate::targets::Targets;

/// A CUDA device.
#[derive(Debug)]
pub struct Cuda {
    device: Device,
    student: device::Stream,
    teacher: device::Stream,
    copy: device::Stream,
}

impl Cuda {
    /// Drives `device` for the student's thread, which must be the caller: its current stream becomes the student's stream. The
    /// teacher computes on the same stream, between the student's steps.
    pub fn new(device: Device) -> Result<Self, AcceleratorError> {
        let student = device::Stream::current(device)?;
        Ok(Self { device, student, teacher: student, copy: device::Stream::from_pool(device, false)? })
    }

    /// Drives the device like [`Self::new`], with a separate stream for the teacher: for tests that each ordering rule is needed.
    pub fn with_own_stream(device: Device) -> Result<Self, AcceleratorError> {
        Ok(Self { teacher: device::Stream::from_pool(device, false)?, ..Self::new(device)? })
    }

    /// Returns the CUDA stream for `stream`.
    pub fn stream(&self, stream: Stream) -> &device::Stream {
        match stream {
            Stream::Student => &self.student,
            Stream::Teacher => &self.teacher,
            Stream::Copy => &self.copy,
        }
    }
}

/// The block that `make` makes for the device, or ordinary memory if the driver refuses to lock its pages.
fn page_locked(
    device: Device,
    make: impl Fn(Device) -> Result<PinnedBlock, DeviceError>,
) -> Result<HostBlock, AcceleratorError> {
    match make(device) {
        Err(DeviceError::PinningRefused { reason, .. }) => HostBlock::over(&make(Device::Cpu)?, Some(reason)),
        block => HostBlock::over(&block?, None),
    }
}

impl Accelerator for Cuda {
    type Event = Arc<Event>;

    fn device(&self) -> Device {
        self.device
    }

    fn is_host(&self) -> bool {
        false
    }

    fn host_block(&mut self, bytes: usize) -> Result<HostBlock, AcceleratorError> {
        page_locked(self.device, |device| PinnedBlock::new(bytes, device))
    }

    fn common_block(&mut self, block: &CommonBlock, bytes: usize) -> Result<HostBlock, AcceleratorError> {
        page_locked(self.device, |device| PinnedBlock::shared(&block.file, bytes, device))
    }

    fn allocate(&mut self, bytes: usize) -> Result<Tensor, AcceleratorError> {
        let _students_pool = StreamGuard::enter(&self.student)?;
        Ok(Tensor::f_empty([bytes as i64], (Kind::Uint8, self.device))?)
    }

    fn copy(&mut self, from: &Tensor, to: &mut Tensor) -> Result<(), AcceleratorError> {
        let _copies = StreamGuard::enter(&self.copy)?;
        Ok(device::copy(to, from, true)?)
    }

    fn finish_copies(&mut self) -> Result<(), AcceleratorError> {
        Ok(self.copy.synchronize()?)
    }

    fn enter_thread(&mut self) -> Result<StreamGuard, AcceleratorError> {
        Ok(StreamGuard::enter(&self.teacher)?)
    }

    fn record(&mut self, stream: Stream) -> Result<Arc<Event>, AcceleratorError> {
        let mut event = Event::new(self.device, true)?;
        event.record(self.stream(stream))?;
        Ok(Arc::new(event))
    }

    fn wait(&mut self, stream: Stream, event: &Arc<Event>) -> Result<(), AcceleratorError> {
        Ok(event.wait(self.stream(stream))?)
    }

    fn elapsed_ms(&self, from: &Arc<Event>, to: &Arc<Event>) -> Option<f64> {
        if !to.is_done().ok()? {
            return None;
        }
        Some(to.elapsed(from).ok()?.as_secs_f64() * 1e3)
    }

    fn student_takes(events: &[Arc<Event>], targets: &Targets) -> Result<(), AcceleratorError> {
        for (_, tensor) in &targets.tensors {
            let stream = device::Stream::current(tensor.device())?;
            for event in events {
                event.wait(&stream)?;
            }
            device::record_stream(tensor, &stream)?;
        }
        Ok(())
    }

    fn memory(&self) -> MemoryState {
        let Ok(memory) = device::device_memory(self.device) else { return MemoryState::default() };
        let (occupied, peak) = (memory.occupied_bytes(), memory.peak_occupied_bytes());
        // Memory cached by torch's allocator is free for the teacher, too.
        let free_if_empty = memory.usable_bytes() + device::captured_bytes();
        MemoryState {
            free_bytes: Some(free_if_empty.saturating_sub(occupied)),
            free_at_peak_bytes: Some(free_if_empty.saturating_sub(peak)),
            allocated_bytes: Some(occupied),
            peak_bytes: Some(peak),
        }
    }
}
