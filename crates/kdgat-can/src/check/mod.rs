//! A dataset looked at before anything is built or trained: what is in its logs, and what may mislead.
//!
//! Every log is read once ([`scan`]); then logs are compared with each other: copies, IDs that training never sees, benign
//! traffic that is both in training and in a test. [`findings`] says in sentences what a reader should know.

mod findings;
mod scan;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;

use super::dataset::{Dataset, Role, SourceFile};
use super::formats::Format;
use super::report::ReadReport;
use scan::Scan;

pub use scan::STRETCH_FRAMES;

/// IDs that a list names; the others are only counted.
const IDS_NAMED: usize = 12;
/// Attack-free frames in a whole log up to which an ID looks like part of an attack.
const STRAY_FRAMES: u64 = 2;

/// What a build of the dataset would be told.
#[derive(Debug, Clone, Copy)]
pub struct CheckOptions {
    /// Read every log in this format, instead of recognising it.
    pub format: Option<Format>,
    /// Frames in a window.
    pub window: usize,
    /// Share of a log's rows that may be unreadable.
    pub max_reject_share: f64,
    /// Threads that read, 0 for one a core.
    pub threads: usize,
}

/// What was found in a dataset.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    pub dataset: String,
    pub logs: Vec<LogCheck>,
    /// Logs with the same frames, as `folder/name`.
    pub copies: Vec<Copies>,
    /// What a reader should know, worst first.
    pub findings: Vec<Finding>,
}

/// What was found in a log.
#[derive(Debug, Clone, Serialize)]
pub struct LogCheck {
    pub folder: String,
    pub name: String,
    pub role: Role,
    /// Why it could not be read to its end; the other values are then those of its beginning.
    pub error: Option<String>,
    /// Why no frame has a label, if it looks as if some should have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_notice: Option<String>,
    pub format: Option<Format>,
    pub report: ReadReport,
    /// Seconds from the earliest to the latest timestamp.
    pub duration_seconds: f64,
    pub first_timestamp: Option<f64>,
    /// Distinct IDs.
    pub ids: u64,
    /// IDs that no attack-free frame of a training log has.
    pub unseen: Unseen,
    pub empty_payloads: EmptyPayloads,
    /// Frames that are labelled attack-free, in a log with attacks, of IDs that have only one or two such frames in the whole
    /// log: perhaps attack frames that lost their label.
    pub stray_frames: u64,
    /// Share of the stretches of benign frames that also occur in training logs of another file; `None` for training logs, and
    /// when there was no stretch to compare.
    pub benign_overlap: Option<f64>,
}

/// IDs of a log that training does not know.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Unseen {
    pub ids: u64,
    /// Frames of such IDs, labelled attack-free.
    pub benign_frames: u64,
    /// Frames of such IDs, labelled an attack.
    pub attack_frames: u64,
    /// The IDs with most frames, in hexadecimal.
    pub most_frequent: Vec<String>,
}

/// Frames without payload.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct EmptyPayloads {
    pub benign_frames: u64,
    pub attack_frames: u64,
}

/// Logs with the same frames.
#[derive(Debug, Clone, Serialize)]
pub struct Copies {
    pub logs: Vec<String>,
    /// Training and a test have the same log: its windows are left out of training.
    pub leaks: bool,
}

/// Something a reader should know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub text: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The dataset cannot be used as it is.
    Error,
    /// Results may mislead.
    Warning,
    /// Good to know.
    Note,
}

impl LogCheck {
    /// `folder/name`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.folder, self.name)
    }

    /// Frames that the log labels attack-free.
    pub fn benign_frames(&self) -> u64 {
        self.report.frames - self.report.attack_frames
    }
}

impl CheckReport {
    /// Whether a build would take every log.
    pub fn is_usable(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity != Severity::Error)
    }
}

/// Reads all logs of the dataset, each on one thread, and compares them.
pub fn check(dataset: &Dataset, options: &CheckOptions) -> CheckReport {
    let CheckOptions { format, threads, .. } = *options;
    let scan = || dataset.files.par_iter().map(|file| Scan::of(&file.path, format)).collect::<Vec<_>>();
    let scans = match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => pool.install(scan),
        // No threads to be had: this one does it.
        Err(_) => dataset.files.iter().map(|file| Scan::of(&file.path, format)).collect(),
    };
    let known = trained_ids(dataset, &scans);
    let overlaps = benign_overlaps(dataset, &scans);
    let copies = copies(dataset, &scans);
    let logs: Vec<LogCheck> = dataset
        .files
        .iter()
        .zip(scans)
        .zip(overlaps)
        .map(|((file, scan), benign_overlap)| describe(file, scan, &known, benign_overlap))
        .collect();
    let findings = findings::of(&logs, &copies, dataset, options);
    CheckReport { dataset: dataset.name.clone(), logs, copies, findings }
}

fn describe(file: &SourceFile, scan: Scan, known: &HashSet<u32>, benign_overlap: Option<f64>) -> LogCheck {
    let mut unseen: Vec<(&u32, &scan::Counts)> = scan.ids.iter().filter(|(id, _)| !known.contains(id)).collect();
    unseen.sort_by_key(|(id, counts)| (u64::MAX - counts.benign - counts.attack, **id));
    let stray = scan.ids.values().map(|counts| counts.benign).filter(|&benign| benign <= STRAY_FRAMES);
    let stray_frames = if scan.report.attack_frames > 0 { stray.sum() } else { 0 };
    LogCheck {
        stray_frames,
        folder: file.folder.clone(),
        name: file_name(&file.path),
        role: file.role,
        error: scan.error,
        label_notice: scan.label_notice,
        format: scan.format,
        duration_seconds: scan.times.map_or(0.0, |(first, last)| (last - first).min(f64::MAX)),
        first_timestamp: scan.times.map(|(first, _)| first),
        ids: scan.ids.len() as u64,
        unseen: Unseen {
            ids: unseen.len() as u64,
            benign_frames: unseen.iter().map(|(_, counts)| counts.benign).sum(),
            attack_frames: unseen.iter().map(|(_, counts)| counts.attack).sum(),
            most_frequent: unseen.iter().take(IDS_NAMED).map(|(id, _)| format!("{id:03X}")).collect(),
        },
        empty_payloads: scan.empty,
        benign_overlap,
        report: scan.report,
    }
}

/// A number for people: with so many decimals, or with an exponent if it is absurdly large.
pub fn readable(number: f64, decimals: usize) -> String {
    if number.abs() < 1e15 { format!("{number:.decimals$}") } else { format!("{number:.2e}") }
}

/// IDs of the attack-free frames of training logs.
fn trained_ids(dataset: &Dataset, scans: &[Scan]) -> HashSet<u32> {
    let training = dataset.files.iter().zip(scans).filter(|(file, _)| file.role != Role::Test);
    let benign = training.flat_map(|(_, scan)| scan.ids.iter().filter(|(_, counts)| counts.benign > 0));
    benign.map(|(&id, _)| id).collect()
}

/// For each test log, the share of its benign stretches that some training log has too.
fn benign_overlaps(dataset: &Dataset, scans: &[Scan]) -> Vec<Option<f64>> {
    let training = dataset.files.iter().zip(scans).filter(|(file, _)| file.role != Role::Test);
    let known: HashSet<u64> = training.flat_map(|(_, scan)| scan.stretches.iter().copied()).collect();
    let share = |scan: &Scan| {
        let found = scan.stretches.iter().filter(|stretch| known.contains(stretch)).count();
        (!scan.stretches.is_empty()).then(|| found as f64 / scan.stretches.len() as f64)
    };
    dataset
        .files
        .iter()
        .zip(scans)
        .map(|(file, scan)| (file.role == Role::Test).then(|| share(scan)).flatten())
        .collect()
}

fn copies(dataset: &Dataset, scans: &[Scan]) -> Vec<Copies> {
    let mut groups: HashMap<&[u8], Vec<&SourceFile>> = HashMap::new();
    for (file, scan) in dataset.files.iter().zip(scans) {
        if let Some(digest) = &scan.digest {
            groups.entry(digest.as_slice()).or_default().push(file);
        }
    }
    let mut copies: BTreeMap<String, Copies> = BTreeMap::new();
    for files in groups.into_values().filter(|files| files.len() > 1) {
        let logs: Vec<String> = files.iter().map(|file| format!("{}/{}", file.folder, file_name(&file.path))).collect();
        let tests = files.iter().filter(|file| file.role == Role::Test).count();
        copies.insert(logs[0].clone(), Copies { logs, leaks: (1..files.len()).contains(&tests) });
    }
    copies.into_values().collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
