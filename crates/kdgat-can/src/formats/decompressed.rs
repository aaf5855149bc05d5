//! Decompressed bytes: all bytes before damaged data are delivered before the error.
//!
//! The readers of the compression crates drop the output of a call that fails. Their underlying decoders report how much it is.

use std::io::{self, BufRead, Read};

/// Outcome of one decoder step.
pub struct Step {
    /// Bytes taken from the input.
    pub consumed: usize,
    /// Bytes written to the output.
    pub produced: usize,
    /// State after the step, or why it failed.
    pub outcome: io::Result<Progress>,
}

/// State of a decoder after a step without error.
#[derive(PartialEq, Eq)]
pub enum Progress {
    /// More data may follow.
    More,
    /// The data is complete.
    Ended,
}

impl Step {
    /// A step at the end of the input.
    pub fn ended() -> Self {
        Self { consumed: 0, produced: 0, outcome: Ok(Progress::Ended) }
    }
}

/// A decoder that reports consumed and produced bytes even when it fails.
pub trait Decode {
    /// Decodes some of `input`, which is empty only at its end, into `output`.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step;
}

/// Reader of the bytes that decoder `D` produces from `raw`. After [`io::ErrorKind::WouldBlock`] reading can be retried.
pub struct Decompressed<R, D> {
    raw: R,
    decoder: D,
    /// Error returned after the bytes before it have been delivered.
    failure: Option<io::Error>,
}

impl<R: BufRead, D: Decode> Decompressed<R, D> {
    /// A reader of the decompressed bytes of `raw`.
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
