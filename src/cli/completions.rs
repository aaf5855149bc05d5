//! `kdgat completions SHELL`.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use super::commands::Cli;
use super::output;

pub fn print(shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kdgat", &mut script);
    output::write(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
