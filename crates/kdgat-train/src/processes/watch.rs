//! Signs of life: each process sets a key every second, and reads those of the others. A process that is silent for too long ends all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kdgat_base::exit;
use kdgat_torch::exit_now;
use kdgat_torch::process_group::Store;
use parking_lot::{Condvar, Mutex};

use super::place::Place;
use crate::{interrupt, notices};

/// Longest time between two signs of life.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);
/// Signs of life that a living process gives while a lost one is looked for.
const INTERVALS_TO_FIND: u32 = 5;

/// Keys of a process that leaves before the others, and of one that is done.
pub(super) const LEFT: &str = "left";
pub(super) const DONE: &str = "done";

/// The reason why the processes cannot go on together.
#[derive(Debug, Clone)]
pub(super) struct Loss {
    pub reason: String,
    /// True if a process failed that reports its error itself.
    pub is_reported: bool,
}

impl Loss {
    fn new(reason: String) -> Self {
        Self { reason, is_reported: false }
    }
}

/// The signs of life of all processes.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    place: Place,
    store: Store,
    timeout: Duration,
    launch: Option<PathBuf>,
    parent: u32,
    /// Ends the signs of life.
    signs: End,
    /// Ends the watch of the store.
    store_watch: End,
    /// Number of times that the store has answered.
    answers: AtomicU64,
}

/// The end of a thread, for which it waits.
#[derive(Debug, Default)]
struct End {
    has_come: Mutex<bool>,
    came: Condvar,
}

impl End {
    fn come(&self) {
        *self.has_come.lock() = true;
        self.came.notify_all();
    }

    /// Waits for this long; returns true if the end has come.
    fn comes_within(&self, time: Duration) -> bool {
        let mut has_come = self.has_come.lock();
        if !*has_come {
            self.came.wait_for(&mut has_come, time);
        }
        *has_come
    }
}

impl Watch {
    pub(super) fn start(place: &Place, store: Store, timeout: Duration, launch: Option<PathBuf>) -> Self {
        let shared = Arc::new(Shared {
            place: place.clone(),
            store,
            timeout,
            launch,
            parent: std::os::unix::process::parent_id(),
            signs: End::default(),
            store_watch: End::default(),
            answers: AtomicU64::new(0),
        });
        let started = |name: &str, work: fn(&Shared)| {
            let own = Arc::clone(&shared);
            std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&own))
        };
        // Without the threads, a lost process is noticed by the operations that it does not join.
        let threads = match started("kdgat-processes", Shared::run) {
            Ok(signs) => [signs].into_iter().chain(started("kdgat-store", Shared::watch_store)).collect(),
            Err(_) => Vec::new(),
        };
        Self { shared, threads: Mutex::new(threads) }
    }

    /// Ends the signs of life.
    pub(super) fn stop(&self) {
        // The store is watched until the signs have ended: a question to it may still wait.
        for (end, thread) in [&self.shared.signs, &self.shared.store_watch].iter().zip(self.threads.lock().drain(..)) {
            end.come();
            // A panic there has already been printed.
            let _ = thread.join();
        }
    }

    /// The reason why an operation of all processes failed: which of them ended, and why, as far as that can be known.
    pub(super) fn explain(&self, error: &str) -> Loss {
        self.shared.explain(error)
    }
}

impl Shared {
    fn interval(&self) -> Duration {
        INTERVAL.min(self.timeout / 10)
    }

    fn run(&self) {
        let mut heard = BTreeMap::new();
        for beat in 0_u64.. {
            if self.signs.comes_within(self.interval()) {
                return;
            }
            self.note_launcher();
            match self.beat(beat, &mut heard) {
                Ok(None) => {
                    self.answers.fetch_add(1, Ordering::SeqCst);
                }
                Ok(Some(loss)) => return self.end(&loss),
                Err(_) if *self.signs.has_come.lock() => return,
                Err(error) => return self.end(&self.explain(&error)),
            }
        }
    }

    /// Ends this process when the store has not answered for too long: a question to it waits for ever if its process is stopped, or if the network
    /// has failed without breaking the connection.
    fn watch_store(&self) {
        let (mut answers, mut silent) = (0, 0);
        while !self.store_watch.comes_within(self.interval()) {
            // Counted by intervals: this process may have been stopped for a while.
            let now = self.answers.load(Ordering::SeqCst);
            (answers, silent) = (now, if now == answers { silent + 1 } else { 0 });
            if self.interval() * silent > self.timeout + INTERVALS_TO_FIND * self.interval() {
                return self.report(&self.host_is_lost());
            }
        }
    }

    /// Gives a sign of life and reads those of the others. Returns the reason to end, if there is one.
    fn beat(&self, beat: u64, heard: &mut BTreeMap<usize, (Vec<u8>, u32)>) -> Result<Option<Loss>, String> {
        let text = |error: tch::TchError| error.to_string();
        self.store.set(&key("beat", self.place.rank), &beat.to_le_bytes()).map_err(text)?;
        for rank in self.others() {
            if let Some(reason) = self.left(rank) {
                return Ok(Some(reason));
            }
            let now = match self.store.has(&key("beat", rank)).map_err(text)? {
                true => self.store.get(&key("beat", rank)).map_err(text)?,
                false => Vec::new(),
            };
            // Counted by own signs: this process may have been stopped for a while.
            let (last, silent) = heard.entry(rank).or_insert_with(|| (now.clone(), 0));
            *silent += 1;
            let quiet = self.interval() * *silent;
            if *last != now {
                (*last, *silent) = (now, 0);
            } else if quiet > self.timeout && !self.store.has(&key(DONE, rank)).map_err(text)? {
                return Ok(Some(Loss::new(format!(
                    "process {rank} has given no sign of life for {:.0} s (--process-timeout): it hangs, was stopped, or its machine or network \
                     failed; {ADVICE}",
                    quiet.as_secs_f64()
                ))));
            }
        }
        Ok(None)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.place.rank;
        (0..self.place.size).filter(move |&rank| rank != own)
    }

    /// The reason why process `rank` ended, if it told the others.
    fn left(&self, rank: usize) -> Option<Loss> {
        let key = key(LEFT, rank);
        if !self.store.has(&key).ok()? {
            return None;
        }
        let reason = String::from_utf8_lossy(&self.store.get(&key).ok()?).into_owned();
        // An empty reason: it ends because of another process.
        let text = format!("process {rank} failed: {reason}; {ADVICE}");
        (!reason.is_empty()).then_some(Loss { reason: text, is_reported: true })
    }

    /// Looks for processes that no longer give signs of life.
    fn explain(&self, error: &str) -> Loss {
        // The others are looking for a lost process, too: they must not take this one for it.
        let _ = self.store.set(&key(LEFT, self.place.rank), &[]);
        let beats = || -> Result<Vec<Vec<u8>>, tch::TchError> {
            self.others()
                .map(|rank| match self.store.has(&key("beat", rank))? {
                    true => self.store.get(&key("beat", rank)),
                    false => Ok(Vec::new()),
                })
                .collect()
        };
        let Ok(before) = beats() else { return self.host_is_lost() };
        let started = Instant::now();
        let mut silent: Vec<usize> = Vec::new();
        while started.elapsed() < self.interval() * INTERVALS_TO_FIND {
            std::thread::sleep(self.interval());
            if let Some(loss) = self.others().find_map(|rank| self.left(rank)) {
                return loss;
            }
            let Ok(now) = beats() else { return self.host_is_lost() };
            let is_silent = |&(index, rank): &(usize, usize)| {
                before[index] == now[index] && !self.store.has(&key(LEFT, rank)).unwrap_or(false)
            };
            silent = self.others().enumerate().filter(is_silent).map(|(_, rank)| rank).collect();
            if silent.is_empty() {
                break;
            }
        }
        let lost: Vec<String> = silent.iter().map(|rank| format!("process {rank}")).collect();
        let first = error.lines().next().unwrap_or_default();
        Loss::new(match lost.len() {
            0 => format!("the connection between the processes broke ({first}); {ADVICE}"),
            1 => format!("{} ended or lost its connection ({first}); {ADVICE}", lost[0]),
            _ => format!("{} ended or lost their connections ({first}); {ADVICE}", lost.join(" and ")),
        })
    }

    fn host_is_lost(&self) -> Loss {
        let Place { host, port, is_hosted, .. } = &self.place;
        Loss::new(match is_hosted {
            true => format!(
                "the launcher's store at {host}:{port} does not answer: the launcher ended, or the network failed; {ADVICE}"
            ),
            false => {
                format!("process 0 ended or lost its connection: its store at {host}:{port} does not answer; {ADVICE}")
            }
        })
    }

    /// Notes that the launcher wants the processes to stop, or has ended itself.
    fn note_launcher(&self) {
        let Some(folder) = &self.launch else { return };
        if folder.join(super::STOP_FILE).exists() && !interrupt::requested() {
            interrupt::request();
        }
        if std::os::unix::process::parent_id() != self.parent {
            self.end(&Loss::new("`kdgat launch` ended, and its processes with it".to_owned()));
        }
    }

    /// Ends this process, whose main thread may wait for one that never comes. Returns if that thread ends it.
    fn end(&self, loss: &Loss) {
        let _ = self.store.set(&key(LEFT, self.place.rank), &[]);
        self.report(loss);
    }

    fn report(&self, loss: &Loss) {
        match super::claim_report(&self.place, self.launch.as_deref(), loss) {
            Report::Elsewhere => {}
            Report::Here => notices::line(&format!("error: {}", loss.reason)),
            Report::Claimed => return,
        }
        exit_now(exit::FAILURE.into());
    }
}

/// The place where a loss is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// By the thread that asks.
    Here,
    /// By another process.
    Elsewhere,
    /// By the other thread of this process.
    Claimed,
}

/// The key of a process.
pub(super) fn key(name: &str, rank: usize) -> String {
    format!("{name}/{rank}")
}

const ADVICE: &str = "all processes end; resume from the last checkpoint with --resume, with any number of processes";
