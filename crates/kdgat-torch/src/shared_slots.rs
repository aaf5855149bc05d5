//! Memory that the processes of one machine share: each writes packets into slots of its own and reads those of the others, without a system
//! call as long as nobody is late.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapMut;

/// Bytes of a process's counters, a cache line and its neighbour.
const HEADER: usize = 128;
/// Looks at a counter before this thread leaves its core to another.
const SPINS: u32 = 200;
/// Time after which a waiting thread sleeps between two looks.
const BUSY: Duration = Duration::from_millis(2);
/// Sleep between two looks.
const PAUSE: Duration = Duration::from_micros(50);
/// Time between two looks at whether the other process still lives.
const ALIVE: Duration = Duration::from_millis(20);

/// Slots of several processes in a shared file.
#[derive(Debug)]
pub struct SharedSlots {
    map: MmapMut,
    rank: usize,
    size: usize,
    capacity: usize,
    /// Packets exchanged so far.
    exchanged: u64,
}

/// A process that did not give the packet that the others waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Number of the process.
    pub rank: usize,
    /// True if it has given something else: it is at another step. False if it has ended.
    pub is_elsewhere: bool,
}

/// Content of a packet, which all processes must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Numbers that each process looks at.
    Numbers = 1,
    /// A part of a tensor that is summed.
    Sums = 2,
    /// A part of a tensor of which each process has a share.
    Shares = 3,
}

impl SharedSlots {
    /// Number of bytes of a file for `size` processes that exchange at most `capacity` bytes at a time.
    pub fn file_bytes(size: usize, capacity: usize) -> u64 {
        (size * Self::stride(capacity)) as u64
    }

    fn stride(capacity: usize) -> usize {
        HEADER + 2 * capacity.next_multiple_of(HEADER)
    }

    /// Maps `file`, which has [`SharedSlots::file_bytes`] zero bytes at first, as process `rank` of `size`.
    ///
    /// # Errors
    /// A file of another size, or one that cannot be mapped.
    pub fn new(file: &File, (rank, size): (usize, usize), capacity: usize) -> io::Result<Self> {
        let expected = Self::file_bytes(size, capacity);
        let found = file.metadata()?.len();
        if found != expected || rank >= size {
            return Err(io::Error::other(format!(
                "a shared file of {found} bytes, expected {expected} for {size} processes"
            )));
        }
        // SAFETY: other processes write to the map, but only what this one reads through atomics or, after having read a counter that says so,
        // bytes that are not written any more; nobody shortens the file, which is removed from its folder once all have it.
        let map = unsafe { MmapMut::map_mut(file)? };
        let slots = Self { map, rank, size, capacity, exchanged: 0 };
        slots.counter(rank, 1).store(u64::from(std::process::id()), Ordering::Release);
        Ok(slots)
    }

    /// Most bytes of a packet.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Gives `own` to the other processes, and calls `visit` with the packet of each process, in the order of their ranks. All give equally
    /// many bytes of the same `content`, at most [`SharedSlots::capacity`].
    ///
    /// # Errors
    /// A process that ended, that `is_lost` names, or that gives something else.
    pub fn exchange(
        &mut self,
        (content, own): (Content, &[u8]),
        is_lost: &dyn Fn(usize) -> bool,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Ended> {
        let length = own.len().min(self.capacity);
        self.exchanged += 1;
        let packet = self.exchanged;
        let offset = self.offset(self.rank, packet);
        // SAFETY: the slot is inside the map. Only this process writes to it, and the others have read its last packet: they have given their
        // packet after that one, which this process has read.
        unsafe {
            std::ptr::copy_nonoverlapping(own.as_ptr(), self.map.as_ptr().cast_mut().add(offset), length);
        }
        // Written and read as the packet itself, of which there are two at a time.
        let kind = 2 + (packet % 2) as usize;
        let described = (length as u64) << 8 | content as u64;
        self.counter(self.rank, kind).store(described, Ordering::Release);
        self.counter(self.rank, 0).store(packet, Ordering::Release);
        for rank in 0..self.size {
            self.wait(rank, packet, is_lost)?;
            if self.counter(rank, kind).load(Ordering::Acquire) != described {
                return Err(Ended { rank, is_elsewhere: true });
            }
            let start = self.offset(rank, packet);
            // SAFETY: inside the map. The process has written this packet before its counter, and overwrites it only after this one has given its
            // next packet.
            visit(unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start), length) });
        }
        Ok(())
    }

    fn wait(&self, rank: usize, packet: u64, is_lost: &dyn Fn(usize) -> bool) -> Result<(), Ended> {
        let counter = self.counter(rank, 0);
        let is_there = || counter.load(Ordering::Acquire) >= packet;
        for _ in 0..SPINS {
            if is_there() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let started = Instant::now();
        let mut looked = started;
        while !is_there() {
            if started.elapsed() < BUSY {
                std::thread::yield_now();
                continue;
            }
            std::thread::sleep(PAUSE);
            if looked.elapsed() > ALIVE {
                looked = Instant::now();
                let process = self.counter(rank, 1).load(Ordering::Acquire);
                // It may have given its packet before it ended.
                if (has_ended(process) || is_lost(rank)) && !is_there() {
                    return Err(Ended { rank, is_elsewhere: false });
                }
            }
        }
        Ok(())
    }

    fn offset(&self, rank: usize, packet: u64) -> usize {
        let half = (packet % 2) as usize * self.capacity.next_multiple_of(HEADER);
        rank * Self::stride(self.capacity) + HEADER + half
    }

    /// The counter of packets of a process (0), its ID (1), or length and content of one of its two packets (2, 3).
    fn counter(&self, rank: usize, index: usize) -> &AtomicU64 {
        let address = self.map.as_ptr().wrapping_add(rank * Self::stride(self.capacity)).cast_mut().cast::<u64>();
        // SAFETY: inside the map, whose start is aligned to pages; all processes use it as an atomic.
        unsafe { AtomicU64::from_ptr(address.add(index)) }
    }
}

/// True if there is no such process, or only its exit code. 0 is no process yet.
fn has_ended(process: u64) -> bool {
    if process == 0 {
        return false;
    }
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: usize, capacity: usize) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SharedSlots::file_bytes(size, capacity)).unwrap();
        file
    }

    #[test]
    fn every_process_sees_every_packet_in_order() {
        const SIZE: usize = 3;
        let file = file(SIZE, 40);
        std::thread::scope(|scope| {
            for rank in 0..SIZE {
                let mut slots = SharedSlots::new(&file, (rank, SIZE), 40).unwrap();
                scope.spawn(move || {
                    for packet in 0..2000_u32 {
                        let length = 1 + (packet % 40) as usize;
                        let of = |rank: usize| vec![(packet as usize * 7 + rank) as u8; length];
                        let mut seen = Vec::new();
                        slots
                            .exchange((Content::Numbers, &of(rank)), &|_| false, &mut |bytes| seen.push(bytes.to_vec()))
                            .unwrap();
                        assert_eq!(seen, (0..SIZE).map(of).collect::<Vec<_>>());
                    }
                });
            }
        });
    }

    #[test]
    fn a_process_that_ended_or_is_lost_is_named() {
        let file = file(2, 8);
        let mut own = SharedSlots::new(&file, (0, 2), 8).unwrap();
        let lost = Err(Ended { rank: 1, is_elsewhere: false });
        assert_eq!(own.exchange((Content::Sums, &[1]), &|rank| rank == 1, &mut |_| {}), lost);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let other = SharedSlots::new(&file, (1, 2), 8).unwrap();
        other.counter(1, 1).store(child.id().into(), Ordering::Release);
        child.wait().unwrap();
        assert_eq!(own.exchange((Content::Sums, &[1]), &|_| false, &mut |_| {}), lost);
        assert!(SharedSlots::new(&file, (0, 3), 8).is_err());
    }
    /// A process that is at another step is refused, instead of its numbers taken for others.
    #[test]
    fn packets_of_other_contents_or_lengths_are_refused() {
        for (content, bytes) in [(Content::Numbers, &[1, 2][..]), (Content::Sums, &[1])] {
            let file = file(2, 8);
            let (mut one, mut other) =
                (SharedSlots::new(&file, (0, 2), 8).unwrap(), SharedSlots::new(&file, (1, 2), 8).unwrap());
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let _ = other.exchange((content, bytes), &|_| false, &mut |_| {});
                });
                let found = one.exchange((Content::Numbers, &[1]), &|_| false, &mut |_| {});
                assert_eq!(found, Err(Ended { rank: 1, is_elsewhere: true }));
            });
        }
    }
}
