//! Errors of the target cache.

use std::path::PathBuf;

use kdgat_base::files;
use tch::TchError;

use crate::targets::TargetName;

/// An error of a target cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The file could not be opened, read or written.
    #[error("cannot {action} the cache of targets {}{}", path.display(), advice(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action, a verb.
        action: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The file caches the targets of something else.
    #[error(
        "the cache of targets {} was made for something else: {}; delete the file to compute the targets again, or name \
         another folder with --teacher-cache-dir",
        path.display(),
        describe(differences)
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The differences: name, found, needed.
        differences: Vec<(&'static str, String, String)>,
    },
    /// The file is damaged.
    #[error("the cache of targets {} is damaged: {what}; delete the file to compute the targets again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// A graph that is not in the store.
    #[error("graph {graph} is not in the store that the cache of targets was opened for, which has {graphs} graphs")]
    UnknownGraph {
        /// Its number.
        graph: u64,
        /// Graphs of the store.
        graphs: u64,
    },
    /// A batch with graphs from another store.
    #[error(
        "a batch's targets have {found} rows, expected {expected} from the store's node counts; the batches and the cache \
         belong to different stores"
    )]
    OtherGraphs {
        /// Rows found.
        found: i64,
        /// Rows expected from the store's node counts.
        expected: i64,
    },
    /// A value beyond the range of half precision.
    #[error("the teacher's {name} has values up to {largest}, which half precision cannot hold; cache in f32 instead")]
    NotRepresentable {
        /// The target.
        name: TargetName,
        /// The largest value.
        largest: f64,
    },
    /// libtorch failed, for example out of memory.
    #[error("cannot convert the teacher's targets")]
    Torch(#[from] TchError),
}

/// The source of an error, in parentheses; empty if there is none.
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
