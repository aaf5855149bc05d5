//! What can be wrong with a cache of targets.

use std::path::PathBuf;

use kdgat_base::files;
use tch::TchError;

use crate::targets::TargetName;

/// Why a cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The file could not be opened, read or written.
    #[error("cannot {action} the cache of targets {}{}", path.display(), advice(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The file is a cache of something else.
    #[error(
        "the cache of targets {} belongs to something else: {}; delete the file to have targets computed anew, or name \
         another place for the cache",
        path.display(),
        describe(differences)
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs: name, found, needed.
        differences: Vec<(&'static str, String, String)>,
    },
    /// The file is damaged.
    #[error("the cache of targets {} is damaged: {what}; delete the file to have targets computed anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A graph that the store does not have.
    #[error("graph {graph} is not in the store that the cache of targets was opened for, which has {graphs} graphs")]
    UnknownGraph {
        /// Its number.
        graph: u64,
        /// Graphs of the store.
        graphs: u64,
    },
    /// A batch of graphs of another store.
    #[error(
        "a batch's targets have {found} rows, its graphs should give {expected} by the store's node counts; batches and \
         cache are of different stores"
    )]
    OtherGraphs {
        /// Rows that came.
        found: i64,
        /// Rows that the store's node counts give.
        expected: i64,
    },
    /// A value beyond the range of half precision.
    #[error("the teacher's {name} has values up to {largest}, which half precision cannot hold; cache in f32 instead")]
    NotRepresentable {
        /// Which target.
        name: TargetName,
        /// The largest value.
        largest: f64,
    },
    /// libtorch failed, for instance for want of memory.
    #[error("cannot convert the teacher's targets")]
    Torch(#[from] TchError),
}

/// The cause of an error, in brackets.
pub(super) fn reason(error: &CacheError) -> String {
    std::error::Error::source(error).map(|source| format!(" ({source})")).unwrap_or_default()
}

fn advice(error: &std::io::Error) -> &'static str {
    match files::is_about_the_path(error) {
        true => "; name another folder with --teacher-cache-dir",
        false => "",
    }
}

fn describe(differences: &[(&'static str, String, String)]) -> String {
    let short = |text: &str| match text.char_indices().nth(60) {
        Some((end, _)) if text.len() > 64 => format!("{}…", &text[..end]),
        _ => text.to_string(),
    };
    let one = |(name, found, needed): &(&str, String, String)| {
        format!("{name} (cache: {}, needed: {})", short(found), short(needed))
    };
    differences.iter().map(one).collect::<Vec<_>>().join(", ")
}
