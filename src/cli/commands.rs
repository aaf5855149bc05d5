//! The commands and their arguments.

use std::path::PathBuf;

use clap::builder::RangedI64ValueParser;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use super::build::BuildArgs;
use super::calibrate::CalibrateArgs;
use super::compare::CompareArgs;
use super::detect::DetectArgs;
use super::evaluate::EvaluateArgs;
use super::export::ExportArgs;
use super::fusion::FusionArgs;
use super::memory::MemoryCommand;
use super::pipeline::PipelineArgs;
use super::report::ReportArgs;
use super::settings::Settings;
use super::sweep::SweepArgs;

/// Trains large graph networks on CAN traffic and distils them into small ones, on machines that are too small for both.
#[derive(Debug, Parser)]
#[command(name = "kdgat", version, propagate_version = true, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a graph autoencoder on attack-free traffic (--preset vgae,teacher or vgae,student)
    Autoencoder(Settings),
    /// Train a classifier on all graphs (--preset gat,teacher or gat,student)
    Normal(Settings),
    /// Train a classifier on a curriculum of growing difficulty (--preset gat,teacher or gat,student)
    Curriculum(CurriculumArgs),
    /// Learn to fuse a VGAE and a GAT, and compare with fixed weights and other baselines (--preset dqn,teacher or dqn,student)
    Fusion(FusionArgs),
    /// Score trained models on the test folders of their dataset
    Evaluate(EvaluateArgs),
    /// Compare the losses and metrics of two runs, epoch by epoch; exit code 1 when they differ
    Compare(CompareArgs),
    /// Make one page of charts and tables of runs, evaluations and sweeps (report.html)
    Report(ReportArgs),
    /// Set a model's threshold and score scale from attack-free traffic of another car
    Calibrate(CalibrateArgs),
    /// Score a log or a live stream window by window, a JSON line each
    Detect(DetectArgs),
    /// Write a trained model as safetensors and JSON, for other programs
    Export(ExportArgs),
    /// Simulate, build and describe datasets
    #[command(subcommand)]
    Data(DataCommand),
    /// List, show and check registered teachers, or compute their outputs ahead of time
    #[command(subcommand)]
    Teachers(TeachersCommand),
    /// Train teachers, students and their fusion, one step after the other, skipping what is done
    Pipeline(PipelineArgs),
    /// Run many trainings from one file and put them into one table
    Sweep(SweepArgs),
    /// Predict what a training takes, and what to set for a memory size
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Print the merged configuration and which layer set each value
    Config(ConfigArgs),
    /// Print what was found: libtorch, GPUs, memory, copy bandwidth
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Threads that libtorch computes and copies with meanwhile; without, one for each core
        #[arg(long, value_name = "COUNT", value_parser = threads())]
        threads: Option<i32>,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell to complete in
        shell: Shell,
    },
    /// Print the reference of all commands (docs/commands.md)
    #[command(hide = true)]
    Commands,
}

/// A number of threads.
pub(super) fn threads() -> RangedI64ValueParser<i32> {
    RangedI64ValueParser::new().range(1..=4096)
}

#[derive(Args, Debug)]
pub struct CurriculumArgs {
    /// Train nothing: score the difficulty of every graph of the dataset and print a table (CSV)
    #[arg(long)]
    pub score_only: bool,
    /// Write that table to a file instead of standard output
    #[arg(long, value_name = "FILE", requires = "score_only")]
    pub scores: Option<PathBuf>,
    #[command(flatten)]
    pub settings: Settings,
}

#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Write a simulated dataset: normal traffic and labelled attacks
    Simulate {
        /// The folder to make
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        #[command(flatten)]
        settings: Settings,
    },
    /// Build the graph store of a dataset (stages do so by themselves)
    Build(BuildArgs),
    /// Join the parts of a store into the store that a single build would have made
    Merge {
        /// The folders that `kdgat data build --part` wrote
        #[arg(value_name = "PART", required = true)]
        parts: Vec<PathBuf>,
        #[command(flatten)]
        settings: Settings,
    },
    /// List the known datasets, where they are, and under which terms they may be used
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read all logs of a dataset and report what is in them and what may mislead, before anything is built
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Count files, frames, graphs, attacks, IDs and rejected rows of a dataset
    Info {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Read the whole graph store first and compare it with its checksums
        #[arg(long)]
        verify: bool,
        #[command(flatten)]
        settings: Settings,
    },
}

#[derive(Debug, Subcommand)]
pub enum TeachersCommand {
    /// List the registered teachers
    List(Settings),
    /// Show a teacher's card, configuration and digests
    Show {
        /// The teacher, as DATASET/MODEL
        #[arg(value_name = "TEACHER")]
        teacher: String,
        #[command(flatten)]
        settings: Settings,
    },
    /// Check that teachers are undamaged, fit their configuration, and answer the same twice
    Verify {
        /// Teachers, as DATASET/MODEL; without any, all
        #[arg(value_name = "TEACHER")]
        teachers: Vec<String>,
        #[command(flatten)]
        settings: Settings,
    },
    /// Compute a teacher's outputs for a dataset ahead of the training
    Cache(Settings),
}

#[derive(Args, Debug)]
pub struct ConfigArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the reference of all fields (docs/configuration.md) instead
    #[arg(long, conflicts_with = "json")]
    pub reference: bool,
    #[command(flatten)]
    pub settings: Settings,
}
