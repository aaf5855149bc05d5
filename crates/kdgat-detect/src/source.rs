//! Source of frames: a log file, or a stream that is still being written.

use std::fmt;
use std::path::{Path, PathBuf};

use super::live::{Decompressed, LiveInput};
use kdgat_can::formats::{RECENT_ROWS, RecentRows, StreamReader, nothing_read};
use kdgat_can::plausible::{check_interfaces, check_log, check_rejects, check_times};
use kdgat_can::{CanError, Format, Frame, LogReader, ReadOptions, ReadReport, open_log_with};

/// Frames read from a file at a time.
const BLOCK_FRAMES: usize = 4096;
/// Path that denotes standard input.
pub const STANDARD_INPUT: &str = "-";

/// Settings for reading a log or a stream.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// Format of the rows; recognised if `None`.
    pub format: Option<Format>,
    /// Interface, unit of times, and labels.
    pub read: ReadOptions,
    /// Largest allowed share of rows that cannot be read, from 0 to 1: of a file, or of a stream's last [`RECENT_ROWS`] rows.
    pub max_reject_share: f64,
}

/// Frames of a file, or of a stream as they arrive.
pub struct FrameStream {
    source: Source,
    /// Name of the source in messages.
    origin: PathBuf,
    options: SourceOptions,
    /// Warnings that have not been taken.
    warnings: Vec<String>,
    watch: Watch,
}

/// State of a live stream's checks.
#[derive(Debug, Default)]
struct Watch {
    /// True once frames of one interface alone are read.
    is_settled: bool,
    warned_of_interfaces: bool,
    warned_of_times: bool,
    /// True while more than the allowed share of the last rows is rejected.
    is_unreadable: bool,
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
    pub fn open(path: &Path, options: &SourceOptions) -> Result<Self, CanError> {
        let is_standard = path.as_os_str() == STANDARD_INPUT;
        let origin = if is_standard { PathBuf::from("standard input") } else { path.to_path_buf() };
        let (format, read) = (options.format, &options.read);
        // A pipe cannot be probed for its format, because reading consumes its data.
        let is_stream = is_standard || path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        let source = if is_stream {
            if format == Some(Format::Parquet) {
                let problem = "its schema comes last; write the stream to a file first".to_owned();
                return Err(CanError::Parquet { path: origin, problem });
            }
            let input = if is_standard { LiveInput::standard() } else { LiveInput::open(path) };
            let input = input.map_err(|source| CanError::Open { path: origin.clone(), source })?;
            Source::Live(StreamReader::new(Decompressed::new(input), &origin, format, read))
        } else {
            Source::File(open_log_with(path, format, read)?)
        };
        let options = options.clone();
        Ok(Self { source, origin, options, warnings: Vec::new(), watch: Watch::default() })
    }

    /// Opens a log like [`FrameStream::open`], and reads a file to its end first, so that nothing is done with one that is refused.
    ///
    /// # Errors
    /// Those of [`FrameStream::open`] and, for a file, of [`FrameStream::check`]. A file that cannot be read to its end is not an error
    /// here: the frames before are read again, and then the error.
    pub fn open_checked(path: &Path, options: &SourceOptions) -> Result<Self, CanError> {
        let mut stream = Self::open(path, options)?;
        let Source::File(reader) = &mut stream.source else { return Ok(stream) };
        let mut frames = Vec::with_capacity(BLOCK_FRAMES);
        while reader.read_block(BLOCK_FRAMES, &mut frames).is_ok_and(|count| count > 0) {}
        stream.check()?;
        Self::open(path, options)
    }

    /// Checks the rows read so far: that some could be read, at most the allowed share was rejected, and interfaces and times are
    /// plausible.
    ///
    /// # Errors
    /// Those of [`nothing_read`] and [`check_log`].
    pub fn check(&self) -> Result<(), CanError> {
        let SourceOptions { format, read, max_reject_share } = &self.options;
        if let Some(error) = nothing_read(&self.origin, self.report(), self.format(), format.is_some()) {
            return Err(error);
        }
        check_log(&self.origin, self.report(), self.format(), read, *max_reject_share)
    }

    /// Clears `frames` and fills it with the next frames, possibly none yet; returns `false` at the end. Waits for a silent stream
    /// only briefly, so that the caller can stop.
    ///
    /// # Errors
    /// Fails if the log cannot be read further, or if it has rows and none could be read; if a stream begins with frames of several
    /// interfaces and none is chosen.
    pub fn read(&mut self, frames: &mut Vec<Frame>) -> Result<bool, CanError> {
        let more = match &mut self.source {
            Source::File(reader) => reader.read_block(BLOCK_FRAMES, frames)? > 0,
            Source::Live(reader) => reader.read_available(frames)?,
        };
        if self.is_live() {
            self.watch_stream(!more)?;
        }
        if more {
            return Ok(true);
        }
        let is_forced = self.options.format.is_some();
        nothing_read(&self.origin, self.report(), self.format(), is_forced).map_or(Ok(false), Err)
    }

    /// Checks a live stream. It goes on whatever its rows are, so that garbage cannot switch a detector off; only its beginning can be
    /// refused.
    fn watch_stream(&mut self, at_end: bool) -> Result<(), CanError> {
        let Self { source: Source::Live(reader), origin, options, warnings, watch } = self else { return Ok(()) };
        let report = reader.report();
        let begins = report.rows < u64::from(RECENT_ROWS);
        let is_chosen = options.read.interface.is_some();
        if !watch.is_settled {
            let checked = check_interfaces(origin, report, &options.read);
            // The chosen interface may have no frame yet.
            if at_end || !is_chosen || report.frames > 0 {
                checked?;
            }
            watch.is_settled = !begins;
            let first = report.interfaces.keys().next().cloned();
            if let Some(name) = first.filter(|_| watch.is_settled && !is_chosen) {
                reader.keep_interface(&name);
            }
        } else if !is_chosen && report.interfaces.len() > 1 && !watch.warned_of_interfaces {
            watch.warned_of_interfaces = true;
            let found = report.describe_interfaces();
            warnings.push(format!(
                "{}: frames of another interface have come ({found}) and are left out; choose one with --interface NAME",
                origin.display()
            ));
        }
        let report = reader.report();
        if (at_end || !begins) && !watch.warned_of_times {
            // Once: an attack may have any times.
            watch.warned_of_times = true;
            warnings.extend(check_times(origin, report, &options.read).err().map(|error| error.to_string()));
        }
        if at_end {
            let rejected = check_rejects(origin, report, reader.format(), options.max_reject_share);
            warnings.extend(rejected.err().map(|error| error.to_string()));
            return Ok(());
        }
        let recent = reader.recent();
        let is_unreadable = recent.rows() == RECENT_ROWS && recent.reject_share() > options.max_reject_share;
        if is_unreadable && !watch.is_unreadable {
            let last = report.rejected.values().flat_map(|found| &found.first).map(|place| place.line).min();
            let first = last.map_or(String::new(), |line| format!(" (the first of all at line {line})"));
            warnings.push(format!(
                "{}: {} of the last {RECENT_ROWS} rows could not be read{first}; they are left out, and the detection goes on",
                origin.display(),
                recent.rejected()
            ));
        }
        // A share about the limit is not told again and again.
        watch.is_unreadable =
            is_unreadable || watch.is_unreadable && 2.0 * recent.reject_share() > options.max_reject_share;
        Ok(())
    }

    /// Takes the warnings of a live stream since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// The last rows of a live stream; `None` for a file.
    pub fn recent(&self) -> Option<&RecentRows> {
        match &self.source {
            Source::File(_) => None,
            Source::Live(reader) => Some(reader.recent()),
        }
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
