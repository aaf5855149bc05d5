//! Memory that somebody can give up when another thread runs out of it.
//!
//! What an allocator caches goes back by itself. A holder of memory in use, such as the CUDA graphs of a training whose teacher
//! runs out of memory on a thread of its own, registers here and is asked before the work is given up.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A holder of memory that it can do without.
pub trait Reclaim: Send + Sync {
    /// Gives the memory up, and tells if there was any. Called on any thread: one that is using its memory at that moment keeps it.
    fn reclaim(&self) -> bool;
}

static HOLDERS: Mutex<Vec<Weak<dyn Reclaim>>> = Mutex::new(Vec::new());

/// Has `holder` asked from now on, for as long as it lives.
pub fn register(holder: &Arc<dyn Reclaim>) {
    let mut holders = HOLDERS.lock();
    holders.retain(|holder| holder.strong_count() > 0);
    holders.push(Arc::downgrade(holder));
}

/// Asks all holders. Returns whether any gave memory up.
pub(super) fn reclaim() -> bool {
    let holders: Vec<_> = HOLDERS.lock().iter().filter_map(Weak::upgrade).collect();
    // All of them, not only up to the first that has some.
    holders.iter().filter(|holder| holder.reclaim()).count() > 0
}
