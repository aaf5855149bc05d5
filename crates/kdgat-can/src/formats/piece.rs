//! A piece of a large log, read by itself, so that several threads can read one log.
//!
//! A piece holds the lines that begin within a range of bytes. Values that depend on earlier lines (line numbers, a step
//! back in time at its first frame) are added once the pieces before it are known: [`Piece::follow`].

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use super::input::Input;
use super::lines::Lines;
use super::options::ReadOptions;
use super::text_log::TextLog;
use super::{Format, FrameSource, InjectionLabels, LineFormat, NoText, begins_like_parquet, recognise};
use super::{asc, can_train_and_test, candump, candump_ascii, car_hacking, challenge_2020, python_can};
use crate::error::CanError;
use crate::frame::Frame;
use crate::report::{Place, ReadReport};

/// Counts and timestamps of one piece of a log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// Counts of the piece. Until [`Piece::follow`] its line numbers count from the first line of the piece.
    pub report: ReadReport,
    /// Lines of the piece, including blank ones.
    pub lines: u64,
    /// Timestamp and place of its first frame.
    first: Option<(f64, Place)>,
    /// Timestamp of its last frame.
    pub last_timestamp: Option<f64>,
    /// Time spent on disk reads.
    pub read_time: Duration,
}

impl Piece {
    /// Places the piece after `lines` other lines of its log, whose last frame has `last_timestamp`.
    pub fn follow(&mut self, lines: u64, last_timestamp: Option<f64>) {
        let places = self.report.rejected.values_mut().flat_map(|rejections| &mut rejections.first);
        places.chain(&mut self.report.first_backward).for_each(|place| place.line += lines);
        let Some(((timestamp, mut place), last)) = self.first.take().zip(last_timestamp) else { return };
        if timestamp >= last {
            return self.report.times.step(timestamp - last);
        }
        place.line += lines;
        // It is before any other step of this piece.
        self.report.first_backward = None;
        self.report.backward(last - timestamp, || place);
    }
}

/// The format of a log that can be read in pieces: uncompressed, lines independent of each other, labels in the rows. `None` for
/// any other log.
///
/// # Errors
/// When the log cannot be opened, or is in no known format.
pub fn format_of_pieces(path: &Path, format: Option<Format>) -> Result<Option<Format>, CanError> {
    if format == Some(Format::Parquet) || begins_like_parquet(path) {
        return Ok(None);
    }
    let input = Input::open(path)?;
    if !input.is_plain_file() {
        return Ok(None);
    }
    let format = match format {
        Some(format) => format,
        None => recognise(&Lines::new(input)?)?,
    };
    if !with_line_format!(format, lines_stand_alone()) {
        return Ok(None);
    }
    let labelled_elsewhere =
        matches!(format, Format::Candump | Format::CandumpAscii) && InjectionLabels::of(path)?.0.is_some();
    Ok((!labelled_elsewhere).then_some(format))
}

fn lines_stand_alone<F: LineFormat>() -> bool {
    F::LINES_STAND_ALONE
}

/// Clears `frames` and fills it with the frames of the lines that begin within `range`, of a log of `log_bytes` bytes, with the settings
/// `options`.
///
/// # Errors
/// When the log cannot be read, or its size is not `log_bytes`.
pub fn read_piece(
    path: &Path,
    format: Format,
    range: Range<u64>,
    log_bytes: u64,
    options: &ReadOptions,
    frames: &mut Vec<Frame>,
) -> Result<Piece, CanError> {
    frames.clear();
    let mut piece = with_line_format!(format, read(path, range, log_bytes, options, frames))?;
    piece.last_timestamp = frames.last().map(|frame| frame.timestamp);
    Ok(piece)
}

fn read<F: LineFormat>(
    path: &Path,
    range: Range<u64>,
    log_bytes: u64,
    options: &ReadOptions,
    frames: &mut Vec<Frame>,
) -> Result<Piece, CanError> {
    let mut format = F::default();
    see_first_line(&mut format, path, 0..range.start, log_bytes)?;
    let mut log = TextLog::new(Lines::within(path, range, log_bytes)?, format, options);
    let mut piece = Piece::default();
    log.read(usize::MAX, frames, &mut piece.report)?;
    piece.first = log.take_first();
    (piece.lines, piece.read_time) = (log.lines().count(), log.lines().read_time());
    Ok(piece)
}

/// Passes the log's first line to the parser if it is before the piece: a header sets the columns.
fn see_first_line(
    format: &mut impl LineFormat,
    path: &Path,
    before: Range<u64>,
    log_bytes: u64,
) -> Result<(), CanError> {
    if before.is_empty() {
        return Ok(());
    }
    let mut lines = Lines::within(path, before, log_bytes)?;
    while let Some(line) = lines.next_line()? {
        if !line.too_long && !line.bytes.trim_ascii().is_empty() {
            format.parse_line(line.bytes);
            break;
        }
    }
    Ok(())
}
