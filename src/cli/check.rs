//! `kdgat data check`: the contents of a dataset and its pitfalls, before anything is built.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::{data, output};
use crate::can::check::{self, CheckOptions, CheckReport, LogCheck, Severity, readable};
use crate::config::{Config, DataKind};
use crate::exit;
use crate::graph::dataset::{self, Feature, Neighbours, Source, SpaceSummary, Summary, TargetValues};
use crate::graph::{BuildOptions, Level, PathKind, SpaceSchema, StoreError};
use crate::nodes::{sources, store};
use crate::stage::{self, StageError};

/// Reads all logs and prints the report. Exit code 2 if a build would refuse a log.
pub fn run(config: &Config, json: bool) -> Result<ExitCode> {
    stage::limit_memory(config);
    if config.data_kind == DataKind::OneGraph {
        return of_nodes(config, json);
    }
    if config.data.data.as_ref().is_some_and(|path| dataset::is_dataset(path)) {
        return of_graphs(stage::graph_source(config), json);
    }
    let dataset = stage::recorded_dataset(config)?;
    let build = stage::build_options(config);
    let read = build.read_options();
    let BuildOptions { format, window, max_reject_share, threads, .. } = build;
    let report = check::check(&dataset, &CheckOptions { format, read, window, max_reject_share, threads });
    let text = if json { serde_json::to_string_pretty(&report)? + "\n" } else { describe(&report) };
    output::write(&text)?;
    Ok(if report.is_usable() { ExitCode::SUCCESS } else { ExitCode::from(exit::INPUT) })
}

/// Reads one large graph and prints its size, its classes and its split.
fn of_nodes(config: &Config, json: bool) -> Result<ExitCode> {
    let path = config.data.data.as_deref().unwrap_or(Path::new(""));
    if sources::is_store(path) {
        store::verify(path).map_err(StageError::from)?;
    }
    let (graph, notes) = sources::read(path, &stage::graph_options(config)).map_err(StageError::from)?;
    let mut classes = vec![0u64; graph.task.classes];
    graph.labels.iter().filter(|&&label| label >= 0).for_each(|&label| classes[label as usize] += 1);
    let degrees = || graph.row_pointers.windows(2).map(|ends| ends[1] - ends[0]);
    let sets =
        graph.given_split.as_ref().map(|sets| [1u8, 2, 3].map(|set| sets.iter().filter(|&&one| one == set).count()));
    let (most, alone) = (degrees().max().unwrap_or(0), degrees().filter(|&degree| degree == 0).count());
    if json {
        let summary = serde_json::json!({
            "name": graph.name, "nodes": graph.num_nodes(), "edges": graph.num_edges(), "features": graph.features.columns(),
            "classes": classes, "largest_degree": most, "nodes_without_edges": alone, "split": sets, "notes": notes.lines(),
        });
        output::write(&(serde_json::to_string_pretty(&summary)? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("{}: one graph, classification of nodes\n\n", graph.name);
    text += &format!("nodes     {}, {alone} of them without edges\n", graph.num_nodes());
    let mean = graph.num_edges() as f64 / graph.num_nodes().max(1) as f64;
    text += &format!("edges     {}, {mean:.1} for each node on average, at most {most}\n", graph.num_edges());
    text += &format!("features  {}\n", graph.features.columns());
    let counts = classes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    text += &format!("classes   {} (nodes of each: {counts})\n", classes.len());
    text += &match sets {
        Some([train, validation, test]) => {
            format!("split     {train} training, {validation} validation, {test} test\n")
        }
        None => "split     none: nodes are divided by --node-split\n".to_owned(),
    };
    notes.lines().iter().for_each(|line| text += &format!("note: {line}\n"));
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Cutoff within which neighbours are counted: that of the networks in space unless one is set.
const CUTOFF: f64 = 5.0;

/// Reads a dataset of graphs and prints its columns and pitfalls.
fn of_graphs(source: Source<'_>, json: bool) -> Result<ExitCode> {
    let set = source.read().map_err(StoreError::from)?;
    let summary = Summary::of(&set, CUTOFF);
    let text = if json { serde_json::to_string_pretty(&summary)? + "\n" } else { describe_graphs(&summary) };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn describe_graphs(summary: &Summary) -> String {
    let Summary { name, schema, graphs, nodes, edges, left_out, .. } = summary;
    let sizes = |[least, mean, most]: [f64; 3]| format!("{least:.0} to {most:.0}, {mean:.1} on average");
    let direction = if summary.undirected { "each with its reverse" } else { "directed" };
    let mut text = format!("{name}: {graphs} graphs, {}\n\n", schema.task_name());
    text += &format!("nodes          {}\n", sizes(*nodes));
    text += &format!("edges          {}, {direction}\n", sizes(*edges));
    text += &format!("node features  {}\n", describe_features(&schema.node_features));
    text += &format!("edge features  {}\n", describe_features(&schema.edge_features));
    for (target, values) in schema.targets.iter().zip(&summary.target_values) {
        let values = describe_target(&target.classes, values, schema.level);
        text += &format!("target {:<7} {values}\n", target.name);
    }
    if schema.level == Level::Node {
        text += &format!("targets        of {} nodes\n", summary.with_targets);
    }
    if let (Some(schema), Some(space)) = (&schema.space, &summary.space) {
        text += &describe_space(schema, space);
    }
    if let Some([least, mean, most]) = summary.paths {
        text += &format!("paths          {least:.0} to {most:.0} of three edges a graph, {mean:.1} on average\n");
    }
    text += &match summary.splits {
        Some([train, validation, test]) => {
            format!("split          {train} training, {validation} validation, {test} test\n")
        }
        None => "split          none: folds are made (--folds, --fold) or read (--folds-file)\n".to_owned(),
    };
    for (count, what) in [(left_out.self_loops, "self-loops"), (left_out.repeated, "repeated edges")] {
        if count > 0 {
            text += &format!("note: {count} {what} are left out\n");
        }
    }
    if !schema.edge_features.is_empty() {
        text += "note: only gin reads edge features, and irreps with --bonds true\n";
    }
    summary.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
    summary.warnings.iter().for_each(|warning| text += &format!("warning: {warning}\n"));
    text
}

/// Kinds of nodes that are listed at most.
const MOST_KINDS: usize = 12;

/// Lines about positions, and what belongs to them.
fn describe_space(schema: &SpaceSchema, summary: &SpaceSummary) -> String {
    let SpaceSummary { kinds, periodic_graphs, forces, listed, neighbours } = summary;
    let unit = |unit: &Option<String>| unit.as_ref().map_or("unit unknown".to_owned(), |unit| format!("in {unit}"));
    let shown = kinds.iter().take(MOST_KINDS).map(|(name, count)| format!("{name}: {count}"));
    let more =
        if kinds.len() > MOST_KINDS { format!(", and {} more", kinds.len() - MOST_KINDS) } else { String::new() };
    let mut text = format!("positions      {}\n", unit(&schema.length_unit));
    text += &format!("kinds          {}{more}\n", shown.collect::<Vec<_>>().join(", "));
    if let Some([least, mean, most]) = forces {
        let unit = match (&schema.energy_unit, &schema.length_unit) {
            (Some(energy), Some(length)) => format!("in {energy}/{length}"),
            _ => "unit unknown".to_owned(),
        };
        text += &format!("forces         {least:.3} to {most:.3} long, {mean:.3} on average, {unit}\n");
    }
    if schema.periodic {
        text += &format!("cells          {periodic_graphs} graphs are periodic\n");
    }
    for kind in PathKind::ALL {
        if let (Some([least, _, most]), Some(names)) = (listed.of(kind), schema.paths.of(kind)) {
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            text += &format!("{:<14} {least:.0} to {most:.0} a graph, parameters {names}\n", kind.name());
        }
    }
    if let Some(Neighbours { cutoff, pairs: [least, mean, most], of_node: [of_node, most_of_node], .. }) = neighbours {
        text += &format!(
            "neighbours     {of_node:.1} of a node within {cutoff} on average, at most {most_of_node:.0}; {least:.0} to {most:.0} pairs of a \
             graph, {mean:.1} on average\n"
        );
    }
    text
}

/// Lists features; numbered ones, such as those of a radial basis, by the first and the last.
fn describe_features(features: &[Feature]) -> String {
    let numbered = |feature: &Feature, prefix: &str, number: usize| {
        feature.values.is_none() && feature.name.strip_prefix(prefix) == Some(number.to_string().as_str())
    };
    let mut texts = Vec::new();
    let mut rest = features;
    while let Some(first) = rest.first() {
        let prefix = first.name.strip_suffix('0').unwrap_or(&first.name);
        let run = rest.iter().enumerate().take_while(|(number, feature)| numbered(feature, prefix, *number)).count();
        match run {
            3.. => texts.push(format!("{} to {}", first.name, rest[run - 1].name)),
            _ => texts.push(describe_feature(first)),
        }
        rest = &rest[if run >= 3 { run } else { 1 }..];
    }
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

fn describe_feature(feature: &Feature) -> String {
    match &feature.values {
        Some(values) => format!("{} ({} values)", feature.name, values.len()),
        None => feature.name.clone(),
    }
}

fn describe_target(classes: &[String], values: &TargetValues, level: Level) -> String {
    match values {
        TargetValues::Classes(counts) => {
            let pairs = classes.iter().zip(counts).map(|(class, count)| format!("{class}: {count}"));
            format!("{} classes ({})", classes.len(), pairs.collect::<Vec<_>>().join(", "))
        }
        TargetValues::Positives(count) => format!("{count} {} have it", level.units()),
        TargetValues::Moments([least, mean, deviation, most]) => {
            format!("{least:.4} to {most:.4}, {mean:.4} ± {deviation:.4}")
        }
    }
}

const COLUMNS: [&str; 9] =
    ["log", "format", "frames", "attack", "seconds", "IDs", "unseen IDs", "no payload", "benign overlap"];

fn describe(report: &CheckReport) -> String {
    let rows: Vec<[String; 9]> = report.logs.iter().map(row).collect();
    let mut text = format!("{}: {} logs\n\n{}", report.dataset, report.logs.len(), data::aligned(&COLUMNS, &rows));
    text.push_str(
        "\nunseen IDs: IDs that no attack-free training frame has; benign overlap: sampled benign stretches that are also in training\n\n",
    );
    for finding in &report.findings {
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        text.push_str(&format!("{severity}: {}\n", finding.text));
    }
    text
}

fn row(log: &LogCheck) -> [String; 9] {
    let empty = log.empty_payloads;
    [
        log.title(),
        log.format.map_or("-".to_string(), |format| format.to_string()),
        log.report.frames.to_string(),
        log.report.attack_frames.to_string(),
        readable(log.duration_seconds, 1),
        log.ids.to_string(),
        log.unseen.ids.to_string(),
        (empty.benign_frames + empty.attack_frames).to_string(),
        log.benign_overlap.map_or(String::new(), |share| format!("{:.1} %", 100.0 * share)),
    ]
}
