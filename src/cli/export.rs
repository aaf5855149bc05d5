//! `kdgat export`: writes a trained model for other programs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::output;
use super::settings::Settings;
use crate::config::reads;
use crate::stage::{self, ExportOptions};

/// Arguments of `kdgat export`, in addition to the configuration.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The model: a run's folder or a weight file
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Folder for the files (default: `export` in the run's folder)
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Also write the model as ONNX (classifiers only)
    #[arg(long)]
    pub onnx: bool,
    /// Also write this many test graphs with the model's outputs, for testing a program that reads the export
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub examples: usize,
    #[command(flatten)]
    pub settings: Settings,
}

/// Exports the model and prints the files written.
pub fn run(args: ExportArgs) -> Result<ExitCode> {
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
        text += &format!("examples: {written} test graphs{fewer}\n");
    }
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}
