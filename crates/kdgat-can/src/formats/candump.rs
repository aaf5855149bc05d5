//! SocketCAN's `candump -L` (and `-l`): `(1436509052.249713) vcan0 044#2A366C2BBA`.
//!
//! `ID##F…` is a CAN FD frame with flags F, `ID#R` a remote frame (also `R8`, `R8_9` and with a small `r`), and an ID with flag
//! 0x20000000 an error frame. A direction (`R` or `T`, from `-x`) may follow, and a label, as some datasets append it: `0`, or `1` for
//! an attack frame, or a word, behind a blank or a comma. A row without a label is attack-free.

use super::fields::{self, CLASSIC_BYTES, FD_BYTES};
use super::{LineFormat, Row, can_train_and_test};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

/// SocketCAN's flag in the ID that marks an error frame.
const ERROR_FLAG: u32 = 0x2000_0000;

/// Parser of this format.
#[derive(Default)]
pub struct Candump {
    has_labels: bool,
}

impl LineFormat for Candump {
    const LINES_STAND_ALONE: bool = true;

    fn parse_line(&mut self, line: &[u8]) -> Row {
        self.parse(line)
            .or_else(|reason| self.parse_with_comma(line).ok_or(reason))
            .unwrap_or_else(|reason| Row::Rejected(fields::diagnose(line, reason)))
    }

    fn interface<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        fields::words(line).nth(1)
    }

    fn has_labels(&self) -> bool {
        self.has_labels
    }
}

impl Candump {
    fn parse(&mut self, line: &[u8]) -> Result<Row, RejectReason> {
        let mut words = fields::words(line);
        let (Some(stamp), Some(_interface), Some(frame)) = (words.next(), words.next(), words.next()) else {
            return Err(RejectReason::FieldCount);
        };
        let attack = match words.next() {
            None => false,
            Some(word) => self.direction_and_label(word, words)?,
        };
        let timestamp = fields::timestamp(parenthesised(stamp)?)?;
        let (can_id, data) = match fields::leading_hex(frame) {
            Some((can_id, [b'#', data @ ..])) => (can_id, data),
            Some((_, [])) => return Err(RejectReason::NotARow),
            _ => return Err(RejectReason::IdNotHex),
        };
        if is_error_frame(can_id) {
            return Ok(Row::ErrorFrame);
        }
        if can_id > fields::MAX_CAN_ID {
            return Err(RejectReason::IdTooLarge);
        }
        let ((payload, payload_length), kind) = match data {
            [b'#', flags, data @ ..] if fields::is_hex(&[*flags]) => {
                (payload(data, FD_BYTES)?, FrameKind::FlexibleDataRate)
            }
            [b'#', ..] => return Err(RejectReason::DataNotHex),
            [b'R' | b'r', length @ ..] if is_remote_length(length) => (Default::default(), FrameKind::Remote),
            _ => (payload(data, CLASSIC_BYTES)?, FrameKind::Data),
        };
        Ok(Row::Frame(Frame { timestamp, can_id, payload, payload_length, attack }, kind))
    }

    /// Parses a row whose label follows a comma.
    #[cold]
    fn parse_with_comma(&mut self, line: &[u8]) -> Option<Row> {
        let comma = line.iter().position(|byte| *byte == b',')?;
        let (row, label) = (&line[..comma], line[comma + 1..].trim_ascii());
        if fields::words(label).count() != 1 {
            return None;
        }
        // A direction may be before the comma, not another label.
        let mut unlabelled = Candump::default();
        let parsed = unlabelled.parse(row).ok().filter(|_| !unlabelled.has_labels)?;
        let attack = can_train_and_test::label(label).ok()?;
        self.has_labels = true;
        Some(match parsed {
            Row::Frame(frame, kind) => Row::Frame(Frame { attack, ..frame }, kind),
            other => other,
        })
    }

    /// Reads the words behind the frame: a direction, a label, or both.
    #[cold]
    fn direction_and_label<'a>(
        &mut self,
        word: &[u8],
        mut words: impl Iterator<Item = &'a [u8]>,
    ) -> Result<bool, RejectReason> {
        let (word, next) = match word {
            b"R" | b"T" => match words.next() {
                None => return Ok(false),
                Some(word) => (word, words.next()),
            },
            _ => (word, words.next()),
        };
        let attack = can_train_and_test::label(word).map_err(|_| RejectReason::FieldCount)?;
        if next.is_some() {
            return Err(RejectReason::FieldCount);
        }
        self.has_labels = true;
        Ok(attack)
    }
}

/// True for what may follow the `R` of a remote frame: nothing, a length, or a length and a data length code above 8 (`8_9`).
fn is_remote_length(text: &[u8]) -> bool {
    match text {
        [length @ .., b'_', code] if fields::is_hex(&[*code]) => fields::small_number(length).is_some(),
        _ => text.is_empty() || fields::small_number(text).is_some(),
    }
}

/// Parses digits, optionally with dots between bytes, optionally followed by `_` and a data length code above 8.
fn payload(text: &[u8], limit_bytes: usize) -> Result<fields::Payload, RejectReason> {
    let digits = match text {
        [digits @ .., b'_', code] if fields::is_hex(&[*code]) => digits,
        _ => text,
    };
    if digits.contains(&b'.') {
        return fields::listed_payload(digits.split(|byte| *byte == b'.'), 16, limit_bytes);
    }
    fields::packed_payload(digits, limit_bytes)
}

/// The text between `(` and `)`.
pub(super) fn parenthesised(word: &[u8]) -> Result<&[u8], RejectReason> {
    match word {
        [b'(', inner @ .., b')'] => Ok(inner),
        _ => Err(RejectReason::NotARow),
    }
}

/// True if SocketCAN marks the frame as an error frame.
pub(super) fn is_error_frame(can_id: u32) -> bool {
    can_id & ERROR_FLAG != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::{frame, rows_of};

    #[test]
    fn every_kind_of_frame() {
        let row = |text: &str| rows_of::<Candump>(&[text]).remove(0);
        assert_eq!(
            row("(1436509052.249713) vcan0 044#2A366C2BBA"),
            Row::Frame(frame(1436509052.249713, 0x44, &[0x2A, 0x36, 0x6C, 0x2B, 0xBA], false), FrameKind::Data)
        );
        assert_eq!(row("(1.5) can0 12345678#"), Row::Frame(frame(1.5, 0x1234_5678, &[], false), FrameKind::Data));
        assert_eq!(row("(1.5) can0 123#01.02 R"), Row::Frame(frame(1.5, 0x123, &[1, 2], false), FrameKind::Data));
        for remote in ["R", "R8 T", "R8_9", "R8_F", "r", "r2"] {
            let expected = Row::Frame(frame(1.5, 0x123, &[], false), FrameKind::Remote);
            assert_eq!(row(&format!("(1.5) can0 123#{remote}")), expected, "{remote}");
        }
        assert_eq!(row("(1.5) can0 20000004#0000000000000000"), Row::ErrorFrame);
        let mut long = frame(1.5, 0x123, &[1, 2, 3, 4, 5, 6, 7, 8], false);
        long.payload_length = 12;
        assert_eq!(row("(1.5) can0 123##10102030405060708090A0B0C"), Row::Frame(long, FrameKind::FlexibleDataRate));
        assert_eq!(
            row("(1.5) can0 123#1122334455667788_E"),
            Row::Frame(frame(1.5, 0x123, &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88], false), FrameKind::Data)
        );
    }

    #[test]
    fn a_label_at_the_end_is_read() {
        let rows = ["(1.5) can0 123#01 0", "(1.5) can0 123#01 1", "(1.5) can0 123#01 R 1", "(1.5) can0 123#01"];
        let attacks = rows_of::<Candump>(&rows);
        let expected =
            [false, true, true, false].map(|attack| Row::Frame(frame(1.5, 0x123, &[1], attack), FrameKind::Data));
        assert_eq!(attacks, expected);
        let mut format = Candump::default();
        let has_labels = [3, 1, 3].map(|row: usize| {
            format.parse_line(rows[row].as_bytes());
            format.has_labels()
        });
        assert_eq!(has_labels, [false, true, true], "from the first label on");
        for (end, attack) in
            [(" normal", false), (" Attack", true), (",0", false), (",1", true), (", 1", true), (" R,attack", true)]
        {
            let expected = Row::Frame(frame(1.5, 0x123, &[1], attack), FrameKind::Data);
            let mut format = Candump::default();
            assert_eq!(format.parse_line(format!("(1.5) can0 123#01{end}").as_bytes()), expected, "{end}");
            assert!(format.has_labels(), "{end}");
        }
        assert_eq!(format.interface(b" (1.5)  can1 123#01 0"), Some(&b"can1"[..]));
    }

    #[test]
    fn wrong_rows_name_their_reason() {
        for (row, reason) in [
            ("(1.0) can0", RejectReason::FieldCount),
            ("(1.0) can0 123#00 X", RejectReason::FieldCount),
            ("(1.0) can0 123#00 2", RejectReason::FieldCount),
            ("(1.0) can0 123#00 0 1", RejectReason::FieldCount),
            ("(1.0) can0 123#00,2", RejectReason::DataNotHex),
            ("(1.0) can0 123#00 0,1", RejectReason::FieldCount),
            ("(1.0) can0 123#00,0 1", RejectReason::DataNotHex),
            ("(1.0) can0 123#00 R 0 1", RejectReason::FieldCount),
            ("(1.0) can0 123#R8_", RejectReason::DataNotHex),
            ("(1.0) can0 123#RX", RejectReason::DataNotHex),
            ("1.0 can0 123#00", RejectReason::NotARow),
            ("(1.0) can0 123", RejectReason::NotARow),
            ("(abc) can0 123#00", RejectReason::TimestampNotANumber),
            ("(nan) can0 123#00", RejectReason::TimestampNotFinite),
            ("(1.0) can0 12Z#00", RejectReason::IdNotHex),
            ("(1.0) can0 40000123#00", RejectReason::IdTooLarge),
            ("(1.0) can0 123#001", RejectReason::OddDigits),
            ("(1.0) can0 123##0GG", RejectReason::DataNotHex),
            ("(1.0) can0 123#001122334455667788", RejectReason::TooManyBytes),
        ] {
            assert_eq!(rows_of::<Candump>(&[row]), [Row::Rejected(reason)], "{row:?}");
        }
    }
}
