//! The frames of a text log: parses lines with a [`LineFormat`] and counts the results.

use std::path::PathBuf;
use std::time::Duration;

use super::intake::Intake;
use super::lines::{Line, Lines};
use super::options::ReadOptions;
use super::{FrameSource, LineFormat, Row};
use crate::error::CanError;
use crate::frame::Frame;
use crate::report::{Place, ReadReport, RejectReason};

/// A log in a format with one row per line.
pub struct TextLog<F> {
    path: PathBuf,
    lines: Lines,
    format: F,
    intake: Intake,
}

impl<F: LineFormat> TextLog<F> {
    /// A reader of the frames of `lines`.
    pub fn new(lines: Lines, mut format: F, options: &ReadOptions) -> Self {
        if options.needs_labels {
            format.require_labels();
        }
        Self { path: lines.input().path().to_path_buf(), lines, format, intake: Intake::new(options) }
    }
}

impl<F: LineFormat> TextLog<F> {
    /// The log's lines, for their count and read time.
    pub fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Takes timestamp and place of the first frame.
    pub fn take_first(&mut self) -> Option<(f64, Place)> {
        self.intake.take_first()
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
        let result = self.read_rows(limit, frames, report);
        self.intake.settle(report);
        result
    }
}

impl<F: LineFormat> TextLog<F> {
    fn read_rows(&mut self, limit: usize, frames: &mut Vec<Frame>, report: &mut ReadReport) -> Result<(), CanError> {
        while frames.len() < limit {
            let Some(line) = self.lines.next_line()? else { break };
            let Line { number, bytes, too_long } = line;
            let row = match bytes {
                _ if too_long => Row::Rejected(RejectReason::LineTooLong),
                _ if bytes.first().is_none_or(u8::is_ascii_whitespace) && bytes.trim_ascii().is_empty() => continue,
                _ => self.format.parse_line(bytes),
            };
            let place = || Place::new(&self.path, number, bytes);
            match row {
                Row::Frame(frame, kind) => {
                    let interface = self.format.interface(bytes);
                    // Not `extend`, which is slower for an option.
                    if let Some(frame) = self.intake.frame(frame, kind, interface, report, place) {
                        frames.push(frame);
                    }
                }
                Row::ErrorFrame => self.intake.error_frame(self.format.interface(bytes), report),
                Row::Skipped => report.skipped_lines += 1,
                Row::Rejected(reason) => report.reject(reason, place),
            }
        }
        Ok(())
    }
}
