//! SocketCAN's `candump -ta` as it prints on a terminal: ` (1436509052.249713)  can0  044   [5]  2A 36 6C 2B BA`.
//!
//! A length with two digits (`[08]`) marks CAN FD, `remote request` a remote frame, an ID with flag 0x20000000 an
//! error frame. Direction and flags (`RX - -`, from `-x`) and the quoted text (from `-a`) are ignored. The
//! format has no labels.

use super::candump::{is_error_frame, parenthesised};
use super::fields::{self, CLASSIC_BYTES, FD_BYTES};
use super::{LineFormat, Row};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

/// Parser of this format.
#[derive(Default)]
pub struct CandumpAscii;

impl LineFormat for CandumpAscii {
    const LINES_STAND_ALONE: bool = true;

    fn parse_line(&mut self, line: &[u8]) -> Row {
        parse(line).unwrap_or_else(|reason| Row::Rejected(fields::diagnose(line, reason)))
    }
}

fn parse(line: &[u8]) -> Result<Row, RejectReason> {
    let mut words = fields::words(line).peekable();
    let mut word = || words.next().ok_or(RejectReason::FieldCount);
    let timestamp = fields::timestamp(parenthesised(word()?)?)?;
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
        return Ok(Row::ErrorFrame);
    }
    if can_id > fields::MAX_CAN_ID {
        return Err(RejectReason::IdTooLarge);
    }
    let frame = |(payload, payload_length)| Frame { timestamp, can_id, payload, payload_length, attack: false };
    if words.peek() == Some(&&b"remote"[..]) {
        return Ok(Row::Frame(frame(Default::default()), FrameKind::Remote));
    }
    let limit_bytes = if flexible { FD_BYTES } else { CLASSIC_BYTES };
    if length > limit_bytes {
        return Err(RejectReason::TooManyBytes);
    }
    let payload = fields::listed_payload(words.by_ref().take(length), 16, limit_bytes)?;
    if usize::from(payload.1) != length || words.next().is_some_and(|word| !word.starts_with(b"'")) {
        return Err(RejectReason::LengthMismatch);
    }
    let kind = if flexible { FrameKind::FlexibleDataRate } else { FrameKind::Data };
    Ok(Row::Frame(frame(payload), kind))
}

/// True for a row that `candump` prints without `-L` or `-t`: one of this format without its time.
pub fn lacks_times(row: &[u8]) -> bool {
    let timed = [b"(0) ", row].concat();
    parse(row).is_err() && matches!(parse(&timed), Ok(Row::Frame(..) | Row::ErrorFrame))
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
