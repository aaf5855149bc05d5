//! Errors for a log of which nothing could be read.

use std::path::Path;

use super::{Format, can_train_and_test, candump_ascii, foreign};
use crate::error::CanError;
use crate::report::{Place, ReadReport, RejectReason, Rejections};

/// Characters quoted from a line.
const TEXT_KEPT: usize = 80;

/// Names of the formats that this program reads.
pub fn known_formats() -> String {
    let is_read = |format: &Format| *format != Format::Parquet || cfg!(feature = "parquet");
    Format::ALL.into_iter().filter(is_read).map(Format::name).collect::<Vec<_>>().join(", ")
}

/// The error for a log that begins with the bytes `head` and with `first_line`, and is in no known format.
pub fn unknown_format(path: &Path, head: &[u8], first_line: &[u8]) -> CanError {
    let quoted = &first_line[..first_line.len().min(4 * TEXT_KEPT)];
    let reason = foreign::of_first_bytes(head).or_else(|| foreign::of_first_line(first_line));
    CanError::UnknownFormat {
        path: path.to_path_buf(),
        first_line: String::from_utf8_lossy(quoted).chars().take(TEXT_KEPT).collect(),
        reason: reason.map_or(String::new(), |reason| format!(", {reason}")),
        known: known_formats(),
    }
}

/// The error for a log that was read to its end, if it has rows and all of them were rejected. `format` is the format it was read
/// in; `forced` is true if the user set it.
pub fn nothing_read(path: &Path, report: &ReadReport, format: Option<Format>, forced: bool) -> Option<CanError> {
    if report.rows == 0 || report.rejected_rows() < report.rows {
        return None;
    }
    let (_, most) = report.rejected.iter().max_by_key(|(_, rejections)| rejections.count)?;
    let reasons: Vec<String> =
        report.rejected.iter().map(|(reason, found)| format!("{} {reason}", found.count)).collect();
    let header = report.rejected.get(&RejectReason::HeaderLacksColumn).and_then(|found| found.first.first());
    // A quoted header may be cut, so its last columns are unknown.
    let header = header.filter(|header| header.text.chars().count() < TEXT_KEPT);
    let missing = header.and_then(|header| can_train_and_test::missing_columns(header.text.as_bytes()));
    let advice = match missing {
        Some(columns) => format!("the header needs a column {columns}"),
        None if place_of(most).is_some_and(|place| candump_ascii::lacks_times(place.text.as_bytes())) => {
            "candump wrote these rows without times: record with `candump -L can0` or `candump -ta can0`".to_owned()
        }
        None if forced => {
            let known = known_formats();
            format!("drop --format to detect the format, or name the right one; known formats: {known}")
        }
        None => format!("repair the log, or force its format with --format; known formats: {}", known_formats()),
    };
    let advice = advice + &foreign::of_rejected(report, format);
    let format = format.map_or("a known format", Format::name);
    let place = place_of(most);
    let first = place.map_or(String::new(), |place| format!(", the first at line {}: {:?}", place.line, place.text));
    let problem = format!("{} rows could be read as {format}: {}{first}", report.rows, reasons.join(", "));
    Some(CanError::NothingRead { path: path.to_path_buf(), problem, advice })
}

/// The place of the first of these rows.
fn place_of(rejections: &Rejections) -> Option<&Place> {
    rejections.first.first()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_told_what_it_lacks() {
        let error = unknown_format(Path::new("a.csv"), b"", b"timestamp,arbitration_id,foo").to_string();
        assert!(error.contains("lacks a column data_field (or data, payload)"), "{error}");
        let error = unknown_format(Path::new("a.csv"), b"hello", b"hello").to_string();
        assert!(!error.contains("lacks") && error.contains("\"hello\""), "{error}");
        assert_eq!(error.contains("parquet"), cfg!(feature = "parquet"), "{error}");
    }

    #[test]
    fn candump_without_times_is_told_the_option_that_writes_them() {
        let row = b"  vcan0  044   [5]  2A 36 6C 2B BA";
        let error = unknown_format(Path::new("a.log"), row, row).to_string();
        assert!(error.contains("without times: record with `candump -L can0`"), "{error}");
        let mut report = ReadReport::default();
        report.reject(RejectReason::NotARow, || Place::new(Path::new("a.log"), 1, row));
        let error = nothing_read(Path::new("a.log"), &report, Some(Format::Candump), true).unwrap().to_string();
        assert!(error.contains("candump -L"), "{error}");
    }

    #[test]
    fn only_a_log_without_any_row_that_was_read_is_an_error() {
        let path = Path::new("a.log");
        let mut report = ReadReport::default();
        assert!(nothing_read(path, &report, None, false).is_none(), "a header alone");
        report.reject(RejectReason::NotARow, || Place::new(path, 1, b"(1.0) can0 111#00"));
        let error = nothing_read(path, &report, Some(Format::CandumpAscii), true).unwrap().to_string();
        assert!(error.contains("candump-ascii") && error.contains("drop --format"), "{error}");
        assert!(error.contains("the first at line 1: \"(1.0) can0 111#00\""), "{error}");
        report.error_frames += 1;
        report.rows += 1;
        assert!(nothing_read(path, &report, Some(Format::Candump), false).is_none(), "an error frame was read");
    }
}
