//! Cuts a log into lines, block by block, in a fixed amount of memory regardless of the lines' lengths.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use memchr::memchr;

use super::input::Input;
use crate::error::CanError;

/// Longest line that is delivered; rows of all formats are far shorter.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Size of the buffer: it fits a core's private cache and holds more than one line of maximum length.
const BLOCK_BYTES: usize = 256 << 10;
/// Bytes of a too long line that are stored to quote it.
const OVERLONG_HEAD_BYTES: usize = 128;

/// One line, without its line ending (`\n` or `\r\n`).
pub struct Line<'a> {
    /// Counted from 1.
    pub number: u64,
    /// The line, or its beginning if it is too long.
    pub bytes: &'a [u8],
    /// True if the line is longer than [`MAX_LINE_BYTES`].
    pub too_long: bool,
}

/// The lines of a log.
pub struct Lines {
    input: Input,
    buffer: Vec<u8>,
    /// Not delivered yet: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Lines delivered so far.
    number: u64,
    at_end: bool,
    /// The error that stopped reading; returned after all whole lines in the buffer have been delivered.
    failure: Option<CanError>,
    overlong_head: Vec<u8>,
    /// Position of `buffer[0]` in the log, in bytes.
    buffer_position: u64,
    /// Lines that begin at this position or later are not delivered.
    limit: u64,
    read_time: Duration,
}

/// Location of the next line.
enum Found {
    InBuffer { start: usize, end: usize },
    TooLong,
    End,
}

impl Lines {
    /// The lines of `input`; reads the first block.
    ///
    /// # Errors
    /// Those of [`Input::read`], if no whole line precedes the error.
    pub fn new(input: Input) -> Result<Lines, CanError> {
        let mut lines = Lines {
            input,
            buffer: vec![0; BLOCK_BYTES],
            start: 0,
            end: 0,
            number: 0,
            at_end: false,
            failure: None,
            overlong_head: Vec::new(),
            buffer_position: 0,
            limit: u64::MAX,
            read_time: Duration::ZERO,
        };
        while !lines.at_end && lines.failure.is_none() && lines.end < lines.buffer.len() / 2 {
            if let Err(error) = lines.fill() {
                if memchr(b'\n', lines.held()).is_none() {
                    return Err(error);
                }
                lines.failure = Some(error);
            }
        }
        if lines.buffer[..lines.end].starts_with(b"\xEF\xBB\xBF") {
            lines.start = 3; // a byte order mark, as some editors write
        }
        Ok(lines)
    }

    /// The lines of an uncompressed log that begin within `range` (positions in bytes), counted from 1; the last one may end
    /// beyond the range. Adjacent ranges together yield every line once.
    ///
    /// # Errors
    /// Those of [`Lines::new`]; when the log's size is not `log_bytes`.
    pub fn within(path: &Path, range: Range<u64>, log_bytes: u64) -> Result<Lines, CanError> {
        // The byte before shows whether a line begins at the first byte of the range.
        let begin = range.start.saturating_sub(1);
        let mut lines = Lines::new(Input::open_at(path, begin, log_bytes)?)?;
        lines.buffer_position = begin;
        lines.limit = range.end;
        if range.start > 0 {
            lines.start = 0;
            lines.pass_over_begun_line()?;
        } else if range.end > 0 {
            // The first line begins after the byte order mark, but belongs to the range that holds the mark.
            lines.limit = range.end.max(lines.start as u64 + 1);
        }
        Ok(lines)
    }

    /// The next line, `None` at the end. The last line needs no line ending.
    ///
    /// # Errors
    /// Those of [`Input::read`].
    #[inline]
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>, CanError> {
        if self.buffer_position + self.start as u64 >= self.limit {
            return Ok(None);
        }
        let found = match memchr(b'\n', &self.buffer[self.start..self.end]) {
            Some(length) if length <= MAX_LINE_BYTES => {
                let start = self.start;
                self.start += length + 1;
                Found::InBuffer { start, end: start + length }
            }
            _ => self.find_beyond_buffer()?,
        };
        self.number += u64::from(!matches!(found, Found::End));
        let number = self.number;
        Ok(match found {
            Found::InBuffer { start, end } => {
                let bytes = &self.buffer[start..end];
                Some(Line { number, bytes: bytes.strip_suffix(b"\r").unwrap_or(bytes), too_long: false })
            }
            Found::TooLong => Some(Line { number, bytes: &self.overlong_head, too_long: true }),
            Found::End => None,
        })
    }

    /// Up to `limit` of the next lines in the buffer, without consuming them.
    pub fn peek(&self, limit: usize) -> Vec<&[u8]> {
        let block = &self.buffer[self.start..self.end];
        let mut lines: Vec<&[u8]> = block.split(|byte| *byte == b'\n').take(limit + 1).collect();
        // The text after the last line ending of a block may be an incomplete line.
        if lines.len() > limit || !self.at_end {
            lines.pop();
        }
        lines.iter().map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect()
    }

    /// Bytes read but not delivered yet.
    pub fn held(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Lines delivered so far.
    pub fn count(&self) -> u64 {
        self.number
    }

    /// Time spent on disk reads and decompression.
    pub fn read_time(&self) -> Duration {
        self.read_time
    }

    /// The log's input.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// Reads on, because the buffer holds no whole line, and skips a line that is too long.
    #[cold]
    fn find_beyond_buffer(&mut self) -> Result<Found, CanError> {
        let mut overlong = false;
        loop {
            let held = &self.buffer[self.start..self.end];
            let line_end = memchr(b'\n', held);
            let length = line_end.unwrap_or(held.len());
            if length > MAX_LINE_BYTES && !overlong {
                overlong = true;
                self.overlong_head = held[..OVERLONG_HEAD_BYTES].to_vec();
            }
            let start = self.start;
            match line_end {
                Some(length) => {
                    self.start += length + 1;
                    return Ok(if overlong { Found::TooLong } else { Found::InBuffer { start, end: start + length } });
                }
                None if self.at_end => {
                    self.start = self.end;
                    return Ok(match length {
                        _ if overlong => Found::TooLong,
                        0 => Found::End,
                        _ => Found::InBuffer { start, end: start + length },
                    });
                }
                None if overlong => self.start = self.end,
                None => {}
            }
            self.fill()?;
        }
    }

    /// Moves to the beginning of the next line, but not beyond the limit.
    fn pass_over_begun_line(&mut self) -> Result<(), CanError> {
        loop {
            match memchr(b'\n', &self.buffer[self.start..self.end]) {
                Some(length) => self.start += length + 1,
                None => {
                    self.start = self.end;
                    if !self.at_end && self.buffer_position + (self.start as u64) < self.limit {
                        self.fill()?;
                        continue;
                    }
                }
            }
            return Ok(());
        }
    }

    /// Reads more bytes behind those in the buffer.
    fn fill(&mut self) -> Result<(), CanError> {
        if let Some(error) = self.failure.take() {
            return Err(self.at_line(error));
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.buffer_position += self.start as u64;
            self.end -= self.start;
            self.start = 0;
        }
        let begin = Instant::now();
        let count = self.input.read(&mut self.buffer[self.end..]);
        let count = count.map_err(|error| self.at_line(error))?;
        self.read_time += begin.elapsed();
        self.end += count;
        self.at_end = count == 0;
        Ok(())
    }

    /// Adds the line number to an error of reading on, which happens after all whole lines are delivered.
    fn at_line(&self, error: CanError) -> CanError {
        match error {
            CanError::Damaged { path, compression, decompressed_bytes, source, .. } => {
                CanError::Damaged { path, line: self.number + 1, compression, decompressed_bytes, source }
            }
            error => error,
        }
    }
}
