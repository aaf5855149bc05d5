//! Lines for the user from anywhere in the program: warnings and the final error. They are printed above the progress bar and
//! appended to the log of the current run.
//!
//! `RUST_LOG=info` also shows notes, `RUST_LOG=debug` details for developers.

use std::fmt::{Debug, Write as _};
use std::fs::File;
use std::io::Write as _;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

static PLACES: Mutex<Places> = Mutex::new(Places { bar: None, log: None });

struct Places {
    bar: Option<ProgressBar>,
    log: Option<File>,
}

/// Prints lines above this bar and appends them to this log from now on.
pub fn go_to(bar: Option<ProgressBar>, log: Option<File>) {
    *PLACES.lock() = Places { bar, log };
}

/// Prints the warnings of the whole program. The program calls it once.
pub fn listen() {
    let filter = filter(std::env::var("RUST_LOG").ok().as_deref());
    // Leaves a subscriber that is already set in place.
    let _ = Registry::default().with(filter).with(Lines).try_init();
}

/// Reads `RUST_LOG`: levels by target, such as `info` or `kdgat_train=debug,warn`. Warnings are shown unless it says otherwise.
fn filter(variable: Option<&str>) -> Targets {
    let warnings = Targets::new().with_default(LevelFilter::WARN);
    let Some(text) = variable.filter(|text| !text.is_empty()) else { return warnings };
    match text.parse::<Targets>() {
        Ok(filter) if filter.default_level().is_some() => filter,
        Ok(filter) => filter.with_default(LevelFilter::WARN),
        Err(error) => {
            eprintln!(
                "warning: RUST_LOG='{text}' is ignored: {error}; expected levels such as info or kdgat_train=debug"
            );
            warnings
        }
    }
}

/// Prints a line for the user and appends it to the log.
pub fn line(text: &str) {
    let mut places = PLACES.lock();
    match &places.bar {
        Some(bar) => bar.suspend(|| eprintln!("{text}")),
        None => eprintln!("{text}"),
    }
    if let Some(log) = &mut places.log
        && writeln!(log, "{text}").is_err()
    {
        // The console reports this at its next line.
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

/// Message text of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}
