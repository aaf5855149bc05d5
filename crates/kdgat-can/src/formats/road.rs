//! Labels of the ROAD collection: intervals of injection in `capture_metadata.json`, beside its candump logs.
//!
//! The file maps a log's name (without `.log`) to, among others, `injection_interval` (seconds from the log's first
//! frame), `injection_id` (hexadecimal, `XXX` for any) and `injection_data_str` (hexadecimal digits, `X` for any). A
//! frame within the interval whose ID and payload match is an attack frame. A log without an interval has none.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::fields;
use crate::error::CanError;
use crate::frame::{Frame, PAYLOAD_BYTES};

/// Name of ROAD's label file.
pub const METADATA_NAME: &str = "capture_metadata.json";

/// Rule that labels the frames of one log.
#[derive(Debug, Clone, PartialEq)]
pub struct InjectionLabels {
    from_seconds: f64,
    to_seconds: f64,
    /// ID of attack frames; `None` for any ID.
    can_id: Option<u32>,
    /// Payload bits that are compared with `values`.
    mask: [u8; PAYLOAD_BYTES],
    values: [u8; PAYLOAD_BYTES],
    /// Timestamp of the log's first frame, once it has been read.
    first_timestamp: Option<f64>,
}

#[derive(Deserialize)]
struct Capture {
    injection_interval: Option<(f64, f64)>,
    injection_id: Option<String>,
    injection_data_str: Option<String>,
}

/// BLAKE3 digest of the label file beside `log`, `None` without one: labels can change while the log does not.
///
/// # Errors
/// When the file exists but cannot be read.
pub fn metadata_digest(log: &Path) -> Result<Option<String>, CanError> {
    Ok(read_metadata(log)?.map(|(_, text)| blake3::hash(&text).to_hex().to_string()))
}

/// Path and content of the label file beside `log`.
fn read_metadata(log: &Path) -> Result<Option<(PathBuf, Vec<u8>)>, CanError> {
    let path = log.with_file_name(METADATA_NAME);
    match fs::read(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CanError::BadMetadata { path, problem: format!("cannot be read ({error})") }),
    }
}

impl InjectionLabels {
    /// The labels of `log`, `None` without a label file or without an injection; and a notice if the file has no entry for the log.
    ///
    /// # Errors
    /// When the label file cannot be read or parsed: frames would be labelled wrongly.
    pub fn of(log: &Path) -> Result<(Option<InjectionLabels>, Option<String>), CanError> {
        let Some((path, text)) = read_metadata(log)? else { return Ok((None, None)) };
        let bad = |problem: String| CanError::BadMetadata { path: path.clone(), problem };
        let mut captures: HashMap<String, Capture> =
            serde_json::from_slice(&text).map_err(|error| bad(format!("is not the expected JSON ({error})")))?;
        let name = log.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split(".log").next().unwrap_or_default();
        let Some(capture) = captures.remove(name) else {
            let notice =
                format!("{} has no entry {name:?}: all frames of this log count as attack-free", path.display());
            return Ok((None, Some(notice)));
        };
        let labels = InjectionLabels::new(&capture).map_err(|problem| bad(format!("{name}: {problem}")))?;
        Ok((labels, None))
    }

    fn new(capture: &Capture) -> Result<Option<InjectionLabels>, String> {
        let Some((from_seconds, to_seconds)) = capture.injection_interval else { return Ok(None) };
        if from_seconds > to_seconds {
            return Err(format!("injection_interval ends before it begins: [{from_seconds}, {to_seconds}]"));
        }
        let any = |text: &str| text.bytes().all(|digit| digit.eq_ignore_ascii_case(&b'X'));
        let can_id = match capture.injection_id.as_deref() {
            None => None,
            Some(text) if any(text) => None,
            Some(text) => {
                let id = fields::can_id(text.trim().as_bytes());
                Some(id.map_err(|reason| format!("injection_id {text:?}: {reason}"))?)
            }
        };
        let (mut mask, mut values) = ([0; PAYLOAD_BYTES], [0; PAYLOAD_BYTES]);
        let data = capture.injection_data_str.as_deref().unwrap_or_default();
        for (position, digit) in data.chars().enumerate().filter(|(_, digit)| !digit.eq_ignore_ascii_case(&'X')) {
            let value = digit.to_digit(16).filter(|_| position < 2 * PAYLOAD_BYTES);
            let value =
                value.ok_or_else(|| format!("injection_data_str {data:?}: expected up to 16 digits or X"))? as u8;
            let shift = if position % 2 == 0 { 4 } else { 0 };
            mask[position / 2] |= 0xF << shift;
            values[position / 2] |= value << shift;
        }
        Ok(Some(InjectionLabels { from_seconds, to_seconds, can_id, mask, values, first_timestamp: None }))
    }

    /// Labels the next frames of the log, and returns how many become attack frames. A label of the row stays.
    pub fn apply(&mut self, frames: &mut [Frame]) -> u64 {
        let mut attack_frames = 0;
        for frame in frames {
            let elapsed = frame.timestamp - *self.first_timestamp.get_or_insert(frame.timestamp);
            let is_attack = (self.from_seconds..=self.to_seconds).contains(&elapsed)
                && self.can_id.is_none_or(|can_id| can_id == frame.can_id)
                && (0..PAYLOAD_BYTES).all(|byte| frame.payload[byte] & self.mask[byte] == self.values[byte]);
            attack_frames += u64::from(is_attack && !frame.attack);
            frame.attack |= is_attack;
        }
        attack_frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::frame;

    fn labels(json: &str) -> Result<Option<InjectionLabels>, String> {
        InjectionLabels::new(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn frames_match_by_time_id_and_digits() {
        let json = r#"{"injection_id": "0x6e0", "injection_data_str": "XXF0", "injection_interval": [1.0, 2.0],
                       "description": "passed over"}"#;
        let mut frames = [
            frame(10.0, 0x6E0, &[1, 0xF0], false),
            frame(11.0, 0x6E0, &[1, 0xF0], false),
            frame(11.5, 0x6E0, &[1, 0xF1], false),
            frame(11.5, 0x6E1, &[1, 0xF0], false),
            frame(12.5, 0x6E0, &[1, 0xF0], false),
        ];
        assert_eq!(labels(json).unwrap().unwrap().apply(&mut frames), 1);
        assert_eq!(frames.map(|frame| frame.attack), [false, true, false, false, false]);
        // A row that is labelled as an attack already is counted when it is read.
        let mut labelled = [frame(10.0, 0x6E0, &[1, 0xF0], true), frame(11.0, 0x6E0, &[1, 0xF0], true)];
        assert_eq!(labels(json).unwrap().unwrap().apply(&mut labelled), 0);
        assert!(labelled.iter().all(|frame| frame.attack));
    }

    #[test]
    fn any_id_any_data_and_no_interval() {
        let any = r#"{"injection_id": "XXX", "injection_data_str": "XXXXXXXXXXXXXXXX", "injection_interval": [0, 9]}"#;
        assert_eq!(labels(any).unwrap().unwrap().apply(&mut [frame(1.0, 5, &[], false)]), 1);
        assert_eq!(labels(r#"{"injection_interval": null}"#), Ok(None));
        assert!(labels(r#"{"injection_id": "0xZZ", "injection_interval": [0, 9]}"#).is_err());
        assert!(labels(r#"{"injection_interval": [1.2, 0.5]}"#).unwrap_err().contains("[1.2, 0.5]"));
        assert!(labels(r#"{"injection_data_str": "GG", "injection_interval": [0, 9]}"#).is_err());
    }
}
