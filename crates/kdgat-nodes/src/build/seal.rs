//! The end of a build: checksums and digest of what is on the disk, the header, and the final name.

use std::os::unix::fs::FileExt;
use std::path::Path;

use super::work::Work;
use super::{Build, Sizes, Step, header, notes};
use crate::NodesError;
use crate::sections::ContentHash;
use crate::sources::SourceNotes;

/// Bytes read at a time.
const BLOCK_BYTES: u64 = 4 << 20;

/// Reads all arrays, writes the header, and gives the store its name.
pub fn seal(sizes: &Sizes, work: Work, header_bytes: u64, build: &Build<'_>) -> Result<(), NodesError> {
    let journal = &work.journal;
    let notes = SourceNotes {
        removed_self_loops: journal.self_loops,
        removed_duplicates: sizes.edges - journal.self_loops - journal.edges_written / sizes.directions(),
        nodes_without_label: journal.nodes_without_label,
        ..notes(sizes, journal)
    };
    // Labels were counted before the edges.
    let mut header = header(sizes, journal.classes.unwrap_or(0), journal.edges_written, notes);
    let store = work.store()?;
    let path: &Path = work.target();
    let end = header.sections.last().map_or(0, |last| last.padded_range(header_bytes as usize).end as u64);
    // Fills the last page with zeros, and cuts nothing off: no byte behind the arrays was ever written.
    store.set_len(end).map_err(NodesError::io("write", path))?;
    let mut hash = ContentHash::new(header.classes, sizes.columns);
    let mut block = vec![0; BLOCK_BYTES as usize];
    for section in &mut header.sections {
        hash.begin(&section.name, &section.dtype, section.bytes as u64);
        let (range, padded) = (section.range(header_bytes as usize), section.padded_range(header_bytes as usize));
        let mut at = padded.start as u64;
        while at < padded.end as u64 {
            let found = &mut block[..BLOCK_BYTES.min(padded.end as u64 - at) as usize];
            store.read_exact_at(found, at).map_err(NodesError::io("read", path))?;
            section.crc32c = crc32c::crc32c_append(section.crc32c, found);
            let of_array = (range.end as u64).saturating_sub(at).min(found.len() as u64);
            hash.update(&found[..of_array as usize]);
            at += found.len() as u64;
            build.advance(Step::Checksums, at - header_bytes, end - header_bytes)?;
        }
    }
    header.digest = hash.finish();
    let bytes = header.to_bytes().map_err(|error| NodesError::io("write", path)(error.into()))?;
    if bytes.len() as u64 != header_bytes {
        let error = std::io::Error::other(format!("a header of {} bytes, expected {header_bytes}", bytes.len()));
        return Err(NodesError::io("write", path)(error));
    }
    store.write_all_at(&bytes, 0).map_err(NodesError::io("write", path))?;
    drop(store);
    work.finish()
}
