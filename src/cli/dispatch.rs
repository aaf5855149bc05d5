//! From a parsed command to the code that does it.

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::commands::{Cli, Command, DataCommand, TeachersCommand};
use super::{completions, configuration};
use crate::config::Stage;

/// Carries out one command.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Config(args) => configuration::print(&args),
        Command::Completions { shell } => completions::print(shell),

        // The arms below load and check the configuration; the call that each comment names is still to be wired.
        Command::Autoencoder(settings) => {
            let _loaded = settings.load_for(Stage::Autoencoder)?;
            unfinished("autoencoder") // crate::stage::autoencoder(&loaded)
        }
        Command::Normal(settings) => {
            let _loaded = settings.load_for(Stage::Normal)?;
            unfinished("normal") // crate::stage::normal(&loaded)
        }
        Command::Curriculum(settings) => {
            let _loaded = settings.load_for(Stage::Curriculum)?;
            unfinished("curriculum") // crate::stage::curriculum(&loaded)
        }
        Command::Evaluate(args) => {
            let _loaded = args.settings.load()?;
            unfinished("evaluate") // crate::stage::evaluate(&loaded, &args.runs)
        }
        Command::Data(DataCommand::Simulate { settings, .. }) => {
            let _loaded = settings.load()?;
            unfinished("data simulate") // crate::can::simulate(&SimulationOptions { seed: .. }, &folder)
        }
        Command::Data(DataCommand::Build(settings)) => {
            let _loaded = settings.load()?;
            unfinished("data build") // crate::graph::open_or_build(..)
        }
        Command::Data(DataCommand::Info { settings, .. }) => {
            let _loaded = settings.load()?;
            unfinished("data info") // crate::stage::data_info(&loaded, json)
        }
        Command::Teachers(TeachersCommand::List(settings)) => {
            let _loaded = settings.load()?;
            unfinished("teachers list") // crate::distill::registry
        }
        Command::Teachers(TeachersCommand::Show { settings, .. }) => {
            let _loaded = settings.load()?;
            unfinished("teachers show") // crate::distill::registry
        }
        Command::Teachers(TeachersCommand::Verify { settings, .. }) => {
            let _loaded = settings.load()?;
            unfinished("teachers verify") // crate::distill::registry
        }
        Command::Teachers(TeachersCommand::Cache(settings)) => {
            let _loaded = settings.load()?;
            unfinished("teachers cache") // crate::distill::cache
        }
        Command::Doctor => unfinished("doctor"), // crate::torch::doctor()
    }
}

fn unfinished(command: &str) -> Result<ExitCode> {
    bail!("`kdgat {command}` is not part of this build")
}
