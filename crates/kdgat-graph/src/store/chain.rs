//! Passes state from each piece of a log to the next, in order, while threads work on several pieces.

use parking_lot::{Condvar, Mutex};

use super::journal::Carry;

/// State passed along the pieces of one log.
#[derive(Default)]
pub struct Chain {
    turn: Mutex<Turn>,
    changed: Condvar,
}

#[derive(Default)]
struct Turn {
    /// Number of the piece that `carry` is for.
    next: usize,
    carry: Carry,
    /// True if a piece has failed: later pieces would wait forever.
    stopped: bool,
}

impl Chain {
    /// Begins work on a piece. Threads begin pieces in order, so no thread waits for a piece that no thread has begun.
    pub fn begin(&self, piece: usize) -> Link<'_> {
        Link { chain: self, piece, passed: false }
    }
}

/// A thread's work on a piece. Dropping it before [`Link::pass_on`] stops all later pieces.
pub struct Link<'a> {
    chain: &'a Chain,
    piece: usize,
    passed: bool,
}

impl Link<'_> {
    /// Waits for the state from the previous piece; `None` if that piece has failed.
    pub fn wait(&self) -> Option<Carry> {
        let mut turn = self.chain.turn.lock();
        while turn.next != self.piece && !turn.stopped {
            self.chain.changed.wait(&mut turn);
        }
        (turn.next == self.piece).then(|| std::mem::take(&mut turn.carry))
    }

    /// Passes the state to the next piece.
    pub fn pass_on(mut self, carry: Carry) {
        self.passed = true;
        let mut turn = self.chain.turn.lock();
        (turn.next, turn.carry) = (self.piece + 1, carry);
        self.chain.changed.notify_all();
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        if !self.passed {
            self.chain.turn.lock().stopped = true;
            self.chain.changed.notify_all();
        }
    }
}
