//! `docs/commands.md`, generated from the types that parse the command line.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::builder::PossibleValue;
use clap::{Arg, Command};

use super::{listed, output};
use crate::config::{SECTIONS, Section};

const OPENING: &str = "\
# Commands

<!-- Made by `kdgat commands`; a test compares the two. -->

`kdgat COMMAND -h` shows the common flags of a command, `--help` shows all of them, and `kdgat --version` prints the version.

Commands that read the configuration have a flag for each field that they read (`max_epochs` is `--max-epochs`). This page lists the
fields of each command; [configuration.md](configuration.md) explains them. Flags of other fields are refused. These commands also have
`--preset NAME,..`, presets merged left to right (a model, a size, then overlays: `vgae,student,quick`), and `--config FILE`, a TOML file,
or the `config.json` of a run to repeat that run.
`kdgat completions bash` (or `zsh`, `fish`, ...) prints a script that completes all flags in a shell.

Results go to standard output, progress and warnings to standard error. The exit code says how a command ended:

| exit code | meaning |
|--:|---|
| 0 | success |
| 1 | a failure: a full disk, a bug, a failed task of a sweep; or a difference found by `kdgat compare` |
| 2 | wrong usage or input: arguments, paths that cannot be read or written, damaged files. The same command fails in the same way |
| 3 | a log with alarms (`kdgat detect --alarms`) |
| 75 | interrupted by Ctrl-C or SIGTERM, with everything saved. The same command continues; for a training add `--resume` |
| 76 | out of memory: a memory limit was reached or is too small for the plan, or the system or a GPU had no more. Give it more, or see `kdgat memory plan` for settings that need less |
| 130 | ended at once by a second Ctrl-C, with what was saved last |

The jobs of a sweep end with the same codes: 75 is what sysexits.h calls a temporary failure, which job scripts and service managers can
restart; 76 is its neighbour, to be restarted with more memory. A signal ends commands that have nothing to save (`evaluate`, `export`,
`report`, ...), which a shell shows as 130, or 143 for SIGTERM. `calibrate` and `detect` finish with the frames they have read, with 0. If the
system kills a process for memory, a shell shows 137, and so does `kdgat launch` for one of its processes.
";

/// Runs `kdgat commands`: prints the reference.
pub fn print() -> Result<ExitCode> {
    output::write(&reference())?;
    Ok(ExitCode::SUCCESS)
}

/// The reference of all commands, in Markdown.
pub fn reference() -> String {
    let mut root = listed::command();
    root.build();
    let mut text = OPENING.to_string();
    for command in shown(&root) {
        section(&mut text, command, "kdgat", 2);
    }
    text
}

/// The visible subcommands of a command, except `help`.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
}

fn section(text: &mut String, command: &Command, parent: &str, level: usize) {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, "\n{} {name}\n\n{}.\n\n", "#".repeat(level), escaped(&about));
    for usage in command.clone().render_usage().to_string().trim_start_matches("Usage:").lines() {
        let _ = writeln!(text, "    {}", usage.trim());
    }
    for alias in command.get_visible_aliases() {
        let _ = write!(text, "\n`{parent} {alias}` is the same command.\n");
    }

    let reads_configuration = command.get_arguments().any(is_field);
    let is_own = |argument: &&Arg| {
        let id = argument.get_id().as_str();
        let everywhere =
            ["help", "version"].contains(&id) || (reads_configuration && ["preset", "config"].contains(&id));
        !argument.is_hide_set() && !everywhere && !is_field(argument)
    };
    let rows: Vec<String> = command.get_arguments().filter(is_own).map(row).collect();
    if !rows.is_empty() {
        let _ = write!(text, "\n| argument | |\n|---|---|\n{}", rows.concat());
    }
    if reads_configuration {
        let _ = write!(text, "\nReads from the [configuration](configuration.md): {}.\n", fields_of(command));
    }
    for inner in shown(command) {
        section(text, inner, &name, level + 1);
    }
}

/// The fields in a command's help: names of sections that it lists completely, then single fields.
fn fields_of(command: &Command) -> String {
    let listed: Vec<&str> = command
        .get_arguments()
        .filter(|argument| is_field(argument) && !argument.is_hide_set())
        .map(|argument| argument.get_id().as_str())
        .collect();
    let lists = |name: &str| listed.contains(&name);
    let (whole, others): (Vec<&Section>, Vec<&Section>) =
        SECTIONS.iter().partition(|section| section.fields.iter().all(|field| lists(field.name)));
    let sections: Vec<String> = whole.iter().map(|section| format!("`[{}]`", section.name)).collect();
    let fields = others.iter().flat_map(|section| section.fields).filter(|field| lists(field.name));
    let fields: Vec<String> = fields.map(|field| format!("`{}`", field.name)).collect();
    match (sections.is_empty(), fields.is_empty()) {
        (true, _) => fields.join(", "),
        (false, true) => format!("all of {}", sections.join(", ")),
        (false, false) => format!("all of {}; {}", sections.join(", "), fields.join(", ")),
    }
}

/// True if an argument is a field of the configuration; only these have a heading in the help.
fn is_field(argument: &Arg) -> bool {
    argument.get_help_heading().is_some()
}

fn row(argument: &Arg) -> String {
    let values: Vec<String> = match argument.get_value_names() {
        Some(names) if argument.get_action().takes_values() => names.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    let shown = match argument.get_long() {
        Some(flag) => [vec![format!("--{flag}")], values].concat().join(" "),
        None => values.join(" "),
    };
    let mut help = escaped(&argument.get_help().map(ToString::to_string).unwrap_or_default());
    let defaults: Vec<String> = argument.get_default_values().iter().map(|value| value.display().to_string()).collect();
    if !defaults.is_empty() && argument.get_action().takes_values() {
        let _ = write!(help, " (default: `{}`)", defaults.join(" "));
    }
    let mut choices = argument.get_possible_values();
    choices.retain(|choice| !choice.is_hide_set());
    if !choices.is_empty() && argument.get_action().takes_values() {
        let explained = |choice: &PossibleValue| match choice.get_help() {
            Some(help) => format!("<br>`{}`: {}", choice.get_name(), escaped(&help.to_string())),
            None => format!("<br>`{}`", choice.get_name()),
        };
        help.extend(choices.iter().map(explained));
    }
    format!("| `{}` | {help} |\n", shown.replace('|', "\\|"))
}

/// Escapes a plain help text for Markdown.
fn escaped(text: &str) -> String {
    text.trim_end_matches('.').replace('*', "\\*").replace('|', "\\|").replace('<', "&lt;")
}
