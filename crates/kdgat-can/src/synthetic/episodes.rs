//! Attacks a stretch of attack-free frames: episodes with pauses between them, and the frames that result.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::Range;
use std::vec::IntoIter;

use super::attacks::{self, Change, Injection, Strike};
use super::bus::Bus;
use super::record::SyntheticEpisode;
use super::traffic::Traffic;
use super::{SyntheticKind, WINDOW_FRAMES};
use crate::frame::Frame;
use crate::simulator::random::Stream;

/// Shortest and longest duration of an episode, in seconds.
const DURATIONS: [f64; 2] = [0.02, 2.5];
/// An episode covers at most one part in this many of its stretch.
const SHARE_OF_STRETCH: usize = 4;
/// Frames of the stretch before its first episode and after its last one, at least.
const MARGIN: usize = 10;
/// Frames between an attack and a harmless event after it, at least.
const EVENT_MARGIN: usize = 20;
/// Shares of a stretch between which the removal of an ID begins.
const REMOVED_FROM: [f64; 2] = [0.2, 0.4];
/// Number of the draw that decides about an event.
const EVENT_DRAW: u64 = 1 << 40;
/// Attempts to find a target at the same place.
const ATTEMPTS: u64 = 8;

/// A stretch with attacks.
#[derive(Debug, Default)]
pub(super) struct Attacked {
    /// The frames in order of time.
    pub frames: Vec<Frame>,
    /// The episodes; their frames count from the stretch's first one.
    pub episodes: Vec<SyntheticEpisode>,
}

/// How much of a stretch is attacked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    /// Share of the windows of 100 frames that have an attack, approximately.
    pub attacks: f64,
    /// Share of the pauses between attacks with a harmless event.
    pub events: f64,
}

/// Attacks `frames`.
pub(super) fn attack(frames: &[Frame], kind: SyntheticKind, shares: Shares, random: Stream, bus: &mut Bus) -> Attacked {
    bus.measure(frames);
    let traffic = Traffic::new(frames);
    let strikes = strikes(&traffic, kind, shares, random);
    Merger::new(frames, bus, strikes).merge()
}

/// The episodes and harmless events, in order.
fn strikes(traffic: &Traffic<'_>, kind: SyntheticKind, shares: Shares, random: Stream) -> Vec<Strike> {
    let Shares { attacks: share, events } = shares;
    let length = traffic.frames.len();
    if kind == SyntheticKind::Removal {
        let span = (length as f64 * random.between(0, REMOVED_FROM[0], REMOVED_FROM[1])) as usize..length;
        let attempt = |attempt| attacks::strike(kind, traffic, &span, random.child(attempt));
        return (0..ATTEMPTS).find_map(attempt).into_iter().collect();
    }
    let mut strikes = Vec::new();
    let mut begin = MARGIN + (random.uniform(u64::MAX) * 2.0 * WINDOW_FRAMES as f64 / share) as usize;
    // In a short stretch, the first pause must leave room for an attack.
    begin = begin.min(length / 3);
    for number in 0.. {
        let random = random.child(number);
        let longest = (length / SHARE_OF_STRETCH).min(length.saturating_sub(begin + MARGIN));
        if longest == 0 {
            break;
        }
        let seconds = random.log_between(0, DURATIONS[0], DURATIONS[1]);
        let span = begin..begin + ((seconds * traffic.frames_per_second) as usize).clamp(1, longest);
        let attempt = |attempt| attacks::strike(kind, traffic, &span, random.child(attempt));
        let Some(strike) = (0..ATTEMPTS).find_map(attempt) else {
            begin = span.end;
            continue;
        };
        let reach = strike.reach();
        let removed = strike.changes.iter().filter(|(_, change)| *change == Change::Remove).count();
        let frames = (reach.len() + strike.injections.len() - removed) as f64;
        // An episode touches windows for its own length and one more.
        let pause = (frames + WINDOW_FRAMES as f64) / share - frames;
        begin = reach.end + 1 + (pause * random.between(1, 0.5, 1.5)) as usize;
        strikes.push(strike);
        let quiet = reach.end + EVENT_MARGIN..begin.min(length);
        if quiet.len() > EVENT_MARGIN && random.uniform(EVENT_DRAW) < events {
            strikes.extend(attacks::event(traffic, &quiet, random.child(EVENT_DRAW)));
        }
    }
    strikes
}

/// Merges the frames of a stretch with those of the attackers.
struct Merger<'a> {
    frames: &'a [Frame],
    bus: &'a mut Bus,
    /// Positions, changes and episodes.
    changes: Peekable<IntoIter<(usize, Change, usize)>>,
    /// Frames to send, and their episodes.
    injections: Peekable<IntoIter<(Injection, usize)>>,
    /// Episodes of removed frames for which no other frame has been labelled yet.
    missing: VecDeque<usize>,
    episodes: Vec<SyntheticEpisode>,
    /// For each episode, true if its frames are labelled attack-free.
    harmless: Vec<bool>,
    merged: Vec<Frame>,
}

impl<'a> Merger<'a> {
    fn new(frames: &'a [Frame], bus: &'a mut Bus, strikes: Vec<Strike>) -> Self {
        let (mut changes, mut injections) = (Vec::new(), Vec::new());
        let mut episodes = Vec::with_capacity(strikes.len());
        let harmless = strikes.iter().map(|strike| strike.is_harmless).collect();
        for (number, strike) in strikes.into_iter().enumerate() {
            changes.extend(strike.changes.into_iter().map(|(position, change)| (position, change, number)));
            injections.extend(strike.injections.into_iter().map(|injection| (injection, number)));
            episodes.push(SyntheticEpisode {
                manner: strike.manner,
                begin_seconds: 0.0,
                end_seconds: 0.0,
                frames: 0..0,
                targets: strike.targets.iter().map(|can_id| format!("{can_id:03X}")).collect(),
                attack_frames: 0,
                strength: 0.0,
            });
        }
        let merged = Vec::with_capacity(frames.len() + injections.len());
        let (changes, injections) = (changes.into_iter().peekable(), injections.into_iter().peekable());
        Self { frames, bus, changes, injections, missing: VecDeque::new(), episodes, harmless, merged }
    }

    fn merge(mut self) -> Attacked {
        for (position, frame) in self.frames.iter().enumerate() {
            self.inject_before(position, frame.timestamp);
            let change = self.changes.next_if(|(changed, _, _)| *changed == position);
            self.send(frame, change.map(|(_, change, episode)| (change, episode)));
        }
        self.episodes.retain(|episode| episode.attack_frames > 0);
        for episode in &mut self.episodes {
            let Range { start, end } = episode.frames;
            episode.strength = 100.0 * episode.attack_frames as f64 / (end - start) as f64;
        }
        Attacked { frames: self.merged, episodes: self.episodes }
    }

    /// Sends the attackers' frames that are due before the frame at `position`, which the log has at `timestamp`.
    fn inject_before(&mut self, position: usize, timestamp: f64) {
        while let Some((injection, episode)) = self.injections.next_if(|(next, _)| next.position <= position) {
            let Injection { due, can_id, payload, .. } = injection;
            // Where the log's time steps back, a frame may be due after the next one.
            let due = due.min(timestamp);
            let Some(timestamp) = self.bus.send_injected(due, can_id, &payload) else { continue };
            self.merged.push(Frame {
                timestamp,
                can_id,
                payload: payload.bytes,
                payload_length: payload.length,
                attack: !self.harmless[episode],
            });
            self.count(episode);
        }
    }

    /// Sends a frame of the stretch, unless it is removed.
    fn send(&mut self, frame: &Frame, change: Option<(Change, usize)>) {
        let mut frame = *frame;
        let attack = match change {
            Some((Change::Remove, episode)) => return self.missing.push_back(episode),
            Some((Change::Replace(payload), episode)) => {
                (frame.payload, frame.payload_length) = (payload.bytes, payload.length);
                (!self.harmless[episode]).then_some(episode)
            }
            // A removed frame leaves nothing to label, so the next frame gets its label.
            None => self.missing.pop_front(),
        };
        frame.timestamp = self.bus.send_own(&frame);
        frame.attack |= attack.is_some();
        self.merged.push(frame);
        if let Some(episode) = attack {
            self.count(episode);
        }
    }

    /// Counts the last frame as an attack frame of an episode.
    fn count(&mut self, episode: usize) {
        let (frames, Some(last)) = (self.merged.len() as u64, self.merged.last()) else { return };
        // The record lists attacks only.
        if self.harmless[episode] {
            return;
        }
        let episode = &mut self.episodes[episode];
        if episode.attack_frames == 0 {
            (episode.begin_seconds, episode.frames.start) = (last.timestamp, frames - 1);
        }
        (episode.end_seconds, episode.frames.end) = (last.timestamp, frames);
        episode.attack_frames += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::{DrivePlan, simulate_drive};
    use proptest::prelude::*;

    fn drive(frames: u64) -> Vec<Frame> {
        simulate_drive(&DrivePlan { seed: 5, number: 1, begins_at_seconds: 1_700_000_000, frames, attacks: vec![] })
            .frames
    }

    fn attacked(frames: &[Frame], kind: SyntheticKind, share: f64, seed: u64) -> Attacked {
        attack(frames, kind, Shares { attacks: share, events: 0.0 }, Stream::new(seed), &mut Bus::default())
    }

    fn content(frame: &Frame) -> (u32, [u8; 8], u8) {
        (frame.can_id, frame.payload, frame.payload_length)
    }

    fn steps_back(frames: &[Frame]) -> usize {
        frames.windows(2).filter(|pair| pair[1].timestamp < pair[0].timestamp).count()
    }

    /// Checks that everything but the attack frames is the source's traffic, and that episodes and labels agree.
    fn check(source: &[Frame], kind: SyntheticKind, attacked: &Attacked) {
        let Attacked { frames, episodes } = attacked;
        assert!(steps_back(frames) <= steps_back(source), "{kind}: an attack makes time step back");
        let labelled: Vec<usize> = (0..frames.len()).filter(|&position| frames[position].attack).collect();
        assert_eq!(episodes.iter().map(|episode| episode.attack_frames).sum::<u64>(), labelled.len() as u64);
        for position in labelled {
            let covers = |episode: &&SyntheticEpisode| episode.frames.contains(&(position as u64));
            assert!(episodes.iter().any(|episode| covers(&episode)), "{kind}: frame {position} is in no episode");
        }
        for episode in episodes {
            let (first, last) = (episode.frames.start as usize, episode.frames.end as usize - 1);
            assert!(frames[first].attack && frames[last].attack, "{kind}");
            assert_eq!((frames[first].timestamp, frames[last].timestamp), (episode.begin_seconds, episode.end_seconds));
        }
        match kind {
            SyntheticKind::Masquerade => {
                assert_eq!(frames.len(), source.len());
                for (frame, truth) in frames.iter().zip(source) {
                    assert_eq!((frame.can_id, frame.timestamp), (truth.can_id, truth.timestamp));
                    assert_eq!(frame.attack, content(frame) != content(truth), "a replaced frame differs");
                }
            }
            SyntheticKind::Suppression => {
                let mut next = 0;
                let mut missing = 0u64;
                for frame in frames {
                    while content(&source[next]) != content(frame) || source[next].timestamp != frame.timestamp {
                        (next, missing) = (next + 1, missing + 1);
                    }
                    next += 1;
                    assert_eq!(frame.attack, missing > 0, "a label stands for a missing frame");
                    missing -= u64::from(frame.attack);
                }
            }
            _ => {
                let own: Vec<_> = frames.iter().filter(|frame| !frame.attack).collect();
                assert_eq!(own.len(), source.len(), "{kind}");
                for (frame, truth) in own.into_iter().zip(source) {
                    assert_eq!(content(frame), content(truth), "{kind}");
                    assert!(frame.timestamp >= truth.timestamp, "{kind}: a frame is sent before its time");
                }
            }
        }
    }

    #[test]
    fn about_the_wanted_share_of_windows_has_an_attack() {
        let source = drive(60_000);
        for kind in SyntheticKind::EPISODIC {
            for share in [0.2, 0.5, 0.8] {
                let result = attacked(&source, kind, share, 3);
                check(&source, kind, &result);
                let windows: Vec<&[Frame]> = result.frames.chunks_exact(WINDOW_FRAMES).collect();
                let with = windows.iter().filter(|window| window.iter().any(|frame| frame.attack)).count();
                let found = with as f64 / windows.len() as f64;
                assert!((found - share).abs() < 0.12, "{kind}: {found:.3} of the windows instead of {share}");
            }
        }
    }

    #[test]
    fn a_removed_id_is_silent_to_the_end() {
        let source = drive(20_000);
        let mut targets = std::collections::BTreeSet::new();
        for seed in 0..8 {
            let Attacked { frames, episodes } = attacked(&source, SyntheticKind::Removal, 0.5, seed);
            let [episode] = &episodes[..] else { panic!("{episodes:?}") };
            let target = u32::from_str_radix(&episode.targets[0], 16).unwrap();
            let last = frames.iter().rposition(|frame| frame.can_id == target).unwrap();
            assert!((3_500..9_000).contains(&last), "{last}");
            let removed = source.iter().filter(|frame| frame.can_id == target).count()
                - frames.iter().filter(|frame| frame.can_id == target).count();
            assert_eq!(frames.len() + removed, source.len());
            // Each missing frame has labelled another one, but for those at the end.
            let labelled = frames.iter().filter(|frame| frame.attack).count();
            assert!(removed >= 10 && (removed - 1..=removed).contains(&labelled), "{removed} {labelled}");
            targets.insert(target);
        }
        assert!(targets.len() > 2, "{targets:?}");
    }

    #[test]
    fn frames_wait_at_most_some_milliseconds_and_catch_up() {
        let source = drive(60_000);
        for kind in SyntheticKind::EPISODIC {
            let Attacked { frames, .. } = attacked(&source, kind, 0.5, 3);
            let own: Vec<&Frame> = frames.iter().filter(|frame| !frame.attack).collect();
            let delays = own.iter().zip(&source).map(|(frame, truth)| frame.timestamp - truth.timestamp);
            if ![SyntheticKind::Suppression, SyntheticKind::Masquerade].contains(&kind) {
                let longest = delays.clone().fold(0.0, f64::max);
                let on_time = delays.filter(|delay| *delay == 0.0).count();
                assert!(longest < 0.005, "{kind}: a frame waits {longest} s");
                assert!(2 * on_time > own.len(), "{kind}: {on_time} of {} frames are on time", own.len());
            }
        }
    }

    #[test]
    fn attacks_have_all_strengths_and_durations() {
        let source = drive(200_000);
        for kind in SyntheticKind::EPISODIC {
            let Attacked { frames, episodes } = attacked(&source, kind, 0.5, 4);
            let seconds = |episode: &SyntheticEpisode| episode.end_seconds - episode.begin_seconds;
            assert!(episodes.iter().any(|episode| seconds(episode) < 0.1), "{kind}: no short episode");
            assert!(episodes.iter().any(|episode| seconds(episode) > 1.0), "{kind}: no long episode");
            let long = || episodes.iter().filter(|episode| episode.frames.end - episode.frames.start > 100);
            // A flood has at least a frame every 5 ms.
            let weak = if kind == SyntheticKind::Flooding { 20.0 } else { 7.0 };
            assert!(long().any(|episode| episode.strength < weak), "{kind}: no weak episode");
            assert!(long().any(|episode| episode.strength > 12.0), "{kind}: no strong episode");
            assert!(long().all(|episode| episode.strength < 55.0), "{kind}: more than half of the frames");
            let attacks = frames.iter().filter(|frame| frame.attack).count();
            assert!(attacks > frames.len() / 100, "{kind}: {attacks} attack frames");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_frames() {
        let source = drive(20_000);
        for kind in SyntheticKind::EPISODIC {
            let frames = |seed| attacked(&source, kind, 0.5, seed).frames;
            assert_eq!(frames(1), frames(1));
            assert_ne!(frames(1), frames(2), "{kind}");
        }
    }

    /// Traffic with arbitrary times: steps back, long pauses, equal times.
    fn any_traffic() -> impl Strategy<Value = Vec<Frame>> {
        let step = prop_oneof![
            20 => (1u32..2_000).prop_map(|microseconds| f64::from(microseconds) / 1e6),
            3 => Just(0.0),
            1 => -0.001f64..0.0,
            1 => prop_oneof![Just(-7_200.0), Just(3_600.0), Just(-0.9), Just(5.0)],
        ];
        let frame = (step, prop_oneof![4 => 0u32..6, 1 => 0u32..(1 << 29)], any::<[u8; 8]>(), 0u8..9);
        prop::collection::vec(frame, 0..700).prop_map(|frames| {
            let mut timestamp = 1000.0;
            let build = |(step, can_id, payload, payload_length): (f64, u32, [u8; 8], u8)| {
                timestamp += step;
                let mut payload = payload.map(|byte| if byte < 128 { 0 } else { byte });
                payload[usize::from(payload_length)..].fill(0);
                Frame { timestamp, can_id, payload, payload_length, attack: false }
            };
            frames.into_iter().map(build).collect()
        })
    }

    proptest! {
        #[test]
        fn any_traffic_can_be_attacked(
            source in any_traffic(),
            kind in prop::sample::select(SyntheticKind::EPISODIC.to_vec()),
            share in 0.01f64..=1.0,
            seed in any::<u64>(),
        ) {
            let result = attacked(&source, kind, share, seed);
            // Frames may be equal, so that a missing one cannot be told from its neighbour.
            let are_distinct = source.windows(2).all(|pair| pair[0].timestamp != pair[1].timestamp);
            if kind != SyntheticKind::Suppression || (are_distinct && steps_back(&source) == 0) {
                check(&source, kind, &result);
            }
            prop_assert!(result.frames.len() <= 2 * source.len() + 1);
        }
    }
}
