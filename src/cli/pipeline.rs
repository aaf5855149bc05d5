//! `kdgat pipeline`: trains everything from logs to a fused student, step by step.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::output;
use crate::config::ByteSize;
use crate::report::{self, ReportOptions};
use crate::sweep::pipeline::{self, PipelineOptions};
use crate::sweep::plan::{self, Surroundings};
use crate::sweep::run::{self, Ended, Wish};
use crate::sweep::state::SweepFolder;
use crate::{exit, interrupt, stage};

/// Arguments of `kdgat pipeline`.
#[derive(Args, Debug)]
pub struct PipelineArgs {
    /// The dataset: its folder, or a name from `kdgat data list`, which is looked up in the folder KDGAT_DATA (default: the dataset
    /// in KDGAT_DATA if that is one itself, else the simulated `sim`)
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Presets applied on top of each step's own, such as quick
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub preset: Vec<String>,
    /// Set a field for all steps that train, or for one step with STEP.FIELD=VALUE; separate the elements of a list by commas
    #[arg(long, value_name = "FIELD=VALUE")]
    pub set: Vec<String>,
    /// Print the steps and their state, and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Folder for pipelines; each version of a dataset gets its own subfolder
    #[arg(long, value_name = "FOLDER", default_value = pipeline::FOLDER)]
    pub output: PathBuf,
    /// Steps to run at the same time (default: as many as memory, GPUs and cores allow)
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// CPU threads per step (default: the cores are divided among the steps that run at the same time)
    #[arg(long, value_name = "COUNT", value_parser = super::commands::threads())]
    pub threads: Option<i32>,
    /// Host memory for all steps together, such as 12GiB (default: what the machine allows)
    #[arg(long, value_name = "SIZE", value_parser = super::sweep::size)]
    pub memory: Option<ByteSize>,
}

/// Prints the plan, runs the remaining steps, and prints the results.
pub fn run(args: PipelineArgs) -> Result<ExitCode> {
    let mut changes = args.set;
    changes.extend(args.threads.map(|threads| format!("threads={threads}")));
    let options = PipelineOptions { data: args.data, overlays: args.preset, changes };
    let found = pipeline::file(&options)?;
    let mut plan = plan::expand(&found.file, &found.name, &found.shown, &Surroundings::of_process())?;
    // The pipeline's folder already depends on the data's content, so only the weights are bound.
    super::sweep::bind_weights(&mut plan)?;
    let config = &pipeline::store(&plan)?.config;
    let slots = run::slots(&plan, &Wish { jobs: args.jobs, memory_bytes: args.memory.map(|size| size.0) })?;
    if args.dry_run {
        let store = stage::find_store(config)?;
        let place = store.map(|store| pipeline::folder(&args.output, &store.manifest().dataset, store.digest()));
        let folder = place.as_deref().map(SweepFolder::at).transpose()?;
        let shown = folder.as_ref().map_or_else(
            || "its folder is known once the graph store is built".to_owned(),
            |folder| folder.path().display().to_string(),
        );
        output::write(&format!("pipeline: {shown}; {}\n", slots.reason))?;
        output::write(&pipeline::describe(&plan, folder.as_ref())?)?;
        return Ok(ExitCode::SUCCESS);
    }

    // The folder depends on the data's content, so the store comes first.
    interrupt::listen()?;
    let store = stage::open_store(config)?;
    let folder = pipeline::folder(&args.output, &store.manifest().dataset, store.digest());
    drop(store);
    let folder = SweepFolder::at(&folder)?;
    let _membership = folder.join(&plan, &found.text)?;
    folder.retry_failed(&plan)?;
    eprint!("pipeline: {}; {}\n{}", folder.path().display(), slots.reason, pipeline::describe(&plan, Some(&folder))?);
    let had_all = pipeline::is_done(&plan, &folder)?;
    let ended = run::run_here(&folder, &plan, &slots)?;
    output::write(&pipeline::results(&plan, &folder)?)?;
    Ok(match ended {
        Ended::Done => {
            let page = folder.path().join(report::PAGE);
            // Nothing new was trained: the page is up to date.
            if !had_all || !page.exists() {
                let paths = vec![folder.path().to_owned()];
                report::write(&ReportOptions { paths, output: Some(page.clone()), ..ReportOptions::default() })?;
            }
            output::write(&format!("report: {}\n", page.display()))?;
            ExitCode::SUCCESS
        }
        Ended::Failed => {
            eprintln!("a step failed, for the reason above; run the same command again to retry it");
            ExitCode::FAILURE
        }
        Ended::Interrupted | Ended::Cancelled => {
            eprintln!("interrupted; run the same command again to continue");
            ExitCode::from(exit::INTERRUPTED)
        }
    })
}
