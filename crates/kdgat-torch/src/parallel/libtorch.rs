//! Loops on libtorch's threads.

use std::ffi::{c_char, c_void};
use std::sync::OnceLock;
use std::time::Instant;

use super::board::Work;
use super::{Apart, IN_LOOP, crowding, openmp};
use crate::ffi;

/// Calls `work`, which must not panic, once with each of `0..threads`, on as many threads as libtorch can spare.
///
/// # Panics
/// If libtorch cannot run a loop.
pub(super) fn run(threads: usize, work: &Work) {
    let call = Call { work, caller_done: Apart(OnceLock::new()) };
    let count = i64::try_from(threads).unwrap_or(i64::MAX);
    // SAFETY: `call` outlives the loop, which ends before the call returns; `run_threads` expects a `Call`.
    let outcome = unsafe { ffi::check(kdgat_parallel_for(count, (&raw const call).cast_mut().cast(), run_threads)) };
    if let Some(done) = call.caller_done.0.get() {
        crowding::waited(done.elapsed());
    }
    if let Err(error) = outcome {
        panic!("cannot run a loop on libtorch's threads: {error}");
    }
}

/// Starts the pool of the calling thread's loops: `threads` threads including itself. They live as long as the calling
/// thread.
pub(super) fn start_threads(threads: usize) {
    // SAFETY: the body reads and writes nothing.
    let call = |threads| unsafe { ffi::check(kdgat_parallel_for(threads, std::ptr::null_mut(), nothing)) };
    // A thread's first call resets the number to libtorch's default.
    let outcome = call(1).and_then(|()| {
        openmp::set_threads(threads);
        call(i64::try_from(threads).unwrap_or(i64::MAX))
    });
    if let Err(error) = outcome {
        tracing::debug!("cannot start threads: {error}");
    }
}

unsafe extern "C" fn nothing(_context: *mut c_void, _begin: i64, _end: i64) {}

struct Call<'a> {
    work: &'a Work<'a>,
    /// The time at which the calling thread ran out of work.
    caller_done: Apart<OnceLock<Instant>>,
}

type Body = unsafe extern "C" fn(*mut c_void, i64, i64);

/// Runs the work of threads `begin..end` of the loop: usually one, more if libtorch had fewer threads to spare.
unsafe extern "C" fn run_threads(context: *mut c_void, begin: i64, end: i64) {
    // SAFETY: `context` is the `Call` of `run`; threads share it, and its fields are `Sync`.
    let call = unsafe { &*context.cast::<Call>() };
    let before = IN_LOOP.replace(true);
    // Neither can be negative: both are in 0..threads.
    (begin as usize..end as usize).for_each(call.work);
    IN_LOOP.set(before);
    // OpenMP's first thread is the caller.
    if begin == 0 {
        call.caller_done.0.get_or_init(Instant::now);
    }
}

unsafe extern "C" {
    fn kdgat_parallel_for(threads: i64, context: *mut c_void, body: Body) -> *mut c_char;
}
