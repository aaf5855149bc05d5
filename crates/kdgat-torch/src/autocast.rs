//! Automatic mixed precision with a selectable type, restored whatever happens inside.

use std::ffi::c_char;
use std::marker::PhantomData;

use tch::{Device, Kind, TchError, Tensor};

use super::device::scalar_type;
use super::ffi;

/// Enables mixed precision on this thread until dropped: torch runs operations that are safe in `kind` in that type,
/// the rest in f32.
#[derive(Debug)]
#[must_use = "mixed precision ends when this is dropped"]
pub struct Autocast {
    on_cuda: bool,
    was_enabled: bool,
    previous_kind: i8,
    /// The setting belongs to one thread.
    thread_bound: PhantomData<*const ()>,
}

impl Autocast {
    /// Enables mixed precision in `kind` (bf16, or f16 on a GPU) for operations on `device`.
    pub fn enter(device: Device, kind: Kind) -> Result<Self, TchError> {
        Self::enter_raw(device.is_cuda(), scalar_type(kind)?)
    }

    fn enter_raw(on_cuda: bool, kind: i8) -> Result<Self, TchError> {
        let (mut was_enabled, mut previous_kind) = (false, 0);
        // SAFETY: both are written before the call returns.
        unsafe { ffi::check(kdgat_autocast_enter(on_cuda, kind, &mut was_enabled, &mut previous_kind))? };
        Ok(Self { on_cuda, was_enabled, previous_kind, thread_bound: PhantomData })
    }
}

/// Converts half-precision tensors to f32 and returns others unchanged. A sum of many numbers needs more precision, and
/// the difference between two models that agree is below half precision's resolution.
pub fn widened(tensor: &Tensor) -> Result<Tensor, TchError> {
    let is_half = matches!(tensor.f_kind()?, Kind::Half | Kind::BFloat16);
    if is_half { tensor.f_to_kind(Kind::Float) } else { Ok(tensor.shallow_clone()) }
}

/// True if mixed precision is enabled on this thread for `device`.
pub fn is_in_force(device: Device) -> Result<bool, TchError> {
    let [host, cuda] = AutocastState::current()?.kinds;
    Ok(if device.is_cuda() { cuda } else { host }.is_some())
}

/// The mixed-precision state of a thread, re-entered by a recomputation.
#[derive(Clone, Copy, Debug)]
pub(super) struct AutocastState {
    /// The type on the CPU and on CUDA; `None` where disabled.
    kinds: [Option<i8>; 2],
}

impl AutocastState {
    pub(super) fn current() -> Result<Self, TchError> {
        let mut kinds = [None; 2];
        for (on_cuda, kind_of) in [false, true].into_iter().zip(&mut kinds) {
            let (mut enabled, mut kind) = (false, 0);
            // SAFETY: both are written before the call returns.
            unsafe { ffi::check(kdgat_autocast_state(on_cuda, &mut enabled, &mut kind))? };
            *kind_of = enabled.then_some(kind);
        }
        Ok(Self { kinds })
    }

    pub(super) fn enter(self) -> Result<[Option<Autocast>; 2], TchError> {
        let [host, cuda] = self.kinds;
        let enter = |on_cuda, kind: Option<i8>| kind.map(|kind| Autocast::enter_raw(on_cuda, kind)).transpose();
        Ok([enter(false, host)?, enter(true, cuda)?])
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: plain values.
        if let Err(error) =
            unsafe { ffi::check(kdgat_autocast_leave(self.on_cuda, self.was_enabled, self.previous_kind)) }
        {
            tracing::error!("cannot end mixed precision: {error}");
        }
    }
}

unsafe extern "C" {
    fn kdgat_autocast_enter(on_cuda: bool, kind: i8, was_enabled: *mut bool, previous_kind: *mut i8) -> *mut c_char;
    fn kdgat_autocast_state(on_cuda: bool, enabled: *mut bool, kind: *mut i8) -> *mut c_char;
    fn kdgat_autocast_leave(on_cuda: bool, was_enabled: bool, previous_kind: i8) -> *mut c_char;
}
