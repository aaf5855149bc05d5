//! Helper threads for the loops of one thread.
//!
//! A helper waits for the next loop without sleeping as long as loops follow each other closely, yields its core to
//! other threads, and sleeps after a while. If another program uses the cores, helpers join late or not at all, and the
//! thread does the work itself.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::board::{Offer, Owner, Place, TURNS_ALONE, Work, wait_a_turn};
use super::{Apart, IN_LOOP};

/// Idle time after which a helper sleeps.
const AWAKE: Duration = Duration::from_millis(4);

thread_local! {
    static TEAM: Rc<Team> = Rc::new(Team::new());
    /// The board access of a helper thread; empty on other threads.
    static PLACE: OnceCell<Place> = const { OnceCell::new() };
}

/// Calls `work`, which must not panic, with 0 on this thread, and with numbers below `threads` on helpers that join in
/// time. No thread is in `work` when this returns.
pub(super) fn run(threads: usize, work: &Work) {
    IN_LOOP.set(true);
    match team(threads) {
        Some(team) => team.owner.run(threads, work, || team.wake(threads)),
        None => work(0),
    }
    IN_LOOP.set(false);
}

/// Offers helpers between loops to call `work`, which must not panic, with each number below `count`, until the result
/// is dropped.
pub(super) fn offer(threads: usize, count: usize, work: &'static Work<'static>) -> Option<Offer> {
    team(threads).map(|team| team.owner.offer(count, work, || team.wake(threads)))
}

/// This thread's team, grown for loops of `threads` threads. `None` while the thread exits.
fn team(threads: usize) -> Option<Rc<Team>> {
    let team = TEAM.try_with(Rc::clone).ok()?;
    team.grow(threads);
    Some(team)
}

struct Team {
    owner: Owner,
    helpers: RefCell<Vec<Helper>>,
    /// Set when the system refused to start another thread.
    was_refused: Cell<bool>,
}

struct Helper {
    state: Arc<Apart<State>>,
    handle: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    is_asleep: AtomicBool,
    has_to_end: AtomicBool,
}

impl Team {
    fn new() -> Self {
        Self { owner: Owner::new(), helpers: RefCell::default(), was_refused: Cell::new(false) }
    }

    /// Starts missing helpers. If the system refuses more threads, loops run on fewer.
    fn grow(&self, threads: usize) {
        let mut helpers = self.helpers.borrow_mut();
        while helpers.len() + 1 < threads && !self.was_refused.get() {
            let (board, number) = (self.owner.board(), helpers.len() + 1);
            let state = Arc::new(Apart(State::default()));
            let of_helper = Arc::clone(&state);
            let started = std::thread::Builder::new().name("kdgat-loop".to_owned()).spawn(move || {
                IN_LOOP.set(true);
                PLACE.with(|place| help(place.get_or_init(|| Place::new(board, number)), &of_helper.0));
            });
            match started {
                Ok(handle) => helpers.push(Helper { state, handle }),
                Err(error) => {
                    tracing::debug!("cannot start more than {} helper threads for loops: {error}", helpers.len());
                    self.was_refused.set(true);
                }
            }
        }
    }

    /// Wakes the sleeping helpers of a loop of `threads` threads. Call it after announcing the loop.
    fn wake(&self, threads: usize) {
        for helper in self.helpers.borrow().iter().take(threads - 1) {
            let is_asleep = &helper.state.0.is_asleep;
            if is_asleep.load(Ordering::SeqCst) && is_asleep.swap(false, Ordering::SeqCst) {
                helper.handle.thread().unpark();
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        let helpers = std::mem::take(self.helpers.get_mut());
        for helper in &helpers {
            helper.state.0.has_to_end.store(true, Ordering::SeqCst);
            helper.handle.thread().unpark();
        }
        for helper in helpers {
            if helper.handle.join().is_err() {
                tracing::error!("a helper thread for loops panicked");
            }
        }
    }
}

/// Joins a loop that was announced while this helper thread was busy with a piece. Does nothing on other threads.
pub fn join_loop() {
    PLACE.with(|place| place.get().map(Place::join_loop));
}

/// The main loop of a helper, until the team ends.
fn help(place: &Place, state: &State) {
    let (mut turns, mut idle_since) = (0, None);
    while !state.has_to_end.load(Ordering::SeqCst) {
        if place.help() {
            (turns, idle_since) = (0, None);
            continue;
        }
        wait_a_turn(&mut turns);
        if turns == TURNS_ALONE && idle_since.get_or_insert_with(Instant::now).elapsed() >= AWAKE {
            sleep(state, || place.has_news());
            (turns, idle_since) = (0, None);
        }
    }
}

/// Sleeps until the team's owner wakes this thread or `has_news` is true.
fn sleep(state: &State, has_news: impl Fn() -> bool) {
    state.is_asleep.store(true, Ordering::SeqCst);
    // Work announced before the flag was set is seen here; work announced later wakes this thread.
    while state.is_asleep.load(Ordering::SeqCst) && !state.has_to_end.load(Ordering::SeqCst) && !has_news() {
        std::thread::park();
    }
    state.is_asleep.store(false, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::super::{OwnThreads, beside, parallel_for};

    use super::*;

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_helper_that_comes_late_finds_no_loop() {
        // Very short loops: most are over when a helper arrives, and their context is dropped at once.
        let team = Team::new();
        team.grow(4);
        for turn in 0..20_000_usize {
            let context = Box::new((turn, AtomicUsize::new(0)));
            let work = |_: usize| {
                assert_eq!(context.0, turn);
                context.1.fetch_add(1, Ordering::Relaxed);
            };
            team.owner.run(4, &work, || team.wake(4));
            let calls = context.1.load(Ordering::Relaxed);
            assert!((1..=4).contains(&calls), "{calls} calls by 4 threads");
        }
    }

    #[test]
    fn helpers_do_pieces_while_the_thread_does_something_else() {
        static DONE: AtomicUsize = AtomicUsize::new(0);
        let team = Team::new();
        team.grow(2);
        let offer = team.owner.offer(50, &|_| _ = DONE.fetch_add(1, Ordering::SeqCst), || team.wake(2));
        until("pieces are left", || DONE.load(Ordering::SeqCst) == 50);
        assert_eq!(offer.close(), 50);
        drop(offer);
        // With two offers, helpers take the last one, and the end of the first leaves it in place.
        let [first, second] = [20, 30].map(|count| {
            let offer = team.owner.offer(count, &|_| _ = DONE.fetch_add(1, Ordering::SeqCst), || ());
            (offer, count)
        });
        let begun = first.0.close();
        team.wake(2);
        until("no helper takes the last offer", || DONE.load(Ordering::SeqCst) == 80 + begun);
        assert_eq!(second.0.close(), second.1);
        assert_eq!(first.0.close(), first.1, "a closed offer has no new pieces");
    }

    #[test]
    fn a_helper_leaves_a_piece_for_a_loop() {
        static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
        static HAS_LOOPED: AtomicBool = AtomicBool::new(false);
        let piece: &'static Work<'static> = &|_| {
            HAS_BEGUN.store(true, Ordering::SeqCst);
            until("a loop does not end", || {
                join_loop();
                HAS_LOOPED.load(Ordering::SeqCst)
            });
        };
        let team = Team::new();
        team.grow(2);
        let offer = team.owner.offer(1, piece, || team.wake(2));
        until("no piece is begun", || HAS_BEGUN.load(Ordering::SeqCst));
        for _ in 0..100 {
            let threads = AtomicUsize::new(0);
            // Wait until the helper that is busy with the piece has joined.
            let work = |_: usize| {
                threads.fetch_add(1, Ordering::SeqCst);
                until("the piece is not interrupted for a loop", || threads.load(Ordering::SeqCst) == 2);
            };
            team.owner.run(2, &work, || team.wake(2));
        }
        HAS_LOOPED.store(true, Ordering::SeqCst);
        assert_eq!(offer.close(), 1);
    }

    #[test]
    fn every_piece_is_done_once_however_many_loops_come_between() {
        let run = || {
            let _own = OwnThreads::new();
            for round in 0..300 {
                let (pieces, indices) = ([const { AtomicUsize::new(0) }; 40], AtomicUsize::new(0));
                let piece = |index: usize| _ = pieces[index].fetch_add(1, Ordering::Relaxed);
                let found = beside(40, piece, |_| {
                    (0..round % 7).for_each(|_| {
                        parallel_for(64, 1, |range| _ = indices.fetch_add(range.len(), Ordering::Relaxed));
                    });
                    round
                });
                assert_eq!(found, round);
                assert_eq!(indices.into_inner(), 64 * (round % 7));
                assert!(pieces.iter().all(|times| times.load(Ordering::Relaxed) == 1), "{pieces:?}");
            }
        };
        std::thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(run)));
    }

    #[test]
    fn helpers_sleep_wake_and_end() {
        let team = Team::new();
        team.grow(3);
        let is_asleep = |helper: &Helper| helper.state.0.is_asleep.load(Ordering::SeqCst);
        for _ in 0..3 {
            until("helpers without loops stay awake", || team.helpers.borrow().iter().all(is_asleep));
            let threads = AtomicUsize::new(0);
            // Wait until all three have joined.
            let work = |_: usize| {
                threads.fetch_add(1, Ordering::SeqCst);
                until("a helper stays asleep", || threads.load(Ordering::SeqCst) == 3);
            };
            team.owner.run(3, &work, || team.wake(3));
        }
        let ended: Vec<_> = team.helpers.borrow().iter().map(|helper| Arc::downgrade(&helper.state)).collect();
        drop(team);
        assert!(ended.iter().all(|state| state.upgrade().is_none()), "a helper outlives its team");
    }
}
