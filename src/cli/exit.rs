//! The exit code of each error, and error output. [`crate::exit`] lists the codes.
//!
//! One rule separates 2 from 1 for all commands. 2 means the user's arguments, paths or files: the same command fails in the same way until
//! one of them changes. 1 means the machine or the program: a full disk, a bug. An error type decides between the two (`is_input`). Running
//! out of memory (76) or disk space (1) can be the cause of any error, so this module checks for it first.

use std::io::{self, ErrorKind};
use std::process::ExitCode;

use anyhow::Error;
use thiserror::Error;

use crate::can::CanError;
use crate::config::{ByteSize, ConfigError};
use crate::distill::RegistryError;
use crate::evaluate::EvaluateError;
use crate::exit::{FAILURE, INPUT, OUT_OF_MEMORY};
use crate::graph::StoreError;
use crate::notices;
use crate::report::ReportError;
use crate::stage::StageError;
use crate::sweep::SweepError;
use crate::torch::allocator;
use crate::train::processes;

/// An error type with an exit code.
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
        StageError::exit_code(self)
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
            Self::File(error) => error.is_input(),
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

/// Arguments that parse, but contradict each other or do not fit the existing files and devices.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct UsageError(pub String);

impl ExitStatus for UsageError {
    fn exit_code(&self) -> u8 {
        INPUT
    }
}

/// The exit code of an error: by the resource that ran out, else that of the first type in the chain with an [`ExitStatus`]. New
/// error types must be added to the list here.
pub fn exit_code(error: &Error) -> u8 {
    if memory_failure(error).is_some() {
        return OUT_OF_MEMORY;
    }
    if is_disk_full(error) {
        return FAILURE;
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

/// The cause of an out-of-memory error.
enum MemoryFailure {
    /// The limit of host memory was reached, in bytes.
    Limit(u64),
    /// The system refused memory below the limit.
    Refused,
    /// libtorch or the system reported that a GPU or the system is out of memory.
    Reported,
}

fn memory_failure(error: &Error) -> Option<MemoryFailure> {
    let texts: Vec<String> = error.chain().map(ToString::to_string).collect();
    if let Some(bytes) = texts.iter().find_map(|text| allocator::limit_reached(text)) {
        return Some(MemoryFailure::Limit(bytes));
    }
    if texts.iter().any(|text| allocator::says_refused_inside_limit(text)) {
        return Some(MemoryFailure::Refused);
    }
    let is_reported = texts.iter().any(|text| allocator::says_out_of_memory(text))
        || io_errors(error).any(|error| error.kind() == ErrorKind::OutOfMemory);
    is_reported.then_some(MemoryFailure::Reported)
}

fn io_errors(error: &Error) -> impl Iterator<Item = &io::Error> {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>())
}

fn is_disk_full(error: &Error) -> bool {
    let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
    io_errors(error).any(|error| full.contains(&error.kind()))
}

/// Prints `error: …` with the chain of causes to standard error, and returns the exit code. A closed output pipe
/// (`kdgat config | head -1`) is not an error.
pub fn report(error: &Error) -> ExitCode {
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        return ExitCode::SUCCESS;
    }
    // Of several processes that lost another, one reports it.
    if !processes::is_silent() {
        notices::line(text(error).trim_end());
    }
    ExitCode::from(exit_code(error))
}

/// The error with its causes, one per line. Running out of memory comes first: the operation that needed it is not the cause.
fn text(error: &Error) -> String {
    let mut causes = error.chain().map(|cause| readable(&cause.to_string()));
    let first = causes.next().unwrap_or_default();
    let mut text = match memory_failure(error) {
        Some(MemoryFailure::Limit(bytes)) => format!(
            "error: out of memory: the limit of {} for tensors was reached; raise --memory-limit; `kdgat memory plan` with \
             the same options predicts what training needs\n  while: {first}\n",
            ByteSize(bytes)
        ),
        Some(MemoryFailure::Refused) => format!(
            "error: out of memory: the system has no more, although the limit is not reached; other programs use it: try again \
             later\n  while: {first}\n"
        ),
        Some(MemoryFailure::Reported) | None => format!("error: {first}\n"),
    };
    for cause in causes {
        // Some messages contain their cause.
        if !text.contains(&cause) {
            text += &format!("  because: {cause}\n");
        }
    }
    text
}

/// Removes the parts of a message that only help programmers.
fn readable(message: &str) -> String {
    without_trace(message)
        .replace("Internal torch error: ", "")
        .replace("kdgat: host memory limit", "host memory limit")
}

/// Removes the stack trace from a message of libtorch.
pub fn without_trace(message: &str) -> &str {
    let end = message.find("Exception raised from").unwrap_or(message.len());
    message[..end].trim_end_matches("\\n").trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    use tch::TchError;

    use crate::curriculum::CurriculumError;
    use crate::distill::TeacherError;
    use crate::exit::INTERRUPTED;
    use crate::files;
    use crate::nodes::NodesError;
    use crate::train::fit::FitError;

    fn out_of_memory(reason: &str) -> Error {
        let text = format!("kdgat: host memory limit of 1048576 bytes: {reason}: 64 bytes requested, 0 in use");
        let source = TchError::Torch(text);
        let path = PathBuf::from("teachers/sim/vgae/weights.safetensors");
        StageError::from(crate::distill::WeightsError::Unreadable { path, source }).into()
    }

    #[test]
    fn an_out_of_memory_error_names_the_limit_and_not_the_file() {
        let error = out_of_memory("it would be exceeded");
        assert_eq!(exit_code(&error), OUT_OF_MEMORY);
        let text = text(&error);
        assert!(text.starts_with("error: out of memory: the limit of 1MiB for tensors"), "{text}");
        assert!(text.contains("raise --memory-limit") && text.contains("kdgat memory plan"), "{text}");
        assert!(text.contains("while: cannot read weights from teachers"), "{text}");
        assert!(!text.contains("Internal torch error") && !text.contains("kdgat: host"), "{text}");
    }

    #[test]
    fn every_lack_of_memory_has_one_exit_code() {
        let error = out_of_memory("the system has no more");
        assert_eq!(exit_code(&error), OUT_OF_MEMORY);
        assert!(text(&error).starts_with("error: out of memory: the system has no more"), "{}", text(&error));
        let gpu: Error = StageError::from(TchError::Torch("CUDA out of memory. Tried to allocate 1 GiB".into())).into();
        assert_eq!(
            (exit_code(&gpu), text(&gpu).as_str()),
            (OUT_OF_MEMORY, "error: CUDA out of memory. Tried to allocate 1 GiB\n")
        );
        // Refused before anything was allocated, by a plan.
        let too_large = || TeacherError::CacheTooLarge { size: "2 GiB".into(), budget: "1 GiB".into() };
        let epoch: FitError = FitError::Objective(too_large().into());
        for planned in [StageError::Memory("no batch fits".into()), too_large().into(), epoch.into()] {
            assert_eq!(exit_code(&planned.into()), OUT_OF_MEMORY);
        }
        let mapped = io::Error::from(ErrorKind::OutOfMemory);
        let mapped = StageError::from(files::failed("map", "store".as_ref())(mapped));
        assert_eq!(exit_code(&mapped.into()), OUT_OF_MEMORY);
    }

    #[test]
    fn an_interruption_has_its_own_exit_code() {
        let scoring = || CurriculumError::Interrupted { done: 1, total: 2 };
        let epoch: FitError = FitError::Objective(scoring().into());
        let stopped =
            [StageError::Interrupted("stopped".into()), NodesError::Stopped.into(), scoring().into(), epoch.into()];
        for error in stopped {
            assert_eq!(exit_code(&error.into()), INTERRUPTED);
        }
    }

    #[test]
    fn bad_paths_are_input_errors_and_full_disks_are_not() {
        let stage =
            |kind: ErrorKind| -> Error { StageError::from(files::failed("write", "out".as_ref())(kind.into())).into() };
        let report = |kind: ErrorKind| -> Error {
            ReportError::from(files::failed("write", "out".as_ref())(kind.into())).into()
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
