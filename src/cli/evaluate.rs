//! `kdgat evaluate`: scores trained models.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::output;
use super::settings::Settings;
use crate::config::{ConfigError, DataKind, Loaded, Problem, Reader, Threshold};
use crate::evaluate::bootstrap::MOST_RESAMPLES;
use crate::evaluate::calibration::is_unknown_vehicle;
use crate::evaluate::judge::NOT_CALIBRATED;
use crate::evaluate::tables::{Report, Row};
use crate::evaluate::{agreement, rules};
use crate::stage::{self, EvaluateOptions};

/// Arguments of `kdgat evaluate`, in addition to the configuration.
#[derive(Args, Debug)]
pub struct EvaluateArgs {
    /// Run folders or weight files (default: all finished runs of the dataset and its registered teachers)
    #[arg(value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// A run or weight file, named by a flag; may be given several times
    #[arg(long, value_name = "RUN")]
    pub model: Vec<PathBuf>,
    /// Write a CSV file with one row per model and test graph or node: its name, target and prediction (CAN windows: score, threshold, decision)
    #[arg(long, value_name = "FILE")]
    pub predictions: Option<PathBuf>,
    /// CAN windows: also evaluate unknown cars (test folders named *unknown_vehicle*) after calibration on this many seconds of their attack-free
    /// traffic
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub calibrate_seconds: Option<f64>,
    /// CAN windows: calibrate on this test file (FOLDER/FILE) and test on the other drives of its car: those of its folder, or of all folders named
    /// *unknown_vehicle* if it is in one. Without it, each file of an unknown car calibrates itself
    #[arg(long, value_name = "FOLDER/FILE")]
    pub calibrate_from: Option<String>,
    /// Folder for metrics.json and metrics.csv (default: `evaluation` next to the dataset's runs)
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Bootstrap resamples for the 95 % confidence intervals; 0 computes none. More give steadier intervals and take longer
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=MOST_RESAMPLES))]
    pub resamples: u64,
    /// CAN windows: also judge simple rules (unknown ID, early frame, byte jump, ...) as baselines (default: true, if the attack-free
    /// traffic has a profile)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub rules: Option<bool>,
    #[command(flatten)]
    pub settings: Settings,
}

/// Scores the models, writes the results and prints them.
pub fn run(mut args: EvaluateArgs) -> Result<ExitCode> {
    args.runs.append(&mut args.model);
    let loaded = args.settings.load_reading_by(&args.runs, |config| match config.data_kind {
        DataKind::Windows => Reader::Evaluate,
        DataKind::Graphs | DataKind::OneGraph => Reader::EvaluateDivided,
    })?;
    let kind = loaded.config.data_kind;
    args.refuse_ignored(kind)?;
    let options = EvaluateOptions {
        runs: args.runs,
        predictions: args.predictions,
        calibrate_seconds: args.calibrate_seconds,
        calibrate_from: args.calibrate_from,
        output: args.output,
        resamples: args.resamples,
        rules: args.rules,
    };
    if kind == DataKind::Windows {
        return evaluate_windows(&loaded, &options);
    }
    let (text, folder) = stage::evaluate_tested(&loaded.config, &options)?;
    output::write(&format!("{text}\nwritten: {}\n", folder.join("graph_metrics.{json,csv}").display()))?;
    Ok(ExitCode::SUCCESS)
}

impl EvaluateArgs {
    /// Refuses options that would be ignored.
    fn refuse_ignored(&self, kind: DataKind) -> Result<(), ConfigError> {
        let data = match kind {
            DataKind::Windows => return Ok(()),
            DataKind::Graphs => "graphs",
            DataKind::OneGraph => "the nodes of one graph",
        };
        let given = [
            ("--calibrate-seconds", self.calibrate_seconds.is_some()),
            ("--calibrate-from", self.calibrate_from.is_some()),
            ("--rules", self.rules.is_some()),
        ];
        let ignored = given.into_iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| Problem::Ignored {
            flag: flag.to_owned(),
            because: format!("it is for CAN windows, and the data are {data}"),
            remedy: "drop it".to_owned(),
        });
        ConfigError::unless_empty(ignored.collect())
    }
}

/// Scores models of CAN windows.
fn evaluate_windows(loaded: &Loaded, options: &EvaluateOptions) -> Result<ExitCode> {
    let (report, folder) = stage::evaluate(&loaded.config, options)?;
    let is_calibrated = |row: &Row| row.calibration != NOT_CALIBRATED;
    if options.calibrate_seconds.is_some() && !report.models.iter().any(|model| model.rows.iter().any(is_calibrated)) {
        eprintln!(
            "nothing was calibrated: {} has no test folder with `unknown_vehicle` in its name and enough attack-free traffic in its \
             logs",
            report.dataset
        );
    }
    // Without labels, only a false-positive rate can be set for another car.
    let has_rate = matches!(loaded.config.evaluation.threshold, Threshold::FalsePositiveRate(_));
    let could_calibrate = has_rate && options.calibrate_seconds.is_none();
    let uncalibrated = if could_calibrate { uncalibrated_cars(&report) } else { String::new() };
    output::write(&format!(
        "{}{uncalibrated}{}\nwritten: {}\n",
        rules::verdict(&report),
        report.text() + &agreement::text(&report.models),
        folder.join("metrics.{json,csv}").display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Says which test folders are of cars that the models have not seen, and how to calibrate for them; empty without such a folder.
fn uncalibrated_cars(report: &Report) -> String {
    let rows = report.models.iter().flat_map(|model| &model.rows);
    let folders: BTreeSet<&str> =
        rows.map(|row| row.folder.as_str()).filter(|folder| is_unknown_vehicle(folder)).collect();
    if folders.is_empty() {
        return String::new();
    }
    let folders: Vec<&str> = folders.into_iter().collect();
    format!(
        "Cars that no model was trained on: {}. With --calibrate-seconds 10 they are also judged after a calibration on the first 10 s of \
         each log.\n\n",
        folders.join(", ")
    )
}
