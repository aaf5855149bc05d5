//! Counts of a log: frames, rejected rows with their reasons, and timestamps that run backwards.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::frame::Frame;

/// Places stored for each reason; further ones are only counted.
pub const PLACES_KEPT: usize = 5;
/// Characters of a row that a [`Place`] quotes.
const TEXT_KEPT: usize = 80;

/// Reason for rejecting a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// More or fewer fields than the format or the header prescribes.
    FieldCount,
    /// The timestamp is not a number.
    TimestampNotANumber,
    /// The timestamp is NaN or infinite.
    TimestampNotFinite,
    /// The arbitration ID has characters other than hexadecimal digits.
    IdNotHex,
    /// The arbitration ID needs more than 29 bits.
    IdTooLarge,
    /// The data has characters other than hexadecimal digits.
    DataNotHex,
    /// The data is neither base64 nor hexadecimal.
    DataNotBase64,
    /// The data has an odd number of digits.
    OddDigits,
    /// More bytes than a frame of its kind can carry: 8, or 64 in CAN FD.
    TooManyBytes,
    /// The number of bytes differs from the length stated in the row.
    LengthMismatch,
    /// The label is not one of the format's labels.
    BadLabel,
    /// The row has no label, in a format with labels, and the log is not in an attack-free folder.
    MissingLabel,
    /// A flag of a remote or error frame is neither 0 nor 1.
    BadFlag,
    /// The row holds a NUL byte.
    NulByte,
    /// The row is not UTF-8.
    InvalidUtf8,
    /// The line is longer than any valid row.
    LineTooLong,
    /// The header names some known columns, but a required one is missing.
    HeaderLacksColumn,
    /// The row does not have the structure of the format's rows.
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
            Self::DataNotBase64 => "data is neither base64 nor hexadecimal",
            Self::OddDigits => "data has an odd number of digits",
            Self::TooManyBytes => "data has too many bytes",
            Self::LengthMismatch => "number of data bytes is not the stated length",
            Self::BadLabel => "unknown label",
            Self::MissingLabel => "no label, which only logs of attack-free folders may lack",
            Self::BadFlag => "flag of a remote or error frame is neither 0 nor 1",
            Self::NulByte => "NUL byte",
            Self::InvalidUtf8 => "invalid UTF-8",
            Self::LineTooLong => "line too long",
            Self::HeaderLacksColumn => "header lacks a column (timestamp, arbitration_id and data_field are needed)",
            Self::NotARow => "not a row of this format",
        })
    }
}

/// Location of a row in a log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The log.
    pub file: PathBuf,
    /// Line in the log, from 1.
    pub line: u64,
    /// Beginning of the line; bytes that are not UTF-8 are replaced.
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

/// Rows rejected for one reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rejections {
    /// Number of rows.
    pub count: u64,
    /// Places of the first ones, at most [`PLACES_KEPT`].
    pub first: Vec<Place>,
}

/// Kind of a frame on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A classic data frame.
    Data,
    /// A remote frame (a request for data), delivered without payload.
    Remote,
    /// A CAN FD frame, delivered with the first eight bytes of its payload.
    FlexibleDataRate,
}

/// Times of a log's frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Time of the first frame, in seconds.
    pub first: Option<f64>,
    /// Time of the last frame, in seconds.
    pub last: Option<f64>,
    /// Frames with the time of the frame before.
    pub equal: u64,
    /// Frames more than [`LONG_STEP_SECONDS`] after the frame before.
    pub long_steps: u64,
    /// Shortest step forward from a frame to the next, in seconds.
    pub shortest_step: Option<f64>,
}

/// Time between two frames that hardly ever passes on a bus at work, in seconds.
pub const LONG_STEP_SECONDS: f64 = 0.1;

impl Times {
    /// Adds the times of frames that follow these in the same log. The step between the two is not counted.
    fn merge(&mut self, other: &Times) {
        self.first = self.first.or(other.first);
        self.last = other.last.or(self.last);
        self.equal += other.equal;
        self.long_steps += other.long_steps;
        if let Some(step) = other.shortest_step {
            self.shorten(step);
        }
    }

    /// Counts the step to a frame that is not earlier than the one before, in seconds.
    pub(super) fn step(&mut self, seconds: f64) {
        self.equal += u64::from(seconds == 0.0);
        self.long_steps += u64::from(seconds > LONG_STEP_SECONDS);
        if seconds > 0.0 {
            self.shorten(seconds);
        }
    }

    /// Takes note of a step forward, in seconds.
    pub(super) fn shorten(&mut self, seconds: f64) {
        // The difference of two finite times can be infinite, which JSON cannot represent.
        let seconds = seconds.min(f64::MAX);
        self.shortest_step = Some(self.shortest_step.map_or(seconds, |shortest| shortest.min(seconds)));
    }
}

/// Different IDs from which it is no chance that none has a letter, as in a check.
const MANY_IDS: u32 = 16;

/// Note on a log whose IDs [look decimal](Ids::look_decimal).
pub const IDS_LOOK_DECIMAL: &str =
    "none of the IDs has a letter from A to F: if they are decimal, convert them; they are read as hexadecimal";

/// Arbitration IDs of a log's frames, in little room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Ids {
    /// A bit for each of 64 values of a hash.
    buckets: u64,
    /// True if an ID has a hexadecimal digit above 9.
    have_letters: bool,
}

impl Ids {
    #[inline]
    fn add(&mut self, id: u32) {
        self.buckets |= 1 << (id.wrapping_mul(0x9E37_79B1) >> 26);
        self.have_letters |= id >> 3 & (id >> 2 | id >> 1) & 0x1111_1111 != 0;
    }

    fn merge(&mut self, other: &Ids) {
        self.buckets |= other.buckets;
        self.have_letters |= other.have_letters;
    }

    /// True if the frames have more than one ID. Of two IDs, it misses one in 64.
    pub fn are_several(&self) -> bool {
        self.buckets.count_ones() > 1
    }

    /// True if there are many IDs and none has a letter, as decimal numbers that were read as hexadecimal.
    pub fn look_decimal(&self) -> bool {
        self.buckets.count_ones() >= MANY_IDS && !self.have_letters
    }
}

/// Interfaces that are told apart; the frames of further ones are counted together.
const MOST_INTERFACES: usize = 32;
/// Characters of an interface's name that are kept; names of Linux have at most 15.
const INTERFACE_NAME_KEPT: usize = 32;
/// Name under which frames of further interfaces are counted.
const OTHER_INTERFACES: &str = "(others)";

/// Counts of one log, or of several ([`ReadReport::merge`]).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadReport {
    /// Rows that are neither blank nor headers: frames, error frames and rejected rows.
    pub rows: u64,
    /// Frames delivered.
    pub frames: u64,
    /// Delivered frames that the log labels as an attack.
    pub attack_frames: u64,
    /// Remote frames among the delivered ones.
    pub remote_frames: u64,
    /// CAN FD frames among the delivered ones.
    pub fd_frames: u64,
    /// Error frames of the bus; they have no ID and are not delivered.
    pub error_frames: u64,
    /// Headers, comments and events that are not frames.
    pub skipped_lines: u64,
    /// Rejected rows by reason.
    pub rejected: BTreeMap<RejectReason, Rejections>,
    /// Frames whose timestamp is smaller than the previous frame's; they are delivered unchanged.
    pub backward_timestamps: u64,
    /// Place of the first of these frames.
    pub first_backward: Option<Place>,
    /// Largest step back in time, in seconds.
    pub largest_backward_step_seconds: f64,
    /// Frames of each interface or channel that the rows name, delivered or not; empty if they name none.
    pub interfaces: BTreeMap<String, u64>,
    /// Times of the delivered frames.
    pub times: Times,
    /// IDs of the delivered frames.
    #[serde(default)]
    pub ids: Ids,
}

impl ReadReport {
    /// Number of rows rejected for any reason.
    pub fn rejected_rows(&self) -> u64 {
        self.rejected.values().map(|rejections| rejections.count).sum()
    }

    /// Rejected rows as a share of all rows, from 0 to 1; 0 if there are no rows.
    pub fn reject_share(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.rejected_rows() as f64 / self.rows as f64 }
    }

    /// Adds the counts of another log, or of the next piece of this one; the places of `self` stay first.
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
        other.interfaces.iter().for_each(|(name, frames)| self.add_of_interface(name, *frames));
        self.times.merge(&other.times);
        self.ids.merge(&other.ids);
    }

    /// Counts frames of an interface.
    pub(super) fn add_of_interface(&mut self, name: &str, frames: u64) {
        if let Some(count) = self.interfaces.get_mut(name) {
            *count += frames;
            return;
        }
        let name: String = name.chars().take(INTERFACE_NAME_KEPT).collect();
        *self.interfaces.entry(name).or_default() += frames;
        // The first names of the alphabet stay, so that the counts do not depend on the order in which pieces are merged.
        let mut named = self.interfaces.keys().filter(|name| name.as_str() != OTHER_INTERFACES);
        if named.clone().count() > MOST_INTERFACES
            && let Some(last) = named.next_back().cloned()
        {
            let frames = self.interfaces.remove(&last).unwrap_or_default();
            *self.interfaces.entry(OTHER_INTERFACES.to_owned()).or_default() += frames;
        }
    }

    /// Interfaces with their frames, the most frequent first: `can0 (3000 frames), can1 (1000 frames)`.
    pub fn describe_interfaces(&self) -> String {
        let mut interfaces: Vec<(&String, &u64)> = self.interfaces.iter().collect();
        interfaces.sort_by_key(|(name, frames)| (u64::MAX - **frames, (*name).clone()));
        let described = interfaces.iter().map(|(name, frames)| format!("{name} ({frames} frames)"));
        described.collect::<Vec<_>>().join(", ")
    }

    /// Counts a delivered frame.
    #[inline]
    pub(super) fn accept(&mut self, frame: &Frame, kind: FrameKind) {
        self.rows += 1;
        self.frames += 1;
        self.attack_frames += u64::from(frame.attack);
        self.ids.add(frame.can_id);
        match kind {
            FrameKind::Data => {}
            FrameKind::Remote => self.remote_frames += 1,
            FrameKind::FlexibleDataRate => self.fd_frames += 1,
        }
    }

    /// Counts a rejected row; `place` is only called while fewer than [`PLACES_KEPT`] places are stored.
    #[cold]
    pub(super) fn reject(&mut self, reason: RejectReason, place: impl FnOnce() -> Place) {
        self.rows += 1;
        let rejections = self.rejected.entry(reason).or_default();
        rejections.count += 1;
        if rejections.first.len() < PLACES_KEPT {
            rejections.first.push(place());
        }
    }

    /// Counts a frame whose timestamp is `step_seconds` smaller than the previous one.
    #[cold]
    pub(super) fn backward(&mut self, step_seconds: f64, place: impl FnOnce() -> Place) {
        self.backward_timestamps += 1;
        // The difference of two finite times can be infinite, which JSON cannot represent.
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

    #[test]
    fn ids_without_letters_look_decimal_if_they_are_many() {
        let of = |ids: &mut dyn Iterator<Item = u32>| {
            let mut found = Ids::default();
            ids.for_each(|id| found.add(id));
            found
        };
        // 100 to 129, read as hexadecimal.
        let decimal = |number: u32| u32::from_str_radix(&number.to_string(), 16).unwrap();
        assert!(of(&mut (100..130).map(decimal)).look_decimal());
        assert!(!of(&mut (100..130)).look_decimal());
        assert!(!of(&mut (100..103).map(decimal)).look_decimal(), "few");
        let letters = |id: u32| of(&mut std::iter::once(id)).have_letters;
        assert!(
            (0..0x1000_0000)
                .step_by(7919)
                .all(|id| letters(id) == format!("{id:x}").contains(|digit: char| digit.is_ascii_alphabetic()))
        );
        let [mut five, six] = [5, 6].map(|id| of(&mut std::iter::once(id)));
        assert!(!five.are_several() && !six.are_several() && !Ids::default().are_several());
        five.merge(&six);
        assert!(five.are_several());
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
