//! Format detection from a log's first lines: the same rule for files and streams.

use super::{Format, LineFormat, NoText, Row};
use super::{asc, can_train_and_test, candump, candump_ascii, car_hacking, challenge_2020, python_can};

/// Result of parsing a log's first lines in one format.
struct Reading {
    /// Lines not rejected.
    read: usize,
    /// True if a frame or an error frame is among them.
    has_frame: bool,
    /// True if the first line is a header of exactly this format.
    own_header: bool,
}

/// The format of a log that begins with these lines: the first format whose own header comes first, else the one that reads most
/// lines, the first one on a tie. `None` if no format reads any.
pub fn best_format(lines: &[&[u8]]) -> Option<Format> {
    let readings = Format::TEXT.map(|format| (format, reading_in(format, lines)));
    let own = readings.iter().find(|(_, reading)| reading.own_header);
    // `min_by_key` takes the first of equals.
    let best = || readings.iter().filter(|(_, found)| found.read > 0).min_by_key(|(_, found)| usize::MAX - found.read);
    own.or_else(best).map(|&(format, _)| format)
}

/// The format, if no more lines are needed to decide: a frame or a format's own header is among them.
pub fn settled_format(lines: &[&[u8]]) -> Option<Format> {
    let readings = Format::TEXT.map(|format| (format, reading_in(format, lines)));
    let own = readings.iter().find(|(_, reading)| reading.own_header);
    let best = || readings.iter().filter(|(_, found)| found.has_frame).min_by_key(|(_, found)| usize::MAX - found.read);
    own.or_else(best).map(|&(format, _)| format)
}

fn reading_in(format: Format, lines: &[&[u8]]) -> Reading {
    with_line_format!(format, reading(lines))
}

fn reading<F: LineFormat>(lines: &[&[u8]]) -> Reading {
    let mut format = F::default();
    let mut lines = lines.iter().filter(|line| !line.trim_ascii().is_empty()).peekable();
    let own_header = lines.peek().is_some_and(|line| F::is_own_header(line));
    let rows: Vec<Row> = lines.map(|line| format.parse_line(line)).collect();
    let read = rows.iter().filter(|row| !matches!(row, Row::Rejected(_))).count();
    Reading { read, has_frame: rows.iter().any(|row| matches!(row, Row::Frame(..) | Row::ErrorFrame)), own_header }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_a_format_weighs_more_than_rows_that_are_wrong() {
        let header: &[u8] = b"Timestamp,Arbitration_ID,DLC,Data,Class,SubClass";
        // The length is wrong, but can-train-and-test does not check it.
        let lines = [header, b"1.0,153,7,20 A1 10 FF 00 FF 50 1F,Attack,Flooding"];
        assert_eq!(best_format(&lines), Some(Format::Challenge2020));
        assert_eq!(settled_format(&lines), Some(Format::Challenge2020));
        assert_eq!(settled_format(&lines[..1]), Some(Format::Challenge2020));
        let other: &[u8] = b"timestamp,id,data,attack,comment";
        assert_eq!((settled_format(&[other]), best_format(&[other])), (None, Some(Format::CanTrainAndTest)));
        assert_eq!((best_format(&[b"", b"no log"]), best_format(&[])), (None, None));
    }
}
