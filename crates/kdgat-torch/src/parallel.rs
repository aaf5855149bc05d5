//! Multithreaded loops, and background work that the same threads do between loops.
//!
//! Loops run on libtorch's own threads, so that its operations and ours never compete for cores, unless the calling
//! thread has [`OwnThreads`]. Use those where libtorch has no work worth several threads, as in a student's training.
//! Its steps have about fifty loops of ten to a hundred microseconds each. For a third of the time between them a
//! single thread works on libtorch's record of the graph and on allocations. libtorch's threads can only wait during
//! that time; ours can do other work ([`beside`]), and a loop does not wait for a thread that has not joined.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use shares::Shares;

mod board;
mod crowding;
mod libtorch;
mod openmp;
mod parts;
mod pieces;
mod shares;
mod team;

pub use openmp::{compute_alone, end_idle_threads};
pub use parts::Parts;
pub use pieces::{Pieces, beside};
pub use team::join_loop;

thread_local! {
    /// Number of threads for loops of this thread if it has [`OwnThreads`].
    static OWN_THREADS: Cell<Option<usize>> = const { Cell::new(None) };
    /// Set while this thread works in a loop: a nested loop runs on this thread alone.
    static IN_LOOP: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, loops of the thread that created it run on its own helper threads, and libtorch's operations run on
/// that thread alone.
pub struct OwnThreads {
    before: Option<usize>,
    /// Must not leave the thread that created it.
    this_thread: PhantomData<*const ()>,
}

impl OwnThreads {
    /// Uses as many threads as libtorch is set to use on this thread.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        let before = OWN_THREADS.get();
        if before.is_none() {
            OWN_THREADS.set(Some(threads()));
            openmp::set_threads(1);
        }
        Self { before, this_thread: PhantomData }
    }
}

impl Drop for OwnThreads {
    fn drop(&mut self) {
        if let (None, Some(threads)) = (self.before, OWN_THREADS.get()) {
            OWN_THREADS.set(None);
            openmp::set_threads(threads);
        }
    }
}

/// Calls `body` with ranges that together cover `0..count`, on as many threads as torch is set to use (or was set to
/// when [`OwnThreads`] was created).
///
/// `grain` is the smallest number of indices worth a thread: `count <= grain` runs on the calling thread. Each thread
/// starts with its own share and helps others when it is done (see [`shares`]). The ranges depend on the number of
/// threads and on their speed; a result must not. `body` may read and write memory but must not call tensor operations;
/// a loop inside it runs on its thread alone. A panic in `body` is raised again here once all threads are done.
pub fn parallel_for(count: usize, grain: usize, body: impl Fn(Range<usize>) + Sync) {
    let threads = match count.div_ceil(grain.max(1)) {
        // Decided without asking libtorch, for the case of a single small graph.
        0 => return,
        1 => 1,
        worth => worth.min(threads()),
    };
    if threads <= 1 || IN_LOOP.get() {
        body(0..count);
        return;
    }
    let (shares, panic) = (Shares::new(count, threads), Panic::default());
    let work = |thread| panic.catch(|| shares.pieces_for(thread).for_each(&body));
    match OWN_THREADS.get() {
        Some(_) => team::run(threads, &work),
        None => libtorch::run(threads, &work),
    }
    panic.raise();
}

/// Number of threads that loops of the calling thread may use.
fn threads() -> usize {
    OWN_THREADS.get().unwrap_or_else(libtorchs_threads)
}

fn libtorchs_threads() -> usize {
    usize::try_from(tch::get_num_threads()).unwrap_or(1)
}

/// The first panic among several threads.
#[derive(Default)]
struct Panic(Mutex<Option<Box<dyn Any + Send>>>);

impl Panic {
    fn catch(&self, work: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    fn raise(self) {
        if let Some(payload) = self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(payload);
        }
    }
}

/// A value on its own cache lines: avoids false sharing with neighbouring values.
#[repr(align(128))]
struct Apart<T>(T);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::ffi;

    /// Runs a test on libtorch's threads and on our own.
    fn on_both_kinds_of_threads(test: impl Fn()) {
        test();
        let threads = tch::get_num_threads();
        {
            let (_own, _again) = (OwnThreads::new(), OwnThreads::new());
            assert_eq!(tch::get_num_threads(), 1, "libtorch's operations run on one thread");
            test();
        }
        assert_eq!(tch::get_num_threads(), threads, "libtorch has its threads back");
    }

    #[test]
    fn every_index_is_visited_once() {
        on_both_kinds_of_threads(|| {
            for count in [0, 1, 7, 1000] {
                let mut visits = vec![0_u32; count];
                let parts = Parts::new(&mut visits, 0..=count);
                parallel_for(count, 3, |range| range.for_each(|index| parts.take(index)[0] += 1));
                assert!(visits.iter().all(|&visits| visits == 1), "count {count}: {visits:?}");
            }
        });
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
    fn loops_inside_loops_and_pieces_visit_every_index() {
        on_both_kinds_of_threads(|| {
            let visits = AtomicUsize::new(0);
            let inner = |_: usize| parallel_for(10, 1, |range| _ = visits.fetch_add(range.len(), Ordering::Relaxed));
            parallel_for(20, 1, |range| range.for_each(inner));
            beside(20, inner, |_| {
                parallel_for(20, 1, |range| range.for_each(|index| beside(1, inner, |_| inner(index))))
            });
            assert_eq!(visits.into_inner(), 10 * (20 + 20 + 2 * 20));
        });
    }

    #[test]
    fn a_panic_arrives_at_the_caller() {
        let caught = |call: &dyn Fn()| ffi::panic_message(catch_unwind(AssertUnwindSafe(call)).unwrap_err().as_ref());
        on_both_kinds_of_threads(|| {
            let in_loop = || parallel_for(100, 1, |range| assert!(!range.contains(&99), "index 99"));
            assert_eq!(caught(&in_loop), "panicked: index 99");
            let beside_it = || beside(20, |index| assert!(index != 3, "piece {index}"), |_| ());
            assert_eq!(caught(&beside_it), "panicked: piece 3");
            let in_main = || beside(20, |_| (), |_| panic!("main"));
            assert_eq!(caught(&in_main), "panicked: main");
        });
    }
}
