//! Standard output without panics: a reader that has gone away is an error that the program ends quietly on.

use std::io::{self, Write};

use thiserror::Error;

/// What is printed cannot be written.
#[derive(Debug, Error)]
#[error("cannot write to standard output")]
pub struct OutputError(#[source] pub io::Error);

/// Writes all of `text` to standard output.
///
/// # Errors
/// When nobody reads it any more, or where it is redirected to is full.
pub fn write(text: &str) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(OutputError)
}
