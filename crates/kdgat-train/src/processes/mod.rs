//! Processes that train together: each computes its part of every batch, and all make the same steps.
//!
//! They meet at a store ([`place`] says where), show that they belong together, and then exchange numbers and tensors
//! ([`kdgat_torch::process_group`]). Process 0 alone writes the run's folder.

mod error;
mod greeting;
mod machine;
pub mod place;
mod tensors;
mod watch;

use std::io::Read;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kdgat_torch::process_group::{Network, ProcessGroup, Rendezvous, Store};
use kdgat_torch::shared_slots::{Content, Ended, SharedSlots};
use parking_lot::Mutex;
use tch::{TchError, Tensor};

pub use error::ProcessError;
use greeting::greet;
pub use greeting::random_token;
pub use machine::CommonBlock;
use place::Place;
pub use tensors::Stride;
use watch::{DONE, LEFT, Loss, Report, Watch, key};

/// Variable with a secret that all processes of a run know.
pub const TOKEN: &str = "KDGAT_TOKEN";
/// Variable with the folder in which the processes of `kdgat launch` leave the reason why they ended.
pub const LAUNCH: &str = "KDGAT_LAUNCH";
/// The environment variables by which a process finds out that it trains with others. A child that trains alone must not have them.
pub const TOGETHER: [&str; 11] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_STEP_ID",
    TOKEN,
    LAUNCH,
];
/// File in that folder that tells the processes to stop.
pub const STOP_FILE: &str = "stop";
/// Longest time that an operation waits for a process that gives signs of life: it may measure memory or build a store meanwhile.
const LONGEST_OPERATION: Duration = Duration::from_secs(3600);
/// Most bytes that a process gives the others at a time through shared memory.
const SLOT_BYTES: usize = 1 << 18;
/// Pause between two looks at a key.
const PAUSE: Duration = Duration::from_millis(20);

/// The processes that this one trains with, to tell them when it fails.
static JOINED: Mutex<Option<Arc<Processes>>> = Mutex::new(None);
/// True if this process ends because it lost another.
static IS_LOST: AtomicBool = AtomicBool::new(false);
/// True once a thread of this process reports the loss, or leaves that to another process.
static IS_CLAIMED: AtomicBool = AtomicBool::new(false);
/// True if another process reports the error that ended this one.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// The processes that train together, seen from one of them.
#[derive(Debug)]
pub struct Processes {
    place: Place,
    store: Store,
    group: ProcessGroup,
    /// Shared memory, if all processes are on this machine.
    slots: Option<Mutex<SharedSlots>>,
    watch: Watch,
    launch: Option<PathBuf>,
}

/// Settings of a meeting.
#[derive(Debug, Clone)]
pub struct Meeting<'a> {
    /// Digest of what the run computes; all processes must have the same.
    pub run: &'a str,
    /// Time without a sign of life after which a process counts as lost.
    pub timeout: Duration,
}

impl Processes {
    /// Joins the other processes at this place.
    ///
    /// # Errors
    /// Processes that do not come in time, or that do not belong to this run.
    pub fn join(place: Place, meeting: &Meeting) -> Result<Arc<Self>, ProcessError> {
        let prefix = format!("kdgat/{}", place.restarts);
        let address = (place.host.as_str(), place.port);
        let failed = |error: TchError| {
            let Place { rank, host, port, .. } = &place;
            ProcessError::Meeting(format!(
                "process {rank} cannot reach the store of process 0 at {host}:{port} within {:.0} s: {}; check MASTER_ADDR, MASTER_PORT and the \
                 network, or raise --process-timeout",
                meeting.timeout.as_secs_f64(),
                first_line(&error)
            ))
        };
        let rendezvous = match place.rank == 0 && !place.is_hosted {
            true => Rendezvous::Host(listen(&place)?),
            false => Rendezvous::Connect,
        };
        let store = Store::open(rendezvous, address, &prefix, meeting.timeout).map_err(failed)?;
        let signs = Store::open(Rendezvous::Connect, address, &prefix, meeting.timeout).map_err(failed)?;
        greet(&place, &store, meeting)?;
        let launch = std::env::var_os(LAUNCH).map(PathBuf::from);
        // Before the connections: a process that ends now would be waited for.
        let watch = Watch::start(&place, signs, meeting.timeout, launch.clone());
        let group = ProcessGroup::open(&store, (place.rank, place.size), &network(&place), LONGEST_OPERATION).map_err(
            |error| {
                ProcessError::Meeting(format!("the processes cannot connect to each other: {}", first_line(&error)))
            },
        )?;
        let slots = share_memory(&place, &store, &group);
        let joined = Arc::new(Self { place, store, group, slots, watch, launch });
        *JOINED.lock() = Some(Arc::clone(&joined));
        Ok(joined)
    }

    /// Number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.place.size
    }

    /// The place of this process.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// True for the process that writes the run's folder.
    pub fn is_first(&self) -> bool {
        self.place.rank == 0
    }

    /// The numbers of each process, which all give as many.
    ///
    /// # Errors
    /// A process that ended or failed.
    pub fn exchange(&self, numbers: &[f64]) -> Result<Vec<Vec<f64>>, ProcessError> {
        if let Some(all) = self.exchange_in_memory(numbers)? {
            return Ok(all);
        }
        let all = self.group.exchange(numbers).map_err(|error| self.lost(&error))?;
        Ok(all.chunks(numbers.len().max(1)).map(<[f64]>::to_vec).collect())
    }

    /// Like [`Processes::exchange`], through shared memory if there is some and the numbers fit.
    fn exchange_in_memory(&self, numbers: &[f64]) -> Result<Option<Vec<Vec<f64>>>, ProcessError> {
        let Some(slots) = &self.slots else { return Ok(None) };
        let mut slots = slots.lock();
        if size_of_val(numbers) > slots.capacity() {
            return Ok(None);
        }
        let own: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut all = Vec::with_capacity(self.size());
        let mut visit = |bytes: &[u8]| {
            all.push(bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect());
        };
        let ended = slots.exchange((Content::Numbers, &own), &|_| IS_CLAIMED.load(Ordering::SeqCst), &mut visit);
        ended.map_err(|ended| self.lost(&ended_text(ended)))?;
        Ok(Some(all))
    }

    /// Adds numbers up over the processes, in the order of their ranks.
    ///
    /// # Errors
    /// A process that ended or failed.
    pub fn add_up(&self, numbers: &mut [f64]) -> Result<(), ProcessError> {
        let all = self.exchange(numbers)?;
        numbers.fill(0.0);
        for row in &all {
            numbers.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
        }
        Ok(())
    }

    /// True if all processes are on this machine and exchange small packets through shared memory.
    pub fn shares_memory(&self) -> bool {
        self.slots.is_some()
    }

    /// Waits for all processes.
    ///
    /// # Errors
    /// A process that ended or failed.
    pub fn wait_for_all(&self) -> Result<(), ProcessError> {
        self.exchange(&[0.0]).map(drop)
    }

    /// Runs `work` in process 0 before the others, which then find what it made.
    ///
    /// # Errors
    /// Those of `work`, or a process that ended.
    pub fn first_before_others<T, E: From<ProcessError>>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if !self.is_first() {
            self.wait_for_all()?;
            return work();
        }
        let made = work()?;
        self.wait_for_all()?;
        Ok(made)
    }

    /// The bytes that process 0 gives; those of the others do not matter.
    ///
    /// # Errors
    /// A process that ended or failed.
    pub fn bytes_of_first(&self, bytes: &[u8]) -> Result<Vec<u8>, ProcessError> {
        let length = self.exchange(&[bytes.len() as f64])?[0][0] as usize;
        let mut buffer = bytes.to_vec();
        buffer.resize(length, 0);
        let mut tensor = Tensor::f_from_slice(&buffer)?;
        if length > 0 {
            self.take_from_first(&mut tensor)?;
        }
        Ok(Vec::try_from(tensor)?)
    }

    /// Checks that all processes give the same text.
    ///
    /// # Errors
    /// Names the processes that differ from process 0; `what` says what differs.
    pub fn expect_same(&self, what: &str, text: &str) -> Result<(), ProcessError> {
        let all = self.group.gather_bytes(text.as_bytes()).map_err(|error| self.lost(&error))?;
        let others: Vec<String> =
            (1..all.len()).filter(|&rank| all[rank] != all[0]).map(|rank| rank.to_string()).collect();
        if others.is_empty() {
            return Ok(());
        }
        let texts = all.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect::<Vec<_>>().join(", ");
        Err(ProcessError::Refused(format!(
            "process {} has another {what} than process 0 (by rank: {texts}); start all processes with the same command, data and teacher",
            others.join(" and ")
        )))
    }

    /// Ends the training together: process 0 waits for the others, which need its store.
    ///
    /// # Errors
    /// A process that ended before it was done.
    pub fn finish(&self) -> Result<(), ProcessError> {
        self.wait_for_all()?;
        // Before the watch ends, which notices a store that does not answer.
        let set = self.store.set(&key(DONE, self.rank()), &[]);
        self.watch.stop();
        *JOINED.lock() = None;
        if !self.is_first() || self.place.is_hosted {
            return set.map_err(|error| self.lost(&error));
        }
        let started = Instant::now();
        for rank in 1..self.size() {
            // A process that ends between its last sum and this key has lost nothing.
            while !self.store.has(&key(DONE, rank)).unwrap_or(true) && started.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// The error for an operation of all processes that failed.
    fn lost(&self, error: &TchError) -> ProcessError {
        let loss = self.watch.explain(&error.to_string());
        IS_LOST.store(true, Ordering::SeqCst);
        if claim_report(&self.place, self.launch.as_deref(), &loss) != Report::Here {
            IS_SILENT.store(true, Ordering::SeqCst);
        }
        ProcessError::Lost(loss.reason)
    }
}

fn ended_text(ended: Ended) -> TchError {
    let rank = ended.rank;
    TchError::Torch(match ended.is_elsewhere {
        true => format!("process {rank} is at another step: it gives other numbers than were expected"),
        false => format!("process {rank} does not answer"),
    })
}

/// Memory that all processes share, if they are on one machine. Without it, they use the network's operations.
fn share_memory(place: &Place, store: &Store, group: &ProcessGroup) -> Option<Mutex<SharedSlots>> {
    if place.local_size != place.size {
        return None;
    }
    let nonce = store.get("nonce").ok();
    let path = nonce.map(|nonce| Path::new("/dev/shm").join(format!("kdgat-{}", String::from_utf8_lossy(&nonce))));
    let capacity = SLOT_BYTES;
    let open = |path: &Path, creates: bool| -> std::io::Result<std::fs::File> {
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(creates).mode(0o600).open(path)?;
        if creates {
            // Written, not only made longer: a write to the map must not find the file system full.
            std::io::copy(&mut std::io::repeat(0).take(SharedSlots::file_bytes(place.size, capacity)), &mut &file)?;
        }
        Ok(file)
    };
    let mut slots = None;
    // Process 0 makes the file before the others open it, and removes its name once all have it.
    for turn in 0..2 {
        if let Some(path) = path.as_ref().filter(|_| (place.rank > 0) == (turn > 0)) {
            let made = open(path, place.rank == 0);
            slots = made.and_then(|file| SharedSlots::new(&file, (place.rank, place.size), capacity)).ok();
        }
        group.barrier().ok()?;
    }
    if let Some(path) = path.filter(|_| place.rank == 0) {
        // Without the file, there is nothing to remove.
        let _ = std::fs::remove_file(path);
    }
    // All or none.
    let all = group.exchange(&[f64::from(u8::from(slots.is_some()))]).ok()?;
    slots.filter(|_| all.iter().all(|&has| has > 0.0)).map(Mutex::new)
}

/// Tells the other processes, if there are any, that this one ends because of an error of its own.
pub fn leave(reason: &str) {
    let Some(processes) = JOINED.lock().take() else { return };
    if !IS_LOST.load(Ordering::SeqCst) {
        let first = reason.lines().next().unwrap_or("unknown reason");
        // Without the store, the others notice it by the connection.
        let _ = processes.store.set(&key(LEFT, processes.rank()), first.as_bytes());
        if processes.is_first() && !processes.place.is_hosted {
            // The store ends with this process: the others read the reason before.
            std::thread::sleep(2 * watch::INTERVAL);
        }
    }
    // Its threads end with the program: an operation in progress would have to end first.
    std::mem::forget(processes);
}

/// True if another process reports the error that ended this one.
pub fn is_silent() -> bool {
    IS_SILENT.load(Ordering::SeqCst)
}

/// Decides who reports a loss; asked by each thread of a process that notices it. Under `kdgat launch`, leaves the reason for it.
fn claim_report(place: &Place, launch: Option<&Path>, loss: &Loss) -> Report {
    if IS_CLAIMED.swap(true, Ordering::SeqCst) {
        return Report::Claimed;
    }
    if let Some(folder) = launch {
        // Without the file, the launcher reports that its processes failed.
        let _ = std::fs::write(folder.join(format!("lost-{}", place.rank)), &loss.reason);
        return Report::Elsewhere;
    }
    if loss.is_reported || !is_reporter(place, &loss.reason) { Report::Elsewhere } else { Report::Here }
}

/// True for the process with the lowest number that is not lost itself.
fn is_reporter(place: &Place, reason: &str) -> bool {
    let is_named = |rank: usize| [" ", ":"].iter().any(|end| reason.contains(&format!("process {rank}{end}")));
    (0..place.rank).all(is_named)
}

/// A socket of this process at its own address alone.
fn listen(place: &Place) -> Result<TcpListener, ProcessError> {
    let Place { host, port, .. } = place;
    let failed = |error: std::io::Error| {
        ProcessError::Meeting(format!(
            "process 0 cannot listen at {host}:{port}: {error}; set MASTER_ADDR to an address of its machine, and MASTER_PORT to a free port"
        ))
    };
    let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs().map_err(failed)?.collect();
    TcpListener::bind(&addresses[..]).map_err(failed)
}

/// The network of the exchanges: the interface that `GLOO_SOCKET_IFNAME` names, or the one with the address of the store's host if that is
/// this machine.
fn network(place: &Place) -> Network {
    if let Some(name) = std::env::var("GLOO_SOCKET_IFNAME").ok().filter(|name| !name.is_empty()) {
        return Network::Interface(name.split(',').next().unwrap_or_default().to_owned());
    }
    if place::is_loopback(&place.host) || place.rank == 0 && !place.is_hosted {
        return Network::Address(place.host.clone());
    }
    Network::OfThisMachine
}

fn first_line(error: &TchError) -> String {
    let text = match error {
        TchError::Torch(text) => text.clone(),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_that_is_not_lost_reports() {
        let place = |rank| {
            let host = "127.0.0.1".to_owned();
            let (local_rank, local_size, restarts) = (rank, 4, 0);
            Place {
                rank,
                size: 4,
                local_rank,
                local_size,
                host,
                port: 1,
                is_hosted: false,
                restarts,
                own_threads: None,
            }
        };
        let reporters = |reason: &str| (0..4).filter(|&rank| is_reporter(&place(rank), reason)).collect::<Vec<_>>();
        assert_eq!(reporters("process 2 ended"), [0]);
        assert_eq!(reporters("process 0 ended"), [0, 1], "process 0 cannot report that");
        assert_eq!(reporters("process 0 and process 1 ended"), [0, 1, 2]);
    }
}
