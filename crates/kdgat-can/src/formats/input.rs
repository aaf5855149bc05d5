//! The bytes of a log: decompressed according to their first bytes, and checked at the end.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::decompressed::Decompressed;
use super::gzip::GzipMembers;
#[cfg(feature = "compressed")]
use super::zstd_and_xz::{Xz, Zstd};
use crate::error::CanError;

/// Bytes read from the disk at a time; the decompressors request fewer.
const DISK_READ_BYTES: usize = 128 << 10;

/// Compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Not compressed.
    None,
    /// Gzip, with one or several members.
    Gzip,
    /// Zstandard.
    Zstd,
    /// Xz.
    Xz,
}

impl Compression {
    /// The compression that a file's first bytes indicate.
    pub fn of(head: &[u8]) -> Compression {
        match head {
            [0x1F, 0x8B, ..] => Compression::Gzip,
            [0x28, 0xB5, 0x2F, 0xFD, ..] => Compression::Zstd,
            // A skippable frame may come first in a zstd file.
            [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Compression::Zstd,
            [0xFD, b'7', b'z', b'X', b'Z', 0x00, ..] => Compression::Xz,
            _ => Compression::None,
        }
    }

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "uncompressed",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Xz => "xz",
        }
    }
}

/// Decompresses `raw`; of damaged data, delivers the bytes before the damage.
///
/// # Errors
/// When the decompressor cannot be created.
pub fn decompress(compression: Compression, raw: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    Ok(match compression {
        Compression::None => Box::new(raw),
        Compression::Gzip => Box::new(Decompressed::new(raw, GzipMembers::default())),
        #[cfg(feature = "compressed")]
        Compression::Zstd => Box::new(Decompressed::new(raw, Zstd::new()?)),
        #[cfg(feature = "compressed")]
        Compression::Xz => Box::new(Decompressed::new(raw, Xz::new()?)),
        #[cfg(not(feature = "compressed"))]
        Compression::Zstd | Compression::Xz => {
            let text = format!(
                "compressed with {0}, which this program was built without; build it with `cargo build --release --features compressed`, or \
                 decompress the file",
                compression.name()
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
    })
}

/// A log's decompressed bytes.
pub struct Input {
    reader: Box<dyn Read + Send>,
    /// A second handle, to query the size at the end.
    file: File,
    path: PathBuf,
    compression: Compression,
    /// `None` for a pipe or device, which has no size.
    size_at_open: Option<u64>,
    bytes_delivered: u64,
}

impl Input {
    /// Opens a log.
    ///
    /// # Errors
    /// When the file is missing, a folder, unreadable or empty.
    pub fn open(path: &Path) -> Result<Input, CanError> {
        let open_error = |source| CanError::Open { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CanError::MissingFile { path: path.to_path_buf() },
            _ => open_error(source),
        })?;
        let metadata = file.metadata().map_err(open_error)?;
        if metadata.is_dir() {
            return Err(open_error(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        let mut raw = BufReader::with_capacity(DISK_READ_BYTES, file.try_clone().map_err(open_error)?);
        let head = raw.fill_buf().map_err(|source| CanError::Read { path: path.to_path_buf(), source })?;
        if head.is_empty() {
            return Err(CanError::EmptyFile { path: path.to_path_buf(), detail: "" });
        }
        let compression = Compression::of(head);
        let reader = decompress(compression, raw).map_err(open_error)?;
        let size_at_open = metadata.is_file().then_some(metadata.len());
        Ok(Input { reader, file, path: path.to_path_buf(), compression, size_at_open, bytes_delivered: 0 })
    }

    /// Opens an uncompressed log of `log_bytes` bytes for reading from byte `begin`.
    ///
    /// # Errors
    /// Those of [`Input::open`]; when the file's size has changed.
    pub fn open_at(path: &Path, begin: u64, log_bytes: u64) -> Result<Input, CanError> {
        let path = path.to_path_buf();
        let mut file = File::open(&path).map_err(|source| CanError::Open { path: path.clone(), source })?;
        let size_at_end = file.metadata().map_err(|source| CanError::Open { path: path.clone(), source })?.len();
        if size_at_end != log_bytes {
            return Err(CanError::ChangedWhileRead { path, size_at_open: log_bytes, size_at_end });
        }
        let reader = file.try_clone().map_err(|source| CanError::Open { path: path.clone(), source })?;
        // Both handles share one position: the second only queries the size.
        file.seek(SeekFrom::Start(begin)).map_err(|source| CanError::Read { path: path.clone(), source })?;
        let reader = Box::new(BufReader::with_capacity(DISK_READ_BYTES, reader));
        let (compression, size_at_open) = (Compression::None, Some(log_bytes));
        Ok(Input { reader, file, path, compression, size_at_open, bytes_delivered: 0 })
    }

    /// True if the log is an uncompressed regular file.
    pub fn is_plain_file(&self) -> bool {
        self.compression == Compression::None && self.size_at_open.is_some()
    }

    /// Reads some bytes; 0 at the end.
    ///
    /// # Errors
    /// When the disk fails, compressed data is damaged or truncated, or the file's size has changed.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, CanError> {
        loop {
            match self.reader.read(buffer) {
                Ok(0) if !buffer.is_empty() => return self.check_end().map(|()| 0),
                Ok(count) => {
                    self.bytes_delivered += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.read_error(source)),
            }
        }
    }

    /// Path of the log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The log's compression.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    fn check_end(&self) -> Result<(), CanError> {
        let path = || self.path.clone();
        if let Some(size_at_open) = self.size_at_open {
            let metadata = self.file.metadata().map_err(|source| CanError::Read { path: path(), source })?;
            if metadata.len() != size_at_open {
                return Err(CanError::ChangedWhileRead { path: path(), size_at_open, size_at_end: metadata.len() });
            }
        }
        if self.bytes_delivered == 0 {
            return Err(CanError::EmptyFile { path: path(), detail: " once decompressed" });
        }
        Ok(())
    }

    fn read_error(&self, source: io::Error) -> CanError {
        let path = self.path.clone();
        // I/O errors carry an OS error number; a decompressor's errors do not.
        if self.compression == Compression::None || source.raw_os_error().is_some() {
            return CanError::Read { path, source };
        }
        let compression = self.compression.name();
        CanError::Damaged { path, line: 1, compression, decompressed_bytes: self.bytes_delivered, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_is_known_by_its_first_bytes() {
        assert_eq!(Compression::of(b"timestamp,"), Compression::None);
        assert_eq!(Compression::of(&[0x1F, 0x8B, 8]), Compression::Gzip);
        assert_eq!(Compression::of(b"\x28\xB5\x2F\xFD\x04"), Compression::Zstd);
        assert_eq!(Compression::of(b"\xFD7zXZ\x00\x00"), Compression::Xz);
        assert_eq!(Compression::of(b""), Compression::None);
    }
}
