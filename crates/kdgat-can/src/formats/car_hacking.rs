//! HCRL Car-Hacking (and Survival Analysis) as published: `time,id,DLC,byte,…,R|T`, with DLC bytes.
//!
//! `R` is a regular frame, `T` an injected one. Attack-free logs of Survival Analysis have no label; their bytes may be in one field,
//! separated by blanks. The separator may also be a semicolon or a tab. The attack-free text log of Car-Hacking,
//! `Timestamp: 1479121434.850202        ID: 0350    000    DLC: 8    05 28 84 66 6d 00 00 a2`, is what python-can 1 and 2 print; its
//! flags mark remote frames, extended IDs and error frames.

use super::can_train_and_test::SEPARATORS;
use super::fields::{self, CLASSIC_BYTES, Fields};
use super::{LineFormat, Row};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

/// Parser of this format.
#[derive(Default)]
pub struct CarHacking {
    has_labels: bool,
    needs_labels: bool,
}

impl LineFormat for CarHacking {
    const LINES_STAND_ALONE: bool = true;

    fn parse_line(&mut self, line: &[u8]) -> Row {
        let row = if line.starts_with(b"Timestamp:") { parse_text(line) } else { self.parse_csv(line) };
        row.unwrap_or_else(|reason| Row::Rejected(fields::diagnose(line, reason)))
    }

    fn has_labels(&self) -> bool {
        self.has_labels
    }

    fn require_labels(&mut self) {
        self.needs_labels = true;
    }
}

impl CarHacking {
    fn parse_csv(&mut self, line: &[u8]) -> Result<Row, RejectReason> {
        let separator = SEPARATORS.into_iter().find(|separator| line.contains(separator)).unwrap_or(SEPARATORS[0]);
        let fields = Fields::split(line, separator);
        // Programs that write tables fill short rows with empty fields.
        let used = fields.get().iter().rposition(|field| !field.is_empty()).map_or(0, |last| last + 1);
        let [timestamp, id, length, rest @ ..] = &fields.get()[..used] else { return Err(RejectReason::FieldCount) };
        let timestamp = fields::timestamp(timestamp)?;
        let can_id = fields::can_id(id)?;
        let (bytes, attack) = match rest {
            [bytes @ .., b"R"] => (bytes, Some(false)),
            [bytes @ .., b"T"] => (bytes, Some(true)),
            bytes => (bytes, None),
        };
        if attack.is_none() {
            expect_unlabelled(length, bytes)?;
        }
        let (payload, payload_length) = match bytes {
            [text] if text.contains(&b' ') => payload(length, fields::words(text))?,
            _ => payload(length, bytes.iter().copied())?,
        };
        self.has_labels |= attack.is_some();
        if attack.is_none() && self.needs_labels {
            return Err(RejectReason::MissingLabel);
        }
        let attack = attack.unwrap_or(false);
        Ok(Row::Frame(Frame { timestamp, can_id, payload, payload_length, attack }, FrameKind::Data))
    }
}

/// Checks that a row without label has the form of such logs, which no row of another format has: a length of one digit, and bytes of two
/// digits.
fn expect_unlabelled(length: &[u8], bytes: &[&[u8]]) -> Result<(), RejectReason> {
    let has_two_digits = |word: &[u8]| word.len() == 2 && fields::is_hex(word);
    match bytes.last() {
        _ if length.len() != 1 => Err(RejectReason::FieldCount),
        Some(last) if !fields::words(last).all(fields::is_hex) => Err(RejectReason::BadLabel),
        _ if !bytes.iter().flat_map(|bytes| fields::words(bytes)).all(has_two_digits) => Err(RejectReason::DataNotHex),
        _ => Ok(()),
    }
}

fn parse_text(line: &[u8]) -> Result<Row, RejectReason> {
    let mut words = fields::words(line);
    let mut word = || words.next().ok_or(RejectReason::FieldCount);
    let labels_and_values = [word()?, word()?, word()?, word()?, word()?, word()?, word()?];
    let [b"Timestamp:", timestamp, b"ID:", id, flags, b"DLC:", length] = labels_and_values else {
        return Err(RejectReason::NotARow);
    };
    let [remote @ (b'0' | b'1'), b'0' | b'1', error @ (b'0' | b'1')] = flags else {
        return Err(RejectReason::NotARow);
    };
    if *error == b'1' {
        return Ok(Row::ErrorFrame);
    }
    let (timestamp, can_id) = (fields::timestamp(timestamp)?, fields::can_id(id)?);
    let ((payload, payload_length), kind) = match remote {
        // The length that it asks for.
        b'1' if words.next().is_none() => (Default::default(), FrameKind::Remote),
        b'1' => return Err(RejectReason::LengthMismatch),
        _ => (payload(length, words)?, FrameKind::Data),
    };
    Ok(Row::Frame(Frame { timestamp, can_id, payload, payload_length, attack: false }, kind))
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
            "1478198376.389636;018f;2;fe;5b;T",
            "1478198376.389636\t018f\t2\tfe\t5b\tT",
        ]);
        let expected = [
            frame(1478198376.389427, 0x316, &[5, 0x21, 0x68, 9, 0x21, 0x21, 0, 0x6F], false),
            frame(1478198376.389636, 0x18F, &[0xFE, 0x5B], true),
            frame(1478198376.389864, 0x260, &[], false),
            frame(1479121434.850202, 0x350, &[5, 0x28, 0x84], false),
            frame(1478198376.389636, 0x18F, &[0xFE, 0x5B], true),
            frame(1478198376.389636, 0x18F, &[0xFE, 0x5B], true),
        ];
        assert_eq!(rows, expected.map(|frame| Row::Frame(frame, FrameKind::Data)));
    }

    #[test]
    fn attack_free_logs_have_no_label() {
        for rows in [
            ["1.0,00a0,3,01 95 00", "2.0,0545,0,", "3.0,0545,1,ff"],
            ["1.0,00a0,3,01,95,00", "2.0,0545,0", "3.0,0545,1,ff"],
        ] {
            let expected = [
                frame(1.0, 0xA0, &[1, 0x95, 0], false),
                frame(2.0, 0x545, &[], false),
                frame(3.0, 0x545, &[255], false),
            ];
            assert_eq!(rows_of::<CarHacking>(&rows), expected.map(|frame| Row::Frame(frame, FrameKind::Data)));
            let mut format = CarHacking::default();
            format.require_labels();
            let strict = rows.map(|row| format.parse_line(row.as_bytes()));
            assert_eq!(strict, [Row::Rejected(RejectReason::MissingLabel); 3]);
        }
        let padded = rows_of::<CarHacking>(&["1.0,123,1,00,T,,,,,,,"]);
        assert_eq!(padded, [Row::Frame(frame(1.0, 0x123, &[0], true), FrameKind::Data)]);
    }

    #[test]
    fn flags_mark_remote_and_error_frames() {
        let rows = rows_of::<CarHacking>(&[
            "Timestamp: 1.5        ID: 0350    100    DLC: 0",
            "Timestamp: 1.5        ID: 00000350    110    DLC: 8",
            "Timestamp: 1.5        ID: 0350    001    DLC: 8    00 00 00 00 00 00 00 00",
            "Timestamp: 1.5        ID: 00000350    010    DLC: 1    07",
            "Timestamp: 1.5        ID: 0350    000    DLC: 0",
        ]);
        let remote = Row::Frame(frame(1.5, 0x350, &[], false), FrameKind::Remote);
        let expected = [
            remote,
            remote,
            Row::ErrorFrame,
            Row::Frame(frame(1.5, 0x350, &[7], false), FrameKind::Data),
            Row::Frame(frame(1.5, 0x350, &[], false), FrameKind::Data),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn wrong_rows_name_their_reason() {
        for (row, reason) in [
            ("1.0,123", RejectReason::FieldCount),
            ("1.0,123,R", RejectReason::LengthMismatch),
            ("1.0,123,01,0", RejectReason::FieldCount),
            ("1.0,123,1,0", RejectReason::DataNotHex),
            ("1.0,123,2,00,R", RejectReason::LengthMismatch),
            ("1.0,123,1,00,11,R", RejectReason::LengthMismatch),
            ("1.0,123,9,0,1,2,3,4,5,6,7,8,R", RejectReason::TooManyBytes),
            ("1.0,123,1,0011,R", RejectReason::DataNotHex),
            ("1.0,123,1,00,X", RejectReason::BadLabel),
            ("1.0,xyz,1,00,R", RejectReason::IdNotHex),
            ("Timestamp: 1.0 ID: 0350 002 DLC: 1 00", RejectReason::NotARow),
            ("Timestamp: 1.0 ID: 0350 100 DLC: 1 00", RejectReason::LengthMismatch),
        ] {
            assert_eq!(rows_of::<CarHacking>(&[row]), [Row::Rejected(reason)], "{row:?}");
        }
    }
}
