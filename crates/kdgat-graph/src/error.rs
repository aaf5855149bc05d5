//! Errors of stores, graphs and batches.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use kdgat_base::files;
use kdgat_can::CanError;

/// An error of building, opening or reading a store, or of making batches.
#[derive(Debug, Error)]
pub enum StoreError {
    /// An input/output operation failed.
    #[error("cannot {action} {}: {source}{}", path.display(), advice(source))]
    Io {
        /// The attempted action, as in "cannot {action} PATH".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },

    /// The folder has no `store.json`.
    #[error("{} holds no graph store (there is no store.json): build it with `kdgat data build`", path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
    },

    /// The manifest is damaged.
    #[error("{} is damaged ({detail}): delete the folder {} and build it again with `kdgat data build`",
        path.display(), folder_of(path).display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Description of the damage.
        detail: String,
    },

    /// The store was written in another format version.
    #[error("the store {} has format version {found}, this program reads version {expected}: \
        build it again with `kdgat data build`", path.display())]
    Version {
        /// The store's folder.
        path: PathBuf,
        /// Format version of the store.
        found: u64,
        /// Format version that this program reads.
        expected: u64,
    },

    /// A dataset of graphs cannot be read.
    #[error(transparent)]
    Dataset(#[from] crate::dataset::DatasetError),

    /// Graphs of the profile set without a profile.
    #[error("the graphs hold frames, and no profile of the car is given to compute their features with")]
    NoProfile,

    /// A graph without positions of its nodes, for a network in space.
    #[error(
        "graph {graph} has no positions of its nodes, which a network in space reads: they are the columns pos_x, pos_y and pos_z of \
        nodes.csv, or come with XYZ files and with npz files of molecules"
    )]
    NoPositions {
        /// Index of the graph.
        graph: u64,
    },

    /// Pairs of near nodes, or listed paths, cannot be made into a batch.
    #[error("graph {graph} has {found}, expected {expected}")]
    Pairs {
        /// Index of the graph.
        graph: u64,
        /// The problem.
        found: String,
        /// The remedy.
        expected: &'static str,
    },

    /// A shard does not match the manifest.
    #[error("shard {} is damaged ({detail}): delete the folder {} and build it again with `kdgat data build`",
        shard.display(), folder_of(shard).display())]
    Damaged {
        /// The shard.
        shard: PathBuf,
        /// Description of the damage.
        detail: String,
    },

    /// A graph index is past the last graph.
    #[error("graph {graph} does not exist: {} has {num_graphs} graphs (0 to {})", store.display(), num_graphs.saturating_sub(1))]
    NoSuchGraph {
        /// The store's folder.
        store: PathBuf,
        /// The requested index.
        graph: u64,
        /// Number of graphs in the store.
        num_graphs: u64,
    },

    /// A parameter has an invalid value.
    #[error("{name} is {value}, but must be {expected}")]
    Parameter {
        /// Name of the parameter.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },

    /// The training logs do not allow the configured division into training and validation.
    #[error("dataset {name} cannot be divided by --validation {rule}: {reason}; use --validation blocks")]
    Division {
        /// Name of the dataset.
        name: String,
        /// Name of the rule.
        rule: &'static str,
        /// Logs or kinds of attack that it needs, and those found.
        reason: String,
    },

    /// The dataset has no log.
    #[error("dataset {name} has no log file: nothing to build")]
    NoFiles {
        /// Name of the dataset.
        name: String,
    },

    /// The dataset has not a single window.
    #[error("dataset {name} gives no graph: a window of {window} frames needs {} frames in one file, \
        and the longest of its files has {longest}; use a smaller --window or longer logs", window + 1)]
    NoGraphs {
        /// Name of the dataset.
        name: String,
        /// Frames of its longest log.
        longest: u64,
        /// Window size in frames.
        window: usize,
    },

    /// A log changed while it was read.
    #[error("{} changed while it was read: wait until it is complete and start again", path.display())]
    SourceChanged {
        /// The log.
        path: PathBuf,
    },

    /// Parts of a store do not belong together, or one is missing.
    #[error("these parts do not make a store: {detail}")]
    Parts {
        /// Description of the problem.
        detail: String,
    },

    /// A log could not be read.
    #[error(transparent)]
    Can(#[from] CanError),

    /// A graph cannot be used in a batch.
    #[error("graph {graph} cannot be put in a batch: {detail}")]
    Graph {
        /// Index of the graph.
        graph: u64,
        /// Description of the problem.
        detail: String,
    },

    /// The arrays of an edge list are inconsistent, or its file cannot be read or written.
    #[error("edge list {origin}: {detail}")]
    EdgeList {
        /// The file, or "in memory".
        origin: String,
        /// Description of the problem.
        detail: String,
    },

    /// libtorch could not create a tensor.
    #[error("cannot create the tensor {tensor} of a batch: {source}")]
    Tensor {
        /// Name of the tensor.
        tensor: &'static str,
        /// Error of libtorch.
        source: tch::TchError,
    },

    /// A thread of the build or the loader panicked.
    #[error("{thread} stopped with a panic: {message}; please report it")]
    Panic {
        /// Name of the thread.
        thread: String,
        /// Message of the panic.
        message: String,
    },
}

impl StoreError {
    /// True if the user's input is to blame (exit code 2), false for the machine or the program (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::Manifest { .. }
            | Self::Version { .. }
            | Self::Damaged { .. }
            | Self::Parameter { .. }
            | Self::Division { .. }
            | Self::NoFiles { .. }
            | Self::NoGraphs { .. }
            | Self::SourceChanged { .. }
            | Self::Parts { .. }
            | Self::NoPositions { .. }
            | Self::Pairs { .. }
            | Self::EdgeList { .. } => true,
            Self::Dataset(error) => match error {
                crate::dataset::DatasetError::Io { source, .. } => files::is_about_the_path(source),
                _ => true,
            },
            Self::Can(error) => match error {
                CanError::UnreadableFolder { source, .. }
                | CanError::Open { source, .. }
                | CanError::Read { source, .. }
                | CanError::Write { source, .. } => files::is_about_the_path(source),
                _ => true,
            },
            // The user does not choose names within the folder of stores: a folder in place of a file may be gone next time.
            Self::Io { source, .. } => files::is_about_the_path(source) && source.kind() != io::ErrorKind::IsADirectory,
            Self::NoSuchGraph { .. }
            | Self::NoProfile
            | Self::Graph { .. }
            | Self::Tensor { .. }
            | Self::Panic { .. } => false,
        }
    }

    /// Returns a closure for `map_err` that makes an I/O error with `action` and `path`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// Converts the payload of a panic from `catch_unwind` or `join`.
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
