//! Checks a dataset before anything is built or trained: the content of its logs, and properties that may mislead.
//!
//! Each log is read once ([`scan`]); then the logs are compared: copies, IDs that do not occur in training, benign traffic
//! that is in both training and a test. [`findings`] turns the results into sentences.

mod findings;
mod scan;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;

use super::dataset::{Dataset, Role, SourceFile};
use super::formats::{Format, ReadOptions};
use super::report::ReadReport;
use scan::Scan;

pub use scan::STRETCH_FRAMES;

/// IDs named in a list; further ones are only counted.
const IDS_NAMED: usize = 12;
/// An ID with at most this many attack-free frames in a whole log looks like part of an attack.
const STRAY_FRAMES: u64 = 2;

/// Distinct IDs from which it is no chance that none has a letter in hexadecimal: one in 4,000,000.
const MANY_IDS: usize = 16;

/// Options of a check, the same as for a build.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Format of all logs; detected for each log if `None`.
    pub format: Option<Format>,
    /// Settings for reading the logs.
    pub read: ReadOptions,
    /// Window size in frames.
    pub window: usize,
    /// Largest allowed share of a log's rows that cannot be read, from 0 to 1.
    pub max_reject_share: f64,
    /// Number of reading threads; 0 for one per core.
    pub threads: usize,
}

/// Result of checking a dataset.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// Name of the dataset.
    pub dataset: String,
    /// Results by log, in the dataset's order.
    pub logs: Vec<LogCheck>,
    /// Groups of logs with the same frames.
    pub copies: Vec<Copies>,
    /// Findings for the user, worst first.
    pub findings: Vec<Finding>,
}

/// Result of checking one log.
#[derive(Debug, Clone, Serialize)]
pub struct LogCheck {
    /// Name of its folder.
    pub folder: String,
    /// Its file name.
    pub name: String,
    /// Role of its folder.
    pub role: Role,
    /// Error that stopped reading; the other values then cover the log up to it.
    pub error: Option<String>,
    /// A notice when all frames count as attack-free although the log may have labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_notice: Option<String>,
    /// Format of the log, `None` if it could not be opened.
    pub format: Option<Format>,
    /// Counts of its rows.
    pub report: ReadReport,
    /// Seconds from the smallest to the largest timestamp.
    pub duration_seconds: f64,
    /// Smallest timestamp in seconds, `None` without frames.
    pub first_timestamp: Option<f64>,
    /// Number of distinct IDs.
    pub ids: u64,
    /// True if the IDs look decimal: there are many, and none has a letter in hexadecimal.
    pub ids_look_decimal: bool,
    /// Estimated number of different payloads of its attack-free frames, counted for each ID.
    pub distinct_payloads: u64,
    /// IDs that no attack-free frame of a training log has.
    pub unseen: Unseen,
    /// Frames without payload.
    pub empty_payloads: EmptyPayloads,
    /// Frames labelled attack-free, in a log with attacks, of IDs with only one or two such frames in the whole log: they may be
    /// attack frames without a label.
    pub stray_frames: u64,
    /// Share of the sampled stretches of benign frames that also occur in training logs, from 0 to 1; `None` for training logs and
    /// for logs without a sampled stretch.
    pub benign_overlap: Option<f64>,
}

/// IDs of a log that do not occur in training.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Unseen {
    /// Number of such IDs.
    pub ids: u64,
    /// Their frames labelled attack-free.
    pub benign_frames: u64,
    /// Their frames labelled as an attack.
    pub attack_frames: u64,
    /// Those with the most frames, in hexadecimal.
    pub most_frequent: Vec<String>,
}

/// Frames without payload.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct EmptyPayloads {
    /// Frames labelled attack-free.
    pub benign_frames: u64,
    /// Frames labelled as an attack.
    pub attack_frames: u64,
}

/// Logs with the same frames.
#[derive(Debug, Clone, Serialize)]
pub struct Copies {
    /// Their names as `folder/name`.
    pub logs: Vec<String>,
    /// True if the group has logs of training and of a test: its windows are left out of training.
    pub leaks: bool,
}

/// One finding for the user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// A sentence that describes it.
    pub text: String,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The dataset cannot be used as it is.
    Error,
    /// Results may be misleading.
    Warning,
    /// Information.
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
    /// True if there is no error, so that a build accepts every log.
    pub fn is_usable(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity != Severity::Error)
    }
}

/// Reads all logs of the dataset, one thread per log, and compares them.
pub fn check(dataset: &Dataset, options: &CheckOptions) -> CheckReport {
    let CheckOptions { format, threads, .. } = *options;
    let scan_of = |file: &SourceFile| Scan::of(&file.path, format, &file.read_options(&options.read));
    let scan = || dataset.files.par_iter().map(scan_of).collect::<Vec<_>>();
    let scans = match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => pool.install(scan),
        // The thread pool could not be created: use this thread.
        Err(_) => dataset.files.iter().map(scan_of).collect(),
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
    let ids_look_decimal = look_decimal(&scan);
    let distinct_payloads = scan.distinct_payloads();
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
        ids_look_decimal,
        distinct_payloads,
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

/// True if a log has many IDs and none with a hexadecimal letter, where the format writes IDs in hexadecimal.
fn look_decimal(scan: &Scan) -> bool {
    let has_letter = |id: &u32| format!("{id:x}").bytes().any(|digit| digit.is_ascii_alphabetic());
    let says_base = matches!(scan.format, None | Some(Format::Asc | Format::Parquet));
    !says_base && scan.ids.len() >= MANY_IDS && !scan.ids.keys().any(has_letter)
}

/// Formats a number with the given decimals, or with an exponent from 10^15 on.
pub fn readable(number: f64, decimals: usize) -> String {
    if number.abs() < 1e15 { format!("{number:.decimals$}") } else { format!("{number:.2e}") }
}

/// IDs of the attack-free frames of all training logs.
fn trained_ids(dataset: &Dataset, scans: &[Scan]) -> HashSet<u32> {
    let training = dataset.files.iter().zip(scans).filter(|(file, _)| file.role != Role::Test);
    let benign = training.flat_map(|(_, scan)| scan.ids.iter().filter(|(_, counts)| counts.benign > 0));
    benign.map(|(&id, _)| id).collect()
}

/// For each test log, the share of its benign stretches that also occur in a training log.
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
