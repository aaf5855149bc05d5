//! `kdgat detect`: a line for each window of a stream of frames.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use tch::Device;

use super::exit::UsageError;
use super::log_format::LogFormatParser;
use super::output::OutputError;
use crate::can::{Format, ReadReport};
use crate::config::Threshold;
use crate::detect::{AttackAbove, DetectOptions, Detector, FrameStream};
use crate::evaluate::calibration::CALIBRATION;
use crate::evaluate::{Calibration, CarScale, TrainedModel, records};
use crate::interrupt;
use crate::nn::Architecture;
use crate::shell;

/// Share of windows with unknown IDs above which the car is probably another one.
const MOSTLY: f64 = 0.9;
/// Given as `--calibration`: the model's own threshold decides. A file of that name is `./none`.
const NO_CALIBRATION: &str = "none";

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
    /// A calibration for this car, or none; without, calibration.json in the run's folder if there is one
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Frames from one window to the next; without, as in the model's training
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..))]
    pub stride: Option<u32>,
    /// Format of the log; without, it is recognised by its content
    #[arg(long, value_name = "FORMAT", value_parser = LogFormatParser)]
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
    let Chosen { threshold, car, source } = threshold(&args, &model)?;
    let stride = args.stride.map(|stride| stride as usize).or(model.stride).unwrap_or(model.description.window);
    let mut detector = Detector::new(&model, DetectOptions { stride, threshold, car }, Device::Cpu)?;
    // A stream of a bus goes on for ever: stopping is how it usually ends.
    interrupt::listen_to_stop_after("the frames that have come")?;
    let mut stream = FrameStream::open(&args.file, args.format)?;

    eprintln!("{}", described(threshold, &source));
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

/// What is called an attack.
struct Chosen {
    threshold: AttackAbove,
    /// The car's own scale if there is one.
    car: Option<CarScale>,
    /// Where the threshold comes from, in words.
    source: String,
}

/// The user's threshold, else the calibration's, else a recorded one, else what is usual for a classifier.
fn threshold(args: &DetectArgs, model: &TrainedModel) -> Result<Chosen> {
    let in_run = model.folder.join(CALIBRATION);
    let path = match &args.calibration {
        Some(none) if none.as_os_str() == NO_CALIBRATION => None,
        Some(path) => Some(path.clone()),
        None => in_run.exists().then_some(in_run),
    };
    let read = |path: &PathBuf| Calibration::read(path, &model.weights_digest, model.description.foreign_ids);
    let calibration = path.as_ref().map(read).transpose()?;
    if let Some(threshold) = args.threshold {
        let car = calibration.map(|calibration| calibration.car);
        return Ok(Chosen { threshold: AttackAbove::Score(threshold), car, source: "--threshold".to_owned() });
    }
    if let (Some(calibration), Some(path)) = (calibration, path) {
        let source = format!("{} of {}, from {}", calibration.method, path.display(), calibration.source);
        let threshold = AttackAbove::Deviations(calibration.threshold);
        return Ok(Chosen { threshold, car: Some(calibration.car), source });
    }
    let of_score = |score: f64, source: String| Chosen { threshold: AttackAbove::Score(score), car: None, source };
    if let Some(recorded) = records::deciding(model)? {
        let source = format!("{}, recorded by `kdgat evaluate` on {}", recorded.method, recorded.dataset);
        return Ok(of_score(recorded.value, source));
    }
    let run = shell::quoted_path(&args.model);
    match model.description.architecture {
        Architecture::Gat(_) => Ok(of_score(
            0.5,
            format!("no threshold is recorded for {}; `kdgat evaluate {run}` chooses one", model.name),
        )),
        Architecture::Vgae(_) => Err(UsageError(format!(
            "no threshold is recorded for {}, and the score of an autoencoder has no usual one; run `kdgat evaluate {run}` or \
             `kdgat calibrate`, or give --threshold",
            model.name
        ))
        .into()),
    }
}

fn described(threshold: AttackAbove, source: &str) -> String {
    match threshold {
        AttackAbove::Score(score) => format!("attacks: scores above {} ({source})", Threshold::Score(score)),
        AttackAbove::Deviations(deviations) => {
            format!(
                "attacks: scores more than {deviations:.3} standard deviations above this car's usual score ({source})"
            )
        }
    }
}

fn summary(detector: &Detector, attacks: u64, busy: Duration, report: &ReadReport) -> String {
    let windows = detector.windows();
    let each = 1e3 * busy.as_secs_f64() / windows.max(1) as f64;
    let mut text = format!("{windows} windows, {attacks} called attacks, {each:.3} ms each; {} frames", report.frames);
    if report.error_frames > 0 {
        text += &format!("\n{} error frames of the bus skipped", report.error_frames);
    }
    for (reason, rejections) in &report.rejected {
        let first = rejections.first.first().map_or(String::new(), |place| format!(", the first at {place}"));
        text += &format!("\n{} lines skipped: {reason}{first}", rejections.count);
    }
    let foreign = detector.windows_with_unknown_ids();
    if !detector.is_calibrated() && windows > 0 && foreign as f64 > MOSTLY * windows as f64 {
        text += &format!(
            "\n{foreign} of {windows} windows have CAN IDs that the model's training data lacks, which counts as a sign of an \
             attack: if this is another car than that of the training, calibrate the model with its attack-free traffic \
             (`kdgat calibrate`)"
        );
    }
    text
}
