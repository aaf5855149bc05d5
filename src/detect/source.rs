//! Where frames come from: a log file, or a stream that is still being written.

use std::fmt;
use std::path::{Path, PathBuf};

use super::live::{Decompressed, LiveInput};
use crate::can::formats::{StreamReader, nothing_read};
use crate::can::{CanError, Format, Frame, LogReader, ReadReport, open_log};

/// Frames of a file that are read at a time.
const BLOCK_FRAMES: usize = 4096;
/// What stands for standard input.
pub const STANDARD_INPUT: &str = "-";

/// Frames of a file, or of a stream as they come.
pub struct FrameStream {
    source: Source,
    /// How messages call it.
    origin: PathBuf,
    /// The format was asked for.
    forced: bool,
}

enum Source {
    /// A log, perhaps compressed.
    File(LogReader),
    /// Standard input, or a named pipe.
    Live(StreamReader<Decompressed>),
}

impl fmt::Debug for FrameStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.source {
            Source::File(_) => "file",
            Source::Live(_) => "live",
        };
        write!(formatter, "FrameStream({kind} {})", self.origin.display())
    }
}

impl FrameStream {
    /// Opens a log; `-` is standard input. The format is recognised unless one is forced.
    ///
    /// # Errors
    /// A file that is missing or unreadable, or in no known format.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Self, CanError> {
        let is_standard = path.as_os_str() == STANDARD_INPUT;
        let origin = if is_standard { PathBuf::from("standard input") } else { path.to_path_buf() };
        // A pipe has no beginning to look at: whatever is read of it is gone.
        let is_stream = is_standard || path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        let source = if is_stream {
            if format == Some(Format::Parquet) {
                let problem = "a stream ends with what says how to read it; write it to a file first".to_owned();
                return Err(CanError::Parquet { path: origin, problem });
            }
            let input = if is_standard { LiveInput::standard() } else { LiveInput::open(path) };
            let input = input.map_err(|source| CanError::Open { path: origin.clone(), source })?;
            Source::Live(StreamReader::new(Decompressed::new(input), &origin, format))
        } else {
            Source::File(open_log(path, format)?)
        };
        Ok(Self { source, origin, forced: format.is_some() })
    }

    /// Clears `frames` and fills it with what comes next, perhaps nothing yet; `false` at the end. A silent stream is
    /// waited for no longer than a moment, so that the caller may stop.
    ///
    /// # Errors
    /// When the log cannot be read on, or had rows and not one of them could be read.
    pub fn read(&mut self, frames: &mut Vec<Frame>) -> Result<bool, CanError> {
        let more = match &mut self.source {
            Source::File(reader) => reader.read_block(BLOCK_FRAMES, frames)? > 0,
            Source::Live(reader) => reader.read_available(frames)?,
        };
        if more {
            return Ok(true);
        }
        nothing_read(&self.origin, self.report(), self.format(), self.forced).map_or(Ok(false), Err)
    }

    /// What was seen so far.
    pub fn report(&self) -> &ReadReport {
        match &self.source {
            Source::File(reader) => reader.report(),
            Source::Live(reader) => reader.report(),
        }
    }

    fn format(&self) -> Option<Format> {
        match &self.source {
            Source::File(reader) => Some(reader.format()),
            Source::Live(reader) => reader.format(),
        }
    }
}
