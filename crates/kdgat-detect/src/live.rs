//! Input from a stream that may be silent for long: reads time out, so the reader can check for a stop request.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Cursor, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use kdgat_can::formats::{Compression, decompress};

/// Maximum wait for a silent stream before a stop request is noticed.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Leading bytes that identify the compression; no row of any format is shorter.
const HEAD_BYTES: usize = 6;
/// Compressed bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// A pipe, a terminal or another descriptor. While no data arrives, [`Read::read`] fails with [`io::ErrorKind::WouldBlock`]
/// every tenth of a second and can be called again.
pub struct LiveInput {
    file: File,
}

impl LiveInput {
    /// Opens standard input without the standard library's buffer, because `poll` cannot see bytes in that buffer.
    pub fn standard() -> io::Result<Self> {
        Ok(Self { file: File::from(io::stdin().as_fd().try_clone_to_owned()?) })
    }

    /// Opens a named pipe or a device, without waiting for a writer.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        Ok(Self { file })
    }
}

impl Read for LiveInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // `poll` also reports the end of a pipe and errors as ready; the read returns them.
        let ready = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&PATIENCE))?;
        if ready == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { self.file.read(buffer) }
    }
}

/// A stream's decompressed bytes; the leading bytes identify the compression.
pub enum Decompressed {
    /// The leading bytes are not complete yet.
    Beginning {
        head: Vec<u8>,
        input: Option<LiveInput>,
    },
    Plain {
        head: Cursor<Vec<u8>>,
        input: LiveInput,
    },
    Compressed {
        reader: Box<dyn Read + Send>,
        compression: Compression,
    },
}

impl Decompressed {
    /// Creates a reader of the decompressed bytes of `input`.
    pub fn new(input: LiveInput) -> Self {
        Self::Beginning { head: Vec::new(), input: Some(input) }
    }

    /// Reads the leading bytes and selects the compression; `None` if the input was already taken.
    fn begin(head: &mut Vec<u8>, input: &mut Option<LiveInput>) -> io::Result<Option<Self>> {
        let mut bytes = [0; HEAD_BYTES];
        if let Some(input) = input.as_mut() {
            while head.len() < HEAD_BYTES {
                let wanted = HEAD_BYTES - head.len();
                match input.read(&mut bytes[..wanted])? {
                    0 => break,
                    count => head.extend_from_slice(&bytes[..count]),
                }
            }
        }
        let Some(input) = input.take() else { return Ok(None) };
        let head = std::mem::take(head);
        let compression = Compression::of(&head);
        if compression == Compression::None {
            return Ok(Some(Self::Plain { head: Cursor::new(head), input }));
        }
        let raw = BufReader::with_capacity(READ_BYTES, Cursor::new(head).chain(input));
        Ok(Some(Self::Compressed { reader: decompress(compression, raw)?, compression }))
    }
}

impl Read for Decompressed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Self::Beginning { head, input } = self
            && let Some(begun) = Self::begin(head, input)?
        {
            *self = begun;
        }
        match self {
            Self::Beginning { .. } => Ok(0),
            Self::Plain { head, input } => match head.read(buffer)? {
                0 => input.read(buffer),
                count => Ok(count),
            },
            Self::Compressed { reader, compression } => reader.read(buffer).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => error,
                _ if error.raw_os_error().is_some() => error,
                kind => io::Error::new(kind, format!("damaged or truncated {} data ({error})", compression.name())),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::{Duration, Instant};

    fn pipe() -> (LiveInput, File) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (LiveInput { file: File::from(read) }, File::from(write))
    }

    #[test]
    fn a_silent_stream_is_not_waited_for_without_end() {
        let (input, mut writer) = pipe();
        let mut input = Decompressed::new(input);
        let mut buffer = [0; 100];
        let start = Instant::now();
        assert_eq!(input.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(start.elapsed() < Duration::from_secs(5));
        // Too few bytes to identify the compression stay buffered for the next read.
        writer.write_all(b"(1.0").unwrap();
        assert_eq!(input.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        writer.write_all(b") can0 111#00\n").unwrap();
        let mut text = Vec::new();
        while text.len() < 18 {
            let count = input.read(&mut buffer).unwrap();
            text.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(text, b"(1.0) can0 111#00\n");
        drop(writer);
        assert_eq!(input.read(&mut buffer).unwrap(), 0);
    }

    #[cfg(feature = "compressed")]
    #[test]
    fn compressed_streams_are_known_by_their_first_bytes_however_they_come() {
        let text = b"timestamp,arbitration_id,data_field,attack\n1.0,7DF,0011,1\n".repeat(50);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 0);
        xz.write_all(&text).unwrap();
        let zstd = zstd::encode_all(&text[..], 1).unwrap();
        for bytes in [text.clone(), gzip.finish().unwrap(), zstd, xz.finish().unwrap()] {
            let (input, mut writer) = pipe();
            let mut input = Decompressed::new(input);
            let (mut found, mut buffer) = (Vec::new(), [0; 4096]);
            // The stream pauses within the leading bytes, within a header, and within a checksum.
            let ends = [2, 8, bytes.len() - 3, bytes.len()];
            for (begin, end) in std::iter::once(0).chain(ends).zip(ends) {
                writer.write_all(&bytes[begin..end]).unwrap();
                let silent = loop {
                    match input.read(&mut buffer) {
                        Ok(0) => break false,
                        Ok(count) => found.extend_from_slice(&buffer[..count]),
                        Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
                    }
                };
                assert!(silent, "after {end} bytes");
            }
            drop(writer);
            assert_eq!(input.read(&mut buffer).unwrap(), 0);
            assert_eq!(found, text);
        }
    }

    #[cfg(feature = "compressed")]
    #[test]
    fn a_truncated_stream_says_so() {
        let (input, mut writer) = pipe();
        let whole = zstd::encode_all(&b"1.0,7DF,0011,1\n".repeat(50)[..], 1).unwrap();
        writer.write_all(&whole[..whole.len() - 2]).unwrap();
        drop(writer);
        let error = Decompressed::new(input).read_to_end(&mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("damaged or truncated zstd data"), "{error}");
    }
}
