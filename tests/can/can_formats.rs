//! Every log format in a small file as its publisher writes it: recognised by content, with every compression.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

#[cfg(feature = "compressed")]
use crate::reading::xz;
use crate::reading::{read_all, read_log};
use kdgat::can::formats::{Compression, can_train_and_test};
use kdgat::can::{Format, Frame, open_log};
use proptest::prelude::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/can").join(name)
}

/// Short text of a frame: time, ID, length, first bytes in hexadecimal, attack.
fn describe(frame: &Frame) -> String {
    let bytes: String =
        frame.payload.iter().take(frame.payload_length.into()).map(|byte| format!("{byte:02x}")).collect();
    let attack = if frame.attack { " attack" } else { "" };
    format!("{} {:x} {}:{bytes}{attack}", frame.timestamp, frame.can_id, frame.payload_length)
}

fn check(name: &str, format: Format, expected: &[&str]) -> kdgat::can::ReadReport {
    let path = fixture(name);
    let reader = open_log(&path, None).unwrap();
    assert_eq!(reader.format(), format, "{name}");
    let (frames, report) = read_all(reader, 2);
    assert_eq!(frames.iter().map(describe).collect::<Vec<_>>(), expected, "{name}");
    let (forced, _) = read_all(open_log(&path, Some(format)).unwrap(), 1000);
    assert_eq!(forced, frames, "{name} reads differently with its format forced and in other blocks");
    assert_eq!(report.rejected_rows(), 0, "{name}: {:?}", report.rejected);
    assert_eq!(report.frames, frames.len() as u64, "{name}");
    report
}

#[test]
fn can_train_and_test_with_header_and_mixed_line_endings() {
    let report = check(
        "train_and_test.csv",
        Format::CanTrainAndTest,
        &[
            "1672531200 148 8:0b1bb68241001105",
            "1672531200.0002 18daf110 2:0262 attack",
            "1672531200.0001 7ff 0: attack",
            "1672531200.5 0 1:00",
        ],
    );
    assert_eq!((report.rows, report.attack_frames, report.skipped_lines), (4, 2, 1));
    assert_eq!(report.backward_timestamps, 1);
    assert_eq!(report.first_backward.as_ref().map(|place| place.line), Some(5));
    assert!((report.largest_backward_step_seconds - 0.0001).abs() < 1e-6, "{}", report.largest_backward_step_seconds);
}

#[test]
fn can_train_and_test_without_header() {
    let expected = ["1513920189.391211 12a 8:10f0707400001080", "1513920189.3915 1f1 4:05000000 attack"];
    check("no_header.csv", Format::CanTrainAndTest, &expected);
}

const CANDUMP: [&str; 5] = [
    "1436509052.249713 44 5:2a366c2bba",
    "1436509052.449847 f6 5:7adfe07bd2",
    "1436509052.650004 18daf110 8:0102030405060708",
    "1436509052.6501 123 0:",
    "1436509052.6503 123 12:0001020304050607",
];

#[test]
fn both_forms_of_candump_give_the_same_frames() {
    for (name, format) in [("candump.log", Format::Candump), ("candump_ascii.log", Format::CandumpAscii)] {
        let report = check(name, format, &CANDUMP);
        assert_eq!((report.remote_frames, report.fd_frames, report.error_frames, report.rows), (1, 1, 1, 6), "{name}");
    }
}

#[test]
fn car_hacking() {
    let expected =
        ["1478198376.389427 316 8:052168092121006f", "1478198376.389636 18f 2:fe5b", "1478198376.389864 0 0: attack"];
    check("car_hacking.csv", Format::CarHacking, &expected);
    let expected = ["1479121434.850202 350 8:052884666d0000a2", "1479121434.850423 2c0 2:1400"];
    check("car_hacking_normal.txt", Format::CarHacking, &expected);
}

#[test]
fn challenge_2020() {
    let expected =
        ["1597707827.144119 153 8:20a110ff00ff501f", "1597707827.144386 220 4:13247f60", "1597707827.1445 0 0: attack"];
    check("challenge_2020.csv", Format::Challenge2020, &expected);
}

#[test]
fn vector_asc() {
    let report = check(
        "vector.asc",
        Format::Asc,
        &[
            "2.501 c8 8:0908070605040302",
            "2.5015 18daf110 2:0102",
            "3.098426 54c5638 0:",
            "30.005021 300 12:0102030405060708",
        ],
    );
    assert_eq!((report.remote_frames, report.fd_frames, report.error_frames, report.skipped_lines), (1, 1, 1, 8));
}

#[test]
fn road_logs_are_labelled_by_their_metadata() {
    let (frames, report) = read_log(&fixture("road/fuzzing_attack_1.log"));
    assert_eq!(frames.iter().map(|frame| frame.attack).collect::<Vec<_>>(), [false, true, false, false]);
    assert_eq!(report.attack_frames, 1);
    let (frames, _) = read_log(&fixture("road/ambient_drive_1.log"));
    assert!(frames.iter().all(|frame| !frame.attack));

    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("fuzzing_attack_1.log");
    fs::copy(fixture("road/fuzzing_attack_1.log"), &log).unwrap();
    fs::write(folder.path().join("capture_metadata.json"), "{\"fuzzing_attack_1\": {\"injection_interval\": 5}}")
        .unwrap();
    let error = open_log(&log, None).err().unwrap().to_string();
    assert!(error.contains("capture_metadata.json"), "{error}");
}

#[test]
fn compression_is_seen_whatever_the_name_says() {
    let text = fs::read(fixture("train_and_test.csv")).unwrap();
    let (expected, _) = read_log(&fixture("train_and_test.csv"));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&text[..100]).unwrap();
    let mut two_members = gzip.finish().unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&text[100..]).unwrap();
    two_members.extend(gzip.finish().unwrap());
    let folder = tempfile::tempdir().unwrap();
    for (bytes, compression) in [
        (two_members, Compression::Gzip),
        #[cfg(feature = "compressed")]
        (zstd::encode_all(&text[..], 1).unwrap(), Compression::Zstd),
        #[cfg(feature = "compressed")]
        (xz(&text, 1), Compression::Xz),
        ([b"\xEF\xBB\xBF", &text[..]].concat(), Compression::None),
    ] {
        let path = folder.path().join("log.csv");
        fs::write(&path, bytes).unwrap();
        let reader = open_log(&path, None).unwrap();
        assert_eq!(reader.compression(), compression);
        assert_eq!(read_all(reader, 3).0, expected, "{compression:?}");
    }
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let timestamp = prop_oneof![
        (0u64..2_000_000_000_000_000).prop_map(|microseconds| microseconds as f64 / 1e6),
        prop::num::f64::NORMAL | prop::num::f64::ZERO,
    ];
    let can_id = prop_oneof![0u32..0x800, 0u32..=0x1FFF_FFFF];
    (timestamp, can_id, any::<[u8; 8]>(), 0u8..=8, any::<bool>()).prop_map(
        |(timestamp, can_id, mut payload, payload_length, attack)| {
            payload[usize::from(payload_length)..].fill(0);
            Frame { timestamp, can_id, payload, payload_length, attack }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_written_as_rows_read_back_equal(
        frames in prop::collection::vec(any_frame(), 1..300),
        limit in 1usize..400,
        header: bool,
    ) {
        let mut rows = if header { can_train_and_test::HEADER.as_bytes().to_vec() } else { Vec::new() };
        frames.iter().for_each(|frame| can_train_and_test::write_row(frame, &mut rows));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.csv");
        fs::write(&path, rows).unwrap();
        let (read, report) = read_all(open_log(&path, None).unwrap(), limit);
        prop_assert_eq!(read, frames);
        prop_assert_eq!(report.rejected_rows(), 0);
    }

    /// Each format reads any file to its end, and every line is one row or none.
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(
        prop_oneof![Just(b'\n'), Just(b','), Just(b' '), Just(b'#'), Just(b'('), b'0'..=b'9', any::<u8>()], 1..400,
    )) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, &bytes).unwrap();
        for format in Format::ALL {
            let Ok(reader) = open_log(&path, Some(format)) else { continue };
            let (frames, report) = read_all(reader, 7);
            let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
            prop_assert!(report.rows + report.skipped_lines <= lines);
            prop_assert_eq!(report.rows, frames.len() as u64 + report.error_frames + report.rejected_rows());
        }
    }
}
