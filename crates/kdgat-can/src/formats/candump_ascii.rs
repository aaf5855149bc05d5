//! SocketCAN's `candump -ta` as it prints on a terminal: ` (1436509052.249713)  can0  044   [5]  2A 36 6C 2B BA`.
//!
//! The time may be a date (`-tA`), which is read as if in UTC. A length with two digits (`[08]`) marks CAN FD, `remote request` a remote
//! frame, an ID with flag 0x20000000 an error frame, whose explanation (`-e`, lines with a tab) is skipped. Direction and flags
//! (`RX - -`, from `-x`) and the quoted text (from `-a`) are ignored. A label may follow, as in [`candump`](super::candump).

use super::can_train_and_test::label;
use super::candump::{is_error_frame, parenthesised};
use super::fields::{self, CLASSIC_BYTES, FD_BYTES};
use super::{LineFormat, Row, dates};
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
        [b'(', date @ ..] => {
            let time = word()?.strip_suffix(b")").ok_or(RejectReason::NotARow)?;
            dates::seconds(date, time).ok_or(RejectReason::TimestampNotANumber)?
        }
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
    fn the_time_may_be_a_date() {
        let rows = rows_of::<CandumpAscii>(&[
            " (2023-11-14 22:13:20.5)  can1  044   [1]  2A",
            " (2023-13-14 22:13:20.5)  can1  044   [1]  2A",
        ]);
        let expected = [
            Row::Frame(frame(1_700_000_000.5, 0x44, &[0x2A], false), FrameKind::Data),
            Row::Rejected(RejectReason::TimestampNotANumber),
        ];
        assert_eq!(rows, expected);
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
