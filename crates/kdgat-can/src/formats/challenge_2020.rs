//! HCRL Car Hacking: Attack & Defense Challenge 2020: `Timestamp,Arbitration_ID,DLC,Data,Class,SubClass`.
//!
//! `Data` holds bytes separated by blanks. `Class` is `Normal` or `Attack`; the contest's unlabelled files lack it, and
//! all their frames count as attack-free. `SubClass` (the kind of attack) is ignored.

use super::can_train_and_test::SEPARATORS;
use super::fields::{self, CLASSIC_BYTES, Fields};
use super::{LineFormat, Row, dates};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

/// Names of the columns, in order.
const COLUMNS: [&str; 6] = ["timestamp", "arbitration_id", "dlc", "data", "class", "subclass"];

/// Position of the label among them.
const CLASS: usize = 4;

/// Parser of this format.
pub struct Challenge2020 {
    /// Number of columns of a row: all six, or fewer from the header, at least the first four.
    columns: usize,
    separator: u8,
}

impl Default for Challenge2020 {
    fn default() -> Self {
        Self { columns: COLUMNS.len(), separator: SEPARATORS[0] }
    }
}

impl LineFormat for Challenge2020 {
    fn is_own_header(line: &[u8]) -> bool {
        header_of(line).is_some()
    }

    fn parse_line(&mut self, line: &[u8]) -> Row {
        let fields = Fields::split(line, self.separator);
        match self.parse(&fields) {
            Ok(frame) => Row::Frame(frame, FrameKind::Data),
            Err(reason) => match header_of(line) {
                Some((separator, columns)) => {
                    (self.separator, self.columns) = (separator, columns);
                    Row::Skipped
                }
                None => Row::Rejected(fields::diagnose(line, reason)),
            },
        }
    }

    fn has_labels(&self) -> bool {
        self.columns > CLASS
    }
}

/// Separator of a header, and number of columns that it names; `None` for a row.
fn header_of(line: &[u8]) -> Option<(u8, usize)> {
    SEPARATORS.into_iter().find_map(|separator| Some((separator, header(&Fields::split(line, separator))?)))
}

/// Number of columns that a header names; `None` for a row.
fn header(fields: &Fields) -> Option<usize> {
    let names = fields.get();
    let known = names.len() == fields.count && names.len() <= COLUMNS.len() && names.len() >= 4;
    let same = names.iter().zip(COLUMNS).all(|(name, column)| name.eq_ignore_ascii_case(column.as_bytes()));
    (known && same).then_some(fields.count)
}

impl Challenge2020 {
    fn parse(&self, fields: &Fields) -> Result<Frame, RejectReason> {
        if fields.count != self.columns {
            return Err(RejectReason::FieldCount);
        }
        let [timestamp, id, length, data, classes @ ..] = fields.get() else { return Err(RejectReason::FieldCount) };
        let timestamp = dates::time_of_row(timestamp, self.separator)?;
        let can_id = fields::can_id(id)?;
        let length = fields::small_number(length).ok_or(RejectReason::LengthMismatch)?;
        let (payload, payload_length) = fields::listed_payload(fields::words(data), 16, CLASSIC_BYTES)?;
        if usize::from(payload_length) != length {
            return Err(RejectReason::LengthMismatch);
        }
        let attack = match classes.first() {
            None => false,
            Some(class) if class.eq_ignore_ascii_case(b"normal") => false,
            Some(class) if class.eq_ignore_ascii_case(b"attack") => true,
            Some(_) => return Err(RejectReason::BadLabel),
        };
        Ok(Frame { timestamp, can_id, payload, payload_length, attack })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::{frame, rows_of};

    #[test]
    fn rows_with_and_without_class() {
        let rows = rows_of::<Challenge2020>(&[
            "Timestamp,Arbitration_ID,DLC,Data,Class,SubClass",
            "1597707827.144119,153,3,20 A1 10,Normal,Normal",
            "1597707828.5,000,0,,Attack,Flooding",
        ]);
        let normal = frame(1597707827.144119, 0x153, &[0x20, 0xA1, 0x10], false);
        let attack = frame(1597707828.5, 0, &[], true);
        let frames = [normal, attack].map(|frame| Row::Frame(frame, FrameKind::Data));
        assert_eq!(rows, [&[Row::Skipped], &frames[..]].concat());
        let semicolons = rows_of::<Challenge2020>(&[
            "Timestamp;Arbitration_ID;DLC;Data;Class;SubClass",
            "1597707827,144119;153;3;20 A1 10;Normal;Normal",
        ]);
        assert_eq!(semicolons, [Row::Skipped, Row::Frame(normal, FrameKind::Data)]);
        let unlabelled = rows_of::<Challenge2020>(&["Timestamp,Arbitration_ID,DLC,Data", "1.0,2B0,1,FF"]);
        assert_eq!(unlabelled[1], Row::Frame(frame(1.0, 0x2B0, &[255], false), FrameKind::Data));
    }

    #[test]
    fn wrong_rows_name_their_reason() {
        for (row, reason) in [
            ("1.0,123,1,00", RejectReason::FieldCount),
            ("1.0,123,2,00,Normal,Normal", RejectReason::LengthMismatch),
            ("1.0,123,x,00,Normal,Normal", RejectReason::LengthMismatch),
            ("1.0,123,1,000,Normal,Normal", RejectReason::DataNotHex),
            ("1.0,123,1,00,Odd,Normal", RejectReason::BadLabel),
        ] {
            assert_eq!(rows_of::<Challenge2020>(&[row]), [Row::Rejected(reason)], "{row:?}");
        }
    }
}
