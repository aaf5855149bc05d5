//! Marks in a stream that other streams, or the host, wait for.

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use tch::Device;

use super::stream::RawStream;
use super::{DeviceError, Stream, cuda_index};
use crate::ffi;

/// A point in a stream's work.
#[derive(Debug)]
pub struct Event {
    device: Device,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    /// Work on the CPU is done when its call returns: only the time is kept.
    Host(Option<Instant>),
    Cuda(NonNull<c_void>),
}

// SAFETY: CUDA's events may be used from any thread; recording takes `&mut self`.
unsafe impl Send for Event {}
// SAFETY: as above; what takes `&self` only reads.
unsafe impl Sync for Event {}

impl Event {
    /// An event of `device`. Only `timed` ones can tell [`Event::elapsed`]; they cost a little more.
    pub fn new(device: Device, timed: bool) -> Result<Self, DeviceError> {
        if device == Device::Cpu {
            return Ok(Self { device, inner: Inner::Host(None) });
        }
        cuda_index("Event::new", device)?;
        let mut event = ptr::null_mut();
        // SAFETY: `event` is written before the call returns, and is ours.
        unsafe { ffi::check(kdgat_event_new(timed, &mut event))? };
        match NonNull::new(event) {
            Some(event) => Ok(Self { device, inner: Inner::Cuda(event) }),
            None => Err(tch::TchError::Torch("libtorch made no event".to_owned()).into()),
        }
    }

    /// Marks the end of what is queued on `stream` now. Recording again moves the mark.
    pub fn record(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        self.check("Event::record", stream)?;
        match (&mut self.inner, stream.raw()) {
            (Inner::Host(time), _) => *time = Some(Instant::now()),
            // SAFETY: the event lives, exclusively borrowed.
            (Inner::Cuda(event), Some(raw)) => unsafe { ffi::check(kdgat_event_record(event.as_ptr(), raw))? },
            (Inner::Cuda(_), None) => {}
        }
        Ok(())
    }

    /// Lets what is queued on `stream` from now on wait for the mark; the host does not wait. Without effect if
    /// nothing was recorded.
    pub fn wait(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.check("Event::wait", stream)?;
        if let (Inner::Cuda(event), Some(raw)) = (&self.inner, stream.raw()) {
            // SAFETY: the event lives.
            unsafe { ffi::check(kdgat_event_block(event.as_ptr(), raw))? };
        }
        Ok(())
    }

    /// Whether the mark has been reached (or nothing was recorded).
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        let mut done = true;
        if let Inner::Cuda(event) = &self.inner {
            // SAFETY: the event lives, `done` is written before the call returns.
            unsafe { ffi::check(kdgat_event_query(event.as_ptr(), &mut done))? };
        }
        Ok(done)
    }

    /// Lets the host wait for the mark.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        match &self.inner {
            Inner::Host(_) => Ok(()),
            // SAFETY: the event lives.
            Inner::Cuda(event) => unsafe { Ok(ffi::check(kdgat_event_synchronize(event.as_ptr()))?) },
        }
    }

    /// Time from `earlier`'s mark to this one. Both must be timed and done.
    pub fn elapsed(&self, earlier: &Self) -> Result<Duration, DeviceError> {
        let not_recorded = || tch::TchError::Torch("elapsed: an event was never recorded".to_owned());
        match (&earlier.inner, &self.inner) {
            (Inner::Host(start), Inner::Host(end)) => {
                let (start, end) = (start.ok_or_else(not_recorded)?, end.ok_or_else(not_recorded)?);
                Ok(end.saturating_duration_since(start))
            }
            (Inner::Cuda(start), Inner::Cuda(end)) => {
                let mut milliseconds = 0.0;
                // SAFETY: both events live, `milliseconds` is written before the call returns.
                unsafe { ffi::check(kdgat_event_elapsed(start.as_ptr(), end.as_ptr(), &mut milliseconds))? };
                Ok(Duration::from_secs_f64(milliseconds.max(0.0) / 1e3))
            }
            _ => Err(DeviceError::Mixed { what: "Event::elapsed", found: earlier.device, expected: self.device }),
        }
    }

    fn check(&self, what: &'static str, stream: &Stream) -> Result<(), DeviceError> {
        if stream.device() == self.device {
            return Ok(());
        }
        Err(DeviceError::Mixed { what, found: stream.device(), expected: self.device })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Inner::Cuda(event) = self.inner {
            // SAFETY: made by `kdgat_event_new`, freed once.
            unsafe { kdgat_event_free(event.as_ptr()) }
        }
    }
}

unsafe extern "C" {
    fn kdgat_event_new(timed: bool, event: *mut *mut c_void) -> *mut c_char;
    fn kdgat_event_free(event: *mut c_void);
    fn kdgat_event_record(event: *mut c_void, stream: RawStream) -> *mut c_char;
    fn kdgat_event_block(event: *const c_void, stream: RawStream) -> *mut c_char;
    fn kdgat_event_query(event: *const c_void, done: *mut bool) -> *mut c_char;
    fn kdgat_event_synchronize(event: *const c_void) -> *mut c_char;
    fn kdgat_event_elapsed(start: *const c_void, end: *const c_void, milliseconds: *mut f64) -> *mut c_char;
}
