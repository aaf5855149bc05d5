//! Announcement of loops and other work from one thread to its helpers.
//!
//! The owner never waits for a helper to join, and a helper never touches work that may be gone. Both follow from one
//! order: a helper increments a counter before it checks that the work still exists, and the owner withdraws the work
//! before it checks the counter. One of the two sees the other.

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::Apart;

/// Iterations that a waiting thread spins before it yields its core in each iteration: some tens of microseconds.
pub(super) const TURNS_ALONE: u32 = 1000;

/// Spins once or, after many iterations, yields the core to other threads.
pub(super) fn wait_a_turn(turns: &mut u32) {
    if *turns < TURNS_ALONE {
        *turns += 1;
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// A function that several threads call: the threads of a loop with their numbers, or helpers between loops with the
/// numbers of pieces.
pub(super) type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The helpers' side.
pub(super) struct Board {
    /// Incremented when a loop begins and when it ends: odd while helpers may join.
    loops: Apart<AtomicUsize>,
    /// Threads of the current loop; helpers with higher numbers do not take part in it.
    threads: AtomicUsize,
    /// The current loop. Written only while `loops` is even and no helper is inside.
    job: UnsafeCell<Option<Job>>,
    /// Number of helpers that may be in the loop.
    inside: Apart<AtomicUsize>,
    /// Work for helpers between loops, or null.
    pieces: Apart<AtomicPtr<Pieces>>,
    /// Number of helpers that may be working on pieces.
    at_pieces: Apart<AtomicUsize>,
}

// SAFETY: `job` is the only field that is not `Sync`. Only the owner writes it, while nobody can read it (see above).
unsafe impl Sync for Board {}
// SAFETY: the work it points to is `Sync` and exists as long as anybody may call it.
unsafe impl Send for Board {}

#[derive(Clone, Copy)]
struct Job {
    threads: usize,
    work: &'static Work<'static>,
}

struct Pieces {
    count: usize,
    next: AtomicUsize,
    work: &'static Work<'static>,
}

/// The owner's side: the one thread that announces work.
pub(super) struct Owner {
    board: Arc<Board>,
    /// Must not be shared between threads.
    one_thread: PhantomData<*const ()>,
}

impl Owner {
    pub(super) fn new() -> Self {
        let board = Board {
            loops: Apart(AtomicUsize::new(0)),
            threads: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            inside: Apart(AtomicUsize::new(0)),
            pieces: Apart(AtomicPtr::new(ptr::null_mut())),
            at_pieces: Apart(AtomicUsize::new(0)),
        };
        Self { board: Arc::new(board), one_thread: PhantomData }
    }

    /// The board for a helper.
    pub(super) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Announces a loop of `threads` threads, calls `wake`, and works as thread 0 of the loop. Returns when all threads
    /// that joined are done.
    pub(super) fn run(&self, threads: usize, work: &Work, wake: impl FnOnce()) {
        let board = &*self.board;
        let loops = board.loops.0.load(Ordering::Relaxed);
        if loops % 2 == 1 {
            // Nested in a loop of this thread.
            return work(0);
        }
        let end = End { board, even: loops.wrapping_add(2) };
        // SAFETY: nobody is inside and nobody can enter, as ensured by the end of the last loop. The job is only called
        // until `end` is dropped, while `work` still exists.
        unsafe { *board.job.get() = Some(Job { threads, work: outliving(work) }) };
        // A helper that sees this number too early or too late checks again or leaves.
        board.threads.store(threads, Ordering::Relaxed);
        board.loops.0.store(loops + 1, Ordering::SeqCst);
        wake();
        work(0);
        drop(end);
    }

    /// Offers `count` pieces of work to helpers between loops, replacing the previous offer, and calls `wake`.
    pub(super) fn offer(&self, count: usize, work: &'static Work<'static>, wake: impl FnOnce()) -> Offer {
        let pieces = Box::new(Pieces { count, next: AtomicUsize::new(0), work });
        self.board.pieces.0.store((&raw const *pieces).cast_mut(), Ordering::SeqCst);
        wake();
        Offer { board: Arc::clone(&self.board), pieces }
    }
}

/// Pieces of work that helpers may begin until this is dropped.
pub(super) struct Offer {
    board: Arc<Board>,
    pieces: Box<Pieces>,
}

impl Offer {
    /// Stops helpers from beginning more pieces. Returns the number begun; they are done when the offer is dropped.
    pub(super) fn close(&self) -> usize {
        let offered = (&raw const *self.pieces).cast_mut();
        // Leaves a newer offer in place.
        let pieces = &self.board.pieces.0;
        let _ = pieces.compare_exchange(offered, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
        self.pieces.next.swap(self.pieces.count, Ordering::Relaxed).min(self.pieces.count)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.close();
        wait_until_none(&self.board.at_pieces);
    }
}

/// Extends the lifetime of `work`.
///
/// # Safety
/// Nobody may use the result after `work` is dropped.
pub(super) unsafe fn outliving<'a>(work: &'a Work<'a>) -> &'static Work<'static> {
    // SAFETY: by this function's contract; only the lifetimes differ.
    unsafe { std::mem::transmute::<&'a Work<'a>, &'static Work<'static>>(work) }
}

/// Ends a loop, even if its owner unwinds.
struct End<'a> {
    board: &'a Board,
    even: usize,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.board.loops.0.store(self.even, Ordering::SeqCst);
        wait_until_none(&self.board.inside);
    }
}

fn wait_until_none(counted: &Apart<AtomicUsize>) {
    let mut turns = 0;
    while counted.0.load(Ordering::SeqCst) != 0 {
        wait_a_turn(&mut turns);
    }
}

/// Guard of a helper counted on the board.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn at(counter: &'a Apart<AtomicUsize>) -> Self {
        counter.0.fetch_add(1, Ordering::SeqCst);
        Self(&counter.0)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A helper's access to a board.
pub(super) struct Place {
    board: Arc<Board>,
    number: usize,
    /// Value of `loops` for the last loop that it has joined.
    seen: Cell<usize>,
}

impl Place {
    /// Access of the helper `number`, counted from one.
    pub(super) fn new(board: Arc<Board>, number: usize) -> Self {
        Self { board, number, seen: Cell::new(0) }
    }

    /// Works on a loop or a piece; false if there is nothing to do.
    pub(super) fn help(&self) -> bool {
        self.join_loop() || (self.board.has_pieces() && self.board.take_a_piece())
    }

    /// Joins the current loop if it is new and includes this helper.
    pub(super) fn join_loop(&self) -> bool {
        let Some(found) = self.new_loop() else { return false };
        self.seen.set(found);
        self.board.join(self.number, found);
        true
    }

    /// True if there may be something to do.
    pub(super) fn has_news(&self) -> bool {
        self.new_loop().is_some() || self.board.has_pieces()
    }

    fn new_loop(&self) -> Option<usize> {
        let loops = self.board.loops.0.load(Ordering::SeqCst);
        let is_new = loops % 2 == 1 && loops != self.seen.get();
        (is_new && self.number < self.board.threads.load(Ordering::Relaxed)).then_some(loops)
    }
}

impl Board {
    fn has_pieces(&self) -> bool {
        !self.pieces.0.load(Ordering::SeqCst).is_null()
    }

    fn join(&self, number: usize, found: usize) {
        let _counted = Counted::at(&self.inside);
        if self.loops.0.load(Ordering::SeqCst) != found {
            return;
        }
        // SAFETY: the loop is open and this thread is counted: the owner neither ends the loop nor writes the job.
        match unsafe { *self.job.get() } {
            Some(job) if number < job.threads => (job.work)(number),
            _ => {}
        }
    }

    fn take_a_piece(&self) -> bool {
        let _counted = Counted::at(&self.at_pieces);
        let found = self.pieces.0.load(Ordering::SeqCst);
        // SAFETY: the pieces exist and this thread is counted: their owner waits before it drops them.
        let Some(pieces) = (unsafe { found.as_ref() }) else { return false };
        let piece = pieces.next.fetch_add(1, Ordering::Relaxed);
        if piece < pieces.count {
            (pieces.work)(piece);
            return true;
        }
        // Other helpers need not look again. A newer offer stays in place.
        let _ = self.pieces.0.compare_exchange(found, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
        false
    }
}
