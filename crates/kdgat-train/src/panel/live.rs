//! The panel's thread and its terminal.
//!
//! The loop never waits for the terminal: the lock is held only while a few numbers are copied. Nothing here waits for a
//! GPU. The same thread reads the keys: `q` and Ctrl-C act like Ctrl-C without a panel.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use tch::Device;

use super::draw::{self, Theme};
use super::memory::Memory;
use super::state::State;
use crate::interrupt;
use crate::memory::current_activity;
use crate::terminal::{Output, Screen};

/// Time between two frames.
const FRAME: Duration = Duration::from_millis(200);
/// Time within which keys, a new terminal size and the end of the panel are noticed.
const GLANCE: Duration = Duration::from_millis(50);
/// Time between two readings of memory.
const READING: Duration = Duration::from_secs(1);
/// Ctrl-C as a key.
const INTERRUPT: u8 = 3;

/// An open panel; dropping it closes it.
#[derive(Debug)]
pub struct Panel {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    opened: Instant,
    /// Set when the panel shall close.
    closes: AtomicBool,
    /// Set when it has closed: lines then go to standard error.
    closed: AtomicBool,
}

impl Panel {
    /// Takes over the terminal and starts to draw `state`.
    ///
    /// # Errors
    /// If the terminal cannot be taken over, or no thread can be started.
    pub fn open(mut state: State, device: Device) -> io::Result<Self> {
        state.memory.read(device);
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            opened: Instant::now(),
            closes: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        let screen = Screen::take()?;
        let of_thread = Arc::clone(&shared);
        let run = move || show(screen, &of_thread, device);
        let thread = std::thread::Builder::new().name("panel".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Changes the state that is shown.
    pub fn update(&self, change: impl FnOnce(&mut State)) {
        let now = self.shared.opened.elapsed().as_secs_f64();
        let mut state = self.shared.state.lock();
        state.elapsed = now;
        change(&mut state);
    }

    /// Shows a line to the user, in the panel or, once it has closed, on standard error.
    pub fn line(&self, text: &str) {
        let mut state = self.shared.state.lock();
        if self.shared.closed.load(Ordering::Relaxed) {
            eprintln!("{text}");
        } else {
            state.say(text);
        }
    }
}

impl Drop for Panel {
    /// Restores the terminal and prints the lines of the panel's log there.
    fn drop(&mut self) {
        self.shared.closes.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics and reports them.
            let _ = thread.join();
        }
    }
}

/// Body of the panel's thread: draws until the panel closes. However it ends, the terminal is restored and no line is lost.
fn show(mut screen: Screen, shared: &Shared, device: Device) {
    let outcome = catch_unwind(AssertUnwindSafe(|| frames(&mut screen, shared, device)));
    let unseen = screen.close();
    let mut state = shared.state.lock();
    unseen.iter().for_each(|line| state.say(line));
    state.lines.iter().filter(|line| !is_epoch(line)).for_each(|line| eprintln!("{line}"));
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("the panel is closed, training continues: {error}"),
        Err(_) => eprintln!("the panel is closed, training continues"),
    }
    shared.closed.store(true, Ordering::Relaxed);
}

/// True for the line of an epoch: there may be hundreds, and they are in `metrics.csv` and `log.txt`.
fn is_epoch(line: &str) -> bool {
    line.starts_with("epoch ")
}

fn frames(screen: &mut Screen, shared: &Shared, device: Device) -> io::Result<()> {
    let theme = Theme::of_environment();
    let mut size = screen.size();
    let mut terminal = blank(size)?;
    let mut last_reading = Instant::now();
    while !shared.closes.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let memory = (last_reading.elapsed() >= READING).then(|| {
            last_reading = begin;
            let mut memory = shared.state.lock().memory.clone();
            memory.read(device);
            memory
        });
        let view = take_view(screen, shared, memory);
        terminal.draw(|frame| draw::draw(frame, &view, theme))?;
        while begin.elapsed() < FRAME && !shared.closes.load(Ordering::Relaxed) {
            press(&screen.keys(GLANCE));
            let now = screen.size();
            if now != size {
                size = now;
                terminal = blank(size)?;
                break;
            }
        }
    }
    Ok(())
}

/// Clears the screen and returns a terminal of this size. ratatui's own way to clear asks the terminal for its cursor position,
/// and the answer would arrive among the keys.
fn blank(size: Rect) -> io::Result<Terminal<CrosstermBackend<Output>>> {
    let mut output = Output::default();
    execute!(output, Clear(ClearType::All))?;
    Terminal::with_options(CrosstermBackend::new(output), TerminalOptions { viewport: Viewport::Fixed(size) })
}

/// Updates the state and copies it, so that nobody waits while it is drawn.
fn take_view(screen: &mut Screen, shared: &Shared, memory: Option<Memory>) -> State {
    let caught = screen.caught_lines();
    let mut state = shared.state.lock();
    caught.iter().for_each(|line| state.say(line));
    if let Some(memory) = memory {
        state.memory.take_reading(memory);
    }
    state.elapsed = shared.opened.elapsed().as_secs_f64();
    state.activity = current_activity().name();
    state.stopping = interrupt::requested();
    state.clone()
}

/// Handles keys: Ctrl-C requests a stop, a second one ends the program at once; `q` only requests.
fn press(keys: &[u8]) {
    for key in keys {
        match *key {
            INTERRUPT => interrupt::request(),
            b'q' if !interrupt::requested() => interrupt::request(),
            _ => {}
        }
    }
}
