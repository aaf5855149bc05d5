//! Dispatches a parsed command to the code that runs it.

use std::process::ExitCode;

use anyhow::Result;

use super::commands::{Cli, Command, DataCommand, TeachersCommand};
use super::memory::{self as memory_commands, MemoryCommand};
use super::settings::Settings;
use super::{
    build, calibrate, check, compare, completions, configuration, data, detect, doctor, evaluate, export, fusion,
    launch, pipeline, reference, report, simulate, sweep, teachers, verify,
};
use crate::config::{Config, DeviceChoice, Reader, Stage};
use crate::memory::GpuCap;
use crate::stage;
use crate::train::fit::Ending;
use crate::train::processes;
use crate::{exit, interrupt, memory, torch};

/// Runs one command.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Config(args) => configuration::print(&args),
        Command::Completions { shell } => completions::print(shell),
        Command::Commands => reference::print(),

        Command::Autoencoder(settings) => train(Stage::Autoencoder, &settings),
        Command::Classifier(settings) => train(Stage::Classifier, &settings),
        Command::Curriculum(args) if args.score_only => {
            let loaded = args.settings.load_reading(Reader::Score)?;
            start(&loaded.config)?;
            stage::score_only(&loaded.config, args.scores.as_deref())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Curriculum(args) => train(Stage::Curriculum, &args.settings),
        Command::Train(settings) => train(Stage::Train, &settings),
        Command::Pretrain(settings) => train(Stage::Pretrain, &settings),
        Command::Fusion(args) => {
            let loaded = args.settings.load_for_fusion()?;
            start(&loaded.config)?;
            fusion::run(&loaded.config, args.resamples)
        }
        Command::Evaluate(args) => {
            start_devices(None);
            evaluate::run(args)
        }
        Command::Memory(command) => {
            // A plan uses the free memory of the GPU.
            if matches!(command, MemoryCommand::Plan(_)) {
                start_devices(None);
            }
            memory_commands::run(command)
        }
        Command::Launch(args) => launch::run(&args),
        Command::Pipeline(args) => pipeline::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Report(args) => report::run(args),
        Command::Export(args) => {
            start_devices(None);
            export::run(args)
        }
        Command::Calibrate(args) => calibrate::run(args),
        Command::Detect(args) => detect::run(args),
        Command::Data(DataCommand::Simulate(args)) => simulate::run(&args),
        Command::Data(DataCommand::Build(args)) => build::run(&args),
        Command::Data(DataCommand::Merge { parts, settings }) => {
            data::merge(&settings.load_reading(Reader::Merge)?.config, &parts)
        }
        Command::Data(DataCommand::List { json }) => data::list(json),
        Command::Data(DataCommand::Check { settings, json }) => {
            check::run(&settings.load_reading(Reader::Check)?.config, json)
        }
        Command::Data(DataCommand::Info { settings, json, verify }) => {
            let config = settings.load_reading(Reader::Info)?.config;
            if verify {
                verify::store(&config)?;
            }
            data::info(&config, json)
        }
        Command::Teachers(TeachersCommand::List(settings)) => {
            teachers::list(&settings.load_reading(Reader::Teachers)?.config)
        }
        Command::Teachers(TeachersCommand::Show { settings, teacher }) => {
            teachers::show(&settings.load_reading(Reader::Teachers)?.config, &teacher)
        }
        Command::Teachers(TeachersCommand::Verify { settings, teachers }) => {
            teachers::verify(&settings.load_reading(Reader::Teachers)?.config, &teachers)
        }
        Command::Teachers(TeachersCommand::Cache(args)) => {
            let config = teachers::cache_config(&args)?;
            start(&config)?;
            teachers::cache(&config, &args)
        }
        Command::Doctor { json, threads } => doctor::print(json, threads),
    }
}

/// Runs a training stage.
fn train(stage: Stage, settings: &Settings) -> Result<ExitCode> {
    let loaded = settings.load_for(stage)?;
    start(&loaded.config)?;
    let outcome = torch::recover(|| stage::run_stage(stage, &loaded.config));
    let outcome = outcome.inspect_err(|error| processes::leave(&error.to_string()))?;
    // A run that ended by a signal can be resumed, which its exit code says.
    Ok(if outcome.ending == Ending::Interrupted { ExitCode::from(exit::INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Prepares a training command before anything touches torch: signal handler, GPU allocator.
fn start(config: &Config) -> Result<()> {
    interrupt::listen()?;
    start_devices(gpu_cap(config));
    Ok(())
}

/// The configured limit for the GPU's allocator, if any.
fn gpu_cap(config: &Config) -> Option<GpuCap> {
    let device = match config.training.device {
        DeviceChoice::Cpu => return None,
        DeviceChoice::Auto => 0,
        DeviceChoice::Cuda(index) => index,
    };
    Some(GpuCap { device, bytes: config.memory.gpu_memory_limit?.0 })
}

/// Loads CUDA if it is installed, and prints warnings about it.
fn start_devices(cap: Option<GpuCap>) {
    let devices = memory::start_devices(cap);
    // A libtorch for CUDA may run without a GPU.
    if !devices.settings.is_empty() && torch::device::cuda_device_count().is_ok_and(|count| count > 0) {
        eprintln!("GPU allocator: {}", devices.settings);
    }
    for warning in devices.warnings {
        eprintln!("warning: {warning}");
    }
}
