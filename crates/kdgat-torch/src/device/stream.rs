//! Streams: queues of work on a device.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::ptr;

use tch::Device;

use super::{DeviceError, cuda_index};
use crate::ffi;

/// A queue of work: one stream runs its work in order, different streams may overlap.
///
/// Streams belong to torch and are never destroyed; copies of this handle refer to the same stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    device: Device,
    raw: Option<RawStream>,
}

/// Mirrors `KdgatStream` of `shim/device.cpp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawStream {
    id: i64,
    device: i8,
}

impl Stream {
    /// A side stream of torch's pool, which hands them out in turn.
    pub fn from_pool(device: Device, high_priority: bool) -> Result<Self, DeviceError> {
        // SAFETY: the call writes `raw` before it returns.
        Self::get("Stream::from_pool", device, |index, raw| unsafe {
            kdgat_stream_from_pool(index, high_priority, raw)
        })
    }

    /// The current stream of this thread for operations on `device`.
    pub fn current(device: Device) -> Result<Self, DeviceError> {
        // SAFETY: see above.
        Self::get("Stream::current", device, |index, raw| unsafe { kdgat_stream_current(index, raw) })
    }

    /// The default stream of `device`.
    pub fn default_of(device: Device) -> Result<Self, DeviceError> {
        // SAFETY: see above.
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

    /// The device of the stream.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Waits until all work queued so far is done.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: a plain value.
        self.raw.map_or(Ok(()), |raw| unsafe { Ok(ffi::check(kdgat_stream_synchronize(raw))?) })
    }

    /// True if all work queued so far is done.
    pub fn is_idle(&self) -> Result<bool, DeviceError> {
        let mut done = true;
        if let Some(raw) = self.raw {
            // SAFETY: the call writes `done` before it returns.
            unsafe { ffi::check(kdgat_stream_query(raw, &mut done))? };
        }
        Ok(done)
    }

    /// The driver's own handle (a `cudaStream_t`), for launching kernels outside of torch; null on the CPU.
    pub fn native_handle(&self) -> Result<*mut c_void, DeviceError> {
        let mut handle = ptr::null_mut();
        if let Some(raw) = self.raw {
            // SAFETY: the call writes `handle` before it returns.
            unsafe { ffi::check(kdgat_stream_native(raw, &mut handle))? };
        }
        Ok(handle)
    }

    pub(crate) fn raw(&self) -> Option<RawStream> {
        self.raw
    }
}

/// Makes a stream (and its device) current for this thread's operations until dropped.
#[derive(Debug)]
#[must_use = "the stream is current until this is dropped"]
pub struct StreamGuard {
    previous: Option<(RawStream, i8)>,
    /// The current stream belongs to one thread.
    thread_bound: PhantomData<*const ()>,
}

impl StreamGuard {
    /// Makes `stream` current.
    pub fn enter(stream: &Stream) -> Result<Self, DeviceError> {
        let previous = match stream.raw {
            None => None,
            Some(raw) => {
                let (mut previous, mut device) = (RawStream::default(), 0);
                // SAFETY: the call writes both before it returns.
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
                tracing::error!("cannot restore the previous stream: {error}");
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
