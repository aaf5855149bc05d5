//! Decoders of Zstandard and xz, in programs that are built with the feature `compressed`: their C libraries take long to build.

use std::io;

use liblzma::stream::{Action, CONCATENATED, Status, Stream};
use zstd::stream::raw::{Decoder, Operation};

use super::decompressed::{Decode, Progress, Step};

/// Most memory of the decoder of xz, in bytes: a file says itself how much it needs. `xz -9` needs 65 MiB.
const XZ_MEMORY_BYTES: u64 = 1 << 30;

/// Decoder of xz, with concatenated streams.
pub struct Xz(Stream);

impl Xz {
    /// Creates a decoder.
    ///
    /// # Errors
    /// When memory for it cannot be allocated.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Stream::new_stream_decoder(XZ_MEMORY_BYTES, CONCATENATED)?))
    }
}

impl Decode for Xz {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step {
        let (before_in, before_out) = (self.0.total_in(), self.0.total_out());
        let action = if input.is_empty() { Action::Finish } else { Action::Run };
        let result = self.0.process(input, output, action);
        let consumed = (self.0.total_in() - before_in) as usize;
        let produced = (self.0.total_out() - before_out) as usize;
        let outcome = match result {
            Err(liblzma::stream::Error::MemLimit) => {
                let text = format!(
                    "an xz stream that needs more than {} MiB of memory; compress it with xz -9 or less",
                    XZ_MEMORY_BYTES >> 20
                );
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
            Err(error) => Err(error.into()),
            Ok(Status::StreamEnd) => Ok(Progress::Ended),
            Ok(_) if produced > 0 || consumed > 0 => Ok(Progress::More),
            Ok(_) if input.is_empty() => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "premature eof")),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "corrupt xz stream")),
        };
        Step { consumed, produced, outcome }
    }
}

/// Bytes of a zstd frame that the decoder needs first.
const ZSTD_START_BYTES: usize = 5;
/// Size of a zstd block header.
const ZSTD_BLOCK_HEADER_BYTES: usize = 3;

/// Decoder of Zstandard, with concatenated frames.
pub struct Zstd {
    decoder: Decoder<'static>,
    /// Bytes needed next: those of a block and of the following block's header.
    wanted: usize,
    /// True if the last step filled its output: more of the same block may follow.
    is_held_up: bool,
    /// True between frames: the last one is complete.
    between: bool,
}

impl Zstd {
    /// Creates a decoder.
    ///
    /// # Errors
    /// When memory for it cannot be allocated.
    pub fn new() -> io::Result<Self> {
        Ok(Self { decoder: Decoder::new()?, wanted: ZSTD_START_BYTES, is_held_up: false, between: false })
    }
}

impl Decode for Zstd {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step {
        // A failing call does not report its output. Each call therefore gets input that either fails or produces output, never
        // both: the rest of a block that did not fit, a header, or the content of a block.
        let given = match self.wanted {
            _ if self.is_held_up => 0,
            wanted if wanted > ZSTD_BLOCK_HEADER_BYTES => wanted - ZSTD_BLOCK_HEADER_BYTES,
            wanted => wanted,
        };
        let given = &input[..given.min(input.len())];
        if given.is_empty() && !self.is_held_up {
            return match self.between {
                true => Step::ended(),
                false => {
                    let cut = io::Error::new(io::ErrorKind::UnexpectedEof, "incomplete frame");
                    Step { consumed: 0, produced: 0, outcome: Err(cut) }
                }
            };
        }
        let room = output.len();
        match self.decoder.run_on_buffers(given, output) {
            Ok(status) => {
                self.between = status.remaining == 0;
                self.wanted = if self.between { ZSTD_START_BYTES } else { status.remaining };
                self.is_held_up = !self.between && status.bytes_written == room;
                let (consumed, produced) = (status.bytes_read, status.bytes_written);
                Step { consumed, produced, outcome: Ok(Progress::More) }
            }
            Err(error) => Step { consumed: 0, produced: 0, outcome: Err(error) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Write};

    use super::super::input::{Compression, decompress};

    /// All bytes delivered for `bytes`, read `room` at a time, and true if there was no error.
    fn read(compression: Compression, bytes: &[u8], room: usize) -> (Vec<u8>, bool) {
        let mut reader = decompress(compression, Cursor::new(bytes.to_vec())).unwrap();
        let (mut all, mut buffer) = (Vec::new(), vec![0; room]);
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return (all, true),
                Ok(count) => all.extend_from_slice(&buffer[..count]),
                Err(_) => return (all, false),
            }
        }
    }

    /// The same text in each compression, with checksums.
    fn compressed(text: &[u8]) -> [(Compression, Vec<u8>); 3] {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
        zstd.include_checksum(true).unwrap();
        zstd.write_all(text).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 0);
        xz.write_all(text).unwrap();
        [
            (Compression::Gzip, gzip.finish().unwrap()),
            (Compression::Zstd, zstd.finish().unwrap()),
            (Compression::Xz, xz.finish().unwrap()),
        ]
    }

    fn text() -> Vec<u8> {
        (0..30_000u64)
            .flat_map(|row| format!("{row}.25,{:X},{:016X},0\n", row % 2048, row * row * 77).into_bytes())
            .collect()
    }

    /// A file says itself how much memory its decoder allocates.
    #[test]
    fn an_xz_stream_that_claims_gigabytes_is_refused() {
        let mut whole = compressed(b"1 text").into_iter().find(|(name, _)| *name == Compression::Xz).unwrap().1;
        assert_eq!(read(Compression::Xz, &whole, 1000), (b"1 text".to_vec(), true));
        // The header of the first block: its size, flags, the filter LZMA2 with one byte of properties, and their checksum.
        let (begin, end) = (12, 12 + 4 * usize::from(whole[12]));
        assert_eq!(whole[begin + 2..begin + 4], [0x21, 1]);
        whole[begin + 4] = 40;
        let mut checksum = flate2::Crc::new();
        checksum.update(&whole[begin..end]);
        whole[end..end + 4].copy_from_slice(&checksum.sum().to_le_bytes());
        let mut reader = decompress(Compression::Xz, Cursor::new(whole)).unwrap();
        let error = reader.read(&mut [0; 10]).unwrap_err().to_string();
        assert!(error.contains("needs more than 1024 MiB of memory"), "{error}");
    }

    /// Flipped bytes yield at least the data that a file truncated at the same position yields.
    #[test]
    fn nothing_before_the_damage_is_lost() {
        let text = text();
        for (compression, whole) in compressed(&text) {
            for room in [1000, 256 << 10] {
                assert_eq!(read(compression, &whole, room), (text.clone(), true));
                for position in (60..whole.len()).step_by(whole.len() / 7).chain([whole.len() - 30]) {
                    let (cut, _) = read(compression, &whole[..position], room);
                    let mut flipped = whole.clone();
                    flipped[position] ^= 0xFF;
                    flipped[position + 1] ^= 0xFF;
                    let (found, is_well) = read(compression, &flipped, room);
                    assert!(!is_well, "{compression:?} at {position}");
                    assert!(found.starts_with(&cut), "{compression:?} at {position}: {} of {}", found.len(), cut.len());
                }
            }
        }
    }

    #[test]
    fn what_lies_behind_each_other_is_one_text() {
        let (text, other) = (text(), b"and more\n");
        for ((compression, first), (_, second)) in compressed(&text).into_iter().zip(compressed(other)) {
            let both = [&first[..], &second, &first].concat();
            for room in [7, 1 << 20] {
                let expected = [&text[..], other, &text].concat();
                assert!(read(compression, &both, room) == (expected, true), "{compression:?}, {room} at a time");
            }
            assert!(!read(compression, &both[..both.len() - 3], 4096).1, "{compression:?}");
        }
    }
}
