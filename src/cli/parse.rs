//! Parsing the command line. clap names similar flags and commands only when they are very similar; here an
//! unknown name is always answered with the nearest one.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use super::commands::Cli;
use crate::config::nearest;

/// The command line, or the error (or help text) to print.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    Cli::try_parse_from(&arguments).map_err(|error| with_nearest(error, &arguments))
}

fn with_nearest(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let command = command_of(arguments);
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(name)) => Some(name.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            if let Some(name) = context(ContextKind::InvalidArg).filter(|name| name.starts_with("--")) {
                let flags: Vec<&str> = command.get_arguments().filter_map(|argument| argument.get_long()).collect();
                let flag = format!("--{}", nearest(&name[2..], flags.into_iter()));
                error.insert(ContextKind::SuggestedArg, ContextValue::String(flag));
            }
        }
        ErrorKind::InvalidSubcommand => {
            if let Some(name) = context(ContextKind::InvalidSubcommand) {
                let commands: Vec<&str> = command.get_subcommands().map(|command| command.get_name()).collect();
                let name = nearest(&name, commands.into_iter()).to_string();
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![name]));
            }
        }
        _ => {}
    }
    error
}

/// The innermost command that the arguments name.
fn command_of(arguments: &[OsString]) -> clap::Command {
    let mut command = Cli::command();
    command.build();
    for argument in arguments.iter().skip(1) {
        match argument.to_str().and_then(|name| command.find_subcommand(name)) {
            Some(inner) => command = inner.clone(),
            None => break,
        }
    }
    command
}
