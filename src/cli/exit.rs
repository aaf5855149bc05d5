//! How the program ends: exit code 0 is fine, 2 is wrong usage or input, 1 anything else.
//!
//! One rule tells 2 from 1, whatever the command. 2 is for what the user gave, arguments, paths, files and limits: the same
//! command would end the same way until one of them is another. 1 is for what the machine or the program did: a disk that is
//! full, memory that others have taken, an interruption, a bug. An error type says which of the two it is (`is_input`);
//! memory and full disks can be at the bottom of any error and are looked for here.

use std::io::{self, ErrorKind};
use std::process::ExitCode;

use anyhow::Error;
use thiserror::Error;

use crate::can::CanError;
use crate::config::{ByteSize, ConfigError};
use crate::distill::RegistryError;
use crate::evaluate::EvaluateError;
use crate::files;
use crate::graph::StoreError;
use crate::notices;
use crate::report::ReportError;
use crate::stage::StageError;
use crate::sweep::SweepError;
use crate::torch::allocator;

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

impl ExitStatus for StoreError {
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
        let is_input = match self {
            Self::File { source, .. } => files::is_about_the_path(source),
            _ => self.is_input(),
        };
        if is_input { INPUT } else { FAILURE }
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

/// The exit code by what ran out, else that of the first type in the error's chain that has one. New error types are
/// added to the list here.
pub fn exit_code(error: &Error) -> u8 {
    match memory_failure(error) {
        Some(MemoryFailure::Limit(_)) => return INPUT,
        Some(MemoryFailure::Refused | MemoryFailure::Gpu) => return FAILURE,
        None if is_disk_full(error) => return FAILURE,
        None => {}
    }
    macro_rules! first_of {
        ($($kind:ty),+) => {
            error.chain().find_map(|cause| {
                None$(.or_else(|| cause.downcast_ref::<$kind>().map(ExitStatus::exit_code)))+
            })
        };
    }
    let found = first_of!(
        ConfigError,
        UsageError,
        StageError,
        StoreError,
        EvaluateError,
        CanError,
        RegistryError,
        ReportError,
        SweepError
    );
    found.unwrap_or(FAILURE)
}

/// Why memory ran out.
enum MemoryFailure {
    /// The limit of host memory, in bytes, was reached.
    Limit(u64),
    /// The system refused although the limit had room.
    Refused,
    /// A GPU had no more, or the system, as libtorch says it.
    Gpu,
}

fn memory_failure(error: &Error) -> Option<MemoryFailure> {
    let texts: Vec<String> = error.chain().map(ToString::to_string).collect();
    if let Some(bytes) = texts.iter().find_map(|text| allocator::limit_reached(text)) {
        return Some(MemoryFailure::Limit(bytes));
    }
    if texts.iter().any(|text| allocator::says_refused_inside_limit(text)) {
        return Some(MemoryFailure::Refused);
    }
    texts.iter().any(|text| allocator::says_out_of_memory(text)).then_some(MemoryFailure::Gpu)
}

fn is_disk_full(error: &Error) -> bool {
    let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|error| full.contains(&error.kind()))
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
    notices::line(text(error).trim_end());
    ExitCode::from(exit_code(error))
}

/// The error with its causes, each on its line. Where memory ran out that comes first: what needed it is not to blame.
fn text(error: &Error) -> String {
    let mut causes = error.chain().map(|cause| readable(&cause.to_string()));
    let first = causes.next().unwrap_or_default();
    let mut text = match memory_failure(error) {
        Some(MemoryFailure::Limit(bytes)) => format!(
            "error: out of memory: the limit of {} for tensors was reached; raise --memory-limit; `kdgat memory plan` with \
             the same options says what a training takes\n  while: {first}\n",
            ByteSize(bytes)
        ),
        Some(MemoryFailure::Refused) => format!(
            "error: out of memory: the system has no more, although the limit has room; others have taken it: try again \
             later\n  while: {first}\n"
        ),
        Some(MemoryFailure::Gpu) | None => format!("error: {first}\n"),
    };
    for cause in causes {
        // Some messages say what they were caused by themselves.
        if !text.contains(&cause) {
            text += &format!("  because: {cause}\n");
        }
    }
    text
}

/// A message without what is for programmers only.
fn readable(message: &str) -> String {
    without_trace(message)
        .replace("Internal torch error: ", "")
        .replace("kdgat: host memory limit", "host memory limit")
}

/// A message of libtorch without the dozens of lines on where in its own code it was.
pub fn without_trace(message: &str) -> &str {
    let end = message.find("Exception raised from").unwrap_or(message.len());
    message[..end].trim_end_matches("\\n").trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    use tch::TchError;

    fn out_of_memory(reason: &str) -> Error {
        let text = format!("kdgat: host memory limit of 1048576 bytes: {reason}: 64 bytes requested, 0 in use");
        let source = TchError::Torch(text);
        let path = PathBuf::from("teachers/sim/vgae/weights.safetensors");
        StageError::from(crate::distill::WeightsError::Unreadable { path, source }).into()
    }

    #[test]
    fn a_limit_that_is_too_small_is_named_and_not_the_file() {
        let error = out_of_memory("it would be exceeded");
        assert_eq!(exit_code(&error), INPUT);
        let text = text(&error);
        assert!(text.starts_with("error: out of memory: the limit of 1MiB for tensors"), "{text}");
        assert!(text.contains("raise --memory-limit") && text.contains("kdgat memory plan"), "{text}");
        assert!(text.contains("while: cannot read weights from teachers"), "{text}");
        assert!(!text.contains("Internal torch error") && !text.contains("kdgat: host"), "{text}");
        // A sweep recognises by its words that a task ran out of memory.
        assert!(allocator::says_out_of_memory(&text));
    }

    #[test]
    fn memory_that_others_took_is_no_wrong_input() {
        let error = out_of_memory("the system has no more");
        assert_eq!(exit_code(&error), FAILURE);
        assert!(text(&error).starts_with("error: out of memory: the system has no more"), "{}", text(&error));
        assert!(allocator::says_out_of_memory(&text(&error)));
        let gpu: Error = StageError::from(TchError::Torch("CUDA out of memory. Tried to allocate 1 GiB".into())).into();
        assert_eq!(
            (exit_code(&gpu), text(&gpu).as_str()),
            (FAILURE, "error: CUDA out of memory. Tried to allocate 1 GiB\n")
        );
    }

    #[test]
    fn paths_are_input_and_full_disks_are_not() {
        let stage = |kind: ErrorKind| -> Error {
            StageError::File { path: "out".into(), action: "write", source: kind.into() }.into()
        };
        let report = |kind: ErrorKind| -> Error {
            ReportError::File { path: "out".into(), action: "write", source: kind.into() }.into()
        };
        let sweep =
            |kind: ErrorKind| -> Error { SweepError::file(std::path::Path::new("out"), "write")(kind.into()).into() };
        let can = |kind: ErrorKind| -> Error { CanError::Write { path: "out".into(), source: kind.into() }.into() };
        for of in [stage, report, sweep, can] {
            for kind in [ErrorKind::NotFound, ErrorKind::PermissionDenied, ErrorKind::NotADirectory] {
                assert_eq!(exit_code(&of(kind)), INPUT, "{}", of(kind));
            }
            assert_eq!(exit_code(&of(ErrorKind::StorageFull)), FAILURE, "{}", of(ErrorKind::StorageFull));
        }
    }
}
