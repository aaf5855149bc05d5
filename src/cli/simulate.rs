//! `kdgat data simulate`: writes a generated dataset.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::output;
use super::settings::Settings;
use super::simulate_drive::{self, DriveArgs};
use crate::can::{SimulationOptions, simulate as simulate_traffic};
use crate::config::{Config, Reader};
use crate::interrupt;
use crate::nodes::CitationOptions;
use crate::nodes::store::EXTENSION;
use crate::stage::{self, StageError};

/// Classes and features of ogbn-papers100M.
const CLASSES: usize = 172;
const COLUMNS: usize = 128;

/// Arguments of `kdgat data simulate`.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// Folder to create; for `--kind drive`, the log to create (NAME.log, NAME.csv, or these with .gz); for `--kind citations`, the store to create (NAME.kdgat-nodes) or the folder for `citations.kdgat-nodes`
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Kind of data
    #[arg(long, value_enum, default_value_t = Kind::Can)]
    pub kind: Kind,
    /// Number of nodes (`--kind citations`)
    #[arg(long, value_name = "N", required_if_eq("kind", "citations"))]
    pub nodes: Option<usize>,
    /// Number of drawn edges (`--kind citations`); the reverse of each is added, self-loops and repetitions are removed
    #[arg(long, value_name = "N", required_if_eq("kind", "citations"))]
    pub edges: Option<u64>,
    /// Number of classes (`--kind citations`) [default: 172]
    #[arg(long, value_name = "N")]
    pub classes: Option<usize>,
    /// Number of features of each node (`--kind citations`) [default: 128]
    #[arg(long, value_name = "N")]
    pub columns: Option<usize>,
    #[command(flatten)]
    pub drive: DriveArgs,
    #[command(flatten)]
    pub settings: Settings,
}

/// Kind of simulated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Logs of a CAN bus with labelled attacks
    Can,
    /// One drive of any length through states of the car: parked, idling, in town, on the motorway
    Drive,
    /// One large graph of papers that cite each other
    Citations,
}

/// Writes the dataset.
pub fn run(args: &SimulateArgs) -> Result<ExitCode> {
    match args.kind {
        Kind::Can => traffic(args),
        Kind::Drive => drive(args),
        Kind::Citations => citations(args),
    }
}

fn traffic(args: &SimulateArgs) -> Result<ExitCode> {
    refuse_citations(args)?;
    refuse_drive(args)?;
    let config = args.settings.load_reading(Reader::Simulate)?.config;
    let options = SimulationOptions { seed: config.training.seed, ..SimulationOptions::default() };
    simulate_traffic(&options, &args.path)?;
    output::write(&format!("simulated traffic with seed {}: {}\n", options.seed, args.path.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn drive(args: &SimulateArgs) -> Result<ExitCode> {
    refuse_citations(args)?;
    let config = args.settings.load_reading(Reader::SimulateDrive)?.config;
    simulate_drive::run(&args.drive, &args.path, config.training.seed)
}

/// Refuses flags of a graph of citations.
fn refuse_citations(args: &SimulateArgs) -> Result<(), StageError> {
    let given = [
        ("--nodes", args.nodes.is_some()),
        ("--edges", args.edges.is_some()),
        ("--classes", args.classes.is_some()),
        ("--columns", args.columns.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((flag, _)) => {
            let text = format!("{flag} is for a graph of citations: add --kind citations or drop it");
            Err(StageError::Input(text))
        }
        None => Ok(()),
    }
}

/// Refuses flags of a drive.
fn refuse_drive(args: &SimulateArgs) -> Result<(), StageError> {
    match args.drive.given() {
        Some(flag) => Err(StageError::Input(format!("{flag} is for one drive: add --kind drive or drop it"))),
        None => Ok(()),
    }
}

fn citations(args: &SimulateArgs) -> Result<ExitCode> {
    refuse_drive(args)?;
    let config: Config = args.settings.load_reading(Reader::SimulateCitations)?.config;
    let options = CitationOptions {
        // clap requires both numbers.
        nodes: args.nodes.unwrap_or(0),
        edges: args.edges.unwrap_or(0),
        classes: args.classes.unwrap_or(CLASSES),
        features: args.columns.unwrap_or(COLUMNS),
        seed: config.training.seed,
        half: config.nodes.half_features,
    };
    interrupt::listen()?;
    let path = store_path(&args.path);
    let graph = stage::simulate_citations(&config, &options, &path)?;
    output::write(&format!(
        "simulated {} nodes and {} edges with seed {}: {}\n",
        graph.num_nodes(),
        graph.num_edges(),
        options.seed,
        path.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The file of a store: in a folder that exists, or with its ending.
fn store_path(path: &Path) -> PathBuf {
    if path.is_dir() {
        return path.join("citations").with_extension(EXTENSION);
    }
    match path.extension().is_some_and(|ending| ending == EXTENSION) {
        true => path.to_owned(),
        false => {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(format!(".{EXTENSION}"));
            path.with_file_name(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_have_their_ending() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(store_path(folder.path()), folder.path().join("citations.kdgat-nodes"));
        for (given, expected) in
            [("a", "a.kdgat-nodes"), ("b/a.v1", "b/a.v1.kdgat-nodes"), ("a.kdgat-nodes", "a.kdgat-nodes")]
        {
            assert_eq!(store_path(Path::new(given)), Path::new(expected));
        }
    }
}
