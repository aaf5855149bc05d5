//! Gzip as gzip(1) reads it: concatenated members, with trailing zeros as tapes and block devices add them.

use std::io;

use flate2::{Decompress, FlushDecompress, Status};

use super::decompressed::{Decode, Progress, Step};

/// The largest window of gzip, as a power of two.
const WINDOW_BITS: u8 = 15;

/// Decoder of all members.
#[derive(Default)]
pub struct GzipMembers {
    /// The current member; `None` between members, where zeros, another member or the end of the file follow.
    member: Option<Decompress>,
    /// True after the first member has begun.
    has_begun: bool,
}

impl Decode for GzipMembers {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step {
        let mut zeros = 0;
        if self.member.is_none() {
            if self.has_begun {
                zeros = input.iter().take_while(|&&byte| byte == 0).count();
            }
            if input.is_empty() {
                return Step::ended();
            }
            if zeros == input.len() {
                return Step { consumed: zeros, produced: 0, outcome: Ok(Progress::More) };
            }
        }
        self.has_begun = true;
        let member = self.member.get_or_insert_with(|| Decompress::new_gzip(WINDOW_BITS));
        let (before_in, before_out) = (member.total_in(), member.total_out());
        let result = member.decompress(&input[zeros..], output, FlushDecompress::None);
        let consumed = zeros + (member.total_in() - before_in) as usize;
        let produced = (member.total_out() - before_out) as usize;
        let outcome = match result {
            // The decoder has verified the checksum.
            Ok(Status::StreamEnd) => {
                self.member = None;
                Ok(Progress::More)
            }
            Ok(_) if produced > 0 || consumed > 0 => Ok(Progress::More),
            Ok(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "incomplete deflate stream")),
            Err(error) => {
                let what = error.message().unwrap_or("corrupt gzip stream");
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
        };
        Step { consumed, produced, outcome }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read, Write};

    use super::super::decompressed::Decompressed;
    use super::*;

    fn member(text: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        gzip.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        // Small blocks, so that members and zeros cross block boundaries.
        Decompressed::new(BufReader::with_capacity(7, bytes), GzipMembers::default()).read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn members_and_the_zeros_behind_them_are_read_and_nothing_else() {
        let (one, two, zeros) = (member(b"one\n"), member(b"two\n"), vec![0; 512]);
        assert_eq!(read(&[&one[..], &two].concat()).unwrap(), b"one\ntwo\n");
        assert_eq!(read(&[&one[..], &zeros].concat()).unwrap(), b"one\n");
        assert_eq!(read(&[&one[..], &zeros, &two, &zeros].concat()).unwrap(), b"one\ntwo\n");
        assert_eq!(read(&member(b"")).unwrap(), b"");
        assert!(read(&[&one[..], &zeros, b"garbage"].concat()).is_err());
        assert!(read(&[&one[..], &two[..two.len() - 1]].concat()).is_err());
    }
}
