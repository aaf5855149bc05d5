//! Windows over a file's frames, however the frames arrive.

use crate::can::Frame;

/// Cuts a stream of blocks of frames into windows of `window` frames, `stride` frames apart.
///
/// A window is handed out with the frame after it, which the last frame's edge leads to: a file's last frame has no
/// edge, so a file of `n` frames has `(n - 1 - window) / stride + 1` windows. One `Windows` serves one file.
#[derive(Debug)]
pub struct Windows {
    window: usize,
    stride: usize,
    /// Frames from `first_frame` on that no window has finished with.
    pending: Vec<Frame>,
    /// Position in the file of the next window's first frame.
    first_frame: u64,
    /// Frames still to pass over before that frame, when the stride is longer than what was read.
    skip: usize,
}

impl Windows {
    /// Windows of `window` frames whose starts are `stride` frames apart (both at least 1).
    pub fn new(window: usize, stride: usize) -> Self {
        assert!(window >= 1 && stride >= 1, "window {window} and stride {stride} must be at least 1");
        Self { window, stride, pending: Vec::new(), first_frame: 0, skip: 0 }
    }

    /// Starts another file, keeping the memory.
    pub fn restart(&mut self) {
        self.pending.clear();
        self.first_frame = 0;
        self.skip = 0;
    }

    /// Takes the file's next frames and calls `each` with every window that they complete: the position in the file of
    /// its first frame, and its `window + 1` frames.
    ///
    /// # Errors
    /// The first error of `each`.
    pub fn push<E>(&mut self, frames: &[Frame], mut each: impl FnMut(u64, &[Frame]) -> Result<(), E>) -> Result<(), E> {
        let passed = self.skip.min(frames.len());
        self.skip -= passed;
        self.pending.extend_from_slice(&frames[passed..]);
        let mut begin = 0;
        while begin + self.window < self.pending.len() {
            each(self.first_frame, &self.pending[begin..=begin + self.window])?;
            begin += self.stride;
            self.first_frame += self.stride as u64;
        }
        let used = begin.min(self.pending.len());
        self.skip += begin - used;
        self.pending.drain(..used);
        Ok(())
    }
}
