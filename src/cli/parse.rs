//! Parses the command line. clap suggests only very similar flags and commands; here the message for an unknown name always
//! suggests the nearest one.

use std::ffi::OsString;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::commands::Cli;
use super::listed;
use crate::config::nearest;

/// Command names that users may expect, and the commands that do what they mean.
const EXPECTED: &[(&[&str], &[&str])] = &[
    (&["training", "fit", "learn", "run"], &["train", "autoencoder", "classifier"]),
    (&["distill", "distil", "kd", "student", "teacher"], &["autoencoder", "classifier"]),
    (&["vgae", "vae"], &["autoencoder"]),
    (&["gat", "classify", "classification"], &["classifier"]),
    (&["test", "score", "eval", "benchmark", "metrics"], &["evaluate"]),
    (&["predict", "infer", "inference", "watch"], &["detect"]),
    (&["plot", "charts", "html"], &["report"]),
    (&["simulate", "build"], &["data"]),
];

/// Parses the command line; `Err` is an error or help text to print.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = listed::command().try_get_matches_from(&arguments);
    matches.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| with_nearest(error, &arguments))
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
                // Includes flags that this command refuses: its message names the command that reads them.
                let flags: Vec<&str> = command.get_arguments().filter_map(|argument| argument.get_long()).collect();
                let flag = format!("--{}", nearest(&name[2..], flags.into_iter()));
                error.insert(ContextKind::SuggestedArg, ContextValue::String(flag));
            }
        }
        ErrorKind::InvalidSubcommand => {
            if let Some(name) = context(ContextKind::InvalidSubcommand) {
                let names = suggested(&name, &command);
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
            }
        }
        _ => {}
    }
    error
}

/// The commands that the user probably meant: by the meaning of the name, else by its spelling.
fn suggested(name: &str, command: &clap::Command) -> Vec<String> {
    let known: Vec<&str> =
        command.get_subcommands().flat_map(|command| command.get_name_and_visible_aliases()).collect();
    let expected = EXPECTED.iter().find(|(names, _)| names.contains(&name.to_lowercase().as_str()));
    let meant = expected.map(|(_, commands)| *commands).unwrap_or_default();
    match meant.iter().filter(|command| known.contains(command)).map(|command| (*command).to_owned()).collect() {
        meant if Vec::is_empty(&meant) => vec![nearest(name, known.into_iter()).to_owned()],
        meant => meant,
    }
}

/// The innermost command that the arguments name.
fn command_of(arguments: &[OsString]) -> clap::Command {
    let mut command = listed::command();
    command.build();
    for argument in arguments.iter().skip(1) {
        match argument.to_str().and_then(|name| command.find_subcommand(name)) {
            Some(inner) => command = inner.clone(),
            None => break,
        }
    }
    command
}
