//! Runs the programs of examples/.

use std::fs;
use std::path::Path;

use kdgat::can::{RejectReason, open_log};

#[path = "../../examples/log_format.rs"]
mod log_format;
#[path = "../../examples/own_loss.rs"]
mod own_loss;
#[path = "../../examples/own_teacher.rs"]
mod own_teacher;

/// A log as PCAN-View writes it, with one damaged line.
const TRC: &str = "\
;$FILEVERSION=1.1
;   Message Number
;   |         Time Offset (ms)
     1)      1841.1  Rx         02C1  3  A0 00 FF
     2)      1842.7  Tx     18FF1234  8  00 01 02 03 04 05 06 07
     3)      1843.0  Warng  FFFFFFFF  4  00 00 00 04  BUSLIGHT
     4)      1844.5  Rx         0002  2  00 XY
     5)      1850.0  Rx         0002  0  RTR
     6)      1851.0  Error      0002  4  00 00 00 00
";

#[test]
fn a_log_format_of_your_own() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("drive.trc"), folder.path().join("drive.log"));
    fs::write(&from, TRC).unwrap();
    let report = log_format::convert(&from, &to).unwrap();
    assert_eq!((report.rows, report.frames, report.error_frames, report.skipped_lines), (5, 3, 1, 4));
    assert_eq!(report.rejected.keys().collect::<Vec<_>>(), [&RejectReason::DataNotHex]);

    let (mut frames, mut reader) = (Vec::new(), open_log(&to, None).unwrap());
    assert_eq!(reader.read_block(10, &mut frames).unwrap(), 3);
    let found: Vec<_> = frames.iter().map(|frame| (frame.timestamp, frame.can_id, frame.payload_length)).collect();
    assert_eq!(found, [(1.8411, 0x2C1, 3), (1.8427, 0x18FF_1234, 8), (1.85, 2, 0)]);
    assert_eq!(frames[0].payload[..3], [0xA0, 0x00, 0xFF]);
}

#[test]
fn a_loss_of_your_own() {
    let folder = tempfile::tempdir().unwrap();
    let teachers = Path::new(env!("CARGO_MANIFEST_DIR")).join("teachers");
    let summary = own_loss::distil(folder.path(), &teachers, 3).unwrap();
    assert_eq!(summary.position.epoch, 3);
    let run = folder.path().join("runs/1");
    assert!(run.join("best.safetensors").exists());
    let metrics = fs::read_to_string(run.join("metrics.csv")).unwrap();
    let mut rows = metrics.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = rows.next().unwrap();
    let column = header.iter().position(|name| *name == "val_cosine_kd").expect(&metrics);
    let distances: Vec<f64> = rows.map(|row| row[column].parse().unwrap()).collect();
    assert!(distances.len() == 3 && distances[2] < distances[0], "{distances:?}");
}

#[test]
fn a_teacher_of_your_own() {
    let own_teacher::Lesson { first, second, summary } = own_teacher::teach().unwrap();
    assert_eq!(first.len(), 4);
    assert!(first.iter().zip(&second).all(|(first, second)| first == second));
    // The second pass came from the cache.
    let graphs = 4 * 128;
    assert_eq!((summary.batches, summary.total.cache_miss_rows, summary.total.cache_hit_rows), (8, graphs, graphs));
    assert!(first.iter().all(|logits| logits.size() == [128, 2] && bool::try_from(logits.isfinite().all()).unwrap()));
}
