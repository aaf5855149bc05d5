//! `kdgat fusion`: trains an agent that chooses, for each graph, the weight with which two models are fused.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::output;
use super::settings::Settings;
use crate::config::Config;
use crate::evaluate::bootstrap::MOST_RESAMPLES;
use crate::{exit, stage, torch};

/// Arguments of `kdgat fusion`, in addition to the configuration.
#[derive(Args, Debug)]
pub struct FusionArgs {
    /// Bootstrap resamples for the 95 % confidence intervals; 0 computes none. More give steadier intervals and take longer
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=MOST_RESAMPLES))]
    pub resamples: u64,
    #[command(flatten)]
    pub settings: Settings,
}

/// Trains the agent, compares it with the baselines and prints the report.
pub fn run(config: &Config, resamples: u64) -> Result<ExitCode> {
    let outcome = torch::recover(|| stage::fusion(config, resamples))?;
    let Some(report) = outcome.report else { return Ok(ExitCode::from(exit::INTERRUPTED)) };
    let written = outcome.run.join("fusion.{json,csv}");
    output::write(&format!("{}\nwritten: {}\n", report.text(), written.display()))?;
    Ok(ExitCode::SUCCESS)
}
