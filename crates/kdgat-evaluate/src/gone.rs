//! IDs that fall silent for the rest of a drive, beside what a model says about its windows.
//!
//! A window from which on an ID is [gone](kdgat_graph::profile::gone) is called an attack whatever its score. Labels know frames, not their
//! absence: where an attacker silences an ID and stops sending in its place, the windows after the last forged frame are labelled attack-free. So
//! the silence of an ID that has sent attack frames before is the aftermath of that attack. It is found, and no false alarm.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Serialize;

use super::EvaluateError;
use kdgat_graph::profile::{GoneId, GoneWatch};
use kdgat_graph::{CarProfile, GraphView, Store};

/// IDs that are gone since a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Gone {
    /// The IDs, ascending.
    pub ids: Vec<GoneId>,
    /// True if each of them has sent attack frames before in this drive.
    pub is_aftermath: bool,
}

/// Follows the IDs of a drive.
#[derive(Debug, Clone)]
pub struct DriveWatch {
    watch: GoneWatch,
    /// IDs that have sent attack frames, by the labels.
    attackers: BTreeSet<u32>,
}

impl DriveWatch {
    /// Begins a drive of a car with this profile.
    pub fn new(profile: &CarProfile) -> Self {
        Self { watch: GoneWatch::new(profile), attackers: BTreeSet::new() }
    }

    /// Takes the drive's next window; returns the IDs that are gone since this window, if any.
    pub fn push(&mut self, view: &GraphView<'_>) -> Option<Gone> {
        if view.attack {
            let mut first_frame = 0;
            for (&can_id, &frames) in view.can_ids.iter().zip(view.frames.of_node) {
                let mut of_node = first_frame..first_frame + usize::from(frames);
                first_frame = of_node.end;
                if of_node.any(|index| view.frames.frame(index).attack) {
                    self.attackers.insert(can_id);
                }
            }
        }
        let ids = self.watch.push(view);
        let is_aftermath = ids.iter().all(|gone| self.attackers.contains(&gone.can_id));
        (!ids.is_empty()).then_some(Gone { ids, is_aftermath })
    }
}

/// A window of a file from which on IDs are gone.
#[derive(Debug, Clone, PartialEq)]
pub struct GoneAlarm {
    /// Position of the window in its file.
    pub graph: usize,
    /// Time of its first frame, in seconds.
    pub time: f64,
    /// Label of the window.
    pub attack: bool,
    /// The IDs.
    pub gone: Gone,
}

impl GoneAlarm {
    /// True if the window counts as called an attack: the aftermath of an attack does not, where the labels call it attack-free.
    pub fn counts(&self) -> bool {
        self.attack || !self.gone.is_aftermath
    }

    /// Says whether the alarm is right, an aftermath of an attack, or false.
    pub fn outcome(&self) -> Outcome {
        match (self.attack, self.gone.is_aftermath) {
            (true, _) => Outcome::Found,
            (false, true) => Outcome::Aftermath,
            (false, false) => Outcome::FalseAlarm,
        }
    }
}

/// The verdict on an alarm about an ID that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The window has an attack.
    Found,
    /// The ID has sent attack frames before.
    Aftermath,
    /// Neither of both.
    FalseAlarm,
}

impl Outcome {
    /// In words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Aftermath => "found, not a false alarm: it had sent attack frames",
            Self::FalseAlarm => "a false alarm",
        }
    }
}

/// The windows of a file, which are `graphs` of a store of the profile set, from which on IDs of a car with this profile are gone.
///
/// # Errors
/// Fails if a graph cannot be read.
pub fn of_file(store: &Store, graphs: Range<u64>, profile: &CarProfile) -> Result<Vec<GoneAlarm>, EvaluateError> {
    let mut watch = DriveWatch::new(profile);
    let mut alarms = Vec::new();
    for (graph, position) in graphs.enumerate() {
        let view = store.try_graph(position)?;
        if let Some(gone) = watch.push(&view) {
            alarms.push(GoneAlarm { graph, time: view.start_time, attack: view.attack, gone });
        }
    }
    Ok(alarms)
}

/// A line of the report about IDs that are gone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GoneRow {
    /// Name of the test folder.
    pub folder: String,
    /// Name of the file.
    pub file: String,
    /// `none`, or the traffic that calibrated the model.
    pub calibration: String,
    /// Time of the window, in seconds.
    pub time: f64,
    /// The IDs in hexadecimal.
    pub ids: Vec<String>,
    /// Words on each of them.
    pub unusual: Vec<String>,
    /// The verdict on the alarm.
    pub counts_as: Outcome,
}

impl GoneRow {
    /// The row of an alarm.
    pub fn new(folder: &str, file: &str, calibration: &str, alarm: &GoneAlarm) -> Self {
        let ids = &alarm.gone.ids;
        Self {
            folder: folder.to_owned(),
            file: file.to_owned(),
            calibration: calibration.to_owned(),
            time: alarm.time,
            ids: ids.iter().map(|gone| format!("{:03X}", gone.can_id)).collect(),
            unusual: ids.iter().map(GoneId::reason).collect(),
            counts_as: alarm.outcome(),
        }
    }

    /// `drive-1: 148: gone for 12.0 s, longest silence ever 0.30 s (a false alarm)`.
    pub fn text(&self) -> String {
        let named: Vec<String> =
            self.ids.iter().zip(&self.unusual).map(|(id, unusual)| format!("{id}: {unusual}")).collect();
        format!("{}: {} ({})", self.file, named.join("; "), self.counts_as.describe())
    }
}
