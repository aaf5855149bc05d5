//! `kdgat data`: merges and describes datasets.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::output;
use crate::can::catalogue::{self, Entry};
use crate::config::Config;
use crate::graph::Store;
use crate::graph::store::manifest::{FileEntry, Manifest};
use crate::stage;

/// Lists the known datasets, and whether they are in the folder `KDGAT_DATA`.
pub fn list(json: bool) -> Result<ExitCode> {
    let data_folder = catalogue::data_folder();
    let found = |entry: &Entry| data_folder.as_deref().and_then(|folder| entry.find(folder));
    let text = if json {
        let describe = |entry: &Entry| {
            let mut described = serde_json::to_value(entry)?;
            described["found"] = serde_json::to_value(found(entry))?;
            Ok(described)
        };
        let described = catalogue::entries().iter().map(describe).collect::<Result<Vec<_>>>()?;
        serde_json::to_string_pretty(&described)? + "\n"
    } else {
        let describe = |entry: &Entry| {
            let place = found(entry).map_or("not found".to_string(), |folder| folder.display().to_string());
            let Entry { name, title, format, licence, citation, url, .. } = entry;
            format!(
                "{name}  ({place})\n  {title}\n  format {format}; licence: {licence}\n  cite: {citation}\n  {url}\n\n"
            )
        };
        let heading = match &data_folder {
            Some(folder) => format!("searched in {} ({})\n\n", folder.display(), catalogue::DATA_FOLDER_VARIABLE),
            None => format!("{} is not set to a folder with datasets\n\n", catalogue::DATA_FOLDER_VARIABLE),
        };
        heading + &catalogue::entries().iter().map(describe).collect::<String>()
    };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Merges the parts of a store.
pub fn merge(config: &Config, parts: &[PathBuf]) -> Result<ExitCode> {
    describe(&stage::merge_store_parts(config, parts)?)
}

/// Prints one line about a store.
pub fn describe(store: &Store) -> Result<ExitCode> {
    let totals = &store.manifest().totals;
    output::write(&format!(
        "{}: {} graphs ({} with an attack) of {} frames: {}\n",
        store.manifest().dataset,
        totals.graphs,
        totals.attack_graphs,
        totals.frames,
        store.path().display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the counts of a dataset, one line per file.
pub fn info(config: &Config, json: bool) -> Result<ExitCode> {
    let store = stage::open_store(config)?;
    let manifest = store.manifest();
    let text = if json { serde_json::to_string_pretty(manifest)? + "\n" } else { table(manifest) };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

const COLUMNS: [&str; 8] = ["file", "frames", "attack", "graphs", "with attack", "IDs", "rejected", "backward"];

fn table(manifest: &Manifest) -> String {
    let totals = &manifest.totals;
    let mut rows: Vec<[String; 8]> = manifest.files.iter().map(row).collect();
    rows.push([
        format!("{} files", totals.files),
        totals.frames.to_string(),
        totals.attack_frames.to_string(),
        totals.graphs.to_string(),
        totals.attack_graphs.to_string(),
        totals.ids.to_string(),
        totals.rejected_rows.to_string(),
        manifest.files.iter().map(|file| file.report.backward_timestamps).sum::<u64>().to_string(),
    ]);
    let dropped = match manifest.duplicates.num_dropped() {
        0 => String::new(),
        dropped => format!("; {dropped} training graphs left out, because they are also in validation or a test"),
    };
    let named: BTreeSet<&str> =
        manifest.files.iter().flat_map(|file| file.report.interfaces.keys().map(String::as_str)).collect();
    let interfaces = match &manifest.options.interface {
        Some(read) => format!("; frames of {read} (the logs have {})", Vec::from_iter(named).join(", ")),
        None if named.is_empty() => String::new(),
        None => format!("; frames of {}", Vec::from_iter(named).join(", ")),
    };
    let heading = format!(
        "{}: windows of {} frames, stride {}; {} IDs in the vocabulary; digest {}",
        manifest.dataset,
        manifest.options.window,
        manifest.options.stride,
        manifest.vocabulary.ids().len(),
        &manifest.digest[..16]
    );
    heading + &interfaces + &dropped + "\n\n" + &aligned(&COLUMNS, &rows)
}

/// Formats a table: first column left-aligned, the others right-aligned.
pub fn aligned<const N: usize>(columns: &[&str; N], rows: &[[String; N]]) -> String {
    let letters = |cell: &str| cell.chars().count();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| letters(&row[column]));
        cells.max().unwrap_or(0).max(letters(columns[column]))
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    let mut line = |cells: &[&str; N]| {
        for (index, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
            // Writing to a String cannot fail.
            let _ = if index == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    };
    line(columns);
    for row in rows {
        line(&row.each_ref().map(String::as_str));
    }
    text
}

fn row(file: &FileEntry) -> [String; 8] {
    [
        format!("{}/{}", file.folder, file.name),
        file.report.frames.to_string(),
        file.report.attack_frames.to_string(),
        file.graphs.to_string(),
        file.attack_graphs.to_string(),
        file.ids.to_string(),
        file.report.rejected_rows().to_string(),
        file.report.backward_timestamps.to_string(),
    ]
}
