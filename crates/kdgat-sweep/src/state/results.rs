//! Results of a task, read from the files of its run.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::SweepError;
use crate::plan::metric;

/// Results of a training or an evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Metrics by name, including values that are not finite.
    pub metrics: BTreeMap<String, f64>,
    pub epochs: u64,
    /// Run time of all epochs together, in seconds.
    pub seconds: f64,
    pub peak_memory_bytes: u64,
}

/// A row of `metrics.csv`: values by column.
pub type Epoch = BTreeMap<String, f64>;

/// Reads the epochs of a run; empty before the first epoch is done. Skips a last row that is still being written.
pub fn epochs(run: &Path) -> Result<Vec<Epoch>, SweepError> {
    let path = run.join("metrics.csv");
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(SweepError::file(&path, "read"))?,
    };
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(whole.as_bytes());
    let damaged = |error: csv::Error| SweepError::Damaged { path: path.clone(), found: error.to_string() };
    let header = reader.headers().map_err(damaged)?.clone();
    let mut epochs = Vec::new();
    for record in reader.records() {
        let record = record.map_err(damaged)?;
        let numbers = header.iter().zip(&record).filter_map(|(name, text)| Some((name.to_owned(), text.parse().ok()?)));
        if record.len() == header.len() {
            epochs.push(numbers.collect());
        }
    }
    Ok(epochs)
}

/// Reads the results of a training: all columns in the epoch with the lowest validation loss, whose weights are saved.
pub fn of_training(run: &Path) -> Result<Results, SweepError> {
    let epochs = epochs(run)?;
    let loss = |epoch: &&Epoch| epoch.get("val_loss").copied().unwrap_or(f64::INFINITY);
    // On ties the first epoch, as in the training.
    let best = epochs.iter().reduce(|best, epoch| if loss(&epoch) < loss(&best) { epoch } else { best });
    let peak = epochs.iter().filter_map(|epoch| epoch.get("peak_memory_bytes")).fold(0.0f64, |a, &b| a.max(b));
    let seconds = epochs.iter().filter_map(|epoch| epoch.get("seconds")).sum();
    let mut metrics = best.cloned().unwrap_or_default();
    for progress in metric::PROGRESS {
        metrics.remove(progress);
    }
    if let Some(summary) = json(&run.join("summary.json"))? {
        metrics.extend(summary["num_parameters"].as_f64().map(|count| (metric::PARAMETERS.to_owned(), count)));
    }
    Ok(Results { metrics, epochs: epochs.len() as u64, seconds, peak_memory_bytes: peak as u64 })
}

/// Reads the results of an evaluation for the model in `run`, at its recorded threshold: the mean of each metric over the test
/// folders that have it, each folder's value as `folder/metric`, the ROC AUC on the validation data, size and speed.
pub fn of_evaluation(folder: &Path, run: &Path) -> Result<Results, SweepError> {
    let path = folder.join("metrics.json");
    let damaged = |found: &str| SweepError::Damaged { path: path.clone(), found: found.to_owned() };
    let report = json(&path)?.ok_or_else(|| damaged("missing, although the evaluation succeeded"))?;
    let models = report["models"].as_array().ok_or_else(|| damaged("it has no models"))?;
    let of_run = |model: &&Value| {
        let paths: Vec<&str> = model["paths"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        matches!(paths[..], [path] if Path::new(path).starts_with(run))
    };
    let model = models.iter().find(of_run).ok_or_else(|| damaged("it does not have the run's model"))?;
    let mut metrics = BTreeMap::new();
    let mut sums: BTreeMap<String, (f64, u32)> = BTreeMap::new();
    let rows = || model["results"].as_array().into_iter().flatten();
    // The first threshold is the recorded one; classifiers are also evaluated at 0.5.
    let recorded = rows().next().map_or(&Value::Null, |row| &row["threshold_method"]);
    for row in rows() {
        if row["scope"] != "folder" || row["calibration"] != "none" || row["threshold_method"] != *recorded {
            continue;
        }
        for (name, value) in row["metrics"].as_object().into_iter().flatten() {
            let Some(value) = value["value"].as_f64() else { continue };
            let sum = sums.entry(name.clone()).or_default();
            *sum = (sum.0 + value, sum.1 + 1);
            metrics.insert(format!("{}/{name}", row["folder"].as_str().unwrap_or_default()), value);
        }
    }
    metrics.extend(sums.into_iter().map(|(name, (sum, count))| (name, sum / f64::from(count))));
    for name in metric::SIZES.into_iter().chain([metric::OF_VALIDATION]) {
        metrics.extend(model[name].as_f64().map(|value| (name.to_owned(), value)));
    }
    for name in metric::SPEEDS {
        metrics.extend(model["speed"][name].as_f64().map(|value| (name.to_owned(), value)));
    }
    Ok(Results { metrics, ..Results::default() })
}

fn json(path: &Path) -> Result<Option<Value>, SweepError> {
    match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SweepError::file(path, "read")(error)),
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| SweepError::Damaged { path: path.to_owned(), found: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_evaluation_counts_at_the_recorded_threshold_alone() {
        let row = |folder: &str, method: &str, f1: Option<f64>| {
            let metrics = json!({ "f1": { "value": f1 }, "roc_auc": { "value": 0.5 } });
            json!({ "scope": "folder", "folder": folder, "calibration": "none", "threshold_method": method, "metrics": metrics })
        };
        let results = [
            row("test_01", "fpr:0.001", Some(0.8)),
            row("test_01", "0.5", Some(0.1)),
            row("test_02", "fpr:0.001", Some(0.6)),
            row("test_02", "0.5", Some(0.2)),
            // Without attacks there is no F1.
            row("test_03", "fpr:0.001", None),
            row("test_03", "0.5", None),
        ];
        let folder = tempfile::tempdir().unwrap();
        let model = json!({ "paths": [folder.path().join("1/best.safetensors")], "results": results, "validation_roc_auc": 0.75 });
        let report = json!({ "models": [model] }).to_string();
        std::fs::write(folder.path().join("metrics.json"), report).unwrap();
        let found = of_evaluation(folder.path(), &folder.path().join("1")).unwrap().metrics;
        assert_eq!((found["test_01/f1"], found["test_02/f1"]), (0.8, 0.6));
        assert!((found["f1"] - 0.7).abs() < 1e-12 && !found.contains_key("test_03/f1"), "{found:?}");
        assert_eq!((found["roc_auc"], found["validation_roc_auc"]), (0.5, 0.75));
    }
}
