//! Lines for the user from anywhere in the program: warnings, and the error that it ends with. They stand above a progress bar,
//! and in the log of the run that is at work.
//!
//! `RUST_LOG=info` shows what is told in passing, too, `RUST_LOG=debug` what only developers want to know.

use std::fmt::{Debug, Write as _};
use std::fs::File;
use std::io::Write as _;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, filter::LevelFilter};

static PLACES: Mutex<Places> = Mutex::new(Places { bar: None, log: None });

struct Places {
    bar: Option<ProgressBar>,
    log: Option<File>,
}

/// From here on lines stand above this bar, and in this log.
pub fn go_to(bar: Option<ProgressBar>, log: Option<File>) {
    *PLACES.lock() = Places { bar, log };
}

/// Shows warnings that any part of the program gives. Called once, by the program.
pub fn listen() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    // A program that has set its own keeps it.
    let _ = Registry::default().with(filter).with(Lines).try_init();
}

/// A line for the user.
pub fn line(text: &str) {
    let mut places = PLACES.lock();
    match &places.bar {
        Some(bar) => bar.suspend(|| eprintln!("{text}")),
        None => eprintln!("{text}"),
    }
    if let Some(log) = &mut places.log
        && writeln!(log, "{text}").is_err()
    {
        // The console says so, at its next line.
        places.log = None;
    }
}

struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let kind = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "note",
        };
        line(&format!("{kind}: {}", message.0));
    }
}

/// The words of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}
