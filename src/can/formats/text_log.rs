//! The frames of a text log: lines through a [`LineFormat`], with everything counted.

use std::path::PathBuf;

use super::lines::{Line, Lines};
use super::{FrameSource, LineFormat, Row};
use crate::can::error::CanError;
use crate::can::frame::Frame;
use crate::can::report::{Place, ReadReport, RejectReason};

/// A log in a format of one row a line.
pub struct TextLog<F> {
    path: PathBuf,
    lines: Lines,
    format: F,
    /// Timestamp of the last frame; before the first, smaller than any.
    last_timestamp: f64,
}

impl<F: LineFormat> TextLog<F> {
    /// The frames of `lines`.
    pub fn new(lines: Lines, format: F) -> Self {
        Self { path: lines.input().path().to_path_buf(), lines, format, last_timestamp: f64::NEG_INFINITY }
    }
}

impl<F: LineFormat> FrameSource for TextLog<F> {
    fn read(&mut self, limit: usize, frames: &mut Vec<Frame>, report: &mut ReadReport) -> Result<(), CanError> {
        while frames.len() < limit {
            let Some(line) = self.lines.next_line()? else { break };
            let Line { number, bytes, too_long } = line;
            let row = match bytes {
                _ if too_long => Row::Rejected(RejectReason::LineTooLong),
                _ if bytes.first().is_none_or(u8::is_ascii_whitespace) && bytes.trim_ascii().is_empty() => continue,
                _ => self.format.parse_line(bytes),
            };
            match row {
                Row::Frame(frame, kind) => {
                    report.accept(&frame, kind);
                    if frame.timestamp < self.last_timestamp {
                        let step_seconds = self.last_timestamp - frame.timestamp;
                        report.backward(step_seconds, || Place::new(&self.path, number, bytes));
                    }
                    self.last_timestamp = frame.timestamp;
                    frames.push(frame);
                }
                Row::ErrorFrame => {
                    report.rows += 1;
                    report.error_frames += 1;
                }
                Row::Skipped => report.skipped_lines += 1,
                Row::Rejected(reason) => report.reject(reason, || Place::new(&self.path, number, bytes)),
            }
        }
        Ok(())
    }
}
