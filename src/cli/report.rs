//! `kdgat report`: what runs came to, to look at.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::output;
use crate::report::{self, ReportOptions};

/// What `kdgat report` takes.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Folders of runs, of evaluations, of sweeps, or folders that hold such (runs/sim)
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// The page; without, report.html in the folder, or in the one that all have in common
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write each figure as an SVG and a PNG file, too
    #[arg(long, value_name = "FOLDER")]
    pub figures: Option<PathBuf>,
}

/// Reads, draws, writes.
pub fn run(args: ReportArgs) -> Result<ExitCode> {
    let options = ReportOptions { paths: args.paths, output: args.output, figures: args.figures, pairs: Vec::new() };
    let written = report::write(&options)?;
    let mut text = format!("written: {} ({} charts)\n", written.page.display(), written.figures);
    if let Some(folder) = &options.figures {
        text +=
            &format!("written: {} SVG and {} PNG files in {}\n", written.vectors, written.pictures, folder.display());
        if written.pictures == 0 && written.vectors > 0 {
            eprintln!("no PNG files: the system has no font for their texts; install one, such as fonts-dejavu-core");
        }
    }
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}
