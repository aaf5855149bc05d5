//! Ending the process without libtorch's destructors.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::cuda::TEST_CUDA_LIBRARY;

/// Ends the process at once, without running destructors: libtorch's would free memory that other threads still use.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: takes a number and does not return; the system already has all data written to files.
    unsafe { libc::_exit(code) }
}

unsafe extern "C" {
    /// glibc's: `handler` gets the exit code and `argument` when the process ends by `exit`, before the handlers that were registered earlier.
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The process ends without running libtorch's destructors, which take a quarter of a short command's time: they unregister some thousand
/// operators one by one. To be called at the beginning of `main`, so that what is registered later still runs. Rust's own output is flushed
/// before. The destructors run where there is no memory for the registration, and under tests with a library in the place of libtorch's for
/// CUDA, which reports what it has seen in its own.
pub fn skip_destructors_at_exit() {
    if std::env::var_os(TEST_CUDA_LIBRARY).is_some() {
        return;
    }
    extern "C" fn end(code: c_int, _: *mut c_void) {
        // SAFETY: flushes all of C's streams, which are locked one by one.
        unsafe { libc::fflush(null_mut()) };
        exit_now(code);
    }
    // SAFETY: the handler doesn't read its argument and does not unwind.
    unsafe { on_exit(end, null_mut()) };
}
