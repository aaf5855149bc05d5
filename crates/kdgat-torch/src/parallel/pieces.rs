//! Background work for a thread's helpers while they would wait for a loop.

use std::sync::{Arc, Mutex, PoisonError};

use super::board::{Offer, Work, outliving};
use super::{IN_LOOP, OWN_THREADS, Panic, parallel_for, team};

/// Runs `main` and calls `body` once with each of `0..count`. Helper threads of this thread's
/// [`OwnThreads`](super::OwnThreads) run pieces while they would wait for a loop. A loop runs the remaining pieces when
/// [`Pieces::finish`] is called, or after `main`.
///
/// `body` has the same restrictions as in [`parallel_for`]. A loop of `main` starts without a helper that is busy with
/// a piece: if a piece takes longer than about ten microseconds, it should call [`join_loop`](super::join_loop) at that
/// interval. A panic in `main` or `body` is raised again here.
pub fn beside<R>(count: usize, body: impl Fn(usize) + Sync, main: impl FnOnce(&Pieces) -> R) -> R {
    let panic = Panic::default();
    let piece = |index| panic.catch(|| body(index));
    // SAFETY: only called until `scope` is dropped, while `piece` still exists.
    let work = unsafe { outliving(&piece) };
    let offer = match OWN_THREADS.get() {
        Some(threads) if threads > 1 && !IN_LOOP.get() => team::offer(threads, count, work),
        _ => None,
    };
    let scope = Scope(Pieces(Arc::new(Mutex::new(Some(Unfinished { count, work, offer })))));
    let result = main(&scope.0);
    scope.0.finish();
    drop(scope);
    panic.raise();
    result
}

/// Handle to the pieces of a call of [`beside`]. After that call has returned, no pieces remain.
#[derive(Clone)]
pub struct Pieces(Arc<Mutex<Option<Unfinished>>>);

struct Unfinished {
    count: usize,
    work: &'static Work<'static>,
    /// The offer to helpers, if there are any.
    offer: Option<Offer>,
}

impl Pieces {
    /// Runs the remaining pieces; all are done when this returns. `beside` raises a panic in a piece.
    pub fn finish(&self) {
        let mut unfinished = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Unfinished { count, work, offer }) = unfinished.take() {
            let begun = offer.as_ref().map_or(0, Offer::close);
            // Meanwhile helpers finish the pieces they have begun.
            parallel_for(count - begun, 1, |rest| rest.for_each(|index| work(begun + index)));
            drop(offer);
        }
    }
}

/// Withdraws the pieces if their owner unwinds.
struct Scope(Pieces);

impl Drop for Scope {
    fn drop(&mut self) {
        // A thread that finishes them holds the lock until it is done.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::OwnThreads;
    use super::*;

    #[test]
    fn pieces_are_done_once_whoever_finishes_them() {
        let _own = OwnThreads::new();
        for round in 0..300 {
            let pieces = [const { AtomicUsize::new(0) }; 40];
            let all_done = || pieces.iter().all(|times| times.load(Ordering::SeqCst) == 1);
            let kept = beside(
                40,
                |index| _ = pieces[index].fetch_add(1, Ordering::SeqCst),
                |unfinished| {
                    match round % 3 {
                        0 => unfinished.finish(),
                        1 => std::thread::scope(|scope| _ = scope.spawn(|| unfinished.finish())),
                        _ => return unfinished.clone(),
                    }
                    assert!(all_done(), "round {round}: {pieces:?}");
                    unfinished.clone()
                },
            );
            assert!(all_done(), "round {round}: {pieces:?}");
            // After `beside` has returned.
            kept.finish();
            assert!(all_done(), "round {round}: {pieces:?}");
        }
    }
}
