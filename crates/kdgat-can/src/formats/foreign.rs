//! Logs of other programs that are not read: each by a sign in its first bytes or rows, with the clause of help that names the way out.

use super::car_hacking::CarHacking;
use super::{Format, LineFormat, Row, can_train_and_test, candump_ascii, fields};
use crate::report::{Place, ReadReport, RejectReason};

/// Converter of python-can, for messages.
const CONVERTER: &str = "`can_logconvert` of python-can converts it (can_logconvert FILE FILE.log)";

/// First bytes of files that are no text logs of this program, and what they are.
const MAGIC: [(&[u8], &str); 9] = [
    (b"LOGG", "a BLF file of Vector"),
    (b";$FILEVERSION", "a TRC file of PEAK"),
    (b"MDF ", "an MDF file of ASAM"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x0A\x0D\x0D\x0A", "a pcapng capture"),
    (b"\xD4\xC3\xB2\xA1", "a pcap capture"),
    (b"\xFF\xFE", "UTF-16 text"),
    (b"\xFE\xFF", "UTF-16 text"),
    (b"PK\x03\x04", "a zip archive"),
];

/// A clause on a file that begins with these bytes, if no format reads it and its kind is known: `which is …: …`.
pub fn of_first_bytes(head: &[u8]) -> Option<String> {
    let known = MAGIC.iter().find(|(magic, _)| head.starts_with(magic));
    let (_, kind) = known.or_else(|| is_old_trace(head).then_some(&MAGIC[1])).or_else(|| {
        // UTF-16 without a mark: every other byte of ASCII text is 0.
        let is_wide = |pair: &[u8]| matches!(pair, [0, text] | [text, 0] if *text != 0);
        let pairs = head.chunks_exact(2).take(16);
        (pairs.len() == 16 && pairs.clone().all(is_wide)).then_some(&MAGIC[6])
    })?;
    let advice = match *kind {
        "UTF-16 text" => "convert it with `iconv -f UTF-16 -t UTF-8`, or save it as UTF-8",
        "a zip archive" => "unpack it; single files may be compressed with gzip, zstd or xz",
        "a pcapng capture" | "a pcap capture" => "export it as a log, with `tshark` or as CSV",
        _ => CONVERTER,
    };
    Some(format!("which is {kind}: {advice}"))
}

/// True for a TRC file of PEAK's first version: comments, of which one rules off the table's head.
fn is_old_trace(head: &[u8]) -> bool {
    head.starts_with(b";") && head.split(|byte| *byte == b'\n').any(|line| line.starts_with(b";--"))
}

/// A clause on a log whose first line no format reads: `which …`.
pub fn of_first_line(line: &[u8]) -> Option<String> {
    if candump_ascii::lacks_times(line) {
        return Some(
            "which is candump's output without times: record with `candump -L can0` or `candump -ta can0`".to_owned(),
        );
    }
    if is_resaved(line) {
        return Some(format!("which {RESAVED}"));
    }
    if line.starts_with(b"Timestamp:") && line.windows(4).any(|part| part == b" DL:") {
        return Some("which is python-can's text: record with `can_logger -f FILE.log`".to_owned());
    }
    let columns = can_train_and_test::missing_columns(line)?;
    Some(format!("which is a header of {} that lacks a column {columns}", Format::CanTrainAndTest))
}

/// Clause on a table with a column for each byte of a frame.
const RESAVED: &str = "looks like Car-Hacking data saved again by pandas, with a header or an index: use the published file, or write it with \
                       header=None, index=False";

/// True for the first line of a table with a column for each byte of a frame: its header, or a row of Car-Hacking behind an index.
fn is_resaved(line: &[u8]) -> bool {
    let fields = fields::Fields::split(line, b',');
    let (index, row) = line.split_at(line.iter().position(|byte| *byte == b',').unwrap_or(0));
    if !index.is_empty() && index.iter().all(u8::is_ascii_digit) {
        let mut format = CarHacking::default();
        let is_frame = matches!(format.parse_line(&row[1..]), Row::Frame(..));
        if is_frame && format.has_labels() {
            return true;
        }
    }
    let names: Vec<String> =
        fields.get().iter().map(|name| String::from_utf8_lossy(name).to_ascii_lowercase()).collect();
    let is_byte = |name: &&String| {
        let number = name.trim_start_matches(|letter: char| letter.is_ascii_alphabetic() || "_ [(".contains(letter));
        let number = number.trim_end_matches([']', ')']);
        number.len() < name.len() && matches!(number.parse::<u8>(), Ok(0..=8))
    };
    // Columns without names have their numbers.
    let numbers = (0..12).map(|number| number.to_string());
    let is_numbered = names
        .iter()
        .skip(usize::from(names.first().is_some_and(String::is_empty)))
        .take(12)
        .eq(&numbers.collect::<Vec<_>>());
    names.iter().filter(is_byte).count() >= 8 || is_numbered
}

/// A clause on a log of which too many rows are rejected: `; …`, or an empty text.
pub fn of_rejected(report: &ReadReport, format: Option<Format>) -> String {
    let rejected = |reason| report.rejected.get(&reason);
    let count = |reason| rejected(reason).map_or(0, |found| found.count);
    let is_most = |reason| 2 * count(reason) > report.rejected_rows();
    if is_most(RejectReason::IdNotHex) && format == Some(Format::Asc) {
        return "; if it has names of messages in place of IDs (symbolic), export it with numeric IDs".to_owned();
    }
    if is_most(RejectReason::IdTooLarge) || is_most(RejectReason::IdNotHex) {
        let quoted = rejected(RejectReason::IdTooLarge).into_iter().chain(rejected(RejectReason::IdNotHex));
        let ids = quoted.flat_map(|found| &found.first).filter(|place| !place.text.contains("0x"));
        if ids.count() > 0 && count(RejectReason::IdTooLarge) > 0 {
            return "; if its IDs are decimal, convert them: kdgat reads IDs as hexadecimal".to_owned();
        }
    }
    let is_header = |place: &Place| place.line == 1 && is_resaved(place.text.as_bytes());
    if report.rejected.values().flat_map(|found| &found.first).any(is_header) {
        return format!("; it {RESAVED}");
    }
    let is_table = matches!(format, Some(Format::CanTrainAndTest | Format::PythonCan | Format::Challenge2020));
    if is_most(RejectReason::DataNotHex) && is_table {
        return "; if its data are decimal, convert them: kdgat reads hexadecimal data, and base64 with python-can's columns (dlc, extended, \
                remote, error)"
            .to_owned();
    }
    if is_most(RejectReason::TimestampNotANumber) && is_table {
        return "; times are seconds, or dates as 2023-11-14 22:13:20.5".to_owned();
    }
    if is_most(RejectReason::MissingLabel) {
        return "; add the labels, or move it to a folder train_*attack_free* if it has no attack".to_owned();
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::report::Place;

    #[test]
    fn files_of_other_programs_are_known_by_their_first_bytes() {
        let wide: Vec<u8> = "timestamp,arbitration_id".bytes().flat_map(|byte| [byte, 0]).collect();
        for (head, said) in [
            (&b"LOGG\x90\0\0\0"[..], "a BLF file of Vector: `can_logconvert`"),
            (b";$FILEVERSION=1.1\n", "a TRC file of PEAK: `can_logconvert`"),
            (b";   PCAN-View\n;---+-- ---\n     1)      1841 0001 8 00\n", "a TRC file of PEAK: `can_logconvert`"),
            (b"\xFF\xFEt\0i\0", "UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`"),
            (&wide, "UTF-16 text"),
            (b"PK\x03\x04", "a zip archive: unpack it"),
        ] {
            let clause = of_first_bytes(head).unwrap();
            assert!(clause.contains(said), "{clause}");
        }
        assert_eq!(of_first_bytes(b"timestamp,arbitration_id,data_field,attack"), None);
        assert_eq!(of_first_bytes(&[0; 100]), None);
        assert_eq!(of_first_bytes(b";timestamp;arbitration_id\n0;1.5;123\n"), None);
    }

    #[test]
    fn tables_with_a_column_for_each_byte_are_known() {
        for line in [
            "Timestamp,CAN_ID,DLC,DATA0,DATA1,DATA2,DATA3,DATA4,DATA5,DATA6,DATA7,Label",
            ",Timestamp,CAN ID,DLC,DATA[0],DATA[1],DATA[2],DATA[3],DATA[4],DATA[5],DATA[6],DATA[7],Flag",
            "0,1,2,3,4,5,6,7,8,9,10,11",
            ",0,1,2,3,4,5,6,7,8,9,10,11",
            "0,1478198376.389427,0316,8,05,21,68,09,21,21,00,6f,R",
        ] {
            assert!(of_first_line(line.as_bytes()).unwrap().contains("saved again by pandas"), "{line}");
        }
        for line in ["hello", "1.0,123,00,0", "1478198376.389427,0316,8,05,21,68,09,21,21,00,6f,R"] {
            assert_eq!(of_first_line(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn the_text_of_python_can_is_known() {
        let line = b"Timestamp: 1700000000.001982        ID:     04b1    S Rx                DL:  8    0e ee 00 00 00 00 00 00";
        assert!(of_first_line(line).unwrap().contains("`can_logger -f FILE.log`"));
    }

    #[test]
    fn rejected_ids_say_what_they_may_be() {
        let report = |reason| {
            let mut report = ReadReport::default();
            report.reject(reason, || Place::new(Path::new("a"), 1, b"1.0,419361024,00,0"));
            report
        };
        assert!(of_rejected(&report(RejectReason::IdNotHex), Some(Format::Asc)).contains("symbolic"));
        assert!(of_rejected(&report(RejectReason::IdTooLarge), Some(Format::CanTrainAndTest)).contains("decimal"));
        let csv = Some(Format::CanTrainAndTest);
        assert!(of_rejected(&report(RejectReason::DataNotHex), csv).contains("base64 with python-can's columns"));
        assert!(
            of_rejected(&report(RejectReason::TimestampNotANumber), csv).contains("dates as 2023-11-14 22:13:20.5")
        );
        let mut resaved = report(RejectReason::LengthMismatch);
        let header = b"Timestamp,ID,DLC,DATA[0],DATA[1],DATA[2],DATA[3],DATA[4],DATA[5],DATA[6],DATA[7],Flag";
        resaved.reject(RejectReason::TimestampNotANumber, || Place::new(Path::new("a"), 1, header));
        assert!(of_rejected(&resaved, Some(Format::CarHacking)).contains("saved again by pandas"));
        assert!(of_rejected(&report(RejectReason::MissingLabel), Some(Format::CarHacking)).contains("attack_free"));
        assert_eq!(of_rejected(&report(RejectReason::OddDigits), Some(Format::Candump)), "");
    }
}
