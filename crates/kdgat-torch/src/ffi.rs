//! Conversion of results and errors between Rust and the C++ files in `shim/`.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_void};

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

/// Converts the return value of an exported C++ function to a result: null for success, or an error text allocated by
/// malloc.
///
/// # Safety
/// `text` is null or a null-terminated string from `malloc` that nobody else frees.
pub(super) unsafe fn check(text: *mut c_char) -> Result<(), TchError> {
    if text.is_null() {
        return Ok(());
    }
    // SAFETY: by this function's contract.
    let message = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: by this function's contract.
    unsafe { libc::free(text.cast::<c_void>()) };
    Err(TchError::Torch(message))
}

/// Converts an error message to a text for C++, allocated by malloc.
pub(super) fn error_text(message: &str) -> *mut c_char {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // SAFETY: strdup reads the null-terminated string `text`.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() {
        // Null would mean success.
        std::process::abort();
    }
    copy
}

/// The text of an error as libtorch's operations reported it, without the prefix that tch adds.
pub(super) fn message_of(error: &TchError) -> String {
    match error {
        TchError::Torch(message) => message.clone(),
        other => other.to_string(),
    }
}

/// The message of a panic.
pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("with a value that is not text"))
}

/// The pointers of `tensors`, valid while the tensors live.
pub(super) fn pointers(tensors: &[&Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr()).collect()
}

/// Passes ownership of a tensor to C++.
pub(super) fn into_raw(mut tensor: Tensor) -> *mut C_tensor {
    let pointer = tensor.as_mut_ptr();
    std::mem::forget(tensor);
    pointer
}

/// Takes ownership of a tensor from C++; null is an undefined tensor.
///
/// # Safety
/// `pointer` is null or a tensor on the heap that nobody else frees.
pub(super) unsafe fn from_raw(pointer: *mut C_tensor) -> Option<Tensor> {
    // SAFETY: by this function's contract.
    (!pointer.is_null()).then(|| unsafe { Tensor::from_ptr(pointer) })
}
