//! `kdgat detect`: a line for each window of a stream of frames.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use tch::Device;

use super::exit::UsageError;
use super::output::OutputError;
use crate::can::{Format, ReadReport};
use crate::config::EvaluationConfig;
use crate::detect::{AttackAbove, DetectOptions, Detector, FrameStream};
use crate::evaluate::calibration::CALIBRATION;
use crate::evaluate::{Calibration, CarScale, TrainedModel, records};
use crate::interrupt;
use crate::nn::Architecture;
use crate::shell;

/// What `kdgat detect` takes.
#[derive(Args, Debug)]
pub struct DetectArgs {
    /// The model: a run's folder or a weight file
    #[arg(long, value_name = "RUN")]
    pub model: PathBuf,
    /// The traffic: a log in any format, a named pipe, or - for standard input (candump -L can0 | kdgat detect --model RUN -)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Score above which a window is an attack; without, that of the calibration, else the one recorded by `kdgat evaluate`
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = finite)]
    pub threshold: Option<f64>,
    /// A calibration for this car; without, calibration.json in the run's folder if there is one
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Frames from one window to the next; without, as in the model's training
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..))]
    pub stride: Option<u32>,
    /// Format of the log; without, it is recognised by its content
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Threads that compute
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=4096))]
    pub threads: i32,
}

/// A score that windows can be above or below.
fn finite(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim().parse().map_err(|_| "expected a number".to_owned())?;
    if number.is_finite() { Ok(number) } else { Err("expected a finite number, which scores can be above".to_owned()) }
}

/// Reads, scores and prints until the stream ends.
pub fn run(args: DetectArgs) -> Result<ExitCode> {
    tch::set_num_threads(args.threads);
    let model = TrainedModel::read(&args.model)?;
    let (threshold, car) = threshold(&args, &model)?;
    let stride = args.stride.map(|stride| stride as usize).or(model.stride).unwrap_or(model.description.window);
    let mut detector = Detector::new(&model, DetectOptions { stride, threshold, car }, Device::Cpu)?;
    // A stream of a bus goes on for ever: stopping is how it usually ends.
    interrupt::listen_to_stop_after("the frames that have come")?;
    let mut stream = FrameStream::open(&args.file, args.format)?;

    let mut output = BufWriter::new(io::stdout().lock());
    let (mut frames, mut attacks, mut busy) = (Vec::new(), 0u64, Duration::ZERO);
    let mut more = true;
    while more && !interrupt::requested() {
        more = stream.read(&mut frames)?;
        let start = Instant::now();
        detector.push(&frames, |detection| -> Result<()> {
            attacks += u64::from(detection.label == "attack");
            serde_json::to_writer(&mut output, &detection).map_err(|error| OutputError(error.into()))?;
            Ok(output.write_all(b"\n").map_err(OutputError)?)
        })?;
        // Whoever reads a live stream gets each line as soon as it is known.
        output.flush().map_err(OutputError)?;
        busy += start.elapsed();
    }
    eprintln!("{}", summary(&detector, attacks, busy, stream.report()));
    Ok(ExitCode::SUCCESS)
}

/// What is called an attack, and the car's own scale if there is one.
fn threshold(args: &DetectArgs, model: &TrainedModel) -> Result<(AttackAbove, Option<CarScale>)> {
    let in_run = model.folder.join(CALIBRATION);
    let calibration = match &args.calibration {
        Some(path) => Some(Calibration::read(path, &model.weights_digest)?),
        None if in_run.exists() => Some(Calibration::read(&in_run, &model.weights_digest)?),
        None => None,
    };
    if let Some(threshold) = args.threshold {
        return Ok((AttackAbove::Score(threshold), calibration.map(|calibration| calibration.car)));
    }
    if let Some(calibration) = calibration {
        return Ok((AttackAbove::Deviations(calibration.threshold), Some(calibration.car)));
    }
    let data = &model.description.dataset.digest;
    if let Some(recorded) = records::find(model, EvaluationConfig::default().threshold, data)? {
        return Ok((AttackAbove::Score(recorded.value), None));
    }
    if let Some(recorded) = records::read(model)?.pop() {
        return Ok((AttackAbove::Score(recorded.value), None));
    }
    match model.description.architecture {
        Architecture::Gat(_) => {
            eprintln!(
                "no threshold is recorded for {}: using a probability of 0.5; `kdgat evaluate {}` chooses one",
                model.name,
                shell::quoted_path(&args.model)
            );
            Ok((AttackAbove::Score(0.5), None))
        }
        Architecture::Vgae(_) => Err(UsageError(format!(
            "no threshold is recorded for {}, and the score of an autoencoder has no usual one; run `kdgat evaluate {}` or \
             `kdgat calibrate`, or give --threshold",
            model.name,
            shell::quoted_path(&args.model)
        ))
        .into()),
    }
}

fn summary(detector: &Detector, attacks: u64, busy: Duration, report: &ReadReport) -> String {
    let windows = detector.windows();
    let each = 1e3 * busy.as_secs_f64() / windows.max(1) as f64;
    let mut text = format!("{windows} windows, {attacks} called attacks, {each:.3} ms each; {} frames", report.frames);
    for (reason, rejections) in &report.rejected {
        let first = rejections.first.first().map_or(String::new(), |place| format!(", the first at {place}"));
        text += &format!("\n{} lines left out: {reason}{first}", rejections.count);
    }
    text
}
