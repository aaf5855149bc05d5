//! `kdgat data build`: builds a dataset's graph store: all of it, one part of it, or in parts by many processes.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::data::describe;
use super::output;
use super::part_runs::{self, PartsArgs};
use super::settings::Settings;
use super::sweep::Executor;
use crate::config::{Config, DataKind, Reader};
use crate::graph::Share;
use crate::graph::store::{Gathered, Gathering};
use crate::interrupt;
use crate::memory::limits::PROCESS_BYTES;
use crate::stage::{self, StageError};
use crate::sweep::parts;
use crate::sweep::plan::{JobsFile, Plan};
use crate::sweep::run::{self, Ended, Slots, Wish};
use crate::sweep::state::SweepFolder;

/// Arguments of `kdgat data build`.
#[derive(Args, Debug)]
pub struct BuildArgs {
    /// Build only part I of N, such as 2/8. Build each part on another machine, then join them with `kdgat data merge`
    #[arg(long, value_name = "I/N", conflicts_with = "parts")]
    pub part: Option<Share>,
    #[command(flatten)]
    pub in_parts: PartsArgs,
    #[command(flatten)]
    pub settings: Settings,
}

/// Builds the store, or the requested part, unless it exists.
pub fn run(args: &BuildArgs) -> Result<ExitCode> {
    if args.settings.load()?.config.data_kind == DataKind::OneGraph {
        return of_nodes(args);
    }
    let config = args.settings.load_reading(Reader::Build)?.config;
    match (args.part, args.in_parts.parts) {
        (Some(share), _) => {
            let folder = stage::build_store_part(&config, share)?;
            output::write(&format!("{}\n", folder.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        (None, Some(count)) => in_parts(args, &config, usize::from(count)),
        (None, None) => describe(&*stage::open_store(&config)?),
    }
}

/// Builds the store of one large graph, and prints its size and path.
fn of_nodes(args: &BuildArgs) -> Result<ExitCode> {
    let config = args.settings.load_reading(Reader::BuildNodes)?.config;
    if args.part.is_some() || args.in_parts.parts.is_some() {
        let text = "--part and --parts are for logs of a CAN bus: the store of one large graph is built by one process";
        return Err(StageError::Input(text.into()).into());
    }
    interrupt::listen()?;
    let (graph, path) = stage::build_node_store(&config)?;
    output::write(&format!(
        "{}: {} nodes, {} edges, {} features, {} classes: {}\n",
        graph.name,
        graph.num_nodes(),
        graph.num_edges(),
        graph.features.columns(),
        graph.task.classes,
        path.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn in_parts(args: &BuildArgs, config: &Config, count: usize) -> Result<ExitCode> {
    let jobs = args.in_parts.jobs_file.as_deref().map(JobsFile::read).transpose()?.unwrap_or_default();
    // For all processes together: the configured limit for tensors, plus the overhead of a process.
    let memory_bytes = config.memory.memory_limit.map(|size| size.0 + PROCESS_BYTES);
    let wish = Wish { jobs: args.in_parts.jobs, memory_bytes };
    if args.in_parts.dry_run {
        let (folder, name) = stage::gather_notes(config, count)?;
        let plan = parts::plan(&name, config, count, &jobs);
        return part_runs::print(args.in_parts.executor, &SweepFolder::at(&folder)?, &plan, &run::slots(&plan, &wish)?);
    }
    interrupt::listen()?;
    match stage::gather_store(config, count)? {
        Gathered::Ready(store) => describe(&store),
        Gathered::Parts(gathering) => {
            let plan = parts::plan(&gathering.name(), config, count, &jobs);
            let slots = run::slots(&plan, &wish)?;
            build_and_merge(args.in_parts.executor, *gathering, &plan, &slots)
        }
    }
}

fn build_and_merge(executor: Executor, gathering: Gathering, plan: &Plan, slots: &Slots) -> Result<ExitCode> {
    let folder = SweepFolder::at(&gathering.folder())?;
    let what = format!("store {}", plan.name);
    match part_runs::run(executor, &folder, plan, slots, &what, |share| gathering.has(share))? {
        Ended::Done => describe(&stage::merge_gathered(gathering)?),
        ended => part_runs::report(ended, &folder, plan),
    }
}
