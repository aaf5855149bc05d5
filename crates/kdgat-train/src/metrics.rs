//! Rows of `metrics.csv` and the header of `steps.csv`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::logs::number;
use super::objective::Objective;

/// Metrics of one epoch: a row of `metrics.csv`.
#[derive(Debug, Clone, serde::Serialize)]
pub struct EpochMetrics {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Training loss, averaged over the graphs.
    pub train_loss: f64,
    /// Validation loss, averaged over the graphs; NaN without validation graphs.
    pub val_loss: f64,
    /// Name, training mean and validation mean of each part of the loss.
    pub parts: Vec<(&'static str, f64, f64)>,
    /// Learning rate.
    pub lr: f64,
    /// Training graphs per second.
    pub graphs_per_second: f64,
    /// Highest counted memory of the epoch, in bytes.
    pub peak_memory_bytes: u64,
    /// Duration of the training part of the epoch, in seconds.
    pub seconds: f64,
    /// Number of training batches.
    pub steps: u64,
}

impl EpochMetrics {
    /// Reads the row of `epoch` from the `metrics.csv` of an objective with these parts; `None` if there is no complete row.
    pub fn logged(path: &Path, parts: &[&'static str], epoch: u64) -> Option<Self> {
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_path(path).ok()?;
        let header = reader.headers().ok()?.clone();
        let position = |name: &str| header.iter().position(|column| column == name);
        let epochs = position("epoch")?;
        let is_of_epoch = |row: &csv::StringRecord| row.get(epochs).is_some_and(|found| found.parse() == Ok(epoch));
        let row = reader.records().filter_map(Result::ok).find(is_of_epoch)?;
        let field = |name: &str| row.get(position(name)?);
        // A mean of nothing is an empty field.
        let number = |name: &str| field(name)?.parse().ok().or(Some(f64::NAN));
        let count = |name: &str| field(name)?.parse().ok();
        let part = |&name: &&'static str| Some((name, number(name)?, number(&format!("val_{name}"))?));
        Some(Self {
            epoch,
            train_loss: number("train_loss")?,
            val_loss: number("val_loss")?,
            parts: parts.iter().map(part).collect::<Option<_>>()?,
            lr: number("lr")?,
            graphs_per_second: number("graphs_per_second")?,
            peak_memory_bytes: count("peak_memory_bytes")?,
            seconds: number("seconds")?,
            steps: count("steps")?,
        })
    }

    /// The form in `summary.json`; means that are not finite are left out.
    pub fn json(&self) -> Value {
        let parts = self.parts.iter().flat_map(|(name, training, validation)| {
            [((*name).to_owned(), *training), (format!("val_{name}"), *validation)]
        });
        let parts: Map<String, Value> =
            parts.filter(|(_, mean)| mean.is_finite()).map(|(name, mean)| (name, json!(mean))).collect();
        json!({
            "epoch": self.epoch,
            "train_loss": self.train_loss,
            "val_loss": self.val_loss,
            "parts": parts,
            "graphs_per_second": self.graphs_per_second,
            "peak_memory_bytes": self.peak_memory_bytes,
        })
    }
}

/// Epoch, training loss and validation loss of each row of a `metrics.csv`; empty if there is no such file.
pub fn losses_of(path: &Path) -> Vec<(u64, f64, f64)> {
    let Ok(mut reader) = csv::ReaderBuilder::new().flexible(true).from_path(path) else { return Vec::new() };
    let number = |text: &str| text.parse().unwrap_or(f64::NAN);
    let row = |row: csv::StringRecord| Some((row.get(0)?.parse().ok()?, number(row.get(1)?), number(row.get(2)?)));
    reader.records().filter_map(|record| record.ok().and_then(row)).collect()
}

/// Columns of `metrics.csv` for an objective with these parts.
pub fn metrics_header(parts: &[&str]) -> Vec<String> {
    let mut header: Vec<String> = vec!["epoch".into(), "train_loss".into(), "val_loss".into()];
    header.extend(parts.iter().map(|&part| part.to_owned()));
    header.extend(["lr", "graphs_per_second", "peak_memory_bytes", "seconds", "steps"].map(str::to_owned));
    header.extend(parts.iter().map(|part| format!("val_{part}")));
    header
}

/// Row of an epoch, without the columns of the batch plan.
pub fn metrics_row(metrics: &EpochMetrics) -> Vec<String> {
    let mut row = vec![metrics.epoch.to_string(), number(metrics.train_loss), number(metrics.val_loss)];
    row.extend(metrics.parts.iter().map(|(_, training, _)| number(*training)));
    row.extend([
        number(metrics.lr),
        format!("{:.1}", metrics.graphs_per_second),
        metrics.peak_memory_bytes.to_string(),
        format!("{:.3}", metrics.seconds),
        metrics.steps.to_string(),
    ]);
    row.extend(metrics.parts.iter().map(|(_, _, validation)| number(*validation)));
    row
}

/// Columns of `steps.csv` for an objective.
pub fn steps_header(objective: &dyn Objective) -> Vec<&'static str> {
    let mut header = vec!["epoch", "step", "train_loss", "lr", "gradient_norm", "graphs", "nodes", "edges", "step_ms"];
    header.extend(objective.source().step_columns());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logged_epoch_comes_back_with_its_losses() {
        let metrics = |epoch, kd_loss| EpochMetrics {
            epoch,
            train_loss: 0.1 + 0.2,
            val_loss: 1.0 / 3.0,
            parts: vec![("task_loss", 0.7, 1e-9), ("kd_loss", kd_loss, f64::NAN)],
            lr: 0.002,
            graphs_per_second: 12.5,
            peak_memory_bytes: 1 << 40,
            seconds: 0.25,
            steps: 21,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        let mut columns = metrics_header(&["task_loss", "kd_loss"]);
        columns.push("curriculum_ratio".into());
        let mut text = columns.join(",");
        for (epoch, kd_loss) in [(0, 2.0), (1, f64::NAN)] {
            let mut row = metrics_row(&metrics(epoch, kd_loss));
            row.push("3".into());
            text += &format!("\n{}", row.join(","));
        }
        // An incomplete last row, as a killed process leaves it.
        std::fs::write(&path, text + "\n2,0.3").unwrap();
        let logged = |epoch| EpochMetrics::logged(&path, &["task_loss", "kd_loss"], epoch);
        for (epoch, kd_loss) in [(0, 2.0), (1, f64::NAN)] {
            let found = logged(epoch).unwrap();
            assert_eq!(found.json(), metrics(epoch, kd_loss).json());
            assert_eq!((found.lr, found.seconds, found.steps), (0.002, 0.25, 21));
        }
        assert!(logged(2).is_none() && logged(3).is_none());
        assert!(EpochMetrics::logged(&folder.path().join("none.csv"), &[], 0).is_none());
    }
}
