//! The report of a sweep: statistics and tables from its trials.

mod analysis;
mod statistics;
mod tables;

use std::io;
use std::path::PathBuf;

pub use tables::Table;

use analysis::{Comparison, compare};

use super::SweepError;
use super::plan::Plan;
use super::state::{Row, SweepFolder, table};
use kdgat_base::files;

/// A report as Markdown, and the files that were written.
#[derive(Clone, Debug)]
pub struct Report {
    /// Text of `report.md`.
    pub markdown: String,
    /// Paths of `report.md` and `report.csv`.
    pub files: Vec<PathBuf>,
}

/// Builds all tables of a sweep. `pairs` are settings to compare (`AXIS=VALUE`).
///
/// # Errors
/// If a pair has an unknown setting, two settings that cannot be compared, or no finished trials that differ in nothing else.
pub fn tables(plan: &Plan, rows: &[Row], pairs: &[(String, String)]) -> Result<Vec<Table>, SweepError> {
    let compared = pairs.iter().map(|(first, second)| compare(plan, rows, first, second));
    let compared = compared.collect::<Result<Vec<Comparison>, String>>().map_err(SweepError::Usage)?;
    Ok(tables::tables(plan, rows, &compared))
}

/// Writes `report.md` and `report.csv` into the sweep's folder. `pairs` are settings to compare (`AXIS=VALUE`).
///
/// # Errors
/// Those of [`tables`], or if a task's state cannot be read or a file cannot be written.
pub fn write(folder: &SweepFolder, plan: &Plan, pairs: &[(String, String)]) -> Result<Report, SweepError> {
    let rows = table::rows(folder, plan)?;
    let tables = tables(plan, &rows, pairs)?;
    let markdown = tables::markdown(&plan.title(), &tables);
    let groups = csv(plan, &rows)
        .map_err(|error| SweepError::file(folder.path(), "write the report")(io::Error::other(error)))?;
    let contents = [("report.md", markdown.clone().into_bytes()), ("report.csv", groups)];
    let mut written = Vec::new();
    for (name, content) in contents {
        let path = folder.path().join(name);
        files::write_atomically(&path, &content).map_err(SweepError::file(&path, "write"))?;
        written.push(path);
    }
    Ok(Report { markdown, files: written })
}

/// Builds `report.csv`: one row per group of trials that differ only by seed, with numbers in full precision.
fn csv(plan: &Plan, rows: &[Row]) -> Result<Vec<u8>, csv::Error> {
    let axes = plan.axes.iter().filter(|axis| *axis != "seed").map(String::as_str);
    let columns = [
        "metric",
        "mean",
        "deviation",
        "trials",
        "failed",
        "seconds",
        "peak_memory_bytes",
        "parameters",
        "ms_per_graph",
        "pareto",
    ];
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(axes.chain(columns))?;
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for group in analysis::groups(plan, rows) {
        let mut record: Vec<String> = group.settings.iter().map(|(_, value)| value.clone()).collect();
        record.extend([
            plan.metric.clone(),
            number(group.metric.map(|metric| metric.mean)),
            number(group.metric.and_then(|metric| metric.deviation)),
            group.trials.to_string(),
            group.failed.to_string(),
            number(group.seconds.map(|seconds| seconds.mean)),
            group.peak_memory_bytes.to_string(),
            number(group.parameters),
            number(group.latency),
            group.on_front.to_string(),
        ]);
        writer.write_record(&record)?;
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}
