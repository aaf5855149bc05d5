//! `kdgat memory`: predicts what training needs, without training.

use std::process::ExitCode;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};

use super::output;
use super::settings::Settings;
use crate::config::reads;
use crate::memory_plan::plan;
use crate::stage::{PlannedSize, plan_memory};

#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// Print the memory that each component needs, recommended settings, and, if it does not fit, ways to make it fit
    Plan(PlanArgs),
    /// Print recommended settings for GPUs with 4 to 141 GB
    Table {
        /// Print the overlays presets/gpu-*.toml instead of the table
        #[arg(long)]
        overlays: bool,
    },
}

#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Number of training graphs, to plan for a dataset that need not exist
    #[arg(long, value_name = "N", requires = "nodes", value_parser = at_least_one())]
    pub graphs: Option<usize>,
    /// Nodes per graph: distinct CAN IDs in a window
    #[arg(long, value_name = "N", requires = "graphs", value_parser = at_least_one())]
    pub nodes: Option<usize>,
    /// Edges per graph: distinct pairs of successive CAN IDs in a window (default: three per node)
    #[arg(long, value_name = "N", requires = "graphs", value_parser = at_least_one())]
    pub edges: Option<usize>,
    #[command(flatten)]
    pub settings: Settings,
}

/// Parses a count of 1 or more: empty graphs need no memory and predict nothing.
fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// Runs the command.
pub fn run(command: MemoryCommand) -> Result<ExitCode> {
    let text = match command {
        MemoryCommand::Plan(args) => {
            let size = args.graphs.zip(args.nodes).map(|(graphs, nodes)| PlannedSize {
                graphs,
                nodes_per_graph: nodes,
                // A window of 100 frames has between one and three successions for each of its IDs.
                edges_per_graph: args.edges.unwrap_or(nodes.saturating_mul(3)),
            });
            plan_memory(&args.settings.load_reading(&reads::PLAN)?.config, size)?
        }
        MemoryCommand::Table { overlays } => {
            let rows = plan::table()?;
            match overlays {
                true => rows
                    .iter()
                    .map(|row| format!("# presets/gpu-{}gb.toml\n{}\n", row.gigabytes, row.overlay()))
                    .collect(),
                false => plan::describe_table(&rows),
            }
        }
    };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}
