//! Journal of a build: records finished work, so that a build that was killed can be resumed.
//!
//! A text file in the folder of the unfinished store: the first line describes the build, then follows a line for each finished
//! unit and, within a unit of several shards, for each finished shard. Each line begins with its checksum, and is written once the
//! shards that it names are on the disk. Reading stops at the first incomplete line.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use kdgat_can::{Frame, ReadReport};
use serde::{Deserialize, Serialize};

use super::manifest::{ShardEntry, SourceState};
use super::plan::Unit;
use crate::StoreError;

/// Name of the journal in the folder.
pub const JOURNAL: &str = "build.journal";

/// Record of a finished unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnitRecord {
    /// Number of the unit.
    pub unit: usize,
    /// Results for each of its logs.
    pub logs: Vec<LogRecord>,
    /// Its shards in order, named after the unit.
    pub shards: Vec<ShardEntry>,
    /// State for the next piece of the log.
    pub carry: Option<Carry>,
}

/// Results of a unit for one log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogRecord {
    /// Position of the log in the plan.
    pub log: usize,
    report: ReadReport,
    /// Bits of the largest backward step in `report`: JSON does not preserve the number's last digits.
    largest_backward_step_bits: u64,
    /// CAN IDs, ascending.
    pub ids: Vec<u32>,
    /// Number of graphs.
    pub graphs: u64,
    /// Number of graphs with an attack.
    pub attack_graphs: u64,
    /// State of the log, if the unit computed its checksum.
    pub source: Option<SourceState>,
}

impl LogRecord {
    /// A record without IDs and graphs.
    pub fn new(log: usize, report: ReadReport) -> Self {
        let largest_backward_step_bits = report.largest_backward_step_seconds.to_bits();
        let (ids, graphs, attack_graphs, source) = (Vec::new(), 0, 0, None);
        Self { log, report, largest_backward_step_bits, ids, graphs, attack_graphs, source }
    }

    /// Counts of the rows read.
    pub fn report(&self) -> ReadReport {
        let largest_backward_step_seconds = f64::from_bits(self.largest_backward_step_bits);
        ReadReport { largest_backward_step_seconds, ..self.report.clone() }
    }
}

/// State that a piece of a log needs from the previous pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carry {
    /// Lines of the previous pieces.
    pub lines: u64,
    /// Bits of the last frame's timestamp.
    pub last_timestamp_bits: Option<u64>,
    /// Position of the next window's first frame in the log.
    pub first_frame: u64,
    /// Frames to skip before that frame.
    pub skip: usize,
    /// Frames from that frame on.
    pub pending: Vec<ExactFrame>,
}

/// A frame that JSON preserves exactly: it stores the bits of the timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactFrame(u64, u32, [u8; 8], u8, bool);

impl From<Frame> for ExactFrame {
    fn from(frame: Frame) -> Self {
        Self(frame.timestamp.to_bits(), frame.can_id, frame.payload, frame.payload_length, frame.attack)
    }
}

impl From<ExactFrame> for Frame {
    fn from(ExactFrame(timestamp, can_id, payload, payload_length, attack): ExactFrame) -> Self {
        Frame { timestamp: f64::from_bits(timestamp), can_id, payload, payload_length, attack }
    }
}

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Begin {
        /// [`Plan::identity`](super::plan::Plan::identity).
        plan: String,
        units: Vec<Unit>,
    },
    Shard {
        unit: usize,
        entry: ShardEntry,
    },
    Unit(UnitRecord),
}

/// Work that is already finished.
#[derive(Debug, Default)]
pub struct Finished {
    /// Finished units by number.
    pub units: BTreeMap<usize, UnitRecord>,
    /// Complete shards of unfinished units.
    pub shards: BTreeMap<usize, Vec<ShardEntry>>,
}

impl Finished {
    /// Number of graphs in complete shards.
    pub fn graphs(&self) -> u64 {
        let units = self.units.values().flat_map(|unit| &unit.shards);
        units.chain(self.shards.values().flatten()).map(|shard| shard.graphs).sum()
    }

    fn add(&mut self, line: Line) {
        match line {
            Line::Begin { .. } => {}
            Line::Shard { unit, entry } => self.shards.entry(unit).or_default().push(entry),
            Line::Unit(record) => {
                self.shards.remove(&record.unit);
                self.units.insert(record.unit, record);
            }
        }
    }

    /// Forgets shards that are missing or have another size, and removes files that are not in the journal.
    fn agree_with(&mut self, folder: &Path) -> Result<(), StoreError> {
        let is_there = |shard: &ShardEntry| {
            fs::metadata(folder.join(&shard.name)).is_ok_and(|metadata| metadata.len() == shard.bytes)
        };
        self.units.retain(|_, unit| unit.shards.iter().all(is_there));
        for shards in self.shards.values_mut() {
            let whole = shards.iter().take_while(|shard| is_there(shard)).count();
            shards.truncate(whole);
        }
        let noted = self.units.values().flat_map(|unit| &unit.shards).chain(self.shards.values().flatten());
        let noted: HashSet<&str> = noted.map(|shard| shard.name.as_str()).collect();
        for entry in fs::read_dir(folder).map_err(StoreError::io("list", folder))? {
            let entry = entry.map_err(StoreError::io("list", folder))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != JOURNAL && !noted.contains(name.as_str()) {
                fs::remove_file(entry.path()).map_err(StoreError::io("remove", &entry.path()))?;
            }
        }
        Ok(())
    }
}

/// The journal of the current build.
pub struct Journal {
    file: File,
}

impl Journal {
    /// Resumes the build in `folder`, or starts a new one: the folder is emptied if it is from a build with another plan.
    pub fn open(folder: &Path, plan: &str, units: &[Unit]) -> Result<(Self, Finished), StoreError> {
        let path = folder.join(JOURNAL);
        let text = fs::read(&path).unwrap_or_default();
        let mut lines = text.split_inclusive(|&byte| byte == b'\n').map_while(read_line);
        let same = |line: &Line| matches!(line, Line::Begin { plan: p, units: u } if p == plan && u == units);
        let mut finished = Finished::default();
        let mut whole = Vec::new();
        if let Some((first, bytes)) = lines.next()
            && same(&first)
        {
            whole.extend_from_slice(bytes);
            for (line, bytes) in lines {
                finished.add(line);
                whole.extend_from_slice(bytes);
            }
        } else if folder.exists() {
            fs::remove_dir_all(folder).map_err(StoreError::io("remove", folder))?;
        }
        fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
        finished.agree_with(folder)?;
        let file = File::create(&path).map_err(StoreError::io("create", &path))?;
        let mut journal = Self { file };
        match whole.is_empty() {
            true => journal.append(&Line::Begin { plan: plan.to_string(), units: units.to_vec() }),
            // The incomplete end of the file is dropped.
            false => journal.file.write_all(&whole),
        }
        .map_err(StoreError::io("write", &path))?;
        Ok((journal, finished))
    }

    /// Records a shard of an unfinished unit.
    pub fn shard(&mut self, unit: usize, entry: ShardEntry) -> std::io::Result<()> {
        self.append(&Line::Shard { unit, entry })
    }

    /// Records a finished unit.
    pub fn unit(&mut self, record: UnitRecord) -> std::io::Result<()> {
        self.append(&Line::Unit(record))
    }

    fn append(&mut self, line: &Line) -> std::io::Result<()> {
        let json = serde_json::to_string(line)?;
        self.file.write_all(format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())).as_bytes())
    }
}

/// Parses a line; returns it with its bytes, or `None` if it is incomplete.
fn read_line(bytes: &[u8]) -> Option<(Line, &[u8])> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (checksum, json) = text.split_once(' ')?;
    let whole = u32::from_str_radix(checksum, 16) == Ok(crc32fast::hash(json.as_bytes()));
    whole.then(|| serde_json::from_str(json).ok()).flatten().map(|line| (line, bytes))
}
