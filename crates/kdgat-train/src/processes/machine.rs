//! Memory that the processes of one machine have in common, of which the machine has one copy.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::Processes;
use super::error::ProcessError;
use crate::memory::available_bytes;
use crate::memory::limits::host_limit;

/// A block of memory that processes of one machine have in common.
#[derive(Debug)]
pub struct CommonBlock {
    /// Its bytes, to be mapped. They have no name that a killed process could leave behind, and are freed with the last map.
    pub file: File,
    /// Number of processes that have it; those that may, while one fills it.
    pub processes: usize,
}

impl Processes {
    /// Makes a block of `bytes` that the processes of each machine have in common. One process of each machine makes it and fills it before the
    /// others get it. All processes call this together, with the same `bytes`.
    ///
    /// `None` for a process that is alone on its machine, and where processes cannot open each other's memory: they are in containers of their
    /// own, or the machine has too little.
    ///
    /// # Errors
    /// Those of `fill`, or a process that ended.
    pub fn common_block<E: From<ProcessError>>(
        &self,
        bytes: u64,
        fill: impl FnOnce(&CommonBlock) -> Result<(), E>,
    ) -> Result<Option<CommonBlock>, E> {
        let machines = self.texts(&machine(self.rank()))?;
        let same: Vec<usize> = (0..self.size()).filter(|&rank| machines[rank] == machines[self.rank()]).collect();
        let maker = same[0];
        let makes = maker == self.rank() && same.len() > 1;
        let block = |file| CommonBlock { file, processes: same.len() };
        let mut own = makes.then(|| memory_file(bytes)).and_then(Result::ok).map(block);
        if let Some(block) = &own {
            fill(block)?;
        }
        // Process and number of the file, by which the others of the machine open it.
        let place = own.as_ref().map_or(String::new(), |block| place_of(&block.file));
        let places = self.texts(&place)?;
        if maker != self.rank() && !places[maker].is_empty() {
            own = open(&places[maker], bytes).ok().map(block);
        }
        // The file of the process that made it stays open until all have it, or cannot.
        let all = self.exchange(&[f64::from(u8::from(own.is_some()))])?;
        let having = same.iter().filter(|&&rank| all[rank][0] > 0.0).count();
        Ok(own.map(|block| CommonBlock { processes: having, ..block }))
    }

    /// The text of each process.
    fn texts(&self, own: &str) -> Result<Vec<String>, ProcessError> {
        let all = self.group.gather_bytes(own.as_bytes()).map_err(|error| self.lost(&error))?;
        Ok(all.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
    }
}

/// Text that two processes have in common if one can open the other's files by its number: the boot of their machine and their process numbers'
/// namespace. That of a process alone where the system does not tell.
fn machine(rank: usize) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = std::fs::read_link("/proc/self/ns/pid");
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{} {}", boot.trim(), namespace.display()),
        _ => format!("process {rank}"),
    }
}

/// A file in memory whose bytes exist: a write to its map must not find the machine full. Its size is fixed.
///
/// # Errors
/// More bytes than are free. The system would end processes for them instead of refusing.
fn memory_file(bytes: u64) -> io::Result<File> {
    if bytes > available_bytes().min(host_limit(None).bytes) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let file = File::from(rustix::fs::memfd_create("kdgat", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

fn place_of(file: &File) -> String {
    format!("{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn open(place: &str, bytes: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).open(PathBuf::from("/proc").join(place))?;
    match file.metadata()?.len() == bytes.max(1) {
        true => Ok(file),
        false => Err(io::Error::other("a block of another size")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::tensors::tests::together;
    use super::*;

    /// The others read what one process writes after all have the block.
    #[test]
    fn processes_of_a_machine_have_one_block() {
        let found = together(3, true, |processes| {
            let mut has_filled = false;
            let block = processes.common_block(4096, |block| {
                has_filled = true;
                block.file.write_all_at(&[7; 4096], 0).map_err(|error| ProcessError::Refused(error.to_string()))
            });
            let block = block.unwrap().unwrap();
            assert_eq!(has_filled, processes.is_first());
            let mut bytes = [0; 4096];
            block.file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes, [7; 4096]);
            processes.wait_for_all().unwrap();
            block.file.write_all_at(&[processes.rank() as u8 + 1], processes.rank() as u64).unwrap();
            processes.wait_for_all().unwrap();
            block.file.read_exact_at(&mut bytes, 0).unwrap();
            // Its size is fixed: no process can take the memory from under the others.
            assert!(block.file.set_len(10).is_err());
            (block.processes, bytes[..4].to_vec())
        });
        assert_eq!(found, vec![(3, vec![1, 2, 3, 7]); 3]);
    }

    #[test]
    fn a_process_alone_has_no_block_in_common() {
        let found = together(1, true, |processes| {
            let nothing = |_: &CommonBlock| Err(ProcessError::Refused("filled".to_owned()));
            processes.common_block(16, nothing).unwrap().is_none()
        });
        assert_eq!(found, [true]);
    }

    #[test]
    fn a_file_of_another_size_is_not_opened() {
        let file = memory_file(100).unwrap();
        assert_eq!(open(&place_of(&file), 100).unwrap().metadata().unwrap().len(), 100);
        assert!(open(&place_of(&file), 101).is_err());
        assert!(memory_file(1 << 60).is_err(), "no machine has that");
    }
}
