//! Memory that can be freed when another thread runs out of memory.
//!
//! Memory cached by an allocator is freed anyway. Holders of memory in use register here, for example the CUDA graphs of a
//! training whose teacher runs on another thread. They are asked to free it before the work fails.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Holder of memory that it can free on request.
pub trait Reclaim: Send + Sync {
    /// Frees the memory and returns true if there was any. Called on any thread; a holder whose memory is being used keeps it.
    fn reclaim(&self) -> bool;
}

static HOLDERS: Mutex<Vec<Weak<dyn Reclaim>>> = Mutex::new(Vec::new());

/// Registers `holder` for as long as it exists.
pub fn register(holder: &Arc<dyn Reclaim>) {
    let mut holders = HOLDERS.lock();
    holders.retain(|holder| holder.strong_count() > 0);
    holders.push(Arc::downgrade(holder));
}

/// Asks all holders to free memory. Returns true if any did.
pub(super) fn reclaim() -> bool {
    let holders: Vec<_> = HOLDERS.lock().iter().filter_map(Weak::upgrade).collect();
    // count() asks every holder; any() would stop at the first that frees memory.
    holders.iter().filter(|holder| holder.reclaim()).count() > 0
}
