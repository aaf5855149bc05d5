//! Frames of one file at a time in, graphs of their windows out: the one way from frames to graphs, for stores and live streams.

use kdgat_can::Frame;

use super::FeatureSet;
use super::columns::Columns;
use super::features::FeatureExtractor;
use super::history::{History, WindowFacts};
use super::window::{WindowState, Windows};

/// Cuts frames into windows and turns each into a graph; reuses its buffers.
#[derive(Debug)]
pub struct GraphStream {
    window: usize,
    windows: Windows,
    extractor: FeatureExtractor,
    /// Only for features that need the frames before a window.
    history: Option<History>,
}

/// A complete window, ready to become a graph.
#[derive(Debug)]
pub struct ReadyWindow<'a> {
    /// Position of the window's first frame in its file.
    pub first_frame: u64,
    /// The window's frames and the frame after it.
    pub frames: &'a [Frame],
    extractor: &'a mut FeatureExtractor,
    facts: Option<WindowFacts<'a>>,
}

impl ReadyWindow<'_> {
    /// Appends the window's graph to `columns`, whose feature set must be the stream's.
    pub fn append_to(&mut self, file: u32, columns: &mut Columns) {
        self.extractor.append_graph_with(self.frames, self.facts, file, self.first_frame, columns);
    }
}

impl GraphStream {
    /// Windows of `window` frames, `stride` frames apart, for graphs with these features.
    pub fn new(features: FeatureSet, window: usize, stride: usize) -> Self {
        let history = features.needs_history().then(History::default);
        Self { window, windows: Windows::new(window, stride), extractor: FeatureExtractor::new(window), history }
    }

    /// Starts another file, reusing the memory.
    pub fn restart(&mut self) {
        self.windows.restart();
        if let Some(history) = &mut self.history {
            history.restart();
        }
    }

    /// Resumes in the middle of a file; see [`Windows::resume`].
    ///
    /// # Panics
    /// When the features need the frames before a window: those files are read from their beginning.
    pub fn resume(&mut self, state: WindowState) {
        assert!(self.history.is_none(), "features with a history are not resumed in the middle of a file");
        self.windows.resume(state);
    }

    /// See [`Windows::state_after`].
    pub fn state_after(&self, frames: &[Frame]) -> WindowState {
        self.windows.state_after(frames)
    }

    /// Adds the file's next frames and calls `each` for every window that they complete.
    ///
    /// # Errors
    /// The first error of `each`.
    pub fn push<E>(
        &mut self,
        frames: &[Frame],
        mut each: impl FnMut(ReadyWindow<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { window, windows, extractor, history } = self;
        let Some(history) = history else {
            return windows
                .push(frames, |first_frame, frames| each(ReadyWindow { first_frame, frames, extractor, facts: None }));
        };
        // A window is complete when the frame after it arrives, which must not be observed yet.
        let begin = history.observed();
        let observe_until = |history: &mut History, position: u64| {
            let range = (history.observed() - begin) as usize..position.saturating_sub(begin) as usize;
            history.observe(frames.get(range).unwrap_or_default());
        };
        windows.push(frames, |first_frame, frames| {
            observe_until(history, first_frame + *window as u64);
            let facts = Some(history.window(first_frame, &frames[..*window]));
            each(ReadyWindow { first_frame, frames, extractor, facts })
        })?;
        observe_until(history, begin + frames.len() as u64);
        history.forget_before(windows.next_first_frame());
        Ok(())
    }
}
