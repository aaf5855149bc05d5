//! Events: markers in a stream that other streams, or the host, wait for.

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use tch::Device;

use super::stream::RawStream;
use super::{DeviceError, Stream, cuda_index};
use crate::ffi;

/// A marker in a stream's work.
#[derive(Debug)]
pub struct Event {
    device: Device,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    /// Work on the CPU is done when its call returns: only the time of recording matters.
    Host(Option<Instant>),
    Cuda(NonNull<c_void>),
}

// SAFETY: any thread may use CUDA's events; recording takes `&mut self`.
unsafe impl Send for Event {}
// SAFETY: see above; methods that take `&self` only read.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event of `device`. [`Event::elapsed`] needs `timed` events, which cost a little more.
    pub fn new(device: Device, timed: bool) -> Result<Self, DeviceError> {
        if device == Device::Cpu {
            return Ok(Self { device, inner: Inner::Host(None) });
        }
        cuda_index("Event::new", device)?;
        let mut event = ptr::null_mut();
        // SAFETY: the call writes `event` before it returns, and we own it.
        unsafe { ffi::check(kdgat_event_new(timed, &mut event))? };
        match NonNull::new(event) {
            Some(event) => Ok(Self { device, inner: Inner::Cuda(event) }),
            None => Err(tch::TchError::Torch("libtorch returned no event".to_owned()).into()),
        }
    }

    /// Marks the end of the work queued on `stream` so far. Recording again moves the marker.
    pub fn record(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        self.check("Event::record", stream)?;
        match (&mut self.inner, stream.raw()) {
            (Inner::Host(time), _) => *time = Some(Instant::now()),
            // SAFETY: the event is alive and exclusively borrowed.
            (Inner::Cuda(event), Some(raw)) => unsafe { ffi::check(kdgat_event_record(event.as_ptr(), raw))? },
            (Inner::Cuda(_), None) => {}
        }
        Ok(())
    }

    /// Makes work queued on `stream` from now on wait for the marker; the host does not wait. Does nothing if the event
    /// was never recorded.
    pub fn wait(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.check("Event::wait", stream)?;
        if let (Inner::Cuda(event), Some(raw)) = (&self.inner, stream.raw()) {
            // SAFETY: the event is alive.
            unsafe { ffi::check(kdgat_event_block(event.as_ptr(), raw))? };
        }
        Ok(())
    }

    /// True if the marker has been reached, or the event was never recorded.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        let mut done = true;
        if let Inner::Cuda(event) = &self.inner {
            // SAFETY: the event is alive; the call writes `done` before it returns.
            unsafe { ffi::check(kdgat_event_query(event.as_ptr(), &mut done))? };
        }
        Ok(done)
    }

    /// Makes the host wait for the marker.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        match &self.inner {
            Inner::Host(_) => Ok(()),
            // SAFETY: the event is alive.
            Inner::Cuda(event) => unsafe { Ok(ffi::check(kdgat_event_synchronize(event.as_ptr()))?) },
        }
    }

    /// Time from `earlier`'s marker to this one. Both must be timed and done.
    pub fn elapsed(&self, earlier: &Self) -> Result<Duration, DeviceError> {
        let not_recorded = || tch::TchError::Torch("elapsed: an event was never recorded".to_owned());
        match (&earlier.inner, &self.inner) {
            (Inner::Host(start), Inner::Host(end)) => {
                let (start, end) = (start.ok_or_else(not_recorded)?, end.ok_or_else(not_recorded)?);
                Ok(end.saturating_duration_since(start))
            }
            (Inner::Cuda(start), Inner::Cuda(end)) => {
                let mut milliseconds = 0.0;
                // SAFETY: both events are alive; the call writes `milliseconds` before it returns.
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
            // SAFETY: created by `kdgat_event_new`, freed once.
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
