//! What was found in a log: frames, rows that could not be read and why, time that ran backwards.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::frame::Frame;

/// Places remembered for each reason; the others are only counted.
pub const PLACES_KEPT: usize = 5;
/// Characters of a row that a place quotes.
const TEXT_KEPT: usize = 80;

/// Why a row was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// More or fewer fields than the format or the header says.
    FieldCount,
    /// The timestamp is not a number.
    TimestampNotANumber,
    /// The timestamp is NaN or infinite.
    TimestampNotFinite,
    /// The arbitration ID holds something else than hexadecimal digits.
    IdNotHex,
    /// The arbitration ID needs more than 29 bits.
    IdTooLarge,
    /// The data holds something else than hexadecimal digits.
    DataNotHex,
    /// The data has half a byte.
    OddDigits,
    /// More bytes than a frame of its kind can carry: 8, or 64 in CAN FD.
    TooManyBytes,
    /// The number of bytes is not the length that the row gives.
    LengthMismatch,
    /// The label is none of the format's labels.
    BadLabel,
    /// The row holds a NUL byte.
    NulByte,
    /// The row is not UTF-8.
    InvalidUtf8,
    /// The line is longer than any row can be.
    LineTooLong,
    /// The header names some known columns, but one that is needed is missing.
    HeaderLacksColumn,
    /// The row has not the shape of the format's rows.
    NotARow,
}

impl fmt::Display for RejectReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::FieldCount => "wrong number of fields",
            Self::TimestampNotANumber => "timestamp is not a number",
            Self::TimestampNotFinite => "timestamp is NaN or infinite",
            Self::IdNotHex => "ID is not hexadecimal",
            Self::IdTooLarge => "ID needs more than 29 bits",
            Self::DataNotHex => "data is not hexadecimal",
            Self::OddDigits => "data has an odd number of digits",
            Self::TooManyBytes => "data has too many bytes",
            Self::LengthMismatch => "number of data bytes is not the stated length",
            Self::BadLabel => "unknown label",
            Self::NulByte => "NUL byte",
            Self::InvalidUtf8 => "invalid UTF-8",
            Self::LineTooLong => "line too long",
            Self::HeaderLacksColumn => "header lacks a column (timestamp, arbitration_id and data_field are needed)",
            Self::NotARow => "not a row of this format",
        })
    }
}

/// Where something was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The log.
    pub file: PathBuf,
    /// Line in the log, from 1.
    pub line: u64,
    /// How the line begins; bytes that are not UTF-8 are replaced.
    pub text: String,
}

impl Place {
    /// A place that quotes the beginning of `row`.
    pub fn new(file: &Path, line: u64, row: &[u8]) -> Self {
        let head = &row[..row.len().min(4 * TEXT_KEPT)];
        let text = String::from_utf8_lossy(head).chars().take(TEXT_KEPT).collect();
        Self { file: file.to_path_buf(), line, text }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {:?}", self.file.display(), self.line, self.text)
    }
}

/// Rows left out for one reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rejections {
    /// How many.
    pub count: u64,
    /// The first of them, at most [`PLACES_KEPT`].
    pub first: Vec<Place>,
}

/// How a frame was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A classic data frame.
    Data,
    /// A request for data: kept, with no payload.
    Remote,
    /// A CAN FD frame: kept, with the first eight bytes of its payload.
    FlexibleDataRate,
}

/// Counts of one log, or of many together ([`ReadReport::merge`]).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadReport {
    /// Rows that are not empty and no header: frames, error frames and rejected rows.
    pub rows: u64,
    /// Frames delivered.
    pub frames: u64,
    /// Frames delivered that the log labels as an attack.
    pub attack_frames: u64,
    /// Remote frames among those delivered.
    pub remote_frames: u64,
    /// CAN FD frames among those delivered.
    pub fd_frames: u64,
    /// Error frames: rows of the bus that belong to no ID, not delivered.
    pub error_frames: u64,
    /// Headers, comments and events that are no frames.
    pub skipped_lines: u64,
    /// Rows left out, by reason.
    pub rejected: BTreeMap<RejectReason, Rejections>,
    /// Frames whose timestamp is smaller than that of the frame before; they are delivered as they are.
    pub backward_timestamps: u64,
    /// The first of them.
    pub first_backward: Option<Place>,
    /// The largest step back.
    pub largest_backward_step_seconds: f64,
}

impl ReadReport {
    /// Rows left out for any reason.
    pub fn rejected_rows(&self) -> u64 {
        self.rejected.values().map(|rejections| rejections.count).sum()
    }

    /// Rejected rows as a share of all rows, 0 when there is none.
    pub fn reject_share(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.rejected_rows() as f64 / self.rows as f64 }
    }

    /// Adds the counts of another log; of the places, those of `self` stay first.
    pub fn merge(&mut self, other: &ReadReport) {
        self.rows += other.rows;
        self.frames += other.frames;
        self.attack_frames += other.attack_frames;
        self.remote_frames += other.remote_frames;
        self.fd_frames += other.fd_frames;
        self.error_frames += other.error_frames;
        self.skipped_lines += other.skipped_lines;
        for (reason, rejections) in &other.rejected {
            let mine = self.rejected.entry(*reason).or_default();
            mine.count += rejections.count;
            let room = PLACES_KEPT.saturating_sub(mine.first.len());
            mine.first.extend(rejections.first.iter().take(room).cloned());
        }
        self.backward_timestamps += other.backward_timestamps;
        if self.first_backward.is_none() {
            self.first_backward.clone_from(&other.first_backward);
        }
        self.largest_backward_step_seconds =
            self.largest_backward_step_seconds.max(other.largest_backward_step_seconds);
    }

    /// Counts a delivered frame.
    #[inline]
    pub(super) fn accept(&mut self, frame: &Frame, kind: FrameKind) {
        self.rows += 1;
        self.frames += 1;
        self.attack_frames += u64::from(frame.attack);
        match kind {
            FrameKind::Data => {}
            FrameKind::Remote => self.remote_frames += 1,
            FrameKind::FlexibleDataRate => self.fd_frames += 1,
        }
    }

    /// Counts a row that is left out; `place` is asked for only while places are remembered.
    #[cold]
    pub(super) fn reject(&mut self, reason: RejectReason, place: impl FnOnce() -> Place) {
        self.rows += 1;
        let rejections = self.rejected.entry(reason).or_default();
        rejections.count += 1;
        if rejections.first.len() < PLACES_KEPT {
            rejections.first.push(place());
        }
    }

    /// Counts a frame that is `step_seconds` older than the one before.
    #[cold]
    pub(super) fn backward(&mut self, step_seconds: f64, place: impl FnOnce() -> Place) {
        self.backward_timestamps += 1;
        // Two finite times can be infinitely far apart, which JSON cannot hold.
        let step_seconds = step_seconds.min(f64::MAX);
        self.largest_backward_step_seconds = self.largest_backward_step_seconds.max(step_seconds);
        if self.first_backward.is_none() {
            self.first_backward = Some(place());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_stays_finite() {
        let mut report = ReadReport::default();
        report.backward(1e308 - -1e308, || Place::new(Path::new("a.parquet"), 2, b"row"));
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<ReadReport>(&text).unwrap(), report);
    }

    fn report(reason: RejectReason, file: &str, count: u64) -> ReadReport {
        let mut report = ReadReport::default();
        for line in 1..=count {
            report.reject(reason, || Place::new(Path::new(file), line, b"row"));
        }
        report
    }

    #[test]
    fn merging_adds_counts_and_keeps_the_first_places_in_order() {
        let mut merged = report(RejectReason::OddDigits, "a.csv", 3);
        merged.merge(&report(RejectReason::OddDigits, "b.csv", 7));
        merged.merge(&report(RejectReason::BadLabel, "b.csv", 1));
        assert_eq!((merged.rows, merged.rejected_rows()), (11, 11));
        let odd = &merged.rejected[&RejectReason::OddDigits];
        assert_eq!(odd.count, 10);
        let places: Vec<_> = odd.first.iter().map(|place| (place.file.to_str().unwrap(), place.line)).collect();
        assert_eq!(places, [("a.csv", 1), ("a.csv", 2), ("a.csv", 3), ("b.csv", 1), ("b.csv", 2)]);
    }

    #[test]
    fn report_survives_json() {
        let mut original = report(RejectReason::InvalidUtf8, "a.csv", 2);
        original.backward(0.25, || Place::new(Path::new("a.csv"), 9, &[b'x', 0xFF]));
        let text = serde_json::to_string(&original).unwrap();
        assert_eq!(serde_json::from_str::<ReadReport>(&text).unwrap(), original);
    }

    #[test]
    fn quoted_rows_are_short_whatever_they_hold() {
        let place = Place::new(Path::new("a"), 1, "é".repeat(10_000).as_bytes());
        assert_eq!(place.text.chars().count(), TEXT_KEPT);
    }
}
