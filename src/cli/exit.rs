//! How the program ends: exit code 0 is fine, 2 is wrong usage or input, 1 anything else.

use std::io::ErrorKind;
use std::process::ExitCode;

use anyhow::Error;
use thiserror::Error;

use crate::can::CanError;
use crate::config::ConfigError;
use crate::distill::RegistryError;
use crate::evaluate::EvaluateError;
use crate::notices;
use crate::report::ReportError;
use crate::stage::StageError;
use crate::sweep::SweepError;

/// Wrong usage or input.
pub const INPUT: u8 = 2;
/// Anything else.
pub const FAILURE: u8 = 1;

/// An error type that knows which exit code it ends the program with.
pub trait ExitStatus {
    fn exit_code(&self) -> u8;
}

impl ExitStatus for ConfigError {
    fn exit_code(&self) -> u8 {
        INPUT
    }
}

impl ExitStatus for StageError {
    fn exit_code(&self) -> u8 {
        if self.is_input() { INPUT } else { FAILURE }
    }
}

impl ExitStatus for EvaluateError {
    fn exit_code(&self) -> u8 {
        if self.is_input() { INPUT } else { FAILURE }
    }
}

impl ExitStatus for ReportError {
    fn exit_code(&self) -> u8 {
        if self.is_input() { INPUT } else { FAILURE }
    }
}

impl ExitStatus for SweepError {
    fn exit_code(&self) -> u8 {
        if self.is_input() { INPUT } else { FAILURE }
    }
}

impl ExitStatus for CanError {
    fn exit_code(&self) -> u8 {
        INPUT
    }
}

impl ExitStatus for RegistryError {
    fn exit_code(&self) -> u8 {
        INPUT
    }
}

/// Arguments that fit their types but not each other or the world.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct UsageError(pub String);

impl ExitStatus for UsageError {
    fn exit_code(&self) -> u8 {
        INPUT
    }
}

/// The exit code of the first type in the error's chain that has one. New error types are added to the list here.
pub fn exit_code(error: &Error) -> u8 {
    macro_rules! first_of {
        ($($kind:ty),+) => {
            error.chain().find_map(|cause| {
                None$(.or_else(|| cause.downcast_ref::<$kind>().map(ExitStatus::exit_code)))+
            })
        };
    }
    first_of!(ConfigError, UsageError, StageError, EvaluateError, CanError, RegistryError, ReportError, SweepError)
        .unwrap_or(FAILURE)
}

/// Prints `error: …` with the chain of causes to standard error. When the reader of the output has gone away
/// (`kdgat config | head -1`), that is no error.
pub fn report(error: &Error) -> ExitCode {
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        return ExitCode::SUCCESS;
    }
    notices::line(&format!("error: {}", without_trace(&error.to_string())));
    for cause in error.chain().skip(1) {
        notices::line(&format!("  because: {}", without_trace(&cause.to_string())));
    }
    ExitCode::from(exit_code(error))
}

/// A message of libtorch without the dozens of lines on where in its own code it was.
pub fn without_trace(message: &str) -> &str {
    let end = message.find("Exception raised from").unwrap_or(message.len());
    message[..end].trim_end_matches("\\n").trim_end()
}
