//! Reads the cache of a teacher in Python (`kdgat.Teacher`): a folder with a record for each graph (docs/store.md).
//!
//! The items are graphs, by the positions of the dataset's graphs or by their names. A record is believed only if its key, size and checksum
//! are right; of several records of a graph, the first of those counts.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::f16;
use kdgat_base::random;
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Name of the manifest in the folder.
pub const MANIFEST: &str = "cache.json";
const FORMAT: &str = "kdgat targets";
const VERSION: u32 = 1;
/// Bytes before the first record of a file of rows, of an entry of an index, and before a record's numbers of rows.
const HEAD_BYTES: u64 = 48;
const ENTRY_BYTES: usize = 32;
const START_BYTES: usize = 24;
/// Mixed into the keys of IDs.
const ID: u64 = 0x4B44_4741_545F_4944;
/// Largest manifest that is read.
const MOST_MANIFEST_BYTES: u64 = 1 << 20;
/// Most numbers of a row.
const MOST_COLUMNS: u64 = 1 << 24;

/// Rows of an output for all graphs.
#[derive(Debug)]
pub struct CachedOutput {
    /// Name of the output in the manifest.
    pub name: String,
    /// Numbers of a row.
    pub columns: usize,
    /// `[graphs, columns]`
    pub values: Vec<f32>,
}

/// A problem of a cache: where, what was found, and what was expected.
#[derive(Debug)]
pub struct CacheProblem {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub found: String,
    /// The requirement, or what to do.
    pub expected: String,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    format: String,
    version: u32,
    key: Key,
    outputs: Vec<Output>,
}

#[derive(Debug, Deserialize)]
struct Key {
    keys: String,
}

#[derive(Debug, Deserialize)]
struct Output {
    name: String,
    shape: Vec<u64>,
    rows: String,
    encoding: String,
}

impl Output {
    /// Numbers of a row, and bytes of each.
    fn sizes(&self) -> Result<(usize, usize), String> {
        let bytes = match self.encoding.as_str() {
            "f32" => 4,
            "f16" => 2,
            other => return Err(format!("output '{}' in the encoding {other}", self.name)),
        };
        match (self.rows.as_str(), self.shape.as_slice()) {
            ("one", &[columns]) if (1..=MOST_COLUMNS).contains(&columns) => Ok((columns as usize, bytes)),
            _ => Err(format!("output '{}' with {} rows of shape {:?} a graph", self.name, self.rows, self.shape)),
        }
    }
}

/// A place of a record that an index names.
#[derive(Clone, Copy)]
struct Place {
    file: usize,
    offset: u64,
}

/// Reads all outputs of a cache for `count` graphs; `names` reads their names, if the cache is not by position.
///
/// # Errors
/// A manifest of another kind, files that do not belong to it, or a graph without a whole record.
pub fn read(
    folder: &Path,
    count: usize,
    names: &dyn Fn() -> Result<Vec<String>, String>,
) -> Result<Vec<CachedOutput>, CacheProblem> {
    let path = folder.join(MANIFEST);
    let problem =
        |found: String, expected: &str| CacheProblem { path: path.clone(), found, expected: expected.to_owned() };
    let io = |path: &Path, error: &std::io::Error| CacheProblem {
        path: path.to_owned(),
        found: error.to_string(),
        expected: format!("a folder that kdgat.Teacher has filled, with {MANIFEST}, *.rows and *.index"),
    };
    let size = path.metadata().map_err(|error| io(&path, &error))?.len();
    if size > MOST_MANIFEST_BYTES {
        return Err(problem(format!("it has {size} bytes"), "a manifest of at most a mebibyte"));
    }
    let content = std::fs::read(&path).map_err(|error| io(&path, &error))?;
    let manifest: Manifest = serde_json::from_slice(&content)
        .map_err(|error| problem(error.to_string(), "the manifest of a cache; fill a new folder"))?;
    if manifest.format != FORMAT || manifest.version != VERSION {
        let found = format!("format '{}', version {}", manifest.format, manifest.version);
        return Err(problem(found, &format!("format '{FORMAT}', version {VERSION}")));
    }
    if manifest.key.keys != "ids" {
        let expected = "IDs: kdgat.Teacher(ids=…) with the positions of the dataset's graphs from 0, or their names";
        return Err(problem("its keys are digests of contents".to_owned(), expected));
    }
    let expected = "outputs with one row of f32 or f16 a graph, without top_k";
    let sizes = manifest.outputs.iter().map(Output::sizes).collect::<Result<Vec<_>, _>>();
    let sizes = sizes.map_err(|found| problem(found, expected))?;
    let row_bytes: usize = sizes.iter().map(|(columns, bytes)| columns * bytes).sum();
    let record_bytes = (START_BYTES + 4 * sizes.len() + row_bytes + 4).next_multiple_of(8);

    // One position more than there are graphs: who has numbered others, too, such as those without targets, has shifted the rows.
    let mut wanted: HashMap<[u8; 16], usize> = (0..=count).map(|graph| (position_key(graph as u64), graph)).collect();
    let head = head(&content);
    let mut found = find(folder, &head, record_bytes, &wanted, count + 1)?;
    if found.places.pop().is_some_and(|places| !places.is_empty()) {
        return Err(problem(
            format!("it has a record of position {count}, and the dataset has {count} graphs, from 0"),
            "records of the dataset's graphs alone; it leaves out graphs without targets, so give their names as IDs",
        ));
    }
    if found.places.iter().all(Vec::is_empty) {
        let names = names().map_err(|error| problem(error, "the names of the dataset's graphs"))?;
        wanted = names.iter().take(count).enumerate().map(|(graph, name)| (name_key(name), graph)).collect();
        found = find(folder, &head, record_bytes, &wanted, count)?;
    }
    let Found { files, places, bytes } = found;
    let covered = places.iter().filter(|places| !places.is_empty()).count();
    let missing = |graph: usize| {
        let found = format!("graph {graph} has no whole record; {covered} of {count} graphs have one");
        problem(
            found,
            "a record for each graph of the dataset: run the teacher over all of them, with their positions or names as IDs",
        )
    };
    if let Some(graph) = places.iter().position(Vec::is_empty) {
        return Err(missing(graph));
    }
    // Several entries of an index may claim one record, and what follows is allocated for all graphs.
    if (record_bytes as u64).saturating_mul(count as u64) > bytes {
        let found = format!("{count} records of {record_bytes} bytes are claimed, and the files have {bytes}");
        return Err(problem(found, "a record for each graph of the dataset"));
    }
    let keys: HashMap<usize, [u8; 16]> = wanted.into_iter().map(|(key, graph)| (graph, key)).collect();
    let mut outputs: Vec<CachedOutput> = manifest
        .outputs
        .iter()
        .zip(&sizes)
        .map(|(output, &(columns, _))| CachedOutput {
            name: output.name.clone(),
            columns,
            values: Vec::with_capacity(count * columns),
        })
        .collect();
    let mut record = Vec::new();
    for (graph, places) in places.iter().enumerate() {
        let is_whole = |place: &Place, record: &mut [u8]| {
            files[place.file].read_exact_at(record, place.offset).is_ok()
                && is_record(record, &keys[&graph], sizes.len())
        };
        record.resize(record_bytes, 0);
        if !places.iter().any(|place| is_whole(place, &mut record)) {
            return Err(missing(graph));
        }
        let mut at = START_BYTES + 4 * sizes.len();
        for (output, &(columns, bytes)) in outputs.iter_mut().zip(&sizes) {
            append(&record[at..at + columns * bytes], bytes, &mut output.values);
            at += columns * bytes;
        }
    }
    Ok(outputs)
}

/// First bytes of every file of rows that belongs to a manifest.
fn head(manifest: &[u8]) -> Vec<u8> {
    let mut head = b"KDGATROW".to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend([0; 4]);
    head.extend(Sha256::digest(manifest));
    head
}

/// The files of rows, and the places of each graph's records.
struct Found {
    files: Vec<File>,
    places: Vec<Vec<Place>>,
    /// Bytes of all files of rows.
    bytes: u64,
}

/// Opens the files of rows, and finds the wanted records.
fn find(
    folder: &Path,
    head: &[u8],
    record_bytes: usize,
    wanted: &HashMap<[u8; 16], usize>,
    count: usize,
) -> Result<Found, CacheProblem> {
    let problem = |path: &Path, found: String| CacheProblem {
        path: path.to_owned(),
        found,
        expected: format!("files that belong to {MANIFEST}; remove others"),
    };
    let at = |path: &Path, error: &std::io::Error| problem(path, error.to_string());
    let mut indexes = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| at(folder, &error))? {
        let path = entry.map_err(|error| at(folder, &error))?.path();
        if path.extension().is_some_and(|ending| ending == "index") {
            indexes.push(path);
        }
    }
    indexes.sort();
    let mut found = Found { files: Vec::with_capacity(indexes.len()), places: vec![Vec::new(); count], bytes: 0 };
    for index in indexes {
        let rows = index.with_extension("rows");
        let file = File::open(&rows).map_err(|error| at(&rows, &error))?;
        let bytes = file.metadata().map_err(|error| at(&rows, &error))?.len();
        let mut start = vec![0; head.len()];
        if file.read_exact_at(&mut start, 0).is_err() || start != head {
            return Err(problem(&rows, "it does not begin as the files of this cache".to_owned()));
        }
        let entries = std::fs::read(&index).map_err(|error| at(&index, &error))?;
        for entry in entries.as_chunks::<ENTRY_BYTES>().0 {
            let Some((key, rest)) = entry.split_first_chunk::<16>() else { continue };
            let Some(&graph) = wanted.get(key) else { continue };
            let Some((offset, rest)) = rest.split_first_chunk::<8>() else { continue };
            let Some(size) = rest.first_chunk::<4>() else { continue };
            let (offset, size) = (u64::from_le_bytes(*offset), u64::from(u32::from_le_bytes(*size)));
            let is_inside = offset >= HEAD_BYTES && offset.checked_add(size).is_some_and(|end| end <= bytes);
            if size == record_bytes as u64 && is_inside {
                found.places[graph].push(Place { file: found.files.len(), offset });
            }
        }
        found.files.push(file);
        found.bytes = found.bytes.saturating_add(bytes);
    }
    Ok(found)
}

/// True if these bytes are the record of `key`, with one row of each output.
fn is_record(record: &[u8], key: &[u8; 16], outputs: usize) -> bool {
    let Some((content, checksum)) = record.split_last_chunk::<4>() else { return false };
    let size = u32::try_from(record.len()).unwrap_or(u32::MAX);
    let counts = &content[START_BYTES..START_BYTES + 4 * outputs];
    content[..4] == *b"KDRW"
        && content[4..8] == size.to_le_bytes()
        && content[8..START_BYTES] == *key
        && counts.as_chunks::<4>().0.iter().all(|&count| u32::from_le_bytes(count) == 1)
        && crc32fast::hash(content) == u32::from_le_bytes(*checksum)
}

fn append(bytes: &[u8], of_each: usize, values: &mut Vec<f32>) {
    if of_each == 4 {
        values.extend(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    } else {
        values.extend(bytes.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()));
    }
}

/// Key of an ID that is a whole number.
fn position_key(id: u64) -> [u8; 16] {
    let mixed = random::finalize(id ^ ID);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mixed.to_le_bytes());
    key[8..].copy_from_slice(&id.to_le_bytes());
    key
}

/// Key of an ID that is a text.
fn name_key(name: &str) -> [u8; 16] {
    let digest = Sha256::digest([&ID.to_le_bytes(), name.as_bytes()].concat());
    let mut key = [0; 16];
    key.copy_from_slice(&digest[..16]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: &str = r#"{"format": "kdgat targets", "version": 1, "key": {"keys": "ids", "weights": "ab"}, "outputs": [
        {"name": "logits", "shape": [3], "rows": "one", "encoding": "f32"},
        {"name": "embedding", "shape": [2], "rows": "one", "encoding": "f16"}]}"#;

    /// A record by the page docs/store.md: header, rows, zeros, checksum.
    fn record(key: [u8; 16], graph: usize) -> Vec<u8> {
        let mut record = b"KDRW".to_vec();
        record.extend(56u32.to_le_bytes());
        record.extend(key);
        record.extend([1u32, 1].map(u32::to_le_bytes).concat());
        record.extend([0.5, 1.5, graph as f32].map(f32::to_le_bytes).concat());
        record.extend([f16::from_f32(-1.0), f16::from_f32(graph as f32)].map(f16::to_le_bytes).concat());
        record.resize(52, 0);
        record.extend(crc32fast::hash(&record).to_le_bytes());
        record
    }

    fn write(folder: &Path, name: &str, keys: &[([u8; 16], usize)]) {
        let (mut rows, mut index) = (head(CONTENT.as_bytes()), Vec::new());
        for &(key, graph) in keys {
            index.extend(key);
            index.extend((rows.len() as u64).to_le_bytes());
            index.extend(56u32.to_le_bytes());
            index.extend([0; 4]);
            rows.extend(record(key, graph));
        }
        std::fs::write(folder.join(format!("{name}.rows")), rows).unwrap();
        std::fs::write(folder.join(format!("{name}.index")), index).unwrap();
    }

    fn names() -> Result<Vec<String>, String> {
        Ok((0..6).map(|graph| format!("graph {graph}")).collect())
    }

    fn read_six(folder: &Path) -> Result<Vec<CachedOutput>, String> {
        let text =
            |problem: CacheProblem| format!("{}: {}; {}", problem.path.display(), problem.found, problem.expected);
        read(folder, 6, &names).map_err(text)
    }

    fn filled(key: fn(usize) -> [u8; 16]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(MANIFEST), CONTENT).unwrap();
        let records: Vec<_> = [4, 0, 3, 5, 1, 2].map(|graph| (key(graph), graph)).into();
        write(folder.path(), "1-a", &records[..3]);
        write(folder.path(), "2-b", &records[2..]);
        folder
    }

    #[test]
    fn records_are_found_by_position_and_by_name() {
        let keys: [fn(usize) -> [u8; 16]; 2] =
            [|graph| position_key(graph as u64), |graph| name_key(&format!("graph {graph}"))];
        for key in keys {
            let folder = filled(key);
            let outputs = read_six(folder.path()).unwrap();
            assert_eq!((outputs[0].name.as_str(), outputs[0].columns), ("logits", 3));
            let expected: Vec<f32> = (0..6).flat_map(|graph| [0.5, 1.5, graph as f32]).collect();
            assert_eq!(outputs[0].values, expected);
            assert_eq!(outputs[1].values[10..], [-1.0, 5.0]);
        }
    }

    /// Keys of the Python package's tests (python/tests/test_store.py).
    #[test]
    fn keys_are_those_of_python() {
        let hex = |key: [u8; 16]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(position_key(3)[..8], 0x908c_f990_ca87_8a2c_u64.to_le_bytes());
        assert_eq!(hex(name_key("graph 3")), "bce80b64469491c02c7c6a8e100082fd");
    }

    #[test]
    fn no_changed_byte_is_believed() {
        let folder = filled(|graph| position_key(graph as u64));
        let expected = read_six(folder.path()).unwrap();
        for name in ["1-a.rows", "2-b.rows", "1-a.index"] {
            let path = folder.path().join(name);
            let whole = std::fs::read(&path).unwrap();
            for at in 0..whole.len() {
                let mut changed = whole.clone();
                changed[at] ^= 0x21;
                std::fs::write(&path, changed).unwrap();
                // The record of graph 3 is in both files; a byte that nothing reads changes nothing.
                match read_six(folder.path()) {
                    Ok(outputs) => assert_eq!(outputs[0].values, expected[0].values, "byte {at} of {name}"),
                    Err(error) => {
                        assert!(error.contains("has no whole record") || error.contains("does not begin"), "{error}")
                    }
                }
            }
            std::fs::write(&path, &whole[..whole.len() - 9]).unwrap();
            if !name.starts_with("1-a.index") {
                assert!(read_six(folder.path()).is_err() || name == "1-a.rows", "{name}");
            }
            std::fs::write(&path, whole).unwrap();
        }
    }

    /// An index whose entries all name one record is refused before anything is allocated for all graphs.
    #[test]
    fn a_record_counts_for_one_graph() {
        let folder = filled(|graph| position_key(graph as u64));
        std::fs::remove_file(folder.path().join("2-b.index")).unwrap();
        let path = folder.path().join("1-a.index");
        let whole = std::fs::read(&path).unwrap();
        let claimed: Vec<u8> =
            (0..6).flat_map(|graph| [&position_key(graph)[..], &whole[16..ENTRY_BYTES]].concat()).collect();
        std::fs::write(&path, claimed).unwrap();
        let error = read_six(folder.path()).unwrap_err();
        assert!(error.contains("6 records of 56 bytes are claimed, and the files have 216"), "{error}");
    }

    #[test]
    fn other_caches_are_refused() {
        let folder = filled(|graph| position_key(graph as u64));
        let path = folder.path().join(MANIFEST);
        for (from, to, expected) in [
            ("kdgat targets", "other", "format 'other'"),
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("\"ids\"", "\"contents\"", "positions of the dataset's graphs"),
            ("\"f32\"", "\"top-k\"", "in the encoding top-k; outputs with one row"),
            ("\"one\", \"encoding\": \"f32\"", "\"many\", \"encoding\": \"f32\"", "with many rows of shape [3]"),
            ("[3]", "[0]", "rows of shape [0]"),
            ("[3]", "[4000000000000]", "rows of shape [4000000000000]"),
            ("\"ab\"", "\"ac\"", "1-a.rows: it does not begin as the files of this cache"),
            ("\"outputs\"", "\"outputs", "the manifest of a cache"),
        ] {
            std::fs::write(&path, CONTENT.replacen(from, to, 1)).unwrap();
            let error = read_six(folder.path()).unwrap_err();
            assert!(error.contains(expected), "{error} lacks {expected}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(read_six(folder.path()).unwrap_err().contains("a folder that kdgat.Teacher has filled"));
    }
}
