//! What libtorch's libraries of threads, OpenMP and MKL, can be told; each call does nothing where they do not have it.

use std::ffi::{CStr, c_int, c_void};

/// Ends the threads that are kept for the calling thread; its next loop starts new ones.
///
/// They would spin on the student's cores for milliseconds. And libgomp counts the threads of all callers: where they are more
/// than the cores it lets idle ones sleep at once, and waking them for each loop of a step costs a student whose loops run on
/// libtorch's threads more than its teacher's targets do. Does nothing where the library is another or older one (the call is
/// of OpenMP 5.0).
pub fn end_idle_threads() {
    const SOFT: c_int = 1;
    let Some(pause) = function(c"omp_pause_resource_all") else {
        tracing::debug!("the OpenMP library cannot end its idle threads");
        return;
    };
    // SAFETY: a function of that name is OpenMP's, of this signature. It ends idle threads only: outside a loop.
    let refused = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(pause)(SOFT) };
    if refused != 0 {
        tracing::debug!("the OpenMP library keeps its idle threads");
    }
}

/// Lets loops of the calling thread, libtorch's and ours unless it has [`super::OwnThreads`], run on it alone from now on.
///
/// For threads that work beside the training loop: threads of their own would only take its cores, and be counted as
/// [`end_idle_threads`] tells.
pub fn compute_alone() {
    set_threads(1);
}

/// Sets the threads of the calling thread's loops on libtorch's threads.
pub(super) fn set_threads(threads: usize) {
    // libtorch sets the number for each thread that first asks for it; later it would undo what is set here.
    tch::get_num_threads();
    let Some(set) = function(c"omp_set_num_threads") else {
        tracing::debug!("the OpenMP library does not let a thread have a number of threads of its own");
        return;
    };
    let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
    // MKL, which computes exponentials and large products, has a number of its own for each thread.
    if let Some(set) = function(c"MKL_Set_Num_Threads_Local") {
        // SAFETY: a function of that name is MKL's, of this signature; it sets the number for the calling thread.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(set)(threads) };
    }
    // SAFETY: a function of that name is OpenMP's, of this signature; it sets the number for the calling thread.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(set)(threads) };
}

/// The cores that the library knows of.
pub(super) fn cores() -> Option<usize> {
    let count = function(c"omp_get_num_procs")?;
    // SAFETY: a function of that name is OpenMP's, of this signature.
    let cores = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(count)() };
    usize::try_from(cores).ok()
}

/// The address of a function of the library that libtorch brought, if it has it.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a null-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
