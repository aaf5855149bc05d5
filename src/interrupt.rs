//! Ctrl-C and termination signals as a flag that long work looks at between two steps.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{terminal, torch};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Starts listening. The first signal asks for an orderly stop, the second ends the program at once.
///
/// # Errors
/// If the signal handler cannot be set, or is set already.
pub fn listen() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(request)
}

/// As a signal: what a panel calls that has got Ctrl-C as a key.
pub fn request() {
    if REQUESTED.swap(true, Ordering::SeqCst) {
        terminal::give_back();
        // What was saved last is whole, so nothing is lost by not waiting.
        torch::exit_now(130);
    }
    eprintln!("\nstopping after this step; press Ctrl-C again to stop at once");
}

/// Whether a stop was asked for.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}
