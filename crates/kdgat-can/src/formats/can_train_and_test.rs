//! CSV of the can-train-and-test collection: `timestamp,arbitration_id,data_field,attack`.
//!
//! With a header, the columns are found by their names (in any case), other columns are ignored, and without a label
//! column every frame is attack-free. A column `interface`, `channel` or `bus` names the bus of each frame. Without a header the four
//! columns come in the order above. The separator may also be a semicolon or a tab; the first line shows it.

use super::fields::{self, CLASSIC_BYTES, Fields};
use super::{LineFormat, Row, dates};
use crate::frame::Frame;
use crate::report::{FrameKind, RejectReason};

pub(super) const TIMESTAMP_NAMES: [&str; 2] = ["timestamp", "time"];
pub(super) const ID_NAMES: [&str; 4] = ["arbitration_id", "can_id", "id", "arbitration id"];
pub(super) const DATA_NAMES: [&str; 3] = ["data_field", "data", "payload"];
pub(super) const LABEL_NAMES: [&str; 2] = ["attack", "label"];
pub(super) const INTERFACE_NAMES: [&str; 3] = ["interface", "channel", "bus"];

/// Separators of columns that are tried, in this order.
pub(super) const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];

/// Parser of this format.
pub struct CanTrainAndTest {
    columns: Columns,
    separator: u8,
    /// True after the first line, which may be a header.
    begun: bool,
}

impl Default for CanTrainAndTest {
    fn default() -> Self {
        Self { columns: Columns::Standard, separator: SEPARATORS[0], begun: false }
    }
}

enum Columns {
    /// `timestamp,arbitration_id,data_field,attack`, the order in nearly every file.
    Standard,
    Located(Located),
    /// The header lacks a required column: no row can be read.
    Lacking,
}

#[derive(Clone, Copy)]
struct Located {
    count: usize,
    timestamp: usize,
    id: usize,
    data: usize,
    label: Option<usize>,
    interface: Option<usize>,
}

const STANDARD: Located = Located { count: 4, timestamp: 0, id: 1, data: 2, label: Some(3), interface: None };

impl LineFormat for CanTrainAndTest {
    const LINES_STAND_ALONE: bool = true;

    fn is_own_header(line: &[u8]) -> bool {
        matches!(header_of(line), Some((_, Columns::Standard)))
    }

    #[inline]
    fn parse_line(&mut self, line: &[u8]) -> Row {
        match (&self.columns, parse_standard(line)) {
            (Columns::Standard, Some(frame)) => {
                self.begun = true;
                Row::Frame(frame, FrameKind::Data)
            }
            _ => self.parse_unusual(line),
        }
    }

    #[inline]
    fn interface<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        match &self.columns {
            Columns::Located(Located { interface: Some(column), .. }) => {
                Fields::split(line, self.separator).get().get(*column).copied().filter(|name| !name.is_empty())
            }
            _ => None,
        }
    }

    fn has_labels(&self) -> bool {
        match &self.columns {
            Columns::Standard => true,
            Columns::Located(located) => located.label.is_some(),
            Columns::Lacking => false,
        }
    }
}

/// Fast path for a row exactly as the collection writes it; `None` for any other row.
#[inline]
fn parse_standard(line: &[u8]) -> Option<Frame> {
    let (timestamp, rest) = fields::leading_decimal(line)?;
    let (can_id, rest) = fields::leading_hex(rest.strip_prefix(b",")?)?;
    let [b',', digits @ .., b',', label] = rest else { return None };
    let attack = match label {
        b'0' => false,
        b'1' => true,
        _ => return None,
    };
    if can_id > fields::MAX_CAN_ID {
        return None;
    }
    let (payload, payload_length) = fields::packed_payload(digits, CLASSIC_BYTES).ok()?;
    Some(Frame { timestamp, can_id, payload, payload_length, attack })
}

impl CanTrainAndTest {
    /// Slow path: the first line, rows with another column order, blanks or quotes, and invalid rows.
    #[cold]
    fn parse_unusual(&mut self, line: &[u8]) -> Row {
        if !std::mem::replace(&mut self.begun, true) {
            if let Some((separator, columns)) = header_of(line) {
                (self.separator, self.columns) = (separator, columns);
                return match self.columns {
                    Columns::Lacking => Row::Rejected(RejectReason::HeaderLacksColumn),
                    _ => Row::Skipped,
                };
            }
            let is_row = |separator: &u8| Fields::split(line, *separator).count == STANDARD.count;
            self.separator = SEPARATORS.into_iter().find(is_row).unwrap_or(self.separator);
        }
        let fields = Fields::split(line, self.separator);
        let located = match &self.columns {
            Columns::Standard => &STANDARD,
            Columns::Located(located) => located,
            Columns::Lacking => return Row::Rejected(RejectReason::HeaderLacksColumn),
        };
        match parse_located(&fields, located, self.separator) {
            Ok(frame) => Row::Frame(frame, FrameKind::Data),
            Err(reason) => Row::Rejected(fields::diagnose(line, reason)),
        }
    }
}

/// The separator and the columns of a header; `None` if the line names none of the required columns.
fn header_of(line: &[u8]) -> Option<(u8, Columns)> {
    let found = SEPARATORS.map(|separator| header(&Fields::split(line, separator)).map(|columns| (separator, columns)));
    // A single name is a header with every separator.
    let lacks_none =
        |found: &&Option<(u8, Columns)>| matches!(found, Some((_, Columns::Standard | Columns::Located(_))));
    let best = found.iter().position(|found| lacks_none(&found)).or(found.iter().position(Option::is_some))?;
    found.into_iter().nth(best)?
}

/// The columns of a header; `None` if the line names none of the required columns.
fn header(fields: &Fields) -> Option<Columns> {
    let names: Vec<String> = fields.get().iter().map(|name| String::from_utf8_lossy(name).to_lowercase()).collect();
    let find = |known: &[&str]| names.iter().position(|name| known.contains(&name.as_str()));
    let [timestamp, id, data, label, interface] =
        [&TIMESTAMP_NAMES[..], &ID_NAMES[..], &DATA_NAMES[..], &LABEL_NAMES[..], &INTERFACE_NAMES[..]].map(find);
    match (timestamp, id, data) {
        (Some(0), Some(1), Some(2)) if label == Some(3) && fields.count == 4 => Some(Columns::Standard),
        (Some(timestamp), Some(id), Some(data)) => {
            Some(Columns::Located(Located { count: fields.count, timestamp, id, data, label, interface }))
        }
        (None, None, None) => None,
        _ => Some(Columns::Lacking),
    }
}

/// The columns that a header lacks, for messages; `None` if it lacks none or the line is not a header.
pub(super) fn missing_columns(line: &[u8]) -> Option<String> {
    let (separator, Columns::Lacking) = header_of(line)? else { return None };
    let fields = Fields::split(line, separator);
    let is_there = |known: &&[&str]| {
        let is_known = |name: &&[u8]| known.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        fields.get().iter().any(is_known)
    };
    let needed: [&[&str]; 3] = [&TIMESTAMP_NAMES, &ID_NAMES, &DATA_NAMES];
    let missing = needed.into_iter().filter(|known| !is_there(known));
    let describe = |known: &[&str]| format!("{} (or {})", known[0], known[1..].join(", "));
    Some(missing.map(describe).collect::<Vec<_>>().join(" and "))
}

/// A notice for a header without a label column but with unknown columns, one of which may hold the labels; else `None`.
pub(super) fn lacking_label(line: &[u8]) -> Option<String> {
    let (separator, Columns::Located(Located { label: None, .. })) = header_of(line)? else { return None };
    let fields = Fields::split(line, separator);
    let names = fields.get().iter().map(|name| String::from_utf8_lossy(name).into_owned());
    let known = [&TIMESTAMP_NAMES[..], &ID_NAMES, &DATA_NAMES, &INTERFACE_NAMES].concat();
    let unknown: Vec<String> = names.filter(|name| !known.contains(&name.to_lowercase().as_str())).collect();
    (!unknown.is_empty()).then(|| {
        format!(
            "its header has no column {}, but has others ({}): all its frames count as attack-free; if one of these holds the \
             labels, rename it to {}",
            LABEL_NAMES.join(" or "),
            unknown.join(", "),
            LABEL_NAMES[0]
        )
    })
}

fn parse_located(fields: &Fields, located: &Located, separator: u8) -> Result<Frame, RejectReason> {
    if fields.count != located.count {
        return Err(RejectReason::FieldCount);
    }
    let fields = fields.get();
    let timestamp = dates::time_of_row(fields[located.timestamp], separator)?;
    let can_id = fields::can_id(fields[located.id])?;
    let (payload, payload_length) = payload(fields[located.data])?;
    let attack = located.label.map_or(Ok(false), |column| label(fields[column]))?;
    Ok(Frame { timestamp, can_id, payload, payload_length, attack })
}

fn payload(text: &[u8]) -> Result<fields::Payload, RejectReason> {
    let digits = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X")).unwrap_or(text);
    if digits.contains(&b' ') {
        return fields::listed_payload(fields::words(digits), 16, CLASSIC_BYTES);
    }
    fields::packed_payload(digits, CLASSIC_BYTES)
}

/// Parses a label: 0 or 1, also in the notations of other programs, or a word for it.
pub(super) fn label(text: &[u8]) -> Result<bool, RejectReason> {
    let is_one_of = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()));
    match flag(text) {
        Some(attack) => Ok(attack),
        None if is_one_of(&["normal", "benign", "attack-free"]) => Ok(false),
        None if is_one_of(&["attack", "anomaly", "malicious"]) => Ok(true),
        None => Err(RejectReason::BadLabel),
    }
}

/// Parses 0 or 1, also in the notations of other programs.
pub(super) fn flag(text: &[u8]) -> Option<bool> {
    match text {
        b"0" | b"0.0" => Some(false),
        b"1" | b"1.0" => Some(true),
        _ if text.eq_ignore_ascii_case(b"false") => Some(false),
        _ if text.eq_ignore_ascii_case(b"true") => Some(true),
        _ => None,
    }
}

/// The header for rows written by [`write_row`].
pub const HEADER: &str = "timestamp,arbitration_id,data_field,attack\n";

/// Appends a frame as a row of this format; reading the row returns the same frame.
pub fn write_row(frame: &Frame, rows: &mut Vec<u8>) {
    use std::io::Write;
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    // Writing to a vector cannot fail. `{:?}` prints the shortest text that parses to the same number.
    let _ = write!(rows, "{:?},{:03X},", frame.timestamp, frame.can_id);
    for byte in frame.payload.iter().take(usize::from(frame.payload_length)) {
        rows.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    rows.extend([b',', b'0' + u8::from(frame.attack), b'\n']);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::{frame, rows_of};
    use proptest::prelude::*;

    #[test]
    fn standard_rows_with_and_without_header() {
        let row = "1513920189.391211,12A,10F0707400001080,0";
        let expected = frame(1513920189.391211, 0x12A, &[0x10, 0xF0, 0x70, 0x74, 0, 0, 0x10, 0x80], false);
        assert_eq!(rows_of::<CanTrainAndTest>(&[row]), [Row::Frame(expected, FrameKind::Data)]);
        let with_header = rows_of::<CanTrainAndTest>(&["Timestamp,Arbitration_ID,Data_Field,Attack", row]);
        assert_eq!(with_header, [Row::Skipped, Row::Frame(expected, FrameKind::Data)]);
    }

    #[test]
    fn a_header_says_where_the_columns_are() {
        let rows = rows_of::<CanTrainAndTest>(&["attack,DATA,extra,Time,ID", "1,\"01 ff\",x, 5.0 ,0x1F334455"]);
        assert_eq!(rows[1], Row::Frame(frame(5.0, 0x1F33_4455, &[1, 255], true), FrameKind::Data));
        let unlabelled = rows_of::<CanTrainAndTest>(&["timestamp,id,data", "1,7FF,"]);
        assert_eq!(unlabelled[1], Row::Frame(frame(1.0, 0x7FF, &[], false), FrameKind::Data));
    }

    #[test]
    fn columns_may_be_separated_by_semicolons_and_tabs() {
        let expected = Row::Frame(frame(1.5, 0x12A, &[0x10, 0xF0], true), FrameKind::Data);
        for rows in [
            ["timestamp;arbitration_id;data_field;attack", "1.5;12A;10F0;1"],
            ["attack\tdata\ttime\tid", "1\t10F0\t1.5\t12A"],
            // As spreadsheets of some countries write numbers.
            ["timestamp;arbitration_id;data_field;attack", "1,5;12A;10 F0;1"],
            ["timestamp;id;data;attack;comment", "1,5;12A;10 F0;1;a,b"],
        ] {
            assert_eq!(rows_of::<CanTrainAndTest>(&rows), [Row::Skipped, expected], "{rows:?}");
        }
        for row in ["1.5;12A;10F0;1", "1,5;12A;10F0;1", "1.5\t12A\t10F0\t1"] {
            assert_eq!(rows_of::<CanTrainAndTest>(&[row, row]), [expected; 2], "{row}");
        }
        assert!(CanTrainAndTest::is_own_header(b"timestamp;arbitration_id;data_field;attack"));
        assert_eq!(
            missing_columns(b"timestamp;data_field;attack").unwrap(),
            missing_columns(b"timestamp,data_field").unwrap()
        );
    }

    #[test]
    fn a_column_may_name_the_interface() {
        let mut format = CanTrainAndTest::default();
        format.parse_line(b"time,bus,id,data");
        let row = b"1.5,2,12A,10F0";
        assert_eq!(format.parse_line(row), Row::Frame(frame(1.5, 0x12A, &[0x10, 0xF0], false), FrameKind::Data));
        assert_eq!((format.interface(row), format.interface(b"1.5,,12A,")), (Some(&b"2"[..]), None));
        assert_eq!(lacking_label(b"time,bus,id,data"), None);
    }

    #[test]
    fn a_header_without_an_id_reads_no_row() {
        let rows = rows_of::<CanTrainAndTest>(&["timestamp,data_field,attack", "1.0,00,0"]);
        assert_eq!(rows, [Row::Rejected(RejectReason::HeaderLacksColumn); 2]);
        let missing = |header: &str| missing_columns(header.as_bytes());
        assert_eq!(missing("timestamp,data_field,attack").unwrap(), "arbitration_id (or can_id, id, arbitration id)");
        assert_eq!(missing("Payload").unwrap().matches("(or ").count(), 2);
        assert_eq!(missing("1.0,123,00,0"), None);
        assert_eq!(missing("id,data,time"), None);
    }

    #[test]
    fn wrong_rows_name_their_reason() {
        for (row, reason) in [
            ("1,2,00,0,5,6,7", RejectReason::FieldCount),
            ("1.0,123,00", RejectReason::FieldCount),
            ("x,123,00,0", RejectReason::TimestampNotANumber),
            ("nan,123,00,0", RejectReason::TimestampNotFinite),
            ("-inf,123,00,0", RejectReason::TimestampNotFinite),
            ("1.0,12G,00,0", RejectReason::IdNotHex),
            ("1.0,,00,0", RejectReason::IdNotHex),
            ("1.0,20000000,00,0", RejectReason::IdTooLarge),
            ("1.0,123456789,00,0", RejectReason::IdTooLarge),
            ("1.0,123,0,0", RejectReason::OddDigits),
            ("1.0,123,0g,0", RejectReason::DataNotHex),
            ("1.0,123,001122334455667788,0", RejectReason::TooManyBytes),
            ("1.0,123,00,2", RejectReason::BadLabel),
            ("1.0,123,00,", RejectReason::BadLabel),
            ("1.0,1\x0023,00,0", RejectReason::NulByte),
        ] {
            assert_eq!(rows_of::<CanTrainAndTest>(&["1,1,,0", row])[1], Row::Rejected(reason), "{row:?}");
        }
        let mut format = CanTrainAndTest::default();
        assert_eq!(format.parse_line(b"1.0,123,\xFF\xFE,0"), Row::Rejected(RejectReason::InvalidUtf8));
    }

    proptest! {
        /// If the fast path reads a frame, the slow path reads the same frame.
        #[test]
        fn both_ways_agree(line in "[0-9]{1,12}\\.?[0-9]{0,9},[0-9a-fA-F]{1,9},([0-9A-Fa-f]{2}){0,9},[012]") {
            let careful = parse_located(&Fields::split(line.as_bytes(), b','), &STANDARD, b',').ok();
            let quick = parse_standard(line.as_bytes());
            prop_assert!(quick.is_none() || quick == careful, "{quick:?} {careful:?}");
        }
    }
}
