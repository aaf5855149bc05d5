//! Drives of any length through states of the car: parked, idling, in town, on the motorway. Frames are handed out as they come, so that a drive of
//! hours takes no more memory than one of minutes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::attack::{AttackKind, Episode, Intensity};
use super::drive::Simulation;
use super::random::{Purpose, Stream};
use crate::frame::Frame;

const SECOND: u64 = 1_000_000_000;

/// State of a car on a drive. Each one has speeds, gaps and bytes that the others do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrivingState {
    /// The engine is off and the ignition on: most signals rest, and the engine's and the transmission's control units send a fifth of their
    /// frames.
    Parked,
    /// The engine is on and the car stands.
    Idling,
    /// Up to 60 km/h, with stops.
    Town,
    /// 95 to 130 km/h.
    Motorway,
}

impl DrivingState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Parked, Self::Idling, Self::Town, Self::Motorway];
    /// States of a usual drive, from standing to standing.
    pub const ROUND_TRIP: [Self; 6] =
        [Self::Parked, Self::Idling, Self::Town, Self::Motorway, Self::Town, Self::Idling];

    /// Its name in options and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::Idling => "idling",
            Self::Town => "town",
            Self::Motorway => "motorway",
        }
    }

    /// The state of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Target speeds that the driver picks from, km/h.
    pub(super) fn target_speeds_kmh(self) -> &'static [f64] {
        match self {
            Self::Parked | Self::Idling => &[0.0],
            Self::Town => &[0.0, 20.0, 32.0, 50.0, 50.0, 60.0],
            Self::Motorway => &[95.0, 110.0, 120.0, 130.0],
        }
    }

    /// Shortest and longest stay, in seconds.
    fn stay_seconds(self) -> [f64; 2] {
        match self {
            Self::Parked => [60.0, 180.0],
            Self::Idling => [20.0, 90.0],
            Self::Town => [180.0, 480.0],
            Self::Motorway => [240.0, 720.0],
        }
    }
}

impl fmt::Display for DrivingState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Parameters of a drive through states.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutePlan {
    /// Seed of the car.
    pub seed: u64,
    /// Number of the drive of this car.
    pub number: u64,
    /// Start of the drive on the log's clock, in seconds.
    pub begins_at_seconds: u64,
    /// Length of the drive, in seconds.
    pub seconds: f64,
    /// The states, repeated in turn until the end of the drive; at least one.
    pub states: Vec<DrivingState>,
    /// Kinds and intensities of the attacks, repeated in turn; empty for an attack-free drive.
    pub attacks: Vec<(AttackKind, Intensity)>,
    /// Mean seconds from the end of an attack to the next one; each pause is half to one and a half times as long.
    pub attack_every_seconds: f64,
}

/// A stay in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay {
    /// The state.
    pub state: DrivingState,
    /// Beginning, in nanoseconds since the start of the drive.
    pub start_nanoseconds: u64,
    /// End, in nanoseconds since the start of the drive.
    pub end_nanoseconds: u64,
}

/// Record of a drive.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteRecord {
    /// Number of frames.
    pub frames: u64,
    /// Number of attack frames.
    pub attack_frames: u64,
    /// The states, in order of time; the last one ends with the drive.
    pub stays: Vec<Stay>,
    /// The attacks that began, in order of time.
    pub episodes: Vec<Episode>,
}

/// The states of a drive in order of time.
#[derive(Debug, Clone)]
pub(super) struct Route {
    random: Stream,
    states: Vec<DrivingState>,
    stays: Vec<Stay>,
}

impl Route {
    fn new(plan: &RoutePlan) -> Self {
        let random = Stream::new(plan.seed).child(plan.number).purpose(Purpose::Route);
        Self { random, states: plan.states.clone(), stays: Vec::new() }
    }

    /// The state at a time that is not before that of an earlier call.
    pub(super) fn at(&mut self, nanoseconds: u64) -> DrivingState {
        loop {
            match self.stays.last() {
                Some(stay) if nanoseconds < stay.end_nanoseconds => return stay.state,
                last => {
                    let start = last.map_or(0, |stay| stay.end_nanoseconds);
                    let number = self.stays.len();
                    let state = self.states[number % self.states.len()];
                    let [shortest, longest] = state.stay_seconds();
                    let seconds = self.random.between(number as u64, shortest, longest);
                    let end = start + (seconds * SECOND as f64) as u64;
                    self.stays.push(Stay { state, start_nanoseconds: start, end_nanoseconds: end });
                }
            }
        }
    }
}

/// Simulates a drive through states, and hands each frame to `each`; the same plan gives the same frames. Memory does not grow with the length of
/// the drive.
///
/// # Errors
/// The first error of `each`, which ends the drive.
///
/// # Panics
/// When the plan has no state.
pub fn simulate_route<E>(plan: &RoutePlan, mut each: impl FnMut(&Frame) -> Result<(), E>) -> Result<RouteRecord, E> {
    assert!(!plan.states.is_empty(), "a drive needs a state");
    let end = (plan.seconds * SECOND as f64) as u64;
    let mut simulation = Simulation::on_route(plan, Route::new(plan));
    let (mut now, mut frames, mut attack_frames) = (0, 0, 0);
    while now < end {
        now = simulation.advance(now);
        for frame in simulation.take_new() {
            frames += 1;
            attack_frames += u64::from(frame.attack);
            each(frame)?;
        }
        simulation.forget();
    }
    let (mut episodes, route) = simulation.into_parts();
    episodes.retain(|episode| episode.start_nanoseconds < now);
    let mut stays = route.map_or_else(Vec::new, |route| route.stays);
    stays.retain(|stay| stay.start_nanoseconds < now);
    if let Some(last) = stays.last_mut() {
        last.end_nanoseconds = last.end_nanoseconds.min(now);
    }
    Ok(RouteRecord { frames, attack_frames, stays, episodes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten minutes have 600,000 frames; what a drive remembers stays within a bound that does not depend on its length.
    #[test]
    fn a_long_drive_remembers_only_its_latest_frames() {
        let plan = RoutePlan {
            seed: 1,
            number: 1,
            begins_at_seconds: 0,
            seconds: 600.0,
            states: vec![DrivingState::Town],
            attacks: vec![(AttackKind::Replay, Intensity::High)],
            attack_every_seconds: 30.0,
        };
        let mut simulation = Simulation::on_route(&plan, Route::new(&plan));
        let (mut now, mut frames, mut most) = (0, 0, 0);
        while now < 600 * SECOND {
            now = simulation.advance(now);
            frames += simulation.take_new().len();
            simulation.forget();
            most = most.max(simulation.remembered());
        }
        assert!(frames > 550_000 && most <= 140_001, "{most} of {frames} frames are in memory");
        let (episodes, _) = simulation.into_parts();
        assert!(episodes.len() > 10, "{} attacks", episodes.len());
    }
}
