//! Reads of many small ranges of a file around the page cache (`O_DIRECT`), many at a time.
//!
//! A [`DirectReader`] keeps up to [`DEPTH`] reads under way by io_uring (Axboe 2019). Where the system does not allow io_uring, as in
//! many containers, or has none with such reads, as Linux before 5.6, threads read instead. Buffers are allocated once and reused.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use io_uring::{IoUring, Probe, opcode, types};
use memmap2::MmapMut;

/// Offsets, lengths and addresses of direct reads are multiples of this: the largest block of usual disks.
pub const ALIGNMENT: usize = 4096;
/// Reads under way at a time.
pub const DEPTH: usize = 64;
/// Threads that read where io_uring is not allowed.
const THREADS: usize = 16;

/// A file that is read around the page cache.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    is_direct: bool,
}

impl DirectFile {
    /// Opens a file. If its file system has no direct reads, reads go through the page cache.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
            Ok(file) => Ok(Self { file, is_direct: true }),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Ok(Self { file: File::open(path)?, is_direct: false })
            }
            Err(error) => Err(error),
        }
    }

    /// False if the file system has no direct reads.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }
}

/// A range of a file, in multiples of [`ALIGNMENT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: usize,
}

/// A span that could not be read.
#[derive(Debug)]
pub struct SpanError {
    /// The span.
    pub span: Span,
    /// Error of the system, or of kind [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the file ends within the span.
    pub source: io::Error,
}

impl fmt::Display for SpanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { offset, bytes } = self.span;
        write!(formatter, "{bytes} bytes at byte {offset}: {}", self.source)
    }
}

impl std::error::Error for SpanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Way in which reads are under way at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Requests to the kernel's ring.
    IoUring,
    /// `pread` on several threads.
    Threads,
}

impl Method {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Threads => "pread on threads",
        }
    }
}

/// Reads spans of a file.
pub struct DirectReader {
    engine: Engine,
    /// Buffers that are not being read into.
    free: Vec<usize>,
    /// The span that each buffer is read for, by its number in the list of spans.
    spans: Vec<(usize, Span)>,
    buffer_bytes: usize,
}

impl DirectReader {
    /// A reader of spans of at most `span_bytes`, by io_uring if it is allowed.
    ///
    /// # Errors
    /// No memory for the buffers, or no thread.
    pub fn new(file: &Arc<DirectFile>, span_bytes: usize) -> io::Result<Self> {
        match Self::with(file, span_bytes, Method::IoUring) {
            Err(error) if is_refusal(&error) => Self::with(file, span_bytes, Method::Threads),
            other => other,
        }
    }

    /// A reader that reads by this method.
    ///
    /// # Errors
    /// A system without this method, no memory for the buffers, or no thread.
    pub fn with(file: &Arc<DirectFile>, span_bytes: usize, method: Method) -> io::Result<Self> {
        let buffer_bytes = span_bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let buffers = (0..DEPTH).map(|_| MmapMut::map_anon(buffer_bytes)).collect::<io::Result<Vec<_>>>()?;
        let engine = match method {
            Method::IoUring => Engine::Ring(Box::new(Ring::new(file, buffers)?)),
            Method::Threads => Engine::Threads(Threads::start(file, buffers)?),
        };
        let no_span = (0, Span { offset: 0, bytes: 0 });
        Ok(Self { engine, free: (0..DEPTH).collect(), spans: vec![no_span; DEPTH], buffer_bytes })
    }

    /// The method of this reader.
    pub fn method(&self) -> Method {
        match self.engine {
            Engine::Ring(_) => Method::IoUring,
            Engine::Threads(_) => Method::Threads,
        }
    }

    /// Largest number of bytes of a span.
    pub fn span_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Reads all spans, and calls `done` with the number and the bytes of each as soon as it is read, in any order.
    ///
    /// # Errors
    /// The first span that could not be read; all others under way have ended then.
    ///
    /// # Panics
    /// If a span is larger than [`span_bytes`](Self::span_bytes).
    pub fn read(&mut self, spans: &[Span], mut done: impl FnMut(usize, &[u8])) -> Result<(), SpanError> {
        let whole = |source| SpanError { span: Span { offset: 0, bytes: 0 }, source };
        // Spans of an earlier call whose `done` has panicked.
        self.drain().map_err(whole)?;
        let (mut next, mut failed) = (0, None);
        loop {
            while failed.is_none()
                && let Some(&span) = spans.get(next)
                && let Some(buffer) = self.free.pop()
            {
                assert!(span.bytes <= self.buffer_bytes, "a span of {} bytes", span.bytes);
                self.spans[buffer] = (next, span);
                next += 1;
                if let Err(source) = self.engine.start(buffer, span) {
                    self.free.push(buffer);
                    failed = Some(SpanError { span, source });
                }
            }
            if self.free.len() == DEPTH {
                return failed.map_or(Ok(()), Err);
            }
            let (free, spans) = (&mut self.free, &self.spans);
            let waited = self.engine.wait(spans, &mut |buffer, read| {
                free.push(buffer);
                let (number, span) = spans[buffer];
                match read.and_then(|bytes| complete(bytes, span)) {
                    Ok(bytes) if failed.is_none() => done(number, bytes),
                    Ok(_) => {}
                    Err(source) => failed = failed.take().or(Some(SpanError { span, source })),
                }
            });
            waited.map_err(whole)?;
        }
    }

    /// Waits for all reads under way.
    fn drain(&mut self) -> io::Result<()> {
        while self.free.len() < DEPTH {
            let free = &mut self.free;
            self.engine.wait(&self.spans, &mut |buffer, _| free.push(buffer))?;
        }
        Ok(())
    }
}

impl Drop for DirectReader {
    fn drop(&mut self) {
        // The kernel writes to the buffers until then. If the ring itself fails, nobody knows until when: the buffers are never freed.
        if let (Err(_), Engine::Ring(ring)) = (self.drain(), &mut self.engine) {
            std::mem::forget(std::mem::take(&mut ring.buffers));
        }
    }
}

impl fmt::Debug for DirectReader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DirectReader").field("method", &self.method()).finish_non_exhaustive()
    }
}

/// True if the system does not have or not allow io_uring.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::ENOMEM))
}

/// The bytes of a complete span.
fn complete(bytes: &[u8], span: Span) -> io::Result<&[u8]> {
    if bytes.len() < span.bytes {
        let text = format!("the file ends after {} of them", bytes.len());
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
    }
    Ok(bytes)
}

/// Receives a buffer's number, and the bytes that were read into it.
type Ended<'a> = dyn FnMut(usize, io::Result<&[u8]>) + 'a;

enum Engine {
    Ring(Box<Ring>),
    Threads(Threads),
}

impl Engine {
    /// Starts reading a span into a buffer.
    fn start(&mut self, buffer: usize, span: Span) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.start(buffer, span),
            Self::Threads(threads) => threads.read(buffer, span),
        }
    }

    /// Waits until at least one read has ended, and reports all that have.
    fn wait(&mut self, spans: &[(usize, Span)], ended: &mut Ended) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.wait(spans, ended),
            Self::Threads(threads) => threads.wait(ended),
        }
    }
}

/// Reads by io_uring.
struct Ring {
    ring: IoUring,
    buffers: Vec<MmapMut>,
    file: Arc<DirectFile>,
    /// Bytes that were read into each buffer.
    filled: [usize; DEPTH],
}

impl Ring {
    fn new(file: &Arc<DirectFile>, buffers: Vec<MmapMut>) -> io::Result<Self> {
        let ring = IoUring::new(DEPTH as u32)?;
        let mut probe = Probe::new();
        let asked = ring.submitter().register_probe(&mut probe);
        expect_reads(asked.map(|()| probe.is_supported(opcode::Read::CODE)))?;
        Ok(Self { ring, buffers, file: Arc::clone(file), filled: [0; DEPTH] })
    }

    fn start(&mut self, buffer: usize, span: Span) -> io::Result<()> {
        self.filled[buffer] = 0;
        self.resume(buffer, span)
    }

    /// Requests the bytes of a span that are not in its buffer.
    fn resume(&mut self, buffer: usize, span: Span) -> io::Result<()> {
        let filled = self.filled[buffer];
        let to = self.buffers[buffer][filled..span.bytes].as_mut_ptr();
        // At most a buffer's size.
        let read = opcode::Read::new(types::Fd(self.file.file.as_raw_fd()), to, (span.bytes - filled) as u32);
        let read = read.offset(span.offset + filled as u64);
        // SAFETY: the buffer holds `span.bytes`. Nobody reads, writes or frees it before this request's completion:
        // `DirectReader` gives out a buffer once, and waits for all completions before it is dropped.
        unsafe { self.ring.submission().push(&read.build().user_data(buffer as u64)) }.map_err(io::Error::other)
    }

    fn wait(&mut self, spans: &[(usize, Span)], ended: &mut Ended) -> io::Result<()> {
        loop {
            // After a signal, or if the kernel is short of memory for the moment, requests stay in the queue.
            match self.ring.submit_and_wait(1) {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
            let mut again = [false; DEPTH];
            let mut any = false;
            for entry in self.ring.completion() {
                let (buffer, found) = (entry.user_data() as usize, entry.result());
                let read = usize::try_from(found).map_err(|_| io::Error::from_raw_os_error(-found));
                match advance(&mut self.filled[buffer], read, spans[buffer].1.bytes) {
                    Progress::More => again[buffer] = true,
                    Progress::Ended(read) => {
                        any = true;
                        ended(buffer, read.map(|()| &self.buffers[buffer][..self.filled[buffer]]));
                    }
                }
            }
            for buffer in (0..DEPTH).filter(|&buffer| again[buffer]) {
                if let Err(error) = self.resume(buffer, spans[buffer].1) {
                    any = true;
                    ended(buffer, Err(error));
                }
            }
            if any {
                return Ok(());
            }
        }
    }
}

/// Refuses a kernel whose ring has no reads. Those from 5.1 to 5.5 do not know the question either.
fn expect_reads(has_reads: io::Result<bool>) -> io::Result<()> {
    match has_reads {
        Ok(true) => Ok(()),
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        Ok(false) | Err(_) => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    }
}

/// State of a span after a read.
#[derive(Debug)]
enum Progress {
    /// The rest is to be read.
    More,
    /// All of it is read, the file ends, or an error.
    Ended(io::Result<()>),
}

/// Counts the bytes of a read into a buffer with room for `bytes`. A read may return fewer than it was asked for, without the end of the
/// file, which is where a read returns none.
fn advance(filled: &mut usize, read: io::Result<usize>, bytes: usize) -> Progress {
    match read {
        Ok(0) => Progress::Ended(Ok(())),
        Ok(count) => {
            *filled += count;
            if *filled < bytes { Progress::More } else { Progress::Ended(Ok(())) }
        }
        Err(error) if is_passing(&error) => Progress::More,
        // The end of the file is no multiple of the alignment, from where a direct read would go on.
        Err(error) if *filled > 0 && error.raw_os_error() == Some(libc::EINVAL) => Progress::Ended(Ok(())),
        Err(error) => Progress::Ended(Err(error)),
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// A buffer on its way to a thread.
struct Request {
    buffer: usize,
    memory: MmapMut,
    span: Span,
}

/// A buffer on its way back.
struct Answer {
    buffer: usize,
    memory: MmapMut,
    read: io::Result<usize>,
}

/// Reads on threads.
struct Threads {
    /// `None` while a buffer is being read into.
    buffers: Vec<Option<MmapMut>>,
    /// `None` when the threads shall end.
    requests: Option<Sender<Request>>,
    answers: Receiver<Answer>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(file: &Arc<DirectFile>, buffers: Vec<MmapMut>) -> io::Result<Self> {
        let (requests, requested) = bounded::<Request>(DEPTH);
        let (answer, answers) = bounded(DEPTH);
        let mut threads = Vec::with_capacity(THREADS);
        for number in 0..THREADS {
            let (file, requested, answer) = (Arc::clone(file), requested.clone(), answer.clone());
            let work = move || {
                for Request { buffer, mut memory, span } in &requested {
                    let read = read_fully(&file.file, &mut memory[..span.bytes], span.offset);
                    // Without a receiver the reader is gone.
                    if answer.send(Answer { buffer, memory, read }).is_err() {
                        return;
                    }
                }
            };
            threads.push(std::thread::Builder::new().name(format!("kdgat-read-{number}")).spawn(work)?);
        }
        Ok(Self { buffers: buffers.into_iter().map(Some).collect(), requests: Some(requests), answers, threads })
    }

    fn read(&mut self, buffer: usize, span: Span) -> io::Result<()> {
        let request = self.buffers[buffer].take().map(|memory| Request { buffer, memory, span });
        let sent = request.zip(self.requests.as_ref()).and_then(|(request, requests)| requests.send(request).ok());
        sent.ok_or_else(threads_ended)
    }

    fn wait(&mut self, ended: &mut Ended) -> io::Result<()> {
        let first = self.answers.recv().map_err(|_| threads_ended())?;
        for Answer { buffer, memory, read } in std::iter::once(first).chain(self.answers.try_iter()) {
            let memory = self.buffers[buffer].insert(memory);
            ended(buffer, read.map(|bytes| &memory[..bytes]));
        }
        Ok(())
    }
}

fn threads_ended() -> io::Error {
    io::Error::other("the reading threads have ended")
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            // The threads' loop has no panic.
            let _ = thread.join();
        }
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
fn read_fully(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    loop {
        let read = file.read_at(&mut buffer[filled..], offset + filled as u64);
        if let Progress::Ended(read) = advance(&mut filled, read, buffer.len()) {
            return read.map(|()| filled);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const PAGES: usize = 300;

    /// A file whose page `i` begins with `i`.
    fn file() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages");
        let mut bytes = vec![7; PAGES * ALIGNMENT];
        for page in 0..PAGES {
            bytes[page * ALIGNMENT..][..4].copy_from_slice(&(page as u32).to_le_bytes());
        }
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    /// A reader by each method that the system allows: threads always.
    fn readers(path: &Path) -> Vec<DirectReader> {
        let file = Arc::new(DirectFile::open(path).unwrap());
        let ring = match DirectReader::with(&file, 3 * ALIGNMENT, Method::IoUring) {
            Err(error) => {
                assert!(is_refusal(&error), "{error}");
                None
            }
            found => Some(found.unwrap()),
        };
        let usual = DirectReader::new(&file, 3 * ALIGNMENT).unwrap();
        assert_eq!(usual.method() == Method::IoUring, ring.is_some());
        let threads = DirectReader::with(&file, 3 * ALIGNMENT, Method::Threads).unwrap();
        ring.into_iter().chain([usual, threads]).collect()
    }

    fn span(page: usize, pages: usize) -> Span {
        Span { offset: (page * ALIGNMENT) as u64, bytes: pages * ALIGNMENT }
    }

    #[test]
    fn every_span_is_read_once() {
        let (_folder, path) = file();
        let spans: Vec<Span> = (0..500).map(|number| span(number * 37 % (PAGES - 3), 1 + number % 3)).collect();
        for mut reader in readers(&path) {
            for _ in 0..2 {
                let mut found = vec![0; spans.len()];
                let done = |number: usize, bytes: &[u8]| {
                    assert_eq!(bytes.len(), spans[number].bytes);
                    for (place, page) in bytes.chunks(ALIGNMENT).enumerate() {
                        let expected = (spans[number].offset as usize / ALIGNMENT + place) as u32;
                        assert_eq!((u32::from_le_bytes(page[..4].try_into().unwrap()), page[9]), (expected, 7));
                    }
                    found[number] += 1;
                };
                reader.read(&spans, done).unwrap();
                assert!(found.iter().all(|&count| count == 1), "{:?}: {found:?}", reader.method());
            }
            reader.read(&[], |_, _| panic!("there is nothing to read")).unwrap();
        }
    }

    #[test]
    fn the_end_of_the_file_is_an_error_with_its_place() {
        let (_folder, path) = file();
        for mut reader in readers(&path) {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len((5 * ALIGNMENT + 100) as u64).unwrap();
            let spans: Vec<Span> = (0..200).map(|number| span(number, 1)).collect();
            let mut read = Vec::new();
            let error = reader.read(&spans, |number, _| read.push(number)).unwrap_err();
            assert_eq!(error.source.kind(), io::ErrorKind::UnexpectedEof);
            assert!(error.span.offset >= 5 * ALIGNMENT as u64, "{error}");
            assert!(error.to_string().contains("the file ends after"), "{error}");
            assert!(read.iter().all(|&number| number < 5));
            // The reader is still usable.
            reader.read(&spans[..5], |_, _| ()).unwrap();
            file.set_len((PAGES * ALIGNMENT) as u64).unwrap();
        }
    }

    #[test]
    fn a_panic_leaves_no_read_under_way() {
        let (_folder, path) = file();
        let spans: Vec<Span> = (0..200).map(|number| span(number, 1)).collect();
        for mut reader in readers(&path) {
            let panics = AssertUnwindSafe(|| reader.read(&spans, |_, _| panic!("done")));
            assert!(catch_unwind(panics).is_err());
            let mut count = 0;
            reader.read(&spans, |_, _| count += 1).unwrap();
            assert_eq!(count, spans.len());
        }
    }

    #[test]
    fn short_reads_go_on_until_the_span_is_full_or_the_file_ends() {
        let system = |number| Err(io::Error::from_raw_os_error(number));
        let after = |reads: Vec<io::Result<usize>>| {
            let (mut filled, count) = (0, reads.len());
            for (number, read) in reads.into_iter().enumerate() {
                match advance(&mut filled, read, 3 * ALIGNMENT) {
                    Progress::More => assert!(number + 1 < count, "more is to be read after {filled} bytes"),
                    Progress::Ended(result) => {
                        assert_eq!(number + 1, count, "ended early, after {filled} bytes");
                        return result.map(|()| filled).map_err(|error| error.raw_os_error());
                    }
                }
            }
            unreachable!("without an end")
        };
        assert_eq!(after(vec![Ok(3 * ALIGNMENT)]), Ok(3 * ALIGNMENT));
        let short = vec![Ok(ALIGNMENT), system(libc::EAGAIN), Ok(ALIGNMENT), Ok(ALIGNMENT)];
        assert_eq!(after(short), Ok(3 * ALIGNMENT));
        assert_eq!(after(vec![Ok(ALIGNMENT), Ok(100), Ok(0)]), Ok(ALIGNMENT + 100));
        assert_eq!(after(vec![Ok(ALIGNMENT), Ok(100), system(libc::EINVAL)]), Ok(ALIGNMENT + 100));
        assert_eq!(after(vec![system(libc::EINVAL)]), Err(Some(libc::EINVAL)));
        assert_eq!(after(vec![Ok(ALIGNMENT), system(libc::EIO)]), Err(Some(libc::EIO)));
    }

    #[test]
    fn a_ring_without_reads_is_a_refusal() {
        assert!(expect_reads(Ok(true)).is_ok());
        for old in [Ok(false), Err(io::Error::from_raw_os_error(libc::EINVAL))] {
            assert!(is_refusal(&expect_reads(old).unwrap_err()));
        }
        let broken = expect_reads(Err(io::Error::from_raw_os_error(libc::EIO))).unwrap_err();
        assert!(!is_refusal(&broken));
    }
}
