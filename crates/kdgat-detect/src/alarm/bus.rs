//! Silence and heartbeat of a bus, from the times of its frames and, on a live stream, from the machine's clock.

use super::Clock;
use super::event::{Event, Heartbeat, Silence, SilenceEnd};

/// Limits of a bus, in seconds; `None` for no such events.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BusLimits {
    /// Time without a frame after which a bus is silent.
    pub silence_seconds: Option<f64>,
    /// Time from one heartbeat to the next.
    pub heartbeat_seconds: Option<f64>,
}

/// Counts of the whole stream, from which heartbeats take differences.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    pub windows: u64,
    pub alarms: u64,
    pub suppressed: u64,
}

/// Watches a bus; the [module](super) defines silence and heartbeat. `now` is the machine's clock in seconds since the start on a live
/// stream, and `None` otherwise.
#[derive(Debug)]
pub struct Bus {
    limits: BusLimits,
    clock: Clock,
    frames: u64,
    /// Machine's clock at the last frame, or at the start.
    arrived: f64,
    silent: bool,
    silences: u64,
    /// Clock and counts at the last heartbeat: the machine's on a live stream, that of the frames otherwise.
    beat: f64,
    at_beat: Counts,
    frames_at_beat: u64,
}

impl Bus {
    /// Creates a watch of a bus without frames yet.
    pub fn new(limits: BusLimits) -> Self {
        Self {
            limits,
            clock: Clock::default(),
            frames: 0,
            arrived: 0.0,
            silent: false,
            silences: 0,
            beat: 0.0,
            at_beat: Counts::default(),
            frames_at_beat: 0,
        }
    }

    /// Number of silences so far.
    pub fn silences(&self) -> u64 {
        self.silences
    }

    /// True during a silence.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// True if a frame of this time causes events: cheap, and called for every frame.
    pub fn has_events(&self, time: f64, now: Option<f64>) -> bool {
        self.silent || self.gap(time).is_some() || (now.is_none() && self.beats(self.frame_clock(time)))
    }

    /// Takes a frame; appends its events. `counts` are those of the frames before it.
    pub fn frame(&mut self, time: f64, now: Option<f64>, counts: Counts, events: &mut Vec<Event>) {
        let gap = self.gap(time);
        if gap.is_some() && !self.silent {
            self.begin_silence(events);
        }
        let by_machine = now.map(|now| now - self.arrived);
        let frames_at_beat = self.frames;
        self.frames += 1;
        self.clock.advance(time);
        self.arrived = now.unwrap_or(0.0);
        if self.silent {
            self.silent = false;
            // A frame that ends a silence without a gap has come on a live stream.
            let seconds = gap.or(by_machine).unwrap_or(0.0);
            events.push(Event::SilenceEnd(SilenceEnd { time, seconds }));
        }
        if now.is_none() && self.beats(self.clock.seconds()) {
            self.heartbeat(self.clock.seconds(), frames_at_beat, counts, None, events);
        }
    }

    /// Takes the machine's clock of a live stream, and the share of its last rows that could not be read; appends the events that they
    /// cause.
    pub fn tick(&mut self, now: f64, reject_share: f64, counts: Counts, events: &mut Vec<Event>) {
        let limit = self.limits.silence_seconds;
        if !self.silent && limit.is_some_and(|limit| now - self.arrived >= limit) {
            self.begin_silence(events);
        }
        if self.beats(now) {
            self.heartbeat(now, self.frames, counts, Some(reject_share), events);
        }
    }

    /// Seconds from the last frame to this one, if they are more than the limit.
    fn gap(&self, time: f64) -> Option<f64> {
        let seconds = time - self.clock.last()?;
        // An infinite time is ignored like NaN.
        (time.is_finite() && seconds > self.limits.silence_seconds?).then_some(seconds)
    }

    /// The clock of frames at a frame of this time.
    fn frame_clock(&self, time: f64) -> f64 {
        let mut clock = self.clock.clone();
        clock.advance(time)
    }

    fn beats(&self, clock: f64) -> bool {
        self.limits.heartbeat_seconds.is_some_and(|period| clock - self.beat >= period)
    }

    fn begin_silence(&mut self, events: &mut Vec<Event>) {
        if let Some(limit_seconds) = self.limits.silence_seconds {
            (self.silent, self.silences) = (true, self.silences + 1);
            events.push(Event::Silence(Silence { time: self.clock.last(), limit_seconds }));
        }
    }

    fn heartbeat(
        &mut self,
        clock: f64,
        frames: u64,
        counts: Counts,
        reject_share: Option<f64>,
        events: &mut Vec<Event>,
    ) {
        events.push(Event::Heartbeat(Heartbeat {
            time: self.clock.last(),
            frames: frames - self.frames_at_beat,
            windows: counts.windows - self.at_beat.windows,
            alarms: counts.alarms - self.at_beat.alarms,
            suppressed: counts.suppressed - self.at_beat.suppressed,
            silent: self.silent,
            reject_share,
        }));
        (self.beat, self.at_beat, self.frames_at_beat) = (clock, counts, frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BusLimits = BusLimits { silence_seconds: Some(0.5), heartbeat_seconds: Some(10.0) };

    /// Names and times of events.
    fn named(events: &[Event]) -> Vec<(&'static str, Option<f64>)> {
        events.iter().map(|event| (event.name(), event.time())).collect()
    }

    fn of_log(limits: BusLimits, times: &[f64]) -> Vec<Event> {
        let (mut bus, mut events) = (Bus::new(limits), Vec::new());
        for &time in times {
            let before = events.len();
            let expected = bus.has_events(time, None);
            bus.frame(time, None, Counts::default(), &mut events);
            assert_eq!(events.len() > before, expected, "frame at {time}");
        }
        events
    }

    #[test]
    fn gaps_of_a_log_are_silences() {
        let events = of_log(LIMITS, &[7.0, 7.5, 8.25, 8.0, 8.5, f64::NAN, f64::INFINITY, 8.75, 9.5]);
        let expected = [("silence", 7.5), ("silence-end", 8.25), ("silence", 8.75), ("silence-end", 9.5)];
        assert_eq!(named(&events), expected.map(|(name, time)| (name, Some(time))));
        assert_eq!(events[1], Event::SilenceEnd(SilenceEnd { time: 8.25, seconds: 0.75 }));
        assert!(of_log(BusLimits::default(), &[1.0, 100.0, 2.0]).is_empty());
    }

    #[test]
    fn heartbeats_of_a_log_follow_its_time() {
        let limits = BusLimits { silence_seconds: None, ..LIMITS };
        let events = of_log(limits, &[1000.0, 1005.0, 1009.9, 1010.0, 1012.0, 5000.0, 5001.0, 5010.0]);
        let frames: Vec<(Option<f64>, u64)> = events
            .iter()
            .map(|event| if let Event::Heartbeat(beat) = event { (beat.time, beat.frames) } else { (None, 0) })
            .collect();
        assert_eq!(frames, [(Some(1010.0), 3), (Some(5000.0), 2), (Some(5010.0), 2)]);
        // At the end of a gap, the bus is not silent any more.
        let both = of_log(LIMITS, &[1.0, 20.0]);
        assert_eq!(named(&both), [("silence", Some(1.0)), ("silence-end", Some(20.0)), ("heartbeat", Some(20.0))]);
        assert!(matches!(&both[2], Event::Heartbeat(beat) if !beat.silent && beat.frames == 1));
    }

    #[test]
    fn a_live_bus_is_silent_by_the_clock() {
        let (mut bus, mut events) = (Bus::new(LIMITS), Vec::new());
        bus.tick(0.4, 0.0, Counts::default(), &mut events);
        assert!(events.is_empty());
        // No frame has come at all.
        bus.tick(0.5, 0.0, Counts::default(), &mut events);
        bus.tick(0.6, 0.0, Counts::default(), &mut events);
        bus.frame(100.0, Some(0.7), Counts::default(), &mut events);
        bus.frame(100.1, Some(0.7), Counts::default(), &mut events);
        bus.tick(1.25, 0.0, Counts::default(), &mut events);
        bus.frame(103.1, Some(3.0), Counts::default(), &mut events);
        assert_eq!(
            named(&events),
            [("silence", None), ("silence-end", Some(100.0)), ("silence", Some(100.1)), ("silence-end", Some(103.1))]
        );
        // By the machine's clock if the times of the frames do not say it.
        assert_eq!(events[1], Event::SilenceEnd(SilenceEnd { time: 100.0, seconds: 0.7 }));
        assert!(matches!(&events[3], Event::SilenceEnd(end) if (end.seconds - 3.0).abs() < 1e-9));
        assert_eq!((bus.silences(), bus.is_silent()), (2, false));
    }

    #[test]
    fn a_replay_is_silent_by_its_times() {
        let (mut bus, mut events) = (Bus::new(LIMITS), Vec::new());
        for time in [1.0, 1.1, 2.0, 2.1] {
            bus.frame(time, Some(0.1), Counts::default(), &mut events);
        }
        assert_eq!(named(&events), [("silence", Some(1.1)), ("silence-end", Some(2.0))]);
    }

    #[test]
    fn live_heartbeats_follow_the_clock_and_say_that_the_bus_is_silent() {
        let (mut bus, mut events) = (Bus::new(LIMITS), Vec::new());
        // The times of frames make no heartbeat.
        bus.frame(0.0, Some(0.1), Counts::default(), &mut events);
        bus.frame(0.1, Some(0.2), Counts::default(), &mut events);
        bus.tick(10.0, 0.0, Counts { windows: 5, alarms: 1, suppressed: 2 }, &mut events);
        bus.tick(19.9, 0.0, Counts { windows: 5, alarms: 1, suppressed: 2 }, &mut events);
        bus.tick(55.0, 0.25, Counts { windows: 7, alarms: 1, suppressed: 5 }, &mut events);
        let beats: Vec<&Heartbeat> = events
            .iter()
            .filter_map(|event| if let Event::Heartbeat(beat) = event { Some(beat) } else { None })
            .collect();
        let first = Heartbeat {
            time: Some(0.1),
            frames: 2,
            windows: 5,
            alarms: 1,
            suppressed: 2,
            silent: true,
            reject_share: Some(0.0),
        };
        let second =
            Heartbeat { frames: 0, windows: 2, alarms: 0, suppressed: 3, reject_share: Some(0.25), ..first.clone() };
        assert_eq!(beats, [&first, &second]);
    }
}
