//! The pieces of one log hand on what the next one has to know, in order, while threads work on several of them.

use parking_lot::{Condvar, Mutex};

use super::journal::Carry;

/// Of one log.
#[derive(Default)]
pub struct Chain {
    turn: Mutex<Turn>,
    changed: Condvar,
}

#[derive(Default)]
struct Turn {
    /// The piece that `carry` is for.
    next: usize,
    carry: Carry,
    /// A piece failed: those behind it wait in vain.
    stopped: bool,
}

impl Chain {
    /// Work on a piece begins. Threads begin pieces in order, so that a waiting thread never waits for one that nobody has.
    pub fn begin(&self, piece: usize) -> Link<'_> {
        Link { chain: self, piece, passed: false }
    }
}

/// A thread's hold on its piece. Dropping it before it was passed on stops the pieces behind.
pub struct Link<'a> {
    chain: &'a Chain,
    piece: usize,
    passed: bool,
}

impl Link<'_> {
    /// Waits for what the piece before passes on; `None` if it never will.
    pub fn wait(&self) -> Option<Carry> {
        let mut turn = self.chain.turn.lock();
        while turn.next != self.piece && !turn.stopped {
            self.chain.changed.wait(&mut turn);
        }
        (turn.next == self.piece).then(|| std::mem::take(&mut turn.carry))
    }

    /// For the next piece.
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
