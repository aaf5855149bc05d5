//! `kdgat completions SHELL`: prints a completion script.

use std::process::ExitCode;

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;

use super::{listed, output};

pub fn print(shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    let mut root = shown(&listed::command()).version(env!("CARGO_PKG_VERSION")).propagate_version(true);
    clap_complete::generate(shell, &mut root, "kdgat", &mut script);
    output::write(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// A copy of the command for completion, without hidden subcommands and flags, which `clap_complete` would otherwise offer.
fn shown(command: &Command) -> Command {
    let mut copy = Command::new(command.get_name().to_owned())
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned())
        .groups(command.get_groups().cloned())
        .visible_aliases(command.get_visible_aliases().map(str::to_owned).collect::<Vec<_>>())
        .subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).map(shown));
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    copy
}
