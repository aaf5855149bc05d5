//! Error message for a mapped file that is truncated while in use.

use std::mem::MaybeUninit;
use std::{io, ptr};

use super::exit_now;

const MESSAGE: &[u8] = b"\nerror: cannot read a page of a mapped file (SIGBUS): a file in use, such as a graph \
store, was truncated or overwritten, or its disk failed; `kdgat data info --verify` finds damaged stores; resume training from its last \
checkpoint with --resume\n";

/// Installs a handler that ends the program with a message and exit code 1 when a mapped file is truncated. Without it,
/// the system would kill the program without a message.
///
/// # Errors
/// If the system refuses the handler.
pub fn explain_bus_errors() -> io::Result<()> {
    // SAFETY: an all-zero `sigaction` is valid; the handler only makes async-signal-safe calls.
    let set = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = explain as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn explain(_signal: libc::c_int) {
    // SAFETY: `write` is async-signal-safe and the message is static. A failed write changes nothing.
    unsafe { libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
    exit_now(1);
}
