//! The frames of a text log: parses lines with a [`LineFormat`] and counts the results.

use std::path::PathBuf;
use std::time::Duration;

use super::lines::{Line, Lines};
use super::{FrameSource, LineFormat, Row};
use crate::error::CanError;
use crate::frame::Frame;
use crate::report::{Place, ReadReport, RejectReason};

/// A log in a format with one row per line.
pub struct TextLog<F> {
    path: PathBuf,
    lines: Lines,
    format: F,
    /// Timestamp of the last frame; infinite before the first, so that the first takes the cold path, too.
    last_timestamp: f64,
    /// Timestamp and place of the first frame.
    first: Option<(f64, Place)>,
}

impl<F: LineFormat> TextLog<F> {
    /// A reader of the frames of `lines`.
    pub fn new(lines: Lines, format: F) -> Self {
        Self { path: lines.input().path().to_path_buf(), lines, format, last_timestamp: f64::INFINITY, first: None }
    }
}

impl<F: LineFormat> TextLog<F> {
    /// The log's lines, for their count and read time.
    pub fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Takes timestamp and place of the first frame.
    pub fn take_first(&mut self) -> Option<(f64, Place)> {
        self.first.take()
    }
}

impl<F: LineFormat> FrameSource for TextLog<F> {
    fn read_time(&self) -> Duration {
        self.lines.read_time()
    }

    fn has_labels(&self) -> bool {
        self.format.has_labels()
    }

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
                        let place = || Place::new(&self.path, number, bytes);
                        match self.last_timestamp.is_finite() {
                            true => report.backward(step_seconds, place),
                            false => self.first = Some((frame.timestamp, place())),
                        }
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
