//! `kdgat data simulate --kind drive`: one drive through states of the car, as a log.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::output;
use crate::can::simulator::{
    AttackKind, DrivingState, FIRST_DRIVE_SECONDS, Intensity, RoutePlan, RouteRecord, write_route,
};
use crate::interrupt;
use crate::stage::StageError;

/// Seconds from the start of one drive to that of the next.
const BETWEEN_DRIVES_SECONDS: u64 = 7 * 86_400;
const SECONDS_PER_HOUR: f64 = 3600.0;
const ATTACK_EVERY_SECONDS: f64 = 300.0;

/// Options of a drive.
#[derive(Args, Debug)]
pub struct DriveArgs {
    /// Length of the drive in hours, such as 0.25 (`--kind drive`)
    #[arg(long, value_name = "HOURS", required_if_eq("kind", "drive"))]
    pub hours: Option<f64>,
    /// Number of the drive: drives of one car differ by it (`--kind drive`) [default: 1]
    #[arg(long, value_name = "N")]
    pub drive: Option<u64>,
    /// States of the drive, repeated in turn (`--kind drive`) [default: parked,idling,town,motorway,town,idling]
    #[arg(long, value_name = "STATES", value_delimiter = ',', value_enum)]
    pub states: Vec<StateName>,
    /// Kinds of attacks, each in high and in medium intensity, in turn (`--kind drive`) [default: none]
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_enum)]
    pub attacks: Vec<AttackName>,
    /// Mean pause between two attacks, in seconds (`--kind drive`) [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub attack_every: Option<f64>,
}

/// State of the car.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StateName {
    /// Engine off, ignition on
    Parked,
    /// Engine on, standing
    Idling,
    /// Up to 60 km/h, with stops
    Town,
    /// 95 to 130 km/h
    Motorway,
}

impl From<StateName> for DrivingState {
    fn from(name: StateName) -> Self {
        match name {
            StateName::Parked => Self::Parked,
            StateName::Idling => Self::Idling,
            StateName::Town => Self::Town,
            StateName::Motorway => Self::Motorway,
        }
    }
}

/// Kind of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttackName {
    /// Frames of high priority block the others
    Flooding,
    /// Frames with random content
    Fuzzing,
    /// Forged frames beside the true ones
    Spoofing,
    /// Earlier traffic is sent again
    Replay,
    /// Messages are suppressed
    Suspension,
    /// Forged frames in place of the true ones
    Masquerade,
}

impl From<AttackName> for AttackKind {
    fn from(name: AttackName) -> Self {
        match name {
            AttackName::Flooding => Self::Flooding,
            AttackName::Fuzzing => Self::Fuzzing,
            AttackName::Spoofing => Self::Spoofing,
            AttackName::Replay => Self::Replay,
            AttackName::Suspension => Self::Suspension,
            AttackName::Masquerade => Self::Masquerade,
        }
    }
}

impl DriveArgs {
    /// The first flag that was given, for kinds of data that take none of them.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            ("--hours", self.hours.is_some()),
            ("--drive", self.drive.is_some()),
            ("--states", !self.states.is_empty()),
            ("--attacks", !self.attacks.is_empty()),
            ("--attack-every", self.attack_every.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    fn plan(&self, seed: u64) -> Result<RoutePlan, StageError> {
        // clap requires the hours.
        let hours = self.hours.unwrap_or(0.0);
        if !(hours > 0.0 && hours <= 168.0) {
            return Err(StageError::Input(format!(
                "--hours {hours}: expected more than 0 hours, at most 168 (a week)"
            )));
        }
        if let Some(every) = self.attack_every
            && self.attacks.is_empty()
        {
            let text =
                format!("--attack-every {every} needs --attacks; name the kinds, such as --attacks spoofing,flooding");
            return Err(StageError::Input(text));
        }
        if let Some(every) = self.attack_every.filter(|every| !(3.0..=604_800.0).contains(every)) {
            return Err(StageError::Input(format!("--attack-every {every}: expected 3 seconds to 604800 (a week)")));
        }
        let number = self.drive.unwrap_or(1);
        if !(1..=1000).contains(&number) {
            return Err(StageError::Input(format!("--drive {number}: expected a whole number from 1 to 1000")));
        }
        let states: Vec<DrivingState> = self.states.iter().map(|&name| name.into()).collect();
        let both = |&name: &AttackName| [(name.into(), Intensity::High), (name.into(), Intensity::Medium)];
        Ok(RoutePlan {
            seed,
            number,
            begins_at_seconds: FIRST_DRIVE_SECONDS + BETWEEN_DRIVES_SECONDS * number,
            seconds: SECONDS_PER_HOUR * hours,
            states: if states.is_empty() { DrivingState::ROUND_TRIP.to_vec() } else { states },
            attacks: self.attacks.iter().flat_map(both).collect(),
            attack_every_seconds: self.attack_every.unwrap_or(ATTACK_EVERY_SECONDS),
        })
    }
}

/// Writes the log, and prints its states and attacks.
pub fn run(args: &DriveArgs, path: &Path, seed: u64) -> Result<ExitCode> {
    let plan = args.plan(seed)?;
    interrupt::listen_to_stop_after("this frame")?;
    match write_route(&plan, path, interrupt::requested).map_err(StageError::from)? {
        Some(record) => output::write(&report(&plan, &record, path))?,
        None => {
            let text = format!("interrupted; {} was not written", path.display());
            return Err(StageError::Interrupted(text).into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what the drive consists of: the time in each state, and a line for each attack.
fn report(plan: &RoutePlan, record: &RouteRecord, path: &Path) -> String {
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let in_state = |state: DrivingState| -> f64 {
        let stays = record.stays.iter().filter(|stay| stay.state == state);
        stays.map(|stay| seconds(stay.end_nanoseconds - stay.start_nanoseconds)).sum()
    };
    let times = DrivingState::ALL.map(|state| (state, in_state(state)));
    let listed: Vec<String> =
        times.iter().filter(|(_, time)| *time > 0.0).map(|(state, time)| format!("{state} {time:.0} s")).collect();
    let mut text = format!(
        "simulated drive {} with seed {}: {} frames ({}): {}\n",
        plan.number,
        plan.seed,
        record.frames,
        listed.join(", "),
        path.display()
    );
    for episode in &record.episodes {
        let begin = plan.begins_at_seconds as f64;
        let kind = serde_json::to_value(episode.kind).ok().and_then(|name| Some(name.as_str()?.to_owned()));
        text += &format!(
            "attack at {:.3}, {:.1} s: {}{}\n",
            begin + seconds(episode.start_nanoseconds),
            seconds(episode.end_nanoseconds - episode.start_nanoseconds),
            kind.unwrap_or_default(),
            targets(&episode.target_ids)
        );
    }
    text
}

/// The IDs under attack, at most five of them.
fn targets(ids: &[u32]) -> String {
    const MOST: usize = 5;
    if ids.is_empty() {
        return String::new();
    }
    let listed: Vec<String> = ids.iter().take(MOST).map(|id| format!("{id:03X}")).collect();
    let more = if ids.len() > MOST { format!(" and {} more", ids.len() - MOST) } else { String::new() };
    format!(" of {}{more}", listed.join(", "))
}
