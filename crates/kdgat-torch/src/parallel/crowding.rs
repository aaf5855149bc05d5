//! Loops on cores that other programs use as well.
//!
//! A libgomp thread that waits for a loop, or for the others at its end, spins for milliseconds before it sleeps. On
//! idle cores this makes the hundred short loops of a step fast. On a core shared with another program, it spins while
//! the thread it waits for cannot run: two trainings side by side took ten times as long as one after the other.
//! libgomp lets its threads sleep almost at once if it counts more threads than cores. So when loops are seen to wait,
//! we start sleeping threads that raise this count, and end them after a while to check whether the cores are free
//! again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{libtorch, openmp};

/// Minimum wait at a loop's end that counts. A loop's own work does not cause it: pieces take microseconds.
const LATE: Duration = Duration::from_micros(500);
/// Waits further apart than this belong to separate windows.
const APART: Duration = Duration::from_millis(200);
/// Maximum length of a window.
const LONGEST: Duration = Duration::from_secs(2);
/// Minimum share of a window spent waiting before threads rest.
const SHARE: f64 = 0.25;
/// Minimum total waiting time in a window before threads rest.
const LONG: Duration = Duration::from_millis(40);
/// Minimum number of waits in a window before threads rest.
const LOOPS: u32 = 8;
/// Maximum that one wait contributes: a program that was paused for a moment is not crowded.
const MOST: Duration = Duration::from_millis(40);
/// First period during which threads sleep at once. It doubles each time the cores are still not free, up to
/// [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_secs(4);
const LONGEST_REST: Duration = Duration::from_secs(64);

static WATCH: Mutex<Watch> = Mutex::new(Watch::new());
static RESTS: AtomicBool = AtomicBool::new(false);

/// Records how long a loop's caller waited for the other threads after its own work was done.
pub(super) fn waited(late: Duration) {
    if late < LATE || RESTS.load(Ordering::Relaxed) {
        return;
    }
    if let Some(rest) = WATCH.lock().waited(Instant::now(), late) {
        sleep_between_loops(rest);
    }
}

/// Makes libgomp's threads sleep almost at once, for the duration of `rest`.
fn sleep_between_loops(rest: Duration) {
    let Some(cores) = openmp::cores() else { return };
    if RESTS.swap(true, Ordering::Relaxed) {
        return;
    }
    tracing::debug!("other programs use these cores: threads sleep between loops for {} s", rest.as_secs());
    let sleeper = std::thread::Builder::new().name("kdgat-crowd".to_owned()).spawn(move || {
        // The additional threads count as long as this one, which starts them, lives.
        libtorch::start_threads(cores + 1);
        std::thread::sleep(rest);
        RESTS.store(false, Ordering::Relaxed);
    });
    if let Err(error) = sleeper {
        RESTS.store(false, Ordering::Relaxed);
        tracing::debug!("cannot start the thread that makes others sleep between loops: {error}");
    }
}

/// Statistics of recent waits.
struct Watch {
    /// Begin of the first wait and end of the last one.
    window: Option<(Instant, Instant)>,
    late: Duration,
    loops: u32,
    /// The last rest and its end.
    rest: Option<(Duration, Instant)>,
}

impl Watch {
    const fn new() -> Self {
        Self { window: None, late: Duration::ZERO, loops: 0, rest: None }
    }

    /// The duration of a rest, if this wait reaches the thresholds.
    fn waited(&mut self, now: Instant, late: Duration) -> Option<Duration> {
        let begin = now - late;
        let start = match self.window {
            Some((start, last)) if begin.saturating_duration_since(last) < APART && now - start < LONGEST => start,
            _ => {
                (self.late, self.loops) = (Duration::ZERO, 0);
                begin
            }
        };
        self.window = Some((start, now));
        self.late += late.min(MOST);
        self.loops += 1;
        if self.loops < LOOPS || self.late < LONG.max((now - start).mul_f64(SHARE)) {
            return None;
        }
        self.window = None;
        // Back to the first duration if as much time as the last rest has passed without another: the cores were free.
        let again = self.rest.filter(|(rest, end)| now.saturating_duration_since(*end) < *rest);
        let rest = again.map_or(FIRST_REST, |(rest, _)| (2 * rest).min(LONGEST_REST));
        self.rest = Some((rest, now + rest));
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Records waits of `late`, one every `apart`, until a rest is due or `count` have passed.
    fn waits(watch: &mut Watch, now: &mut Instant, late: Duration, apart: Duration, count: usize) -> Option<Duration> {
        (0..count).find_map(|_| {
            *now += apart;
            watch.waited(*now, late)
        })
    }

    #[test]
    fn loops_that_wait_for_a_quarter_of_the_time_are_crowded() {
        for late in [1, 4, 50] {
            let (mut watch, mut now) = (Watch::new(), Instant::now());
            let found = waits(&mut watch, &mut now, late * MILLISECOND, 2 * late * MILLISECOND, 100);
            assert_eq!(found, Some(FIRST_REST), "waits of {late} ms, half of the time");
        }
        let (mut watch, mut now) = (Watch::new(), Instant::now());
        assert_eq!(waits(&mut watch, &mut now, MILLISECOND, 10 * MILLISECOND, 1000), None, "a tenth of the time");
    }

    #[test]
    fn a_program_that_was_stopped_is_no_crowd() {
        let (mut watch, mut now) = (Watch::new(), Instant::now());
        assert_eq!(waits(&mut watch, &mut now, Duration::from_secs(5), Duration::from_secs(6), 50), None);
        for _ in 0..50 {
            assert_eq!(waits(&mut watch, &mut now, 500 * MILLISECOND, 501 * MILLISECOND, 1), None);
            assert_eq!(waits(&mut watch, &mut now, 4 * MILLISECOND, 50 * MILLISECOND, 4), None);
        }
    }

    #[test]
    fn rests_grow_while_the_cores_are_not_free() {
        let (mut watch, mut now) = (Watch::new(), Instant::now());
        let mut rests = Vec::new();
        for _ in 0..6 {
            let rest = waits(&mut watch, &mut now, 4 * MILLISECOND, 5 * MILLISECOND, 100).unwrap();
            now += rest;
            rests.push(rest.as_secs());
        }
        assert_eq!(rests, [4, 8, 16, 32, 64, 64]);
        now += 2 * LONGEST_REST;
        assert_eq!(waits(&mut watch, &mut now, 4 * MILLISECOND, 5 * MILLISECOND, 100), Some(FIRST_REST));
    }

    /// Checks the mechanism of a rest. Other tests in this process may rest at any time.
    #[test]
    #[cfg(target_os = "linux")]
    fn threads_are_added_for_as_long_as_the_one_that_starts_them_lives() {
        const NAME: &str = "kdgat-added";
        let added = || {
            let threads = std::fs::read_dir("/proc/self/task").unwrap();
            // A thread may have ended in the meantime.
            let name = |thread: std::io::Result<std::fs::DirEntry>| {
                std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
            };
            threads.filter_map(name).filter(|name| name.trim_end() == NAME).count()
        };
        let becomes = |wanted: usize| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while added() != wanted {
                assert!(Instant::now() < deadline, "{} threads, {wanted} are expected", added());
                std::thread::sleep(MILLISECOND);
            }
        };
        let cores = openmp::cores().expect("libgomp has the call");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let starts = std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            libtorch::start_threads(cores + 1);
            ended.recv()
        });
        becomes(cores + 1);
        drop(end);
        assert!(starts.unwrap().join().unwrap().is_err());
        becomes(0);
    }
}
