//! Reads logs and writes shards: the parallel part of a build, unit by unit.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use kdgat_can::formats::{METADATA_NAME, metadata_digest};
use kdgat_can::plausible::{check_interfaces, check_rejects, check_times};
use kdgat_can::{Dataset, Format, Frame, LogReader, ReadOptions, ReadReport, open_log_with, read_piece};
use parking_lot::Mutex;

use super::chain::Chain;
use super::id_set::IdSet;
use super::journal::{Carry, ExactFrame, Finished, Journal, LogRecord, UnitRecord};
use super::manifest::ShardEntry;
use super::parallel::in_parallel;
use super::plan::{Plan, Unit};
use super::progress::{Event, Progress, StageTimes};
use super::shard;
use super::sources::{digest_of, file_state, with_short_names};
use crate::StoreError;
use crate::columns::Columns;
use crate::graph_stream::{GraphStream, ReadyWindow};
use crate::window::WindowState;

/// Written shards that may wait to be synced to the disk.
const SHARDS_UNSYNCED: usize = 4;
/// Frames read at a time.
const BLOCK_FRAMES: usize = 16_384;

/// Processes the units in `share` (ascending) and writes their graphs into `folder`; resumes a build that was killed. Returns
/// the records of all these units, in order.
pub fn ingest(
    dataset: &Dataset,
    plan: &Plan,
    units: &[Unit],
    share: &[usize],
    folder: &Path,
    progress: &dyn Progress,
) -> Result<Vec<UnitRecord>, StoreError> {
    let (journal, finished) = Journal::open(folder, &plan.identity(), units)?;
    report_start(plan, units, share, &finished, progress);
    let (tasks, to_do) = bounded(SHARDS_UNSYNCED);
    let mut chains: BTreeMap<usize, Chain> = BTreeMap::new();
    for unit in units {
        if let Unit::Piece { log, .. } = unit {
            chains.entry(*log).or_default();
        }
    }
    let build = Build { dataset, plan, folder, chains, finished, tasks, progress, times: Mutex::default() };
    let records = std::thread::scope(|scope| {
        let disk = scope.spawn(move || sync_and_note(&to_do, journal));
        let work = |index: usize, worker: &mut Option<Worker>| {
            let worker = worker.get_or_insert_with(|| Worker::new(plan));
            worker.build_unit(&build, share[index], &units[share[index]])
        };
        let records = in_parallel(share.len(), plan.options.num_threads(), work);
        let times = *build.times.lock();
        // Without senders the disk thread ends.
        drop(build);
        progress.report(&Event::Stages(times));
        let synced = disk.join().unwrap_or_else(|payload| Err(StoreError::panic("disk thread", payload.as_ref())));
        // If a sender found no receiver, the failed sync is the cause.
        synced.and(records)
    })?;
    check_logs_in_pieces(dataset, plan, units, &records, progress)?;
    Ok(records)
}

fn report_start(plan: &Plan, units: &[Unit], share: &[usize], finished: &Finished, progress: &dyn Progress) {
    let mut logs: Vec<usize> = share.iter().flat_map(|&unit| units[unit].logs()).collect();
    logs.dedup();
    let bytes = logs.iter().map(|&log| plan.logs[log].bytes).sum();
    progress.report(&Event::Started { files: logs.len(), bytes });
    if !finished.units.is_empty() || !finished.shards.is_empty() {
        progress.report(&Event::Resuming { units: finished.units.len(), graphs: finished.graphs() });
    }
}

/// Checks logs that are read in pieces, once all pieces have been read.
fn check_logs_in_pieces(
    dataset: &Dataset,
    plan: &Plan,
    units: &[Unit],
    records: &[UnitRecord],
    progress: &dyn Progress,
) -> Result<(), StoreError> {
    let mut reports: BTreeMap<usize, ReadReport> = BTreeMap::new();
    for record in records.iter().filter(|record| matches!(units[record.unit], Unit::Piece { .. })) {
        for found in &record.logs {
            reports.entry(found.log).or_default().merge(&found.report());
        }
    }
    for (log, report) in reports {
        finish_log(dataset, plan, log, &report, progress)?;
    }
    Ok(())
}

/// Checks a log after it was read to its end: that few enough rows were rejected, that its frames are of one interface and its times
/// plausible, and that it has not changed.
fn finish_log(
    dataset: &Dataset,
    plan: &Plan,
    log: usize,
    report: &ReadReport,
    progress: &dyn Progress,
) -> Result<(), StoreError> {
    let (path, planned) = (&dataset.files[log].path, &plan.logs[log]);
    let source = &dataset.files[log];
    check_rejects(path, report, source.format(plan.options.format), plan.options.max_reject_share)?;
    if source.synthetic.is_none() {
        let options = source.read_options(&plan.options.read_options());
        check_interfaces(path, report, &options)?;
        check_times(path, report, &options)?;
    }
    // The blocks of a synthetic log cover all its frames.
    let blocks = planned.synthetic.as_ref().and_then(|origin| origin.blocks.last());
    let lacks_frames = blocks.is_some_and(|last| last.frames.end != report.frames);
    if lacks_frames || file_state(path)? != (planned.bytes, planned.modified_nanoseconds) {
        return Err(StoreError::SourceChanged { path: path.clone() });
    }
    if metadata_digest(path)? != planned.labels_blake3 {
        return Err(StoreError::SourceChanged { path: path.with_file_name(METADATA_NAME) });
    }
    let (folder, name) = (&planned.folder, &planned.name);
    progress.report(&Event::FileDone { folder, name, bytes: planned.bytes, report });
    Ok(())
}

/// Work for the disk thread.
enum Task {
    Shard { path: PathBuf, file: File, unit: usize, entry: ShardEntry },
    Unit(UnitRecord),
}

/// Syncs shards, so that the threads that read and compute need not wait for the disk, and records them in the journal.
fn sync_and_note(tasks: &Receiver<Task>, mut journal: Journal) -> Result<(), StoreError> {
    tasks.iter().try_for_each(|task| match task {
        Task::Shard { path, file, unit, entry } => {
            file.sync_all().and_then(|()| journal.shard(unit, entry)).map_err(StoreError::io("sync", &path))
        }
        Task::Unit(record) => journal.unit(record).map_err(StoreError::io("write", Path::new("the build's journal"))),
    })
}

/// State shared by the threads of a build.
struct Build<'a> {
    dataset: &'a Dataset,
    plan: &'a Plan,
    folder: &'a Path,
    /// Chains of pieces, by log.
    chains: BTreeMap<usize, Chain>,
    finished: Finished,
    tasks: Sender<Task>,
    progress: &'a dyn Progress,
    times: Mutex<StageTimes>,
}

/// Buffers of one thread.
struct Worker {
    frames: Vec<Frame>,
    graphs: GraphStream,
    columns: Columns,
}

impl Worker {
    fn new(plan: &Plan) -> Self {
        let options = &plan.options;
        Self {
            frames: Vec::with_capacity(BLOCK_FRAMES),
            graphs: GraphStream::new(options.features, options.window, options.stride),
            columns: Columns::new(options.features),
        }
    }

    fn build_unit(&mut self, build: &Build<'_>, number: usize, unit: &Unit) -> Result<UnitRecord, StoreError> {
        if let Some(record) = build.finished.units.get(&number) {
            if let (Unit::Piece { log, number, .. }, Some(carry)) = (unit, &record.carry) {
                build.chains[log].begin(*number).pass_on(carry.clone());
            }
            return Ok(record.clone());
        }
        self.columns.clear();
        let mut output = Output::new(build, number);
        let mut record = UnitRecord { unit: number, logs: Vec::new(), shards: Vec::new(), carry: None };
        match unit {
            Unit::Checksum { log } => {
                warn_of_labels(build.plan, *log, &build.open(*log)?);
                record.logs.push(checksum(build, *log, &mut output)?);
            }
            Unit::Logs(logs) => {
                for log in logs.clone() {
                    record.logs.push(self.build_log(log, &mut output)?);
                }
            }
            Unit::Piece { .. } => {
                let (found, carry) = self.build_piece(unit, &mut output)?;
                record.logs.push(found);
                record.carry = Some(carry);
            }
        }
        output.write(&mut self.columns)?;
        record.shards = output.shards;
        *build.times.lock() += output.times;
        build.send(Task::Unit(record.clone()), build.folder)?;
        Ok(record)
    }

    /// Reads a whole log, block by block.
    fn build_log(&mut self, log: usize, output: &mut Output<'_>) -> Result<LogRecord, StoreError> {
        let Build { dataset, plan, progress, .. } = output.build;
        let mut reader = output.build.open(log)?;
        warn_of_labels(plan, log, &reader);
        let mut found = Found::new(log);
        let mut parsed = Duration::ZERO;
        self.graphs.restart();
        loop {
            let begin = Instant::now();
            let count = reader.read_block(BLOCK_FRAMES, &mut self.frames)?;
            parsed += begin.elapsed();
            if count == 0 {
                break;
            }
            self.append_windows(0..count, &mut found, output)?;
            progress.report(&Event::Frames { count: count as u64 });
        }
        output.times.read += reader.read_time();
        output.times.parse += parsed.saturating_sub(reader.read_time());
        let report = with_short_names(reader.report().clone(), &plan.logs[log].name);
        finish_log(dataset, plan, log, &report, *progress)?;
        let mut record = found.record(report);
        record.source = checksum(output.build, log, output)?.source;
        Ok(record)
    }

    /// Reads one piece of a log at once; its windows wait for the previous piece.
    fn build_piece(&mut self, unit: &Unit, output: &mut Output<'_>) -> Result<(LogRecord, Carry), StoreError> {
        let Unit::Piece { log, number, format, bytes } = unit else { unreachable!("only pieces come here") };
        let Build { dataset, plan, progress, chains, .. } = output.build;
        let link = chains[log].begin(*number);
        let begin = Instant::now();
        let path = &dataset.files[*log].path;
        let options = output.build.read_options(*log);
        let mut piece = read_piece(path, *format, bytes.clone(), plan.logs[*log].bytes, &options, &mut self.frames)?;
        output.times.read += piece.read_time;
        output.times.parse += begin.elapsed().saturating_sub(piece.read_time);
        let Some(before) = link.wait() else {
            // The previous piece failed, and its error comes first.
            return Err(StoreError::SourceChanged { path: path.clone() });
        };
        piece.follow(before.lines, before.last_timestamp_bits.map(f64::from_bits));
        let pending = before.pending.iter().map(|&frame| frame.into()).collect();
        self.graphs.resume(WindowState { first_frame: before.first_frame, skip: before.skip, pending });
        let after = self.graphs.state_after(&self.frames);
        let carry = Carry {
            lines: before.lines + piece.lines,
            last_timestamp_bits: piece.last_timestamp.map(f64::to_bits).or(before.last_timestamp_bits),
            first_frame: after.first_frame,
            skip: after.skip,
            pending: after.pending.into_iter().map(ExactFrame::from).collect(),
        };
        link.pass_on(carry.clone());
        let mut found = Found::new(*log);
        let count = self.frames.len();
        for begin in (0..count).step_by(BLOCK_FRAMES) {
            self.append_windows(begin..count.min(begin + BLOCK_FRAMES), &mut found, output)?;
        }
        progress.report(&Event::Frames { count: count as u64 });
        Ok((found.record(with_short_names(piece.report, &plan.logs[*log].name)), carry))
    }

    /// Appends the graphs of the windows that these of the worker's frames complete.
    fn append_windows(
        &mut self,
        frames: std::ops::Range<usize>,
        found: &mut Found,
        output: &mut Output<'_>,
    ) -> Result<(), StoreError> {
        let Self { frames: all, graphs, columns } = self;
        let (begin, before) = (Instant::now(), output.times);
        let frames = &all[frames];
        found.ids.extend(frames.iter().map(|frame| frame.can_id));
        graphs.push(frames, |window| {
            found.graphs += 1;
            found.attack_graphs += u64::from(output.append(window, found.log, columns)?);
            Ok::<(), StoreError>(())
        })?;
        let others = (output.times.features - before.features) + (output.times.write - before.write);
        output.times.window += begin.elapsed().saturating_sub(others);
        Ok(())
    }
}

/// Warns if the frames of a log count as attack-free although it may have labels.
fn warn_of_labels(plan: &Plan, log: usize, reader: &LogReader) {
    if let Some(notice) = reader.label_notice() {
        tracing::warn!("{}/{}: {notice}", plan.logs[log].folder, plan.logs[log].name);
    }
}

fn checksum(build: &Build<'_>, log: usize, output: &mut Output<'_>) -> Result<LogRecord, StoreError> {
    let begin = Instant::now();
    let planned = &build.plan.logs[log];
    let blake3 = digest_of(&build.dataset.files[log].path)?;
    output.times.checksum += begin.elapsed();
    let mut record = LogRecord::new(log, ReadReport::default());
    record.source = Some(planned.source(blake3));
    Ok(record)
}

/// Results of a unit for one log.
struct Found {
    log: usize,
    ids: IdSet,
    graphs: u64,
    attack_graphs: u64,
}

impl Found {
    fn new(log: usize) -> Self {
        Self { log, ids: IdSet::default(), graphs: 0, attack_graphs: 0 }
    }

    fn record(&self, report: ReadReport) -> LogRecord {
        let mut record = LogRecord::new(self.log, report);
        (record.ids, record.graphs, record.attack_graphs) = (self.ids.ascending(), self.graphs, self.attack_graphs);
        record
    }
}

/// Writes a unit's graphs to a shard whenever there are enough.
struct Output<'a> {
    build: &'a Build<'a>,
    unit: usize,
    shards: Vec<ShardEntry>,
    /// Graphs not yet skipped of those written before the build was killed.
    graphs_there: u64,
    times: StageTimes,
}

impl<'a> Output<'a> {
    fn new(build: &'a Build<'a>, unit: usize) -> Self {
        let shards = build.finished.shards.get(&unit).cloned().unwrap_or_default();
        let graphs_there = shards.iter().map(|shard| shard.graphs).sum();
        Self { build, unit, shards, graphs_there, times: StageTimes::default() }
    }

    /// Appends the window's graph, unless it was written before the build was killed; returns true if the window has an attack frame.
    fn append(&mut self, mut window: ReadyWindow<'_>, log: usize, columns: &mut Columns) -> Result<bool, StoreError> {
        if self.graphs_there > 0 {
            self.graphs_there -= 1;
            return Ok(window.frames[..window.frames.len() - 1].iter().any(|frame| frame.attack));
        }
        let begin = Instant::now();
        window.append_to(log as u32, columns);
        self.times.features += begin.elapsed();
        let attack = columns.labels.last() == Some(&1);
        if columns.bytes() >= self.build.plan.options.shard_bytes {
            self.write(columns)?;
        }
        Ok(attack)
    }

    fn write(&mut self, columns: &mut Columns) -> Result<(), StoreError> {
        if columns.num_graphs() == 0 {
            return Ok(());
        }
        let begin = Instant::now();
        let path = self.build.folder.join(format!("unit-{:06}-{:06}.safetensors", self.unit, self.shards.len()));
        let (entry, file) = shard::write(&path, columns)?;
        self.shards.push(entry.clone());
        columns.clear();
        self.build.send(Task::Shard { path: path.clone(), file, unit: self.unit, entry }, &path)?;
        self.times.write += begin.elapsed();
        Ok(())
    }
}

impl Build<'_> {
    /// The format to read a log in, if it is set.
    fn format(&self, log: usize) -> Option<Format> {
        self.dataset.files[log].format(self.plan.options.format)
    }

    /// The settings to read a log with.
    fn read_options(&self, log: usize) -> ReadOptions {
        self.dataset.files[log].read_options(&self.plan.options.read_options())
    }

    /// Opens a log.
    fn open(&self, log: usize) -> Result<LogReader, StoreError> {
        Ok(open_log_with(&self.dataset.files[log].path, self.format(log), &self.read_options(log))?)
    }

    fn send(&self, task: Task, path: &Path) -> Result<(), StoreError> {
        let nobody = |_| std::io::Error::other("an earlier write to the disk failed");
        self.tasks.send(task).map_err(nobody).map_err(StoreError::io("sync", path))
    }
}
