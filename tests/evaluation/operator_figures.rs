//! False alarms per hour, attack episodes and delays on the simulated car: `kdgat detect` has the figures of `kdgat evaluate`.

use std::collections::HashMap;
use std::process::Output;

use support::stage::{Workplace, dataset};
use support::starter;

type Row = HashMap<String, String>;

/// Rows of single files in an evaluation.
fn file_rows(place: &Workplace, evaluation: &str) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(place.path(evaluation).join("metrics.csv")).unwrap();
    reader.deserialize().map(Result::unwrap).filter(|row: &Row| row["scope"] == "file").collect()
}

fn number(row: &Row, name: &str) -> f64 {
    row[name].parse().unwrap_or(f64::NAN)
}

/// Summary of `kdgat detect` on the file of a row, at its threshold.
fn summary(place: &Workplace, row: &Row, stride: &str) -> String {
    let log = dataset().join(&row["folder"]).join(&row["file"]);
    let run = place.path("runs/tiny").join(&row["model"]);
    // A command without the variables of a configuration, which `detect` does not read.
    let output: Output = starter::output(
        std::process::Command::new(env!("CARGO_BIN_EXE_kdgat"))
            .args(["detect", "--stride", stride, "--threshold", &row["threshold"], "--model"])
            .args([run.as_os_str(), log.as_os_str()]),
    );
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

/// Second line of the summary, as the figures of a row give it.
fn by_labels(row: &Row) -> String {
    let plural = |count: f64, noun: &str| format!("{count} {noun}{}", if count == 1.0 { "" } else { "s" });
    let alarms = plural(number(row, "false_positives"), "false alarm");
    let (rate, seconds) = (number(row, "false_alarms_per_hour"), 3600.0 * number(row, "hours_without_attack"));
    let mut text = format!("by the labels: {alarms} ({rate:.1} an hour, in {seconds:.1} s without an attack)");
    let (found, episodes) = (number(row, "episodes_found"), number(row, "episodes"));
    if episodes == 0.0 {
        return text + "; no attack";
    }
    text += &format!("; {found} of {} found", plural(episodes, "attack episode"));
    if found > 0.0 {
        let (median, largest) = (number(row, "median_delay_seconds"), number(row, "largest_delay_seconds"));
        text += &format!(" after {median:.2} s (median; largest {largest:.2} s)");
    }
    text
}

#[test]
fn detection_has_the_figures_of_the_evaluation() {
    let place = Workplace::new();
    let quick = ["--max-epochs", "4", "--lr", "0.003", "--use-kd", "false"];
    place.run(&[&["classifier", "--preset", "gat,student", "--hidden", "8", "--heads", "2"], &quick[..]].concat());
    place
        .run(&[&["autoencoder", "--preset", "vgae,student", "--hidden", "16,8", "--latent", "8"], &quick[..]].concat());
    let mut seen = HashMap::new();
    for stride in ["100", "50"] {
        place.run(&["evaluate", "--resamples", "0", "--stride", stride, "--output", stride, "--rules", "false"]);
        // A pair of models has no detector.
        for row in file_rows(&place, stride).iter().filter(|row| !row["model"].contains('+')) {
            let said = summary(&place, row, stride);
            let expected = by_labels(row);
            // Without an attack, a bound on the rate follows.
            let is_said = |line: &str| line == expected || line.starts_with(&format!("{expected}; at most "));
            assert!(said.lines().any(is_said), "{row:?}\n{}\n{said}", by_labels(row));
            let alarms = number(row, "true_positives") + number(row, "false_positives");
            let windows = format!("{} windows, {alarms} of them called attacks", row["graphs"]);
            assert!(said.lines().any(|line| line.starts_with(&windows)), "{windows}\n{said}");
            for name in ["false_positives", "episodes", "episodes_found"] {
                *seen.entry(name).or_insert(0.0) += number(row, name);
            }
            assert!(number(row, "episodes_found") <= number(row, "episodes"));
            // A drive of 10,000 frames lasts as long at any stride.
            let seconds = 3600.0 * number(row, "hours_without_attack");
            assert!(number(row, "false_positives") == 0.0 || seconds > 0.0);
        }
    }
    assert!(seen.values().all(|count| *count > 0.0), "nothing to compare: {seen:?}");
    assert!(seen["episodes_found"] < seen["episodes"], "each is found: {seen:?}");
}
