//! The last step of reading a row, the same for files, pieces, streams and Parquet: chooses the interface, converts the time to
//! seconds, and counts.

use super::options::ReadOptions;
use crate::frame::Frame;
use crate::report::{FrameKind, Place, ReadReport};

/// Takes the frames that a format has parsed, in order.
pub struct Intake {
    units_a_second: f64,
    interfaces: Interfaces,
    /// Time of the last frame; infinite before the first, so that the first takes the cold path, too.
    last_timestamp: f64,
    /// Time and place of the first frame.
    first: Option<(f64, Place)>,
    /// Steps since the last [`Intake::settle`].
    shortest_step: f64,
    long_steps: u64,
}

impl Intake {
    /// Takes frames as these options say.
    pub fn new(options: &ReadOptions) -> Self {
        Self {
            units_a_second: options.units_a_second(),
            interfaces: Interfaces::new(options.interface.as_deref()),
            last_timestamp: f64::INFINITY,
            first: None,
            shortest_step: f64::INFINITY,
            long_steps: 0,
        }
    }

    /// Takes time and place of the first frame.
    pub fn take_first(&mut self) -> Option<(f64, Place)> {
        self.first.take()
    }

    /// Takes frames of this interface alone from now on.
    pub fn keep_interface(&mut self, name: &str) {
        self.interfaces.keep(name);
    }

    /// Counts a frame and returns it with its time in seconds; `None` for a frame of another interface than the wanted one. `place` is
    /// only called for the first frame and the first one that steps back in time.
    #[inline]
    pub fn frame(
        &mut self,
        mut frame: Frame,
        kind: FrameKind,
        interface: Option<&[u8]>,
        report: &mut ReadReport,
        place: impl FnOnce() -> Place,
    ) -> Option<Frame> {
        if let Some(name) = interface
            && !self.interfaces.count(name, report)
        {
            return None;
        }
        if self.units_a_second != 1.0 {
            frame.timestamp /= self.units_a_second;
        }
        report.accept(&frame, kind);
        let step = frame.timestamp - self.last_timestamp;
        if step > 0.0 {
            self.shortest_step = self.shortest_step.min(step);
            self.long_steps += u64::from(step > crate::report::LONG_STEP_SECONDS);
        } else {
            self.unusual_step(&frame, step, report, place);
        }
        self.last_timestamp = frame.timestamp;
        Some(frame)
    }

    /// Counts an error frame of the bus, unless it is of another interface than the wanted one.
    pub fn error_frame(&mut self, interface: Option<&[u8]>, report: &mut ReadReport) {
        if interface.is_none_or(|name| self.interfaces.wants(name)) {
            report.rows += 1;
            report.error_frames += 1;
        }
    }

    /// Adds to the report what was counted apart from it; call it before the report is read.
    pub fn settle(&mut self, report: &mut ReadReport) {
        self.interfaces.settle(report);
        report.times.long_steps += std::mem::take(&mut self.long_steps);
        let shortest = std::mem::replace(&mut self.shortest_step, f64::INFINITY);
        if shortest < f64::INFINITY {
            report.times.shorten(shortest);
        }
        if self.last_timestamp.is_finite() {
            report.times.last = Some(self.last_timestamp);
        }
    }

    /// Counts a frame that is the first, steps back in time, or has the time of the one before.
    #[cold]
    fn unusual_step(&mut self, frame: &Frame, step: f64, report: &mut ReadReport, place: impl FnOnce() -> Place) {
        if !self.last_timestamp.is_finite() {
            report.times.first = Some(frame.timestamp);
            self.first = Some((frame.timestamp, place()));
        } else if step < 0.0 {
            report.backward(-step, place);
        } else {
            report.times.equal += 1;
        }
    }
}

/// Frames by interface. Successive rows mostly name the same one, so it is compared first, and added to the report when it changes.
struct Interfaces {
    wanted: Option<Vec<u8>>,
    current: Vec<u8>,
    is_wanted: bool,
    /// Frames of `current` that are not in the report yet.
    frames: u64,
}

impl Interfaces {
    fn new(wanted: Option<&str>) -> Self {
        let wanted = wanted.map(|name| name.as_bytes().to_vec());
        Self { wanted, current: Vec::new(), is_wanted: true, frames: 0 }
    }

    fn keep(&mut self, name: &str) {
        self.wanted = Some(name.as_bytes().to_vec());
        self.is_wanted = self.wants(&self.current);
    }

    fn wants(&self, name: &[u8]) -> bool {
        self.wanted.as_deref().is_none_or(|wanted| wanted == name)
    }

    /// Counts a frame; returns true if its interface is wanted.
    #[inline]
    fn count(&mut self, name: &[u8], report: &mut ReadReport) -> bool {
        if name != self.current.as_slice() {
            self.settle(report);
            self.current.clear();
            self.current.extend_from_slice(name);
            self.is_wanted = self.wants(name);
        }
        self.frames += 1;
        self.is_wanted
    }

    fn settle(&mut self, report: &mut ReadReport) {
        if self.frames > 0 {
            report.add_of_interface(&String::from_utf8_lossy(&self.current), std::mem::take(&mut self.frames));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::options::TimeUnit;
    use super::*;
    use crate::formats::tests::frame;

    fn place() -> Place {
        Place::new(Path::new("a.log"), 1, b"row")
    }

    fn taken(options: &ReadOptions, rows: &[(f64, &[u8])]) -> (Vec<f64>, ReadReport) {
        let (mut intake, mut report) = (Intake::new(options), ReadReport::default());
        let take = |&(time, interface): &(f64, &[u8])| {
            let interface = Some(interface).filter(|name| !name.is_empty());
            intake.frame(frame(time, 1, &[], false), FrameKind::Data, interface, &mut report, place)
        };
        let times = rows.iter().filter_map(take).map(|frame| frame.timestamp).collect();
        intake.settle(&mut report);
        (times, report)
    }

    #[test]
    fn frames_of_another_interface_are_counted_and_left_out() {
        let rows: [(f64, &[u8]); 5] = [(1.0, b"can0"), (1.5, b"can1"), (2.0, b"can0"), (2.0, b"can0"), (3.0, b"can1")];
        let options = ReadOptions { interface: Some("can0".into()), ..ReadOptions::default() };
        let (times, report) = taken(&options, &rows);
        assert_eq!((times, report.rows, report.frames), (vec![1.0, 2.0, 2.0], 3, 3));
        assert_eq!(report.describe_interfaces(), "can0 (3 frames), can1 (2 frames)");
        assert_eq!((report.times.equal, report.times.long_steps, report.times.shortest_step), (1, 1, Some(1.0)));
        assert_eq!((report.times.first, report.times.last), (Some(1.0), Some(2.0)));
        assert_eq!(taken(&ReadOptions::default(), &rows).0.len(), 5);
    }

    #[test]
    fn times_are_in_seconds_whatever_their_unit() {
        let rows: [(f64, &[u8]); 3] = [(1500.0, b""), (1501.0, b""), (1500.5, b"")];
        for (unit, factor) in [(TimeUnit::Seconds, 1.0), (TimeUnit::Milliseconds, 1e3), (TimeUnit::Microseconds, 1e6)] {
            let (times, report) = taken(&ReadOptions { time_unit: Some(unit), ..ReadOptions::default() }, &rows);
            assert_eq!(times, rows.map(|(time, _)| time / factor));
            assert_eq!((report.backward_timestamps, report.interfaces.len()), (1, 0));
            assert!((report.largest_backward_step_seconds - 0.5 / factor).abs() < 1e-12);
        }
    }

    #[test]
    fn a_log_of_countless_interfaces_takes_little_memory() {
        let names: Vec<String> = (0..1000).map(|number| format!("{}-{number}", "x".repeat(100))).collect();
        let rows: Vec<(f64, &[u8])> = names.iter().map(|name| (1.0, name.as_bytes())).collect();
        let (_, report) = taken(&ReadOptions::default(), &rows);
        assert!(report.interfaces.len() <= 33 && report.interfaces.keys().all(|name| name.len() <= 32));
        assert_eq!(report.interfaces.values().sum::<u64>(), 1000);
    }
}
