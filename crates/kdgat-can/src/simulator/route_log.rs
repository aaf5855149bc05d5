//! Writes a drive through states as one log, frame by frame.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use kdgat_base::files;

use super::route::{RoutePlan, RouteRecord, simulate_route};
use crate::error::CanError;
use crate::formats::can_train_and_test;
use crate::frame::Frame;
use crate::whole_folder::{cannot_write, compressor};

/// Longest drive, in seconds: a week.
const LONGEST_SECONDS: f64 = 7.0 * 86_400.0;
/// Shortest mean pause between two attacks, in seconds.
const SHORTEST_PAUSE_SECONDS: f64 = 3.0;
/// Frames between two looks at whether to stop.
const FRAMES_BETWEEN_LOOKS: u64 = 10_000;

/// Format of a log, by the ending of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Notation {
    /// Lines of `candump -L`, without labels; else rows of can-train-and-test.
    is_candump: bool,
    is_compressed: bool,
}

impl Notation {
    fn of(path: &Path) -> Result<Self, CanError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let (stem, is_compressed) = name.strip_suffix(".gz").map_or((name.as_str(), false), |stem| (stem, true));
        match stem.rsplit_once('.').map(|(_, extension)| extension) {
            Some("log") => Ok(Self { is_candump: true, is_compressed }),
            Some("csv") => Ok(Self { is_candump: false, is_compressed }),
            _ => Err(CanError::InvalidOption {
                option: "the log's name",
                value: path.display().to_string(),
                expected: "a name that ends in .log (candump -L), .csv (with labels), .log.gz or .csv.gz",
            }),
        }
    }

    fn append(self, frame: &Frame, text: &mut Vec<u8>) {
        if !self.is_candump {
            return can_train_and_test::write_row(frame, text);
        }
        // Writing to a vector cannot fail.
        let _ = write!(text, "({:.6}) can0 {:03X}#", frame.timestamp, frame.can_id);
        for byte in frame.payload.iter().take(usize::from(frame.payload_length)) {
            let _ = write!(text, "{byte:02X}");
        }
        text.push(b'\n');
    }
}

impl RoutePlan {
    fn validate(&self) -> Result<(), CanError> {
        let invalid =
            |option, value: f64, expected| Err(CanError::InvalidOption { option, value: value.to_string(), expected });
        if !(self.seconds > 0.0 && self.seconds <= LONGEST_SECONDS) {
            return invalid("seconds", self.seconds, "more than 0 seconds, at most a week");
        }
        let every = self.attack_every_seconds;
        if !(SHORTEST_PAUSE_SECONDS..=LONGEST_SECONDS).contains(&every) {
            return invalid("attack_every_seconds", every, "3 seconds to a week");
        }
        if self.states.is_empty() {
            let value = "none".to_owned();
            return Err(CanError::InvalidOption { option: "states", value, expected: "at least one state" });
        }
        Ok(())
    }
}

/// Simulates a drive into a new log: lines of `candump -L` for a name that ends in `.log`, rows with labels for `.csv`, compressed for `.gz`. The
/// file appears when it is complete. Memory does not grow with the drive. Returns `None`, and leaves no file, once `stop` is true.
///
/// # Errors
/// When the plan or the name is invalid, the log exists, or the disk is full or read-only.
pub fn write_route(plan: &RoutePlan, path: &Path, stop: impl Fn() -> bool) -> Result<Option<RouteRecord>, CanError> {
    plan.validate()?;
    let notation = Notation::of(path)?;
    if path.exists() && !files::is_stream(path).unwrap_or(false) {
        return Err(CanError::TargetExists { path: path.to_owned(), found: "exists already".to_owned() });
    }
    let mut record = None;
    let written = files::write_atomically_with(path, |file| {
        let output = BufWriter::with_capacity(1 << 18, file);
        record = Some(if notation.is_compressed {
            let mut encoder = compressor(output);
            let record = write_frames(plan, notation, &mut encoder, &stop)?;
            encoder.finish()?.flush()?;
            record
        } else {
            let mut output: BufWriter<&mut File> = output;
            let record = write_frames(plan, notation, &mut output, &stop)?;
            output.flush()?;
            record
        });
        Ok(())
    });
    match written {
        Err(error) if error.kind() == io::ErrorKind::Interrupted && stop() => Ok(None),
        written => written.map(|()| record).map_err(cannot_write(path)),
    }
}

fn write_frames(
    plan: &RoutePlan,
    notation: Notation,
    output: &mut impl Write,
    stop: &impl Fn() -> bool,
) -> io::Result<RouteRecord> {
    if !notation.is_candump {
        output.write_all(can_train_and_test::HEADER.as_bytes())?;
    }
    let (mut text, mut frames) = (Vec::new(), 0_u64);
    simulate_route(plan, |frame| {
        frames += 1;
        if frames.is_multiple_of(FRAMES_BETWEEN_LOOKS) && stop() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        text.clear();
        notation.append(frame, &mut text);
        output.write_all(&text)
    })
}
