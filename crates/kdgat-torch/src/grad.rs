//! Assignment of gradients: sets `.grad` to a given tensor, such as a slice of one flat buffer.

use std::ffi::c_char;
use std::ptr;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::ffi;

/// Makes `tensor.grad()` return `gradient` itself, without a copy; the backward then accumulates into that memory.
///
/// `tensor` must be a leaf that requires a gradient; `gradient` must have its shape, type and device.
pub fn set_grad(tensor: &Tensor, gradient: &Tensor) -> Result<(), TchError> {
    // SAFETY: both tensors outlive the call, which copies the handle.
    unsafe { ffi::check(kdgat_set_grad(tensor.as_ptr(), gradient.as_ptr())) }
}

/// Removes `tensor`'s gradient, so that the next backward creates a new one.
pub fn clear_grad(tensor: &Tensor) -> Result<(), TchError> {
    // SAFETY: `tensor` outlives the call.
    unsafe { ffi::check(kdgat_set_grad(tensor.as_ptr(), ptr::null())) }
}

/// Handles to the same data detached from the graph, as new leaves that require a gradient if the originals do.
///
/// Recomputation starts from these: a backward through results computed from them stops there.
pub fn detached_leaves(tensors: &[&Tensor]) -> Result<Vec<Tensor>, TchError> {
    tensors.iter().map(|tensor| tensor.f_detach()?.f_set_requires_grad(tensor.requires_grad())).collect()
}

unsafe extern "C" {
    fn kdgat_set_grad(tensor: *const C_tensor, gradient: *const C_tensor) -> *mut c_char;
}
