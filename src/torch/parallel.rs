//! Loops on libtorch's own threads, so that its operations and ours never compete for cores.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use super::ffi;
use shares::Shares;

mod crowding;
mod openmp;
mod shares;

pub use openmp::{compute_alone, end_idle_threads};

/// Calls `body` with ranges that together are `0..count`, on as many threads as torch is set to use.
///
/// `grain` is the fewest indices worth a thread: `count <= grain` runs on the calling thread. Each thread begins with a
/// share of its own, and helps others with theirs when it is done (see [`shares`]). How the ranges are cut depends on the
/// number of threads and on their speed: a result must not. `body` may read and write memory but call no tensor
/// operations. A panic in it is raised again here, once all threads are done.
pub fn parallel_for(count: usize, grain: usize, body: impl Fn(Range<usize>) + Sync) {
    let threads = match count.div_ceil(grain.max(1)) {
        // Without the way through C++: what a single small graph takes.
        0 => return,
        1 => 1,
        worth => worth.min(usize::try_from(tch::get_num_threads()).unwrap_or(1)),
    };
    if threads <= 1 {
        body(0..count);
        return;
    }
    let shares = Shares::new(count, threads);
    let call = Call { shares, body: &body, panic: Mutex::new(None), caller_done: Apart(OnceLock::new()) };
    // SAFETY: `call` outlives the loop, which ends before the function returns; `run` is made for its type.
    let outcome = unsafe {
        ffi::check(kdgat_parallel_for(
            i64::try_from(threads).unwrap_or(i64::MAX),
            (&raw const call).cast_mut().cast(),
            run_for(&call),
        ))
    };
    if let Some(done) = call.caller_done.0.get() {
        crowding::waited(done.elapsed());
    }
    if let Some(payload) = call.panic.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        resume_unwind(payload);
    }
    if let Err(error) = outcome {
        panic!("libtorch's threads could not run a loop: {error}");
    }
}

/// Starts the threads of the calling thread's loops, so many with itself; they stay as long as it does.
fn start_threads(threads: usize) {
    // SAFETY: nothing is read or written.
    let call = |threads| unsafe { ffi::check(kdgat_parallel_for(threads, std::ptr::null_mut(), nothing)) };
    // A thread's first call sets libtorch's own number of threads.
    let outcome = call(1).and_then(|()| {
        openmp::set_threads(threads);
        call(i64::try_from(threads).unwrap_or(i64::MAX))
    });
    if let Err(error) = outcome {
        tracing::debug!("threads could not be started: {error}");
    }
}

unsafe extern "C" fn nothing(_context: *mut c_void, _begin: i64, _end: i64) {}

struct Call<'a, B> {
    shares: Shares,
    body: &'a B,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// When the calling thread had nothing left to do.
    caller_done: Apart<OnceLock<Instant>>,
}

/// A value on cache lines of its own: written while others read what would lie beside it.
#[repr(align(128))]
struct Apart<T>(T);

type Body = unsafe extern "C" fn(*mut c_void, i64, i64);

fn run_for<B: Fn(Range<usize>) + Sync>(_call: &Call<'_, B>) -> Body {
    run::<B>
}

/// Works as the threads `begin..end` of the loop: as one of them, unless libtorch had fewer to spare.
unsafe extern "C" fn run<B: Fn(Range<usize>) + Sync>(context: *mut c_void, begin: i64, end: i64) {
    // SAFETY: `context` is the `Call` of `parallel_for`, shared between threads: its parts are `Sync`.
    let call = unsafe { &*context.cast::<Call<'_, B>>() };
    // Neither can be negative: they lie in 0..threads.
    for thread in begin as usize..end as usize {
        let work = || call.shares.pieces_for(thread).for_each(call.body);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            call.panic.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(payload);
        }
    }
    // The first of OpenMP's threads is the caller.
    if begin == 0 {
        call.caller_done.0.get_or_init(Instant::now);
    }
}

/// A slice cut into parts that the threads of a loop take for writing, each part once.
pub struct Parts<'a, T> {
    data: *const UnsafeCell<T>,
    bounds: Vec<usize>,
    taken: Vec<AtomicBool>,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: threads get parts that do not overlap, each at most once, as `&mut [T]`: what `T: Send` allows.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Cuts `data` at `bounds`: part `i` is `bounds[i]..bounds[i + 1]`.
    ///
    /// # Panics
    /// When the bounds do not ascend or leave the slice.
    pub fn new(data: &'a mut [T], bounds: impl IntoIterator<Item = usize>) -> Self {
        let bounds: Vec<usize> = bounds.into_iter().collect();
        assert!(bounds.is_sorted(), "bounds of parts must ascend");
        assert!(bounds.last().is_none_or(|&end| end <= data.len()), "bounds of parts leave the slice");
        let taken = (1..bounds.len()).map(|_| AtomicBool::new(false)).collect();
        Self { data: data.as_mut_ptr().cast::<UnsafeCell<T>>(), bounds, taken, slice: PhantomData }
    }

    /// Takes part `index`.
    ///
    /// # Panics
    /// When it was taken before, or does not exist.
    #[allow(clippy::mut_from_ref)]
    pub fn take(&self, index: usize) -> &'a mut [T] {
        assert!(!self.taken[index].swap(true, Ordering::Relaxed), "part {index} is already being written");
        let range = self.bounds[index]..self.bounds[index + 1];
        // SAFETY: the range lies in the slice that is borrowed for 'a, overlaps no other part, and this part is
        // handed out once.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(self.data.add(range.start)), range.len()) }
    }
}

unsafe extern "C" {
    fn kdgat_parallel_for(threads: i64, context: *mut c_void, body: Body) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_visited_once() {
        for count in [0, 1, 7, 1000] {
            let mut visits = vec![0_u32; count];
            let parts = Parts::new(&mut visits, 0..=count);
            parallel_for(count, 3, |range| range.for_each(|index| parts.take(index)[0] += 1));
            assert!(visits.iter().all(|&visits| visits == 1), "count {count}: {visits:?}");
        }
    }

    #[test]
    fn a_thread_that_computes_alone_leaves_others_theirs() {
        let threads_here = tch::get_num_threads();
        let visitors = std::thread::spawn(|| {
            compute_alone();
            let visitors = Mutex::new(std::collections::HashSet::new());
            parallel_for(64, 1, |_| {
                visitors.lock().unwrap().insert(std::thread::current().id());
            });
            let _ = tch::Tensor::ones([1 << 20], tch::kind::FLOAT_CPU).exp();
            assert_eq!(tch::get_num_threads(), 1, "libtorch's own loops");
            assert_eq!(visitors.into_inner().unwrap(), [std::thread::current().id()].into());
        });
        visitors.join().unwrap();
        assert_eq!(tch::get_num_threads(), threads_here);
    }

    #[test]
    fn a_panic_arrives_at_the_caller() {
        let payload =
            catch_unwind(|| parallel_for(100, 1, |range| assert!(!range.contains(&99), "index 99"))).unwrap_err();
        assert_eq!(ffi::panic_message(payload.as_ref()), "panicked: index 99");
    }

    #[test]
    #[should_panic(expected = "already being written")]
    fn a_part_is_taken_once() {
        let mut data = [0; 4];
        let parts = Parts::new(&mut data, [0, 2, 4]);
        parts.take(0)[0] = 1;
        parts.take(0)[0] = 2;
    }
}
