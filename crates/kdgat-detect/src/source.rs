//! Source of frames: a log file, or a stream that is still being written.

use std::fmt;
use std::path::{Path, PathBuf};

use super::live::{Decompressed, LiveInput};
use kdgat_can::formats::{StreamReader, nothing_read};
use kdgat_can::{CanError, Format, Frame, LogReader, ReadReport, open_log};

/// Frames read from a file at a time.
const BLOCK_FRAMES: usize = 4096;
/// Path that denotes standard input.
pub const STANDARD_INPUT: &str = "-";

/// Frames of a file, or of a stream as they arrive.
pub struct FrameStream {
    source: Source,
    /// Name of the source in messages.
    origin: PathBuf,
    /// Set if the user chose the format.
    forced: bool,
}

enum Source {
    /// A log file, optionally compressed.
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
    /// Fails if a file is missing, unreadable, or in no known format.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Self, CanError> {
        let is_standard = path.as_os_str() == STANDARD_INPUT;
        let origin = if is_standard { PathBuf::from("standard input") } else { path.to_path_buf() };
        // A pipe cannot be probed for its format, because reading consumes its data.
        let is_stream = is_standard || path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        let source = if is_stream {
            if format == Some(Format::Parquet) {
                let problem = "its schema comes last; write the stream to a file first".to_owned();
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

    /// Clears `frames` and fills it with the next frames, possibly none yet; returns `false` at the end. Waits for a silent stream
    /// only briefly, so that the caller can stop.
    ///
    /// # Errors
    /// Fails if the log cannot be read further, or if it has rows and none could be read.
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

    /// True for standard input, a pipe or a device, whose frames may come as they are sent.
    pub fn is_live(&self) -> bool {
        matches!(self.source, Source::Live(_))
    }

    /// Report on the frames read so far.
    pub fn report(&self) -> &ReadReport {
        match &self.source {
            Source::File(reader) => reader.report(),
            Source::Live(reader) => reader.report(),
        }
    }

    /// True if frames are labelled as attacks or attack-free; known after the first frame.
    pub fn has_labels(&self) -> bool {
        match &self.source {
            Source::File(reader) => reader.has_labels(),
            Source::Live(reader) => reader.has_labels(),
        }
    }

    fn format(&self) -> Option<Format> {
        match &self.source {
            Source::File(reader) => Some(reader.format()),
            Source::Live(reader) => reader.format(),
        }
    }
}
