//! Writes the synthetic logs: reads each source log once, and attacks its stretches for all kinds at the same time.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use flate2::write::GzEncoder;
use rayon::prelude::*;

use super::bus::Bus;
use super::episodes::{Attacked, Shares, attack};
use super::record::{self, CopiedBlock, RECORD_NAME, SourceLog, SyntheticFile, SyntheticRecord, digest_of, state_of};
use super::stretches::{self, Stretch};
use super::{BlockSet, SYNTHETIC_VERSION, SyntheticKind, SyntheticOptions, Wanted};
use crate::dataset::{SourceFile, file_name, log_stem};
use crate::error::CanError;
use crate::formats::{can_train_and_test, open_log_with};
use crate::frame::{Frame, PAYLOAD_BYTES};
use crate::plausible;
use crate::simulator::random::Stream;
use crate::whole_folder::{Unfinished, cannot_write, compressor, parent_of, refuse_existing, write_file};

/// Prefix of the names of unfinished folders.
const UNFINISHED: &str = ".synthetic-";
/// Frames of a source log that are read at a time.
const BLOCK_FRAMES: usize = 16_384;

/// Writes the logs into a folder beside `target` and renames it to `target`. Returns false if another process did so meanwhile.
pub(super) fn write(wanted: &Wanted<'_>, target: &Path) -> Result<bool, CanError> {
    let is_ours = target.join(RECORD_NAME).exists();
    if !is_ours {
        refuse_existing(target)?;
    }
    let _lock = lock(target)?;
    if record::holds(wanted, target)? {
        return Ok(false);
    }
    let folder = Unfinished::beside(target, UNFINISHED)?;
    let sources: Vec<SourceLog> =
        wanted.logs.par_iter().map(|log| survey(wanted, log)).collect::<Result<_, CanError>>()?;
    let files = write_logs(wanted, &sources, folder.path())?;
    if files.is_empty() {
        let frames: u64 = sources.iter().map(|source| source.frames).sum();
        let detail = format!(
            "{} attack-free training logs with {frames} frames, too few in each block for an attack",
            sources.len()
        );
        return Err(CanError::NoSourceOfAttacks { root: wanted.dataset.root.clone(), detail });
    }
    let (options, format) = (wanted.options.clone(), wanted.format);
    let (interface, time_unit) = (wanted.read.interface.clone(), wanted.read.time_unit);
    let record = SyntheticRecord { version: SYNTHETIC_VERSION, options, format, interface, time_unit, sources, files };
    let path = folder.path().join(RECORD_NAME);
    let text = serde_json::to_vec_pretty(&record).map_err(io::Error::from).map_err(cannot_write(&path))?;
    write_file(&path, &text)?;
    if is_ours {
        folder.replace()?
    } else {
        folder.publish()?
    }
    Ok(true)
}

/// Waits until no other process writes the same folder; dropping the file, or the end of the process, releases the lock.
fn lock(target: &Path) -> Result<File, CanError> {
    let parent = parent_of(target);
    fs::create_dir_all(parent).map_err(cannot_write(parent))?;
    let path = parent.join(format!(".{}.lock", file_name(target)));
    let file = File::options().create(true).append(true).open(&path).map_err(cannot_write(&path))?;
    file.lock().map_err(cannot_write(&path))?;
    Ok(file)
}

/// Counts the frames of a source log and divides them into blocks.
fn survey(wanted: &Wanted<'_>, log: &SourceFile) -> Result<SourceLog, CanError> {
    let (bytes, modified_nanoseconds) = state_of(&log.path)?;
    let options = log.read_options(wanted.read);
    let mut reader = open_log_with(&log.path, wanted.format, &options)?;
    let mut frames = Vec::with_capacity(BLOCK_FRAMES);
    while reader.read_block(BLOCK_FRAMES, &mut frames)? > 0 {}
    plausible::check_interfaces(&log.path, reader.report(), &options)?;
    plausible::check_times(&log.path, reader.report(), &options)?;
    let frames = reader.report().frames;
    let blocks = (wanted.divide)(log, frames);
    let ends: Vec<u64> =
        blocks.iter().flat_map(|block| [block.frames.start, block.frames.end]).chain([frames]).collect();
    if !ends.is_sorted() {
        let (value, expected) =
            (format!("{blocks:?}"), "blocks within the log, in ascending order and without overlap");
        return Err(CanError::InvalidSyntheticOption { option: "divide", value, expected });
    }
    Ok(SourceLog {
        folder: log.folder.clone(),
        name: file_name(&log.path),
        bytes,
        modified_nanoseconds,
        blake3: digest_of(&log.path)?,
        frames,
        blocks,
    })
}

fn shares(options: &SyntheticOptions) -> Shares {
    Shares { attacks: options.share, events: options.event_share }
}

/// Writes the synthetic logs of all sources; leaves out those without an attack.
fn write_logs(wanted: &Wanted<'_>, sources: &[SourceLog], folder: &Path) -> Result<Vec<SyntheticFile>, CanError> {
    let kinds = &wanted.options.kinds;
    let blocks: Vec<_> = sources.iter().map(|source| source.blocks.clone()).collect();
    let root = Stream::new(wanted.options.seed);
    let randoms: Vec<Stream> = kinds.iter().map(|kind| root.child(*kind as u64)).collect();
    let stretches = stretches::choose(&blocks, wanted.options.most_frames, &randoms);
    let stems = stems(&wanted.logs);
    let of_log = |log: usize| {
        let copy = |(kind, stretches): (&SyntheticKind, &Vec<Vec<Stretch>>)| {
            let name = format!("{}-{kind}.csv.gz", stems[log]);
            let random = root.named(&stems[log]).child(*kind as u64);
            CopyWriter::new(folder, name, *kind, stretches[log].clone(), shares(wanted.options), random)
        };
        let copies = kinds.iter().zip(&stretches).map(copy).collect::<Result<Vec<_>, _>>()?;
        let files = write_copies(wanted, log, &sources[log], copies)?;
        Ok(files.into_iter().map(|file| SyntheticFile { source: log, ..file }).collect::<Vec<_>>())
    };
    let files: Vec<Vec<SyntheticFile>> = (0..sources.len()).into_par_iter().map(of_log).collect::<Result<_, _>>()?;
    Ok(files.concat())
}

/// Reads a source log and writes its copies with attacks.
fn write_copies(
    wanted: &Wanted<'_>,
    log: usize,
    source: &SourceLog,
    mut copies: Vec<CopyWriter>,
) -> Result<Vec<SyntheticFile>, CanError> {
    let path = &wanted.logs[log].path;
    let mut reader = open_log_with(path, wanted.format, &wanted.logs[log].read_options(wanted.read))?;
    let mut frames = Vec::with_capacity(BLOCK_FRAMES);
    let mut first = 0;
    while copies.iter().any(|copy| !copy.pieces.is_empty()) && reader.read_block(BLOCK_FRAMES, &mut frames)? > 0 {
        copies.par_iter_mut().try_for_each(|copy| copy.push(first, &frames))?;
        first += frames.len() as u64;
    }
    let (size_at_open, size_at_end) = (source.bytes, state_of(path)?.0);
    let has_changed = state_of(path)? != (source.bytes, source.modified_nanoseconds);
    if has_changed || copies.iter().any(|copy| !copy.pieces.is_empty()) {
        return Err(CanError::ChangedWhileRead { path: path.clone(), size_at_open, size_at_end });
    }
    let files = copies.into_par_iter().map(|copy| copy.finish(source.modified_nanoseconds));
    Ok(files.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Names of the logs without endings, made distinct by a number.
fn stems(logs: &[&SourceFile]) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let distinct = |log: &&SourceFile| {
        let stem = log_stem(&log.path);
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        // One of infinitely many names is free.
        let name = std::iter::once(stem.clone()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or(stem);
        taken.insert(name.clone());
        name
    };
    logs.iter().map(distinct).collect()
}

/// A synthetic log that is being written.
struct CopyWriter {
    kind: SyntheticKind,
    shares: Shares,
    random: Stream,
    /// Frames of the source still to be attacked; each piece with the set of its stretch, and true if it begins a stretch.
    pieces: VecDeque<Piece>,
    /// Frames of the current piece.
    collected: Vec<Frame>,
    bus: Bus,
    output: Output,
    file: SyntheticFile,
}

struct Piece {
    set: BlockSet,
    frames: Range<u64>,
    begins_stretch: bool,
}

impl CopyWriter {
    fn new(
        folder: &Path,
        name: String,
        kind: SyntheticKind,
        stretches: Vec<Stretch>,
        shares: Shares,
        random: Stream,
    ) -> Result<Self, CanError> {
        let pieces = |stretch: &Stretch| {
            let begin = stretch.frames.start;
            let piece = |frames: Range<u64>| Piece { set: stretch.set, begins_stretch: frames.start == begin, frames };
            stretch.pieces().map(piece).collect::<Vec<_>>()
        };
        let output = Output::create(folder.join(&name))?;
        let file = SyntheticFile {
            name,
            source: 0,
            kind,
            frames: 0,
            attack_frames: 0,
            bytes: 0,
            blake3: String::new(),
            blocks: Vec::new(),
            episodes: Vec::new(),
        };
        let pieces = stretches.iter().flat_map(pieces).collect();
        Ok(Self { kind, shares, random, pieces, collected: Vec::new(), bus: Bus::default(), output, file })
    }

    /// Takes what it needs of the source's frames from number `first` on.
    fn push(&mut self, first: u64, frames: &[Frame]) -> Result<(), CanError> {
        let end = first + frames.len() as u64;
        while let Some(piece) = self.pieces.front().filter(|piece| piece.frames.start < end) {
            let from = piece.frames.start.max(first);
            let to = piece.frames.end.min(end);
            self.collected.extend(&frames[(from - first) as usize..(to - first) as usize]);
            if to < piece.frames.end {
                break;
            }
            if let Some(piece) = self.pieces.pop_front() {
                self.attack(piece)?;
            }
        }
        Ok(())
    }

    /// Attacks the collected frames of a piece and writes the result.
    fn attack(&mut self, piece: Piece) -> Result<(), CanError> {
        // The format has at most eight bytes; features ignore the others.
        self.collected
            .iter_mut()
            .for_each(|frame| frame.payload_length = frame.payload_length.min(PAYLOAD_BYTES as u8));
        let random = self.random.child(piece.frames.start);
        let Attacked { frames, episodes } = attack(&self.collected, self.kind, self.shares, random, &mut self.bus);
        self.collected.clear();
        let file = &mut self.file;
        let first = file.frames;
        file.frames += frames.len() as u64;
        file.attack_frames += frames.iter().filter(|frame| frame.attack).count() as u64;
        for mut episode in episodes {
            episode.frames = first + episode.frames.start..first + episode.frames.end;
            file.episodes.push(episode);
        }
        match file.blocks.last_mut() {
            Some(block) if !piece.begins_stretch => {
                (block.source.end, block.frames.end) = (piece.frames.end, file.frames);
            }
            _ => file.blocks.push(CopiedBlock { set: piece.set, source: piece.frames, frames: first..file.frames }),
        }
        self.output.write(&frames)
    }

    /// Completes the log, with the time of its source: it is then the same on every machine that has the source. Removes it and
    /// returns `None` if it has no attack.
    fn finish(mut self, modified_nanoseconds: u64) -> Result<Option<SyntheticFile>, CanError> {
        let path = self.output.finish(modified_nanoseconds)?;
        if self.file.attack_frames == 0 {
            fs::remove_file(&path).map_err(cannot_write(&path))?;
            return Ok(None);
        }
        (self.file.bytes, self.file.blake3) = (state_of(&path)?.0, digest_of(&path)?);
        Ok(Some(self.file))
    }
}

/// A compressed log in the format of can-train-and-test.
struct Output {
    path: PathBuf,
    encoder: GzEncoder<File>,
    rows: Vec<u8>,
}

impl Output {
    fn create(path: PathBuf) -> Result<Self, CanError> {
        let mut encoder = compressor(File::create(&path).map_err(cannot_write(&path))?);
        encoder.write_all(can_train_and_test::HEADER.as_bytes()).map_err(cannot_write(&path))?;
        Ok(Self { path, encoder, rows: Vec::new() })
    }

    fn write(&mut self, frames: &[Frame]) -> Result<(), CanError> {
        for frames in frames.chunks(BLOCK_FRAMES) {
            self.rows.clear();
            frames.iter().for_each(|frame| can_train_and_test::write_row(frame, &mut self.rows));
            self.encoder.write_all(&self.rows).map_err(cannot_write(&self.path))?;
        }
        Ok(())
    }

    fn finish(self, modified_nanoseconds: u64) -> Result<PathBuf, CanError> {
        let modified = UNIX_EPOCH + Duration::from_nanos(modified_nanoseconds);
        let finished = self.encoder.finish();
        let synced = finished.and_then(|file| file.set_modified(modified).and_then(|()| file.sync_all()));
        synced.map_err(cannot_write(&self.path))?;
        Ok(self.path)
    }
}
