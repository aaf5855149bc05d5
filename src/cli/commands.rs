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
use super::launch::LaunchArgs;
use super::memory::MemoryCommand;
use super::pipeline::PipelineArgs;
use super::report::ReportArgs;
use super::settings::Settings;
use super::simulate::SimulateArgs;
use super::sweep::SweepArgs;
use super::teachers::CacheArgs;

/// Trains large graph networks on CAN traffic and distils them into small ones, on machines too small to hold both
#[derive(Debug, Parser)]
#[command(name = "kdgat", version, propagate_version = true, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a graph autoencoder on attack-free traffic or on a dataset of graphs (--preset vgae,teacher or vgae,student)
    Autoencoder(Settings),
    /// Train a classifier on all graphs in every epoch (--preset gat,teacher or gat,student)
    #[command(visible_alias = "normal")]
    Classifier(Settings),
    /// Train a classifier on a curriculum of growing difficulty (--preset gat,teacher or gat,student)
    Curriculum(CurriculumArgs),
    /// Train a network on graphs of any kind (--data DIR or NAME.zip; --preset gin,teacher or gin,student)
    Train(Settings),
    /// Pre-train a network on graphs of any kind without their labels (--objective masked or gt-ssl), for `kdgat train --init-from`
    Pretrain(Settings),
    /// Train an agent that fuses a VGAE and a GAT, and compare it with fixed weights and other baselines (--preset dqn,teacher or
    /// dqn,student)
    Fusion(FusionArgs),
    /// Score trained models on the test folders of their dataset, with metrics and confidence intervals
    Evaluate(EvaluateArgs),
    /// Compare the losses and metrics of two runs, epoch by epoch; exit code 1 if they differ
    Compare(CompareArgs),
    /// Write one HTML page with charts and tables of runs, evaluations and sweeps (report.html)
    Report(ReportArgs),
    /// Adapt a model's threshold and score scale to another car, from its attack-free traffic
    Calibrate(CalibrateArgs),
    /// Score a log or a live stream, and print one JSON line per window, or per alarm with --alarms
    Detect(DetectArgs),
    /// Write a trained model as safetensors and JSON (and ONNX), for other programs
    Export(ExportArgs),
    /// Simulate, check, build and describe datasets
    #[command(subcommand)]
    Data(DataCommand),
    /// List, show and verify registered teachers, or cache their outputs before training
    #[command(subcommand)]
    Teachers(TeachersCommand),
    /// Train in several processes on this machine, each with its share of every batch
    Launch(LaunchArgs),
    /// Train teachers, students and their fusion step by step, skipping steps that are done
    Pipeline(PipelineArgs),
    /// Run many trainings described by one file, and collect their results in one table
    Sweep(SweepArgs),
    /// Predict how much memory a training needs, and recommend settings
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Print the merged configuration, with the layer that set each value
    Config(ConfigArgs),
    /// Examine this machine and print what was found: libtorch, GPUs, memory, copy bandwidth; in several processes, their exchange
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// CPU threads that libtorch uses for these measurements (default: one per core)
        #[arg(long, value_name = "COUNT", value_parser = threads())]
        threads: Option<i32>,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell to generate the script for
        shell: Shell,
    },
    /// Print the reference of all commands (docs/commands.md)
    #[command(hide = true)]
    Commands,
}

/// Parses a number of threads, 1 to 4096.
pub(super) fn threads() -> RangedI64ValueParser<i32> {
    RangedI64ValueParser::new().range(1..=4096)
}

#[derive(Args, Debug)]
pub struct CurriculumArgs {
    /// Do not train; score the difficulty of every graph of the dataset and print the scores as CSV
    #[arg(long)]
    pub score_only: bool,
    /// Write these scores to a file instead of standard output
    #[arg(long, value_name = "FILE", requires = "score_only")]
    pub scores: Option<PathBuf>,
    #[command(flatten)]
    pub settings: Settings,
}

#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Write a simulated dataset: traffic of a car with labelled attacks, or one large graph of citations
    Simulate(SimulateArgs),
    /// Build the graph store of a dataset (training does this when needed)
    Build(BuildArgs),
    /// Merge the parts of a store into the store that a single build would have written
    Merge {
        /// Folders written by `kdgat data build --part`, all N of them
        #[arg(value_name = "PART", required = true)]
        parts: Vec<PathBuf>,
        #[command(flatten)]
        settings: Settings,
    },
    /// List the known datasets, with their location and licence
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read all logs of a dataset and report their contents and pitfalls, before anything is built
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
        /// First read the whole graph store and verify its checksums
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
    /// Show the card and configuration of a teacher, with its digests
    Show {
        /// The teacher, as DATASET/MODEL
        #[arg(value_name = "TEACHER")]
        teacher: String,
        #[command(flatten)]
        settings: Settings,
    },
    /// Verify that teachers are undamaged, match their configuration, and give the same outputs twice
    Verify {
        /// Teachers, as DATASET/MODEL (default: all registered teachers)
        #[arg(value_name = "TEACHER")]
        teachers: Vec<String>,
        #[command(flatten)]
        settings: Settings,
    },
    /// Compute and cache a teacher's outputs for a dataset before training
    Cache(CacheArgs),
}

#[derive(Args, Debug)]
pub struct ConfigArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the reference of all fields (docs/configuration.md) instead of the configuration
    #[arg(long, conflicts_with = "json")]
    pub reference: bool,
    #[command(flatten)]
    pub settings: Settings,
}
