//! IDs that fall silent for the rest of a drive.
//!
//! Who cuts off a control unit, or stops after a masquerade, leaves traffic in which nothing is wrong but that an ID is missing. Single
//! windows hardly show it, and after some seconds it is certain: the ID is silent for far longer than ever in attack-free traffic. How much
//! longer depends on how long it was watched. An ID is gone after ten times its longest silence L, and after more if the traffic T that it was watched
//! for has less than a thousand times L: 10 · L · max(1, 1000 · L / T), at least five seconds. So a message that sends every 10 ms is known after ten
//! seconds, one that sends every second after a quarter of an hour, and one that sends on change practically never.
//!
//! A car that is switched off or falls asleep silences many IDs at once; an attacker, few. While more than a quarter of the followed IDs are silent, and
//! more than three, none is called gone. Pauses of a recording teach no silence, and from one window's end to the next at most a second counts, so that
//! joined drives have no silence between them.

use super::pauses::LONGEST_STEP_SECONDS;
use super::{CarProfile, IdProfile};
use crate::GraphView;

/// Multiple of the longest silence from which an ID is gone.
const TIMES_LONGER: f32 = 10.0;
/// Traffic for each second of the longest silence from which on [`TIMES_LONGER`] is enough.
const EVIDENCE: f32 = 1000.0;
/// Least silence of a gone ID, in seconds.
const LEAST_SECONDS: f32 = 5.0;
/// Fewest gaps from which an ID has a longest silence.
const FEWEST_GAPS: u64 = 50;
/// Least silence of an ID that counts as silent with others, in seconds.
const SILENT_SECONDS: f32 = 1.0;
/// Number of silent IDs up to which they may be gone, whatever their share.
const FEW_SILENT: usize = 3;
/// Number of followed IDs of which one may be silent, if there are more than [`FEW_SILENT`].
const SILENT_OF: usize = 4;
/// Most IDs that a window reports; the next window reports the others.
pub const MOST_REPORTED: usize = 3;

/// Silence from which an ID is gone, in seconds, if it was never silent for longer than `longest_seconds` while it was watched; infinite if too little
/// is known.
pub(super) fn limit_seconds(gaps: u64, watched_seconds: f32, longest_seconds: f32) -> f32 {
    if gaps < FEWEST_GAPS || longest_seconds <= 0.0 || watched_seconds <= 0.0 {
        return f32::INFINITY;
    }
    (TIMES_LONGER * longest_seconds * (EVIDENCE * longest_seconds / watched_seconds).max(1.0)).max(LEAST_SECONDS)
}

impl IdProfile {
    /// Silence from which the ID is gone, in seconds; infinite for an ID that sends too irregularly, or was watched for too short a time.
    pub fn gone_seconds(&self) -> f32 {
        limit_seconds(self.gaps, self.known_seconds(), self.longest_silence_seconds)
    }

    /// Seconds of attack-free traffic that the ID was watched for. Profiles that do not know it count the pauses of recordings.
    pub fn known_seconds(&self) -> f32 {
        if self.watched_seconds > 0.0 { self.watched_seconds } else { self.gap_mean_seconds * self.gaps as f32 }
    }
}

/// An ID that has fallen silent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoneId {
    /// The ID.
    pub can_id: u32,
    /// Seconds since its last frame.
    pub silent_seconds: f32,
    /// Its longest silence in attack-free traffic, in seconds.
    pub longest_seconds: f32,
}

impl GoneId {
    /// What is unusual about it, in words.
    pub fn reason(&self) -> String {
        let Self { silent_seconds, longest_seconds, .. } = self;
        format!("gone for {silent_seconds:.1} s, longest silence ever {longest_seconds:.2} s")
    }
}

/// An ID that can be gone.
#[derive(Debug, Clone)]
struct Followed {
    can_id: u32,
    /// Silence from which it is gone, and from which it counts as silent with others.
    gone_seconds: f32,
    silent_seconds: f32,
    longest_seconds: f32,
    /// Clock at the last window with a frame of it; `None` before the first one of the drive.
    seen: Option<f64>,
    /// True if its silence was reported, or counted as the car's sleep.
    is_settled: bool,
}

impl Followed {
    fn silence(&self, clock: f64) -> f64 {
        self.seen.map_or(0.0, |seen| clock - seen)
    }
}

/// Follows the IDs of a drive and reports those that fall silent, each once until it returns.
#[derive(Debug, Clone)]
pub struct GoneWatch {
    /// Ascending by ID.
    ids: Vec<Followed>,
    clock: f64,
    /// Time of the last window's last frame; NaN before the first window.
    latest: f64,
}

impl GoneWatch {
    /// Begins a drive of a car with this profile.
    pub fn new(profile: &CarProfile) -> Self {
        let follow = |id: &IdProfile| {
            let gone_seconds = id.gone_seconds();
            gone_seconds.is_finite().then(|| Followed {
                can_id: id.can_id,
                gone_seconds,
                silent_seconds: (TIMES_LONGER * id.longest_silence_seconds).max(SILENT_SECONDS),
                longest_seconds: id.longest_silence_seconds,
                seen: None,
                is_settled: false,
            })
        };
        Self { ids: profile.ids().iter().filter_map(follow).collect(), clock: 0.0, latest: f64::NAN }
    }

    /// Takes the drive's next window, of the profile set. Returns the IDs that are gone since this window, at most [`MOST_REPORTED`], ascending.
    pub fn push(&mut self, view: &GraphView<'_>) -> Vec<GoneId> {
        self.advance(view.start_time + f64::from(view.frames.duration_seconds()));
        for (&can_id, &frames) in view.can_ids.iter().zip(view.frames.of_node) {
            if frames > 0
                && let Ok(at) = self.ids.binary_search_by_key(&can_id, |id| id.can_id)
            {
                (self.ids[at].seen, self.ids[at].is_settled) = (Some(self.clock), false);
            }
        }
        self.newly_gone(view)
    }

    fn advance(&mut self, end: f64) {
        let step = end - self.latest;
        // NaN at the first window; a step back in time counts nothing.
        if step > 0.0 {
            self.clock += step.min(LONGEST_STEP_SECONDS);
        }
        self.latest = end;
    }

    fn newly_gone(&mut self, view: &GraphView<'_>) -> Vec<GoneId> {
        let clock = self.clock;
        let is_over = |id: &Followed| !id.is_settled && id.silence(clock) > f64::from(id.gone_seconds);
        let mut gone = Vec::new();
        if !self.ids.iter().any(is_over) {
            return gone;
        }
        let followed = self.ids.iter().filter(|id| id.seen.is_some()).count();
        let silent = self.ids.iter().filter(|id| id.silence(clock) > f64::from(id.silent_seconds)).count();
        let is_asleep = silent > FEW_SILENT && SILENT_OF * silent > followed;
        for id in self.ids.iter_mut().filter(|id| is_over(id)) {
            if is_asleep {
                id.is_settled = true;
                continue;
            }
            // The window knows the frames between windows, too; it counts pauses in full.
            let silence = view.can_ids.binary_search(&id.can_id).map_or(f32::NAN, |node| view.frames.silence[node]);
            if gone.len() < MOST_REPORTED && silence > id.gone_seconds {
                id.is_settled = true;
                gone.push(GoneId { can_id: id.can_id, silent_seconds: silence, longest_seconds: id.longest_seconds });
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use kdgat_can::Frame;

    use super::super::{ProfileLearner, test_windows};
    use super::*;
    use crate::Columns;

    const WINDOW: usize = 20;

    fn frame(timestamp: f64, can_id: u32) -> Frame {
        Frame { timestamp, can_id, payload: [0; 8], payload_length: 8, attack: false }
    }

    /// IDs 1 to 8 every 10 ms each, ID 9 every 100 ms, and ID 10 in whole tens of seconds only, from `begin` for `seconds`; `has` says which frames there are.
    fn drive(begin: f64, seconds: f64, has: impl Fn(f64, u32) -> bool) -> Vec<Frame> {
        let step = |at: usize| {
            let time = 0.01 * at as f64;
            let ids = (1..=8).chain(at.is_multiple_of(10).then_some(9)).chain(at.is_multiple_of(1000).then_some(10));
            ids.map(move |can_id| frame(time + 0.0001 * f64::from(can_id), can_id))
        };
        let all = (0..(100.0 * seconds) as usize).flat_map(step);
        all.filter(|frame| has(frame.timestamp, frame.can_id))
            .map(|frame| Frame { timestamp: begin + frame.timestamp, ..frame })
            .collect()
    }

    fn columns(frames: &[Frame]) -> Columns {
        test_windows::of(frames, WINDOW)
    }

    fn profile(frames: &[Frame]) -> CarProfile {
        let windows = columns(frames);
        ProfileLearner::of((0..windows.num_graphs()).map(|window| windows.graph(window))).profile()
    }

    /// The IDs reported in a drive, with the time in it.
    fn reported(profile: &CarProfile, frames: &[Frame]) -> Vec<(u32, f64)> {
        let (windows, mut watch) = (columns(frames), GoneWatch::new(profile));
        let begin = frames[0].timestamp;
        let of_window = |window: usize| {
            let view = windows.graph(window);
            let gone = watch.push(&view);
            gone.into_iter().map(move |gone| (gone.can_id, view.start_time - begin))
        };
        (0..windows.num_graphs()).flat_map(of_window).collect()
    }

    #[test]
    fn an_id_that_is_gone_is_reported_once() {
        let car = profile(&drive(0.0, 120.0, |_, _| true));
        let limit = |can_id: u32| car.id(can_id).unwrap().gone_seconds();
        assert_eq!(limit(1), 5.0);
        assert!((limit(9) - 5.0).abs() < 0.1 && limit(10) == f32::INFINITY, "{} {}", limit(9), limit(10));
        assert_eq!(reported(&car, &drive(5000.0, 60.0, |_, _| true)), []);
        let removed = reported(&car, &drive(5000.0, 60.0, |time, id| id != 3 || time < 20.0));
        assert_eq!(removed.len(), 1, "{removed:?}");
        assert!(removed[0].0 == 3 && (24.9..25.2).contains(&removed[0].1), "{removed:?}");
        // Again after it was back.
        let twice =
            reported(&car, &drive(0.0, 60.0, |time, id| id != 3 || !(20.0..30.0).contains(&time) && time < 40.0));
        assert_eq!(twice.iter().map(|gone| gone.0).collect::<Vec<_>>(), [3, 3]);
        // An ID that this drive never had is none of its IDs.
        assert_eq!(reported(&car, &drive(0.0, 60.0, |_, id| id != 3)), []);
        let reason = GoneId { can_id: 3, silent_seconds: 12.04, longest_seconds: 0.301 }.reason();
        assert_eq!(reason, "gone for 12.0 s, longest silence ever 0.30 s");
    }

    #[test]
    fn a_car_that_falls_asleep_loses_no_id() {
        let car = profile(&drive(0.0, 120.0, |_, _| true));
        // Five of nine IDs stop within a second.
        let asleep = drive(0.0, 60.0, |time, id| id <= 4 || time < 20.0 + 0.1 * f64::from(id));
        assert_eq!(reported(&car, &asleep), []);
        // Three that stop together may have one sender.
        let cut_off = drive(0.0, 60.0, |time, id| !(4..=6).contains(&id) || time < 20.0);
        assert_eq!(reported(&car, &cut_off).iter().map(|gone| gone.0).collect::<Vec<_>>(), [4, 5, 6]);
    }

    /// A silence in attack-free traffic, also at its end, is none that has never been.
    #[test]
    fn silences_of_the_training_are_usual() {
        let sleeps = |time: f64, id: u32| id != 3 || time < 100.0;
        let car = profile(&drive(0.0, 160.0, sleeps));
        assert!((car.id(3).unwrap().longest_silence_seconds - 60.0).abs() < 0.3, "{:?}", car.id(3));
        assert_eq!(reported(&car, &drive(0.0, 300.0, sleeps)), []);
        assert!(car.id(4).unwrap().longest_silence_seconds < 0.03);
    }

    #[test]
    fn the_less_an_id_was_watched_the_longer_is_its_limit() {
        for (gaps, watched, longest, limit) in [
            (1000, 1000.0, 1.0, 10.0),
            (1000, 100.0, 1.0, 100.0),
            (1000, 500.0, 2.0, 80.0),
            (50, 5000.0, 2.0, 20.0),
            (1000, 10.0, 0.01, 5.0),
            (1000, 10.0, 0.1, 10.0),
            (49, 1000.0, 1.0, f32::INFINITY),
            (1000, 0.0, 1.0, f32::INFINITY),
            (1000, 1000.0, 0.0, f32::INFINITY),
        ] {
            let found = limit_seconds(gaps, watched, longest);
            assert!(found == limit || (found - limit).abs() < 1e-4 * limit, "{gaps} {watched} {longest}: {found}");
        }
    }

    /// Joined drives in one log teach the same as the drives themselves, wherever in a window the pause lies.
    #[test]
    fn a_pause_of_a_learned_log_is_no_silence() {
        let steady = profile(&drive(0.0, 120.0, |_, _| true));
        for (begin, parted) in [(600.0, 60.0), (1e6, 60.07), (600.0, 60.11), (90_000.0, 3.0)] {
            let mut joined = drive(0.0, parted, |_, _| true);
            joined.extend(drive(begin, 120.0 - parted, |_, _| true));
            let car = profile(&joined);
            for can_id in 1..=9 {
                let [joined, steady] = [&car, &steady].map(|car| car.id(can_id).unwrap());
                assert!(joined.longest_silence_seconds < 1.01 * steady.longest_silence_seconds, "{joined:?}");
                assert!((joined.watched_seconds - steady.watched_seconds).abs() < 0.2, "{joined:?}");
            }
            assert_eq!(car.id(1).unwrap().gone_seconds(), 5.0, "{:?}", car.id(1));
        }
        // Where no ID sends for seconds, none is followed.
        let slow: Vec<Frame> = (0..4000).map(|at| frame(2.5 * f64::from(at), 1 + at as u32 % 4)).collect();
        assert_eq!(profile(&slow).id(2).unwrap().gone_seconds(), f32::INFINITY);
    }

    /// A silence in windows of a labelled attack teaches nothing.
    #[test]
    fn a_silence_under_attack_is_none_of_the_ids() {
        let silenced = drive(0.0, 120.0, |time, id| id != 3 || !(30.0..50.0).contains(&time));
        let under_attack =
            |frame: Frame| Frame { attack: (29.5..50.5).contains(&frame.timestamp) && frame.can_id == 8, ..frame };
        let car = profile(&silenced.iter().copied().map(under_attack).collect::<Vec<_>>());
        assert!(car.id(3).unwrap().longest_silence_seconds < 0.03, "{:?}", car.id(3));
        assert!(profile(&silenced).id(3).unwrap().longest_silence_seconds > 19.9);
    }

    #[test]
    fn a_pause_of_the_log_is_no_silence() {
        let car = profile(&drive(0.0, 120.0, |_, _| true));
        let mut joined = drive(0.0, 30.0, |_, _| true);
        joined.extend(drive(90_000.0, 30.0, |time, id| id != 9 || time > 2.0));
        assert_eq!(reported(&car, &joined), []);
        let mut back = drive(90_000.0, 30.0, |_, _| true);
        back.extend(drive(0.0, 30.0, |_, _| true));
        assert_eq!(reported(&car, &back), []);
    }
}
