//! HTML reports: `kdgat report` builds one page from the files of runs, evaluations and sweeps.
//!
//! [`write()`] is the whole interface. Module `files` reads the files, `figures` draws a chart from each kind, `page` writes a single
//! HTML file. A figure without data is replaced by a sentence that says why.

#![warn(missing_docs)]

mod chart;
mod error;
mod figures;
mod files;
mod html;
mod outline;
mod page;
mod picture;
mod table;

use std::path::{Path, PathBuf};

pub use error::ReportError;
use page::Page;

/// Default file name of the page.
pub const PAGE: &str = "report.html";

/// Options of a report.
#[derive(Debug, Clone, Default)]
pub struct ReportOptions {
    /// Paths of runs, folders of runs, evaluations or sweeps.
    pub paths: Vec<PathBuf>,
    /// Path of the page; if `None`, [`PAGE`] in the deepest folder that holds all paths.
    pub output: Option<PathBuf>,
    /// Folder to also write each figure to, as a file.
    pub figures: Option<PathBuf>,
    /// Pairs of sweep settings to compare (`AXIS=VALUE`).
    pub pairs: Vec<(String, String)>,
}

/// Files that were written.
#[derive(Debug, Clone)]
pub struct Written {
    /// Path of the page.
    pub page: PathBuf,
    /// Number of figures in the page.
    pub figures: usize,
    /// Number of SVG files.
    pub vectors: usize,
    /// Number of PNG files.
    pub pictures: usize,
}

/// True if the program renders PNG files: it is built with the feature `png`.
pub const RENDERS_PNG: bool = cfg!(feature = "png");

/// Writes a report.
///
/// # Errors
/// If a path has nothing to report on, a file is damaged, or a folder cannot be written.
pub fn write(options: &ReportOptions) -> Result<Written, ReportError> {
    let output = options.output.clone().unwrap_or_else(|| common_folder(&options.paths).join(PAGE));
    let folder = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = files::find(&options.paths)?;
    let page: Page = outline::page(&found, folder, &options.pairs)?;
    let (vectors, pictures) = match &options.figures {
        Some(folder) => picture::write(page.figures(), folder)?,
        None => (0, 0),
    };
    kdgat_base::files::write_atomically(&output, page.html().as_bytes())
        .map_err(ReportError::file(&output, "write"))?;
    Ok(Written { figures: page.figures().count(), page: output, vectors, pictures })
}

/// Returns the deepest folder that holds all paths.
fn common_folder(paths: &[PathBuf]) -> PathBuf {
    let folder = |path: &PathBuf| match path.is_file() {
        true => path.parent().map(Path::to_owned).unwrap_or_default(),
        false => path.clone(),
    };
    match paths {
        [] => PathBuf::from("."),
        [one] => folder(one),
        several => {
            let absolute = |path: &PathBuf| folder(path).canonicalize().unwrap_or_else(|_| folder(path));
            let all: Vec<PathBuf> = several.iter().map(absolute).collect();
            let holds_all = |candidate: &&Path| all.iter().all(|path| path.starts_with(candidate));
            all[0].ancestors().find(holds_all).map_or_else(|| PathBuf::from("."), Path::to_owned)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_runs_are_reported_on_in_the_folder_above() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let runs = ["a/1", "a/2", "b/1"].map(|name| root.join(name));
        runs.iter().for_each(|run| std::fs::create_dir_all(run).unwrap());
        assert_eq!(common_folder(&runs[..1]), runs[0]);
        assert_eq!(common_folder(&runs[..2]), root.join("a"));
        assert_eq!(common_folder(&runs), root);
    }
}
