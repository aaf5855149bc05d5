//! Errors of reading, storing and sampling one large graph.

use std::io;
use std::path::{Path, PathBuf};

use kdgat_base::files;
use kdgat_node_store::NodeStoreError;
use kdgat_node_store::block::TooManyEdges;
use thiserror::Error;

/// An error of a graph of many nodes. Each names the file and the line, array or node.
#[derive(Debug, Error)]
pub enum NodesError {
    /// A file cannot be read or written, a store is damaged, or options do not fit the graph.
    #[error(transparent)]
    Store(#[from] NodeStoreError),

    /// A file holds something else than its format requires.
    #[error("{}{}: {found}, expected {expected}", path.display(), place)]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, array or row, as in ", line 7", or empty.
        place: String,
        /// The text or value found.
        found: String,
        /// The requirement.
        expected: String,
    },

    /// The disk has too little space for a store and the temporary files of its build.
    #[error(
        "{} has {:.1} GB free, and building the store needs {:.1} GB: free some space, or name another disk",
        path.display(), *free as f64 / 1e9, *needed as f64 / 1e9
    )]
    Space {
        /// The folder of the store.
        path: PathBuf,
        /// Bytes of the store and of its temporary files.
        needed: u64,
        /// Free bytes, and those of an interrupted build, which are used again.
        free: u64,
    },

    /// A signal stopped a build.
    #[error("stopped while building a store; the same command resumes the build")]
    Stopped,

    /// A file in the layout of another library cannot be converted.
    #[error(transparent)]
    Dataset(#[from] kdgat_graph::dataset::DatasetError),

    /// libtorch reported an error.
    #[error(transparent)]
    Torch(#[from] tch::TchError),
}

impl From<TooManyEdges> for NodesError {
    fn from(error: TooManyEdges) -> Self {
        NodeStoreError::from(error).into()
    }
}

impl NodesError {
    /// An error of the operating system at `path`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let error = NodeStoreError::io(action, path);
        move |source| error(source).into()
    }

    /// Options that do not fit the graph.
    pub fn options(text: impl Into<String>) -> Self {
        NodeStoreError::Options(text.into()).into()
    }

    /// A file, or a place in it, that holds something else than required.
    pub fn invalid(
        path: &Path,
        place: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid { path: path.to_owned(), place: place.into(), found: found.into(), expected: expected.into() }
    }

    /// True if the user's files or settings caused it (exit code 2).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Store(error) => error.is_input(),
            Self::Dataset(kdgat_graph::dataset::DatasetError::Io { source, .. }) => files::is_about_the_path(source),
            Self::Torch(_) | Self::Space { .. } | Self::Stopped => false,
            Self::Invalid { .. } | Self::Dataset(_) => true,
        }
    }
}
