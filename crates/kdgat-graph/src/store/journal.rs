//! What a build has finished, noted while it works: a build that was killed goes on from there.
//!
//! A text file in the folder of the unfinished store: a line says what is built, and then comes a line for each finished
//! unit and, within a unit of several shards, for each finished shard. A line begins with its checksum. It is written when the
//! shards that it names are on the disk. Reading ends at the first line that is not whole.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use kdgat_can::{Frame, ReadReport};
use serde::{Deserialize, Serialize};

use super::manifest::{ShardEntry, SourceState};
use super::plan::Unit;
use crate::StoreError;

/// The journal's name in the folder.
pub const JOURNAL: &str = "build.journal";

/// A finished unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnitRecord {
    pub unit: usize,
    pub logs: Vec<LogRecord>,
    /// With the names of their unit, in order.
    pub shards: Vec<ShardEntry>,
    /// For the next piece of the log.
    pub carry: Option<Carry>,
}

/// What a unit found in a log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogRecord {
    /// Position in the plan.
    pub log: usize,
    report: ReadReport,
    /// Of `report`, whose number does not survive JSON to the last digit.
    largest_backward_step_bits: u64,
    /// Ascending.
    pub ids: Vec<u32>,
    pub graphs: u64,
    pub attack_graphs: u64,
    pub source: Option<SourceState>,
}

impl LogRecord {
    pub fn new(log: usize, report: ReadReport) -> Self {
        let largest_backward_step_bits = report.largest_backward_step_seconds.to_bits();
        let (ids, graphs, attack_graphs, source) = (Vec::new(), 0, 0, None);
        Self { log, report, largest_backward_step_bits, ids, graphs, attack_graphs, source }
    }

    /// What was read.
    pub fn report(&self) -> ReadReport {
        let largest_backward_step_seconds = f64::from_bits(self.largest_backward_step_bits);
        ReadReport { largest_backward_step_seconds, ..self.report.clone() }
    }
}

/// What a piece of a log has to know of the pieces before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carry {
    pub lines: u64,
    pub last_timestamp_bits: Option<u64>,
    /// Position in the log of the next window's first frame.
    pub first_frame: u64,
    /// Frames still to pass over before that frame.
    pub skip: usize,
    /// Frames from there on.
    pub pending: Vec<ExactFrame>,
}

/// A frame that survives JSON: the timestamp as its bits.
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

/// What is finished already.
#[derive(Debug, Default)]
pub struct Finished {
    pub units: BTreeMap<usize, UnitRecord>,
    /// Whole shards of units that are not finished.
    pub shards: BTreeMap<usize, Vec<ShardEntry>>,
}

impl Finished {
    /// Graphs in whole shards.
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

    /// Forgets what is not there as noted, and removes files that are not noted.
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

/// The journal of the build at work.
pub struct Journal {
    file: File,
}

impl Journal {
    /// Goes on with the build in `folder`, or begins a new one: the folder is emptied if something else was built there.
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
            // What was torn at the end is gone.
            false => journal.file.write_all(&whole),
        }
        .map_err(StoreError::io("write", &path))?;
        Ok((journal, finished))
    }

    /// Notes a shard of a unit that is not finished.
    pub fn shard(&mut self, unit: usize, entry: ShardEntry) -> std::io::Result<()> {
        self.append(&Line::Shard { unit, entry })
    }

    /// Notes a finished unit.
    pub fn unit(&mut self, record: UnitRecord) -> std::io::Result<()> {
        self.append(&Line::Unit(record))
    }

    fn append(&mut self, line: &Line) -> std::io::Result<()> {
        let json = serde_json::to_string(line)?;
        self.file.write_all(format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())).as_bytes())
    }
}

/// A line and its bytes; `None` if it is not whole.
fn read_line(bytes: &[u8]) -> Option<(Line, &[u8])> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (checksum, json) = text.split_once(' ')?;
    let whole = u32::from_str_radix(checksum, 16) == Ok(crc32fast::hash(json.as_bytes()));
    whole.then(|| serde_json::from_str(json).ok()).flatten().map(|line| (line, bytes))
}
