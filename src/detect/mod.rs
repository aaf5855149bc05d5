//! Scores a stream of frames window by window, with one trained model: what runs in the car.
//!
//! Frames go through the same windows, features and forward as a store's graphs do in an evaluation, one window at a
//! time; what is held is one window and one graph. A window is given out when the frame after it has come, since that is
//! where its last edge leads to.

pub mod duration;
mod live;
pub mod source;

use serde::Serialize;
use tch::Device;

use crate::can::Frame;
use crate::evaluate::scores::Profiled;
use crate::evaluate::{CarScale, EvaluateError, ScoreKind, Scorer, TrainedModel};
use crate::graph::assemble::Assembler;
use crate::graph::features::{FeatureExtractor, LONGEST_WINDOW};
use crate::graph::window::Windows;
use crate::graph::{AssembleOptions, Columns};
use crate::interrupt;
use crate::memory::{Meter, by_halves, retry_on_oom};
use crate::nn::attention::Backend;

pub use duration::Duration;
pub use source::FrameStream;

/// Where windows begin, and what a score means.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectOptions {
    /// Frames from one window to the next.
    pub stride: usize,
    /// What is called an attack.
    pub threshold: AttackAbove,
    /// The car's own scale, if the model was calibrated for it.
    pub car: Option<CarScale>,
}

/// What is called an attack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AttackAbove {
    /// Windows of a higher score.
    Score(f64),
    /// Windows of more deviations on the car's own scale; of a higher score where there is none.
    Deviations(f64),
}

/// What is known of one window: a line of output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Detection {
    /// Counted from 0.
    pub window: u64,
    /// Position in the stream of its first frame.
    pub first_frame: u64,
    /// Timestamp of its first frame, in seconds.
    pub time: f64,
    /// P(attack), or the difficulty.
    pub score: f64,
    /// `attack` or `normal`.
    pub label: &'static str,
    /// The CAN ID that contributes most, in hexadecimal.
    pub id: String,
    /// How much: see [`Explained`](crate::evaluate::scores::Explained).
    pub contribution: f32,
    /// Robust deviations above what is usual for the car, if the model was calibrated for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviations: Option<f64>,
}

/// A model at work on a stream.
#[derive(Debug)]
pub struct Detector {
    scorer: Scorer,
    kind: ScoreKind,
    options: DetectOptions,
    assemble: AssembleOptions,
    windows: Windows,
    extractor: FeatureExtractor,
    columns: Columns,
    assembler: Assembler,
    scored: u64,
    foreign: u64,
}

impl Detector {
    /// A detector with the model's own window and vocabulary.
    ///
    /// # Errors
    /// Weights that do not fit, or a model that does not say how long its windows are.
    pub fn new(model: &TrainedModel, options: DetectOptions, device: Device) -> Result<Self, EvaluateError> {
        let window = model.description.window;
        if !(2..=LONGEST_WINDOW).contains(&window) || options.stride == 0 {
            return Err(EvaluateError::Input(format!(
                "{} says that its windows have {window} frames, {} apart; windows have 2 to {LONGEST_WINDOW} frames \
                 and are at least 1 apart",
                model.name, options.stride
            )));
        }
        let scorer = Scorer::new(model, device, Backend::Auto)?;
        Ok(Self {
            kind: scorer.kind(),
            assemble: scorer.assemble_options(),
            columns: Columns::new(scorer.features()),
            scorer,
            windows: Windows::new(window, options.stride),
            extractor: FeatureExtractor::new(window),
            assembler: Assembler::default(),
            options,
            scored: 0,
            foreign: 0,
        })
    }

    /// Takes the next frames of the stream, and calls `each` with every window that they complete.
    ///
    /// # Errors
    /// The first error of `each`, or of libtorch.
    pub fn push<E: From<EvaluateError>>(
        &mut self,
        frames: &[Frame],
        mut each: impl FnMut(Detection) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { scorer, kind, options, assemble, windows, extractor, columns, assembler, scored, foreign } = self;
        windows.push(frames, |first_frame, window| {
            columns.clear();
            extractor.append_graph(window, 0, first_frame, columns);
            let assembled = || Ok::<_, EvaluateError>(assembler.assemble_columns(columns, assemble)?);
            let batch = retry_on_oom(Meter::new(Device::Cpu), assembled)?;
            let explained = retry_on_oom(Meter::new(scorer.device()), || scorer.explain(&batch, options.car.as_ref()))?;
            let score = kind.score(explained.window.raw);
            let deviations = options.car.as_ref().map(|car| car.deviations(&explained.window));
            let is_attack = match options.threshold {
                AttackAbove::Score(threshold) => score > threshold,
                AttackAbove::Deviations(threshold) => deviations.unwrap_or(score) > threshold,
            };
            *scored += 1;
            let unlisted = scorer.id_list().zip(explained.window.unlisted.as_ref());
            *foreign += u64::from(unlisted.is_some_and(|(list, window)| list.of_window(&window.can_ids) > 0.0));
            each(Detection {
                window: *scored - 1,
                first_frame,
                time: window[0].timestamp,
                score,
                label: if is_attack { "attack" } else { "normal" },
                id: format!("{:03X}", explained.can_id),
                contribution: explained.contribution,
                deviations,
            })
        })
    }

    /// Windows among them that a classifier's own list of known IDs has made more likely attacks, whatever list decided.
    pub fn windows_with_unknown_ids(&self) -> u64 {
        self.foreign
    }

    /// Whether it reads the car by a scale of its own.
    pub fn is_calibrated(&self) -> bool {
        self.options.car.is_some()
    }

    /// Windows given out so far.
    pub fn windows(&self) -> u64 {
        self.scored
    }
}

/// Scores and profiles of the windows of a stream, and whether each has an attack: what a calibration is made from. Counts how
/// long the traffic lasts, and ends where the count is full.
///
/// # Errors
/// When the stream cannot be read, or libtorch fails.
pub fn profiled(
    scorer: &Scorer,
    window: usize,
    stride: usize,
    stream: &mut FrameStream,
    duration: &mut Duration,
) -> Result<(Vec<Profiled>, Vec<bool>), EvaluateError> {
    let mut windows = Windows::new(window, stride);
    let mut extractor = FeatureExtractor::new(window);
    let (mut columns, mut assembler) = (Columns::new(scorer.features()), Assembler::default());
    let options = scorer.assemble_options();
    let (mut frames, mut scored, mut attacks) = (Vec::new(), Vec::new(), Vec::new());
    let mut flush = |columns: &mut Columns| -> Result<(), EvaluateError> {
        if columns.num_graphs() > 0 {
            let assembled = || Ok::<_, EvaluateError>(assembler.assemble_columns(columns, &options)?);
            let batch = retry_on_oom(Meter::new(Device::Cpu), assembled)?;
            scored.extend(by_halves(Meter::new(scorer.device()), &batch, &mut |batch| scorer.profiled(batch))?);
            attacks.extend(columns.labels.iter().map(|label| *label != 0));
            columns.clear();
        }
        Ok(())
    };
    let mut more = true;
    duration.next_log();
    // A bus never ends: stopping is how its traffic does.
    while more && !duration.is_full() && !interrupt::requested() {
        more = stream.read(&mut frames)?;
        frames.truncate(duration.count(&frames));
        windows.push(&frames, |first_frame, window| {
            extractor.append_graph(window, 0, first_frame, &mut columns);
            if columns.num_graphs() == crate::evaluate::scores::BATCH_GRAPHS { flush(&mut columns) } else { Ok(()) }
        })?;
    }
    flush(&mut columns)?;
    Ok((scored, attacks))
}
