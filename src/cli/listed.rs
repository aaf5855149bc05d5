//! The command line, with help that lists only the fields that each command reads.
//!
//! Every command with a configuration parses the flags of all fields, so that it can refuse the flag of a field that it does not
//! read and give the reason.

use std::collections::HashMap;

use clap::{Command, CommandFactory};

use super::commands::Cli;
use crate::config::{self, Field, Reader, Stage};

/// Commands that read at most this many fields show all of them with `-h`.
const FEW: usize = 25;

/// The fields that a command reads.
enum Listed {
    Training(Stage),
    Reading(&'static [Reader]),
}

/// The commands that read a part of the configuration, and that part. `config` is missing: it reads all fields.
const COMMANDS: &[(&str, Listed)] = &[
    ("autoencoder", Listed::Training(Stage::Autoencoder)),
    ("classifier", Listed::Training(Stage::Classifier)),
    ("curriculum", Listed::Training(Stage::Curriculum)),
    ("train", Listed::Training(Stage::Train)),
    ("pretrain", Listed::Training(Stage::Pretrain)),
    ("fusion", Listed::Training(Stage::Fusion)),
    ("evaluate", Listed::Reading(&[Reader::Evaluate, Reader::EvaluateDivided])),
    ("export", Listed::Reading(&[Reader::Export, Reader::ExportExamples])),
    ("data simulate", Listed::Reading(&[Reader::Simulate, Reader::SimulateDrive, Reader::SimulateCitations])),
    ("data build", Listed::Reading(&[Reader::Build, Reader::BuildNodes])),
    ("data merge", Listed::Reading(&[Reader::Merge])),
    ("data check", Listed::Reading(&[Reader::Check])),
    ("data info", Listed::Reading(&[Reader::Info])),
    ("teachers list", Listed::Reading(&[Reader::Teachers])),
    ("teachers show", Listed::Reading(&[Reader::Teachers])),
    ("teachers verify", Listed::Reading(&[Reader::Teachers])),
    ("teachers cache", Listed::Reading(&[Reader::Cache, Reader::CacheGraphs, Reader::CacheNodes])),
    ("memory plan", Listed::Reading(&[Reader::Plan])),
];

impl Listed {
    fn includes(&self, field: &Field) -> bool {
        match self {
            Self::Training(stage) => config::may_read(*stage, field),
            Self::Reading(all) => all.iter().any(|reader| field.is_read_by(*reader)),
        }
    }
}

/// Builds the command line and hides the fields that a command does not read.
pub fn command() -> Command {
    COMMANDS.iter().fold(Cli::command(), |root, (path, listed)| {
        let words: Vec<&str> = path.split(' ').collect();
        at(root, &words, &|command| show(command, listed))
    })
}

/// Changes the subcommand with this path of names.
fn at(command: Command, words: &[&str], change: &dyn Fn(Command) -> Command) -> Command {
    match words.split_first() {
        None => change(command),
        Some((first, rest)) => command.mut_subcommand(first, |inner| at(inner, rest, change)),
    }
}

fn show(command: Command, listed: &Listed) -> Command {
    let is_read: HashMap<&str, bool> = config::fields().map(|field| (field.name, listed.includes(field))).collect();
    let shows_all = is_read.values().filter(|is_read| **is_read).count() <= FEW;
    command.mut_args(|argument| match is_read.get(argument.get_id().as_str()) {
        Some(is_read) if argument.get_help_heading().is_some() => match is_read {
            true if shows_all => argument.hide_short_help(false),
            true => argument,
            false => argument.hide(true),
        },
        // An argument of the command itself.
        _ => argument,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_with_fields_is_listed() {
        fn walk(command: &Command, path: &str, found: &mut Vec<String>) {
            for inner in command.get_subcommands() {
                let path = format!("{path} {}", inner.get_name()).trim().to_owned();
                if inner.get_arguments().any(|argument| argument.get_id() == "max_reject_share") {
                    found.push(path.clone());
                }
                walk(inner, &path, found);
            }
        }
        let mut found = Vec::new();
        walk(&Cli::command(), "", &mut found);
        // `config` prints all fields.
        found.retain(|path| path != "config");
        found.sort();
        let mut known: Vec<&str> = COMMANDS.iter().map(|(path, _)| *path).collect();
        known.sort_unstable();
        assert_eq!(found, known);
    }
}
