//! Reads a log format that kdgat does not know: PEAK's TRC 1.1, as PCAN-View writes it.
//!
//!     cargo run --release --example log_format -- drive.trc drive.log
//!
//! A text format is one function, [`LineFormat::parse_line`]. kdgat adds the rest: decompression, lines of any length, counts of
//! what could not be read and why. The frames are written as `candump -L` lines, which every command of kdgat reads.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use kdgat::can::formats::{LineFormat, Row, open_text_log};
use kdgat::can::frame::PAYLOAD_BYTES;
use kdgat::can::report::FrameKind;
use kdgat::can::{Frame, ReadReport, RejectReason};

/// One line is `number) milliseconds direction id length bytes…`, for example `1)  1841.1  Rx  02C1  3  A0 00 FF`; lines that
/// begin with `;` are comments.
#[derive(Default)]
pub struct Trc;

impl LineFormat for Trc {
    // No line depends on another.
    const LINES_STAND_ALONE: bool = true;

    fn parse_line(&mut self, line: &[u8]) -> Row {
        if line.starts_with(b";") {
            return Row::Skipped;
        }
        parse(line).unwrap_or_else(Row::Rejected)
    }
}

fn parse(line: &[u8]) -> Result<Row, RejectReason> {
    let text = std::str::from_utf8(line).map_err(|_| RejectReason::InvalidUtf8)?;
    let mut words = text.split_ascii_whitespace();
    let (Some(number), Some(milliseconds), Some(direction)) = (words.next(), words.next(), words.next()) else {
        return Err(RejectReason::FieldCount);
    };
    if !number.ends_with(')') {
        return Err(RejectReason::NotARow);
    }
    let milliseconds: f64 = milliseconds.parse().map_err(|_| RejectReason::TimestampNotANumber)?;
    match direction {
        "Rx" | "Tx" => {}
        "Error" => return Ok(Row::ErrorFrame),
        // Warnings and other events of the adapter.
        _ => return Ok(Row::Skipped),
    }
    let (Some(id), Some(length)) = (words.next(), words.next()) else { return Err(RejectReason::FieldCount) };
    let can_id = u32::from_str_radix(id, 16).map_err(|_| RejectReason::IdNotHex)?;
    let payload_length: u8 = length.parse().map_err(|_| RejectReason::LengthMismatch)?;
    let mut payload = [0; PAYLOAD_BYTES];
    let mut count = 0;
    let mut kind = FrameKind::Data;
    for word in words {
        if word == "RTR" {
            kind = FrameKind::Remote;
            break;
        }
        let byte = u8::from_str_radix(word, 16).map_err(|_| RejectReason::DataNotHex)?;
        *payload.get_mut(count).ok_or(RejectReason::TooManyBytes)? = byte;
        count += 1;
    }
    // A remote frame states the length that it asks for, and has no data.
    if kind == FrameKind::Data && count != usize::from(payload_length) {
        return Err(RejectReason::LengthMismatch);
    }
    let frame = Frame { timestamp: milliseconds / 1000.0, can_id, payload, payload_length: count as u8, attack: false };
    Ok(Row::Frame(frame, kind))
}

/// Converts the TRC log at `from` into a candump log at `to`; returns the counts of its rows.
pub fn convert(from: &Path, to: &Path) -> Result<ReadReport, Box<dyn Error>> {
    let mut source = open_text_log::<Trc>(from)?;
    let mut target = BufWriter::new(File::create(to)?);
    let (mut frames, mut report) = (Vec::new(), ReadReport::default());
    loop {
        frames.clear();
        source.read(4096, &mut frames, &mut report)?;
        if frames.is_empty() {
            break;
        }
        for frame in &frames {
            let digits = if frame.can_id > 0x7FF { 8 } else { 3 };
            let data: String =
                frame.payload[..usize::from(frame.payload_length)].iter().map(|byte| format!("{byte:02X}")).collect();
            writeln!(target, "({:.6}) can0 {:0digits$X}#{data}", frame.timestamp, frame.can_id)?;
        }
    }
    target.flush()?;
    Ok(report)
}

#[allow(dead_code)] // The tests call `convert`.
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [from, to] = arguments.as_slice() else {
        return Err("give two files: the TRC log to read and the candump log to write".into());
    };
    let report = convert(Path::new(from), Path::new(to))?;
    println!("{} rows, {} of them not readable", report.rows, report.rejected_rows());
    Ok(())
}
