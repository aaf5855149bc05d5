//! Decompressed bytes, all that there are: those before damaged data are given out before the damage is told.
//!
//! The readers of the crates lose what a call has decompressed when it fails. Their decoders underneath say how much that is.

use std::io::{self, BufRead, Read};

use liblzma::stream::{Action, CONCATENATED, Status, Stream};
use zstd::stream::raw::{Decoder, Operation};

/// What a step of a decoder did.
pub struct Step {
    /// Bytes taken from the input, and bytes put into the output.
    pub consumed: usize,
    pub produced: usize,
    pub outcome: io::Result<Progress>,
}

/// Whether there is more to come.
#[derive(PartialEq, Eq)]
pub enum Progress {
    More,
    Ended,
}

impl Step {
    /// A step that came to nothing.
    pub fn failed(kind: io::ErrorKind, text: &str) -> Self {
        Self { consumed: 0, produced: 0, outcome: Err(io::Error::new(kind, text)) }
    }

    /// The input is over.
    pub fn ended() -> Self {
        Self { consumed: 0, produced: 0, outcome: Ok(Progress::Ended) }
    }
}

/// A decoder that tells what it has done even when it fails.
pub trait Decode {
    /// Goes on with `input`, which is empty only at its end.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step;
}

/// What `D` makes of `raw`. After [`io::ErrorKind::WouldBlock`] reading can be tried again.
pub struct Decompressed<R, D> {
    raw: R,
    decoder: D,
    /// Told when the bytes before it are given out.
    failure: Option<io::Error>,
}

impl<R: BufRead, D: Decode> Decompressed<R, D> {
    /// The decompressed bytes of `raw`.
    pub fn new(raw: R, decoder: D) -> Self {
        Self { raw, decoder, failure: None }
    }
}

impl<R: BufRead, D: Decode> Read for Decompressed<R, D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        loop {
            let Step { consumed, produced, outcome } = self.decoder.step(self.raw.fill_buf()?, buffer);
            self.raw.consume(consumed);
            match outcome {
                Err(error) if produced == 0 => return Err(error),
                Ok(Progress::More) if produced == 0 => {}
                outcome => {
                    self.failure = outcome.err();
                    return Ok(produced);
                }
            }
        }
    }
}

/// Xz, streams one behind the other.
pub struct Xz(Stream);

impl Xz {
    /// A decoder.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Stream::new_stream_decoder(u64::MAX, CONCATENATED)?))
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
            Err(error) => Err(error.into()),
            Ok(Status::StreamEnd) => Ok(Progress::Ended),
            Ok(_) if produced > 0 || consumed > 0 => Ok(Progress::More),
            Ok(_) if input.is_empty() => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "premature eof")),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "corrupt xz stream")),
        };
        Step { consumed, produced, outcome }
    }
}

/// Bytes that zstd looks at first.
const ZSTD_START_BYTES: usize = 5;
/// The header of a block of zstd.
const ZSTD_BLOCK_HEADER_BYTES: usize = 3;

/// Zstandard, frames one behind the other.
pub struct Zstd {
    decoder: Decoder<'static>,
    /// Bytes that it wants next: those of a block, and the header of the one behind it.
    wanted: usize,
    /// The last step filled its output: there may be more of the same block.
    is_held_up: bool,
    /// The last frame is whole.
    between: bool,
}

impl Zstd {
    /// A decoder.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new() -> io::Result<Self> {
        Ok(Self { decoder: Decoder::new()?, wanted: ZSTD_START_BYTES, is_held_up: false, between: false })
    }
}

impl Decode for Zstd {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step {
        // A failing call does not tell what it has put out, so that each call is given what can either fail or put out
        // something: the rest of a block that did not fit, a header, or the content of a block.
        let given = match self.wanted {
            _ if self.is_held_up => 0,
            wanted if wanted > ZSTD_BLOCK_HEADER_BYTES => wanted - ZSTD_BLOCK_HEADER_BYTES,
            wanted => wanted,
        };
        let given = &input[..given.min(input.len())];
        if given.is_empty() && !self.is_held_up {
            return match self.between {
                true => Step::ended(),
                false => Step::failed(io::ErrorKind::UnexpectedEof, "incomplete frame"),
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
    use std::io::{Cursor, Write};

    use super::super::input::{Compression, decompress};
    use super::*;

    /// What is given out of `bytes`, `room` at a time, and whether it ended well.
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

    /// The same text in all compressions, with checksums.
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

    /// Damage is treated as a file that ends there.
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
