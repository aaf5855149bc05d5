//! Where gradients live: `.grad` set to a tensor of one's own, such as a slice of one flat buffer.

use std::ffi::c_char;
use std::ptr;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::ffi;

/// Lets `tensor.grad()` be `gradient` itself (no copy); the backward then adds into that memory.
///
/// `tensor` must be a leaf that requires a gradient, `gradient` of its shape, type and device.
pub fn set_grad(tensor: &Tensor, gradient: &Tensor) -> Result<(), TchError> {
    // SAFETY: both tensors outlive the call, which copies the handle.
    unsafe { ffi::check(kdgat_set_grad(tensor.as_ptr(), gradient.as_ptr())) }
}

/// Removes `tensor`'s gradient, so that the next backward makes a new one.
pub fn clear_grad(tensor: &Tensor) -> Result<(), TchError> {
    // SAFETY: `tensor` outlives the call.
    unsafe { ffi::check(kdgat_set_grad(tensor.as_ptr(), ptr::null())) }
}

/// Handles to the same data outside the graph, as new leaves that require a gradient where the originals did.
///
/// What recomputation starts from: a backward through what is made of them stops there.
pub fn detached_leaves(tensors: &[&Tensor]) -> Result<Vec<Tensor>, TchError> {
    tensors.iter().map(|tensor| tensor.f_detach()?.f_set_requires_grad(tensor.requires_grad())).collect()
}

unsafe extern "C" {
    fn kdgat_set_grad(tensor: *const C_tensor, gradient: *const C_tensor) -> *mut c_char;
}
