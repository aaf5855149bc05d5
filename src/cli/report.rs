//! `kdgat report`: a page with the results of runs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::output;
use crate::report::{self, ReportOptions};

/// Arguments of `kdgat report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Folders of runs, evaluations or sweeps, or folders that contain such folders (runs/sim)
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// File to write (default: report.html in the folder, or in the common parent of several folders)
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write each figure as an SVG file to this folder, and as a PNG file in a program built with `--features png`
    #[arg(long, value_name = "FOLDER")]
    pub figures: Option<PathBuf>,
}

/// Says what PNG files need that is not there.
fn missing_for_png() -> &'static str {
    if report::RENDERS_PNG {
        "the system has no font for the text in them; install one, such as fonts-dejavu-core"
    } else {
        "this program was built without them; build it with `cargo build --release --features png`"
    }
}

/// Reads the folders and writes the page.
pub fn run(args: ReportArgs) -> Result<ExitCode> {
    let options = ReportOptions { paths: args.paths, output: args.output, figures: args.figures, pairs: Vec::new() };
    let written = report::write(&options)?;
    let mut text = format!("written: {} ({} charts)\n", written.page.display(), written.figures);
    if let Some(folder) = &options.figures {
        text +=
            &format!("written: {} SVG and {} PNG files in {}\n", written.vectors, written.pictures, folder.display());
        if written.pictures == 0 && written.vectors > 0 {
            eprintln!("no PNG files: {}", missing_for_png());
        }
    }
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}
