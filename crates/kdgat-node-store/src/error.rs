//! Errors of storing and sampling one large graph.

use std::io;
use std::path::{Path, PathBuf};

use kdgat_base::files;
use thiserror::Error;

/// An error of the store of one large graph. Each names the file, and what is wrong with it.
#[derive(Debug, Error)]
pub enum NodeStoreError {
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action, as in "cannot {action} PATH".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },

    /// A store is damaged.
    #[error("{} is damaged ({detail}): delete it; it is built again from its source", path.display())]
    Damaged {
        /// The store.
        path: PathBuf,
        /// Description of the damage.
        detail: String,
    },

    /// A store was written in another format version.
    #[error(
        "{} has format version {found}, this program reads version {expected}: build it again with `kdgat data build` from its source, or generate \
         it again with `kdgat data simulate`",
        path.display()
    )]
    Version {
        /// The store.
        path: PathBuf,
        /// Format version of the store.
        found: u32,
        /// Format version that this program reads.
        expected: u32,
    },

    /// Options do not fit the graph.
    #[error("{0}")]
    Options(String),
}

impl NodeStoreError {
    /// An error of the operating system at `path`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// True if the user's files or settings caused it (exit code 2).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Io { source, .. } => files::is_about_the_path(source),
            Self::Damaged { .. } | Self::Version { .. } | Self::Options(_) => true,
        }
    }
}
