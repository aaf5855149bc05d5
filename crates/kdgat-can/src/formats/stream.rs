//! Frames from a stream that is still being written, such as `candump -L can0 |`: each is delivered as soon as its line is complete.
//!
//! A log file is read in large blocks, and its format is detected from many lines. A stream must not wait for more than the next
//! line: lines are buffered until one of them is a frame or an error frame in some format, which decides the format. If none
//! comes, headers and comments decide as in a file. Lines that no format reads are counted and skipped, however many there are.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use memchr::memchr;

use super::intake::Intake;
use super::options::ReadOptions;
use super::recognise::{best_format, settled_format};
use super::unreadable::unknown_format;
use super::{Format, LineFormat, MAX_LINE_BYTES, NoText, Row};
use super::{asc, can_train_and_test, candump, candump_ascii, car_hacking, challenge_2020, python_can};
use crate::error::CanError;
use crate::frame::Frame;
use crate::report::{Place, ReadReport, RejectReason};

/// Bytes requested at a time.
const READ_BYTES: usize = 64 << 10;
/// Lines buffered while the format is unknown: enough for a header and a few comments.
const LINES_HELD: usize = 64;

/// First bytes that are kept.
const HEAD_BYTES: usize = 64;

/// Parses lines in a format chosen at run time.
type Parser = Box<dyn AnyFormat>;

/// A [`LineFormat`] whose type is not known.
trait AnyFormat: Send {
    fn parse_line(&mut self, line: &[u8]) -> Row;

    fn interface<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]>;

    fn has_labels(&self) -> bool;

    fn require_labels(&mut self);
}

impl<F: LineFormat> AnyFormat for F {
    fn parse_line(&mut self, line: &[u8]) -> Row {
        LineFormat::parse_line(self, line)
    }

    fn interface<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        LineFormat::interface(self, line)
    }

    fn has_labels(&self) -> bool {
        LineFormat::has_labels(self)
    }

    fn require_labels(&mut self) {
        LineFormat::require_labels(self);
    }
}

/// Reads frames from a stream as they arrive.
pub struct StreamReader<R> {
    input: R,
    origin: PathBuf,
    /// Bytes of an incomplete line.
    rest: Vec<u8>,
    block: Vec<u8>,
    /// True while skipping the rest of a line that is longer than [`MAX_LINE_BYTES`].
    skipping: bool,
    parser: Option<(Format, Parser)>,
    needs_labels: bool,
    held: Vec<Vec<u8>>,
    /// The first bytes, which may show what the stream is if no format reads it.
    head: Vec<u8>,
    line_number: u64,
    intake: Intake,
    recent: RecentRows,
    report: ReadReport,
}

/// Rows among which [`StreamReader::recent`] counts the rejected ones.
pub const RECENT_ROWS: u32 = 1000;

/// The last [`RECENT_ROWS`] rows of a stream.
#[derive(Debug, Clone, Default)]
pub struct RecentRows {
    /// A bit for each row: 1 for a rejected one.
    bits: Vec<u64>,
    next: u32,
    rows: u32,
    rejected: u32,
}

impl RecentRows {
    /// Number of rows, at most [`RECENT_ROWS`].
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Number of rejected rows among them.
    pub fn rejected(&self) -> u32 {
        self.rejected
    }

    /// Share of rejected rows, from 0 to 1; 0 before the first row.
    pub fn reject_share(&self) -> f64 {
        f64::from(self.rejected) / f64::from(self.rows.max(1))
    }

    fn add(&mut self, is_rejected: bool) {
        if self.bits.is_empty() {
            self.bits = vec![0; RECENT_ROWS.div_ceil(64) as usize];
        }
        let (word, bit) = (&mut self.bits[(self.next / 64) as usize], 1 << (self.next % 64));
        // Before the ring is full, its bits are 0.
        self.rejected -= u32::from(*word & bit != 0);
        self.rejected += u32::from(is_rejected);
        if is_rejected {
            *word |= bit;
        } else {
            *word &= !bit;
        }
        self.rows = (self.rows + 1).min(RECENT_ROWS);
        self.next = (self.next + 1) % RECENT_ROWS;
    }
}

impl<R: Read> StreamReader<R> {
    /// A reader of `input`, which messages call `origin`; its format is detected unless one is forced.
    pub fn new(input: R, origin: &Path, format: Option<Format>, options: &ReadOptions) -> Self {
        Self {
            input,
            origin: origin.to_path_buf(),
            rest: Vec::new(),
            block: vec![0; READ_BYTES],
            skipping: false,
            parser: format.map(|format| (format, parser(format, options.needs_labels))),
            needs_labels: options.needs_labels,
            held: Vec::new(),
            head: Vec::new(),
            line_number: 0,
            intake: Intake::new(options),
            recent: RecentRows::default(),
            report: ReadReport::default(),
        }
    }

    /// Reads from the input once, which may block, clears `frames` and fills it with the frames of the lines that are complete now,
    /// perhaps none. Returns `false` at the end of the stream.
    ///
    /// # Errors
    /// When the input cannot be read, or ended without a line that a known format reads.
    pub fn read_available(&mut self, frames: &mut Vec<Frame>) -> Result<bool, CanError> {
        frames.clear();
        let more = self.read_once(frames);
        self.intake.settle(&mut self.report);
        more
    }

    fn read_once(&mut self, frames: &mut Vec<Frame>) -> Result<bool, CanError> {
        let count = loop {
            match self.input.read(&mut self.block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(source) => return Err(CanError::Read { path: self.origin.clone(), source }),
                Ok(count) => break count,
            }
        };
        if count == 0 {
            self.finish(frames)?;
            return Ok(false);
        }
        let block = std::mem::take(&mut self.block);
        let room = HEAD_BYTES.saturating_sub(self.head.len());
        self.head.extend_from_slice(&block[..count.min(room)]);
        let mut bytes = &block[..count];
        while let Some(length) = memchr(b'\n', bytes) {
            self.end_line(&bytes[..length], frames);
            bytes = &bytes[length + 1..];
        }
        self.keep(bytes, frames);
        self.block = block;
        // `candump` without times: no other format will match, and a bus never ends.
        match self.held.iter().find(|line| candump_ascii::lacks_times(line)) {
            Some(line) if self.parser.is_none() => Err(unknown_format(&self.origin, line, line)),
            _ => Ok(true),
        }
    }

    /// Counts of all lines read so far, without lines still buffered for format detection.
    pub fn report(&self) -> &ReadReport {
        &self.report
    }

    /// The last rows, for the share of rejected ones.
    pub fn recent(&self) -> &RecentRows {
        &self.recent
    }

    /// Delivers frames of this interface alone from now on.
    pub fn keep_interface(&mut self, name: &str) {
        self.intake.keep_interface(name);
    }

    /// The format, once it is known.
    pub fn format(&self) -> Option<Format> {
        self.parser.as_ref().map(|(format, _)| *format)
    }

    /// True if the rows have labels; known after the first frame.
    pub fn has_labels(&self) -> bool {
        self.parser.as_ref().is_some_and(|(_, parser)| parser.has_labels())
    }

    /// Handles the last bytes of a line.
    fn end_line(&mut self, bytes: &[u8], frames: &mut Vec<Frame>) {
        if self.skipping {
            self.skipping = false;
            return;
        }
        if self.rest.is_empty() {
            return self.line(bytes, frames);
        }
        let mut line = std::mem::take(&mut self.rest);
        line.extend_from_slice(bytes);
        self.line(&line, frames);
        line.clear();
        self.rest = line;
    }

    /// Stores the beginning of a line until its end arrives; rejects it if it is longer than any row.
    fn keep(&mut self, bytes: &[u8], frames: &mut Vec<Frame>) {
        if self.skipping {
            return;
        }
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > MAX_LINE_BYTES {
            let line = std::mem::take(&mut self.rest);
            self.line(&line, frames);
            self.skipping = true;
        }
    }

    fn finish(&mut self, frames: &mut Vec<Frame>) -> Result<(), CanError> {
        let line = std::mem::take(&mut self.rest);
        if !line.is_empty() {
            self.line(&line, frames);
        }
        if self.line_number == 0 && self.held.is_empty() {
            return Err(CanError::EmptyStream { path: self.origin.clone() });
        }
        if self.parser.is_none()
            && let Some(format) = best_format(&self.head())
        {
            self.decide(Some(format), frames);
        }
        if self.parser.is_some() {
            return Ok(());
        }
        // Rejected lines are in the report.
        let given_up = self.report.rejected.values().flat_map(|found| &found.first).min_by_key(|place| place.line);
        let first = given_up.map(|place| place.text.as_bytes()).or(self.held.first().map(Vec::as_slice));
        Err(unknown_format(&self.origin, &self.head, first.unwrap_or_default()))
    }

    fn line(&mut self, bytes: &[u8], frames: &mut Vec<Frame>) {
        let is_first = self.line_number == 0 && self.held.is_empty();
        // Some editors write a byte order mark.
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").filter(|_| is_first).unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if self.parser.is_some() {
            return self.parse(bytes, frames);
        }
        self.held.push(bytes[..bytes.len().min(MAX_LINE_BYTES + 1)].to_vec());
        match settled_format(&self.head()) {
            None if self.held.len() < LINES_HELD => {}
            None => self.decide(best_format(&self.head()), frames),
            format => self.decide(format, frames),
        }
    }

    /// The buffered lines.
    fn head(&self) -> Vec<&[u8]> {
        self.held.iter().map(Vec::as_slice).collect()
    }

    /// Sets the format of the buffered lines and parses them; with `None` they are rejected.
    fn decide(&mut self, format: Option<Format>, frames: &mut Vec<Frame>) {
        self.parser = format.map(|format| (format, parser(format, self.needs_labels)));
        for line in std::mem::take(&mut self.held) {
            match self.parser.is_some() {
                true => self.parse(&line, frames),
                false => self.reject(RejectReason::NotARow, &line),
            }
        }
    }

    fn parse(&mut self, line: &[u8], frames: &mut Vec<Frame>) {
        let row = match &mut self.parser {
            _ if line.len() > MAX_LINE_BYTES => Row::Rejected(RejectReason::LineTooLong),
            _ if line.trim_ascii().is_empty() => {
                self.line_number += 1;
                return;
            }
            Some((_, parser)) => parser.parse_line(line),
            None => Row::Rejected(RejectReason::NotARow),
        };
        let interface = self.parser.as_ref().and_then(|(_, parser)| parser.interface(line));
        match row {
            Row::Rejected(reason) => return self.reject(reason, line),
            Row::ErrorFrame => {
                self.intake.error_frame(interface, &mut self.report);
                self.recent.add(false);
            }
            Row::Skipped => self.report.skipped_lines += 1,
            Row::Frame(frame, kind) => {
                let (number, origin) = (self.line_number + 1, &self.origin);
                let place = || Place::new(origin, number, line);
                frames.extend(self.intake.frame(frame, kind, interface, &mut self.report, place));
                self.recent.add(false);
            }
        }
        self.line_number += 1;
    }

    fn reject(&mut self, reason: RejectReason, line: &[u8]) {
        self.line_number += 1;
        let (number, origin) = (self.line_number, &self.origin);
        self.report.reject(reason, || Place::new(origin, number, line));
        self.recent.add(true);
    }
}

fn parser(format: Format, needs_labels: bool) -> Parser {
    let mut parser: Parser = with_line_format!(format, boxed());
    if needs_labels {
        parser.require_labels();
    }
    parser
}

fn boxed<F: LineFormat + 'static>() -> Parser {
    Box::new(F::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers a few bytes at a time, as a pipe does.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn read_all(text: &[u8], step: usize) -> (Vec<u32>, ReadReport, Option<Format>) {
        let mut reader =
            StreamReader::new(Drip(text, step), Path::new("standard input"), None, &ReadOptions::default());
        let (mut frames, mut ids) = (Vec::new(), Vec::new());
        while reader.read_available(&mut frames).unwrap() {
            ids.extend(frames.iter().map(|frame| frame.can_id));
        }
        ids.extend(frames.iter().map(|frame| frame.can_id));
        (ids, reader.report().clone(), reader.format())
    }

    #[test]
    fn frames_come_out_however_the_bytes_come_in() {
        let text = b"interface can0 is up\n(1.0) can0 111#00\n\nxyz\n(1.1) can0 222#11\r\n(1.05) can0 333#";
        for step in [1, 7, 1000] {
            let (ids, report, format) = read_all(text, step);
            assert_eq!((ids, format), (vec![0x111, 0x222, 0x333], Some(Format::Candump)), "{step} bytes at a time");
            assert_eq!((report.frames, report.rejected_rows(), report.backward_timestamps), (3, 2, 1));
            let places: Vec<u64> = report.rejected.values().flat_map(|r| r.first.iter().map(|p| p.line)).collect();
            assert!(places.contains(&1) && places.contains(&4), "{places:?}");
        }
    }

    /// An endless bus, as `candump can0` prints it.
    struct Bus;

    impl Read for Bus {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let line = b"  can0  123   [2]  00 11\n";
            buffer[..line.len()].copy_from_slice(line);
            Ok(line.len())
        }
    }

    #[test]
    fn a_bus_without_times_is_refused_at_its_first_line() {
        let mut reader = StreamReader::new(Bus, Path::new("standard input"), None, &ReadOptions::default());
        let error = reader.read_available(&mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("without times: record with `candump -L can0`"), "{error}");
    }

    #[test]
    fn a_header_decides_the_columns() {
        let text = b"timestamp,arbitration_id,data_field,attack\n1.0,7DF,0011,1\n";
        let (ids, report, format) = read_all(text, 3);
        assert_eq!((ids, format, report.attack_frames), (vec![0x7DF], Some(Format::CanTrainAndTest), 1));
    }

    #[test]
    fn headers_and_error_frames_alone_are_a_format() {
        let header = b"timestamp,arbitration_id,data_field,attack\n";
        let (_, report, format) = read_all(header, 7);
        assert_eq!((report.skipped_lines, format), (1, Some(Format::CanTrainAndTest)));
        let errors = b"(1.0) can0 20000004#0000000000000000\n(1.1) can0 20000004#0000000000000000";
        let (_, report, format) = read_all(errors, 7);
        assert_eq!((report.error_frames, report.rejected_rows(), format), (2, 0, Some(Format::Candump)));
        let (_, report, format) = read_all(b"date Mon Jan 1\nbase hex  timestamps absolute\n// nothing", 7);
        assert_eq!((report.skipped_lines, format), (3, Some(Format::Asc)));
    }

    #[test]
    fn a_lot_of_garbage_is_passed_over_in_little_memory() {
        let mut text = b"garbage\n".repeat(200);
        text.extend(std::iter::repeat_n(b'x', 3 * MAX_LINE_BYTES));
        text.extend_from_slice(b"\n(1.0) can0 111#00\n");
        text.extend(std::iter::repeat_n(b'x', 3 * MAX_LINE_BYTES));
        text.extend_from_slice(b"\n(1.1) can0 222#00\n");
        let (ids, report, _) = read_all(&text, 4096);
        assert_eq!((ids, report.rejected_rows()), (vec![0x111, 0x222], 202));
    }

    #[test]
    fn the_share_of_rejected_rows_is_that_of_the_last_thousand() {
        let mut recent = RecentRows::default();
        assert_eq!(recent.reject_share(), 0.0);
        let is_rejected = |row: u32| row % 7 == 3 || (2000..2500).contains(&row);
        for row in 0..4321u32 {
            recent.add(is_rejected(row));
            let first = (row + 1).saturating_sub(RECENT_ROWS);
            let expected = (first..=row).filter(|&row| is_rejected(row)).count() as u32;
            assert_eq!((recent.rows(), recent.rejected()), (row + 1 - first, expected), "after row {row}");
        }
        let text = [&b"(1.0) can0 111#00\n"[..], &b"xyz\n".repeat(3)].concat();
        let mut reader = StreamReader::new(&text[..], Path::new("standard input"), None, &ReadOptions::default());
        while reader.read_available(&mut Vec::new()).unwrap() {}
        assert_eq!(reader.recent().reject_share(), 0.75);
    }

    #[test]
    fn a_stream_of_no_format_says_how_it_begins() {
        let mut reader =
            StreamReader::new(&b"hello\nworld\n"[..], Path::new("standard input"), None, &ReadOptions::default());
        let mut frames = Vec::new();
        assert!(reader.read_available(&mut frames).unwrap());
        let error = reader.read_available(&mut frames).unwrap_err().to_string();
        assert!(error.contains("hello") && error.contains("standard input"), "{error}");
        let wide: Vec<u8> = b"\xFF\xFE".iter().copied().chain("hello\n".bytes().flat_map(|byte| [byte, 0])).collect();
        let mut reader = StreamReader::new(&wide[..], Path::new("standard input"), None, &ReadOptions::default());
        assert!(reader.read_available(&mut frames).unwrap());
        assert!(reader.read_available(&mut frames).unwrap_err().to_string().contains("UTF-16"));
    }
}
