//! Helpers of several test files.

use std::path::Path;

use kdgat::can::{Frame, LogReader, ReadReport, open_log};

/// All frames of a log, read in blocks of `limit`, and the report.
pub fn read_all(mut log: LogReader, limit: usize) -> (Vec<Frame>, ReadReport) {
    let (mut frames, mut block) = (Vec::new(), Vec::new());
    while log.read_block(limit, &mut block).unwrap() > 0 {
        assert!(block.len() <= limit, "a block of {} frames, wanted at most {limit}", block.len());
        frames.extend_from_slice(&block);
    }
    (frames, log.report().clone())
}

/// All frames of the log at `path`, in any format.
pub fn read_log(path: &Path) -> (Vec<Frame>, ReadReport) {
    read_all(open_log(path, None).unwrap(), 4096)
}

/// The text, compressed.
#[cfg(feature = "compressed")]
pub fn xz(text: &[u8], level: u32) -> Vec<u8> {
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), level);
    std::io::Write::write_all(&mut xz, text).unwrap();
    xz.finish().unwrap()
}
