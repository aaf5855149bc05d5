//! Findings of a check: its numbers as sentences for the user.

use std::path::Path;

use super::{CheckOptions, Copies, Finding, LogCheck, STRETCH_FRAMES, Severity, readable};
use crate::dataset::{Dataset, PassedOver, Role, too_short};
use crate::formats::{Format, rejected_help};
use crate::plausible;

/// Share of a test's benign stretches found in training from which a warning is given.
const MUCH_OVERLAP: f64 = 0.05;

/// Share of different payloads among attack-free training frames below which the traffic hardly varies. Recorded cars have 0.002 to 0.065 while
/// they are parked, and 0.3 to 0.4 on the road.
const HARDLY_VARIES: f64 = 0.08;
/// Fewest frames from which it is said: ten seconds of a usual bus.
const FEWEST_VARIED: u64 = 20_000;

/// All findings, worst first.
pub fn of(logs: &[LogCheck], copies: &[Copies], dataset: &Dataset, options: &CheckOptions) -> Vec<Finding> {
    let mut found = Findings(Vec::new());
    let passed_over = &dataset.passed_over;
    passed_over.iter().for_each(|passed| found.warning(passed.to_string()));
    let short = |log: &LogCheck| log.error.is_none() && log.report.frames <= options.window as u64;
    let short = logs.iter().map(|log| (log.folder.as_str(), log.name.as_str(), short(log)));
    too_short(short, options.window).into_iter().for_each(|text| found.warning(text));
    for log in logs {
        unreadable(log, options.max_reject_share, &mut found);
        implausible(log, options, &mut found);
        order_of_time(log, &mut found);
        overlap(log, &mut found);
        labels(log, &mut found);
    }
    for copy in copies {
        let names = copy.logs.join(", ");
        match copy.leaks {
            true => found.warning(format!(
                "the same log in training and in a test: {names}; its windows are left out of training"
            )),
            false => found.note(format!("the same log more than once: {names}")),
        }
    }
    same_beginning(logs, &mut found);
    unlabelled_tests(logs, &mut found);
    unseen(logs, &mut found);
    empty_payloads(logs, &mut found);
    variety(logs, &mut found);
    balance(logs, &mut found);
    missing_folders(logs, passed_over, &mut found);
    if options.format.is_none() {
        other_formats(logs, dataset, &mut found);
    }
    found.0.sort_by_key(|finding| finding.severity);
    found.0
}

struct Findings(Vec<Finding>);

impl Findings {
    fn error(&mut self, text: String) {
        self.0.push(Finding { severity: Severity::Error, text });
    }

    fn warning(&mut self, text: String) {
        self.0.push(Finding { severity: Severity::Warning, text });
    }

    fn note(&mut self, text: String) {
        self.0.push(Finding { severity: Severity::Note, text });
    }
}

fn unreadable(log: &LogCheck, max_reject_share: f64, found: &mut Findings) {
    if let Some(error) = &log.error {
        found.error(format!("{} cannot be read: {error}", log.title()));
    }
    if log.report.reject_share() > max_reject_share {
        let (rejected, rows) = (log.report.rejected_rows(), log.report.rows);
        found.error(format!(
            "{}: {rejected} of {rows} rows left out, more than the allowed {:.1} %: a build would refuse this log; repair the \
             file, set its format with --format, or raise --max-reject-share{}",
            log.title(),
            100.0 * max_reject_share,
            rejected_help(&log.report, log.format)
        ));
    }
    for (reason, rejections) in &log.report.rejected {
        let places: Vec<String> =
            rejections.first.iter().map(|place| format!("line {}: {:?}", place.line, place.text)).collect();
        let (count, rows) = (rejections.count, log.report.rows);
        found.warning(format!("{}: {count} of {rows} rows left out: {reason} ({})", log.title(), places.join("; ")));
    }
}

/// Errors for frames of several interfaces and for times that cannot be: a build would refuse the log.
fn implausible(log: &LogCheck, options: &CheckOptions, found: &mut Findings) {
    let (title, report) = (log.title(), &log.report);
    let checked = [
        plausible::check_interfaces(Path::new(&title), report, &options.read),
        plausible::check_times(Path::new(&title), report, &options.read),
    ];
    checked.into_iter().filter_map(Result::err).for_each(|error| found.error(error.to_string()));
    if log.ids_look_decimal {
        found.warning(format!(
            "{title}: none of its {} IDs has a letter from A to F: if they are decimal, convert them; they are read as hexadecimal",
            log.ids
        ));
    }
}

fn order_of_time(log: &LogCheck, found: &mut Findings) {
    let report = &log.report;
    if report.backward_timestamps == 0 {
        return;
    }
    let first = report.first_backward.as_ref().map_or(String::new(), |place| format!(", first at line {}", place.line));
    found.note(format!(
        "{}: time steps back {} times, by up to {}{first}; the order of rows is kept",
        log.title(),
        report.backward_timestamps,
        duration(report.largest_backward_step_seconds),
    ));
}

fn overlap(log: &LogCheck, found: &mut Findings) {
    if let Some(share) = log.benign_overlap.filter(|&share| share >= MUCH_OVERLAP) {
        found.warning(format!(
            "{}: {:.1} % of its stretches of {STRETCH_FRAMES} benign frames also occur in training: the background \
             is the same traffic, or hardly changes",
            log.title(),
            100.0 * share
        ));
    }
}

fn labels(log: &LogCheck, found: &mut Findings) {
    if let Some(notice) = &log.label_notice {
        found.warning(format!("{}: {notice}", log.title()));
    }
    match log.role {
        Role::TrainAttackFree if log.report.attack_frames > 0 => found.warning(format!(
            "{}: {} attack frames in a folder that is called attack-free",
            log.title(),
            log.report.attack_frames
        )),
        Role::TrainWithAttacks if log.report.attack_frames == 0 && log.report.frames > 0 => {
            found.note(format!("{}: no attack frame in a folder with attacks", log.title()));
        }
        _ => {}
    }
    if log.stray_frames > 0 {
        found.note(format!(
            "{}: {} frames are labelled attack-free, but their IDs have at most two such frames in this log: \
             they may be attack frames without a label",
            log.title(),
            log.stray_frames
        ));
    }
}

/// Warns about test folders in which no frame is labelled as an attack: such a test can only count false alarms.
fn unlabelled_tests(logs: &[LogCheck], found: &mut Findings) {
    let mut folders: Vec<&str> =
        logs.iter().filter(|log| log.role == Role::Test).map(|log| log.folder.as_str()).collect();
    folders.dedup();
    for folder in folders {
        let of_folder = || logs.iter().filter(|log| log.folder == folder);
        let [frames, attacks] = [|log: &LogCheck| log.report.frames, |log: &LogCheck| log.report.attack_frames]
            .map(|count| of_folder().map(count).sum::<u64>());
        if frames > 0 && attacks == 0 {
            found.warning(format!(
                "{folder}: none of its {frames} frames is labelled as an attack: recall, precision and F1 are not defined there, only \
                 false alarms are counted; if it has attacks, its labels are missing (a column `attack`, or ROAD's metadata \
                 beside the logs)"
            ));
        }
    }
}

/// Notes logs of a known dataset that are not in its published format: copies, or another dataset with its name.
fn other_formats(logs: &[LogCheck], dataset: &Dataset, found: &mut Findings) {
    let Some(published) = dataset.published_format else { return };
    for format in Format::ALL.into_iter().filter(|format| *format != published) {
        let mut titles = logs.iter().filter(|log| log.format == Some(format)).map(LogCheck::title);
        if let Some(first) = titles.next() {
            found.note(format!(
                "{} logs are in the format {format} ({first} is the first), but {} is published as {published}: check that --data is right",
                1 + titles.count(),
                dataset.name
            ));
        }
    }
}

fn same_beginning(logs: &[LogCheck], found: &mut Findings) {
    let mut times = logs.iter().filter_map(|log| log.first_timestamp);
    if let Some(first) = times.next()
        && logs.len() > 1
        && times.all(|time| time == first)
    {
        found.note(format!(
            "all logs begin at the same time ({}): their timestamps do not show when they were recorded",
            readable(first, 6)
        ));
    }
}

/// Notes traffic of unseen IDs for each test folder.
fn unseen(logs: &[LogCheck], found: &mut Findings) {
    let mut folders: Vec<&str> =
        logs.iter().filter(|log| log.role == Role::Test).map(|log| log.folder.as_str()).collect();
    folders.dedup();
    for folder in folders {
        let of_folder = || logs.iter().filter(|log| log.folder == folder);
        let benign: u64 = of_folder().map(|log| log.unseen.benign_frames).sum();
        let attack: u64 = of_folder().map(|log| log.unseen.attack_frames).sum();
        if benign + attack == 0 {
            continue;
        }
        let all_benign: u64 = of_folder().map(LogCheck::benign_frames).sum();
        let all_attack: u64 = of_folder().map(|log| log.report.attack_frames).sum();
        found.note(format!(
            "{folder}: IDs unseen in training send {} of its attack-free and {} of its attack frames",
            percent(benign, all_benign),
            percent(attack, all_attack)
        ));
    }
}

fn empty_payloads(logs: &[LogCheck], found: &mut Findings) {
    let benign: u64 = logs.iter().map(|log| log.empty_payloads.benign_frames).sum();
    let attack: u64 = logs.iter().map(|log| log.empty_payloads.attack_frames).sum();
    let side = match (benign, attack) {
        (0, 1..) => "attack",
        (1.., 0) => "attack-free",
        _ => return,
    };
    found.warning(format!(
        "{} frames have no payload, all of them {side} frames: a model may learn this instead of the attack",
        benign + attack
    ));
}

/// Warns about attack-free training traffic that hardly varies, such as that of a parked car.
fn variety(logs: &[LogCheck], found: &mut Findings) {
    let training = || logs.iter().filter(|log| log.role == Role::TrainAttackFree);
    let frames: u64 = training().map(LogCheck::benign_frames).sum();
    let payloads: u64 = training().map(|log| log.distinct_payloads).sum();
    if frames >= FEWEST_VARIED && (payloads as f64) < HARDLY_VARIES * frames as f64 {
        found.warning(format!(
            "attack-free training logs have {} different payloads among 100 frames: the car may be parked in them, and signals such as its \
             speed may never move; a detector then takes driving for an attack, so add drives in all states (standing, in town, on the \
             motorway)",
            readable(100.0 * payloads as f64 / frames as f64, 1)
        ));
    }
}

fn balance(logs: &[LogCheck], found: &mut Findings) {
    for (role, name) in [(Role::TrainWithAttacks, "training logs with attacks"), (Role::Test, "test logs")] {
        let of_role = || logs.iter().filter(|log| log.role == role);
        let frames: u64 = of_role().map(|log| log.report.frames).sum();
        let attacks: u64 = of_role().map(|log| log.report.attack_frames).sum();
        if frames > 0 {
            found.note(format!("{name}: {} of {frames} frames are attack frames", percent(attacks, frames)));
        }
        // For tests, `unlabelled_tests` warns about each folder.
        if role == Role::TrainWithAttacks && frames > 0 && attacks == 0 {
            found.warning(format!("{name} have no attack frame: check that their labels are read"));
        }
    }
}

/// Warns about missing roles. A folder without logs counts as present; it has a warning of its own.
fn missing_folders(logs: &[LogCheck], passed_over: &[PassedOver], found: &mut Findings) {
    let roles = || logs.iter().map(|log| log.role).chain(passed_over.iter().map(|passed| passed.role));
    if !roles().any(|role| role == Role::TrainAttackFree) {
        found.warning("no folder of attack-free training logs".to_string());
    }
    if !roles().any(|role| role == Role::Test) {
        found.warning("no test folder".to_string());
    }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2} %", 100.0 * part as f64 / whole.max(1) as f64)
}

fn duration(seconds: f64) -> String {
    match seconds {
        1.0.. => format!("{} s", readable(seconds, 2)),
        _ => format!("{:.3} ms", 1000.0 * seconds),
    }
}
