//! `kdgat memory`: predicts what training needs, without training.

use std::process::ExitCode;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};

use super::output;
use super::settings::Settings;
use crate::config::Reader;
use crate::stage::{PlannedGraph, PlannedSize, StageError, memory_table, overlays, plan_memory, plan_nodes};

#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// Print the memory that each component needs, the batch that fits, and settings that need less, from measured steps
    Plan(PlanArgs),
    /// Print settings for memory of 4 to 141 GB: CAN windows, and networks that read positions
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
    /// Nodes per graph: distinct CAN IDs in a window. With --columns: nodes of one large graph
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub nodes: Option<usize>,
    /// Edges per graph: distinct pairs of successive CAN IDs in a window (default: three per node). With --columns: edges of one large
    /// graph, each counted once
    #[arg(long, value_name = "N", requires = "nodes", value_parser = at_least_one())]
    pub edges: Option<usize>,
    /// Features of a node of one large graph, to plan for a graph that need not exist
    #[arg(long, value_name = "N", requires_all = ["nodes", "edges"], conflicts_with = "graphs", value_parser = at_least_one())]
    pub columns: Option<usize>,
    /// Classes of the nodes of one large graph
    #[arg(long, value_name = "N", requires = "columns", default_value_t = 40, value_parser = at_least_one())]
    pub classes: usize,
    /// Nodes of one large graph with a label to train on (default: a hundredth of all)
    #[arg(long, value_name = "N", requires = "columns", value_parser = at_least_one())]
    pub labelled: Option<usize>,
    /// Features of one large graph are stored in half precision
    #[arg(long, requires = "columns")]
    pub half: bool,
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
        MemoryCommand::Plan(PlanArgs { nodes: Some(_), graphs: None, columns: None, .. }) => {
            let text = "--nodes needs --graphs (many graphs), or --edges and --columns (one large graph)";
            return Err(StageError::Input(text.to_owned()).into());
        }
        MemoryCommand::Plan(PlanArgs {
            nodes: Some(nodes),
            edges: Some(edges),
            columns: Some(columns),
            classes,
            labelled,
            half,
            settings,
            ..
        }) => {
            let labelled = labelled.unwrap_or(nodes.div_ceil(100));
            let size = PlannedGraph { nodes, edges, columns, classes, labelled, half };
            plan_nodes(&settings.load_reading_of_nodes(Reader::Plan)?.config, Some(size))?
        }
        MemoryCommand::Plan(args) => {
            let size = args.graphs.zip(args.nodes).map(|(graphs, nodes)| PlannedSize {
                graphs,
                nodes_per_graph: nodes,
                // A window of 100 frames has between one and three successions for each of its IDs.
                edges_per_graph: args.edges.unwrap_or(nodes.saturating_mul(3)),
            });
            plan_memory(&args.settings.load_reading(Reader::Plan)?.config, size)?
        }
        MemoryCommand::Table { overlays: true } => overlays()?
            .iter()
            .map(|row| format!("# presets/gpu-{}gb.toml\n{}\n", row.gigabytes, row.overlay()))
            .collect(),
        MemoryCommand::Table { overlays: false } => memory_table()?,
    };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}
