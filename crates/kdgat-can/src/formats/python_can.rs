//! python-can's CSV: `timestamp,arbitration_id,extended,remote,error,dlc,data`.
//!
//! The columns are found by their names, in any order; columns `interface` (or `channel`, `bus`) and `attack` (or `label`) may be added. Data
//! are in base64, as python-can writes them, or in hexadecimal: their number of characters and `dlc`, which is the number of bytes, tell
//! which. `remote` marks remote frames, `error` error frames. Without a label column every frame is attack-free.

use super::can_train_and_test::{
    DATA_NAMES, ID_NAMES, INTERFACE_NAMES, LABEL_NAMES, SEPARATORS, TIMESTAMP_NAMES, flag, label,
};
use super::fields::{self, CLASSIC_BYTES, FD_BYTES, Fields};
use super::{LineFormat, Row, dates};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

/// Parser of this format.
#[derive(Default)]
pub struct PythonCan {
    columns: Option<Columns>,
}

#[derive(Clone, Copy)]
struct Columns {
    separator: u8,
    count: usize,
    timestamp: usize,
    id: usize,
    length: usize,
    data: usize,
    remote: Option<usize>,
    error: Option<usize>,
    label: Option<usize>,
    interface: Option<usize>,
}

impl LineFormat for PythonCan {
    const LINES_STAND_ALONE: bool = true;

    fn is_own_header(line: &[u8]) -> bool {
        header(line).is_some()
    }

    fn parse_line(&mut self, line: &[u8]) -> Row {
        let Some(columns) = &self.columns else {
            self.columns = header(line);
            return match self.columns {
                Some(_) => Row::Skipped,
                None => Row::Rejected(fields::diagnose(line, RejectReason::NotARow)),
            };
        };
        parse(line, columns).unwrap_or_else(|reason| Row::Rejected(fields::diagnose(line, reason)))
    }

    fn interface<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        let columns = self.columns.as_ref()?;
        let name = *Fields::split(line, columns.separator).get().get(columns.interface?)?;
        (!name.is_empty()).then_some(name)
    }

    fn has_labels(&self) -> bool {
        self.columns.is_some_and(|columns| columns.label.is_some())
    }
}

/// The columns of a header: those of every log, a length, and at least one flag of python-can; `None` for any other line.
fn header(line: &[u8]) -> Option<Columns> {
    SEPARATORS.into_iter().find_map(|separator| {
        let fields = Fields::split(line, separator);
        let find = |known: &[&str]| {
            let is_known = |name: &&[u8]| known.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
            fields.get().iter().position(is_known)
        };
        let columns = Columns {
            separator,
            count: fields.count,
            timestamp: find(&TIMESTAMP_NAMES)?,
            id: find(&ID_NAMES)?,
            length: find(&["dlc"])?,
            data: find(&DATA_NAMES)?,
            remote: find(&["remote", "is_remote", "is_remote_frame"]),
            error: find(&["error", "is_error", "is_error_frame"]),
            label: find(&LABEL_NAMES),
            interface: find(&INTERFACE_NAMES),
        };
        let is_extended = find(&["extended", "is_extended", "is_extended_id"]);
        (columns.remote.is_some() || columns.error.is_some() || is_extended.is_some()).then_some(columns)
    })
}

fn parse(line: &[u8], columns: &Columns) -> Result<Row, RejectReason> {
    let fields = Fields::split(line, columns.separator);
    if fields.count != columns.count {
        return Err(RejectReason::FieldCount);
    }
    let fields = fields.get();
    let is_set =
        |column: Option<usize>| column.map_or(Ok(false), |column| flag(fields[column]).ok_or(RejectReason::BadFlag));
    if is_set(columns.error)? {
        return Ok(Row::ErrorFrame);
    }
    let timestamp = dates::time_of_row(fields[columns.timestamp], columns.separator)?;
    let can_id = fields::can_id(fields[columns.id])?;
    let attack = columns.label.map_or(Ok(false), |column| label(fields[column]))?;
    let length = fields::small_number(fields[columns.length]).ok_or(RejectReason::LengthMismatch)?;
    let data = fields[columns.data];
    let ((payload, payload_length), kind) = match is_set(columns.remote)? {
        // The length that it asks for.
        true if data.is_empty() => (Default::default(), FrameKind::Remote),
        true => return Err(RejectReason::LengthMismatch),
        false if length > CLASSIC_BYTES => (payload(data, length)?, FrameKind::FlexibleDataRate),
        false => (payload(data, length)?, FrameKind::Data),
    };
    Ok(Row::Frame(Frame { timestamp, can_id, payload, payload_length, attack }, kind))
}

/// Parses data of `length` bytes in hexadecimal, with or without blanks or `0x`, or in base64.
fn payload(text: &[u8], length: usize) -> Result<fields::Payload, RejectReason> {
    // Base64 is as long as this for one byte alone, and then it is padded.
    let prefixed = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X"));
    let text = prefixed.filter(|digits| digits.len() == 2 * length && !digits.ends_with(b"=")).unwrap_or(text);
    // Two digits a byte are as long as base64 only for two and four bytes, for which base64 is padded.
    let looks_hex = text.len() == 2 * length && !text.ends_with(b"=");
    let payload = match text {
        _ if text.contains(&b' ') => fields::listed_payload(fields::words(text), 16, FD_BYTES)?,
        _ if looks_hex => fields::packed_payload(text, FD_BYTES)?,
        _ => fields::base64_payload(text, length)?,
    };
    if usize::from(payload.1) == length { Ok(payload) } else { Err(RejectReason::LengthMismatch) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::{frame, rows_of};

    const HEADER: &str = "timestamp,arbitration_id,extended,remote,error,dlc,data";

    /// The frame of a row behind the header.
    fn row(text: &str) -> Row {
        rows_of::<PythonCan>(&[HEADER, text]).remove(1)
    }

    #[test]
    fn data_are_in_base64_or_hexadecimal() {
        let bytes = [0x01, 0x95, 0xFF, 0xFF, 0x03, 0x00, 0xAB, 0xCD];
        // As Python's base64.b64encode writes them.
        let base64 = ["", "AQ==", "AZU=", "AZX/", "AZX//w==", "AZX//wM=", "AZX//wMA", "AZX//wMAqw==", "AZX//wMAq80="];
        for (length, base64) in base64.into_iter().enumerate() {
            let hex: String = bytes[..length].iter().map(|byte| format!("{byte:02x}")).collect();
            let expected = Row::Frame(frame(1.5, 0xA0, &bytes[..length], false), FrameKind::Data);
            for data in [base64, &hex] {
                assert_eq!(row(&format!("1.5,0xa0,0,0,0,{length},{data}")), expected, "{data}");
            }
        }
        // With 0x, as some programs write bytes.
        let hex = row("1.5,0xa0,0,0,0,8,0x0195ffff0300abcd");
        assert_eq!(hex, Row::Frame(frame(1.5, 0xA0, &bytes, false), FrameKind::Data));
        // Base64 that would be hexadecimal, too.
        assert_eq!(row("1.5,0xa0,0,0,0,6,AAAAAAAA"), Row::Frame(frame(1.5, 0xA0, &[0; 6], false), FrameKind::Data));
        let long = row("1.5,0xa0,0,0,0,12,AAECAwQFBgcICQoL");
        assert!(matches!(
            long,
            Row::Frame(Frame { payload_length: 12, payload: [0, 1, 2, ..], .. }, FrameKind::FlexibleDataRate)
        ));
    }

    #[test]
    fn flags_are_honoured() {
        assert_eq!(row("1.5,0xa0,0,0,1,8,011c000000000000"), Row::ErrorFrame);
        assert_eq!(row("1.5,0xa0,0,1,0,8,"), Row::Frame(frame(1.5, 0xA0, &[], false), FrameKind::Remote));
        assert_eq!(row("1.5,0xa0,False,False,True,8,"), Row::ErrorFrame);
    }

    #[test]
    fn columns_are_found_by_name() {
        let mut format = PythonCan::default();
        assert_eq!(format.parse_line(b"channel;label;timestamp;arbitration_id;error;data;dlc"), Row::Skipped);
        let row = b"can1;1;1,5;0x7df;0;AQ==;1";
        assert_eq!(format.parse_line(row), Row::Frame(frame(1.5, 0x7DF, &[1], true), FrameKind::Data));
        assert_eq!((format.interface(row), format.has_labels()), (Some(&b"can1"[..]), true));
        assert!(PythonCan::is_own_header(b"timestamp,arbitration_id,extended,dlc,data"));
        assert!(!PythonCan::is_own_header(b"timestamp,arbitration_id,dlc,data"));
        assert!(!PythonCan::is_own_header(b"timestamp,arbitration_id,data_field,attack"));
    }

    #[test]
    fn wrong_rows_name_their_reason() {
        for (text, reason) in [
            ("1.5,0xa0,0,0,0,8", RejectReason::FieldCount),
            ("x,0xa0,0,0,0,1,AQ==", RejectReason::TimestampNotANumber),
            ("1.5,0xg0,0,0,0,1,AQ==", RejectReason::IdNotHex),
            ("1.5,0xa0,0,0,0,x,AQ==", RejectReason::LengthMismatch),
            ("1.5,0xa0,0,0,0,2,AQ==", RejectReason::DataNotBase64),
            ("1.5,0xa0,0,0,0,3,AQ==", RejectReason::DataNotBase64),
            ("1.5,0xa0,0,0,0,8,AQ==", RejectReason::LengthMismatch),
            ("1.5,0xa0,0,0,0,65,AQ==", RejectReason::LengthMismatch),
            ("1.5,0xa0,0,0,0,1,A?==", RejectReason::DataNotBase64),
            ("1.5,0xa0,0,1,0,1,AQ==", RejectReason::LengthMismatch),
            ("1.5,0xa0,0,2,0,1,AQ==", RejectReason::BadFlag),
        ] {
            assert_eq!(row(text), Row::Rejected(reason), "{text:?}");
        }
        assert_eq!(
            rows_of::<PythonCan>(&["1.5,0xa0,0,0,0,1,AQ=="]),
            [Row::Rejected(RejectReason::NotARow)],
            "no header"
        );
    }
}
