//! `kdgat fusion`: which weight to fuse two models with, learned graph by graph.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::output;
use super::settings::Settings;
use crate::config::Config;
use crate::evaluate::bootstrap::MOST_RESAMPLES;
use crate::{stage, torch};

/// What `kdgat fusion` takes beside the configuration.
#[derive(Args, Debug)]
pub struct FusionArgs {
    /// Resamples of the 95 % bootstrap intervals; 0 makes none
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=MOST_RESAMPLES))]
    pub resamples: u64,
    #[command(flatten)]
    pub settings: Settings,
}

/// Learns, compares, prints.
pub fn run(config: &Config, resamples: u64) -> Result<ExitCode> {
    let outcome = torch::recover(|| stage::fusion(config, resamples))?;
    let Some(report) = outcome.report else { return Ok(ExitCode::FAILURE) };
    let written = outcome.run.join("fusion.{json,csv}");
    output::write(&format!("{}\nwritten: {}\n", report.text(), written.display()))?;
    Ok(ExitCode::SUCCESS)
}
