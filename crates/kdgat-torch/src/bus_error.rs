//! What is said when a mapped file goes away under the program.

use std::mem::MaybeUninit;
use std::{io, ptr};

use super::exit_now;

const MESSAGE: &[u8] = b"\nerror: the system could not give a page of memory that is a file's (SIGBUS): a file that was in use, such as a graph \
store, was cut short or overwritten, or its disk failed; `kdgat data info --verify` names damaged stores; a training goes on from its last \
checkpoint with --resume\n";

/// From here on the program ends with a message and exit code 1 where a mapped file was cut short, which would kill it
/// without a word otherwise.
///
/// # Errors
/// When the system refuses the handler.
pub fn explain_bus_errors() -> io::Result<()> {
    // SAFETY: an all-zero `sigaction` is a valid one; the handler does nothing but what a signal handler may do.
    let set = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = explain as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn explain(_signal: libc::c_int) {
    // SAFETY: `write` may be called in a signal handler; the message lives for ever. That it cannot be written changes nothing.
    unsafe { libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
    exit_now(1);
}
