//! Ctrl-C and termination signals as a flag that long work looks at between two steps.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use kdgat_torch::exit_now;

use crate::terminal;

static REQUESTED: AtomicBool = AtomicBool::new(false);
/// What is finished before the program stops.
static LAST_WORK: OnceLock<&str> = OnceLock::new();

/// Starts listening. The first signal asks for an orderly stop, the second ends the program at once.
///
/// # Errors
/// If the signal handler cannot be set, or is set already.
pub fn listen() -> Result<(), ctrlc::Error> {
    listen_to_stop_after("this step")
}

/// As [`listen`]; `work` is what will still be finished, as it is said to the user.
///
/// # Errors
/// As [`listen`].
pub fn listen_to_stop_after(work: &'static str) -> Result<(), ctrlc::Error> {
    // Nobody listens twice: the handler below would be refused.
    let _ = LAST_WORK.set(work);
    ctrlc::set_handler(request)
}

/// As a signal: what a panel calls that has got Ctrl-C as a key.
pub fn request() {
    if REQUESTED.swap(true, Ordering::SeqCst) {
        terminal::give_back();
        // What was saved last is whole, so nothing is lost by not waiting.
        exit_now(130);
    }
    let work = LAST_WORK.get().unwrap_or(&"this step");
    eprintln!("\nstopping after {work}; press Ctrl-C again to stop at once");
}

/// Whether a stop was asked for.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}
