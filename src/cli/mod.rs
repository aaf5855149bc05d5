//! The command line: argument types, help texts, and the dispatch of commands.

mod alarms;
mod build;
mod calibrate;
mod check;
mod commands;
mod compare;
mod completions;
mod configuration;
mod data;
mod detect;
mod dispatch;
mod doctor;
mod evaluate;
mod exit;
mod export;
mod fusion;
mod launch;
mod listed;
mod log_args;
mod log_format;
mod memory;
pub mod output;
mod parse;
mod part_runs;
mod pipeline;
mod reference;
mod report;
mod settings;
mod simulate;
mod simulate_drive;
mod sweep;
mod teachers;
mod time_span;
mod verify;

use std::process::ExitCode;

pub use commands::{Cli, Command, ConfigArgs, CurriculumArgs, DataCommand, TeachersCommand};
pub use dispatch::run;
pub use evaluate::EvaluateArgs;
pub use exit::{ExitStatus, UsageError, exit_code};
pub use parse::parse;
pub use reference::reference;
pub use settings::{FieldFlags, Settings};
pub use sweep::{Executor, SweepArgs, SweepCommand};

use crate::{notices, shell, torch};

/// The whole program: parses the process's arguments, runs the command, prints errors.
pub fn main() -> ExitCode {
    notices::listen();
    shell::note_command(std::env::args_os());
    if let Err(error) = torch::explain_bus_errors() {
        tracing::warn!(
            "cannot install the SIGBUS handler: a truncated file will crash the program without a message: {error}"
        );
    }
    match parse(std::env::args_os()) {
        Ok(cli) => run(cli).unwrap_or_else(|error| exit::report(&error)),
        Err(message) => {
            // Help and version come here, too; a closed output pipe is not a failure.
            let _ = message.print();
            ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(crate::exit::INPUT))
        }
    }
}
