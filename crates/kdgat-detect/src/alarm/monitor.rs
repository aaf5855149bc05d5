//! Joins verdicts and frames into one sequence of events.

use super::bus::{Bus, BusLimits, Counts};
use super::episode::{AlarmRule, Alarms, Verdict};
use super::event::Event;
use kdgat_can::Frame;

/// Clock of a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// A log: only its own times count.
    Log,
    /// A live stream.
    Live {
        /// The machine's clock at the arrival of the frames, in seconds since the start.
        now: f64,
        /// Share of its last rows that could not be read, from 0 to 1.
        reject_share: f64,
    },
}

impl Pace {
    fn now(self) -> Option<f64> {
        match self {
            Self::Log => None,
            Self::Live { now, .. } => Some(now),
        }
    }
}

/// The whole alarm layer of a stream.
#[derive(Debug)]
pub struct Monitor {
    alarms: Alarms,
    bus: Bus,
    /// Events of a frame; kept to reuse its memory.
    events: Vec<Event>,
}

impl Monitor {
    /// Creates the layer for a new stream.
    pub fn new(rule: AlarmRule, limits: BusLimits) -> Self {
        Self { alarms: Alarms::new(rule), bus: Bus::new(limits), events: Vec::new() }
    }

    /// Takes the frames that have arrived, perhaps none. `judge` scores frames and calls its second argument for each window that they
    /// complete; `each` gets the events in their order.
    ///
    /// # Errors
    /// Returns the first error of `judge` or `each`.
    pub fn push<E>(
        &mut self,
        frames: &[Frame],
        pace: Pace,
        mut judge: impl FnMut(&[Frame], &mut dyn FnMut(Verdict) -> Result<(), E>) -> Result<(), E>,
        mut each: impl FnMut(&Event) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { alarms, bus, events } = self;
        let mut begin = 0;
        let mut pass = |alarms: &mut Alarms, frames: &[Frame], each: &mut dyn FnMut(&Event) -> Result<(), E>| {
            if frames.is_empty() {
                return Ok(());
            }
            judge(frames, &mut |verdict| alarms.push(verdict).iter().try_for_each(&mut *each))
        };
        for (position, frame) in frames.iter().enumerate() {
            // The events of a frame come after the windows of the frames before it, wherever a block begins.
            let has_events = bus.has_events(frame.timestamp, pace.now());
            if has_events {
                pass(alarms, &frames[begin..position], &mut each)?;
                begin = position;
            }
            bus.frame(frame.timestamp, pace.now(), counts(alarms), events);
            if has_events {
                events.drain(..).try_for_each(|event| each(&event))?;
            }
        }
        pass(alarms, &frames[begin..], &mut each)?;
        if let Pace::Live { now, reject_share } = pace {
            bus.tick(now, reject_share, counts(alarms), events);
            events.drain(..).try_for_each(|event| each(&event))?;
        }
        Ok(())
    }

    /// Ends the stream; returns the end of an open episode.
    pub fn finish(&mut self) -> Option<Event> {
        self.alarms.finish()
    }

    /// Alarms raised.
    pub fn raised(&self) -> u64 {
        self.alarms.raised()
    }

    /// Alarms suppressed by the cooldown.
    pub fn suppressed(&self) -> u64 {
        self.alarms.suppressed()
    }

    /// Silences of the bus.
    pub fn silences(&self) -> u64 {
        self.bus.silences()
    }

    /// True if the stream ended in a silence.
    pub fn is_silent(&self) -> bool {
        self.bus.is_silent()
    }
}

fn counts(alarms: &Alarms) -> Counts {
    Counts { windows: alarms.windows(), alarms: alarms.raised(), suppressed: alarms.suppressed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarm::Severity;
    use proptest::prelude::*;

    const RULE: AlarmRule = AlarmRule { needed: 2, among: 3, clear: 2, cooldown_seconds: 1.0 };
    const LIMITS: BusLimits = BusLimits { silence_seconds: Some(0.5), heartbeat_seconds: Some(2.0) };

    /// Windows of three frames, an attack if one of them is labelled so.
    #[derive(Default)]
    struct Judge {
        pending: Vec<Frame>,
        windows: u64,
    }

    impl Judge {
        fn judge(&mut self, frames: &[Frame], each: &mut dyn FnMut(Verdict) -> Result<(), ()>) -> Result<(), ()> {
            for frame in frames {
                self.pending.push(*frame);
                if self.pending.len() == 3 {
                    let attack = self.pending.iter().any(|frame| frame.attack);
                    let (window, time) = (self.windows, self.pending[0].timestamp);
                    let (deviations, severity) = (None, Severity::Low);
                    each(Verdict {
                        window,
                        time,
                        attack,
                        score: 0.5,
                        deviations,
                        severity,
                        culprits: Vec::new(),
                        gone: Vec::new(),
                    })?;
                    self.windows += 1;
                    self.pending.clear();
                }
            }
            Ok(())
        }
    }

    /// Events of a log that arrives in blocks.
    fn events<'a>(blocks: impl IntoIterator<Item = &'a [Frame]>) -> Vec<Event> {
        let (mut monitor, mut judge, mut events) = (Monitor::new(RULE, LIMITS), Judge::default(), Vec::new());
        for block in blocks {
            let each = |event: &Event| {
                events.push(event.clone());
                Ok(())
            };
            monitor.push(block, Pace::Log, |frames, windows| judge.judge(frames, windows), each).unwrap();
        }
        events.extend(monitor.finish());
        events
    }

    #[test]
    fn events_of_windows_and_frames_come_in_their_order() {
        let frame = |(index, attack): (usize, bool)| Frame {
            timestamp: if index < 7 { 0.1 * index as f64 } else { 10.0 },
            can_id: 1,
            payload: [0; 8],
            payload_length: 0,
            attack,
        };
        let attacks = [true, false, false, true, false, false, false, false, false];
        let frames: Vec<Frame> = attacks.into_iter().enumerate().map(frame).collect();
        let names: Vec<&str> = events([&frames[..]]).iter().map(Event::name).collect();
        assert_eq!(names, ["alarm", "silence", "silence-end", "heartbeat", "alarm-end"]);
    }

    proptest! {
        #[test]
        fn the_events_are_the_same_for_any_blocks(
            frames in prop::collection::vec((any::<bool>(), prop::sample::select(vec![0.01, 0.1, 0.7, -0.3, 5.0, f64::NAN])), 0..150),
            ends in prop::collection::vec(0usize..150, 0..10),
        ) {
            let mut time = 0.0;
            let frame = |(attack, step): &(bool, f64)| {
                time += if step.is_nan() { 0.0 } else { *step };
                let timestamp = if step.is_nan() { f64::NAN } else { time };
                Frame { timestamp, can_id: 1, payload: [0; 8], payload_length: 0, attack: *attack }
            };
            let frames: Vec<Frame> = frames.iter().map(frame).collect();
            let mut ends: Vec<usize> = ends.into_iter().map(|end| end.min(frames.len())).chain([frames.len()]).collect();
            ends.sort_unstable();
            let begins = std::iter::once(0).chain(ends.iter().copied());
            let blocks: Vec<&[Frame]> = begins.zip(&ends).map(|(begin, end)| &frames[begin..*end]).collect();
            // By text: NaN is not equal to itself.
            let text = |events: Vec<Event>| format!("{events:?}");
            prop_assert_eq!(text(events(blocks)), text(events([&frames[..]])));
        }
    }
}
