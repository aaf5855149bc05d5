//! Parquet: one frame per row, columns named as in the can-train-and-test CSV, in any order; others are not read.
//!
//! Timestamps are numbers of seconds, or timestamps in milliseconds, microseconds or nanoseconds. IDs are numbers or
//! hexadecimal text, payloads are bytes or hexadecimal text, labels are booleans, numbers or text; without a label column every
//! frame is attack-free.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parquet::basic::{ConvertedType, LogicalType, TimeUnit};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row as ParquetRow};
use parquet::schema::types::Type;

use super::FrameSource;
use super::can_train_and_test::{DATA_NAMES, ID_NAMES, LABEL_NAMES, TIMESTAMP_NAMES};
use super::fields::{self, FD_BYTES, MAX_CAN_ID};
use super::intake::Intake;
use super::options::ReadOptions;
use crate::error::CanError;
use crate::frame::{Frame, PAYLOAD_BYTES};
use crate::report::{FrameKind, Place, ReadReport, RejectReason};

/// A Parquet file of frames.
pub struct ParquetLog {
    path: PathBuf,
    rows: RowIter<'static>,
    /// Positions among the columns read: timestamp, ID, payload, and label if there is one.
    columns: [Option<usize>; 4],
    /// Units per second of timestamps stored as whole numbers.
    units_a_second: f64,
    number: u64,
    intake: Intake,
}

impl ParquetLog {
    /// Opens a file and reads its schema.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, CanError> {
        let file = File::open(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => CanError::MissingFile { path: path.to_path_buf() },
            _ => CanError::Open { path: path.to_path_buf(), source },
        })?;
        let opened = guarded(|| {
            let reader = SerializedFileReader::new(file)?;
            let schema = reader.metadata().file_metadata().schema().clone();
            Ok((reader, schema))
        });
        let bad = |problem: String| CanError::Parquet { path: path.to_path_buf(), problem };
        let (reader, schema) = opened.map_err(bad)?;
        let names: Vec<String> = schema.get_fields().iter().map(|field| field.name().to_lowercase()).collect();
        let find = |known: &[&str]| names.iter().position(|name| known.contains(&name.as_str()));
        let found = [&TIMESTAMP_NAMES[..], &ID_NAMES[..], &DATA_NAMES[..], &LABEL_NAMES[..]].map(find);
        for (column, name) in found.iter().zip(["timestamp", "id", "data_field"]) {
            if column.is_none() {
                return Err(bad(format!("it has no column {name} (columns: {})", names.join(", "))));
            }
        }
        let mut kept: Vec<usize> = found.iter().flatten().copied().collect();
        kept.sort_unstable();
        let columns = found.map(|column| kept.iter().position(|&kept| Some(kept) == column));
        let units_a_second = found[0].map_or(1.0, |column| units_a_second(&schema.get_fields()[column]));
        let rows = guarded(|| {
            let fields = kept.iter().map(|&column| Arc::clone(&schema.get_fields()[column])).collect();
            let projection = Type::group_type_builder(schema.name()).with_fields(fields).build()?;
            RowIter::from_file_into(Box::new(reader)).project(Some(projection))
        });
        let rows = rows.map_err(bad)?;
        let mut options = options.clone();
        if found[0].is_some_and(|column| has_unit(&schema.get_fields()[column])) {
            options.time_unit = None;
        }
        let (path, intake) = (path.to_path_buf(), Intake::new(&options));
        Ok(Self { path, rows, columns, units_a_second, number: 0, intake })
    }

    fn parse(&self, row: &ParquetRow) -> Result<Frame, RejectReason> {
        let cells: Vec<&Field> = row.get_column_iter().map(|(_, field)| field).collect();
        let cell = |column: usize| self.columns[column].and_then(|position| cells.get(position)).copied();
        let missing = RejectReason::FieldCount;
        let timestamp = timestamp(cell(0).ok_or(missing)?, self.units_a_second)?;
        let can_id = can_id(cell(1).ok_or(missing)?)?;
        let (payload, payload_length) = payload(cell(2).ok_or(missing)?)?;
        let attack = cell(3).map_or(Ok(false), label)?;
        Ok(Frame { timestamp, can_id, payload, payload_length, attack })
    }
}

impl ParquetLog {
    fn read_rows(&mut self, limit: usize, frames: &mut Vec<Frame>, report: &mut ReadReport) -> Result<(), CanError> {
        while frames.len() < limit {
            let next = guarded(|| self.rows.next().transpose());
            let next = next.map_err(|problem| CanError::Parquet { path: self.path.clone(), problem });
            let Some(row) = next? else { break };
            self.number += 1;
            let parsed = self.parse(&row);
            let place = || Place::new(&self.path, self.number, row.to_string().as_bytes());
            match parsed {
                Err(reason) => report.reject(reason, place),
                Ok(frame) => {
                    let is_long = usize::from(frame.payload_length) > PAYLOAD_BYTES;
                    let kind = if is_long { FrameKind::FlexibleDataRate } else { FrameKind::Data };
                    frames.extend(self.intake.frame(frame, kind, None, report, place));
                }
            }
        }
        Ok(())
    }
}

impl FrameSource for ParquetLog {
    fn read(&mut self, limit: usize, frames: &mut Vec<Frame>, report: &mut ReadReport) -> Result<(), CanError> {
        let result = self.read_rows(limit, frames, report);
        self.intake.settle(report);
        result
    }

    fn read_time(&self) -> Duration {
        Duration::ZERO
    }

    fn has_labels(&self) -> bool {
        self.columns[3].is_some()
    }
}

/// Runs `read` and turns a panic into an error: the `parquet` crate panics on some damaged files.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("it is damaged".to_string()),
    }
}

/// True if the type of a column of timestamps says their unit.
fn has_unit(column: &Type) -> bool {
    let converted = column.get_basic_info().converted_type();
    matches!(column.get_basic_info().logical_type_ref(), Some(LogicalType::Timestamp(_)))
        || matches!(converted, ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIMESTAMP_MICROS)
}

/// Units per second of whole numbers in a column of timestamps.
fn units_a_second(column: &Type) -> f64 {
    match column.get_basic_info().logical_type_ref() {
        Some(LogicalType::Timestamp(time)) if time.unit == TimeUnit::NANOS => 1e9,
        _ => 1.0,
    }
}

fn timestamp(field: &Field, units_a_second: f64) -> Result<f64, RejectReason> {
    let seconds = match field {
        Field::Double(value) => *value,
        Field::Float(value) => f64::from(*value),
        Field::Int(value) => f64::from(*value),
        Field::Long(value) => *value as f64 / units_a_second,
        Field::TimestampMillis(value) => *value as f64 / 1e3,
        Field::TimestampMicros(value) => *value as f64 / 1e6,
        Field::Str(text) => fields::timestamp(text.trim().as_bytes())?,
        _ => return Err(RejectReason::TimestampNotANumber),
    };
    if seconds.is_finite() { Ok(seconds) } else { Err(RejectReason::TimestampNotFinite) }
}

/// A whole number of any width; `None` for negative numbers and any other type.
fn whole_number(field: &Field) -> Option<u64> {
    match field {
        Field::Byte(value) => u64::try_from(*value).ok(),
        Field::Short(value) => u64::try_from(*value).ok(),
        Field::Int(value) => u64::try_from(*value).ok(),
        Field::Long(value) => u64::try_from(*value).ok(),
        Field::UByte(value) => Some(u64::from(*value)),
        Field::UShort(value) => Some(u64::from(*value)),
        Field::UInt(value) => Some(u64::from(*value)),
        Field::ULong(value) => Some(*value),
        _ => None,
    }
}

fn can_id(field: &Field) -> Result<u32, RejectReason> {
    match field {
        Field::Str(text) => fields::can_id(text.trim().as_bytes()),
        Field::Bytes(bytes) => fields::can_id(bytes.data().trim_ascii()),
        _ => {
            let id = whole_number(field).ok_or(RejectReason::IdNotHex)?;
            u32::try_from(id).ok().filter(|&id| id <= MAX_CAN_ID).ok_or(RejectReason::IdTooLarge)
        }
    }
}

fn payload(field: &Field) -> Result<fields::Payload, RejectReason> {
    match field {
        Field::Null => Ok(([0; PAYLOAD_BYTES], 0)),
        Field::Str(text) if text.contains(' ') => fields::listed_payload(fields::words(text.as_bytes()), 16, FD_BYTES),
        Field::Str(text) => fields::packed_payload(text.as_bytes(), FD_BYTES),
        Field::Bytes(bytes) if bytes.len() <= FD_BYTES => {
            let mut payload = [0; PAYLOAD_BYTES];
            payload.iter_mut().zip(bytes.data()).for_each(|(target, &byte)| *target = byte);
            Ok((payload, bytes.len() as u8))
        }
        Field::Bytes(_) => Err(RejectReason::TooManyBytes),
        _ => Err(RejectReason::DataNotHex),
    }
}

fn label(field: &Field) -> Result<bool, RejectReason> {
    match field {
        Field::Bool(value) => Ok(*value),
        Field::Double(value) if *value == 0.0 || *value == 1.0 => Ok(*value == 1.0),
        Field::Float(value) if *value == 0.0 || *value == 1.0 => Ok(*value == 1.0),
        Field::Str(text) => super::can_train_and_test::label(text.trim().as_bytes()),
        _ => match whole_number(field) {
            Some(value @ (0 | 1)) => Ok(value == 1),
            _ => Err(RejectReason::BadLabel),
        },
    }
}
