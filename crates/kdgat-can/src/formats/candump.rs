//! SocketCAN's `candump -L` (and `-l`): `(1436509052.249713) vcan0 044#2A366C2BBA`.
//!
//! `ID##F…` is a CAN FD frame with flags F, `ID#R` a remote frame, and an ID with flag 0x20000000 an error
//! frame. A direction (`R` or `T`, from `-x`) may follow. The format has no labels.

use super::fields::{self, CLASSIC_BYTES, FD_BYTES};
use super::{LineFormat, Row};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

/// SocketCAN's flag in the ID that marks an error frame.
const ERROR_FLAG: u32 = 0x2000_0000;

/// Parser of this format.
#[derive(Default)]
pub struct Candump;

impl LineFormat for Candump {
    const LINES_STAND_ALONE: bool = true;

    fn parse_line(&mut self, line: &[u8]) -> Row {
        parse(line).unwrap_or_else(|reason| Row::Rejected(fields::diagnose(line, reason)))
    }
}

fn parse(line: &[u8]) -> Result<Row, RejectReason> {
    let mut words = fields::words(line);
    let (Some(stamp), Some(_interface), Some(frame)) = (words.next(), words.next(), words.next()) else {
        return Err(RejectReason::FieldCount);
    };
    match (words.next(), words.next()) {
        (None | Some(b"R" | b"T"), None) => {}
        _ => return Err(RejectReason::FieldCount),
    }
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
        [b'R', length @ ..] if length.is_empty() || fields::small_number(length).is_some() => {
            (Default::default(), FrameKind::Remote)
        }
        _ => (payload(data, CLASSIC_BYTES)?, FrameKind::Data),
    };
    Ok(Row::Frame(Frame { timestamp, can_id, payload, payload_length, attack: false }, kind))
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
        assert_eq!(row("(1.5) can0 123#R8 T"), Row::Frame(frame(1.5, 0x123, &[], false), FrameKind::Remote));
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
    fn wrong_rows_name_their_reason() {
        for (row, reason) in [
            ("(1.0) can0", RejectReason::FieldCount),
            ("(1.0) can0 123#00 X", RejectReason::FieldCount),
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
