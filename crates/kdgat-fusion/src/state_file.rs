//! States on disk: one file per VGAE, GAT and dataset, written chunk by chunk with a checksum each.
//!
//! Little-endian. The header is padded to a multiple of 64 bytes: 8 bytes of magic, u32 length and u32 CRC-32 of the JSON, then
//! the JSON (version, columns, digests of models and store), then zeros. Chunks of [`CHUNK_GRAPHS`] rows of f32 follow (the last
//! may be shorter), each with an 8-byte trailer: its CRC-32 and four zeros. While being written, the file ends in `.building`; an
//! interrupted one is resumed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::{Deserialize, Serialize};

use super::FusionError;
use super::states::{STATE, STATE_COLUMNS};
use kdgat_base::files;
use kdgat_torch::mapped;

const MAGIC: &[u8; 8] = b"KDGATFST";
const FORMAT_VERSION: u32 = 1;
/// Graphs per chunk.
pub const CHUNK_GRAPHS: u64 = 4096;
/// Bytes per row.
const ROW: usize = 4 * STATE_COLUMNS;
/// Bytes of a chunk's trailer.
const TRAILER: usize = 8;
const HEAD_ALIGNMENT: usize = 64;

/// Identity of the states in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateKey {
    /// Digest of the VGAE's weights.
    pub vgae_digest: String,
    /// Digest of the GAT's weights.
    pub gat_digest: String,
    /// Digest of the store.
    pub data_digest: String,
    /// Number of graphs in the store, all of which have a state.
    pub graphs: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    format_version: u32,
    columns: Vec<String>,
    chunk_graphs: u64,
    #[serde(flatten)]
    key: StateKey,
}

impl StateKey {
    /// Name of the file.
    pub fn file_name(&self, dataset: &str) -> String {
        let short = |digest: &str| digest.get(..12).unwrap_or(digest).to_owned();
        format!(
            "{dataset}-{}-{}-{}.states",
            short(&self.vgae_digest),
            short(&self.gat_digest),
            short(&self.data_digest)
        )
    }

    fn head(&self) -> Vec<u8> {
        let columns = STATE.iter().map(|name| (*name).to_owned()).chain(["attack_log_odds".to_owned()]).collect();
        let head = Head { format_version: FORMAT_VERSION, columns, chunk_graphs: CHUNK_GRAPHS, key: self.clone() };
        let json = serde_json::to_vec(&head).unwrap_or_default();
        let mut bytes = MAGIC.to_vec();
        bytes.extend((json.len() as u32).to_le_bytes());
        bytes.extend(crc32fast::hash(&json).to_le_bytes());
        bytes.extend(json);
        bytes.resize(bytes.len().next_multiple_of(HEAD_ALIGNMENT), 0);
        bytes
    }

    fn chunks(&self) -> u64 {
        self.graphs.div_ceil(CHUNK_GRAPHS)
    }

    /// Bytes of a chunk's rows.
    fn chunk_bytes(&self, chunk: u64) -> usize {
        (self.graphs - chunk * CHUNK_GRAPHS).min(CHUNK_GRAPHS) as usize * ROW
    }
}

/// Offset of a chunk from the end of the header, in bytes.
fn chunk_offset(chunk: u64) -> usize {
    chunk as usize * (CHUNK_GRAPHS as usize * ROW + TRAILER)
}

/// A complete file, memory-mapped: rows are read on demand.
#[derive(Debug)]
pub struct StateFile {
    mapped: Mmap,
    head_bytes: usize,
    graphs: u64,
}

impl StateFile {
    /// Opens and verifies a file.
    ///
    /// # Errors
    /// Names what is damaged, or the states the file holds if they are not those of `key`.
    pub fn open(path: &Path, key: &StateKey) -> Result<Self, FusionError> {
        let error = |action| files::failed(action, path);
        let file = File::open(path).map_err(error("open the states"))?;
        // The file has its final name and is never modified: writers write another file and rename it.
        let mapped = mapped::map(&file).map_err(error("map the states"))?;
        let damaged = |reason: String| FusionError::Damaged { path: path.to_owned(), reason };
        check_head(&mapped, key).map_err(damaged)?;
        let head_bytes = key.head().len();
        let end = |chunk: u64| head_bytes + chunk_offset(chunk) + key.chunk_bytes(chunk) + TRAILER;
        let expected = key.chunks().checked_sub(1).map_or(head_bytes, end);
        if mapped.len() != expected {
            return Err(damaged(format!(
                "it has {} bytes, the states of {} graphs take {expected}",
                mapped.len(),
                key.graphs
            )));
        }
        for chunk in 0..key.chunks() {
            let start = head_bytes + chunk_offset(chunk);
            let (rows, trailer) = mapped[start..end(chunk)].split_at(key.chunk_bytes(chunk));
            if trailer != trailer_of(rows) {
                let first = chunk * CHUNK_GRAPHS;
                let last = first + (rows.len() / ROW) as u64 - 1;
                return Err(damaged(format!("the states of graphs {first} to {last} fail their checksum")));
            }
        }
        Ok(Self { mapped, head_bytes, graphs: key.graphs })
    }

    /// Number of graphs.
    pub fn len(&self) -> u64 {
        self.graphs
    }

    /// True if there are no graphs.
    pub fn is_empty(&self) -> bool {
        self.graphs == 0
    }

    /// Stored columns of a graph, `[STATE_COLUMNS]`.
    ///
    /// # Panics
    /// Panics if the store has no such graph.
    pub fn row(&self, graph: u64) -> &[f32] {
        assert!(graph < self.graphs, "graph {graph} of {}", self.graphs);
        let (chunk, place) = (graph / CHUNK_GRAPHS, (graph % CHUNK_GRAPHS) as usize);
        let start = self.head_bytes + chunk_offset(chunk) + place * ROW;
        bytemuck::cast_slice(&self.mapped[start..start + ROW])
    }
}

fn check_head(bytes: &[u8], key: &StateKey) -> Result<(), String> {
    let number = |at: usize| bytes.get(at..at + 4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    let (Some(length), Some(crc)) = (number(8), number(12)) else { return Err("it is too short".to_owned()) };
    if bytes.get(..8) != Some(MAGIC) {
        return Err("it is not a states file".to_owned());
    }
    let json = bytes.get(16..16usize.saturating_add(length as usize)).ok_or("its header is truncated")?;
    if crc32fast::hash(json) != crc {
        return Err("its header fails its checksum".to_owned());
    }
    let version: serde_json::Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let found = version["format_version"].as_u64().unwrap_or(0);
    if found != u64::from(FORMAT_VERSION) {
        return Err(format!("it is format version {found}, this program reads {FORMAT_VERSION}"));
    }
    if bytes.get(..key.head().len()) != Some(&key.head()[..]) {
        return Err(format!("it holds other states: {}", String::from_utf8_lossy(json)));
    }
    Ok(())
}

fn trailer_of(rows: &[u8]) -> [u8; TRAILER] {
    let mut trailer = [0; TRAILER];
    trailer[..4].copy_from_slice(&crc32fast::hash(rows).to_le_bytes());
    trailer
}

/// A file being written, locked by one process at a time.
#[derive(Debug)]
pub struct StateWriter {
    target: PathBuf,
    building: PathBuf,
    file: File,
    key: StateKey,
    chunks_done: u64,
}

impl StateWriter {
    /// Starts a file, or resumes an interrupted one. Waits while another process writes it.
    pub fn open(target: &Path, key: &StateKey) -> Result<Self, FusionError> {
        let mut building = target.as_os_str().to_owned();
        building.push(".building");
        let building = PathBuf::from(building);
        let error = files::failed("write the states", &building);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(error)?;
        }
        let mut file = loop {
            let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&building);
            let file = options.map_err(error)?;
            if let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
                eprintln!("waiting for another process that computes these states ({})", building.display());
                file.lock().map_err(error)?;
            }
            // The other process may have renamed the file to its final name meanwhile.
            if is_same_file(&file, &building).map_err(error)? {
                break file;
            }
        };
        let chunks_done = whole_chunks(&mut file, key).map_err(error)?;
        let head = key.head();
        if chunks_done == 0 {
            file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(error)?;
            file.write_all(&head).map_err(error)?;
        }
        let end = (head.len() + chunk_offset(chunks_done)) as u64;
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(error)?;
        Ok(Self { target: target.to_owned(), building, file, key: key.clone(), chunks_done })
    }

    /// Number of graphs whose states are written.
    pub fn graphs_done(&self) -> u64 {
        (self.chunks_done * CHUNK_GRAPHS).min(self.key.graphs)
    }

    /// Appends the rows of the next chunk.
    ///
    /// # Panics
    /// Panics if their number differs from the chunk's.
    pub fn push(&mut self, rows: &[f32]) -> Result<(), FusionError> {
        let bytes: &[u8] = bytemuck::cast_slice(rows);
        assert_eq!(bytes.len(), self.key.chunk_bytes(self.chunks_done), "the rows of a chunk");
        let written = self.file.write_all(bytes).and_then(|()| self.file.write_all(&trailer_of(bytes)));
        written.map_err(|source| self.error(source))?;
        self.chunks_done += 1;
        Ok(())
    }

    /// Renames the complete file to its final name.
    pub fn finish(self) -> Result<(), FusionError> {
        debug_assert_eq!(self.chunks_done, self.key.chunks(), "an incomplete file");
        let renamed = self.file.sync_all().and_then(|()| fs::rename(&self.building, &self.target));
        renamed.and_then(|()| files::sync_parent(&self.target)).map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> FusionError {
        files::failed("write the states", &self.building)(source).into()
    }
}

/// Number of intact chunks of an interrupted file; 0 if the file holds other states.
fn whole_chunks(file: &mut File, key: &StateKey) -> io::Result<u64> {
    let head = key.head();
    file.seek(SeekFrom::Start(0))?;
    let mut found = vec![0; head.len()];
    if !read_whole(file, &mut found)? || found != head {
        return Ok(0);
    }
    for chunk in 0..key.chunks() {
        let mut bytes = vec![0; key.chunk_bytes(chunk) + TRAILER];
        if !read_whole(file, &mut bytes)? {
            return Ok(chunk);
        }
        let (rows, trailer) = bytes.split_at(key.chunk_bytes(chunk));
        if trailer != trailer_of(rows) {
            return Ok(chunk);
        }
    }
    Ok(key.chunks())
}

/// Fills `bytes` from the file; false if the file ends first.
fn read_whole(file: &mut File, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let held = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((held.dev(), held.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(graphs: u64) -> StateKey {
        let digest = |letter: char| letter.to_string().repeat(64);
        StateKey { vgae_digest: digest('a'), gat_digest: digest('b'), data_digest: digest('c'), graphs }
    }

    fn rows(graphs: std::ops::Range<u64>) -> Vec<f32> {
        graphs.flat_map(|graph| (0..STATE_COLUMNS).map(move |column| graph as f32 + column as f32 / 100.0)).collect()
    }

    fn write(path: &Path, key: &StateKey) {
        let mut writer = StateWriter::open(path, key).unwrap();
        while writer.graphs_done() < key.graphs {
            let next = writer.graphs_done();
            writer.push(&rows(next..(next + CHUNK_GRAPHS).min(key.graphs))).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn states_come_back_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        for graphs in [0, 1, CHUNK_GRAPHS, CHUNK_GRAPHS + 1, 3 * CHUNK_GRAPHS - 5] {
            let path = folder.path().join("deep").join(key(graphs).file_name("sim"));
            write(&path, &key(graphs));
            let file = StateFile::open(&path, &key(graphs)).unwrap();
            assert_eq!((file.len(), file.is_empty()), (graphs, graphs == 0));
            for graph in (0..graphs).step_by(97).chain(graphs.checked_sub(1)) {
                assert_eq!(file.row(graph), rows(graph..graph + 1));
            }
        }
    }

    #[test]
    fn every_damaged_byte_is_noticed_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let (path, key) = (folder.path().join("a.states"), key(CHUNK_GRAPHS + 3));
        write(&path, &key);
        let good = fs::read(&path).unwrap();
        let head = key.head().len();
        for place in [0, 9, 13, 40, head + 5, good.len() - TRAILER - 1, good.len() - TRAILER] {
            let mut bytes = good.clone();
            bytes[place] ^= 1;
            fs::write(&path, bytes).unwrap();
            let text = StateFile::open(&path, &key).unwrap_err().to_string();
            assert!(text.contains("a.states") && text.contains("delete it"), "byte {place}: {text}");
        }
        for length in [0, 10, head, good.len() - 1] {
            fs::write(&path, &good[..length]).unwrap();
            assert!(StateFile::open(&path, &key).is_err(), "{length} bytes");
        }
        fs::write(&path, &good).unwrap();
        let mut bytes = good.clone();
        bytes[head + ROW * CHUNK_GRAPHS as usize + TRAILER] ^= 1;
        fs::write(&path, bytes).unwrap();
        let text = StateFile::open(&path, &key).unwrap_err().to_string();
        assert!(text.contains("graphs 4096 to 4098"), "{text}");
        fs::write(&path, &good).unwrap();
        let other = StateKey { gat_digest: "d".repeat(64), ..key.clone() };
        assert!(StateFile::open(&path, &other).unwrap_err().to_string().contains("holds other states"));
        StateFile::open(&path, &key).unwrap();
    }

    #[test]
    fn an_interrupted_file_resumes_after_its_last_whole_chunk() {
        let folder = tempfile::tempdir().unwrap();
        let (path, key) = (folder.path().join("a.states"), key(3 * CHUNK_GRAPHS));
        let mut writer = StateWriter::open(&path, &key).unwrap();
        writer.push(&rows(0..CHUNK_GRAPHS)).unwrap();
        writer.push(&rows(CHUNK_GRAPHS..2 * CHUNK_GRAPHS)).unwrap();
        let building = writer.building.clone();
        drop(writer);
        // Killed in the middle of the second chunk.
        let length = fs::metadata(&building).unwrap().len();
        OpenOptions::new().write(true).open(&building).unwrap().set_len(length - 100).unwrap();
        assert_eq!(StateWriter::open(&path, &key).unwrap().graphs_done(), CHUNK_GRAPHS);
        write(&path, &key);
        assert!(!building.exists());
        assert_eq!(
            StateFile::open(&path, &key).unwrap().row(2 * CHUNK_GRAPHS),
            rows(2 * CHUNK_GRAPHS..2 * CHUNK_GRAPHS + 1)
        );
        // A file of other states is started over.
        let mut writer = StateWriter::open(&path, &key).unwrap();
        writer.push(&rows(0..CHUNK_GRAPHS)).unwrap();
        drop(writer);
        let other = StateKey { gat_digest: "d".repeat(64), ..key };
        assert_eq!(StateWriter::open(&path, &other).unwrap().graphs_done(), 0);
    }
}
