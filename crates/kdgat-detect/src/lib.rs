//! Online detection in the car: scores a stream of frames window by window with a trained model, or with a classifier and an autoencoder
//! together.
//!
//! Frames pass through the same windowing, features and forward pass as the graphs of a store in an evaluation, one window at a
//! time; only one window and one graph are in memory. A window is scored when the frame after it has arrived, because its last
//! edge leads to that frame.

#![warn(missing_docs)]

#[macro_use]
extern crate kdgat_base;

pub mod alarm;
mod drowning;
pub mod duration;
mod live;
mod member;
pub mod source;

use serde::Serialize;
use tch::Device;

use kdgat_can::Frame;
use kdgat_evaluate::gone::{DriveWatch, Gone};
use kdgat_evaluate::operator::{Cut, JudgedWindow, OperatorFigures, Watch};
use kdgat_evaluate::scores::Profiled;
use kdgat_evaluate::{CarScale, EvaluateError, Scale, ScoreKind, Scorer, TrainedModel};
use kdgat_graph::assemble::Assembler;
use kdgat_graph::features::LONGEST_WINDOW;
use kdgat_graph::graph_stream::ReadyWindow;
use kdgat_graph::profile::GoneId;
use kdgat_graph::profile::gone::MOST_REPORTED;
use kdgat_graph::{Columns, Culprit, GraphStream};
use kdgat_train::interrupt;
use kdgat_train::memory::{Meter, by_halves, retry_on_oom};

use drowning::Drowning;
use member::Members;

pub use duration::Duration;
pub use source::{FrameStream, SourceOptions};

/// Stride, threshold and scales of a detection.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectOptions {
    /// Frames from one window to the next.
    pub stride: usize,
    /// Threshold above which windows are called attacks.
    pub threshold: AttackAbove,
    /// The car's own scale for each model, if they were calibrated for it; otherwise empty.
    pub cars: Vec<CarScale>,
    /// Scale of each model's usual scores, on which the scores of two models are standardised; empty for one model.
    pub scales: Vec<Scale>,
}

/// Threshold above which windows are called attacks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AttackAbove {
    /// Threshold on the score.
    Score(f64),
    /// Threshold on the deviations on the car's own scale, or on the score without such a scale.
    Deviations(f64),
}

/// Result for one window: a line of output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Detection {
    /// Number of the window, from 0.
    pub window: u64,
    /// Position of its first frame in the stream.
    pub first_frame: u64,
    /// Timestamp of its first frame, in seconds.
    pub time: f64,
    /// P(attack), or the difficulty; of two models, the mean of their standardised scores.
    pub score: f64,
    /// The separate scores of two models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<SeparateScores>,
    /// `attack` or `normal`.
    pub label: &'static str,
    /// CAN ID that contributes most, in hexadecimal.
    pub id: String,
    /// Contribution of that ID: see [`Explained`](kdgat_evaluate::scores::Explained).
    pub contribution: f32,
    /// Robust deviations above what is usual for the car, if the model was calibrated for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviations: Option<f64>,
    /// For an alarm of a model of the profile set: the IDs that differ most from the car's profile, at most [`MOST_CULPRITS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub culprits: Vec<NamedCulprit>,
    /// IDs that are [gone](kdgat_graph::profile::gone) since this window, which makes it an attack whatever its score, in hexadecimal. They come
    /// first among the culprits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

impl Detection {
    /// True if the window was called an attack.
    pub fn is_attack(&self) -> bool {
        self.label == ATTACK
    }
}

/// Scores of a classifier and an autoencoder that judge together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SeparateScores {
    /// P(attack) by the classifier.
    pub gat: f64,
    /// Difficulty by the autoencoder.
    pub vgae: f64,
}

/// Label of a window that was called an attack.
const ATTACK: &str = "attack";

/// Culprits named for an alarm: all IDs that a window reports gone fit.
const MOST_CULPRITS: usize = MOST_REPORTED;

/// An ID that differs from the car's profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamedCulprit {
    /// The ID in hexadecimal.
    pub id: String,
    /// Its unusual events, the most surprising first.
    pub unusual: Vec<String>,
}

/// Share of right alarms whose first culprit sent attack frames, by the labels of the traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CulpritHits {
    /// Alarms for windows with an attack, of a model of the profile set.
    pub alarms: u64,
    /// Those whose first culprit sent an attack frame.
    pub first_is_attacker: u64,
}

impl From<&GoneId> for NamedCulprit {
    fn from(gone: &GoneId) -> Self {
        Self { id: format!("{:03X}", gone.can_id), unusual: vec![gone.reason()] }
    }
}

impl From<Culprit> for NamedCulprit {
    fn from(culprit: Culprit) -> Self {
        Self { id: format!("{:03X}", culprit.can_id), unusual: culprit.reasons }
    }
}

/// Scores a stream with one model, or with two together.
#[derive(Debug)]
pub struct Detector {
    members: Members,
    threshold: AttackAbove,
    graphs: GraphStream,
    columns: Columns,
    watch: Watch,
    /// IDs that may fall silent, for models of the profile set.
    drive: Option<DriveWatch>,
    /// IDs that are gone after they had sent attack frames, by the labels, in windows without an attack.
    aftermath_ids: u64,
    scored: u64,
    foreign: u64,
    culprit_hits: CulpritHits,
    drowning: Drowning,
}

impl Detector {
    /// Creates a detector with the models' own window and vocabularies. `models`: one, or the classifier and the autoencoder of an
    /// [`Ensemble`](kdgat_evaluate::Ensemble).
    ///
    /// # Errors
    /// Fails if the weights do not fit, a model does not state its window length, or two models lack a scale.
    pub fn new(models: &[&TrainedModel], options: DetectOptions, device: Device) -> Result<Self, EvaluateError> {
        let DetectOptions { stride, threshold, cars, scales } = options;
        for model in models {
            let window = model.description.window;
            if !(2..=LONGEST_WINDOW).contains(&window) || stride == 0 {
                return Err(EvaluateError::Input(format!(
                    "{}: its windows have {window} frames, {stride} apart; expected 2 to {LONGEST_WINDOW} frames, \
                     at least 1 apart",
                    model.name
                )));
            }
        }
        let window = models.first().map_or(LONGEST_WINDOW, |model| model.description.window);
        let members = Members::new(models, cars, scales, device)?;
        let features = members.features();
        Ok(Self {
            drive: members.profile().map(DriveWatch::new),
            aftermath_ids: 0,
            members,
            threshold,
            columns: Columns::new(features),
            graphs: GraphStream::new(features, window, stride),
            watch: Watch::new(Cut { window, stride }),
            scored: 0,
            foreign: 0,
            culprit_hits: CulpritHits::default(),
            drowning: Drowning::default(),
        })
    }

    /// Processes the next frames of the stream and calls `each` for every window that they complete.
    ///
    /// # Errors
    /// Returns the first error of `each` or of libtorch.
    pub fn push<E: From<EvaluateError>>(
        &mut self,
        frames: &[Frame],
        mut each: impl FnMut(Detection) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self {
            members,
            threshold,
            graphs,
            columns,
            watch,
            drive,
            aftermath_ids,
            scored,
            foreign,
            culprit_hits,
            drowning,
        } = self;
        graphs.push(frames, |mut window| {
            columns.clear();
            window.append_to(0, columns);
            let judged = members.judge(columns)?;
            let is_above = match *threshold {
                AttackAbove::Score(threshold) => judged.score > threshold,
                AttackAbove::Deviations(threshold) => judged.deviations.unwrap_or(judged.score) > threshold,
            };
            let gone = drive.as_mut().and_then(|drive| drive.push(&columns.graph(0)));
            let is_attack = is_above || gone.is_some();
            *scored += 1;
            *foreign += u64::from(judged.has_unknown_id);
            let (start, attack) = (window.frames[0].timestamp, columns.labels.last() == Some(&1));
            // As in an evaluation, the aftermath of an attack is no false alarm.
            let aftermath = gone.as_ref().filter(|gone| gone.is_aftermath && !attack);
            *aftermath_ids += aftermath.map_or(0, |gone| gone.ids.len() as u64);
            let counts = is_above || gone.is_some() && aftermath.is_none();
            watch.push(JudgedWindow { start, attack, alarm: counts, counted: true });
            drowning.push(start, is_above);
            let culprits = match members.profile() {
                Some(profile) if is_attack => profile.culprits(&columns.graph(0), MOST_CULPRITS),
                _ => Vec::new(),
            };
            if attack && is_above && members.profile().is_some() {
                culprit_hits.alarms += 1;
                culprit_hits.first_is_attacker +=
                    u64::from(culprits.first().is_some_and(|first| first.attack_frames > 0));
            }
            each(Detection {
                window: *scored - 1,
                first_frame: window.first_frame,
                time: start,
                score: judged.score,
                scores: judged.scores,
                label: if is_attack { ATTACK } else { "normal" },
                id: format!("{:03X}", judged.can_id),
                contribution: judged.contribution,
                deviations: judged.deviations,
                culprits: with_gone(gone.as_ref(), culprits),
                gone: gone.iter().flat_map(|gone| &gone.ids).map(|gone| format!("{:03X}", gone.can_id)).collect(),
            })
        })
    }

    /// Meaning of its scores; `None`: the mean of two models' standardised scores.
    pub fn kind(&self) -> Option<ScoreKind> {
        self.members.kind()
    }

    /// Number of scored windows to which the classifier's own ID list adds evidence of an attack, even if a car's list decided.
    pub fn windows_with_unknown_ids(&self) -> u64 {
        self.foreign
    }

    /// Share of right alarms whose first culprit sent attack frames.
    pub fn culprit_hits(&self) -> CulpritHits {
        self.culprit_hits
    }

    /// Number of IDs that are gone, in windows without an attack, and had sent attack frames before, by the labels.
    pub fn aftermath_ids(&self) -> u64 {
        self.aftermath_ids
    }

    /// The share of a minute's windows that were called attacks, if one has exceeded ten times this false-positive rate: the traffic is of
    /// another kind than it knows, or a long attack.
    pub fn drowns(&self, rate: f64) -> Option<f64> {
        self.drowning.share_above(rate)
    }

    /// True if it uses a car's own scale.
    pub fn is_calibrated(&self) -> bool {
        self.members.is_calibrated()
    }

    /// Number of windows scored so far.
    pub fn windows(&self) -> u64 {
        self.scored
    }

    /// Operator figures of the stream, which has ended. Without labels all its traffic counts as attack-free.
    pub fn into_figures(self) -> OperatorFigures {
        self.watch.finish()
    }
}

/// The IDs that are gone, then other culprits, at most [`MOST_CULPRITS`].
fn with_gone(gone: Option<&Gone>, culprits: Vec<Culprit>) -> Vec<NamedCulprit> {
    let ids = gone.map_or(&[][..], |gone| &gone.ids);
    let is_other = |culprit: &Culprit| ids.iter().all(|gone| gone.can_id != culprit.can_id);
    let of_gone = ids.iter().map(NamedCulprit::from);
    of_gone.chain(culprits.into_iter().filter(is_other).map(NamedCulprit::from)).take(MOST_CULPRITS).collect()
}

/// Scores and profiles of the windows of a stream by each scorer, from which a calibration is made, and for each window whether it has
/// an attack. The scorers have the same features. Counts the duration of the traffic and stops when the count is full.
///
/// # Errors
/// Fails if the stream cannot be read, or on errors of libtorch.
pub fn profiled(
    scorers: &[Scorer],
    window: usize,
    stride: usize,
    stream: &mut FrameStream,
    duration: &mut Duration,
) -> Result<(Vec<Vec<Profiled>>, Vec<bool>), EvaluateError> {
    let mut assembler = Assembler::default();
    let mut scored = vec![Vec::new(); scorers.len()];
    let mut attacks = Vec::new();
    let mut flush = |columns: &mut Columns| -> Result<(), EvaluateError> {
        if columns.num_graphs() > 0 {
            for (scorer, scored) in scorers.iter().zip(&mut scored) {
                let options = scorer.assemble_options();
                let assembled = || Ok::<_, EvaluateError>(assembler.assemble_columns(columns, &options)?);
                let batch = retry_on_oom(Meter::new(Device::Cpu), assembled)?;
                scored.extend(by_halves(Meter::new(scorer.device()), &batch, &mut |batch| scorer.profiled(batch))?);
            }
            attacks.extend(columns.labels.iter().map(|label| *label != 0));
            columns.clear();
        }
        Ok(())
    };
    let Some(features) = scorers.first().map(Scorer::features) else { return Ok((scored, attacks)) };
    let mut columns = Columns::new(features);
    each_window(GraphStream::new(features, window, stride), stream, duration, |mut window| {
        window.append_to(0, &mut columns);
        if columns.num_graphs() == kdgat_evaluate::scores::BATCH_GRAPHS { flush(&mut columns) } else { Ok(()) }
    })?;
    flush(&mut columns)?;
    Ok((scored, attacks))
}

/// Appends the windows of a stream, which is log number `log`, to `columns`, at most `most` in all, to learn a car's profile from; returns true if there were more.
/// Counts the duration like [`profiled`].
///
/// # Errors
/// Fails if the stream cannot be read.
pub fn collect_windows(
    columns: &mut Columns,
    most: usize,
    cut: Cut,
    log: u32,
    stream: &mut FrameStream,
    duration: &mut Duration,
) -> Result<bool, EvaluateError> {
    let mut has_more = false;
    each_window(GraphStream::new(columns.features, cut.window, cut.stride), stream, duration, |mut window| {
        has_more = columns.num_graphs() >= most;
        if !has_more {
            window.append_to(log, columns);
        }
        Ok(())
    })?;
    Ok(has_more)
}

fn each_window(
    mut graphs: GraphStream,
    stream: &mut FrameStream,
    duration: &mut Duration,
    mut each: impl FnMut(ReadyWindow<'_>) -> Result<(), EvaluateError>,
) -> Result<(), EvaluateError> {
    let (mut frames, mut more) = (Vec::new(), true);
    duration.next_log();
    // A live bus never ends, so a stop request ends its traffic.
    while more && !duration.is_full() && !interrupt::requested() {
        more = stream.read(&mut frames)?;
        frames.truncate(duration.count(&frames));
        graphs.push(&frames, &mut each)?;
    }
    Ok(())
}
