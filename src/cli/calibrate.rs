//! `kdgat calibrate`: a model's threshold and score scale from attack-free traffic of another car.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tch::Device;

use super::exit::UsageError;
use super::log_format::LogFormatParser;
use super::output;
use crate::can::Format;
use crate::config::{Setting, Threshold};
use crate::detect::{self, FrameStream};
use crate::evaluate::calibration::CALIBRATION;
use crate::evaluate::id_list::IdList;
use crate::evaluate::{Calibration, Scorer, TrainedModel};
use crate::interrupt;
use crate::nn::attention::AttentionKernel;

/// What `kdgat calibrate` takes.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// The model: a run's folder or a weight file
    #[arg(long, value_name = "RUN")]
    pub model: PathBuf,
    /// Attack-free traffic of the car: a log in any format, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub benign: PathBuf,
    /// Where to write the calibration; without, calibration.json in the run's folder, where `kdgat detect` finds it
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Share of attack-free windows that may be called attacks: fpr:RATE
    #[arg(long, value_name = "THRESHOLD", default_value = "fpr:0.001")]
    pub threshold: String,
    /// Format of the log; without, it is recognised by its content
    #[arg(long, value_name = "FORMAT", value_parser = LogFormatParser)]
    pub format: Option<Format>,
    /// Threads that compute; without, one for each core
    #[arg(long, value_name = "COUNT", value_parser = super::commands::threads())]
    pub threads: Option<i32>,
}

/// Scores the traffic and writes the calibration.
pub fn run(args: CalibrateArgs) -> Result<ExitCode> {
    let Some(Threshold::FalsePositiveRate(rate)) = Threshold::parse(&args.threshold) else {
        let found = &args.threshold;
        return Err(UsageError(format!(
            "--threshold {found}: traffic without labels can only set a false-positive rate, such as fpr:0.001"
        ))
        .into());
    };
    if let Some(threads) = args.threads {
        tch::set_num_threads(threads);
    }
    let model = TrainedModel::read(&args.model)?;
    let scorer = Scorer::new(&model, Device::Cpu, AttentionKernel::Auto)?;
    let window = model.window()?;
    // As of `detect`: what has come by then is what is calibrated from.
    interrupt::listen_to_stop_after("the frames that have come")?;
    let mut stream = FrameStream::open(&args.benign, args.format)?;
    let (windows, attacks) = detect::profiled(&scorer, window, model.stride.unwrap_or(window), &mut stream)?;
    let source = args.benign.display().to_string();
    let with_attack = attacks.iter().filter(|attack| **attack).count();
    if with_attack > 0 {
        return Err(UsageError(format!(
            "{source}: {with_attack} of {} windows are labelled as attacks; --benign wants attack-free traffic",
            attacks.len()
        ))
        .into());
    }
    let calibration = Calibration::new(
        (scorer.kind(), scorer.id_list().map(IdList::counted)),
        &windows,
        rate,
        &model.weights_digest,
        &source,
    )?;
    let path = args.output.unwrap_or_else(|| model.folder.join(CALIBRATION));
    calibration.write(&path)?;
    let mut text = format!(
        "{}: attacks are scores more than {:.3} standard deviations above this car's usual score ({}, from {} attack-free windows)\n\
         written: {}\n",
        model.name,
        calibration.threshold,
        calibration.method,
        calibration.windows,
        path.display()
    );
    if (calibration.windows as f64) < 1.0 / rate {
        text += &format!(
            "warning: a false-positive rate of {rate} takes at least {:.0} windows, and there are {}: the threshold is the highest \
             score among them, and more than that share of other windows may be above it; calibrate with longer traffic\n",
            (1.0 / rate).ceil(),
            calibration.windows
        );
    }
    text += &about_ids(&calibration);
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// What the car's own list of IDs is worth, where a classifier has one.
fn about_ids(calibration: &Calibration) -> String {
    let Some(ids) = calibration.car.ids() else { return String::new() };
    let (foreign, all) = (ids.foreign_windows, calibration.windows);
    let counted = format!("{foreign} of these {all} windows have a CAN ID that the rest of the traffic lacks");
    match ids.evidence() > 0.0 {
        true => format!(
            "a CAN ID that is not in this traffic raises a window's log odds of an attack by {:.1}; {counted}\n",
            ids.evidence()
        ),
        false => format!(
            "CAN IDs that are not in this traffic do not count as a sign of an attack: one alone would not lift a window above the \
             threshold; {counted}; longer traffic may change that\n"
        ),
    }
}
