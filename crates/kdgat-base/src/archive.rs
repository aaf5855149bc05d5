//! Zip archives whose sizes are checked before anything is read or allocated by them.
//!
//! An archive says itself how many members it has, where they lie and how large they are, and may say anything.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use thiserror::Error;
use zip::ZipArchive;
use zip::result::ZipError;

/// Smallest entry of a member in the directory at the end of an archive, in bytes.
const LEAST_ENTRY_BYTES: u64 = 46;
/// Size of the record at the end of an archive without its comment, in bytes.
const END_BYTES: usize = 22;
/// Longest comment of an archive, in bytes.
const LONGEST_COMMENT: u64 = 65_535;
/// Size of the record before it that says where the larger record of large archives is, in bytes.
const LOCATOR_BYTES: usize = 20;
/// Size of that larger record, in bytes.
const LARGE_END_BYTES: usize = 56;
/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 4;
/// Bytes that are searched for a signature at a time.
const BLOCK_BYTES: usize = 1 << 16;

/// An error of opening an archive.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(io::Error),
    /// The file is no zip archive, is cut off, or is one of a kind that is not supported.
    #[error("{0}")]
    Unreadable(String),
    /// The archive says what cannot be: members larger than the file, or at the same place.
    #[error("{0}")]
    Impossible(String),
}

impl From<io::Error> for ArchiveError {
    fn from(error: io::Error) -> Self {
        // An end within the archive has no number.
        match error.raw_os_error() {
            Some(_) => Self::Io(error),
            None => Self::Unreadable(error.to_string()),
        }
    }
}

impl From<ZipError> for ArchiveError {
    fn from(error: ZipError) -> Self {
        match error {
            ZipError::Io(source) => source.into(),
            other => Self::Unreadable(other.to_string()),
        }
    }
}

/// Opens an archive, and checks that its members lie within the file and apart from each other, as all programs write them. So no
/// more bytes can be read from all of its members, without unpacking them, than the file has.
///
/// # Errors
/// See [`ArchiveError`].
pub fn open(file: File) -> Result<ZipArchive<BufReader<File>>, ArchiveError> {
    let file_bytes = file.metadata()?.len();
    let mut reader = BufReader::new(file);
    expect_possible_count(&mut reader, file_bytes)?;
    let mut archive = ZipArchive::new(reader)?;
    expect_apart(&mut archive, file_bytes)?;
    Ok(archive)
}

/// Checks the number of members, for which the reader reserves memory. Only archives of more than 65,535 members have a large one.
fn expect_possible_count(reader: &mut (impl Read + Seek), file_bytes: u64) -> Result<(), ArchiveError> {
    let Some(count) = large_count(reader, file_bytes)? else { return Ok(()) };
    match count > file_bytes / LEAST_ENTRY_BYTES {
        true => {
            let text = format!("it claims {count} members, which do not fit into its {file_bytes} bytes");
            Err(ArchiveError::Impossible(text))
        }
        false => Ok(()),
    }
}

/// The number of members in the record of large archives; `None` if there is no such record.
fn large_count(reader: &mut (impl Read + Seek), file_bytes: u64) -> io::Result<Option<u64>> {
    let tail_bytes = file_bytes.min(LONGEST_COMMENT + (END_BYTES + LOCATOR_BYTES) as u64);
    let mut tail = vec![0; tail_bytes as usize];
    reader.seek(SeekFrom::Start(file_bytes - tail_bytes))?;
    reader.read_exact(&mut tail)?;
    let Some(end) = tail.windows(END_BYTES).rposition(|bytes| bytes.starts_with(b"PK\x05\x06")) else {
        return Ok(None);
    };
    let locator = end.checked_sub(LOCATOR_BYTES).map(|begin| &tail[begin..end]);
    let Some(locator) = locator.filter(|locator| locator.starts_with(b"PK\x06\x07")) else { return Ok(None) };
    reader.seek(SeekFrom::Start(number(locator, 8)))?;
    // It may follow later than it should, if something was put before the archive.
    let mut block = Vec::new();
    loop {
        reader.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        if let Some(at) = block.windows(SIGNATURE_BYTES).position(|bytes| bytes == b"PK\x06\x06") {
            block.drain(..at);
            reader.by_ref().take(LARGE_END_BYTES as u64).read_to_end(&mut block)?;
            let record = block.get(..LARGE_END_BYTES);
            return Ok(record.map(|record| number(record, 24).max(number(record, 32))));
        }
        let searched = block.len().saturating_sub(SIGNATURE_BYTES - 1);
        if searched == 0 {
            return Ok(None);
        }
        block.drain(..searched);
    }
}

/// The number of 8 bytes at a position within a record.
fn number(record: &[u8], at: usize) -> u64 {
    record[at..at + 8].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The bytes of a member in the file, its header included.
struct Place {
    begin: u64,
    /// `None` if the number overflows.
    end: Option<u64>,
    index: usize,
}

/// Checks that the members lie within the file and do not overlap.
fn expect_apart(archive: &mut ZipArchive<BufReader<File>>, file_bytes: u64) -> Result<(), ArchiveError> {
    let mut places = Vec::new();
    for index in 0..archive.len() {
        let member = archive.by_index_raw(index)?;
        let (begin, end) = (member.header_start(), member.data_start().checked_add(member.compressed_size()));
        if end.is_none_or(|end| end > file_bytes) {
            let text = format!(
                "its member {} claims {} bytes from byte {} on, and the file has {file_bytes}",
                member.name(),
                member.compressed_size(),
                member.data_start()
            );
            return Err(ArchiveError::Impossible(text));
        }
        places.push(Place { begin, end, index });
    }
    places.sort_unstable_by_key(|place| (place.begin, place.end));
    for pair in places.windows(2) {
        if pair[0].end > Some(pair[1].begin) {
            let mut name = |place: &Place| Ok::<_, ArchiveError>(archive.by_index_raw(place.index)?.name().to_owned());
            let text = format!("its members {} and {} share bytes of the file", name(&pair[0])?, name(&pair[1])?);
            return Err(ArchiveError::Impossible(text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    /// An archive of stored members, `(name, content)`.
    fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = ZipWriter::new(io::Cursor::new(Vec::new()));
        for (name, content) in members {
            let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
            writer.start_file(*name, options).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn opened(bytes: &[u8]) -> Result<usize, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        open(file).map(|archive| archive.len()).map_err(|error| error.to_string())
    }

    /// Positions of a signature.
    fn positions(bytes: &[u8], signature: &[u8]) -> Vec<usize> {
        (0..bytes.len()).filter(|&at| bytes[at..].starts_with(signature)).collect()
    }

    #[test]
    fn usual_archives_are_opened() {
        assert_eq!(opened(&archive(&[("a", b"1"), ("empty", b""), ("folder/b", &[7; 3000])])), Ok(3));
        assert_eq!(opened(&archive(&[])), Ok(0));
        // Something before the archive, as in one that unpacks itself.
        assert_eq!(opened(&[b"#!/bin/sh\n", &archive(&[("a", b"1")])[..]].concat()), Ok(1));
        assert!(opened(b"text").is_err() && opened(b"").is_err());
    }

    #[test]
    fn members_that_share_bytes_are_refused() {
        let mut bytes = archive(&[("a", &[1; 100]), ("b", &[1; 100])]);
        // The second entry of the directory points to the first member.
        let entry = positions(&bytes, b"PK\x01\x02")[1];
        bytes[entry + 42..entry + 46].copy_from_slice(&0u32.to_le_bytes());
        let error = opened(&bytes).unwrap_err();
        assert!(error.contains("its members ") && error.contains("share bytes of the file"), "{error}");
        // Or it begins within the first one: a member within a member.
        let inner = archive(&[("inner", b"1")]);
        let mut bytes = archive(&[("a", &inner), ("b", b"1")]);
        let entry = *positions(&bytes, b"PK\x01\x02").last().unwrap();
        bytes[entry + 42..entry + 46].copy_from_slice(&31u32.to_le_bytes());
        assert!(opened(&bytes).unwrap_err().contains("share bytes of the file"));
    }

    #[test]
    fn members_larger_than_the_file_are_refused() {
        let mut bytes = archive(&[("a", &[1; 100])]);
        let entry = positions(&bytes, b"PK\x01\x02")[0];
        bytes[entry + 20..entry + 24].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
        let error = opened(&bytes).unwrap_err();
        assert!(error.contains("its member a claims 2147483647 bytes from byte 31 on, and the file has 2"), "{error}");
    }

    #[test]
    fn more_members_than_fit_are_refused() {
        let plain = archive(&[("a", &[1; 100])]);
        let end = positions(&plain, b"PK\x05\x06")[0];
        let directory = positions(&plain, b"PK\x01\x02")[0];
        for (count, before) in [(1u64, 0usize), (5, 0), (u64::MAX, 0), (1 << 40, 9)] {
            // The larger record, its locator, and the usual record with "see there" in all of its numbers.
            let mut bytes = plain[..end].to_vec();
            bytes.extend(b"PK\x06\x06");
            bytes.extend(44u64.to_le_bytes());
            bytes.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            for number in [count, count, (end - directory) as u64, directory as u64] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(b"PK\x06\x07\0\0\0\0");
            bytes.extend((end as u64 - before as u64).to_le_bytes());
            bytes.extend(1u32.to_le_bytes());
            bytes.extend(b"PK\x05\x06\0\0\0\0");
            bytes.extend([0xff; 12]);
            bytes.extend([0, 0]);
            let found = opened(&bytes);
            match count {
                1 => assert_eq!(found, Ok(1)),
                // Few enough to be possible, and not there.
                5 => assert!(found.is_err()),
                _ => assert!(found.unwrap_err().contains(&format!("it claims {count} members"))),
            }
        }
    }
}
