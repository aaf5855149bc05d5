//! Cuts a file's frames into windows, independent of the blocks in which they arrive.

use kdgat_can::Frame;

/// Cuts blocks of frames into windows of `window` frames, `stride` frames apart.
///
/// A window is delivered with the frame after it, to which the edge of its last frame leads. A file's last frame has no
/// edge, so a file of `n` frames has `(n - 1 - window) / stride + 1` windows. Use one `Windows` per file.
#[derive(Debug, Clone)]
pub struct Windows {
    window: usize,
    stride: usize,
    /// Frames from `first_frame` on that later windows still need.
    pending: Vec<Frame>,
    /// Position in the file of the next window's first frame.
    first_frame: u64,
    /// Frames to skip before that frame, if the stride reaches beyond the frames read so far.
    skip: usize,
}

/// Number of windows of a file with `frames` frames.
pub fn count_windows(frames: u64, window: u64, stride: u64) -> u64 {
    if frames > window { (frames - 1 - window) / stride + 1 } else { 0 }
}

/// State of [`Windows`] in the middle of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WindowState {
    /// Position in the file of the next window's first frame.
    pub first_frame: u64,
    /// Frames to skip before that frame.
    pub skip: usize,
    /// Frames from that frame on.
    pub pending: Vec<Frame>,
}

impl Windows {
    /// Creates windows of `window` frames whose starts are `stride` frames apart (both at least 1).
    pub fn new(window: usize, stride: usize) -> Self {
        assert!(window >= 1 && stride >= 1, "window {window} and stride {stride} must be at least 1");
        Self { window, stride, pending: Vec::new(), first_frame: 0, skip: 0 }
    }

    /// Resumes in the middle of a file from a state of [`Windows::state_after`].
    pub fn resume(&mut self, state: WindowState) {
        (self.first_frame, self.skip) = (state.first_frame, state.skip);
        self.pending.clear();
        self.pending.extend_from_slice(&state.pending);
    }

    /// The state that [`Windows::push`] of `frames` would lead to, computed without changing `self`.
    pub fn state_after(&self, frames: &[Frame]) -> WindowState {
        let passed = self.skip.min(frames.len());
        let frames = &frames[passed..];
        let available = self.pending.len() + frames.len();
        let windows = count_windows(available as u64, self.window as u64, self.stride as u64) as usize;
        let begin = windows * self.stride;
        let used = begin.min(available);
        let from_pending = &self.pending[used.min(self.pending.len())..];
        let from_frames = &frames[used.saturating_sub(self.pending.len())..];
        WindowState {
            first_frame: self.first_frame + begin as u64,
            skip: self.skip - passed + begin - used,
            pending: [from_pending, from_frames].concat(),
        }
    }

    /// Position in the file of the next window's first frame.
    pub fn next_first_frame(&self) -> u64 {
        self.first_frame
    }

    /// Starts another file, reusing the memory.
    pub fn restart(&mut self) {
        self.pending.clear();
        self.first_frame = 0;
        self.skip = 0;
    }

    /// Adds the file's next frames and calls `each` for every window that they complete, with the position of its first
    /// frame in the file and its `window + 1` frames.
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
            begin = begin.saturating_add(self.stride);
            self.first_frame = self.first_frame.saturating_add(self.stride as u64);
        }
        let used = begin.min(self.pending.len());
        self.skip += begin - used;
        self.pending.drain(..used);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(count: usize) -> Vec<Frame> {
        let frame = |id| Frame { timestamp: 0.0, can_id: id, payload: [0; 8], payload_length: 0, attack: false };
        (0..count as u32).map(frame).collect()
    }

    /// First frame and IDs of each window.
    fn collect(windows: &mut Windows, frames: &[Frame], found: &mut Vec<(u64, Vec<u32>)>) {
        let each = |first, window: &[Frame]| {
            found.push((first, window.iter().map(|frame| frame.can_id).collect()));
            Ok::<(), ()>(())
        };
        windows.push(frames, each).unwrap();
    }

    proptest! {
        #[test]
        fn windows_are_the_obvious_ones_for_any_blocks(
            count in 0usize..400,
            window in 2usize..60,
            stride in 1usize..120,
            blocks in prop::collection::vec(1usize..90, 1..12),
        ) {
            let all = frames(count);
            let starts = (0..count).step_by(stride).filter(|start| start + window < count);
            let obvious: Vec<(u64, Vec<u32>)> =
                starts.map(|start| (start as u64, (start as u32..=(start + window) as u32).collect())).collect();
            // Once in blocks, once with a fresh start from the state at each border of a block.
            for restarts in [false, true] {
                let (mut windows, mut found, mut rest) = (Windows::new(window, stride), Vec::new(), all.as_slice());
                for size in blocks.iter().cycle() {
                    let (block, others) = rest.split_at(rest.len().min(*size));
                    let state = windows.state_after(block);
                    collect(&mut windows, block, &mut found);
                    if restarts {
                        windows = Windows::new(window, stride);
                        windows.resume(state);
                    }
                    rest = others;
                    if rest.is_empty() {
                        break;
                    }
                }
                prop_assert_eq!(&found, &obvious, "restarts: {}", restarts);
            }
        }
    }
}
