//! Errors of logs, datasets and the simulator, with the path they concern.
//!
//! A row that cannot be read is not an error: it is counted in the [`ReadReport`](super::ReadReport).

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// An error of this crate. Every message names the path or option and the next step.
#[derive(Debug, Error)]
pub enum CanError {
    /// The dataset's folder does not exist.
    #[error("{path}: no such folder; --data takes a folder that holds train_01_attack_free/, train_02_with_attacks/ and test_*/", path = path.display())]
    MissingFolder {
        /// The folder.
        path: PathBuf,
    },

    /// No dataset of this name was found.
    #[error("{name}: {looked}; --data takes the folder or the name of a dataset: {advice}")]
    UnknownDataset {
        /// The name that was given.
        name: String,
        /// Places that were searched.
        looked: String,
        /// Next step for the user.
        advice: String,
    },

    /// A file was given instead of a dataset's folder.
    #[error("{path}: is a file; --data takes the folder that holds train_01_attack_free/, train_02_with_attacks/ and test_*/", path = path.display())]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },

    /// A folder that exists could not be listed.
    #[error("{path}: cannot list this folder: {source}; check its permissions", path = path.display())]
    UnreadableFolder {
        /// The folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },

    /// The folder holds no `train_*` or `test_*` folder.
    #[error("{root}: holds no train_* or test_* folder (found {found}); expected train_01_attack_free/, train_02_with_attacks/ and test_*/; if it contains datasets, name one of them: --data NAME", root = root.display())]
    NoDatasetFolders {
        /// The folder that was given.
        root: PathBuf,
        /// Names of its entries.
        found: String,
    },

    /// The folders of the dataset hold no log.
    #[error("{root}: no log file in {folders}; expected files that end in {extensions}, or these with .gz, .zst or .xz", root = root.display())]
    NoLogFiles {
        /// The dataset's folder.
        root: PathBuf,
        /// Folders or patterns that were searched.
        folders: String,
        /// Extensions of logs.
        extensions: String,
    },

    /// A log does not exist.
    #[error("{path}: no such file", path = path.display())]
    MissingFile {
        /// The log.
        path: PathBuf,
    },

    /// A pipe, a device or a socket is named like a log of the dataset.
    #[error("{path}: is named like a log, but is a pipe, a device or a socket; remove it from the dataset, or write its content to a file", path = path.display())]
    NotAFile {
        /// The pipe, device or socket.
        path: PathBuf,
    },

    /// A log is empty, before or after decompression.
    #[error("{path}: the file is empty{detail}; remove it or fetch it again", path = path.display())]
    EmptyFile {
        /// The log.
        path: PathBuf,
        /// Addition to the message, such as " once decompressed".
        detail: &'static str,
    },

    /// A stream ended before its first line.
    #[error("{path}: the stream ended before its first line; check the command that writes it", path = path.display())]
    EmptyStream {
        /// Name of the stream in messages.
        path: PathBuf,
    },

    /// A log could not be opened.
    #[error("{path}: cannot open: {source}", path = path.display())]
    Open {
        /// The log.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },

    /// A log could not be read to its end.
    #[error("{path}: cannot read: {source}", path = path.display())]
    Read {
        /// The log, or the name of the stream in messages.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },

    /// Compressed data ends early or is damaged.
    #[error("{path}:{line}: damaged or truncated {compression} data after {decompressed_bytes} decompressed bytes ({source}); fetch the file again", path = path.display())]
    Damaged {
        /// The log.
        path: PathBuf,
        /// The first line that is incomplete, from 1.
        line: u64,
        /// Name of the compression.
        compression: &'static str,
        /// Bytes decompressed before the damage.
        decompressed_bytes: u64,
        /// Error of the decompressor.
        source: io::Error,
    },

    /// No known format could read any of the first lines.
    #[error("{path}: no known log format reads its first lines (first line: {first_line:?}{reason}); known formats: {known}; --format forces one", path = path.display())]
    UnknownFormat {
        /// The log, or the name of the stream in messages.
        path: PathBuf,
        /// Beginning of the first line.
        first_line: String,
        /// Addition to the message, if the first line shows the cause.
        reason: String,
        /// Names of the formats that this program reads.
        known: String,
    },

    /// The format is known or forced, but no row of the whole log could be read.
    #[error("{path}: none of its {problem}; {advice}", path = path.display())]
    NothingRead {
        /// The log, or the name of the stream in messages.
        path: PathBuf,
        /// Number of rows, reasons and the first rejected row.
        problem: String,
        /// Next step for the user.
        advice: String,
    },

    /// Too many rows of a log were rejected.
    #[error("{path}: {rejected} of {rows} rows rejected ({:.1} %, at most {:.1} % are allowed): {places}; repair the file, name its format with --format, or allow more with --max-reject-share{help}",
        100.0 * *rejected as f64 / (*rows).max(1) as f64, 100.0 * allowed, path = path.display())]
    Rejected {
        /// The log.
        path: PathBuf,
        /// Number of rejected rows.
        rejected: u64,
        /// Number of rows.
        rows: u64,
        /// Largest allowed share of rejected rows, from 0 to 1.
        allowed: f64,
        /// Reasons and places of the first rejected rows.
        places: String,
        /// Addition to the advice, if the rows show the cause.
        help: String,
    },

    /// A log has frames of several interfaces or channels, which are buses of their own.
    #[error("{path}: has frames of several interfaces: {found}; choose one with --interface NAME", path = path.display())]
    SeveralInterfaces {
        /// The log, or the name of the stream in messages.
        path: PathBuf,
        /// The interfaces, with their frames.
        found: String,
    },

    /// The wanted interface has no frame in a log.
    #[error("{path}: --interface {wanted}: {found}", path = path.display())]
    NoSuchInterface {
        /// The log, or the name of the stream in messages.
        path: PathBuf,
        /// Name of the wanted interface.
        wanted: String,
        /// Description of the interfaces that the log has.
        found: String,
    },

    /// The times of a log cannot be those of a bus in seconds.
    #[error("{path}: {problem}; {advice}", path = path.display())]
    ImplausibleTimes {
        /// The log, or the name of the stream in messages.
        path: PathBuf,
        /// Description of the times.
        problem: String,
        /// Probable cause, and next step for the user.
        advice: String,
    },

    /// The file's size changed between opening it and reaching its end.
    #[error("{path}: changed while it was read ({size_at_open} bytes when opened, {size_at_end} at the end); wait until no program writes to it", path = path.display())]
    ChangedWhileRead {
        /// The log.
        path: PathBuf,
        /// Size when it was opened, in bytes.
        size_at_open: u64,
        /// Size when its end was reached, in bytes.
        size_at_end: u64,
    },

    /// A Parquet file, but the program was built without Parquet support.
    #[error("{path}: is a Parquet file, and this program was built without Parquet support; build it with `cargo build --release --features parquet`", path = path.display())]
    NoParquet {
        /// The Parquet file.
        path: PathBuf,
    },

    /// A Parquet file is damaged or lacks a column of a log.
    #[error("{path}: cannot be read as Parquet: {problem}", path = path.display())]
    Parquet {
        /// The Parquet file.
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },

    /// ROAD's label file exists but cannot be used.
    #[error("{path}: {problem}; the logs beside it take their labels from this file: fix it, or remove it to read these logs as attack-free", path = path.display())]
    BadMetadata {
        /// The label file.
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },

    /// A file or folder could not be written.
    #[error("{path}: cannot write: {source}; check free space and permissions", path = path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },

    /// The dataset has nothing to make synthetic attacks from.
    #[error("{root}: {detail}; synthetic attacks are made from train_*attack_free* logs with some thousand frames: add such logs, or turn them off with --synthetic-attacks false", root = root.display())]
    NoSourceOfAttacks {
        /// The dataset's folder.
        root: PathBuf,
        /// Description of what is there.
        detail: String,
    },

    /// The dataset has a folder with the name that synthetic logs get.
    #[error("{path}: the dataset has a folder with this name, under which synthetic attacks are added; rename the folder, or turn them off with --synthetic-attacks false", path = path.display())]
    SyntheticFolderTaken {
        /// The dataset's folder of that name.
        path: PathBuf,
    },

    /// An option of synthetic attacks has an invalid value.
    #[error("option {option} of synthetic attacks is {value}; expected {expected}")]
    InvalidSyntheticOption {
        /// Name of the option.
        option: &'static str,
        /// The value that was given.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },

    /// The target of simulated or synthetic traffic holds something else and is not overwritten.
    #[error("{path}: {found}; remove it or choose another folder", path = path.display())]
    TargetExists {
        /// The target folder.
        path: PathBuf,
        /// Description of its content.
        found: String,
    },

    /// An option of the simulator has an invalid value.
    #[error("simulation option {option} is {value}; expected {expected}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// The value that was given.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
}
