//! Properties that must hold for any bytes: nothing panics, every frame is valid, and every way to read a log gives the same.
#![allow(dead_code)] // Each target uses one function.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kdgat::can::formats::{StreamReader, format_of_pieces};
use kdgat::can::{Format, Frame, ReadOptions, ReadReport, open_log, read_piece};
use kdgat::distill::Weights;
use kdgat::graph::Store;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Maximum number of frames to read: a few compressed bytes can expand to any number.
const MOST_FRAMES: usize = 200_000;

/// Reads the bytes as a stream in small pieces, in every format.
pub fn stream(bytes: &[u8]) {
    for format in Format::TEXT.into_iter().map(Some).chain([None]) {
        read_stream(bytes, format);
    }
}

fn read_stream(bytes: &[u8], format: Option<Format>) -> Option<Vec<Frame>> {
    let step = 1 + bytes.len() % 61;
    let mut reader = StreamReader::new(Drip(bytes, step), Path::new("fuzz"), format, &ReadOptions::default());
    let (mut frames, mut all) = (Vec::new(), Vec::new());
    let ended = loop {
        match reader.read_available(&mut frames) {
            Ok(more) => {
                all.extend_from_slice(&frames);
                if !more {
                    break true;
                }
            }
            Err(_) => break false,
        }
    };
    check(&all, reader.report());
    ended.then_some(all)
}

/// Reads the bytes as a file, in every format and with recognised format and compression.
pub fn logs(bytes: &[u8]) {
    let path = file("log.csv", bytes);
    for format in Format::TEXT.into_iter().map(Some).chain([None]) {
        let (frames, whole) = read_log(&path, format);
        let compressed =
            matches!(bytes, [0x1F, 0x8B, ..] | [_, 0xB5, 0x2F, 0xFD, ..] | [_, 0x2A, 0x4D, 0x18, ..] | [0xFD, ..]);
        if whole && !compressed && format.is_some() {
            assert_eq!(read_stream(bytes, format).as_ref(), Some(&frames), "as a stream, {format:?}");
        }
    }
}

fn read_log(path: &Path, format: Option<Format>) -> (Vec<Frame>, bool) {
    let (mut all, mut block) = (Vec::new(), Vec::new());
    let Ok(mut log) = open_log(path, format) else { return (all, false) };
    let whole = loop {
        match log.read_block(97, &mut block) {
            Ok(0) => break true,
            Ok(_) if all.len() > MOST_FRAMES => break false,
            Ok(_) => all.extend_from_slice(&block),
            Err(_) => break false,
        }
    };
    if whole {
        check(&all, log.report());
    }
    (all, whole)
}

/// Checks that a CSV read in byte ranges gives the same frames as the whole CSV.
pub fn pieces(bytes: &[u8]) {
    let path = file("pieces.csv", bytes);
    for format in Format::TEXT {
        let Ok(Some(format)) = format_of_pieces(&path, Some(format)) else { continue };
        let (mut expected, mut block) = (Vec::new(), Vec::new());
        let Ok(mut log) = open_log(&path, Some(format)) else { continue };
        while log.read_block(1000, &mut block).is_ok_and(|count| count > 0) {
            expected.extend_from_slice(&block);
        }
        let length = bytes.len() as u64;
        let step = 1 + length / 7;
        let (mut found, mut report, mut lines, mut last) = (Vec::new(), ReadReport::default(), 0, None);
        for begin in (0..length).step_by(step as usize) {
            let range = begin..length.min(begin + step);
            let mut piece = read_piece(&path, format, range, length, &ReadOptions::default(), &mut block)
                .expect("a piece of a readable log");
            piece.follow(lines, last);
            (lines, last) = (lines + piece.lines, piece.last_timestamp.or(last));
            report.merge(&piece.report);
            found.extend_from_slice(&block);
        }
        assert_eq!(found, expected, "{format}");
        assert_eq!(&report, log.report(), "{format}");
    }
}

/// Reads the bytes as ROAD's metadata beside a log.
pub fn road(bytes: &[u8]) {
    let log = file("road/log.log", b"(1.0) can0 6E0#00F0\n(2.0) can0 6E0#01F0\n(2.5) can0 123#00\n");
    file("road/capture_metadata.json", bytes);
    let (frames, whole) = read_log(&log, None);
    assert!(!whole || frames.len() == 3, "labels never take frames away");
}

/// Reads the bytes as the manifest of a store.
pub fn manifest(bytes: &[u8]) {
    let path = file("store/store.json", bytes);
    if let Some(folder) = path.parent()
        && let Ok(store) = Store::open(folder)
    {
        let _ = store.verify();
    }
}

/// Reads the bytes as foreign weights: a safetensors file, a PyTorch archive, and the pickle inside one.
pub fn weights(bytes: &[u8]) {
    let archive = archive_with(bytes);
    for (name, bytes) in [("weights.safetensors", bytes), ("raw.pt", bytes), ("weights.pt", &archive)] {
        if let Ok(weights) = Weights::read(&file(name, bytes)) {
            assert!(weights.bytes() <= 16 * bytes.len() as u64 + (1 << 20), "{name} of {} bytes", bytes.len());
            assert!(weights.digest().len() == 64 && weights.iter().count() > 0 || name == "weights.safetensors");
        }
    }
}

/// Archive in the form of `torch.save`, with this pickle and two storages.
fn archive_with(pickle: &[u8]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in [("data.pkl", pickle), ("data/0", &[0x3c; 64]), ("data/1", &[7, 0, 0, 0, 0, 0, 0, 0])] {
        archive.start_file(format!("archive/{name}"), stored).expect("an archive in memory");
        archive.write_all(bytes).expect("an archive in memory");
    }
    archive.finish().expect("an archive in memory").into_inner()
}

fn check(frames: &[Frame], report: &ReadReport) {
    assert_eq!(report.frames, frames.len() as u64, "frames delivered and counted");
    assert_eq!(report.rows, report.frames + report.error_frames + report.rejected_rows(), "rows");
    assert_eq!(report.attack_frames, frames.iter().filter(|frame| frame.attack).count() as u64, "attack frames");
    let backward = frames.windows(2).filter(|pair| pair[1].timestamp < pair[0].timestamp).count();
    assert_eq!(report.backward_timestamps, backward as u64, "steps back in time");
    for frame in frames {
        assert!(frame.timestamp.is_finite() && frame.can_id < 1 << 29 && frame.payload_length <= 64, "{frame:?}");
        let absent = frame.payload.iter().skip(usize::from(frame.payload_length));
        assert!(absent.copied().all(|byte| byte == 0), "{frame:?}");
    }
}

/// Reader that returns a few bytes at a time.
struct Drip<'a>(&'a [u8], usize);

impl std::io::Read for Drip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.1.min(self.0.len()).min(buffer.len());
        buffer[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

/// Writes a file into the temporary folder of this process and thread.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let memory = Path::new("/dev/shm");
    let create = || match memory.is_dir() {
        true => tempfile::tempdir_in(memory).expect("a folder in memory"),
        false => tempfile::tempdir().expect("a folder"),
    };
    // Tests run in parallel in one process.
    let path = FOLDER.get_or_init(create).path().join(format!("{:?}", std::thread::current().id())).join(name);
    fs::create_dir_all(path.parent().expect("within the folder")).expect("a folder");
    fs::write(&path, bytes).expect("a file");
    path
}
