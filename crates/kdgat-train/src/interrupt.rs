//! Ctrl-C and termination signals as a flag that long work checks between two steps.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use kdgat_base::exit;
use kdgat_torch::exit_now;

static REQUESTED: AtomicBool = AtomicBool::new(false);
/// Work that is finished before the program stops, in words.
static LAST_WORK: OnceLock<&str> = OnceLock::new();

/// Starts listening. The first signal requests an orderly stop, the second ends the program at once.
///
/// # Errors
/// If the signal handler cannot be set, or is set already.
pub fn listen() -> Result<(), ctrlc::Error> {
    listen_to_stop_after("this step")
}

/// Like [`listen`]; `work` names what is finished first, in the message to the user.
///
/// # Errors
/// If the signal handler cannot be set, or is set already.
pub fn listen_to_stop_after(work: &'static str) -> Result<(), ctrlc::Error> {
    // A second call changes nothing: setting its handler fails below.
    let _ = LAST_WORK.set(work);
    ctrlc::set_handler(request)
}

/// Calls `handler` for each signal instead.
///
/// # Errors
/// If the signal handler cannot be set, or is set already.
pub fn listen_with(handler: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(handler)
}

/// Acts like a signal: the panel calls it when it reads Ctrl-C as a key.
pub fn request() {
    if REQUESTED.swap(true, Ordering::SeqCst) {
        #[cfg(feature = "live")]
        crate::terminal::give_back();
        // The last saved state is complete, so nothing is lost by exiting at once.
        exit_now(exit::STOPPED_AT_ONCE.into());
    }
    let work = LAST_WORK.get().unwrap_or(&"this step");
    eprintln!("\nstopping after {work}; press Ctrl-C again to stop at once");
}

/// True once a stop was requested.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}
