//! `kdgat export`: writes a trained model for other programs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::detect::{named_models, parse_threshold};
use super::exit::UsageError;
use super::output;
use super::settings::Settings;
use crate::car::{CalibrationBytes, Measured, Precision};
use crate::config::{Reader, Threshold};
use crate::shell;
use crate::stage::{self, ExportCOptions, ExportOptions, ExportedCalibration};

/// Arguments of `kdgat export`, in addition to the configuration.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The model: a run's folder or a weight file. With --c also two, a classifier and an autoencoder, which judge together as in `kdgat
    /// detect`
    #[arg(value_name = "RUN", num_args = 0..=2)]
    pub run: Vec<PathBuf>,
    /// The model, named by a flag; with --c also two
    #[arg(long, value_name = "RUN")]
    pub model: Vec<PathBuf>,
    /// Folder for the files (default: `export` in the run's folder)
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Also write the model as ONNX (not for autoencoders)
    #[arg(long)]
    pub onnx: bool,
    /// Write the whole detector as C99 source code to this folder instead: windows, features, model, calibration and verdict
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["output", "onnx", "examples"])]
    pub c: Option<PathBuf>,
    /// With --c: store the weights in 8 bits, a quarter of the size
    #[arg(long, requires = "c")]
    pub int8: bool,
    /// With --c: decision threshold, a score above which a window is an attack, or the rule of a recorded threshold (fpr:RATE or
    /// youden) (default: the one that `kdgat detect` uses)
    #[arg(long, value_name = "THRESHOLD", allow_negative_numbers = true, value_parser = parse_threshold, requires = "c")]
    pub threshold: Option<Threshold>,
    /// With --c: also write this calibration of the model (a name of `kdgat calibrate`, or a file) as NAME.calibration, for `kdgat-car --load`
    #[arg(long, value_name = "NAME|FILE", requires = "c")]
    pub calibration: Option<String>,
    /// With --c: compile the detector with `cc` and print its flash, memory and time a window on this machine
    #[arg(long, requires = "c")]
    pub measure: bool,
    /// Also write this many test graphs or nodes with the model's outputs, for testing a program that reads the export
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub examples: usize,
    #[command(flatten)]
    pub settings: Settings,
}

/// Exports the model and prints the files written.
pub fn run(mut args: ExportArgs) -> Result<ExitCode> {
    args.run = named_models(&args.run, &args.model, "kdgat export RUN")?;
    if let Some(folder) = &args.c {
        return run_c(&args, folder);
    }
    let [run] = args.run.as_slice() else {
        let two = args.run.iter().map(|run| run.display().to_string()).collect::<Vec<_>>().join(" and ");
        return Err(UsageError(format!("{two}: only --c exports two models together; name one")).into());
    };
    let reader = if args.examples > 0 { Reader::ExportExamples } else { Reader::Export };
    // Only examples need data.
    let of_data = if args.examples > 0 { std::slice::from_ref(run) } else { &[] };
    let loaded = args.settings.load_reading_of(reader, of_data)?;
    let options = ExportOptions { run: run.clone(), output: args.output, onnx: args.onnx, examples: args.examples };
    let exported = stage::export(&loaded.config, &options)?;
    let mut text = format!("written: {} in {}\n", exported.names.join(", "), exported.folder.display());
    if options.examples > 0 {
        let (written, wanted) = (exported.examples, options.examples);
        let fewer = if written < wanted {
            format!(", all that the dataset has ({wanted} were requested)")
        } else {
            String::new()
        };
        text += &format!("examples: {written} test {}s{fewer}\n", exported.unit);
    }
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Exports the detector as C and prints its figures.
fn run_c(args: &ExportArgs, folder: &Path) -> Result<ExitCode> {
    let loaded = args.settings.load_reading_of(Reader::Export, &[])?;
    let precision = if args.int8 { Precision::Int8 } else { Precision::F32 };
    let options = ExportCOptions {
        runs: args.run.clone(),
        folder: folder.to_owned(),
        precision,
        threshold: args.threshold,
        measure: args.measure,
        calibration: args.calibration.clone(),
    };
    let exported = stage::export_c(&loaded.config, &options)?;
    output::write(&format!(
        "written: {} files of C source in {}\n\
         attacks: {} above {} ({})\n\
         network: {} bytes of constants, at most {} multiply-accumulates a window\n\
         test it: make -C {} test\n",
        exported.files,
        exported.folder.display(),
        if args.run.len() > 1 { "means of both models' standardised scores" } else { "scores" },
        Threshold::Score(exported.threshold),
        exported.threshold_source,
        exported.weight_bytes,
        exported.most_operations,
        shell::quoted_path(&exported.folder),
    ))?;
    if let Some(calibration) = exported.calibration {
        output::write(&calibrated(&calibration))?;
    }
    if let Some(measured) = exported.measured {
        output::write(&figures(measured))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lines about a calibration for the C code.
fn calibrated(calibration: &ExportedCalibration) -> String {
    let ExportedCalibration { path, left_out } = calibration;
    let path = path.display();
    let left_out = left_out.as_ref().map_or(String::new(), |what| format!("warning: {what}\n"));
    format!("calibration: {path}, for kdgat-car --load {path}\n{left_out}")
}

/// Lines about a measured export.
fn figures(measured: Measured) -> String {
    let Measured { flash_small, flash_fast, state, calibration, .. } = measured;
    let calibration = calibration.map_or(String::new(), |CalibrationBytes { in_progress, saved }| {
        format!("; {in_progress} more during a calibration, which is saved in {saved} bytes")
    });
    format!(
        "flash: {flash_small} bytes of code and constants with cc -Os, {flash_fast} with -O2\n\
         memory: {state} bytes{calibration}\n\
         time: {:.1} µs of one core a window, {:.1} µs with the IDs that weigh most (cc -O2; {:.1} nodes on average, at most {})\n",
        measured.microseconds, measured.microseconds_explained, measured.mean_nodes, measured.most_nodes
    )
}
