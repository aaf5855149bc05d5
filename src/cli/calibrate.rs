//! `kdgat calibrate`: a model's threshold and score scale from attack-free traffic of another car.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tch::Device;

use super::exit::UsageError;
use super::log_format::LogFormatParser;
use super::output;
use crate::can::Format;
use crate::config::{Setting, Threshold};
use crate::detect::source::STANDARD_INPUT;
use crate::detect::{self, Duration, FrameStream};
use crate::evaluate::calibration::Rule;
use crate::evaluate::calibrations;
use crate::evaluate::id_list::IdList;
use crate::evaluate::scores::Profiled;
use crate::evaluate::{Calibration, EvaluateError, Scorer, TrainedModel};
use crate::files;
use crate::interrupt;
use crate::nn::attention::Backend;

/// Seconds of traffic below which a car's rare IDs and usual scores are hardly known.
const LEAST_SECONDS: f64 = 10.0;

/// What `kdgat calibrate` takes.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// The model: a run's folder or a weight file
    #[arg(long, value_name = "RUN", required = true)]
    pub model: Vec<PathBuf>,
    /// Attack-free traffic of the car: a log in any format, or - for standard input; given several times, several logs
    #[arg(long, value_name = "FILE", required = true)]
    pub benign: Vec<PathBuf>,
    /// Name of the calibration, one for each car: `kdgat detect --calibration NAME` uses it; without, the name of the first log
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Write the calibration to this file instead, not into the run's folder
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub output: Option<PathBuf>,
    /// Write over a calibration of that name, or over that file
    #[arg(long)]
    pub replace: bool,
    /// Use the first so many seconds of the traffic; without, all
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Seconds of traffic that a calibration takes at least
    #[arg(long, value_name = "SECONDS", default_value_t = LEAST_SECONDS, allow_negative_numbers = true, value_parser = seconds)]
    pub least_seconds: f64,
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

/// A time that traffic can last.
fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim().parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err("expected seconds, 0 or more".to_owned()) }
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
    if let Some(seconds) = args.seconds.filter(|seconds| *seconds < args.least_seconds) {
        let least = args.least_seconds;
        return Err(UsageError(format!(
            "--seconds {seconds}: a calibration takes at least {least} s of traffic; give more, or --least-seconds {seconds}"
        ))
        .into());
    }
    expect_once(&args.benign)?;
    let model = TrainedModel::read(only_model(&args.model)?)?;
    let path = target(&args, &model)?;
    expect_free(&path, args.replace)?;
    let scorer = Scorer::new(&model, Device::Cpu, Backend::Auto)?;
    let window = model.window()?;
    let stride = model.stride.unwrap_or(window);
    // As of `detect`: what has come by then is what is calibrated from.
    interrupt::listen_to_stop_after("the frames that have come")?;
    let traffic = Traffic::read(&args, &scorer, window, stride)?;
    let Traffic { windows, seconds, source } = &traffic;
    expect_long_enough(&traffic, args.least_seconds)?;
    let mut calibration = Calibration::new(
        (scorer.kind(), scorer.id_list().map(IdList::counted)),
        windows,
        Rule::new(rate, window, stride),
        &model.weights_digest,
        source,
    )?;
    calibration.seconds = Some(*seconds);
    expect_free(&path, args.replace)?;
    if let Some(folder) = path.parent().filter(|_| args.output.is_none()) {
        let error = |source| EvaluateError::File { path: folder.to_owned(), action: "make", source };
        std::fs::create_dir_all(folder).map_err(error)?;
    }
    calibration.write(&path)?;
    output::write(&report(&model.name, &calibration, *seconds, rate, &path))?;
    Ok(ExitCode::SUCCESS)
}

/// Describes the calibration: its threshold, its source, and a warning where there was little traffic.
fn report(model: &str, calibration: &Calibration, seconds: f64, rate: f64, path: &Path) -> String {
    let Calibration { threshold, method, windows, .. } = calibration;
    let mut text = format!(
        "{model}: attacks are scores more than {threshold:.3} standard deviations above this car's usual score ({method}, from \
         {windows} attack-free windows ({seconds:.1} s))\n\
         written: {}\n",
        path.display()
    );
    if (*windows as f64) < 1.0 / rate {
        text += &format!(
            "warning: a false-positive rate of {rate} takes at least {:.0} windows, and there are {windows}: the threshold is the \
             highest score among them, and more than that share of other windows may be above it; calibrate with longer traffic\n",
            (1.0 / rate).ceil()
        );
    }
    text + &about_ids(calibration)
}

/// Attack-free traffic of a car, scored.
struct Traffic {
    windows: Vec<Profiled>,
    seconds: f64,
    /// The logs.
    source: String,
}

impl Traffic {
    /// Reads the logs one after the other, until the seconds that are asked for are full.
    fn read(args: &CalibrateArgs, scorer: &Scorer, window: usize, stride: usize) -> Result<Self> {
        let mut duration = Duration::up_to(args.seconds);
        let (mut windows, mut logs) = (Vec::new(), Vec::new());
        for log in &args.benign {
            if duration.is_full() || interrupt::requested() {
                eprintln!("{}: not read, after {:.1} s of traffic", log.display(), duration.seconds());
                continue;
            }
            let mut stream = FrameStream::open(log, args.format)?;
            let (of_log, attacks) = detect::profiled(scorer, window, stride, &mut stream, &mut duration)?;
            expect_attack_free(log, &attacks)?;
            windows.extend(of_log);
            logs.push(log.display().to_string());
        }
        Ok(Self { windows, seconds: duration.seconds(), source: logs.join(", ") })
    }
}

/// The one model of a command that reads one: of two, none is passed over.
pub(super) fn only_model(models: &[PathBuf]) -> Result<&Path, UsageError> {
    match models {
        [model] => Ok(model),
        models => {
            let named = models.iter().map(|model| model.display().to_string()).collect::<Vec<_>>().join(", ");
            Err(UsageError(format!("--model is given {} times ({named}): expected one model", models.len())))
        }
    }
}

/// Refuses a log that is named twice: its windows would be judged by themselves.
fn expect_once(logs: &[PathBuf]) -> Result<(), UsageError> {
    let place = |log: &Path| log.canonicalize().unwrap_or_else(|_| log.to_owned());
    let is_again = |(index, log): (usize, &PathBuf)| logs[..index].iter().any(|other| place(other) == place(log));
    match logs.iter().enumerate().find(|&(index, log)| is_again((index, log))) {
        Some((_, log)) => Err(UsageError(format!("--benign {} is given twice", log.display()))),
        None => Ok(()),
    }
}

/// The file that the calibration is written to.
fn target(args: &CalibrateArgs, model: &TrainedModel) -> Result<PathBuf> {
    if let Some(output) = &args.output {
        return Ok(output.clone());
    }
    let first = &args.benign[..1];
    let after_log = || first.iter().find_map(|log| calibrations::name_after(log).filter(|name| name != STANDARD_INPUT));
    let name = args.name.clone().or_else(after_log).ok_or_else(|| {
        UsageError(
            "the calibration has no name: give one with --name, after the car, or a file with --output".to_owned(),
        )
    })?;
    Ok(calibrations::path(model, &name)?)
}

/// Refuses to write over a file, unless that was asked for; a device or a pipe is written into.
fn expect_free(path: &Path, replace: bool) -> Result<(), UsageError> {
    if replace || !path.exists() || files::is_stream(path).unwrap_or(false) {
        return Ok(());
    }
    Err(UsageError(format!("{}: is there already; give another --name, or --replace to write over it", path.display())))
}

fn expect_long_enough(Traffic { seconds, source, .. }: &Traffic, least: f64) -> Result<(), UsageError> {
    if *seconds >= least {
        return Ok(());
    }
    Err(UsageError(format!(
        "{source}: {seconds:.1} s of traffic, a calibration takes at least {least} s; give a longer log or several (--benign FILE \
         --benign FILE), or a smaller --least-seconds"
    )))
}

fn expect_attack_free(log: &Path, attacks: &[bool]) -> Result<(), UsageError> {
    let with_attack = attacks.iter().filter(|attack| **attack).count();
    if with_attack == 0 {
        return Ok(());
    }
    Err(UsageError(format!(
        "{}: {with_attack} of {} windows are labelled as attacks; --benign wants attack-free traffic",
        log.display(),
        attacks.len()
    )))
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
