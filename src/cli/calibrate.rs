//! `kdgat calibrate`: threshold and score scale of a model, or of a classifier and an autoencoder together, from attack-free traffic of
//! another car.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tch::Device;

use super::detect::named_models;
use super::exit::UsageError;
use super::log_args::LogArgs;
use super::output;
use crate::can::synthetic::SyntheticKind;
use crate::config::{Setting, Threshold};
use crate::detect::source::STANDARD_INPUT;
use crate::detect::{self, Duration, FrameStream};
use crate::evaluate::attacked;
use crate::evaluate::calibration::{AttacksFound, Rule};
use crate::evaluate::calibrations;
use crate::evaluate::car::{ProfiledTraffic, Relations};
use crate::evaluate::ensemble::CarWindows;
use crate::evaluate::harm::FalseWindows;
use crate::evaluate::id_list::IdList;
use crate::evaluate::operator::Cut;
use crate::evaluate::scores::{EVEN_ODDS, Profiled};
use crate::evaluate::{Calibration, Ensemble, EvaluateError, Scorer, TrainedModel, car, records};
use crate::files;
use crate::graph::{CarProfile, Columns};
use crate::interrupt;
use crate::nn::attention::Backend;

/// Seconds of traffic below which too little is known about a car's rare IDs and usual scores.
const LEAST_SECONDS: f64 = 10.0;

/// Share of the windows with synthetic attacks of a kind, in percent, from which that kind counts as found.
const FOUND_PERCENT: f64 = 50.0;

/// Most windows that a car's profile is learned from: their frames are held in memory, about 6 kB each.
const MOST_WINDOWS: usize = 50_000;

/// Arguments of `kdgat calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// The model: a run's folder or a weight file. Two, a classifier and an autoencoder: for both together
    #[arg(value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// The model, named by a flag; may be given twice
    #[arg(long, value_name = "RUN")]
    pub model: Vec<PathBuf>,
    /// Attack-free traffic of the car: a log in any format, or - for standard input. Repeat the flag for several logs
    #[arg(long, value_name = "FILE", required = true)]
    pub benign: Vec<PathBuf>,
    /// Name of the calibration, for `kdgat detect --calibration NAME`; use one name per car (default: the name of the first log)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Write the calibration to this file instead of the run's folder
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub output: Option<PathBuf>,
    /// Overwrite an existing calibration of that name, or that file
    #[arg(long)]
    pub replace: bool,
    /// Use only this many seconds from the start of the traffic (default: all)
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Minimum duration of the traffic, in seconds; shorter traffic is refused. Lower it only for cars without more traffic
    #[arg(long, value_name = "SECONDS", default_value_t = LEAST_SECONDS, allow_negative_numbers = true, value_parser = seconds)]
    pub least_seconds: f64,
    /// Target false-positive rate: the share of attack-free windows that may be classified as attacks, as fpr:RATE
    #[arg(long, value_name = "THRESHOLD", default_value = "fpr:0.001")]
    pub threshold: String,
    #[command(flatten)]
    pub log: LogArgs,
    /// CPU threads for computation (default: one per core)
    #[arg(long, value_name = "COUNT", value_parser = super::commands::threads())]
    pub threads: Option<i32>,
}

/// Parses a duration in seconds, 0 or more.
fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim().parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err("expected seconds, 0 or more".to_owned()) }
}

/// Scores the traffic and writes the calibration.
pub fn run(args: CalibrateArgs) -> Result<ExitCode> {
    let Some(Threshold::FalsePositiveRate(rate)) = Threshold::parse(&args.threshold) else {
        let found = &args.threshold;
        return Err(UsageError(format!(
            "--threshold {found}: expected fpr:RATE, such as fpr:0.001; traffic without labels can only set a false-positive rate"
        ))
        .into());
    };
    if let Some(threads) = args.threads {
        tch::set_num_threads(threads);
    }
    if let Some(seconds) = args.seconds.filter(|seconds| *seconds < args.least_seconds) {
        let least = args.least_seconds;
        return Err(UsageError(format!(
            "--seconds {seconds}: a calibration needs at least {least} s of traffic; raise --seconds, or use --least-seconds {seconds}"
        ))
        .into());
    }
    expect_once(&args.benign)?;
    let models = Ensemble::read(&named_models(&args.runs, &args.model, "kdgat calibrate RUN --benign FILE")?)?;
    let path = target(&args, &models)?;
    expect_free(&path, args.replace)?;
    let scorer = |model: &TrainedModel| Scorer::new(model, Device::Cpu, Backend::Auto);
    let scorers = models.models().into_iter().map(scorer).collect::<Result<Vec<_>, _>>()?;
    let (window, stride) = (models.window()?, models.stride()?);
    // As in `detect`: a signal ends the reading, and the frames read so far are used.
    interrupt::listen_to_stop_after("the frames that have come")?;
    let rule = Rule::new(rate, window, stride);
    let mut traffic = Traffic::read(&args, &scorers, rule)?;
    expect_long_enough(&traffic, args.least_seconds)?;
    let (calibration, harm) = harmless(&models, &scorers, &mut traffic, rule)?;
    expect_free(&path, args.replace)?;
    if let Some(folder) = path.parent().filter(|_| args.output.is_none()) {
        let error = |source| EvaluateError::from(files::failed("make", folder)(source));
        std::fs::create_dir_all(folder).map_err(error)?;
    }
    calibration.write(&path)?;
    output::write(&(report(&models.name(), &calibration, traffic.seconds, rate, &path) + &harm))?;
    Ok(ExitCode::SUCCESS)
}

/// The calibration that this traffic gives.
fn calibration(models: &Ensemble, scorers: &[Scorer], traffic: &Traffic, rule: Rule) -> Result<Calibration> {
    let mut calibrated = Vec::new();
    for ((model, scorer), windows) in models.models().into_iter().zip(scorers).zip(&traffic.windows) {
        let profiled = traffic.profiled.get(calibrated.len());
        let least_score = match profiled {
            Some(profiled) if profiled.profile.counts_bytes() => least_score(model, rule.rate, windows.len())?,
            Some(_) => Some(EVEN_ODDS),
            None => None,
        };
        let (kind, foreign_ids) = (scorer.kind(), scorer.id_list().map(IdList::counted));
        let attacked = profiled.map_or(&[][..], |profiled| &profiled.attacked);
        let windows = CarWindows { kind, foreign_ids, windows, least_score, attacked };
        calibrated.push((model.weights_digest.as_str(), windows));
    }
    let mut calibration = Calibration::new(&calibrated, rule, &traffic.source)?;
    calibration.seconds = Some(traffic.seconds);
    let profiles: Vec<CarProfile> = traffic.profiled.iter().map(|profiled| profiled.profile.clone()).collect();
    if let Some(profile) = profiles.first() {
        let Rule { window, stride, .. } = rule;
        let removals = attacked::removals(&traffic.columns, Cut { window, stride }, profile);
        calibration.attacks.extend((removals.windows > 0).then_some(removals));
    }
    Ok(calibration.with_profiles(&profiles))
}

/// The calibration that this traffic gives, and what it says about its own traffic. Relations are left out if it calls more of that traffic attacks
/// than the models do without it.
///
/// # Errors
/// It does so without relations, too.
fn harmless(models: &Ensemble, scorers: &[Scorer], traffic: &mut Traffic, rule: Rule) -> Result<(Calibration, String)> {
    let count = |traffic: &Traffic, calibration: &Calibration| match traffic.profiled.is_empty() {
        true => Ok(None),
        false => FalseWindows::count(models, scorers, &traffic.columns, &traffic.windows, calibration, rule.rate),
    };
    let mut made = calibration(models, scorers, traffic, rule)?;
    let Some(mut found) = count(traffic, &made)? else {
        let text = match traffic.profiled.is_empty() {
            true => String::new(),
            false => format!(
                "not compared with the model without a calibration: no threshold {} is recorded for it\n",
                Threshold::FalsePositiveRate(rule.rate)
            ),
        };
        return Ok((made, text));
    };
    let mut text = String::new();
    if found.is_harm(rule.rate) && traffic.profiled.iter().any(|one| !one.profile.relations().is_empty()) {
        let with_relations = found;
        traffic.profile(scorers, rule, Relations::LeftOut)?;
        made = calibration(models, scorers, traffic, rule)?;
        found = count(traffic, &made)?.unwrap_or(found);
        text = format!(
            "relations between signals are left out: with them, {} of these {} windows would be called attacks ({} if each fifth is judged by the \
             others), and {} without any calibration\n",
            with_relations.with, with_relations.windows, with_relations.by_others, with_relations.without
        );
    }
    if found.is_harm(rule.rate) {
        return Err(UsageError(format!(
            "{}: {}: the model knows this car better. Use it without a calibration (kdgat detect without --calibration); for another car, give traffic \
             of that car. Nothing was written",
            traffic.source,
            found.describe()
        ))
        .into());
    }
    let advice = if found.with == found.without {
        ": on a car that the training has, use the model without a calibration"
    } else {
        ""
    };
    Ok((made, format!("{text}{}{advice}\n", found.describe())))
}

/// The least score that a model of the profile set may call an attack on another car; none, with a warning, if it is not recorded.
fn least_score(model: &TrainedModel, rate: f64, windows: usize) -> Result<Option<f64>, EvaluateError> {
    let rule = Threshold::FalsePositiveRate(rate);
    let recorded = records::recorded_by(model, rule)?;
    let least_score = recorded.first().map(|recorded| recorded.short_profile.unwrap_or(recorded.value));
    if least_score.is_none() {
        eprintln!(
            "warning: no threshold {rule} is recorded for {}, so the calibration's threshold rests on {windows} windows of this car alone; \
             run `kdgat evaluate` on the training data first",
            model.name
        );
    }
    Ok(least_score)
}

/// Describes the calibration: its threshold and source, and a warning if there was little traffic.
fn report(model: &str, calibration: &Calibration, seconds: f64, rate: f64, path: &Path) -> String {
    let Calibration { threshold, method, windows, .. } = calibration;
    let mut text = format!(
        "{model}: attacks are scores above {threshold:.2} on this car's scale: usual spreads above its usual score ({method}, from \
         {windows} attack-free windows ({seconds:.1} s))\n\
         written: {}\n",
        path.display()
    );
    if (*windows as f64) < 1.0 / rate {
        // A model of the profile set keeps its own threshold unless these windows contradict it.
        let chosen =
            if calibration.car.profile().is_some() { "" } else { " the threshold is their highest score, and" };
        text += &format!(
            "warning: a false-positive rate of {rate} needs at least {:.0} windows, and there are {windows}:{chosen} a larger share of \
             other windows may exceed the threshold; calibrate with longer traffic\n",
            (1.0 / rate).ceil()
        );
    }
    text + &about_ids(calibration) + &about_bytes(calibration) + &about_attacks(calibration)
}

/// Says that bytes are no evidence on this car, if so.
fn about_bytes(calibration: &Calibration) -> String {
    match calibration.car.profile() {
        Some(profile) if !profile.counts_bytes() => {
            "values and changes of bytes are no evidence of an attack on this car: its bytes still do what they had not done before in this \
             traffic; the times of frames, IDs and relations between signals are\n"
                .to_owned()
        }
        _ => String::new(),
    }
}

/// Says which synthetic attacks this calibration finds in copies of the traffic, and which it does not.
fn about_attacks(calibration: &Calibration) -> String {
    let share = |kind: &AttacksFound| 100.0 * kind.found as f64 / kind.windows as f64;
    let (found, missed): (Vec<_>, Vec<_>) = calibration.attacks.iter().partition(|kind| share(kind) >= FOUND_PERCENT);
    let described = |kind: &&AttacksFound| match kind.kind == SyntheticKind::Removal.to_string() {
        true => format!("{} {} of {} IDs", kind.kind, kind.found, kind.windows),
        false => format!("{} {:.0} %", kind.kind, share(kind)),
    };
    let listed = |kinds: Vec<&AttacksFound>| kinds.iter().map(described).collect::<Vec<_>>().join(", ");
    let mut text = String::new();
    if !found.is_empty() {
        text += &format!("synthetic attacks in copies of this traffic, windows found: {}\n", listed(found));
    }
    if !missed.is_empty() {
        text += &format!("this calibration will not find these attacks, or hardly: {}\n", listed(missed));
    }
    text
}

/// Scored attack-free traffic of a car.
struct Traffic {
    /// The windows as each model sees them.
    windows: Vec<Vec<Profiled>>,
    seconds: f64,
    /// Paths of the logs, for display.
    source: String,
    /// The car's profile and the windows under it, one entry for each model; empty for models of another feature set.
    profiled: Vec<ProfiledTraffic>,
    /// The windows themselves, for models of the profile set.
    columns: Columns,
}

impl Traffic {
    /// Reads the logs one after the other, up to the requested number of seconds.
    fn read(args: &CalibrateArgs, scorers: &[Scorer], rule: Rule) -> Result<Self> {
        let Rule { window, stride, .. } = rule;
        // An ensemble has at least one model.
        let features = scorers[0].features();
        let mut duration = Duration::up_to(args.seconds);
        let (mut windows, mut logs) = (vec![Vec::new(); scorers.len()], Vec::new());
        let mut columns = Columns::new(features);
        let mut has_more = false;
        for (number, log) in args.benign.iter().enumerate() {
            if duration.is_full() || interrupt::requested() {
                eprintln!("{}: not read; {:.1} s of traffic were read before it", log.display(), duration.seconds());
                continue;
            }
            let mut stream = FrameStream::open(log, &args.log.options())?;
            if features.needs_history() {
                let begin = columns.num_graphs();
                let (cut, number) = (Cut { window, stride }, number as u32);
                has_more |=
                    detect::collect_windows(&mut columns, MOST_WINDOWS, cut, number, &mut stream, &mut duration)?;
                let attacks: Vec<bool> = columns.labels[begin..].iter().map(|label| *label != 0).collect();
                expect_attack_free(log, &attacks)?;
            } else {
                let (of_log, attacks) = detect::profiled(scorers, window, stride, &mut stream, &mut duration)?;
                expect_attack_free(log, &attacks)?;
                windows.iter_mut().zip(of_log).for_each(|(windows, of_log)| windows.extend(of_log));
            }
            // A stream, too: what could be read of it is not the car's traffic.
            stream.check()?;
            logs.push(log.display().to_string());
        }
        if has_more {
            eprintln!("the profile is learned from the first {MOST_WINDOWS} windows; later traffic is not used");
        }
        let (seconds, source) = (duration.seconds(), logs.join(", "));
        let mut traffic = Self { windows, seconds, source, profiled: Vec::new(), columns };
        if features.needs_history() && traffic.columns.num_graphs() > 0 {
            traffic.profile(scorers, rule, Relations::BorneOut)?;
        }
        Ok(traffic)
    }

    /// Learns the car's profile, for models of the profile set.
    fn profile(&mut self, scorers: &[Scorer], rule: Rule, relations: Relations) -> Result<(), EvaluateError> {
        self.profiled.clear();
        for (scorer, windows) in scorers.iter().zip(&mut self.windows) {
            let of_model = car::profile_windows(scorer, &self.columns, rule, relations)?;
            windows.clone_from(&of_model.windows);
            self.profiled.push(of_model);
        }
        Ok(())
    }
}

/// Refuses a log that is given twice: its windows would be evaluated against themselves.
fn expect_once(logs: &[PathBuf]) -> Result<(), UsageError> {
    let place = |log: &Path| log.canonicalize().unwrap_or_else(|_| log.to_owned());
    let is_again = |(index, log): (usize, &PathBuf)| logs[..index].iter().any(|other| place(other) == place(log));
    match logs.iter().enumerate().find(|&(index, log)| is_again((index, log))) {
        Some((_, log)) => Err(UsageError(format!("--benign {} is given twice", log.display()))),
        None => Ok(()),
    }
}

/// The file that the calibration is written to.
fn target(args: &CalibrateArgs, models: &Ensemble) -> Result<PathBuf> {
    if let Some(output) = &args.output {
        return Ok(output.clone());
    }
    let first = &args.benign[..1];
    let after_log = || first.iter().find_map(|log| calibrations::name_after(log).filter(|name| name != STANDARD_INPUT));
    let name = args.name.clone().or_else(after_log).ok_or_else(|| {
        UsageError(
            "the calibration has no name; give one with --name, such as the car's, or a file with --output".to_owned(),
        )
    })?;
    Ok(calibrations::path(models, &name)?)
}

/// Refuses to overwrite a file unless `replace` is set. Devices and pipes are always written to.
fn expect_free(path: &Path, replace: bool) -> Result<(), UsageError> {
    if replace || !path.exists() || files::is_stream(path).unwrap_or(false) {
        return Ok(());
    }
    Err(UsageError(format!("{} exists already; use another --name, or --replace to overwrite it", path.display())))
}

fn expect_long_enough(Traffic { seconds, source, .. }: &Traffic, least: f64) -> Result<(), UsageError> {
    if *seconds >= least {
        return Ok(());
    }
    Err(UsageError(format!(
        "{source}: {seconds:.1} s of traffic, but a calibration needs at least {least} s; give a longer log or several (--benign FILE \
         --benign FILE), or a smaller --least-seconds"
    )))
}

fn expect_attack_free(log: &Path, attacks: &[bool]) -> Result<(), UsageError> {
    let with_attack = attacks.iter().filter(|attack| **attack).count();
    if with_attack == 0 {
        return Ok(());
    }
    Err(UsageError(format!(
        "{}: {with_attack} of {} windows are labelled as attacks; --benign needs attack-free traffic",
        log.display(),
        attacks.len()
    )))
}

/// Describes the evidence from the car's own list of IDs, if the classifier has one.
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
            "a CAN ID that is not in this traffic is no evidence of an attack: alone it would not lift a window above the threshold; \
             {counted}; longer traffic may change that\n"
        ),
    }
}
