//! Attack-free traffic of a car with synthetic attacks in it: how a model scores attacks on that car, before there is one.
//!
//! The frames of the calibration windows are copied once for each kind of attack, with attacks in about half of the windows of each copy
//! ([`with_attacks`]), from one attack frame on. The windows with an attack are scored like the attack-free ones: with a profile that was
//! not learned from their part of the traffic.

use std::ops::Range;

use kdgat_can::Frame;
use kdgat_can::frame::PAYLOAD_BYTES;
use kdgat_can::synthetic::{SyntheticKind, with_attacks, with_removal};
use kdgat_graph::{CarProfile, Columns, GraphStream, GraphView};

use super::calibration::AttacksFound;
use super::gone::DriveWatch;
use super::operator::Cut;
use super::scores::Profiled;

/// Share of a copy's windows that are attacked.
const SHARE: f64 = 0.5;
/// Seed of the attacks: the same for every car.
const SEED: u64 = 1;
/// Copies of the traffic from which an ID is removed.
const REMOVALS: u64 = 8;
/// Most calibration windows that are copied, the first ones.
const MOST_WINDOWS: usize = 4000;

/// Windows with attacks of one kind, as a model scores them.
#[derive(Debug, Clone, PartialEq)]
pub struct AttackedWindows {
    /// The kind of attack.
    pub kind: SyntheticKind,
    /// The windows with an attack frame.
    pub windows: Vec<Profiled>,
}

/// IDs that were removed from copies of attack-free windows, one from each, and how many of them are called gone by a profile of the car. Another
/// ID that is called gone says nothing about the removed one.
///
/// In short traffic an ID may be away for too short a time to be gone. IDs that send too rarely to be removed count nowhere.
pub fn removals(columns: &Columns, cut: Cut, profile: &CarProfile) -> AttacksFound {
    let count = columns.num_graphs().min(MOST_WINDOWS);
    let frames = frames_of((0..count).map(|window| columns.graph(window)), cut.window);
    let (mut windows, mut found) = (0, 0);
    for seed in SEED..SEED + REMOVALS {
        let Some((copy, removed)) = with_removal(&frames, seed) else { continue };
        let (mut watch, mut is_found) = (DriveWatch::new(profile), false);
        let pushed = GraphStream::new(columns.features, cut.window, cut.stride).push(
            &copy,
            |mut ready| -> Result<(), std::convert::Infallible> {
                let mut one = Columns::new(columns.features);
                ready.append_to(0, &mut one);
                let gone = watch.push(&one.graph(0));
                is_found |= gone.is_some_and(|gone| gone.ids.iter().any(|gone| gone.can_id == removed));
                Ok(())
            },
        );
        let Ok(()) = pushed;
        windows += 1;
        found += u64::from(is_found);
    }
    AttacksFound { kind: SyntheticKind::Removal.to_string(), windows, found }
}

/// The windows of a copy that have an attack, and for each of them the part of the traffic that it is in.
pub struct AttackedCopy {
    /// Graphs of these windows.
    pub columns: Columns,
    /// `[num_graphs]`: number of the part.
    pub parts: Vec<usize>,
}

impl AttackedCopy {
    /// Attacks windows that lie in these `parts`. Empty if the traffic gives no target.
    pub fn new(columns: &Columns, parts: &[Range<usize>], cut: Cut, kind: SyntheticKind) -> Self {
        let Cut { window, stride } = cut;
        let count = columns.num_graphs().min(MOST_WINDOWS);
        let frames = frames_of((0..count).map(|window| columns.graph(window)), window);
        let mut all = Columns::new(columns.features);
        let pushed = GraphStream::new(columns.features, window, stride).push(
            &with_attacks(&frames, kind, SHARE, SEED),
            |mut ready| -> Result<(), std::convert::Infallible> {
                ready.append_to(0, &mut all);
                Ok(())
            },
        );
        let Ok(()) = pushed;
        // Injected frames shift the windows: a window belongs to the part in which it begins.
        let begins: Vec<f64> = parts.iter().map(|part| start_of(columns, part.start)).collect();
        let mut found = Self { columns: Columns::new(columns.features), parts: Vec::new() };
        for window in (0..all.num_graphs()).map(|window| all.graph(window)).filter(|window| window.attack) {
            found.columns.push(&window);
            found.parts.push(begins.partition_point(|begin| *begin <= window.start_time).saturating_sub(1));
        }
        found
    }
}

/// Time at which a window begins; infinite behind the last one.
fn start_of(columns: &Columns, window: usize) -> f64 {
    columns.start_times.get(window).copied().unwrap_or(f64::INFINITY)
}

/// The frames of windows of a log in their order, each once. Windows that overlap share frames; a window of another log begins with its
/// own first frame.
pub fn frames_of<'a>(windows: impl Iterator<Item = GraphView<'a>>, window: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut known: Option<u64> = None;
    for view in windows {
        let of_window = of_window(&view);
        let new = match known {
            Some(end) if (view.first_frame..=view.first_frame + window as u64).contains(&end) => {
                (end - view.first_frame) as usize
            }
            _ => 0,
        };
        frames.extend_from_slice(of_window.get(new..).unwrap_or_default());
        known = Some(view.first_frame + window as u64);
    }
    frames
}

/// The frames of a window, in order of time.
fn of_window(view: &GraphView<'_>) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::with_capacity(view.frames.times.len());
    let mut index = 0;
    for (&can_id, &count) in view.can_ids.iter().zip(view.frames.of_node) {
        for _ in 0..count {
            let frame = view.frames.frame(index);
            let mut payload = [0; PAYLOAD_BYTES];
            payload.copy_from_slice(frame.payload);
            frames.push(Frame {
                timestamp: view.start_time + f64::from(view.frames.times[index]),
                can_id,
                payload,
                payload_length: frame.length as u8,
                attack: frame.attack,
            });
            index += 1;
        }
    }
    // Stable: frames of one time stay in the order of their IDs, and those of an ID in their own.
    frames.sort_by(|one, other| one.timestamp.total_cmp(&other.timestamp));
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_can::simulator::{DrivePlan, simulate_drive};
    use kdgat_graph::FeatureSet;
    use kdgat_graph::profile::fold_parts;

    fn drive() -> Vec<Frame> {
        let plan = DrivePlan { seed: 3, number: 1, begins_at_seconds: 1_700_000_000, frames: 6_000, attacks: vec![] };
        simulate_drive(&plan).frames
    }

    fn windows(frames: &[Frame], stride: usize) -> Columns {
        let mut columns = Columns::new(FeatureSet::Profile);
        let mut stream = GraphStream::new(FeatureSet::Profile, 100, stride);
        let pushed: Result<(), ()> = stream.push(frames, |mut ready| {
            ready.append_to(0, &mut columns);
            Ok(())
        });
        pushed.unwrap();
        columns
    }

    #[test]
    fn windows_have_the_frames_that_they_were_made_of() {
        let frames = drive();
        for stride in [100, 30] {
            let columns = windows(&frames, stride);
            let found = frames_of((0..columns.num_graphs()).map(|window| columns.graph(window)), 100);
            assert!(found.len() > 5_800 && found.len() < frames.len(), "{stride}: {}", found.len());
            for (found, frame) in found.iter().zip(&frames) {
                assert!((found.timestamp - frame.timestamp).abs() < 1e-6, "{stride}");
                assert_eq!((found.can_id, found.payload), (frame.can_id, frame.payload), "{stride}");
            }
        }
    }

    /// Ten seconds are enough to call most IDs gone, but not those that send too rarely.
    #[test]
    fn removed_ids_are_found_and_no_others() {
        let plan = DrivePlan { seed: 3, number: 1, begins_at_seconds: 1_700_000_000, frames: 40_000, attacks: vec![] };
        let columns = windows(&simulate_drive(&plan).frames, 100);
        let all = (0..columns.num_graphs()).map(|window| columns.graph(window));
        let profile = kdgat_graph::profile::ProfileLearner::of(all).profile();
        let found = removals(&columns, Cut { window: 100, stride: 100 }, &profile);
        assert!(found.windows >= 6 && found.found >= 4, "{found:?}");
        let mut watch = DriveWatch::new(&profile);
        assert!((0..columns.num_graphs()).all(|window| watch.push(&columns.graph(window)).is_none()));
        // A profile that follows one ID alone calls it gone in each copy of traffic in which it stops by itself, and finds no removal of another.
        let of_one = |can_id: u32| {
            let mut ids = profile.ids().to_vec();
            ids.iter_mut().filter(|id| id.can_id != can_id).for_each(|id| id.longest_silence_seconds = 0.0);
            CarProfile::new(ids, Vec::new())
        };
        let frames = simulate_drive(&plan).frames;
        let stop = frames[frames.len() / 8].timestamp;
        let can_id = profile.ids().iter().find(|id| id.gone_seconds() <= 5.0).unwrap().can_id;
        let is_left = |frame: &Frame| frame.can_id != can_id || frame.timestamp < stop;
        let stopped = windows(&frames.into_iter().filter(is_left).collect::<Vec<_>>(), 100);
        let (one, mut watch) = (of_one(can_id), DriveWatch::new(&of_one(can_id)));
        assert!((0..stopped.num_graphs()).any(|window| watch.push(&stopped.graph(window)).is_some()));
        let found = removals(&stopped, Cut { window: 100, stride: 100 }, &one);
        assert!(found.windows >= 6 && found.found == 0, "{found:?}");
    }

    #[test]
    fn attacks_of_every_kind_are_spread_over_the_parts() {
        let columns = windows(&drive(), 100);
        let parts = fold_parts(columns.num_graphs());
        for kind in SyntheticKind::EPISODIC {
            let AttackedCopy { columns, parts } =
                AttackedCopy::new(&columns, &parts, Cut { window: 100, stride: 100 }, kind);
            assert!(columns.num_graphs() > 5 && columns.labels.iter().all(|label| *label == 1), "{kind}");
            assert!(parts.is_sorted() && parts.len() == columns.num_graphs(), "{kind}: {parts:?}");
            // The last of five parts may be between two bursts of a flood.
            assert!(parts.first() == Some(&0) && matches!(parts.last(), Some(3 | 4)), "{kind}: {parts:?}");
        }
    }
}
