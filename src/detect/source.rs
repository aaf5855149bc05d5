//! Where frames come from: a log file, or a stream that is still being written.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::can::formats::StreamReader;
use crate::can::{CanError, Format, Frame, LogReader, ReadReport, open_log};

/// Frames of a file that are read at a time.
const BLOCK_FRAMES: usize = 4096;
/// What stands for standard input.
pub const STANDARD_INPUT: &str = "-";

/// Frames of a file, or of a stream as they come.
pub enum FrameStream {
    /// A log, perhaps compressed.
    File(LogReader),
    /// Standard input, or a named pipe.
    Live(StreamReader<Box<dyn Read>>),
}

impl fmt::Debug for FrameStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::File(_) => "FrameStream::File",
            Self::Live(_) => "FrameStream::Live",
        })
    }
}

impl FrameStream {
    /// Opens a log; `-` is standard input. The format is recognised unless one is forced.
    ///
    /// # Errors
    /// A file that is missing or unreadable, or in no known format.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Self, CanError> {
        if path.as_os_str() == STANDARD_INPUT {
            let input: Box<dyn Read> = Box::new(io::stdin().lock());
            return Ok(Self::Live(StreamReader::new(input, Path::new("standard input"), format)));
        }
        // A pipe has no beginning to look at: whatever is read of it is gone.
        let is_stream = path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
        if is_stream {
            let open = |source| CanError::Open { path: path.to_path_buf(), source };
            let input: Box<dyn Read> = Box::new(File::open(path).map_err(open)?);
            return Ok(Self::Live(StreamReader::new(input, path, format)));
        }
        open_log(path, format).map(Self::File)
    }

    /// Clears `frames` and fills it with what comes next, perhaps nothing yet; `false` at the end.
    ///
    /// # Errors
    /// When the log cannot be read on.
    pub fn read(&mut self, frames: &mut Vec<Frame>) -> Result<bool, CanError> {
        match self {
            Self::File(reader) => Ok(reader.read_block(BLOCK_FRAMES, frames)? > 0),
            Self::Live(reader) => reader.read_available(frames),
        }
    }

    /// What was seen so far.
    pub fn report(&self) -> &ReadReport {
        match self {
            Self::File(reader) => reader.report(),
            Self::Live(reader) => reader.report(),
        }
    }
}
