//! Where a thread announces loops and other work, and its helpers find them.
//!
//! The one that announces never waits for a helper to come; a helper never touches work that may be gone. Both follow from an
//! order: a helper counts itself before it looks whether the work is still there, and the owner takes the work away before it
//! looks whether somebody is counted. One of the two sees the other.

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::Apart;

/// Turns of a waiting thread before it offers its core to others at each turn: some tens of microseconds.
pub(super) const TURNS_ALONE: u32 = 1000;

/// Waits for a moment, in which another thread may have the core after many turns.
pub(super) fn wait_a_turn(turns: &mut u32) {
    if *turns < TURNS_ALONE {
        *turns += 1;
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// What several threads call: the threads of a loop with their numbers, helpers without a loop with the numbers of pieces.
pub(super) type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The helpers' side.
pub(super) struct Board {
    /// Goes up by one when a loop begins and when it ends: odd while helpers may join.
    loops: Apart<AtomicUsize>,
    /// The threads of the loop at hand: helpers with higher numbers have no part in it.
    threads: AtomicUsize,
    /// The loop at hand. Written while `loops` is even and nobody is inside.
    job: UnsafeCell<Option<Job>>,
    /// Helpers that may be in it.
    inside: Apart<AtomicUsize>,
    /// Work for helpers without a loop, or null.
    pieces: Apart<AtomicPtr<Pieces>>,
    /// Helpers that may be at that.
    at_pieces: Apart<AtomicUsize>,
}

// SAFETY: `job`, the only part that is not `Sync`, is written by the owner alone, while nobody can read it: see above.
unsafe impl Sync for Board {}
// SAFETY: what it points to is `Sync`, and is there as long as anybody may call it.
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

/// The side of the one thread that announces.
pub(super) struct Owner {
    board: Arc<Board>,
    /// Not for two threads at once.
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

    /// What helpers look at.
    pub(super) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Announces a loop of so many threads, calls `wake`, and works as thread 0 of it. Returns when all who joined are done.
    pub(super) fn run(&self, threads: usize, work: &Work, wake: impl FnOnce()) {
        let board = &*self.board;
        let loops = board.loops.0.load(Ordering::Relaxed);
        if loops % 2 == 1 {
            // From within a loop of this thread.
            return work(0);
        }
        let end = End { board, even: loops.wrapping_add(2) };
        // SAFETY: nobody is inside, and nobody can enter: the last loop's end saw to that. The job is called until `end` goes,
        // when `work` is still there.
        unsafe { *board.job.get() = Some(Job { threads, work: outliving(work) }) };
        // A helper that sees this number too early or too late looks again, or leaves again.
        board.threads.store(threads, Ordering::Relaxed);
        board.loops.0.store(loops + 1, Ordering::SeqCst);
        wake();
        work(0);
        drop(end);
    }

    /// Offers helpers without a loop `count` pieces of work, instead of those offered before, and calls `wake`.
    pub(super) fn offer(&self, count: usize, work: &'static Work<'static>, wake: impl FnOnce()) -> Offer {
        let pieces = Box::new(Pieces { count, next: AtomicUsize::new(0), work });
        self.board.pieces.0.store((&raw const *pieces).cast_mut(), Ordering::SeqCst);
        wake();
        Offer { board: Arc::clone(&self.board), pieces }
    }
}

/// Pieces of work that helpers may begin until this goes.
pub(super) struct Offer {
    board: Arc<Board>,
    pieces: Box<Pieces>,
}

impl Offer {
    /// Lets nobody begin another piece. Returns how many were begun; they are done when the offer goes.
    pub(super) fn close(&self) -> usize {
        let offered = (&raw const *self.pieces).cast_mut();
        // Where others are offered meanwhile, they stay.
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

/// # Safety
/// Nobody has the result any more when `work` goes.
pub(super) unsafe fn outliving<'a>(work: &'a Work<'a>) -> &'static Work<'static> {
    // SAFETY: as the caller promises; nothing but the lifetimes differs.
    unsafe { std::mem::transmute::<&'a Work<'a>, &'static Work<'static>>(work) }
}

/// Ends a loop, also where its owner unwinds.
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

/// A helper that is counted.
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

/// A helper's place at a board.
pub(super) struct Place {
    board: Arc<Board>,
    number: usize,
    /// The loop that it knows already.
    seen: Cell<usize>,
}

impl Place {
    /// Of the helper of that number, counted from one.
    pub(super) fn new(board: Arc<Board>, number: usize) -> Self {
        Self { board, number, seen: Cell::new(0) }
    }

    /// Does what there is to do; false where there is nothing.
    pub(super) fn help(&self) -> bool {
        self.join_loop() || (self.board.has_pieces() && self.board.take_a_piece())
    }

    /// Works in the loop at hand, if that is a new one with a part for this helper.
    pub(super) fn join_loop(&self) -> bool {
        let Some(found) = self.new_loop() else { return false };
        self.seen.set(found);
        self.board.join(self.number, found);
        true
    }

    /// Whether there may be something to do.
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
        // SAFETY: that loop is open and this thread is counted: its owner neither ends it nor writes here.
        match unsafe { *self.job.get() } {
            Some(job) if number < job.threads => (job.work)(number),
            _ => {}
        }
    }

    fn take_a_piece(&self) -> bool {
        let _counted = Counted::at(&self.at_pieces);
        let found = self.pieces.0.load(Ordering::SeqCst);
        // SAFETY: they are there and this thread is counted: their owner waits before they go.
        let Some(pieces) = (unsafe { found.as_ref() }) else { return false };
        let piece = pieces.next.fetch_add(1, Ordering::Relaxed);
        if piece < pieces.count {
            (pieces.work)(piece);
            return true;
        }
        // Nobody needs to look again. Where the owner has offered others meanwhile, they stay.
        let _ = self.pieces.0.compare_exchange(found, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
        false
    }
}
