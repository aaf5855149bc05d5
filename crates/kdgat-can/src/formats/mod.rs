//! Log formats: how a file becomes blocks of frames.
//!
//! [`open_log`] detects the compression (by magic bytes) and the format (by content), and returns a [`LogReader`]. A text format
//! is a [`LineFormat`]: one file of this folder, one row per line. A binary format would implement [`FrameSource`] directly.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::CanError;
use super::frame::Frame;
use super::report::{FrameKind, ReadReport, RejectReason};

mod asc;
pub mod can_train_and_test;
mod candump;
mod candump_ascii;
mod car_hacking;
mod challenge_2020;
mod dates;
mod decompressed;
mod fields;
mod foreign;
mod gzip;
mod input;
mod intake;
mod lines;
mod options;
#[cfg(feature = "parquet")]
mod parquet_log;
mod python_can;
mod road;
mod text_log;
mod unreadable;
#[cfg(feature = "compressed")]
mod zstd_and_xz;

pub use input::{Compression, decompress};
pub use lines::MAX_LINE_BYTES;
pub use options::{ReadOptions, TimeUnit};
pub use piece::{Piece, format_of_pieces, read_piece};
pub use road::{METADATA_NAME, metadata_digest};
pub use stream::{RECENT_ROWS, RecentRows, StreamReader};
pub use unreadable::nothing_read;

pub(crate) use foreign::of_rejected as rejected_help;

use input::Input;
use lines::Lines;
use road::InjectionLabels;
use text_log::TextLog;
use unreadable::{known_formats, unknown_format};

/// Lines examined to detect the format.
const LINES_TO_RECOGNISE: usize = 64;

/// A log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// `timestamp,arbitration_id,data_field,attack` ([`can_train_and_test`]).
    CanTrainAndTest,
    /// SocketCAN `candump -L`.
    Candump,
    /// SocketCAN `candump -ta`, as on a terminal.
    CandumpAscii,
    /// HCRL Car-Hacking and Survival Analysis as published: `time,id,DLC,byte,…,R|T`.
    CarHacking,
    /// HCRL Challenge 2020: `Timestamp,Arbitration_ID,DLC,Data,Class,SubClass`.
    #[serde(rename = "challenge-2020")]
    Challenge2020,
    /// python-can's CSV: `timestamp,arbitration_id,extended,remote,error,dlc,data`.
    PythonCan,
    /// Vector ASC.
    Asc,
    /// Parquet with columns named as in [`can_train_and_test`]; read by programs built with the feature `parquet`.
    Parquet,
}

/// Calls a generic function with the parser type of a format.
macro_rules! with_line_format {
    ($format:expr, $function:ident($($argument:expr),*)) => {
        match $format {
            Format::CanTrainAndTest => $function::<can_train_and_test::CanTrainAndTest>($($argument),*),
            Format::Candump => $function::<candump::Candump>($($argument),*),
            Format::CandumpAscii => $function::<candump_ascii::CandumpAscii>($($argument),*),
            Format::CarHacking => $function::<car_hacking::CarHacking>($($argument),*),
            Format::Challenge2020 => $function::<challenge_2020::Challenge2020>($($argument),*),
            Format::PythonCan => $function::<python_can::PythonCan>($($argument),*),
            Format::Asc => $function::<asc::Asc>($($argument),*),
            Format::Parquet => $function::<NoText>($($argument),*),
        }
    };
}

// After the macro: these modules use it.
mod piece;
mod recognise;
mod stream;

impl Format {
    /// All text formats; if several read a log equally well, the first is chosen.
    pub const TEXT: [Format; 7] = [
        Format::Candump,
        Format::CandumpAscii,
        Format::CarHacking,
        Format::Challenge2020,
        Format::PythonCan,
        Format::Asc,
        Format::CanTrainAndTest,
    ];
    /// All formats.
    pub const ALL: [Format; 8] = [
        Format::Candump,
        Format::CandumpAscii,
        Format::CarHacking,
        Format::Challenge2020,
        Format::PythonCan,
        Format::Asc,
        Format::CanTrainAndTest,
        Format::Parquet,
    ];

    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Format::CanTrainAndTest => "can-train-and-test",
            Format::Candump => "candump",
            Format::CandumpAscii => "candump-ascii",
            Format::CarHacking => "car-hacking",
            Format::Challenge2020 => "challenge-2020",
            Format::PythonCan => "python-can",
            Format::Asc => "asc",
            Format::Parquet => "parquet",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            let likeness = |format: &Format| (1000.0 * strsim::jaro_winkler(name, format.name())) as u32;
            let nearest = Format::ALL.into_iter().max_by_key(likeness).map_or("", Format::name);
            format!("unknown log format {name:?}; did you mean {nearest:?}? Known formats: {}", known_formats())
        })
    }
}

/// Result of parsing one line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Row {
    /// A frame.
    Frame(Frame, FrameKind),
    /// An error frame of the bus: counted, not delivered.
    ErrorFrame,
    /// A header, a comment or an event that is not a frame.
    Skipped,
    /// A row that should be a frame but cannot be read.
    Rejected(RejectReason),
}

/// A text format with one row per line.
pub trait LineFormat: Default + Send {
    /// True if parsing a line depends on no other line but the log's first, so that the log can be read in pieces.
    const LINES_STAND_ALONE: bool = false;

    /// True if `line` is a header with exactly this format's columns: no other format is considered then.
    fn is_own_header(_line: &[u8]) -> bool {
        false
    }

    /// Parses one line, without its line ending and never blank. Lines arrive in the order of the file.
    fn parse_line(&mut self, line: &[u8]) -> Row;

    /// Name of the interface or channel in a row of a frame or an error frame; `line` was parsed last.
    fn interface<'a>(&self, _line: &'a [u8]) -> Option<&'a [u8]> {
        None
    }

    /// True if the lines parsed so far have labels, in a header or in the rows. Without labels every frame is attack-free.
    fn has_labels(&self) -> bool {
        false
    }

    /// Rejects rows without a label from now on, if the format labels every row.
    fn require_labels(&mut self) {}
}

/// A reader of the frames of one log, in order.
pub trait FrameSource: Send {
    /// Appends frames until `frames` holds `limit` or the log ends, and counts all rows in `report`.
    ///
    /// # Errors
    /// When reading fails. A row that cannot be parsed is only counted.
    fn read(&mut self, limit: usize, frames: &mut Vec<Frame>, report: &mut ReadReport) -> Result<(), CanError>;

    /// Time spent so far on disk reads and decompression.
    fn read_time(&self) -> Duration;

    /// True if the rows read so far have labels.
    fn has_labels(&self) -> bool;
}

fn text_log<F: LineFormat + 'static>(lines: Lines, options: &ReadOptions) -> Box<dyn FrameSource> {
    Box::new(TextLog::new(lines, F::default(), options))
}

/// Opens the log at `path` in a text format that need not be one of [`Format`]; decompresses it if necessary.
///
/// # Errors
/// When the file is missing, unreadable, empty or damaged.
pub fn open_text_log<F: LineFormat + 'static>(path: &Path) -> Result<Box<dyn FrameSource>, CanError> {
    Ok(text_log::<F>(Lines::new(Input::open(path)?)?, &ReadOptions::default()))
}

/// Opens the log at `path` with the default [`ReadOptions`]; its format is detected from its first lines unless one is forced.
///
/// # Errors
/// When the file is missing, unreadable, empty, damaged, or in no known format.
pub fn open_log(path: &Path, format: Option<Format>) -> Result<LogReader, CanError> {
    open_log_with(path, format, &ReadOptions::default())
}

/// Opens the log at `path`; its format is detected from its first lines unless one is forced.
///
/// # Errors
/// When the file is missing, unreadable, empty, damaged, or in no known format.
pub fn open_log_with(path: &Path, format: Option<Format>, options: &ReadOptions) -> Result<LogReader, CanError> {
    if format == Some(Format::Parquet) || (format.is_none() && begins_like_parquet(path)) {
        let (format, compression) = (Format::Parquet, Compression::None);
        let (source, report) = (open_parquet(path, options)?, ReadReport::default());
        return Ok(LogReader { format, compression, source, labels: None, label_notice: None, report, failure: None });
    }
    let lines = Lines::new(Input::open(path)?)?;
    let compression = lines.input().compression();
    let format = match format {
        Some(format) => format,
        None => recognise(&lines)?,
    };
    let (labels, label_notice) = match format {
        Format::Candump | Format::CandumpAscii => InjectionLabels::of(path)?,
        Format::CanTrainAndTest => {
            (None, lines.peek(1).first().and_then(|line| can_train_and_test::lacking_label(line)))
        }
        _ => (None, None),
    };
    let source = with_line_format!(format, text_log(lines, options));
    Ok(LogReader { format, compression, source, labels, label_notice, report: ReadReport::default(), failure: None })
}

/// Stands in for a text format where the log is not text: rejects every line.
#[derive(Default)]
struct NoText;

impl LineFormat for NoText {
    fn parse_line(&mut self, _line: &[u8]) -> Row {
        Row::Rejected(RejectReason::NotARow)
    }
}

/// First bytes of a Parquet file.
const PARQUET_MAGIC: &[u8; 4] = b"PAR1";

fn begins_like_parquet(path: &Path) -> bool {
    let mut head = [0; PARQUET_MAGIC.len()];
    // An unreadable file counts as no Parquet file; opening it as text reports the error.
    let read = std::fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head));
    read.is_ok() && head == *PARQUET_MAGIC
}

#[cfg(feature = "parquet")]
fn open_parquet(path: &Path, options: &ReadOptions) -> Result<Box<dyn FrameSource>, CanError> {
    Ok(Box::new(parquet_log::ParquetLog::open(path, options)?))
}

#[cfg(not(feature = "parquet"))]
fn open_parquet(path: &Path, _options: &ReadOptions) -> Result<Box<dyn FrameSource>, CanError> {
    Err(CanError::NoParquet { path: path.to_path_buf() })
}

fn recognise(lines: &Lines) -> Result<Format, CanError> {
    let head = lines.peek(LINES_TO_RECOGNISE);
    recognise::best_format(&head).ok_or_else(|| {
        let first = head.iter().find(|line| !line.trim_ascii().is_empty()).copied().unwrap_or(lines.held());
        unknown_format(lines.input().path(), lines.held(), first)
    })
}

/// Reads a log from its beginning to its end, in blocks of the caller's size.
pub struct LogReader {
    format: Format,
    compression: Compression,
    source: Box<dyn FrameSource>,
    labels: Option<InjectionLabels>,
    label_notice: Option<String>,
    report: ReadReport,
    /// The error that ended the log; returned after all frames before it have been delivered.
    failure: Option<CanError>,
}

impl LogReader {
    /// Clears `frames` and fills it with at most `limit` of the next frames; `Ok(0)` is the end of the log.
    ///
    /// # Errors
    /// When the file cannot be read, is truncated or damaged, or changed its size meanwhile. All frames before the error are
    /// delivered first.
    pub fn read_block(&mut self, limit: usize, frames: &mut Vec<Frame>) -> Result<usize, CanError> {
        frames.clear();
        let read = match self.failure.take() {
            Some(error) => Err(error),
            None => self.source.read(limit, frames, &mut self.report),
        };
        match read {
            Err(error) if frames.is_empty() => return Err(error),
            read => self.failure = read.err(),
        }
        if let Some(labels) = &mut self.labels {
            self.report.attack_frames += labels.apply(frames);
        }
        Ok(frames.len())
    }

    /// A notice when all frames count as attack-free although the log may have labels.
    pub fn label_notice(&self) -> Option<&str> {
        self.label_notice.as_deref()
    }

    /// True if frames are labelled as attacks or attack-free, in the rows read so far or beside the log.
    pub fn has_labels(&self) -> bool {
        self.labels.is_some() || self.source.has_labels()
    }

    /// Counts of all rows read so far.
    pub fn report(&self) -> &ReadReport {
        &self.report
    }

    /// Time spent so far on disk reads and decompression; the rest was parsing.
    pub fn read_time(&self) -> Duration {
        self.source.read_time()
    }

    /// The log's format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The file's compression.
    pub fn compression(&self) -> Compression {
        self.compression
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The rows that format `F` parses from these lines.
    pub fn rows_of<F: LineFormat>(lines: &[&str]) -> Vec<Row> {
        let mut format = F::default();
        lines.iter().map(|line| format.parse_line(line.as_bytes())).collect()
    }

    pub fn frame(timestamp: f64, can_id: u32, data: &[u8], attack: bool) -> Frame {
        let mut payload = [0; 8];
        payload[..data.len()].copy_from_slice(data);
        Frame { timestamp, can_id, payload, payload_length: data.len() as u8, attack }
    }

    /// A log and a stream know after the first frame whether their rows have labels.
    #[test]
    fn labels_are_known_by_header_and_format() {
        let folder = tempfile::tempdir().unwrap();
        for (text, expected) in [
            ("1.0,123,00,0\n2.0,123,00,1\n", true),
            ("timestamp,arbitration_id,data_field,attack\n1.0,123,00,0\n", true),
            ("label,time,id,data\n0,1.0,123,00\n", true),
            ("timestamp,arbitration_id,data_field\n1.0,123,00\n", false),
            ("Timestamp,Arbitration_ID,DLC,Data,Class,SubClass\n1.0,153,1,20,Normal,Normal\n", true),
            ("Timestamp,Arbitration_ID,DLC,Data\n1.0,153,1,20\n", false),
            ("1.0,0153,1,20,R\n", true),
            ("1.0,0153,1,20\n", false),
            ("(1.0) can0 123#00\n", false),
            ("(1.0) can0 123#00 0\n", true),
        ] {
            let path = folder.path().join("drive.log");
            std::fs::write(&path, text).unwrap();
            let (mut frames, mut log) = (Vec::new(), open_log(&path, None).unwrap());
            assert!(log.read_block(1, &mut frames).unwrap() == 1, "{text}");
            let mut stream =
                StreamReader::new(text.as_bytes(), Path::new("standard input"), None, &ReadOptions::default());
            while stream.read_available(&mut frames).unwrap() {}
            assert_eq!((log.has_labels(), stream.has_labels()), (expected, expected), "{text}");
        }
    }

    #[test]
    fn formats_have_the_names_they_are_parsed_from() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
            assert_eq!(serde_json::to_value(format).unwrap(), format.name());
        }
        let error = "car-hackin".parse::<Format>().unwrap_err();
        assert!(error.contains("did you mean \"car-hacking\"?"), "{error}");
    }
}
