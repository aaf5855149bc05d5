//! What can go wrong with logs, datasets and the simulator, with the file it happened to.
//!
//! A row that cannot be read is not here: it is counted in the [`ReadReport`](super::ReadReport).

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// An error of module `can`. Every message names the path and what to do next.
#[derive(Debug, Error)]
pub enum CanError {
    /// The dataset's folder does not exist.
    #[error("{path}: no such folder; --data wants a folder that holds train_01_attack_free/, train_02_with_attacks/ and test_*/", path = path.display())]
    MissingFolder { path: PathBuf },

    /// The name of no dataset that is there.
    #[error("{name}: {looked}; --data wants a dataset's folder or name, and {advice}")]
    UnknownDataset { name: String, looked: String, advice: String },

    /// A file was given where a dataset's folder is wanted.
    #[error("{path}: is a file; --data wants the folder that holds train_01_attack_free/, train_02_with_attacks/ and test_*/", path = path.display())]
    NotAFolder { path: PathBuf },

    /// A folder that exists could not be listed.
    #[error("{path}: cannot list this folder: {source}; check its permissions", path = path.display())]
    UnreadableFolder { path: PathBuf, source: io::Error },

    /// The folder holds nothing named like a part of a dataset.
    #[error("{root}: holds no train_* or test_* folder (found {found}); expected train_01_attack_free/, train_02_with_attacks/ and test_*/; if datasets lie in it, give one of them: --data NAME", root = root.display())]
    NoDatasetFolders { root: PathBuf, found: String },

    /// The parts of the dataset are there but empty.
    #[error("{root}: no log file in {folders}; expected files that end in {extensions}, or these with .gz, .zst or .xz", root = root.display())]
    NoLogFiles { root: PathBuf, folders: String, extensions: String },

    /// A log does not exist.
    #[error("{path}: no such file", path = path.display())]
    MissingFile { path: PathBuf },

    /// A pipe, a device or a socket where a dataset's log is wanted.
    #[error("{path}: has the name of a log, but is a pipe, a device or a socket; remove it from the dataset, or write its content to a file", path = path.display())]
    NotAFile { path: PathBuf },

    /// A log has no byte, or nothing after decompression.
    #[error("{path}: the file is empty{detail}; remove it or fetch it again", path = path.display())]
    EmptyFile { path: PathBuf, detail: &'static str },

    /// A stream that ended before anything came.
    #[error("{path}: the stream ended before its first line; check the command that writes it", path = path.display())]
    EmptyStream { path: PathBuf },

    /// A log could not be opened.
    #[error("{path}: cannot open: {source}", path = path.display())]
    Open { path: PathBuf, source: io::Error },

    /// A log could not be read to its end.
    #[error("{path}: cannot read: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },

    /// Compressed data that ends early or is damaged.
    #[error("{path}:{line}: damaged or truncated {compression} data after {decompressed_bytes} decompressed bytes ({source}); fetch the file again", path = path.display())]
    Damaged {
        path: PathBuf,
        /// The line that is not whole any more.
        line: u64,
        compression: &'static str,
        decompressed_bytes: u64,
        source: io::Error,
    },

    /// No known format could read any of the first lines.
    #[error("{path}: no known log format reads its first lines (first line: {first_line:?}{reason}); known formats: {known}; --format forces one", path = path.display())]
    UnknownFormat { path: PathBuf, first_line: String, reason: String, known: String },

    /// The format is known or forced, and still no row could be read to the log's end.
    #[error("{path}: none of its {problem}; {advice}", path = path.display())]
    NothingRead { path: PathBuf, problem: String, advice: String },

    /// The file's size changed between opening it and reaching its end.
    #[error("{path}: changed while it was read ({size_at_open} bytes when opened, {size_at_end} at the end); wait until nothing writes it", path = path.display())]
    ChangedWhileRead { path: PathBuf, size_at_open: u64, size_at_end: u64 },

    /// A Parquet file, and a program that was built without a reader for it.
    #[error("{path}: is a Parquet file, which this program was built without: build it with `cargo build --release --features parquet`", path = path.display())]
    NoParquet { path: PathBuf },

    /// A Parquet file that is damaged, or has not the columns of a log.
    #[error("{path}: cannot be read as Parquet: {problem}", path = path.display())]
    Parquet { path: PathBuf, problem: String },

    /// ROAD's label file is there but cannot be used.
    #[error("{path}: {problem}; labels of the logs beside it come from this file: mend it, or remove it to read them as attack-free", path = path.display())]
    BadMetadata { path: PathBuf, problem: String },

    /// Something could not be written.
    #[error("{path}: cannot write: {source}; check free space and permissions", path = path.display())]
    Write { path: PathBuf, source: io::Error },

    /// The simulator never writes over something.
    #[error("{path}: {found}; remove it or choose another folder", path = path.display())]
    TargetExists { path: PathBuf, found: String },

    /// An option of the simulator that makes no dataset.
    #[error("simulation option {option} is {value}; expected {expected}")]
    InvalidOption { option: &'static str, value: String, expected: &'static str },
}
