//! Queues of work on a device.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::ptr;

use tch::Device;

use super::{DeviceError, cuda_index};
use crate::ffi;

/// A queue of work: what is put on one stream runs in order, different streams may overlap.
///
/// Streams are torch's own, never destroyed; copies of this handle are the same stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    device: Device,
    raw: Option<RawStream>,
}

/// `KdgatStream` of `shim/device.cpp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawStream {
    id: i64,
    device: i8,
}

impl Stream {
    /// One of torch's pool of side streams (they are handed out in turn).
    pub fn from_pool(device: Device, high_priority: bool) -> Result<Self, DeviceError> {
        // SAFETY: `raw` is written before the call returns.
        Self::get("Stream::from_pool", device, |index, raw| unsafe {
            kdgat_stream_from_pool(index, high_priority, raw)
        })
    }

    /// The stream that this thread's operations on `device` go to now.
    pub fn current(device: Device) -> Result<Self, DeviceError> {
        // SAFETY: as above.
        Self::get("Stream::current", device, |index, raw| unsafe { kdgat_stream_current(index, raw) })
    }

    /// The stream that is current where nothing else was chosen.
    pub fn default_of(device: Device) -> Result<Self, DeviceError> {
        // SAFETY: as above.
        Self::get("Stream::default_of", device, |index, raw| unsafe { kdgat_stream_default(index, raw) })
    }

    fn get(
        what: &'static str,
        device: Device,
        get: impl FnOnce(i8, *mut RawStream) -> *mut c_char,
    ) -> Result<Self, DeviceError> {
        if device == Device::Cpu {
            return Ok(Self { device, raw: None });
        }
        let mut raw = RawStream::default();
        // SAFETY: `get` calls an exported function.
        unsafe { ffi::check(get(cuda_index(what, device)?, &mut raw))? };
        Ok(Self { device, raw: Some(raw) })
    }

    /// The device whose work is queued.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Waits until everything queued so far is done.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: a plain value.
        self.raw.map_or(Ok(()), |raw| unsafe { Ok(ffi::check(kdgat_stream_synchronize(raw))?) })
    }

    /// Whether everything queued so far is done.
    pub fn is_idle(&self) -> Result<bool, DeviceError> {
        let mut done = true;
        if let Some(raw) = self.raw {
            // SAFETY: `done` is written before the call returns.
            unsafe { ffi::check(kdgat_stream_query(raw, &mut done))? };
        }
        Ok(done)
    }

    /// The driver's own handle (a `cudaStream_t`), to launch kernels that torch does not know; null on the CPU.
    pub fn native_handle(&self) -> Result<*mut c_void, DeviceError> {
        let mut handle = ptr::null_mut();
        if let Some(raw) = self.raw {
            // SAFETY: `handle` is written before the call returns.
            unsafe { ffi::check(kdgat_stream_native(raw, &mut handle))? };
        }
        Ok(handle)
    }

    pub(crate) fn raw(&self) -> Option<RawStream> {
        self.raw
    }
}

/// Lets this thread's operations go to a stream (and its device) until dropped.
#[derive(Debug)]
#[must_use = "the stream is current until this is dropped"]
pub struct StreamGuard {
    previous: Option<(RawStream, i8)>,
    /// The current stream is a thread's.
    thread_bound: PhantomData<*const ()>,
}

impl StreamGuard {
    /// Makes `stream` current.
    pub fn enter(stream: &Stream) -> Result<Self, DeviceError> {
        let previous = match stream.raw {
            None => None,
            Some(raw) => {
                let (mut previous, mut device) = (RawStream::default(), 0);
                // SAFETY: both are written before the call returns.
                unsafe { ffi::check(kdgat_stream_enter(raw, &mut previous, &mut device))? };
                Some((previous, device))
            }
        };
        Ok(Self { previous, thread_bound: PhantomData })
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if let Some((previous, device)) = self.previous {
            // SAFETY: plain values.
            if let Err(error) = unsafe { ffi::check(kdgat_stream_leave(previous, device)) } {
                tracing::error!("the previous stream could not be made current again: {error}");
            }
        }
    }
}

unsafe extern "C" {
    fn kdgat_stream_from_pool(device: i8, high_priority: bool, stream: *mut RawStream) -> *mut c_char;
    fn kdgat_stream_current(device: i8, stream: *mut RawStream) -> *mut c_char;
    fn kdgat_stream_default(device: i8, stream: *mut RawStream) -> *mut c_char;
    fn kdgat_stream_enter(stream: RawStream, previous: *mut RawStream, previous_device: *mut i8) -> *mut c_char;
    fn kdgat_stream_leave(previous: RawStream, previous_device: i8) -> *mut c_char;
    fn kdgat_stream_synchronize(stream: RawStream) -> *mut c_char;
    fn kdgat_stream_query(stream: RawStream, done: *mut bool) -> *mut c_char;
    fn kdgat_stream_native(stream: RawStream, handle: *mut *mut c_void) -> *mut c_char;
}
