//! `kdgat detect`: scores a stream of frames with one model, or with a classifier and an autoencoder together, and prints one line per
//! window, or one per event with `--alarms`.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use tch::Device;

use super::alarms::{AlarmArgs, AlarmLayer};
use super::exit::UsageError;
use super::log_args::LogArgs;
use super::output::OutputError;
use crate::can::ReadReport;
use crate::can::report::IDS_LOOK_DECIMAL;
use crate::config::{Setting, Threshold};
use crate::detect::alarm::SeverityScale;
use crate::detect::{AttackAbove, DetectOptions, Detector, FrameStream};
use crate::evaluate::ensemble::EnsembleThreshold;
use crate::evaluate::operator::OperatorFigures;
use crate::evaluate::records::{self, RecordedThreshold};
use crate::evaluate::{CarScale, Ensemble, EvaluateError, Scale, TrainedModel, calibrations};
use crate::interrupt;
use crate::nn::Architecture;
use crate::shell;

const SECONDS_PER_HOUR: f64 = 3600.0;
/// Share of windows with unknown IDs above which the traffic is probably from another car.
const MOSTLY: f64 = 0.9;

/// Arguments of `kdgat detect`.
#[derive(Args, Debug)]
#[command(override_usage = "kdgat detect [OPTIONS] <RUN>... <FILE>")]
pub struct DetectArgs {
    /// The model, a run's folder or a weight file; two, a classifier and an autoencoder, judge together as in `kdgat evaluate`. Then the
    /// traffic: a log in any format, a named pipe, or - for standard input (candump -L can0 | kdgat detect RUN -)
    #[arg(value_names = ["RUN", "FILE"], required = true, num_args = 1..=3)]
    pub paths: Vec<PathBuf>,
    /// The model, if FILE stands alone; may be given twice
    #[arg(long, value_name = "RUN")]
    pub model: Vec<PathBuf>,
    /// Decision threshold: a score above which a window is an attack, or the rule of a recorded threshold (fpr:RATE or youden)
    /// (default: the calibration's threshold, else the one recorded by the training or by `kdgat evaluate`)
    #[arg(long, value_name = "THRESHOLD", allow_negative_numbers = true, value_parser = parse_threshold)]
    pub threshold: Option<Threshold>,
    /// Calibration for this car, by name or as a file; none, or without the flag: the traffic is from the car of the training data
    #[arg(long, value_name = "NAME|FILE")]
    pub calibration: Option<String>,
    /// Frames from the start of one window to the start of the next (default: the stride of the model's training)
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..))]
    pub stride: Option<u32>,
    #[command(flatten)]
    pub log: LogArgs,
    /// CPU threads for computation
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=4096))]
    pub threads: i32,
    #[command(flatten)]
    pub alarm: AlarmArgs,
}

impl DetectArgs {
    /// The models and the traffic, which is named last.
    fn named(&self) -> Result<(Vec<PathBuf>, &Path), UsageError> {
        let Some((file, runs)) = self.paths.split_last() else { return Err(no_model("kdgat detect RUN FILE")) };
        let models = named_models(runs, &self.model, "kdgat detect RUN FILE")?;
        Ok((models, file))
    }
}

/// The models that a command names: runs as they are, or with `--model`.
///
/// # Errors
/// None; `usage` says how to name one.
pub(super) fn named_models(runs: &[PathBuf], flags: &[PathBuf], usage: &str) -> Result<Vec<PathBuf>, UsageError> {
    match [runs, flags].concat() {
        none if none.is_empty() => Err(no_model(usage)),
        models => Ok(models),
    }
}

fn no_model(usage: &str) -> UsageError {
    UsageError(format!("no model is named; expected `{usage}`, where RUN is a run's folder or a weight file"))
}

/// Parses a threshold: a finite score, or a rule.
pub(super) fn parse_threshold(text: &str) -> Result<Threshold, String> {
    Threshold::parse(text.trim())
        .ok_or_else(|| "expected a finite number, fpr:RATE (above 0, below 1), or youden".to_owned())
}

/// Reads, scores and prints until the stream ends or a signal arrives.
pub fn run(args: DetectArgs) -> Result<ExitCode> {
    tch::set_num_threads(args.threads);
    let (models, file) = args.named()?;
    let models = Ensemble::read(&models)?;
    let Chosen { threshold, cars, source, rate } = threshold(&args, &models)?;
    let scales = scales(&models)?;
    let stride = args.stride.map_or_else(|| models.stride(), |stride| Ok(stride as usize))?;
    let nats = cars.first().filter(|_| cars.len() == 1).and_then(CarScale::nats_of_deviation);
    let options = DetectOptions { stride, threshold, cars, scales };
    let mut detector = Detector::new(&models.models(), options, Device::Cpu)?;
    // A live stream has no end; a signal is the usual way to stop.
    interrupt::listen_to_stop_after("the frames that have come")?;
    let mut stream = FrameStream::open_checked(file, &args.log.options())?;

    eprintln!("{}", described(threshold, &source, &detector));
    let mut layer = args.alarm.start(SeverityScale::new(detector.kind(), threshold).with_nats(nats))?;
    let mut output = BufWriter::new(io::stdout().lock());
    let watched = watch(&mut detector, &mut stream, layer.as_mut(), rate, &mut output);
    // Also after an error: an open episode has an end, and its commands run.
    let closing = layer.map(|layer| layer.close(&mut output));
    let busy = watched?;
    let closing = closing.transpose()?;

    let notes = notes(&detector, stream.report());
    let (windows, hits, aftermath) = (detector.windows(), detector.culprit_hits(), detector.aftermath_ids());
    let figures = detector.into_figures();
    eprintln!("{}; {} frames", alarms(windows, &figures, busy), stream.report().frames);
    if stream.has_labels() && windows > 0 {
        eprintln!("{}", by_labels(&figures));
        if aftermath > 0 {
            eprintln!(
                "by the labels: {} gone that had sent attack frames: found, not a false alarm",
                counted(aftermath, "ID")
            );
        }
        if hits.alarms > 0 {
            let (first, alarms) = (hits.first_is_attacker, hits.alarms);
            eprintln!(
                "by the labels: in {first} of {} for an attack, the first culprit sent attack frames",
                counted(alarms, "alarm")
            );
        }
    }
    notes.iter().for_each(|note| eprintln!("{note}"));
    let Some(closing) = closing else { return Ok(ExitCode::SUCCESS) };
    closing.lines.iter().for_each(|line| eprintln!("{line}"));
    Ok(closing.exit_code)
}

/// Scores and prints until the stream ends or a signal arrives; returns the time that this took, without waiting for frames.
fn watch(
    detector: &mut Detector,
    stream: &mut FrameStream,
    mut layer: Option<&mut AlarmLayer>,
    mut rate: Option<f64>,
    output: &mut impl Write,
) -> Result<Duration> {
    let (mut frames, mut busy) = (Vec::new(), Duration::ZERO);
    let mut more = true;
    while more && !interrupt::requested() {
        more = stream.read(&mut frames)?;
        stream.take_warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
        let start = Instant::now();
        match &mut layer {
            Some(layer) => layer.push(detector, &frames, stream.recent(), output)?,
            None => detector.push(&frames, |detection| -> Result<()> {
                serde_json::to_writer(&mut *output, &detection).map_err(|error| OutputError(error.into()))?;
                Ok(output.write_all(b"\n").map_err(OutputError)?)
            })?,
        }
        // Flushed at once, so that readers of a live stream see each line immediately.
        output.flush().map_err(OutputError)?;
        busy += start.elapsed();
        if let Some((asked, share)) = rate.and_then(|rate| Some((rate, detector.drowns(rate)?))) {
            eprintln!("{}", drowning(asked, share, detector.is_calibrated()));
            rate = None;
        }
    }
    Ok(busy)
}

/// The warning that far more windows are called attacks than were asked for.
fn drowning(asked: f64, share: f64, is_calibrated: bool) -> String {
    let known =
        if is_calibrated { "in neither the training data nor the calibration" } else { "not in the training data" };
    format!(
        "warning: {:.1} % of the windows of a minute are called attacks, where {:.1} % were asked for: if nobody attacks the car, such traffic \
         was {known}; calibrate with traffic of all states of the car (`kdgat calibrate`), or train on it",
        100.0 * share,
        100.0 * asked
    )
}

/// The threshold in use.
struct Chosen {
    threshold: AttackAbove,
    /// The car's own score scale for each model, from a calibration; otherwise empty.
    cars: Vec<CarScale>,
    /// Origin of the threshold, for display.
    source: String,
    /// Share of attack-free windows that it was chosen to call attacks, if it was chosen so.
    rate: Option<f64>,
}

/// Chooses the threshold: the user's, else the calibration's, else a recorded one, else 0.5 for a classifier.
fn threshold(args: &DetectArgs, models: &Ensemble) -> Result<Chosen> {
    let calibration = match &args.calibration {
        Some(asked) => calibrations::find(models, asked)?,
        None => {
            if let Some(known) = calibrations::known(models)? {
                eprintln!(
                    "no calibration is used; {} has {known}: choose this car's with --calibration",
                    models.name()
                );
            }
            None
        }
    };
    let of_score = |score: f64, source: String| Chosen {
        threshold: AttackAbove::Score(score),
        cars: Vec::new(),
        source,
        rate: None,
    };
    let rate_of = |method: &str| match Threshold::parse(method) {
        Some(Threshold::FalsePositiveRate(rate)) => Some(rate),
        _ => None,
    };
    match (args.threshold, calibration) {
        (Some(Threshold::Score(score)), calibration) => {
            let cars = calibration.map_or_else(Vec::new, |(_, calibration)| calibration.into_cars());
            Ok(Chosen { cars, ..of_score(score, "--threshold".to_owned()) })
        }
        (Some(rule), Some((path, calibration))) if Threshold::parse(&calibration.method) != Some(rule) => {
            Err(UsageError(format!(
                "--threshold {rule}: {} was made with {} and has no threshold for another rule; make one with `kdgat calibrate \
                 --threshold {rule}`, or leave --threshold out",
                path.display(),
                calibration.method
            ))
            .into())
        }
        (_, Some((path, calibration))) => {
            let source = format!("{} of {}, from {}", calibration.method, path.display(), calibration.source);
            let threshold = AttackAbove::Deviations(calibration.threshold);
            Ok(Chosen { threshold, rate: rate_of(&calibration.method), cars: calibration.into_cars(), source })
        }
        (asked, None) => match (recorded(models, asked)?, asked) {
            (Some(Recorded { method, value, dataset }), _) => {
                Ok(Chosen { rate: rate_of(&method), ..of_score(value, format!("{method}, recorded on {dataset}")) })
            }
            (None, Some(rule)) => Err(not_recorded(models, rule)?.into()),
            (None, None) => usual(models).map(|(score, source)| of_score(score, source)),
        },
    }
}

/// A recorded threshold.
struct Recorded {
    method: String,
    value: f64,
    dataset: String,
}

/// The threshold recorded for a rule, or without one the threshold that decides.
fn recorded(models: &Ensemble, rule: Option<Threshold>) -> Result<Option<Recorded>, EvaluateError> {
    if models.partner().is_some() {
        let found = rule.map_or_else(|| models.deciding(), |rule| models.recorded_by(rule))?;
        return Ok(found.map(|EnsembleThreshold { method, value, dataset, .. }| Recorded { method, value, dataset }));
    }
    let model = models.first();
    let found = match rule {
        Some(rule) => records::recorded_by(model, rule)?.into_iter().next(),
        None => records::deciding(model)?,
    };
    Ok(found.map(|RecordedThreshold { method, value, dataset, .. }| Recorded { method, value, dataset }))
}

/// Scales on which the scores of two models are standardised; none for one model.
fn scales(models: &Ensemble) -> Result<Vec<Scale>, EvaluateError> {
    if models.partner().is_some() { models.scales() } else { Ok(Vec::new()) }
}

/// The error for a rule without a recorded threshold: choosing one needs validation windows, which `detect` does not have.
fn not_recorded(models: &Ensemble, rule: Threshold) -> Result<UsageError, EvaluateError> {
    let methods: Vec<String> = match models.partner() {
        Some(_) => models.thresholds()?.into_iter().map(|one| one.method).collect(),
        None => records::read(models.first())?.into_iter().map(|one| one.method).collect(),
    };
    let others = if methods.is_empty() { String::new() } else { format!(" (recorded: {})", methods.join(", ")) };
    Ok(UsageError(format!(
        "--threshold {rule}: no such threshold is recorded for {}{others}; `{} --threshold {rule}` chooses it on validation windows \
         and records it",
        models.name(),
        models.evaluate_command()
    )))
}

/// The default threshold of a model without a recorded one, and its explanation.
fn usual(models: &Ensemble) -> Result<(f64, String)> {
    if models.partner().is_some() {
        return Err(UsageError(format!(
            "no threshold is recorded for {}, and the mean of two scores has no default threshold; run `{}`, or `kdgat calibrate` with both \
             models",
            models.name(),
            models.evaluate_command()
        ))
        .into());
    }
    let model: &TrainedModel = models.first();
    let run = shell::quoted_path(&model.folder);
    match model.description.architecture {
        Architecture::Gat(_) => {
            Ok((0.5, format!("no threshold is recorded for {}; `kdgat evaluate {run}` chooses one", model.name)))
        }
        Architecture::Graph(_)
        | Architecture::Nodes(_)
        | Architecture::GraphVgae(_)
        | Architecture::Pretraining(_) => Err(UsageError(format!(
            "{} was trained on graphs, not on CAN windows; `kdgat detect` needs a vgae or gat",
            model.name
        ))
        .into()),
        Architecture::Vgae(_) => Err(UsageError(format!(
            "no threshold is recorded for {}, and the scores of an autoencoder have no default threshold; run `kdgat evaluate {run}` \
             or `kdgat calibrate`, or give --threshold",
            model.name
        ))
        .into()),
    }
}

fn described(threshold: AttackAbove, source: &str, detector: &Detector) -> String {
    match threshold {
        AttackAbove::Score(score) if detector.kind().is_none() => {
            format!("attacks: means of both models' standardised scores above {} ({source})", Threshold::Score(score))
        }
        AttackAbove::Score(score) => format!("attacks: scores above {} ({source})", Threshold::Score(score)),
        AttackAbove::Deviations(deviations) => {
            format!(
                "attacks: scores above {deviations:.2} on this car's scale: usual spreads above its usual score ({source})"
            )
        }
    }
}

/// Line on the alarms, whether they were right or wrong.
fn alarms(windows: u64, figures: &OperatorFigures, busy: Duration) -> String {
    let each = 1e3 * busy.as_secs_f64() / windows.max(1) as f64;
    let episodes = match figures.alarm_episodes {
        0 => String::new(),
        episodes => format!(" in {}", counted(episodes, "episode")),
    };
    format!(
        "{windows} windows, {} of them called attacks{episodes}{}, {each:.3} ms each",
        figures.alarms,
        an_hour(figures.alarms_per_hour(), figures.seconds, "of traffic")
    )
}

/// Line that compares the alarms with the labels: the figures of `kdgat evaluate` for the same file and threshold.
fn by_labels(figures: &OperatorFigures) -> String {
    let rate = an_hour(figures.false_alarms_per_hour(), figures.seconds_without_attack, "without an attack");
    let mut text = format!("by the labels: {}{rate}", counted(figures.false_alarms, "false alarm"));
    if figures.episodes == 0 {
        return text + &format!("; no attack; at most {:.1} an hour", figures.false_alarms_per_hour_at_most());
    }
    text += &format!("; {} of {} found", figures.episodes_found(), counted(figures.episodes, "attack episode"));
    if figures.episodes_found() > 0 {
        let (median, largest) = (figures.median_delay_seconds(), figures.largest_delay_seconds());
        text += &format!(" after {median:.2} s (median; largest {largest:.2} s)");
    }
    text
}

/// Formats ` (240.1 an hour, in 89.9 s of traffic)`; empty without any traffic.
fn an_hour(rate: f64, seconds: f64, traffic: &str) -> String {
    let duration = match seconds {
        _ if rate.is_nan() => return String::new(),
        _ if seconds >= 2.0 * SECONDS_PER_HOUR => format!("{:.1} h", seconds / SECONDS_PER_HOUR),
        _ => format!("{seconds:.1} s"),
    };
    format!(" ({rate:.1} an hour, in {duration} {traffic})")
}

fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Lines on what was skipped, and on traffic that may be another car's.
fn notes(detector: &Detector, report: &ReadReport) -> Vec<String> {
    let mut notes = Vec::new();
    if report.error_frames > 0 {
        notes.push(format!("{} CAN error frames skipped", report.error_frames));
    }
    for (reason, rejections) in &report.rejected {
        let first = rejections.first.first().map_or(String::new(), |place| format!(", the first at {place}"));
        notes.push(format!("{} lines skipped: {reason}{first}", rejections.count));
    }
    if report.ids.look_decimal() {
        notes.push(IDS_LOOK_DECIMAL.to_owned());
    }
    let (windows, foreign) = (detector.windows(), detector.windows_with_unknown_ids());
    if !detector.is_calibrated() && windows > 0 && foreign as f64 > MOSTLY * windows as f64 {
        notes.push(format!(
            "{foreign} of {windows} windows have CAN IDs that the model's training data lacks, which counts as evidence of an \
             attack: if this is another car than in the training data, calibrate the model with its attack-free traffic \
             (`kdgat calibrate`)"
        ));
    }
    notes
}
