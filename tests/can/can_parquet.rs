//! Parquet logs: read with the feature `parquet`, refused with advice otherwise.

use kdgat::can::open_log;

#[test]
#[cfg(not(feature = "parquet"))]
fn a_program_without_the_reader_says_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.parquet");
    std::fs::write(&path, b"PAR1 and so on").unwrap();
    let error = open_log(&path, None).err().unwrap().to_string();
    assert!(error.contains("--features parquet"), "{error}");
}

#[cfg(feature = "parquet")]
mod reading {
    use std::fs::{self, File};
    use std::path::Path;
    use std::sync::Arc;

    use kdgat::can::{Frame, RejectReason};
    use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::open_log;
    use support::graph::traffic;

    fn read(path: &Path) -> (Vec<Frame>, kdgat::can::ReadReport) {
        let (mut log, mut all, mut block) = (open_log(path, None).unwrap(), Vec::new(), Vec::new());
        while log.read_block(100, &mut block).unwrap() > 0 {
            all.extend_from_slice(&block);
        }
        (all, log.report().clone())
    }

    /// Writes IDs and payloads as hexadecimal text, seconds as a number, and a column that readers ignore.
    fn write_as_text(path: &Path, frames: &[Frame]) {
        let schema = "message log { required double other; required double timestamp; required binary ID (UTF8);
                      required binary data_field (UTF8); required boolean attack; }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = Arc::new(WriterProperties::new());
        let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
        for group in frames.chunks(700) {
            let mut rows = writer.next_row_group().unwrap();
            let times: Vec<f64> = group.iter().map(|frame| frame.timestamp).collect();
            let text = |text: String| ByteArray::from(text.into_bytes());
            let ids: Vec<ByteArray> = group.iter().map(|frame| text(format!("{:03X}", frame.can_id))).collect();
            let hex = |frame: &Frame| frame.payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let data: Vec<ByteArray> = group.iter().map(|frame| text(hex(frame))).collect();
            let attacks: Vec<bool> = group.iter().map(|frame| frame.attack).collect();
            for times in [&times, &times] {
                let mut column = rows.next_column().unwrap().unwrap();
                column.typed::<DoubleType>().write_batch(times, None, None).unwrap();
                column.close().unwrap();
            }
            for texts in [&ids, &data] {
                let mut column = rows.next_column().unwrap().unwrap();
                column.typed::<ByteArrayType>().write_batch(texts, None, None).unwrap();
                column.close().unwrap();
            }
            let mut column = rows.next_column().unwrap().unwrap();
            column.typed::<BoolType>().write_batch(&attacks, None, None).unwrap();
            column.close().unwrap();
            rows.close().unwrap();
        }
        writer.close().unwrap();
    }

    #[test]
    fn frames_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.parquet");
        let mut frames = traffic(2000, 12, 1, 100..300);
        frames[7].timestamp = 1000.0;
        write_as_text(&path, &frames);
        let (found, report) = read(&path);
        assert_eq!(found, frames);
        assert_eq!((report.rows, report.attack_frames, report.backward_timestamps), (2000, 200, 1));
        assert_eq!(report.first_backward.unwrap().line, 8);
        frames[3].timestamp = f64::NAN;
        write_as_text(&path, &frames);
        let (found, report) = read(&path);
        assert_eq!((found.len(), report.rejected[&RejectReason::TimestampNotFinite].first[0].line), (1999, 4));
    }

    #[test]
    fn numbers_nanoseconds_and_bytes_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.parquet");
        let schema = "message log { required int64 time (TIMESTAMP(NANOS,true)); required int64 can_id;
                      required binary payload; required int64 label; }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = Arc::new(WriterProperties::new());
        let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, properties).unwrap();
        let mut rows = writer.next_row_group().unwrap();
        let number = |values: &[i64], rows: &mut parquet::file::writer::SerializedRowGroupWriter<'_, File>| {
            let mut column = rows.next_column().unwrap().unwrap();
            column.typed::<Int64Type>().write_batch(values, None, None).unwrap();
            column.close().unwrap();
        };
        number(&[1_500_000_000, 2_000_000_000, 3_000_000_000], &mut rows);
        number(&[0x7FF, 0x2000_0000, 0x1FFF_FFFF], &mut rows);
        let mut column = rows.next_column().unwrap().unwrap();
        let bytes = [vec![1u8, 255], vec![], vec![7; 12]].map(ByteArray::from);
        column.typed::<ByteArrayType>().write_batch(&bytes, None, None).unwrap();
        column.close().unwrap();
        number(&[1, 0, 0], &mut rows);
        rows.close().unwrap();
        writer.close().unwrap();
        let (found, report) = read(&path);
        let frame = |timestamp, can_id, payload, payload_length, attack| Frame {
            timestamp,
            can_id,
            payload,
            payload_length,
            attack,
        };
        let expected =
            [frame(1.5, 0x7FF, [1, 255, 0, 0, 0, 0, 0, 0], 2, true), frame(3.0, 0x1FFF_FFFF, [7; 8], 12, false)];
        assert_eq!(found, expected);
        assert_eq!((report.rejected[&RejectReason::IdTooLarge].count, report.fd_frames), (1, 1));
    }

    #[test]
    fn damaged_files_are_errors_that_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.parquet");
        write_as_text(&path, &traffic(500, 12, 1, 0..0));
        let bytes = fs::read(&path).unwrap();
        for position in (0..bytes.len()).step_by(97) {
            let mut damaged = bytes.clone();
            damaged[position] ^= 0x55;
            fs::write(&path, &damaged).unwrap();
            let Ok(mut log) = open_log(&path, None) else { continue };
            let mut block = Vec::new();
            while log.read_block(100, &mut block).is_ok_and(|count| count > 0) {}
        }
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let error = open_log(&path, None).err().unwrap().to_string();
        assert!(error.contains("log.parquet: cannot be read as Parquet"), "{error}");
    }
}
