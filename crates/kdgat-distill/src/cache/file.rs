//! A cache on disk: one file per teacher and store, which several processes fill and read at once.
//!
//! ```text
//! magic, version, length and CRC-32 of the header    24 bytes
//! header: the key as JSON                            up to the next multiple of 4096
//! one byte per graph: 1 once its record is written   up to the next multiple of 4096
//! records, in the order of the graphs                see `records`
//! ```
//!
//! The file has its full length from the start, but is sparse: it uses disk space only for written records. It is read and
//! written at offsets and never mapped: a full disk or a truncated file is then an error of one call, not a signal that kills the
//! program, and on a cached page such a call costs about a microsecond. A record's byte is set after the record. A torn record
//! (two writers, a power cut) fails its checksum, counts as missing, and is written again. A whole byte per graph can be written
//! without reading it first, so no process can undo the work of another.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use kdgat_base::files::Partial;

use super::{CacheError, CacheKey, RecordLayout};

const MAGIC: &[u8; 8] = b"KDGATTGT";
const VERSION: u32 = 1;
const PREFIX_BYTES: usize = 24;
const PAGE_BYTES: u64 = 4096;
/// Longer than the description of any architecture.
const MAX_HEADER_BYTES: u32 = 1 << 20;

/// An open cache file.
#[derive(Debug)]
pub(super) struct CacheFile {
    file: File,
    path: PathBuf,
    table_offset: u64,
    records_offset: u64,
    layout: RecordLayout,
}

impl CacheFile {
    /// Opens the file if it is for `key`; creates it if there is none.
    pub fn open(path: &Path, key: &CacheKey, layout: &RecordLayout) -> Result<Self, CacheError> {
        match Self::open_existing(path, key, layout) {
            Err(CacheError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                create(path, key, layout)?;
                Self::open_existing(path, key, layout)
            }
            outcome => outcome,
        }
    }

    fn open_existing(path: &Path, key: &CacheKey, layout: &RecordLayout) -> Result<Self, CacheError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io_error(path, "open"))?;
        let (found, header_end) = read_header(&file, path)?;
        let differences = found.differences(key);
        if !differences.is_empty() {
            return Err(CacheError::Mismatch { path: path.to_path_buf(), differences });
        }
        let (table_offset, records_offset, expected) = places(header_end, layout);
        let length = file.metadata().map_err(io_error(path, "examine"))?.len();
        if length != expected {
            let what = format!("its length is {length} bytes, expected {expected}");
            return Err(CacheError::Damaged { path: path.to_path_buf(), what });
        }
        Ok(Self { file, path: path.to_path_buf(), table_offset, records_offset, layout: layout.clone() })
    }

    /// Reads one byte per graph, `[num_graphs]`: 1 if its record is written.
    pub fn read_filled(&self) -> Result<Vec<u8>, CacheError> {
        let mut filled = vec![0; self.layout.graphs() as usize];
        self.file.read_exact_at(&mut filled, self.table_offset).map_err(io_error(&self.path, "read"))?;
        Ok(filled)
    }

    /// True if a record is written by now, by any process.
    pub fn is_filled(&self, graph: u64) -> Result<bool, CacheError> {
        let mut byte = [0];
        let read = self.file.read_exact_at(&mut byte, self.table_offset + graph);
        read.map_err(io_error(&self.path, "read"))?;
        Ok(byte[0] == 1)
    }

    /// Reads the bytes of a graph's record.
    pub fn read(&self, graph: u64, record: &mut Vec<u8>) -> Result<(), CacheError> {
        record.resize(self.layout.record_bytes(graph)?, 0);
        let offset = self.records_offset + self.layout.offset(graph);
        self.file.read_exact_at(record, offset).map_err(io_error(&self.path, "read"))
    }

    /// Writes a record, then marks it as written.
    pub fn write(&self, graph: u64, record: &[u8]) -> Result<(), CacheError> {
        let offset = self.records_offset + self.layout.offset(graph);
        self.file.write_all_at(record, offset).map_err(io_error(&self.path, "write"))?;
        self.file.write_all_at(&[1], self.table_offset + graph).map_err(io_error(&self.path, "write"))
    }

    /// Syncs the file to disk.
    pub fn sync(&self) -> Result<(), CacheError> {
        self.file.sync_data().map_err(io_error(&self.path, "sync"))
    }

    /// Replaces the open file by another one and returns the old one.
    #[cfg(test)]
    pub fn exchange(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Start of the table, start of the records, end of the file, in bytes.
fn places(header_end: u64, layout: &RecordLayout) -> (u64, u64, u64) {
    let table = header_end.next_multiple_of(PAGE_BYTES);
    let records = (table + layout.graphs()).next_multiple_of(PAGE_BYTES);
    (table, records, records + layout.offset(layout.graphs()))
}

/// The key of a cache file and the end of its header.
pub(super) fn read_header(file: &File, path: &Path) -> Result<(CacheKey, u64), CacheError> {
    let damaged = |what: String| CacheError::Damaged { path: path.to_path_buf(), what };
    let mut prefix = [0u8; PREFIX_BYTES];
    match file.read_exact_at(&mut prefix, 0) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            return Err(damaged("it is shorter than a header".to_string()));
        }
        outcome => outcome.map_err(io_error(path, "read"))?,
    }
    let word = |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
    if &prefix[..8] != MAGIC {
        return Err(damaged("it does not begin like a cache of targets".to_string()));
    }
    if word(8) != VERSION {
        return Err(damaged(format!("it has format version {}, this program reads {VERSION}", word(8))));
    }
    let (length, checksum) = (word(12), word(16));
    if length > MAX_HEADER_BYTES {
        return Err(damaged(format!("its header claims {length} bytes")));
    }
    let mut json = vec![0; length as usize];
    file.read_exact_at(&mut json, PREFIX_BYTES as u64).map_err(|_| damaged("its header is cut off".to_string()))?;
    if crc32fast::hash(&json) != checksum {
        return Err(damaged("its header fails its checksum".to_string()));
    }
    let key = serde_json::from_slice(&json).map_err(|error| damaged(format!("its header does not parse: {error}")))?;
    Ok((key, PREFIX_BYTES as u64 + u64::from(length)))
}

/// Creates an empty cache atomically under its name, or keeps the one that another process has just created.
fn create(path: &Path, key: &CacheKey, layout: &RecordLayout) -> Result<(), CacheError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(io_error(folder, "create"))?;
    let mut partial = Partial::beside(path).map_err(io_error(path, "create"))?;
    let temporary = partial.path().to_owned();
    write_empty(partial.file(), &temporary, key, layout)?;
    match std::fs::hard_link(&temporary, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        // Some file systems have no hard links. A rename may replace another process's file; then each process fills its own.
        Err(_) => partial.persist(path).map_err(io_error(path, "create")),
        Ok(()) => Ok(()),
    }
}

fn write_empty(file: &mut File, path: &Path, key: &CacheKey, layout: &RecordLayout) -> Result<(), CacheError> {
    let json = serde_json::to_vec(key).map_err(|error| io_error(path, "write")(error.into()))?;
    let mut header = Vec::with_capacity(PREFIX_BYTES + json.len());
    header.extend_from_slice(MAGIC);
    for word in [VERSION, json.len() as u32, crc32fast::hash(&json), 0] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header.extend_from_slice(&json);
    let (_, _, length) = places(header.len() as u64, layout);
    file.write_all(&header).map_err(io_error(path, "write"))?;
    file.set_len(length).map_err(io_error(path, "extend"))?;
    file.sync_all().map_err(io_error(path, "sync"))
}

pub(super) fn io_error(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> CacheError {
    let path = path.to_path_buf();
    move |source| CacheError::Io { path, action, source }
}
