//! Reports to look at: `kdgat report` makes one page of the files that runs, evaluations and sweeps leave.
//!
//! [`files`] reads them, [`figures`] makes a [`chart`] of each kind of them, [`page`] puts all into one file. A figure whose
//! data is not there is replaced by a sentence that says why.

pub mod chart;
mod error;
pub mod figures;
pub mod files;
pub mod html;
mod outline;
pub mod page;
mod picture;
pub mod table;

use std::path::{Path, PathBuf};

pub use error::ReportError;
use page::Page;

/// Name of the page.
pub const PAGE: &str = "report.html";

/// What a report is asked for.
#[derive(Debug, Clone, Default)]
pub struct ReportOptions {
    /// Runs, folders of runs, evaluations, sweeps.
    pub paths: Vec<PathBuf>,
    /// The page; without, [`PAGE`] in the folder that all paths have in common.
    pub output: Option<PathBuf>,
    /// Where each figure is written as a file.
    pub figures: Option<PathBuf>,
    /// Settings of sweeps to compare, in pairs.
    pub pairs: Vec<(String, String)>,
}

/// What was written.
#[derive(Debug, Clone)]
pub struct Written {
    pub page: PathBuf,
    pub figures: usize,
    /// Figures as files: SVG, and PNG.
    pub vectors: usize,
    pub pictures: usize,
}

/// Makes a report.
///
/// # Errors
/// A path at which there is nothing to report on, a damaged file, or a folder that cannot be written.
pub fn write(options: &ReportOptions) -> Result<Written, ReportError> {
    let output = options.output.clone().unwrap_or_else(|| common_folder(&options.paths).join(PAGE));
    let folder = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = files::find(&options.paths)?;
    let page: Page = outline::page(&found, folder, &options.pairs)?;
    let (vectors, pictures) = match &options.figures {
        Some(folder) => picture::write(page.figures(), folder)?,
        None => (0, 0),
    };
    crate::files::write_atomically(&output, page.html().as_bytes()).map_err(ReportError::file(&output, "write"))?;
    Ok(Written { figures: page.figures().count(), page: output, vectors, pictures })
}

/// The deepest folder that holds all paths.
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
