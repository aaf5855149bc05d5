//! Standard output without panics: a reader that has gone away is an error that the program ends quietly on.

use std::io::{self, Write};

/// Writes all of `text` to standard output.
pub fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
