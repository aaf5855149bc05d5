//! One drive: control units release messages, which compete for the bus by priority; an attacker may interfere.
//!
//! Time is in whole nanoseconds since the start of the drive. Each message has one mailbox: if the bus was too busy
//! to send a frame before the next one with the same ID is released, the older one is lost, as in a real controller.

use std::collections::VecDeque;

use super::attack::{AttackKind, Episode, Injection, Intensity, Verdict};
use super::bus::{ControlUnit, Message, Sending};
use super::messages::MESSAGES;
use super::random::{Purpose, Stream};
use super::route::{Route, RoutePlan};
use super::vehicle::{State, Vehicle};
use super::wire::{BIT_NANOSECONDS, frame_bits};
use crate::frame::{Frame, PAYLOAD_BYTES};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Shortest and longest pause between two attacks of a drive without a route, in seconds.
const PAUSE_SECONDS: [f64; 2] = [1.5, 3.5];
/// Frames in one burst of a sporadic message.
const BURST_FRAMES: u64 = 3;
/// Time between the frames of a burst, in nanoseconds.
const BURST_GAP: u64 = 30 * MILLISECOND;

/// Parameters of a drive.
#[derive(Debug, Clone)]
pub struct DrivePlan {
    /// Seed of the car, which sets the clock errors of its control units.
    pub seed: u64,
    /// Number of the drive of this car.
    pub number: u64,
    /// Start of the drive on the log's clock, in seconds.
    pub begins_at_seconds: u64,
    /// Number of frames to record.
    pub frames: u64,
    /// Kinds and intensities of the attacks, repeated in turn; empty for an attack-free drive.
    pub attacks: Vec<(AttackKind, Intensity)>,
}

/// A recorded drive.
pub struct Drive {
    /// The frames in order of time.
    pub frames: Vec<Frame>,
    /// Attacks during the drive.
    pub episodes: Vec<Episode>,
}

/// Frames that an attacker of a drive on a route remembers, about a minute: older ones are forgotten.
const REMEMBERED: usize = 70_000;
/// Frames of the control units of engine and transmission for each one that they send while the car is parked.
const PARKED_RATE: u64 = 5;

/// Simulates a drive; the same plan gives the same drive.
pub fn simulate_drive(plan: &DrivePlan) -> Drive {
    Simulation::new(plan).run(plan.frames)
}

/// A frame in a mailbox, waiting for the bus.
#[derive(Clone, Copy)]
struct Waiting {
    payload: [u8; PAYLOAD_BYTES],
    index: u64,
    attack: bool,
}

pub(super) struct Simulation {
    begins_at_seconds: u64,
    drive: Stream,
    schedule: Vec<Schedule>,
    mailboxes: Vec<Option<Waiting>>,
    vehicle: Vehicle,
    attacker: Attacker,
    /// Suppressed frames for which no other frame has been labelled yet.
    missing: u64,
    /// The frames so far; on a route only the latest ones.
    frames: Vec<Frame>,
    began_nanoseconds: Vec<u64>,
    /// Number of `frames` that were handed out.
    taken: usize,
}

struct Attacker {
    random: Stream,
    attacks: Vec<(AttackKind, Intensity)>,
    /// Shortest and longest pause between two episodes, in seconds.
    pause_seconds: [f64; 2],
    /// Past, current and next episodes; only the last one is in effect.
    episodes: Vec<Episode>,
    begun: bool,
    /// State of the car when the episode began.
    frozen: Option<State>,
    planned: VecDeque<Injection>,
}

impl Simulation {
    fn new(plan: &DrivePlan) -> Simulation {
        let drive = Stream::new(plan.seed).child(plan.number);
        let mut simulation =
            Self::of(plan.seed, plan.begins_at_seconds, plan.attacks.clone(), drive, Vehicle::new(drive));
        simulation.frames.reserve(plan.frames as usize);
        simulation.began_nanoseconds.reserve(plan.frames as usize);
        simulation
    }

    /// A drive through the states of a route.
    pub(super) fn on_route(plan: &RoutePlan, route: Route) -> Simulation {
        let drive = Stream::new(plan.seed).child(plan.number);
        let vehicle = Vehicle::on_route(drive, route);
        let mut simulation = Self::of(plan.seed, plan.begins_at_seconds, plan.attacks.clone(), drive, vehicle);
        simulation.attacker.pause_seconds = [0.5, 1.5].map(|share| share * plan.attack_every_seconds);
        simulation
    }

    fn of(
        seed: u64,
        begins_at_seconds: u64,
        attacks: Vec<(AttackKind, Intensity)>,
        drive: Stream,
        vehicle: Vehicle,
    ) -> Simulation {
        let car = Stream::new(seed);
        let attacker = Attacker {
            random: drive.purpose(Purpose::AttackSchedule),
            attacks,
            pause_seconds: PAUSE_SECONDS,
            episodes: vec![],
            begun: false,
            frozen: None,
            planned: VecDeque::new(),
        };
        Simulation {
            begins_at_seconds,
            drive,
            schedule: MESSAGES.iter().map(|message| Schedule::new(message, car, drive)).collect(),
            mailboxes: vec![None; MESSAGES.len()],
            vehicle,
            attacker,
            missing: 0,
            frames: Vec::new(),
            began_nanoseconds: Vec::new(),
            taken: 0,
        }
    }

    fn run(mut self, frames: u64) -> Drive {
        let mut now = 0;
        while (self.frames.len() as u64) < frames {
            now = self.advance(now);
        }
        let end = now;
        let mut episodes = self.attacker.episodes;
        episodes.retain(|episode| episode.start_nanoseconds < end);
        Drive { frames: self.frames, episodes }
    }

    /// Sends the next frame at time `now`, if one waits. Returns the time of the next step.
    pub(super) fn advance(&mut self, now: u64) -> u64 {
        self.attacker.advance(now, &mut self.vehicle, &self.frames, &self.began_nanoseconds);
        self.release_until(now);
        match self.arbitrate(now) {
            Some((can_id, waiting, length)) => self.send(now, can_id, waiting, length),
            None => self.next_event(now),
        }
    }

    /// The frames that were sent since the last call.
    pub(super) fn take_new(&mut self) -> &[Frame] {
        let new = self.taken..self.frames.len();
        self.taken = new.end;
        &self.frames[new]
    }

    /// Forgets old frames that were handed out.
    pub(super) fn forget(&mut self) {
        if self.taken >= 2 * REMEMBERED {
            let old = self.taken - REMEMBERED;
            self.frames.drain(..old);
            self.began_nanoseconds.drain(..old);
            self.taken -= old;
        }
    }

    /// Number of frames in memory.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.frames.len()
    }

    /// The attacks, and the route if there is one.
    pub(super) fn into_parts(self) -> (Vec<Episode>, Option<Route>) {
        (self.attacker.episodes, self.vehicle.into_route())
    }

    /// Puts every frame that its sender releases by `now` into its mailbox.
    fn release_until(&mut self, now: u64) {
        while let Some((number, at)) = self.earliest_release().filter(|(_, at)| *at <= now) {
            let message = &MESSAGES[number];
            let state = self.vehicle.at(at);
            let is_sent = self.schedule[number].advance(state.is_parked() && rests_when_parked(message));
            let Some(index) = is_sent else { continue };
            let noise = self.drive.purpose(Purpose::Noise).child(number as u64);
            let payload = message.encode(state, index, noise);
            let verdict = self.attacker.judge(message, index, at, state, noise);
            match verdict {
                Verdict::Send => self.mailboxes[number] = Some(Waiting { payload, index, attack: false }),
                Verdict::Replace(payload) => self.mailboxes[number] = Some(Waiting { payload, index, attack: true }),
                Verdict::Suppress => self.missing += 1,
            }
        }
    }

    /// Takes the waiting frame with the lowest ID; on a tie the sender's own frame before the attacker's.
    fn arbitrate(&mut self, now: u64) -> Option<(u32, Waiting, u8)> {
        let own = self.mailboxes.iter().position(Option::is_some);
        let injected = self.attacker.planned.front().filter(|injection| injection.due_nanoseconds <= now).copied();
        match (own, injected) {
            (Some(number), injected) if injected.is_none_or(|other| MESSAGES[number].can_id <= other.can_id) => {
                let message = &MESSAGES[number];
                self.mailboxes[number].take().map(|waiting| (message.can_id, waiting, message.length))
            }
            (_, Some(injection)) => {
                self.attacker.planned.pop_front();
                let waiting = Waiting { payload: injection.payload, index: 0, attack: true };
                Some((injection.can_id, waiting, injection.length))
            }
            _ => None,
        }
    }

    /// Sends a frame and returns when the bus is free again.
    fn send(&mut self, now: u64, can_id: u32, waiting: Waiting, length: u8) -> u64 {
        let Waiting { payload, index, attack } = waiting;
        let free = now + u64::from(frame_bits(can_id, &payload, length)) * BIT_NANOSECONDS;
        let microseconds = self.begins_at_seconds * 1_000_000 + free / 1_000;
        // A suppressed frame leaves nothing to label, so the next regular frame gets its label.
        let stands_for_missing = !attack && self.missing > 0;
        self.missing -= u64::from(stands_for_missing);
        self.frames.push(Frame {
            timestamp: microseconds as f64 / 1e6,
            can_id,
            payload: masked(payload, length),
            payload_length: length,
            attack: attack || stands_for_missing,
        });
        self.began_nanoseconds.push(now);
        if !attack && let Some(number) = MESSAGES.iter().position(|message| message.can_id == can_id) {
            let noise = self.drive.purpose(Purpose::AttackFrames).child(number as u64);
            let state = self.vehicle.at(now);
            self.attacker.follow(&MESSAGES[number], index, free, state, noise);
        }
        free
    }

    /// Time of the next release or injection, for an idle bus.
    fn next_event(&self, now: u64) -> u64 {
        let release = self.earliest_release().map(|(_, at)| at);
        let injection = self.attacker.planned.front().map(|injection| injection.due_nanoseconds);
        release.into_iter().chain(injection).min().unwrap_or(now).max(now + 1)
    }

    fn earliest_release(&self) -> Option<(usize, u64)> {
        let releases =
            self.schedule.iter().enumerate().map(|(number, schedule)| (number, schedule.release_nanoseconds));
        releases.min_by_key(|(_, at)| *at)
    }
}

impl Attacker {
    /// Begins and ends episodes.
    fn advance(&mut self, now: u64, vehicle: &mut Vehicle, history: &[Frame], began_nanoseconds: &[u64]) {
        if self.attacks.is_empty() {
            return;
        }
        match self.episodes.last() {
            Some(episode) if now < episode.start_nanoseconds => {}
            Some(episode) if now < episode.end_nanoseconds => {
                if !self.begun {
                    self.begun = true;
                    self.frozen = Some(*vehicle.at(episode.start_nanoseconds));
                    let random = self.random.child(self.episodes.len() as u64);
                    self.planned = episode.prepared(random, history, began_nanoseconds).into();
                }
            }
            last => {
                // Injections not sent in time are dropped, and the next episode is planned.
                let after = last.map_or(2 * SECOND, |episode| episode.end_nanoseconds);
                let number = self.episodes.len() as u64;
                let random = self.random.child(u64::MAX - number);
                let [shortest, longest] = self.pause_seconds;
                let start = after + (random.between(0, shortest, longest) * SECOND as f64) as u64;
                let end = start + (random.between(1, 1.0, 2.5) * SECOND as f64) as u64;
                let (kind, intensity) = self.attacks[number as usize % self.attacks.len()];
                self.episodes.push(Episode::new(kind, intensity, (start, end), random.child(2)));
                self.planned.clear();
                self.begun = false;
            }
        }
    }

    fn judge(&self, message: &Message, index: u64, at: u64, state: &State, noise: Stream) -> Verdict {
        match (self.episodes.last(), &self.frozen) {
            (Some(episode), Some(frozen)) if self.begun => episode.judge(message, index, at, state, frozen, noise),
            _ => Verdict::Send,
        }
    }

    /// Plans the injections that follow a frame just sent.
    fn follow(&mut self, message: &Message, index: u64, sent: u64, state: &State, noise: Stream) {
        let Some(episode) = self.episodes.last().filter(|_| self.begun) else { return };
        for injection in episode.follow_up(message, index, sent, state, noise) {
            let place = self.planned.partition_point(|other| other.due_nanoseconds <= injection.due_nanoseconds);
            self.planned.insert(place, injection);
        }
    }
}

/// True for a periodic message of a control unit that sends less while the car is parked.
fn rests_when_parked(message: &Message) -> bool {
    message.period_milliseconds().is_some() && matches!(message.sender, ControlUnit::Engine | ControlUnit::Transmission)
}

/// Release times of the frames of one message.
struct Schedule {
    sending: Sending,
    random: Stream,
    phase_nanoseconds: u64,
    period_nanoseconds: u64,
    /// Beginning of the current burst of a sporadic message.
    burst_nanoseconds: u64,
    index: u64,
    /// Number of frames sent so far, which counters count.
    sent: u64,
    release_nanoseconds: u64,
}

impl Schedule {
    fn new(message: &Message, car: Stream, drive: Stream) -> Schedule {
        // A control unit's clock error is at most 0.01 % and constant over all drives of a car.
        let drift = car.purpose(Purpose::ClockDrift).between(message.sender as u64, -1e-4, 1e-4);
        let id = u64::from(message.can_id);
        let (period_nanoseconds, random) = match message.sending {
            Sending::Periodic { milliseconds } => {
                ((f64::from(milliseconds) * 1e6 * (1.0 + drift)) as u64, drive.purpose(Purpose::Jitter).child(id))
            }
            Sending::Sporadic { cause, .. } => (0, drive.purpose(Purpose::Event).child(u64::from(cause))),
        };
        let phase = drive.purpose(Purpose::Phase).below(id, period_nanoseconds as usize + 1) as u64;
        let mut schedule = Schedule {
            sending: message.sending,
            random,
            phase_nanoseconds: phase,
            period_nanoseconds,
            burst_nanoseconds: 0,
            index: 0,
            sent: 0,
            release_nanoseconds: 0,
        };
        schedule.plan();
        schedule
    }

    /// Plans the next release. Returns the number of the frame that is sent now; `None` if the sender rests and leaves this release out.
    fn advance(&mut self, rests: bool) -> Option<u64> {
        let is_sent = !rests || self.index.is_multiple_of(PARKED_RATE);
        let number = self.sent;
        self.sent += u64::from(is_sent);
        self.index += 1;
        self.plan();
        is_sent.then_some(number)
    }

    fn plan(&mut self) {
        self.release_nanoseconds = match self.sending {
            Sending::Periodic { .. } => self.phase_nanoseconds + self.index * self.period_nanoseconds + self.jitter(),
            Sending::Sporadic { seconds, delay_milliseconds, .. } => {
                if self.index.is_multiple_of(BURST_FRAMES) {
                    let wait = self.random.between(self.index, 0.3, 1.7) * f64::from(seconds);
                    self.burst_nanoseconds += (wait * SECOND as f64) as u64;
                }
                let delay = u64::from(delay_milliseconds) * MILLISECOND;
                self.burst_nanoseconds + self.index % BURST_FRAMES * BURST_GAP + delay
            }
        };
    }

    /// Delay of this release in nanoseconds: up to 2 % of the period, for one frame in a hundred up to 25 %.
    fn jitter(&self) -> u64 {
        let random = self.random.child(self.index);
        let share = if random.uniform(0) < 0.01 { 0.25 } else { 0.02 };
        (random.uniform(1) * share * self.period_nanoseconds as f64) as u64
    }
}

/// The payload with zeros behind its first `length` bytes.
fn masked(mut payload: [u8; PAYLOAD_BYTES], length: u8) -> [u8; PAYLOAD_BYTES] {
    payload[usize::from(length)..].fill(0);
    payload
}
