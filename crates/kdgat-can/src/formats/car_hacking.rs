//! HCRL Car-Hacking (and Survival Analysis) as published: `time,id,DLC,byte,…,R|T`, with DLC bytes.
//!
//! `R` is a regular frame, `T` an injected one. The attack-free text log of the same collection,
//! `Timestamp: 1479121434.850202        ID: 0350    000    DLC: 8    05 28 84 66 6d 00 00 a2`, is read as well.

use super::fields::{self, CLASSIC_BYTES, Fields};
use super::{LineFormat, Row};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

/// Parser of this format.
#[derive(Default)]
pub struct CarHacking;

impl LineFormat for CarHacking {
    const LINES_STAND_ALONE: bool = true;

    fn parse_line(&mut self, line: &[u8]) -> Row {
        let row = if line.starts_with(b"Timestamp:") { parse_text(line) } else { parse_csv(line) };
        match row {
            Ok(frame) => Row::Frame(frame, FrameKind::Data),
            Err(reason) => Row::Rejected(fields::diagnose(line, reason)),
        }
    }

    fn has_labels(&self) -> bool {
        true
    }
}

fn parse_csv(line: &[u8]) -> Result<Frame, RejectReason> {
    let fields = Fields::split(line, b',');
    let [timestamp, id, length, bytes @ .., flag] = fields.get() else { return Err(RejectReason::FieldCount) };
    let timestamp = fields::timestamp(timestamp)?;
    let can_id = fields::can_id(id)?;
    let attack = match *flag {
        b"R" => false,
        b"T" => true,
        _ => return Err(RejectReason::BadLabel),
    };
    let (payload, payload_length) = payload(length, bytes.iter().copied())?;
    Ok(Frame { timestamp, can_id, payload, payload_length, attack })
}

fn parse_text(line: &[u8]) -> Result<Frame, RejectReason> {
    let mut words = fields::words(line);
    let mut word = || words.next().ok_or(RejectReason::FieldCount);
    let labels_and_values = [word()?, word()?, word()?, word()?, word()?, word()?, word()?];
    let [b"Timestamp:", timestamp, b"ID:", id, b"000", b"DLC:", length] = labels_and_values else {
        return Err(RejectReason::NotARow);
    };
    let (timestamp, can_id) = (fields::timestamp(timestamp)?, fields::can_id(id)?);
    let (payload, payload_length) = payload(length, words)?;
    Ok(Frame { timestamp, can_id, payload, payload_length, attack: false })
}

fn payload<'a>(length: &[u8], bytes: impl Iterator<Item = &'a [u8]>) -> Result<fields::Payload, RejectReason> {
    let length = fields::small_number(length).ok_or(RejectReason::LengthMismatch)?;
    if length > CLASSIC_BYTES {
        return Err(RejectReason::TooManyBytes);
    }
    let payload = fields::listed_payload(bytes, 16, CLASSIC_BYTES)?;
    if usize::from(payload.1) == length { Ok(payload) } else { Err(RejectReason::LengthMismatch) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::{frame, rows_of};

    #[test]
    fn rows_have_as_many_bytes_as_they_say() {
        let rows = rows_of::<CarHacking>(&[
            "1478198376.389427,0316,8,05,21,68,09,21,21,00,6f,R",
            "1478198376.389636,018f,2,fe,5b,T",
            "1478198376.389864,0260,0,R",
            "Timestamp: 1479121434.850202        ID: 0350    000    DLC: 3    05 28 84",
        ]);
        let expected = [
            frame(1478198376.389427, 0x316, &[5, 0x21, 0x68, 9, 0x21, 0x21, 0, 0x6F], false),
            frame(1478198376.389636, 0x18F, &[0xFE, 0x5B], true),
            frame(1478198376.389864, 0x260, &[], false),
            frame(1479121434.850202, 0x350, &[5, 0x28, 0x84], false),
        ];
        assert_eq!(rows, expected.map(|frame| Row::Frame(frame, FrameKind::Data)));
    }

    #[test]
    fn wrong_rows_name_their_reason() {
        for (row, reason) in [
            ("1.0,123,R", RejectReason::FieldCount),
            ("1.0,123,2,00,R", RejectReason::LengthMismatch),
            ("1.0,123,1,00,11,R", RejectReason::LengthMismatch),
            ("1.0,123,9,0,1,2,3,4,5,6,7,8,R", RejectReason::TooManyBytes),
            ("1.0,123,1,0011,R", RejectReason::DataNotHex),
            ("1.0,123,1,00,X", RejectReason::BadLabel),
            ("1.0,xyz,1,00,R", RejectReason::IdNotHex),
            ("Timestamp: 1.0 ID: 0350 001 DLC: 1 00", RejectReason::NotARow),
        ] {
            assert_eq!(rows_of::<CarHacking>(&[row]), [Row::Rejected(reason)], "{row:?}");
        }
    }
}
