//! Damaged logs and folders: bad rows are counted with their places; everything else is an error that names the path.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use support::process::{assert_passed, test_name};

#[cfg(feature = "compressed")]
use crate::reading::xz;
use crate::reading::{read_all, read_log};
use kdgat::can::{CanError, Dataset, Format, RejectReason, open_log};

const GOOD: &str = "1.0,123,00FF,0\n";

/// Reads to the end or to the first error; returns the number of frames.
fn try_read(path: &Path) -> Result<u64, CanError> {
    let mut log = open_log(path, None)?;
    let mut frames = Vec::new();
    while log.read_block(1000, &mut frames)? > 0 {}
    Ok(log.report().frames)
}

fn error_of(path: &Path) -> CanError {
    let error = try_read(path).expect_err("this should not be readable");
    let text = error.to_string();
    assert!(text.contains(path.file_name().unwrap().to_str().unwrap()), "the path is not named: {text}");
    error
}

#[test]
fn bad_rows_are_counted_with_file_and_line_and_the_others_are_read() {
    use RejectReason::*;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.csv");
    let bad: [(&[u8], RejectReason); 16] = [
        (b"1.0,123,00,0,5,6,7", FieldCount),
        (b"1.0,123,00", FieldCount),
        (b"1.0,12G,00,0", IdNotHex),
        (b"1.0,20000000,00,0", IdTooLarge),
        (b"1.0,FFFFFFFF,00,0", IdTooLarge),
        (b"1.0,123,000,0", OddDigits),
        (b"1.0,123,0x0Z,0", DataNotHex),
        (b"1.0,123,001122334455667788,0", TooManyBytes),
        (b"NaN,123,00,0", TimestampNotFinite),
        (b"inf,123,00,0", TimestampNotFinite),
        (b"noon,123,00,0", TimestampNotANumber),
        (b"1.0,123,00,maybe", BadLabel),
        (b"1.0,123\0,00,0", NulByte),
        (b"1.0,123,\xC3\x28,0", InvalidUtf8),
        (b"\0\0\0\0", NulByte),
        (b"-", FieldCount),
    ];
    let mut text = b"timestamp,arbitration_id,data_field,attack\n".to_vec();
    for (row, _) in &bad {
        text.extend([GOOD.as_bytes(), row, b"\r\n"].concat());
    }
    fs::write(&path, text).unwrap();
    let (frames, report) = read_log(&path);
    assert_eq!((frames.len(), report.rows, report.rejected_rows()), (16, 32, 16));
    assert_eq!(report.reject_share(), 0.5);
    for (position, (row, reason)) in bad.iter().enumerate() {
        let rejections = &report.rejected[reason];
        assert_eq!(rejections.count, bad.iter().filter(|(_, other)| other == reason).count() as u64, "{reason}");
        let place = rejections.first.iter().find(|place| place.line == 3 + 2 * position as u64);
        let place = place.unwrap_or_else(|| panic!("{row:?}: {reason} has {:?}", rejections.first));
        assert_eq!((place.file.as_path(), place.text.as_str()), (path.as_path(), &*String::from_utf8_lossy(row)));
    }
}

#[test]
fn of_many_bad_rows_only_the_first_places_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.csv");
    fs::write(&path, GOOD.to_owned() + &"1.0,123,0,0\n".repeat(100_000)).unwrap();
    let (_, report) = read_log(&path);
    let odd = &report.rejected[&RejectReason::OddDigits];
    assert_eq!((odd.count, odd.first.len()), (100_000, 5));
}

#[test]
fn lines_are_the_same_wherever_blocks_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    // Rows of different lengths, several times the size of a block.
    let rows: String =
        (0..40_000).map(|index| format!("{}.5,{:X},{},0\n", index, index % 2048, "AB".repeat(index % 9))).collect();
    fs::write(&path, &rows).unwrap();
    let (frames, report) = read_all(open_log(&path, None).unwrap(), 777);
    assert_eq!((frames.len(), report.rejected_rows()), (40_000, 0));
    assert!(frames.iter().enumerate().all(|(index, frame)| {
        frame.timestamp == index as f64 + 0.5
            && frame.can_id == index as u32 % 2048
            && usize::from(frame.payload_length) == index % 9
    }));
}

#[test]
fn missing_empty_and_foreign_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    assert!(matches!(error_of(&folder.path().join("none.csv")), CanError::MissingFile { .. }));
    assert!(matches!(error_of(&path("empty.csv", b"")), CanError::EmptyFile { .. }));
    let nothing = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()).finish().unwrap();
    assert!(matches!(error_of(&path("nothing.csv.gz", &nothing)), CanError::EmptyFile { .. }));
    assert!(matches!(error_of(&path("text.csv", b"Dear reader,\nthis is no log\n")), CanError::UnknownFormat { .. }));
    assert!(matches!(error_of(&path("zeros.csv", &[0; 100_000])), CanError::UnknownFormat { .. }));
    assert!(matches!(error_of(folder.path()), CanError::Open { .. }));
    // A log with only a header has no frames.
    assert_eq!(try_read(&path("header.csv", b"timestamp,arbitration_id,data_field,attack\n")).unwrap(), 0);
}

#[test]
fn a_forced_format_counts_what_it_cannot_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    fs::write(&path, GOOD.repeat(3)).unwrap();
    let (frames, report) = read_all(open_log(&path, Some(Format::Candump)).unwrap(), 10);
    assert_eq!((frames.len(), report.rejected_rows()), (0, 3));
}

#[test]
fn truncated_and_damaged_compression_is_an_error_wherever_it_is_cut() {
    let text: String =
        (0..50_000).map(|index| format!("{index}.25,{:X},{:016X},0\n", index % 2048, index * 77)).collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, whole) in [
        ("gzip", gzip.finish().unwrap()),
        #[cfg(feature = "compressed")]
        ("zstd", zstd::encode_all(text.as_bytes(), 1).unwrap()),
        #[cfg(feature = "compressed")]
        ("xz", xz(text.as_bytes(), 0)),
    ] {
        let path = folder.path().join("log.csv");
        for cut in [whole.len() - 1, whole.len() - 7, whole.len() / 2, 20, 7] {
            fs::write(&path, &whole[..cut]).unwrap();
            let error = error_of(&path);
            assert!(
                matches!(error, CanError::Damaged { compression, .. } if compression == name),
                "{name} cut at {cut}: {error}"
            );
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(try_read(&path).unwrap(), 50_000, "{name}");
    }
}

/// Everything that can be decompressed is read, for any block size, and then the damage is reported.
#[test]
fn frames_before_the_damage_are_given_out() {
    let text: String =
        (0..1900).map(|index| format!("{index}.25,{:X},{:016X},0\n", index % 2048, index * 7777)).collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    for whole in [
        gzip.finish().unwrap(),
        #[cfg(feature = "compressed")]
        xz(text.as_bytes(), 0),
    ] {
        let cut = &whole[..whole.len() - 200];
        fs::write(&path, cut).unwrap();
        let mut decompressed = Vec::new();
        let compression = kdgat::can::formats::Compression::of(cut);
        let mut reader = kdgat::can::formats::decompress(compression, std::io::Cursor::new(cut.to_vec())).unwrap();
        reader.read_to_end(&mut decompressed).unwrap_err();
        let expected = decompressed.iter().filter(|&&byte| byte == b'\n').count();
        assert!((1000..1900).contains(&expected), "{expected}");
        for limit in [100, 4096] {
            let mut log = open_log(&path, None).unwrap();
            let (mut frames, mut found) = (Vec::new(), 0);
            let error = loop {
                match log.read_block(limit, &mut frames) {
                    Ok(0) => panic!("the damage was not seen"),
                    Ok(count) => found += count,
                    Err(error) => break error,
                }
            };
            assert_eq!(found, expected, "in blocks of {limit}");
            assert!(matches!(error, CanError::Damaged { .. }), "{error}");
        }
    }
}

/// A damaged block after an intact one, as on a bad disk: no row before it is lost, and the error names the line.
#[test]
fn rows_before_a_damaged_block_are_given_out() {
    let text: String =
        (0..5000).map(|index| format!("{index}.25,{:X},{:016X},0\n", index % 2048, index * 7777)).collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    gzip.write_all(text.as_bytes()).unwrap();
    let mut bytes = gzip.finish().unwrap();
    // After the header of 10 bytes, each block has a type, a length, its complement, and that many bytes of the text.
    let first_block = usize::from(u16::from_le_bytes([bytes[11], bytes[12]]));
    bytes[10 + 5 + first_block + 3] ^= 0xFF;
    let expected = text.as_bytes()[..first_block].iter().filter(|&&byte| byte == b'\n').count();
    assert!((100..4900).contains(&expected), "{expected}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv.gz");
    fs::write(&path, bytes).unwrap();
    let mut log = open_log(&path, None).unwrap();
    let mut frames = Vec::new();
    assert_eq!(log.read_block(10_000, &mut frames).unwrap(), expected);
    let error = log.read_block(10_000, &mut frames).unwrap_err().to_string();
    assert!(error.contains(&format!("log.csv.gz:{}: damaged", expected + 1)), "{error}");
    assert!(error.contains(&format!("after {first_block} decompressed bytes")), "{error}");
}

#[test]
fn zeros_behind_gzip_are_nothing() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(GOOD.repeat(100).as_bytes()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("padded.csv.gz");
    fs::write(&path, [gzip.finish().unwrap(), vec![0; 512]].concat()).unwrap();
    assert_eq!(try_read(&path).unwrap(), 100);
}

#[cfg(unix)]
#[test]
fn a_pipe_among_the_logs_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let test = folder.path().join("test_01_x");
    fs::create_dir(&test).unwrap();
    fs::write(test.join("a.csv"), GOOD).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(test.join("pipe")).status().unwrap().success());
    assert_eq!(Dataset::open(folder.path()).unwrap().files.len(), 1);
    std::os::unix::fs::symlink(test.join("pipe"), test.join("pipe.csv")).unwrap();
    let error = Dataset::open(folder.path()).unwrap_err();
    assert!(matches!(error, CanError::NotAFile { .. }) && error.to_string().contains("pipe.csv"), "{error}");
}

#[test]
fn a_flipped_bit_in_gzip_is_found_by_its_checksum() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    gzip.write_all(GOOD.repeat(5000).as_bytes()).unwrap();
    let mut bytes = gzip.finish().unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flipped.csv.gz");
    fs::write(&path, bytes).unwrap();
    assert!(matches!(error_of(&path), CanError::Damaged { .. }));
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live.csv");
    for grows in [true, false] {
        fs::write(&path, GOOD.repeat(200_000)).unwrap();
        let mut log = open_log(&path, None).unwrap();
        let mut frames = Vec::new();
        log.read_block(10, &mut frames).unwrap();
        let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        if grows {
            (&file).write_all(GOOD.as_bytes()).unwrap();
        } else {
            file.set_len(1_000_000).unwrap();
        }
        let error = loop {
            match log.read_block(1000, &mut frames) {
                Ok(0) => panic!("the change was not seen"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error, CanError::ChangedWhileRead { .. }), "{error}");
    }
}

#[test]
fn folders_that_are_no_dataset_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    let error = |root: &Path| Dataset::open(root).unwrap_err();
    assert!(matches!(error(&root), CanError::MissingFolder { .. }));
    fs::write(&root, "x").unwrap();
    assert!(matches!(error(&root), CanError::NotAFolder { .. }));
    fs::remove_file(&root).unwrap();
    fs::create_dir_all(root.join("notes")).unwrap();
    fs::write(root.join("train_01_attack_free"), "a file, not a folder").unwrap();
    let text = error(&root).to_string();
    assert!(text.contains("notes, train_01_attack_free") && text.contains("train_02_with_attacks/"), "{text}");
    fs::remove_file(root.join("train_01_attack_free")).unwrap();
    fs::create_dir_all(root.join("train_01_attack_free/deeper.csv")).unwrap();
    fs::write(root.join("train_01_attack_free/README.md"), "x").unwrap();
    fs::write(root.join("train_01_attack_free/.hidden.csv"), "x").unwrap();
    let text = error(&root).to_string();
    assert!(text.contains("no log file in train_01_attack_free") && text.contains(".csv"), "{text}");
    fs::write(root.join("train_01_attack_free/drive.csv.gz"), "x").unwrap();
    let dataset = Dataset::open(&root).unwrap();
    assert_eq!((dataset.name.as_str(), dataset.files.len()), ("data", 1));
}

/// Repeats a test of this file in a process whose user, root, is refused like any other: root reads every file only by two
/// capabilities, which `setpriv` (util-linux) takes away.
#[cfg(unix)]
fn repeat_without_override(test: &str) {
    use std::process::Command;
    const REPEATED: &str = "KDGAT_TEST_WITHOUT_OVERRIDE";
    assert!(std::env::var_os(REPEATED).is_none(), "the file can be read without the capabilities, too");
    let capabilities = "-dac_override,-dac_read_search";
    let mut again = Command::new("setpriv");
    again.args(["--inh-caps", capabilities, "--bounding-set", capabilities]).arg(std::env::current_exe().unwrap());
    let test = test_name(module_path!(), test);
    assert_passed(&again.args(["--exact", &test]).env(REPEATED, "1").output().expect("setpriv is part of util-linux"));
}

#[cfg(unix)]
#[test]
fn what_may_not_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let train = folder.path().join("train_01_attack_free");
    fs::create_dir(&train).unwrap();
    let log = train.join("locked.csv");
    fs::write(&log, GOOD).unwrap();
    let lock = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    lock(&log, 0);
    if fs::read(&log).is_ok() {
        return repeat_without_override("what_may_not_be_read_is_named");
    }
    assert!(matches!(error_of(&log), CanError::Open { .. }));
    lock(&train, 0);
    let error = Dataset::open(folder.path()).unwrap_err();
    assert!(matches!(error, CanError::UnreadableFolder { .. }), "{error}");
    lock(&train, 0o755);
}

#[test]
fn a_hundred_thousand_files_are_listed_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let train = folder.path().join("train_01_attack_free");
    fs::create_dir(&train).unwrap();
    // Links: file systems take long to find room for as many new files, and for a while after these are gone, too.
    let path = |number: u32| train.join(format!("{number:06}.csv"));
    for number in 0..100_000 {
        match number % 1000 {
            0 => drop(fs::File::create(path(number)).unwrap()),
            later => fs::hard_link(path(number - later), path(number)).unwrap(),
        }
    }
    let dataset = Dataset::open(folder.path()).unwrap();
    assert_eq!(dataset.files.len(), 100_000);
    assert!(dataset.files.is_sorted_by_key(|file| &file.path));
}

/// A program without the decoders says how to build one that has them.
#[cfg(not(feature = "compressed"))]
#[test]
fn zstd_and_xz_need_a_feature() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    for (name, head) in [("zstd", &b"\x28\xB5\x2F\xFD\x04\x00"[..]), ("xz", b"\xFD7zXZ\x00\x00")] {
        fs::write(&path, head).unwrap();
        let error = error_of(&path).to_string();
        assert!(
            error.contains(&format!("compressed with {name}")) && error.contains("--features compressed"),
            "{error}"
        );
    }
}
