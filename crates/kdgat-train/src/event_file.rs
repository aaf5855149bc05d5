//! TensorBoard event files: the columns of `metrics.csv` and `steps.csv` as scalars.
//!
//! A file is a sequence of records: length of the data (8 bytes), checksum of the length, data, checksum of the data. Checksums
//! are CRC-32C, masked like those of TensorFlow's `record_writer`. The data are `Event` protocol buffers
//! (`tensorflow/core/util/event.proto`), of which four fields are used.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const VERSION: &str = "brain.Event:2";

/// Protobuf field keys: field number · 8 + wire type (0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes).
mod key {
    /// `Event.wall_time`: seconds since 1970, f64.
    pub const EVENT_WALL_TIME: u8 = 0x09;
    /// `Event.step`.
    pub const EVENT_STEP: u8 = 0x10;
    /// `Event.file_version`.
    pub const EVENT_FILE_VERSION: u8 = 0x1A;
    /// `Event.summary`.
    pub const EVENT_SUMMARY: u8 = 0x2A;
    /// `Summary.value`.
    pub const SUMMARY_VALUE: u8 = 0x0A;
    /// `Summary.Value.tag`.
    pub const VALUE_TAG: u8 = 0x0A;
    /// `Summary.Value.simple_value`, f32.
    pub const VALUE_SIMPLE: u8 = 0x15;
}

/// An open event file; each row of a log adds one event.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates a new file in a run's folder. A resumed run gets another one; for steps in both, TensorBoard shows the later.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let mut seconds = seconds() as u64;
        loop {
            let path = folder.join(format!("events.out.tfevents.{seconds:010}.kdgat.{}", std::process::id()));
            match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    let mut events = Self { path, file };
                    events.event(0, key::EVENT_FILE_VERSION, VERSION.as_bytes())?;
                    return Ok(events);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => seconds += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the numbers of a row, each under `prefix/column`. Fields that are empty or not numbers are left out.
    pub fn row<C: AsRef<str>, F: AsRef<str>>(
        &mut self,
        prefix: &str,
        columns: &[C],
        row: &[F],
        step: u64,
    ) -> io::Result<()> {
        let mut summary = Vec::new();
        for (column, field) in columns.iter().zip(row) {
            let Ok(number) = field.as_ref().parse::<f64>() else { continue };
            let mut value = Vec::new();
            with_length(&mut value, key::VALUE_TAG, format!("{prefix}/{}", column.as_ref()).as_bytes());
            value.push(key::VALUE_SIMPLE);
            value.extend((number as f32).to_le_bytes());
            with_length(&mut summary, key::SUMMARY_VALUE, &value);
        }
        self.event(step, key::EVENT_SUMMARY, &summary)
    }

    fn event(&mut self, step: u64, key: u8, content: &[u8]) -> io::Result<()> {
        let mut event = vec![key::EVENT_WALL_TIME];
        event.extend(seconds().to_le_bytes());
        event.push(key::EVENT_STEP);
        varint(&mut event, step);
        with_length(&mut event, key, content);
        // A single write, so that readers see whole records only.
        self.file.write_all(&record(&event))
    }
}

fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked_checksum(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_checksum(data).to_le_bytes());
    record
}

/// Checksum, masked because the data may contain checksums themselves.
fn masked_checksum(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn with_length(message: &mut Vec<u8>, key: u8, content: &[u8]) {
    message.push(key);
    varint(message, content.len() as u64);
    message.extend(content);
}

/// Appends a varint: seven bits per byte, lowest first; the highest bit is set if more bytes follow.
fn varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits a file into the data of its records and checks their checksums.
    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let of = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(of(8), masked_checksum(&bytes[..8]));
            let data = bytes[12..12 + length].to_vec();
            assert_eq!(of(12 + length), masked_checksum(&data));
            records.push(data);
            bytes = &bytes[16 + length..];
        }
        records
    }

    #[test]
    fn rows_are_records_of_scalars() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(folder.path()).unwrap();
        events.row("epoch", &["loss", "mode", "lr"], &["0.5", "resident", "0.001"], 300).unwrap();
        let found = records(&std::fs::read(events.path()).unwrap());
        assert_eq!(found.len(), 2);
        // After the wall time: step 0 and the version.
        assert_eq!(found[0][9..], [&[0x10, 0, 0x1A, 13], VERSION.as_bytes()].concat());
        // Step 300 takes two bytes. Each value has a tag and four bytes; the text field is left out.
        let value = |tag: &str, number: f32| {
            let mut value = vec![0x0A, tag.len() as u8];
            value.extend(tag.as_bytes());
            value.push(0x15);
            value.extend(number.to_le_bytes());
            [vec![0x0A, value.len() as u8], value].concat()
        };
        let summary = [value("epoch/loss", 0.5), value("epoch/lr", 0.001)].concat();
        assert_eq!(found[1][9..], [vec![0x10, 0xAC, 0x02, 0x2A, summary.len() as u8], summary].concat());
        let other = EventFile::create(folder.path()).unwrap();
        assert_ne!(other.path(), events.path());
    }

    #[test]
    fn checksums_are_those_of_tensorflow() {
        // RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(masked_checksum(&[0; 32]), 0x8A91_36AAu32.rotate_right(15).wrapping_add(0xA282_EAD8));
    }
}
