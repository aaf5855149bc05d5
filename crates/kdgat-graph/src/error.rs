//! What can go wrong between frames and batches.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use kdgat_base::files;
use kdgat_can::CanError;

/// Why a store could not be built, opened or read.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}{}", path.display(), advice(source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    /// There is no `store.json`.
    #[error("{} holds no graph store (there is no store.json): build it with `kdgat data build`", path.display())]
    Missing { path: PathBuf },

    /// The manifest cannot be read.
    #[error("{} is damaged ({detail}): delete the folder {} and build it again with `kdgat data build`",
        path.display(), folder_of(path).display())]
    Manifest { path: PathBuf, detail: String },

    /// Written by a program with another format of stores.
    #[error("the store {} has format version {found}, this program reads version {expected}: \
        build it again with `kdgat data build`", path.display())]
    Version { path: PathBuf, found: u64, expected: u64 },

    /// A shard is not what the manifest says.
    #[error("shard {} is damaged ({detail}): delete the folder {} and build it again with `kdgat data build`",
        shard.display(), folder_of(shard).display())]
    Damaged { shard: PathBuf, detail: String },

    /// An index past the last graph.
    #[error("graph {graph} does not exist: {} has {num_graphs} graphs (0 to {})", store.display(), num_graphs.saturating_sub(1))]
    NoSuchGraph { store: PathBuf, graph: u64, num_graphs: u64 },

    /// A parameter that makes no sense.
    #[error("{name} is {value}, but must be {expected}")]
    Parameter { name: &'static str, value: String, expected: &'static str },

    /// A dataset without a file.
    #[error("dataset {name} has no log file: nothing to build")]
    NoFiles { name: String },

    /// A dataset without a single window.
    #[error("dataset {name} gives no graph: a window of {window} frames needs {} frames in one file, \
        and the longest of its files has {longest}; use a smaller --window or longer logs", window + 1)]
    NoGraphs { name: String, longest: u64, window: usize },

    /// Too many rows of a file were rejected.
    #[error("{}: {rejected} of {rows} rows rejected ({:.1} %, at most {:.1} % are allowed): {places}; \
        repair the file, name its format with --format, or allow more with --max-reject-share",
        path.display(), 100.0 * *rejected as f64 / (*rows).max(1) as f64, 100.0 * allowed)]
    Rejected { path: PathBuf, rejected: u64, rows: u64, allowed: f64, places: String },

    /// A log changed between the start and the end of its reading.
    #[error("{} changed while it was read: wait until it is complete and start again", path.display())]
    SourceChanged { path: PathBuf },

    /// Parts that do not make a store.
    #[error("these parts do not make a store: {detail}")]
    Parts { detail: String },

    /// A log could not be read.
    #[error(transparent)]
    Can(#[from] CanError),

    /// A graph that cannot be part of a batch.
    #[error("graph {graph} cannot be put in a batch: {detail}")]
    Graph { graph: u64, detail: String },

    /// Arrays given as an edge list do not fit together.
    #[error("edge list {origin}: {detail}")]
    EdgeList { origin: String, detail: String },

    /// libtorch could not make a tensor.
    #[error("cannot make the tensor {tensor} of a batch: {source}")]
    Tensor { tensor: &'static str, source: tch::TchError },

    /// A thread of the build or the loader panicked.
    #[error("{thread} stopped with a panic: {message}; please report it")]
    Panic { thread: String, message: String },
}

impl StoreError {
    /// Whether what the user gave is to blame (exit code 2) and not the machine or the program (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::Manifest { .. }
            | Self::Version { .. }
            | Self::Damaged { .. }
            | Self::Parameter { .. }
            | Self::NoFiles { .. }
            | Self::NoGraphs { .. }
            | Self::Rejected { .. }
            | Self::SourceChanged { .. }
            | Self::Parts { .. }
            | Self::EdgeList { .. } => true,
            Self::Can(error) => match error {
                CanError::UnreadableFolder { source, .. }
                | CanError::Open { source, .. }
                | CanError::Read { source, .. }
                | CanError::Write { source, .. } => files::is_about_the_path(source),
                _ => true,
            },
            // Names within the folder of stores are not the user's: a folder in place of a file may be gone next time.
            Self::Io { source, .. } => files::is_about_the_path(source) && source.kind() != io::ErrorKind::IsADirectory,
            Self::NoSuchGraph { .. } | Self::Graph { .. } | Self::Tensor { .. } | Self::Panic { .. } => false,
        }
    }

    /// For `map_err`: an input/output error with what was tried on which path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// From what `catch_unwind` or `join` gives.
    pub(crate) fn panic(thread: impl Into<String>, payload: &(dyn std::any::Any + Send)) -> Self {
        let message = payload
            .downcast_ref::<&str>()
            .map(|text| text.to_string())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_string());
        Self::Panic { thread: thread.into(), message }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space, or put the stores elsewhere with --stores-dir"
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            "; check the permissions, or put the stores elsewhere with --stores-dir"
        }
        _ => "",
    }
}
