//! Gzip as gzip(1) reads it: members one behind the other, and zeros behind them, as tapes and block devices pad files.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// The decompressed bytes of all members. After [`io::ErrorKind::WouldBlock`] reading can be tried again.
pub struct GzipMembers<R> {
    /// `None` only while one member is exchanged for the next.
    member: Option<GzDecoder<R>>,
    /// The member has ended; zeros, another one, or the end of the file follow.
    between: bool,
}

impl<R: BufRead> GzipMembers<R> {
    /// The members of `raw`.
    pub fn new(raw: R) -> Self {
        Self { member: Some(GzDecoder::new(raw)), between: false }
    }

    /// Goes to the next member; `false` at the end of the file.
    fn begin_next(&mut self) -> io::Result<bool> {
        let Some(member) = &mut self.member else { return Ok(false) };
        let raw = member.get_mut();
        loop {
            let held = raw.fill_buf()?;
            if held.is_empty() {
                return Ok(false);
            }
            let zeros = held.iter().take_while(|&&byte| byte == 0).count();
            let passed_all = zeros == held.len();
            raw.consume(zeros);
            if !passed_all {
                break;
            }
        }
        self.member = self.member.take().map(|member| GzDecoder::new(member.into_inner()));
        self.between = false;
        Ok(true)
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.between && !self.begin_next()? {
                return Ok(0);
            }
            let Some(member) = &mut self.member else { return Ok(0) };
            match member.read(buffer)? {
                0 if !buffer.is_empty() => self.between = true,
                count => return Ok(count),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write};

    use super::*;

    fn member(text: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        gzip.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        // In small blocks, so that members and zeros cross their ends.
        GzipMembers::new(BufReader::with_capacity(7, bytes)).read_to_end(&mut text)?;
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
