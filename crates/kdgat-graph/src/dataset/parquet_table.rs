//! Reads Parquet files of the tabular format, as text.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;

/// Writes a Parquet file as CSV, with its columns as header: numbers in full precision, booleans as 1 and 0, null as an empty field.
///
/// # Errors
/// The problem, if the file cannot be read, or its text has more than `most_bytes`: few bytes may stand for any number of rows.
pub(super) fn as_csv(bytes: Vec<u8>, most_bytes: u64) -> Result<Vec<u8>, String> {
    // The crate panics on some damaged files.
    match catch_unwind(AssertUnwindSafe(|| convert(Bytes::from(bytes), most_bytes))) {
        Ok(converted) => converted.map_err(|error| format!("cannot be read as Parquet ({error})")),
        Err(_) => Err("it is damaged".to_owned()),
    }
}

fn convert(bytes: Bytes, most_bytes: u64) -> Result<Vec<u8>, ParquetError> {
    let reader = SerializedFileReader::new(bytes)?;
    let mut csv = csv::Writer::from_writer(Vec::new());
    let failed = |error: csv::Error| ParquetError::External(error.into());
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    csv.write_record(schema.root_schema().get_fields().iter().map(|field| field.name())).map_err(failed)?;
    for row in RowIter::from_file_into(Box::new(reader)) {
        let row = row?;
        let cells = row.get_column_iter().map(|(_, field)| text(field));
        csv.write_record(cells.map(Cow::into_owned).map(String::into_bytes)).map_err(failed)?;
        if csv.get_ref().len() as u64 > most_bytes {
            let most = most_bytes / 1_000_000;
            return Err(ParquetError::General(format!(
                "its rows have more than {most} MB of text, a quarter of the memory limit (--memory-limit)"
            )));
        }
    }
    csv.into_inner().map_err(|error| ParquetError::External(error.into_error().into()))
}

/// A cell as text; a type without a plain text, such as a list, as the crate prints it.
fn text(field: &Field) -> Cow<'_, str> {
    match field {
        Field::Null => "".into(),
        Field::Bool(value) => if *value { "1" } else { "0" }.into(),
        Field::Str(text) => text.into(),
        Field::Bytes(bytes) => String::from_utf8_lossy(bytes.data()),
        // Shortest text that is read as the same number; whole numbers without a point, so that they can be classes.
        Field::Float16(value) => value.to_f32().to_string().into(),
        Field::Float(value) => value.to_string().into(),
        Field::Double(value) => value.to_string().into(),
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_written_in_full_precision() {
        for (field, expected) in [
            (Field::Null, ""),
            (Field::Bool(true), "1"),
            (Field::Long(-12), "-12"),
            (Field::Double(3.0), "3"),
            (Field::Double(0.1), "0.1"),
            (Field::Float(1e-20), "0.00000000000000000001"),
            (Field::Double(f64::NAN), "NaN"),
            (Field::Str("a \"b\", c".to_owned()), "a \"b\", c"),
            (Field::Bytes(b"C".to_vec().into()), "C"),
        ] {
            assert_eq!(text(&field), expected);
        }
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        for bytes in [&b""[..], b"PAR1", b"PAR1 something PAR1", b"graph_id,y\n"] {
            assert!(as_csv(bytes.to_vec(), u64::MAX).is_err());
        }
    }
}
