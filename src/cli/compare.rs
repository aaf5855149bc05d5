//! `kdgat compare`: two runs side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::output;
use crate::stage::{self, CompareOptions};

/// Arguments of `kdgat compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// The first run: its folder or its metrics.csv
    #[arg(value_name = "RUN")]
    pub first: PathBuf,
    /// The second run
    #[arg(value_name = "RUN")]
    pub second: PathBuf,
    /// Columns of metrics.csv to compare, separated by commas (default: all columns that both have, except times and memory)
    #[arg(long = "metric", value_name = "NAME", value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// Largest relative difference that counts as equal. Raise it to compare runs with other threads or on other machines
    #[arg(long, value_name = "DIFFERENCE", default_value_t = 1e-6, allow_negative_numbers = true)]
    pub tolerance: f64,
}

/// Compares the runs and prints the result; exit code 1 if a difference exceeds the tolerance.
pub fn run(args: CompareArgs) -> Result<ExitCode> {
    let options = CompareOptions { metrics: args.metrics, tolerance: args.tolerance };
    let comparison = stage::compare([&args.first, &args.second], &options)?;
    output::write(&comparison.text())?;
    Ok(if comparison.is_equal() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
