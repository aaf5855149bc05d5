//! `kdgat data check`: the contents of a dataset and its pitfalls, before anything is built.

use std::process::ExitCode;

use anyhow::Result;

use super::{data, exit, output};
use crate::can::check::{self, CheckOptions, CheckReport, LogCheck, Severity, readable};
use crate::config::Config;
use crate::graph::BuildOptions;
use crate::stage;

/// Reads all logs and prints the report. Exit code 2 if a build would refuse a log.
pub fn run(config: &Config, json: bool) -> Result<ExitCode> {
    let dataset = stage::recorded_dataset(config)?;
    let BuildOptions { format, window, max_reject_share, threads, .. } = stage::build_options(config);
    let report = check::check(&dataset, &CheckOptions { format, window, max_reject_share, threads });
    let text = if json { serde_json::to_string_pretty(&report)? + "\n" } else { describe(&report) };
    output::write(&text)?;
    Ok(if report.is_usable() { ExitCode::SUCCESS } else { ExitCode::from(exit::INPUT) })
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
