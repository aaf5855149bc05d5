//! Settings of libtorch's threading libraries, OpenMP and MKL. A call does nothing if the library lacks the function.

use std::ffi::{CStr, c_int, c_void};

/// Ends the idle threads of the calling thread's OpenMP pool; its next loop starts new ones.
///
/// Otherwise they would spin on the student's cores for milliseconds. Also, libgomp counts the threads of all callers:
/// if there are more than cores, idle threads sleep at once. Waking them for each loop of a step costs a student whose
/// loops run on libtorch's threads more time than computing the teacher's targets. Does nothing if the library is not
/// OpenMP or older than OpenMP 5.0.
pub fn end_idle_threads() {
    const SOFT: c_int = 1;
    let Some(pause) = function(c"omp_pause_resource_all") else {
        tracing::debug!("the OpenMP library cannot end its idle threads");
        return;
    };
    // SAFETY: OpenMP's function of that name has this signature. Outside of a loop, it ends idle threads only.
    let refused = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(pause)(SOFT) };
    if refused != 0 {
        tracing::debug!("the OpenMP library did not end its idle threads");
    }
}

/// Makes loops of the calling thread run on it alone from now on: libtorch's, and ours unless it has
/// [`super::OwnThreads`].
///
/// For threads that work beside the training loop: additional threads would take cores from training and count against
/// libgomp's limit (see [`end_idle_threads`]).
pub fn compute_alone() {
    set_threads(1);
}

/// Sets the number of libtorch threads for loops of the calling thread.
pub(super) fn set_threads(threads: usize) {
    // libtorch sets the number on a thread's first query; a later first query would undo this setting.
    tch::get_num_threads();
    let Some(set) = function(c"omp_set_num_threads") else {
        tracing::debug!("the OpenMP library cannot set the number of threads");
        return;
    };
    let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
    // MKL computes exponentials and large products; it has a separate number for each thread.
    if let Some(set) = function(c"MKL_Set_Num_Threads_Local") {
        // SAFETY: MKL's function of that name has this signature; it sets the number for the calling thread.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(set)(threads) };
    }
    // SAFETY: OpenMP's function of that name has this signature; it sets the number for the calling thread.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(set)(threads) };
}

/// Number of cores according to OpenMP.
pub(super) fn cores() -> Option<usize> {
    let count = function(c"omp_get_num_procs")?;
    // SAFETY: OpenMP's function of that name has this signature.
    let cores = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(count)() };
    usize::try_from(cores).ok()
}

/// The address of a function in the libraries loaded with libtorch, if it exists.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is null-terminated.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
