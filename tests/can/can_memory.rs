//! Memory while reading, in a process of its own, because the system reports the peak of a whole process.

use std::fs;
use std::io::Write;
use support::process::runs_alone;

use crate::reading::read_log;
use kdgat::can::RejectReason;

const GOOD: &str = "1.0,123,00FF,0\n";

#[test]
fn an_endless_line_is_passed_over_in_little_memory() {
    if !runs_alone(module_path!(), "an_endless_line_is_passed_over_in_little_memory") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.csv");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(GOOD.as_bytes()).unwrap();
    for _ in 0..100 {
        file.write_all(&vec![b'7'; 1 << 20]).unwrap();
    }
    file.write_all(format!("\n{GOOD}{}\n{GOOD}{}", "1".repeat(65_537), "2".repeat(70_000)).as_bytes()).unwrap();
    drop(file);
    let before = resident_bytes();
    let (frames, report) = read_log(&path);
    assert_eq!((frames.len(), report.rejected_rows()), (3, 3));
    let lines: Vec<u64> = report.rejected[&RejectReason::LineTooLong].first.iter().map(|place| place.line).collect();
    assert_eq!(lines, [2, 4, 6]);
    if let (Some(before), Some(after)) = (before, resident_bytes()) {
        assert!(after < before + (20 << 20), "a line of 100 MB took {} bytes", after - before);
    }
}

/// Peak memory of this process, if the system reports it.
fn resident_bytes() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? << 10)
}
