//! SocketCAN's `candump -ta` as it prints on a terminal: ` (1436509052.249713)  can0  044   [5]  2A 36 6C 2B BA`.
//!
//! The time may be a date (`-tA`), which is read as if in UTC. A length with two digits (`[08]`) marks CAN FD, `remote request` a remote
//! frame, an ID with flag 0x20000000 an error frame, whose explanation (`-e`, lines with a tab) is skipped. Direction and flags
//! (`RX - -`, from `-x`) and the quoted text (from `-a`) are ignored. A label may follow, as in [`candump`](super::candump).

use super::can_train_and_test::label;
use super::candump::{is_error_frame, parenthesised};
use super::fields::{self, CLASSIC_BYTES, FD_BYTES};
use super::{LineFormat, Row};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

/// Beginnings of the lines, indented by a tab, with which `candump -e` explains an error frame.
const EXPLANATIONS: [&[u8]; 10] = [
    b"tx-timeout",
    b"lost-arbitration",
    b"controller-problem",
    b"protocol-violation",
    b"transceiver-status",
    b"no-acknowledgement-on-tx",
    b"bus-off",
    b"bus-error",
    b"restarted-after-bus-off",
    b"error-counter-tx-rx",
];
const SECONDS_A_DAY: f64 = 86_400.0;

/// Parser of this format.
#[derive(Default)]
pub struct CandumpAscii {
    has_labels: bool,
}

impl LineFormat for CandumpAscii {
    const LINES_STAND_ALONE: bool = true;

    fn parse_line(&mut self, line: &[u8]) -> Row {
        if is_explanation(line) {
            return Row::Skipped;
        }
        match parse(line) {
            Ok((row, label)) => {
                self.has_labels |= label.is_some();
                row
            }
            Err(reason) => Row::Rejected(fields::diagnose(line, reason)),
        }
    }

    fn interface<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        let mut words = fields::words(line);
        let begins_date = words.next().is_some_and(|word| !word.ends_with(b")"));
        words.nth(usize::from(begins_date))
    }

    fn has_labels(&self) -> bool {
        self.has_labels
    }
}

/// True for a line that explains the error frame before it.
fn is_explanation(line: &[u8]) -> bool {
    let text = line.trim_ascii_start();
    text.first().is_some_and(u8::is_ascii_lowercase) && EXPLANATIONS.iter().any(|begin| text.starts_with(begin))
}

/// Parses a row; its label, if it has one, is also in the frame.
fn parse(line: &[u8]) -> Result<(Row, Option<bool>), RejectReason> {
    let mut words = fields::words(line).peekable();
    let mut word = || words.next().ok_or(RejectReason::FieldCount);
    let stamp = word()?;
    let timestamp = match stamp {
        [b'(', .., b')'] => fields::timestamp(parenthesised(stamp)?)?,
        [b'(', date @ ..] => date_and_time(date, word()?.strip_suffix(b")").ok_or(RejectReason::NotARow)?)?,
        _ => return Err(RejectReason::NotARow),
    };
    let _interface = word()?;
    let mut id = word()?;
    if matches!(id, b"RX" | b"TX") {
        let _flags = (word()?, word()?);
        id = word()?;
    }
    let (can_id, rest) = fields::leading_hex(id).ok_or(RejectReason::IdNotHex)?;
    if !rest.is_empty() {
        return Err(RejectReason::IdNotHex);
    }
    let (length, flexible) = bracketed(word()?)?;
    if is_error_frame(can_id) {
        return Ok((Row::ErrorFrame, None));
    }
    if can_id > fields::MAX_CAN_ID {
        return Err(RejectReason::IdTooLarge);
    }
    let frame = |(payload, payload_length), attack| Frame { timestamp, can_id, payload, payload_length, attack };
    if words.peek() == Some(&&b"remote"[..]) {
        let label = words.nth(2).map(label).transpose()?;
        return Ok((Row::Frame(frame(Default::default(), label == Some(true)), FrameKind::Remote), label));
    }
    let limit_bytes = if flexible { FD_BYTES } else { CLASSIC_BYTES };
    if length > limit_bytes {
        return Err(RejectReason::TooManyBytes);
    }
    let payload = fields::listed_payload(words.by_ref().take(length), 16, limit_bytes)?;
    if usize::from(payload.1) != length {
        return Err(RejectReason::LengthMismatch);
    }
    let label = match words.next() {
        None => None,
        Some(word) if word.starts_with(b"'") => None,
        // A byte has two digits, a label one.
        Some(word) => Some(label(word).map_err(|_| RejectReason::LengthMismatch)?),
    };
    let kind = if flexible { FrameKind::FlexibleDataRate } else { FrameKind::Data };
    Ok((Row::Frame(frame(payload, label == Some(true)), kind), label))
}

/// Seconds since 1970 of `2023-11-14` and `22:13:20.001344`, as if in UTC.
fn date_and_time(date: &[u8], time: &[u8]) -> Result<f64, RejectReason> {
    let number = |text: Option<&[u8]>, least: u64, most: u64| {
        let text = std::str::from_utf8(text?).ok().filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()))?;
        text.parse::<u64>().ok().filter(|number| (least..=most).contains(number))
    };
    let seconds = || {
        let mut parts = date.split(|byte| *byte == b'-');
        let (year, month, day) =
            (number(parts.next(), 1970, 9999)?, number(parts.next(), 1, 12)?, number(parts.next(), 1, 31)?);
        let mut clock = time.split(|byte| *byte == b':');
        let (hours, minutes) = (number(clock.next(), 0, 23)?, number(clock.next(), 0, 59)?);
        let seconds = fields::timestamp(clock.next()?).ok().filter(|seconds| (0.0..61.0).contains(seconds))?;
        if parts.next().is_some() || clock.next().is_some() {
            return None;
        }
        // The year begins in March, so that the leap day is its last one.
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let leap_days = year / 4 - year / 100 + year / 400;
        let days = 365 * year + leap_days + (153 * month + 2) / 5 + day - 1;
        // Days from 1 March of the year 0 to 1970.
        let days = days - 719_468;
        Some(days as f64 * SECONDS_A_DAY + (hours * 3600 + minutes * 60) as f64 + seconds)
    };
    seconds().ok_or(RejectReason::TimestampNotANumber)
}

/// True for a row that `candump` prints without `-L` or `-t`: one of this format without its time.
pub fn lacks_times(row: &[u8]) -> bool {
    let timed = [b"(0) ", row].concat();
    parse(row).is_err() && matches!(parse(&timed), Ok((Row::Frame(..) | Row::ErrorFrame, _)))
}

/// The number between `[` and `]`, and true if it has more than one digit.
fn bracketed(word: &[u8]) -> Result<(usize, bool), RejectReason> {
    match word {
        [b'[', digits @ .., b']'] => {
            let length = fields::small_number(digits).ok_or(RejectReason::NotARow)?;
            Ok((length, digits.len() > 1))
        }
        _ => Err(RejectReason::NotARow),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::{frame, rows_of};

    #[test]
    fn every_kind_of_frame() {
        let row = |text: &str| rows_of::<CandumpAscii>(&[text]).remove(0);
        let expected = frame(1436509052.249713, 0x44, &[0x2A, 0x36, 0x6C], false);
        for text in [
            " (1436509052.249713)  can0  044   [3]  2A 36 6C",
            " (1436509052.249713)  can0  044   [3]  2A 36 6C   '*6l'",
            " (1436509052.249713)  can0  RX - -  044   [3]  2A 36 6C",
        ] {
            assert_eq!(row(text), Row::Frame(expected, FrameKind::Data), "{text}");
        }
        let none = frame(0.5, 0x1ABC_DEF0, &[], false);
        assert_eq!(row(" (0.5)  can0  1ABCDEF0   [0]"), Row::Frame(none, FrameKind::Data));
        assert_eq!(row(" (0.5)  can0  1ABCDEF0   [8]  remote request"), Row::Frame(none, FrameKind::Remote));
        let flexible = frame(0.5, 0x123, &[1, 2], false);
        assert_eq!(row(" (0.5)  can0  123  [02]  01 02"), Row::Frame(flexible, FrameKind::FlexibleDataRate));
        assert_eq!(row(" (0.5)  can0  20000004   [8]  00 00 00 00 00 00 00 00   ERRORFRAME"), Row::ErrorFrame);
    }

    #[test]
    fn dates_are_seconds_since_1970() {
        let seconds = |text: &str| {
            let (date, time) = text.split_once(' ').unwrap();
            date_and_time(date.as_bytes(), time.as_bytes())
        };
        // As `date -u -d '…' +%s` says.
        for (text, expected) in [
            ("1970-01-01 00:00:00.000000", 0.0),
            ("2000-02-29 23:59:59.5", 951_868_799.5),
            ("2000-03-01 00:00:00", 951_868_800.0),
            ("2023-11-14 22:13:20.001344", 1_700_000_000.001_344),
            ("2100-12-31 12:00:00", 4_133_937_600.0),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["2023-13-01 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:00", "23-1-1-1 0:0:0", "a-b-c d"] {
            assert_eq!(seconds(text), Err(RejectReason::TimestampNotANumber), "{text}");
        }
        let rows = rows_of::<CandumpAscii>(&[" (2023-11-14 22:13:20.5)  can1  044   [1]  2A"]);
        assert_eq!(rows, [Row::Frame(frame(1_700_000_000.5, 0x44, &[0x2A], false), FrameKind::Data)]);
        let format = CandumpAscii::default();
        assert_eq!(format.interface(b" (2023-11-14 22:13:20.5)  can1  044   [1]  2A"), Some(&b"can1"[..]));
        assert_eq!(format.interface(b" (0.5)  can0  044   [1]  2A"), Some(&b"can0"[..]));
    }

    #[test]
    fn explanations_of_error_frames_and_labels() {
        let rows = rows_of::<CandumpAscii>(&[
            "\tcontroller-problem{tx-error-warning}",
            "\tprotocol-violation{{bit-stuffing-error}{}}",
            "        error-counter-tx-rx{{96}{0}}",
            "\tsomething else",
            " (0.5)  can0  123   [1]  2A 1",
            " (0.5)  can0  123   [1]  remote request 0",
        ]);
        let expected = [
            Row::Skipped,
            Row::Skipped,
            Row::Skipped,
            Row::Rejected(RejectReason::NotARow),
            Row::Frame(frame(0.5, 0x123, &[0x2A], true), FrameKind::Data),
            Row::Frame(frame(0.5, 0x123, &[], false), FrameKind::Remote),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn wrong_rows_name_their_reason() {
        for (row, reason) in [
            (" (0.5)  can0  123", RejectReason::FieldCount),
            (" (0.5)  can0  123  8  00", RejectReason::NotARow),
            (" (0.5)  can0  12Z  [1]  00", RejectReason::IdNotHex),
            (" (0.5)  can0  123  [2]  00", RejectReason::LengthMismatch),
            (" (0.5)  can0  123  [1]  00 11", RejectReason::LengthMismatch),
            (" (0.5)  can0  123  [9]  00 11 22 33 44 55 66 77 88", RejectReason::TooManyBytes),
            (" (0.5)  can0  123  [1]  0X", RejectReason::DataNotHex),
        ] {
            assert_eq!(rows_of::<CandumpAscii>(&[row]), [Row::Rejected(reason)], "{row:?}");
        }
    }
}
