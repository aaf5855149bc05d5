//! `kdgat export`: writes a trained model for other programs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::detect::parse_threshold;
use super::output;
use super::settings::Settings;
use crate::car::{Measured, Precision};
use crate::config::{Threshold, reads};
use crate::shell;
use crate::stage::{self, ExportCOptions, ExportOptions};

/// Arguments of `kdgat export`, in addition to the configuration.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The model: a run's folder or a weight file
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
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
pub fn run(args: ExportArgs) -> Result<ExitCode> {
    if let Some(folder) = &args.c {
        return run_c(&args, folder);
    }
    let reads = if args.examples > 0 { &reads::EXPORT_EXAMPLES } else { &reads::EXPORT };
    // Only examples need data.
    let of_data = if args.examples > 0 { std::slice::from_ref(&args.run) } else { &[] };
    let loaded = args.settings.load_reading_of(reads, of_data)?;
    let options = ExportOptions { run: args.run, output: args.output, onnx: args.onnx, examples: args.examples };
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
    let loaded = args.settings.load_reading_of(&reads::EXPORT, &[])?;
    let precision = if args.int8 { Precision::Int8 } else { Precision::F32 };
    let options = ExportCOptions {
        run: args.run.clone(),
        folder: folder.to_owned(),
        precision,
        threshold: args.threshold,
        measure: args.measure,
    };
    let exported = stage::export_c(&loaded.config, &options)?;
    output::write(&format!(
        "written: {} files of C source in {}\n\
         attacks: scores above {} ({})\n\
         network: {} bytes of constants, at most {} multiply-accumulates a window\n\
         test it: make -C {} test\n",
        exported.files,
        exported.folder.display(),
        Threshold::Score(exported.threshold),
        exported.threshold_source,
        exported.weight_bytes,
        exported.most_operations,
        shell::quoted_path(&exported.folder),
    ))?;
    if let Some(measured) = exported.measured {
        output::write(&figures(measured))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lines about a measured export.
fn figures(measured: Measured) -> String {
    let Measured { flash_small, flash_fast, state, calibration, saved, .. } = measured;
    format!(
        "flash: {flash_small} bytes of code and constants with cc -Os, {flash_fast} with -O2\n\
         memory: {state} bytes; {calibration} more during a calibration, which is saved in {saved} bytes\n\
         time: {:.1} µs of one core a window, {:.1} µs with the IDs that weigh most (cc -O2; {:.1} nodes on average, at most {})\n",
        measured.microseconds, measured.microseconds_explained, measured.mean_nodes, measured.most_nodes
    )
}
