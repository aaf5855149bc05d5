//! Cuts a log into lines, block by block, in a fixed amount of memory whatever the lines are.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use memchr::memchr;

use super::input::Input;
use crate::error::CanError;

/// The longest line that is given out; no row of any format comes near.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Bytes held at a time: small enough for a core's own cache, and room for more than one longest line.
const BLOCK_BYTES: usize = 256 << 10;
/// How much of a line that is too long is kept, to show where it was.
const OVERLONG_HEAD_BYTES: usize = 128;

/// One line, without its line ending (`\n` or `\r\n`).
pub struct Line<'a> {
    /// Counted from 1.
    pub number: u64,
    /// The line, or how it begins if it is too long.
    pub bytes: &'a [u8],
    /// The line was longer than [`MAX_LINE_BYTES`].
    pub too_long: bool,
}

/// The lines of a log.
pub struct Lines {
    input: Input,
    buffer: Vec<u8>,
    /// Not given out yet: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Lines given out so far.
    number: u64,
    at_end: bool,
    /// Why there is no more than what is held: told when the whole lines of that are given out.
    failure: Option<CanError>,
    overlong_head: Vec<u8>,
    /// Position in the log of `buffer[0]`.
    buffer_position: u64,
    /// Lines that begin here or later are not given out.
    limit: u64,
    read_time: Duration,
}

/// Where the next line was found.
enum Found {
    InBuffer { start: usize, end: usize },
    TooLong,
    End,
}

impl Lines {
    /// The lines of `input`; reads the first block.
    ///
    /// # Errors
    /// Those of [`Input::read`], if not a single line came before.
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

    /// The lines of an uncompressed log that begin within `range` (positions in bytes), counted from 1. The last of them
    /// is given out whole. Ranges that follow each other give every line once.
    ///
    /// # Errors
    /// As [`Lines::new`]; when the log has not `log_bytes` bytes.
    pub fn within(path: &Path, range: Range<u64>, log_bytes: u64) -> Result<Lines, CanError> {
        // The byte before tells whether a line begins at the first.
        let begin = range.start.saturating_sub(1);
        let mut lines = Lines::new(Input::open_at(path, begin, log_bytes)?)?;
        lines.buffer_position = begin;
        lines.limit = range.end;
        if range.start > 0 {
            lines.start = 0;
            lines.pass_over_begun_line()?;
        } else if range.end > 0 {
            // A line behind a byte order mark begins with the mark.
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

    /// The first lines, without taking them.
    pub fn peek(&self, limit: usize) -> Vec<&[u8]> {
        let block = &self.buffer[self.start..self.end];
        let mut lines: Vec<&[u8]> = block.split(|byte| *byte == b'\n').take(limit + 1).collect();
        // What follows the last line ending of a block may be the beginning of a line only.
        if lines.len() > limit || !self.at_end {
            lines.pop();
        }
        lines.iter().map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect()
    }

    /// What has been read and not yet given out.
    pub fn held(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Lines given out so far.
    pub fn count(&self) -> u64 {
        self.number
    }

    /// Time spent on reading and decompressing.
    pub fn read_time(&self) -> Duration {
        self.read_time
    }

    /// The log.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// The buffer holds no whole line: reads on, and passes over a line that is too long.
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

    /// Goes to the beginning of the next line, but not beyond the limit.
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

    /// Reads more behind what is held.
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

    /// The error of reading on, which is done when all whole lines are given out.
    fn at_line(&self, error: CanError) -> CanError {
        match error {
            CanError::Damaged { path, compression, decompressed_bytes, source, .. } => {
                CanError::Damaged { path, line: self.number + 1, compression, decompressed_bytes, source }
            }
            error => error,
        }
    }
}
