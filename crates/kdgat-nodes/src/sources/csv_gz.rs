//! Lines of a compressed CSV file without a header, read as a stream.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::raw_graph::Mismatch;
use crate::NodesError;
use crate::npz::Placed;

/// Bytes read or unpacked at a time.
const BUFFER_BYTES: usize = 1 << 18;
/// Longest line: more than a million numbers.
const LONGEST_LINE: u64 = 1 << 25;

/// Calls `each` with the position, from 0, and the text of every line, without its end. Returns the number of lines.
///
/// # Errors
/// A file that cannot be read or is damaged, a line that is no text, or an error of `each`.
pub(super) fn each_line(
    path: &Path,
    mut each: impl FnMut(u64, &str) -> Result<(), Mismatch>,
) -> Result<u64, NodesError> {
    let mut lines = Lines::open(path)?;
    while lines.read()? {
        let position = lines.count - 1;
        let done = text_of(&lines.line).and_then(|text| each(position, text));
        done.map_err(|mismatch| mismatch.at(path, format!(", line {}", lines.count)))?;
    }
    Ok(lines.count)
}

/// The first line, without its end; `None` if there is none.
///
/// # Errors
/// A file that cannot be read or is damaged, or a line that is no text.
pub(super) fn first_line(path: &Path) -> Result<Option<String>, NodesError> {
    let mut lines = Lines::open(path)?;
    if !lines.read()? {
        return Ok(None);
    }
    let text = text_of(&lines.line).map_err(|mismatch| mismatch.at(path, ", line 1"))?;
    Ok(Some(text.to_owned()))
}

struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<MultiGzDecoder<BufReader<File>>>,
    /// The last line that was read.
    line: Vec<u8>,
    /// Lines that were read.
    count: u64,
}

impl<'a> Lines<'a> {
    fn open(path: &'a Path) -> Result<Self, NodesError> {
        let file = File::open(path).map_err(NodesError::io("open", path))?;
        let compressed = BufReader::with_capacity(BUFFER_BYTES, file);
        let reader = BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(compressed));
        Ok(Self { path, reader, line: Vec::new(), count: 0 })
    }

    /// Reads a line; false at the end.
    fn read(&mut self) -> Result<bool, NodesError> {
        self.line.clear();
        let read = (&mut self.reader).take(LONGEST_LINE).read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| unreadable(self.path, self.count, error))?;
        self.count += u64::from(read > 0);
        Ok(read > 0)
    }
}

fn text_of(line: &[u8]) -> Result<&str, Mismatch> {
    if line.len() as u64 == LONGEST_LINE {
        return Err(Mismatch::new("a line without an end", format!("lines below {LONGEST_LINE} bytes")));
    }
    let text = std::str::from_utf8(line).map_err(|_| Mismatch::new("bytes that are no text", "numbers"))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    Ok(text.strip_suffix('\r').unwrap_or(text))
}

fn unreadable(path: &Path, lines: u64, error: io::Error) -> NodesError {
    // Errors of decompression have no number.
    if error.raw_os_error().is_some() {
        return NodesError::io("read", path)(error);
    }
    let found = format!("unreadable ({error})");
    NodesError::invalid(path, format!(", line {}", lines + 1), found, "a complete .gz file: copy or download it again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::testing::write_gz;

    fn lines(path: &Path) -> Result<Vec<String>, NodesError> {
        let mut lines = Vec::new();
        let count = each_line(path, |at, line| {
            assert_eq!(at, lines.len() as u64);
            lines.push(line.to_owned());
            Ok(())
        })?;
        assert_eq!(count, lines.len() as u64);
        Ok(lines)
    }

    #[test]
    fn lines_are_read_with_any_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.csv.gz");
        for (text, expected) in [("", vec![]), ("1,2\n", vec!["1,2"]), ("1,2\r\n\n3", vec!["1,2", "", "3"])] {
            write_gz(&path, text);
            assert_eq!(lines(&path).unwrap(), expected, "{text:?}");
        }
        // Two compressed streams, one after the other.
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_within(..);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(lines(&path).unwrap(), ["1,2", "", "31,2", "", "3"]);
    }

    #[test]
    fn damaged_files_are_named_with_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.csv.gz");
        write_gz(&path, &"1,2\n".repeat(1000));
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = lines(&path).unwrap_err().to_string();
            assert!(error.contains("lines.csv.gz, line "), "{length}: {error}");
            assert!(error.contains("expected a complete .gz file"), "{length}: {error}");
        }
        let mut flipped = whole.clone();
        let checksum = flipped.len() - 8;
        flipped[checksum] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        assert!(lines(&path).is_err());
        write_gz(&path, "1,2\n1,2\n");
        let error = each_line(&path, |at, _| if at == 1 { Err(Mismatch::new("x", "y")) } else { Ok(()) });
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("lines.csv.gz, line 2: x, expected y"), "{error}");
    }
}
