//! Checks of a log that was read: few rejected rows, frames of one interface, and times that a bus can have.
//!
//! Rows that cannot be read are only counted while reading, and any numbers are read as times. These checks refuse a log whose results would
//! be wrong without a word.

use std::path::Path;

use crate::check::readable;
use crate::error::CanError;
use crate::formats::{Format, ReadOptions, TimeUnit, rejected_help};
use crate::report::{ReadReport, Times};

/// Places named for each reason when too many rows are rejected.
const PLACES_NAMED: usize = 2;
/// Frames below which times are not judged: any few numbers may be right.
const LEAST_FRAMES: u64 = 50;
/// Frames a second that no bus carries: the shortest frames at 1 Mbit/s, or of CAN FD, come to some 20,000.
const MOST_A_SECOND: f64 = 30_000.0;
/// Frames a second below which a car that is driven hardly ever sends.
const FEW_A_SECOND: f64 = 10.0;
/// Share of frames with the time of the frame before, from which times were rounded. Whole milliseconds stay below: at most eight frames
/// come in one.
const MOSTLY_EQUAL: f64 = 0.9;
/// Shortest step between different times, in seconds, that with half of the times equal shows rounded times.
const COARSE_STEP: f64 = 0.005;
/// Share of frames that step back in time from which the times are not in order.
const OFTEN_BACK: f64 = 0.2;
/// Share of the log's duration by which the largest step back must go back: the order of frames that are close together does not matter.
const FAR_BACK: f64 = 0.05;
/// Largest difference between two rows, in seconds, with which steps back look like times since the row before.
const LARGEST_DIFFERENCE: f64 = 10.0;
/// Share of frames that step back in time from which the rows are in reverse order.
const MOSTLY_BACK: f64 = 0.8;
/// Time in seconds, in 1973, from which a time is one since 1970.
const LEAST_SINCE_1970: f64 = 1e8;
/// Frames a second of a usual bus.
const USUAL_A_SECOND: f64 = 1000.0;
/// Time in seconds, after the year 5000, from which a time since 1970 is in a smaller unit.
const AFTER_ANY_RECORDING: f64 = 1e11;
/// Units that times in tables may have instead of seconds, with their seconds.
const LARGE_UNITS: [(&str, f64); 3] = [("minutes", 60.0), ("hours", 3600.0), ("days, as spreadsheets count", 86_400.0)];

/// Checks a log after it was read, with everything below.
///
/// # Errors
/// Those of [`check_rejects`], [`check_interfaces`] and [`check_times`].
pub fn check_log(
    path: &Path,
    report: &ReadReport,
    format: Option<Format>,
    options: &ReadOptions,
    max_reject_share: f64,
) -> Result<(), CanError> {
    check_rejects(path, report, format, max_reject_share)?;
    check_interfaces(path, report, options)?;
    check_times(path, report, options)
}

/// Checks that at most a share of `allowed` of the rows was rejected.
///
/// # Errors
/// [`CanError::Rejected`].
pub fn check_rejects(path: &Path, report: &ReadReport, format: Option<Format>, allowed: f64) -> Result<(), CanError> {
    if report.reject_share() <= allowed {
        return Ok(());
    }
    let reasons = report.rejected.iter().map(|(reason, rejections)| {
        let place = |place: &crate::report::Place| format!("line {}: {:?}", place.line, place.text);
        let places: Vec<String> = rejections.first.iter().take(PLACES_NAMED).map(place).collect();
        format!("{} × {reason} ({})", rejections.count, places.join(", "))
    });
    Err(CanError::Rejected {
        path: path.to_path_buf(),
        rejected: report.rejected_rows(),
        rows: report.rows,
        allowed,
        places: reasons.collect::<Vec<_>>().join("; "),
        help: rejected_help(report, format),
    })
}

/// Checks that all frames are of one interface, or that the wanted one has some.
///
/// # Errors
/// [`CanError::SeveralInterfaces`] and [`CanError::NoSuchInterface`].
pub fn check_interfaces(path: &Path, report: &ReadReport, options: &ReadOptions) -> Result<(), CanError> {
    let path = path.to_path_buf();
    match &options.interface {
        None if report.interfaces.len() > 1 => {
            Err(CanError::SeveralInterfaces { path, found: report.describe_interfaces() })
        }
        Some(wanted) if report.interfaces.is_empty() && report.frames > 0 => {
            let found = "the rows of this log name no interface; leave --interface out".to_owned();
            Err(CanError::NoSuchInterface { path, wanted: wanted.clone(), found })
        }
        Some(wanted) if report.frames == 0 && !report.interfaces.is_empty() => {
            let found = format!("no frame is of this interface; the log has {}", report.describe_interfaces());
            Err(CanError::NoSuchInterface { path, wanted: wanted.clone(), found })
        }
        _ => Ok(()),
    }
}

/// Checks that the times can be those of a bus in seconds, unless the options set their unit.
///
/// # Errors
/// [`CanError::ImplausibleTimes`], with the unit that the times probably have.
pub fn check_times(path: &Path, report: &ReadReport, options: &ReadOptions) -> Result<(), CanError> {
    if options.time_unit.is_some() || report.frames < LEAST_FRAMES {
        return Ok(());
    }
    match doubt(report) {
        None => Ok(()),
        Some(Doubt { problem, advice }) => {
            Err(CanError::ImplausibleTimes { path: path.to_path_buf(), problem, advice })
        }
    }
}

/// Addition to advice that does not name the unit to give.
const AS_THEY_ARE: &str = "; --time-unit s reads them as they are";

/// Reason why times cannot be right.
struct Doubt {
    problem: String,
    advice: String,
}

fn doubt(report: &ReadReport) -> Option<Doubt> {
    let (first, last) = (report.times.first?, report.times.last?);
    let steps = (report.frames - 1) as f64;
    let share = |count: u64| count as f64 / steps;
    let seconds = last - first;
    let far_back = FAR_BACK * seconds.abs();
    let equal = share(report.times.equal);
    let rate = steps / seconds;
    let is_slow = is_slow(report, steps, rate);
    let is_coarse = report.times.shortest_step.is_some_and(|step| step > COARSE_STEP);
    if !is_slow && (equal > MOSTLY_EQUAL || equal > 0.5 && is_coarse) {
        return Some(rounded(report));
    }
    let goes_back = last < first || report.largest_backward_step_seconds > far_back;
    if share(report.backward_timestamps) > OFTEN_BACK && goes_back {
        return Some(often_back(report, first));
    }
    if first > AFTER_ANY_RECORDING {
        return Some(after_any_recording(first));
    }
    if rate > MOST_A_SECOND {
        return Some(too_many(report, seconds, rate));
    }
    is_slow.then(|| too_few(report, seconds, rate))
}

/// True if a log has fewer frames a second than a bus at work. A bus sends the frames of several IDs in groups; one ID with a regular period
/// may be all that a filter has left.
fn is_slow(report: &ReadReport, steps: f64, rate: f64) -> bool {
    let Times { equal, long_steps, shortest_step, .. } = report.times;
    // Times in whole milliseconds are often equal. Long pauses between drives make a log slow, too, but they are few.
    let forward = steps - (equal + report.backward_timestamps) as f64;
    let long = long_steps as f64 / forward.max(1.0);
    let is_irregular = shortest_step.is_some_and(|shortest| shortest < 0.5 / rate);
    rate > 0.0
        && (rate < 1.0 && long > 0.5
            || rate < FEW_A_SECOND && long > 0.95 && (is_irregular || report.ids.are_several()))
}

fn rounded(report: &ReadReport) -> Doubt {
    let (frames, equal, first) = (report.frames, report.times.equal, report.times.first.unwrap_or(0.0));
    Doubt {
        problem: format!("{equal} of {frames} frames have the time of the frame before (the first: {first})"),
        advice: "the times were probably rounded, as spreadsheets do: export the log again with all digits".to_owned()
            + AS_THEY_ARE,
    }
}

fn often_back(report: &ReadReport, first: f64) -> Doubt {
    let (frames, back) = (report.frames, report.backward_timestamps);
    let place = report.first_backward.as_ref();
    let place = place.map_or(String::new(), |place| format!(", first at line {}: {:?}", place.line, place.text));
    let is_reversed = back as f64 > MOSTLY_BACK * frames as f64;
    let are_small =
        report.largest_backward_step_seconds < LARGEST_DIFFERENCE && (0.0..LARGEST_DIFFERENCE).contains(&first);
    let are_differences = are_small && !is_reversed;
    let advice = match are_differences {
        true => {
            "the times are probably differences from row to row, as `candump -td` prints them: record with `candump -L` or \
             `candump -ta`"
        }
        false if first.abs() < LEAST_SINCE_1970 && !is_reversed => {
            "the rows are not in the order of their times, or the times are differences from row to row: sort the rows, or write the \
             time of each row"
        }
        false => {
            "the rows are not in the order of their times: sort them, or read the logs that they come from one by one"
        }
    };
    Doubt {
        problem: format!("time steps back at {back} of {frames} frames{place}"),
        advice: advice.to_owned() + AS_THEY_ARE,
    }
}

fn after_any_recording(first: f64) -> Doubt {
    let unit = match first {
        ..1e14 => TimeUnit::Milliseconds,
        ..1e17 => TimeUnit::Microseconds,
        _ => TimeUnit::Nanoseconds,
    };
    Doubt {
        problem: format!("its times begin at {first}, which in seconds since 1970 is after the year 5000"),
        advice: format!("they are probably in {}: give --time-unit {unit}", unit.plural()),
    }
}

fn is_usual(rate: f64) -> bool {
    (20.0..=20_000.0).contains(&rate)
}

fn too_many(report: &ReadReport, seconds: f64, rate: f64) -> Doubt {
    let usual = LARGE_UNITS.iter().filter(|(_, seconds)| is_usual(rate / seconds));
    let distance = |seconds: f64| (rate / seconds / USUAL_A_SECOND).ln().abs();
    let unit = usual.min_by(|(_, one), (_, other)| distance(*one).total_cmp(&distance(*other)));
    let advice = match unit {
        Some((unit, _)) => format!("the times are probably in {unit}: convert them to seconds"),
        None => "the times are probably rounded, or in a larger unit: convert them to seconds".to_owned(),
    };
    Doubt {
        problem: format!(
            "{} frames in {} s, {rate:.0} a second, are more than a bus can carry",
            report.frames,
            precise(seconds)
        ),
        advice: advice + AS_THEY_ARE,
    }
}

fn too_few(report: &ReadReport, seconds: f64, rate: f64) -> Doubt {
    let units = TimeUnit::ALL.into_iter().skip(1);
    let unit = units.into_iter().find(|unit| is_usual(rate * unit.per_second())).unwrap_or(TimeUnit::Milliseconds);
    Doubt {
        problem: format!(
            "{} frames in {} s, {} a second, are fewer than a bus usually has",
            report.frames,
            precise(seconds),
            precise(rate)
        ),
        advice: format!(
            "the times are probably in {}: give --time-unit {unit}; if the log is as slow as this (a parked car, filtered IDs), give \
             --time-unit s",
            unit.plural()
        ),
    }
}

/// Formats a number of any size.
fn precise(number: f64) -> String {
    match number.abs() {
        10.0.. => readable(number, 0),
        0.01.. => format!("{number:.2}"),
        _ => format!("{number:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::open_log_with;

    /// Times of a bus with a frame about every 0.8 ms, in seconds.
    fn usual(frames: u32) -> Vec<f64> {
        let step = |frame: u32| 0.000_25 + 0.001_1 * f64::from(frame * 7919 % 101) / 101.0;
        (0..frames)
            .scan(1_513_920_189.0, |time, frame| {
                *time += step(frame);
                Some(*time)
            })
            .collect()
    }

    fn report(times: &[f64], ids: usize, options: &ReadOptions) -> ReadReport {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive.csv");
        let row = |(row, time): (usize, &f64)| format!("{time:?},12{},00,0\n", row % ids);
        let rows: String = times.iter().enumerate().map(row).collect();
        std::fs::write(&path, rows).unwrap();
        let (mut log, mut frames) = (open_log_with(&path, None, options).unwrap(), Vec::new());
        while log.read_block(64, &mut frames).unwrap() > 0 {}
        log.report().clone()
    }

    /// Judges the times of frames that have several IDs.
    fn judged(times: &[f64], options: &ReadOptions) -> Result<(), String> {
        judged_of(times, 3, options)
    }

    fn judged_of(times: &[f64], ids: usize, options: &ReadOptions) -> Result<(), String> {
        check_times(Path::new("drive.csv"), &report(times, ids, options), options).map_err(|error| error.to_string())
    }

    #[test]
    fn usual_times_are_not_doubted() {
        let times = usual(1000);
        let from_zero: Vec<f64> = times.iter().map(|time| time - times[0]).collect();
        let whole_milliseconds: Vec<f64> = from_zero.iter().map(|time| (time * 1e3).floor() / 1e3).collect();
        // Two drives, a day apart; and one whose clock begins again.
        let two_drives: Vec<f64> =
            from_zero.iter().copied().chain(from_zero.iter().map(|time| time + 86_400.0)).collect();
        let again: Vec<f64> = from_zero.iter().chain(&from_zero[..500]).copied().collect();
        // Neighbours in the wrong order, as where injected frames were merged.
        let swapped: Vec<f64> = (0..1000).map(|frame| times[frame ^ usize::from(frame % 4 < 2)]).collect();
        // A car that sleeps, and wakes for some frames every 20 s.
        let parked: Vec<f64> =
            (0..500).map(|frame| f64::from(frame / 10 * 20) + 0.01 * f64::from(frame % 10)).collect();
        for times in [&times, &from_zero, &whole_milliseconds, &two_drives, &again, &swapped, &parked, &vec![7.0; 49]] {
            assert_eq!(judged(times, &ReadOptions::default()), Ok(()));
        }
    }

    /// A filter leaves one ID of a bus; all frames of a bus do not come at regular times of 0.5 s.
    #[test]
    fn a_regular_log_is_slow_for_a_bus_but_not_for_one_id() {
        let options = ReadOptions::default();
        let nearly: Vec<f64> = (0..500).map(|frame| f64::from(frame) * 0.5 + 0.001 * f64::from(frame % 3)).collect();
        let exactly: Vec<f64> = (0..500).map(|frame| f64::from(frame) * 0.5).collect();
        for times in [nearly, exactly] {
            assert_eq!(judged_of(&times, 1, &options), Ok(()));
            let error = judged_of(&times, 2, &options).unwrap_err();
            assert!(error.contains("milliseconds: give --time-unit ms"), "{error}");
        }
    }

    #[test]
    fn times_that_cannot_be_name_their_likely_unit() {
        let times = usual(1000);
        let in_unit = |per_second: f64| -> Vec<f64> { times.iter().map(|time| time * per_second).collect() };
        let from_zero =
            |per_second: f64| -> Vec<f64> { times.iter().map(|time| (time - times[0]) * per_second).collect() };
        let rounded_to = |per_second: f64, step: f64| -> Vec<f64> {
            from_zero(per_second).iter().map(|time| (time / step).floor() * step).collect()
        };
        let differences = || -> Vec<f64> { times.windows(2).map(|pair| pair[1] - pair[0]).collect() };
        let shuffled: Vec<f64> = (0..1000).map(|frame| 1e6 + 60.0 * f64::from(frame * 7919 % 1000)).collect();
        for (times, said) in [
            (in_unit(1e3), "milliseconds: give --time-unit ms"),
            (in_unit(1e6), "microseconds: give --time-unit us"),
            (in_unit(1e9), "nanoseconds: give --time-unit ns"),
            (from_zero(1e3), "milliseconds: give --time-unit ms"),
            (from_zero(1e6), "microseconds: give --time-unit us"),
            (from_zero(1e9), "nanoseconds: give --time-unit ns"),
            (rounded_to(1e3, 1.0), "milliseconds: give --time-unit ms"),
            (rounded_to(1e6, 1.0), "microseconds: give --time-unit us"),
            (from_zero(1.0 / 60.0), "probably in minutes"),
            (from_zero(1.0 / 3600.0), "probably in hours"),
            (from_zero(1.0 / 86_400.0), "probably in days"),
            (differences(), "as `candump -td` prints them"),
            (differences().iter().map(|step| step * 1e6).collect(), "or the times are differences from row to row"),
            (shuffled, "not in the order of their times"),
            (times.iter().rev().copied().collect(), "not in the order of their times: sort them"),
            (from_zero(1.0).into_iter().rev().collect(), "not in the order of their times: sort them"),
            (from_zero(1.0 / 2.0 / 86_400.0), "probably in days"),
            (vec![1.7e9; 60], "rounded, as spreadsheets do"),
            (times.iter().map(|time| time.floor()).collect(), "rounded, as spreadsheets do"),
            (times.iter().map(|time| (time * 1e2).floor() / 1e2).collect(), "rounded, as spreadsheets do"),
        ] {
            let error = judged(&times, &ReadOptions::default()).unwrap_err();
            assert!(error.contains(said) && error.contains("--time-unit "), "{error}");
            for unit in TimeUnit::ALL {
                assert_eq!(judged(&times, &ReadOptions { time_unit: Some(unit), ..ReadOptions::default() }), Ok(()));
            }
        }
    }

    #[test]
    fn an_interface_is_chosen_where_there_are_several() {
        let mut report = ReadReport { frames: 5, ..ReadReport::default() };
        let check = |report: &ReadReport, interface: Option<&str>| {
            let options = ReadOptions { interface: interface.map(str::to_owned), ..ReadOptions::default() };
            check_interfaces(Path::new("a.log"), report, &options).map_err(|error| error.to_string())
        };
        assert_eq!(check(&report, None), Ok(()));
        assert!(check(&report, Some("can0")).unwrap_err().contains("name no interface"));
        report.add_of_interface("can1", 2);
        assert_eq!((check(&report, None), check(&report, Some("can1"))), (Ok(()), Ok(())));
        report.add_of_interface("can0", 3);
        let error = check(&report, None).unwrap_err();
        assert!(error.contains("can0 (3 frames), can1 (2 frames); choose one with --interface NAME"), "{error}");
        assert_eq!(check(&report, Some("can1")), Ok(()));
        report.frames = 0;
        assert!(check(&report, Some("can7")).unwrap_err().contains("the log has can0 (3 frames)"));
    }
}
