//! Standard output without panics: a closed pipe is an error, on which the program ends quietly.

use std::io::{self, Write};

use thiserror::Error;

/// Standard output cannot be written.
#[derive(Debug, Error)]
#[error("cannot write to standard output")]
pub struct OutputError(#[source] pub io::Error);

/// Writes all of `text` to standard output.
///
/// # Errors
/// If the pipe is closed, or the disk of the target file is full.
pub fn write(text: &str) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(OutputError)
}
