//! Work that a thread's helpers do where they would wait for a loop.

use std::sync::{Arc, Mutex, PoisonError};

use super::board::{Offer, Work, outliving};
use super::{IN_LOOP, OWN_THREADS, Panic, parallel_for, team};

/// Runs `main`, and has `body` called with each of `0..count`: by this thread's [`OwnThreads`](super::OwnThreads) where they would
/// wait for a loop; what nobody has begun by a loop of its own, when [`Pieces::finish`] is called or when `main` is done.
///
/// `body` is bound as that of [`parallel_for`]. A loop of `main` begins without the thread that is in it: where it takes longer
/// than ten microseconds or so, it calls [`join_loop`](super::join_loop) as often. A panic in either is raised again here.
pub fn beside<R>(count: usize, body: impl Fn(usize) + Sync, main: impl FnOnce(&Pieces) -> R) -> R {
    let panic = Panic::default();
    let piece = |index| panic.catch(|| body(index));
    // SAFETY: called until `scope` goes, when `piece` is still there.
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

/// The pieces of a call of [`beside`]. Nothing is left to be done when that is over.
#[derive(Clone)]
pub struct Pieces(Arc<Mutex<Option<Unfinished>>>);

struct Unfinished {
    count: usize,
    work: &'static Work<'static>,
    /// Where helpers were asked for.
    offer: Option<Offer>,
}

impl Pieces {
    /// Sees to what is left; all pieces are done when this returns. A panic in one is raised where they came from.
    pub fn finish(&self) {
        let mut unfinished = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Unfinished { count, work, offer }) = unfinished.take() {
            let begun = offer.as_ref().map_or(0, Offer::close);
            // Meanwhile helpers finish what they have begun.
            parallel_for(count - begun, 1, |rest| rest.for_each(|index| work(begun + index)));
            drop(offer);
        }
    }
}

/// Takes pieces back where their owner unwinds.
struct Scope(Pieces);

impl Drop for Scope {
    fn drop(&mut self) {
        // Whoever finishes them holds the lock until he is done.
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
            // Long after.
            kept.finish();
            assert!(all_done(), "round {round}: {pieces:?}");
        }
    }
}
