//! `kdgat calibrate`: a model's threshold and score scale from attack-free traffic of another car.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tch::Device;

use super::exit::UsageError;
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
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
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
        "{}: attacks are above {:.3} deviations from what is usual ({}), from {} attack-free windows: {}\n",
        model.name,
        calibration.threshold,
        calibration.method,
        calibration.windows,
        path.display()
    );
    if (calibration.windows as f64) < 1.0 / rate {
        text += &format!(
            "{} windows are fewer than {:.0}: the threshold is their highest; longer traffic makes it surer\n",
            calibration.windows,
            (1.0 / rate).ceil()
        );
    }
    text += &about_ids(&calibration);
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// What the car's own list of IDs is worth, where a classifier has one.
fn about_ids(calibration: &Calibration) -> String {
    let Some(ids) = calibration.car.ids() else { return String::new() };
    let counted = format!("{} of {} windows had one that the rest has not", ids.foreign_windows, calibration.windows);
    match ids.evidence() > 0.0 {
        true => format!("an ID that is new to the car adds {:.1} to the log odds: {counted}\n", ids.evidence()),
        false => {
            format!("IDs that are new to the car count for nothing: {counted}; longer traffic may know its rare IDs\n")
        }
    }
}
