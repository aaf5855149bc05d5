//! Learns which signals of different IDs belong together, from a sample of attack-free windows.
//!
//! Two signals that change slowly look related in any short stretch of driving, and two that differ between drives only always are. A
//! relation therefore has to hold in each group of windows, whole logs where there are several, under a fit to the others, with an error
//! that is small beside what the signal does within a group; traffic of less than a minute or two has no relations.

use std::collections::{BTreeMap, BTreeSet};

use kdgat_base::random::mix;

use super::evidence::USUALLY_BROKEN;
use super::relations::{Partner, Relation, SignalRange};
use super::signals::{Place, WindowSignals};
use crate::GraphView;

/// Windows of the sample: those with the smallest hashes, so that it does not depend on the order in which windows come.
const MOST_WINDOWS: usize = 2048;
/// Fewest windows to learn relations from.
const FEWEST_WINDOWS: usize = 1000;
/// Fewest windows in which both IDs of a relation have frames; and in a group, for it to count.
const FEWEST_PAIRS: (f64, f64) = (200.0, 20.0);
/// Groups of windows that a relation has to hold in: fewest that must count, and most.
const GROUPS: (usize, usize) = (3, 8);
/// A signal must vary in this many groups, by at least this share of its standard deviation within groups.
const VARYING: (usize, f64) = (3, 0.25);
/// Largest mean spread within windows, as a share of the standard deviation within groups. A faster signal is no state of the car but a
/// counter, and where it starts again, two means over windows differ.
const FASTEST: f64 = 0.5;
/// Largest error of a relation, as a share of the signal's standard deviation within groups.
const LARGEST_ERROR: f64 = 0.2;
/// Smallest error, in units of the signal: a payload holds integers.
const SMALLEST_ERROR: f64 = 0.05;
/// Most partners of a signal, each of another ID.
const PARTNERS: usize = 2;
/// Most signals of an ID, those with the closest relations.
const SIGNALS: usize = 8;
/// Quantile of the residuals of the sample that is called usual.
const USUAL: f64 = 1.0 - USUALLY_BROKEN;

/// A window of the sample: the signals of its IDs, ascending.
type Nodes = Vec<(u32, WindowSignals)>;

/// Sample of attack-free windows. Samples of parts of the traffic can be merged in any order with the same result.
#[derive(Debug, Clone, Default)]
pub(super) struct WindowSample {
    /// By hash, file, position of the first frame in the file, and start time.
    windows: BTreeMap<(u64, u32, u64, u64), Nodes>,
}

impl WindowSample {
    /// Adds a window; its attack frames do not count.
    pub(super) fn add(&mut self, view: &GraphView<'_>) {
        let time = view.start_time.to_bits();
        let key = (mix(mix(u64::from(view.file)) ^ view.first_frame ^ time), view.file, view.first_frame, time);
        if self.windows.len() >= MOST_WINDOWS && self.windows.last_key_value().is_some_and(|(last, _)| key > *last) {
            return;
        }
        let signals = WindowSignals::of_nodes(view, true);
        let nodes = view.can_ids.iter().zip(signals).filter_map(|(&can_id, signals)| Some((can_id, signals?)));
        self.windows.insert(key, nodes.collect());
        self.trim();
    }

    /// Adds the windows of another sample.
    pub(super) fn merge(&mut self, other: &Self) {
        self.windows.extend(other.windows.iter().map(|(key, nodes)| (*key, nodes.clone())));
        self.trim();
    }

    fn trim(&mut self) {
        while self.windows.len() > MOST_WINDOWS {
            self.windows.pop_last();
        }
    }

    /// The relations that hold in the sample, by ID and place.
    pub(super) fn relations(&self) -> Vec<Relation> {
        if self.windows.len() < FEWEST_WINDOWS {
            return Vec::new();
        }
        let windows = self.grouped();
        let table = SignalTable::of(&windows);
        (0..table.ids.len()).flat_map(|target| table.relations_of(target, &windows)).collect()
    }

    /// The windows in order of time, each with its group: several logs are groups, few logs are divided into contiguous parts.
    fn grouped(&self) -> Vec<(usize, &Nodes)> {
        let mut windows: Vec<_> = self.windows.iter().map(|(key, nodes)| ((key.1, key.2, key.3), nodes)).collect();
        windows.sort_by_key(|(key, _)| *key);
        let files: BTreeSet<u32> = windows.iter().map(|((file, ..), _)| *file).collect();
        let parts = (GROUPS.0 + 1).div_ceil(files.len());
        let mut grouped = Vec::with_capacity(windows.len());
        for (number, of_file) in windows.chunk_by(|one, next| one.0.0 == next.0.0).enumerate() {
            let group = |at: usize| (number * parts + at * parts / of_file.len()) % GROUPS.1;
            grouped.extend(of_file.iter().enumerate().map(|(at, (_, nodes))| (group(at), *nodes)));
        }
        grouped
    }
}

/// The signals that vary, by ID.
struct SignalTable {
    /// IDs, ascending.
    ids: Vec<u32>,
    /// Position of each ID's first signal, and the number of all.
    first: Vec<usize>,
    signals: Vec<Signal>,
}

/// A signal that varies.
#[derive(Clone, Copy)]
struct Signal {
    place: Place,
    mean: f64,
    /// Variance within groups.
    variance: f64,
    range: SignalRange,
}

/// Sums over windows with both IDs, of values less their means: y of the target's signals, x of all others'.
#[derive(Clone)]
struct Sums {
    /// `[ids]`: windows.
    n: Vec<f64>,
    /// `[target's signals, ids]`
    y: Vec<f64>,
    yy: Vec<f64>,
    /// `[signals]`
    x: Vec<f64>,
    xx: Vec<f64>,
    /// `[target's signals, signals]`
    xy: Vec<f64>,
}

impl Sums {
    fn new(own: usize, ids: usize, signals: usize) -> Self {
        Self {
            n: vec![0.0; ids],
            y: vec![0.0; own * ids],
            yy: vec![0.0; own * ids],
            x: vec![0.0; signals],
            xx: vec![0.0; signals],
            xy: vec![0.0; own * signals],
        }
    }

    fn columns(&mut self) -> [&mut Vec<f64>; 6] {
        [&mut self.n, &mut self.y, &mut self.yy, &mut self.x, &mut self.xx, &mut self.xy]
    }

    /// Adds `factor` times the other sums.
    fn add(&mut self, factor: f64, other: &Self) {
        let others = [&other.n, &other.y, &other.yy, &other.x, &other.xx, &other.xy];
        for (own, other) in self.columns().into_iter().zip(others) {
            own.iter_mut().zip(other).for_each(|(own, other)| *own += factor * other);
        }
    }

    /// The sums for one pair of signals.
    fn pair(&self, own: usize, id: usize, signal: usize) -> Pair {
        let (ids, signals) = (self.n.len(), self.x.len());
        Pair {
            n: self.n[id],
            y: self.y[own * ids + id],
            yy: self.yy[own * ids + id],
            x: self.x[signal],
            xx: self.xx[signal],
            xy: self.xy[own * signals + signal],
        }
    }
}

/// Sums for one pair of signals.
struct Pair {
    n: f64,
    y: f64,
    yy: f64,
    x: f64,
    xx: f64,
    xy: f64,
}

impl Pair {
    /// Slope and offset of least squares; `None` if x does not vary.
    fn fit(&self) -> Option<(f64, f64)> {
        let n = self.n.max(1.0);
        let (covariance, variance) = (self.xy - self.x * self.y / n, self.xx - self.x * self.x / n);
        (variance > 1e-9 * n).then(|| {
            let slope = covariance / variance;
            (slope, (self.y - slope * self.x) / n)
        })
    }

    /// Mean squared residual of y − slope · x − offset.
    fn squared_error(&self, (slope, offset): (f64, f64)) -> f64 {
        let sum = self.yy + slope * slope * self.xx + self.n * offset * offset
            - 2.0 * slope * self.xy
            - 2.0 * offset * self.y
            + 2.0 * slope * offset * self.x;
        (sum / self.n.max(1.0)).max(0.0)
    }
}

impl SignalTable {
    fn of(windows: &[(usize, &Nodes)]) -> Self {
        let mut of_ids: BTreeMap<u32, Vec<(usize, &WindowSignals)>> = BTreeMap::new();
        for (group, nodes) in windows {
            for (can_id, sums) in nodes.iter() {
                of_ids.entry(*can_id).or_default().push((*group, sums));
            }
        }
        let mut table = Self { ids: Vec::new(), first: vec![0], signals: Vec::new() };
        for (can_id, means) in of_ids {
            table.ids.push(can_id);
            table.signals.extend(signals_of(&means));
            table.first.push(table.signals.len());
        }
        table
    }

    fn of_id(&self, id: usize) -> std::ops::Range<usize> {
        self.first[id]..self.first[id + 1]
    }

    /// The relations of one ID's signals.
    fn relations_of(&self, target: usize, windows: &[(usize, &Nodes)]) -> Vec<Relation> {
        if self.of_id(target).is_empty() {
            return Vec::new();
        }
        let groups = self.sums(target, windows);
        let mut total = Sums::new(self.of_id(target).len(), self.ids.len(), self.signals.len());
        groups.iter().for_each(|group| total.add(1.0, group));
        let rests: Vec<Sums> = groups
            .iter()
            .map(|group| {
                let mut rest = total.clone();
                rest.add(-1.0, group);
                rest
            })
            .collect();
        let mut found: Vec<(f64, Relation)> = Vec::new();
        for (own, at) in self.of_id(target).enumerate() {
            let Signal { place, variance, range, .. } = self.signals[at];
            let partners = self.partners(target, own, &total, &groups, &rests);
            if let Some(closest) = partners.first() {
                let share = f64::from(closest.error) / variance.sqrt();
                let mut relation = Relation { can_id: self.ids[target], place, range, usual: 1.0, partners };
                relation.usual = usual(&relation, windows);
                found.push((share, relation));
            }
        }
        found.sort_by(|one, other| one.0.total_cmp(&other.0));
        found.truncate(SIGNALS);
        found.sort_by_key(|(_, relation)| relation.place);
        found.into_iter().map(|(_, relation)| relation).collect()
    }

    /// Sums of each group of windows.
    fn sums(&self, target: usize, windows: &[(usize, &Nodes)]) -> Vec<Sums> {
        let own = self.of_id(target);
        let mut groups = vec![Sums::new(own.len(), self.ids.len(), self.signals.len()); GROUPS.1];
        let centred = |at: usize, sums: &WindowSignals| sums.mean(self.signals[at].place) - self.signals[at].mean;
        let mut y = Vec::with_capacity(own.len());
        for (group, nodes) in windows {
            let Ok(found) = nodes.binary_search_by_key(&self.ids[target], |(can_id, _)| *can_id) else { continue };
            y.clear();
            y.extend(own.clone().map(|at| centred(at, &nodes[found].1)));
            let sums = &mut groups[*group];
            let mut id = 0;
            for (can_id, means) in nodes.iter() {
                // Both are ascending, and the table has every ID of the sample.
                while self.ids[id] != *can_id {
                    id += 1;
                }
                if id == target {
                    continue;
                }
                sums.n[id] += 1.0;
                for (number, y) in y.iter().enumerate() {
                    sums.y[number * self.ids.len() + id] += y;
                    sums.yy[number * self.ids.len() + id] += y * y;
                }
                for signal in self.of_id(id) {
                    let x = centred(signal, means);
                    sums.x[signal] += x;
                    sums.xx[signal] += x * x;
                    for (number, y) in y.iter().enumerate() {
                        sums.xy[number * self.signals.len() + signal] += x * y;
                    }
                }
            }
        }
        groups
    }

    /// The closest signals of other IDs, each of another ID.
    fn partners(&self, target: usize, own: usize, total: &Sums, groups: &[Sums], rests: &[Sums]) -> Vec<Partner> {
        let Signal { mean, variance, .. } = self.signals[self.of_id(target).start + own];
        let most = LARGEST_ERROR * LARGEST_ERROR * variance;
        let mut candidates: Vec<(f64, Partner)> = Vec::new();
        for id in (0..self.ids.len()).filter(|&id| id != target && total.n[id] >= FEWEST_PAIRS.0) {
            let closest = self.of_id(id).filter_map(|signal| {
                let error = held_out_error(groups, rests, |sums| sums.pair(own, id, signal))?;
                (error <= most).then_some((error, signal))
            });
            let Some((error, signal)) = closest.min_by(|one, other| one.0.total_cmp(&other.0)) else { continue };
            let Some((slope, offset)) = total.pair(own, id, signal).fit() else { continue };
            let Signal { place, mean: partners_mean, range, .. } = self.signals[signal];
            let partner = Partner {
                can_id: self.ids[id],
                place,
                range,
                slope: slope as f32,
                offset: (mean + offset - slope * partners_mean) as f32,
                error: error.sqrt().max(SMALLEST_ERROR) as f32,
            };
            candidates.push((error, partner));
        }
        candidates.sort_by(|one, other| one.0.total_cmp(&other.0));
        candidates.into_iter().take(PARTNERS).map(|(_, partner)| partner).collect()
    }
}

/// The largest mean squared residual of a group under the fit to the others; `None` if too few groups count.
fn held_out_error(groups: &[Sums], rests: &[Sums], pair: impl Fn(&Sums) -> Pair) -> Option<f64> {
    let (mut worst, mut counting) = (0.0_f64, 0);
    for (group, rest) in groups.iter().zip(rests) {
        let group = pair(group);
        if group.n > FEWEST_PAIRS.1 {
            worst = worst.max(group.squared_error(pair(rest).fit()?));
            counting += 1;
        }
    }
    (counting >= GROUPS.0).then_some(worst)
}

/// The signals of an ID that vary within groups: single bytes, and words whose bytes both vary.
fn signals_of(windows: &[(usize, &WindowSignals)]) -> Vec<Signal> {
    let varies = |low: u8| {
        let mut values = windows.iter().map(|(_, sums)| sums.mean(Place { high: None, low }));
        values.next().is_some_and(|first| values.any(|value| value != first))
    };
    let places = Place::all().filter(|place| varies(place.low) && place.high.is_none_or(varies));
    places.filter_map(|place| signal_of(place, windows)).collect()
}

/// A signal, if it varies in enough groups and is slow.
fn signal_of(place: Place, windows: &[(usize, &WindowSignals)]) -> Option<Signal> {
    let (mut counts, mut sums, mut squares) = ([0.0_f64; GROUPS.1], [0.0; GROUPS.1], [0.0; GROUPS.1]);
    let first = windows.first()?.1.mean(place);
    let mut spreads = 0.0;
    let mut range = SignalRange { least: f32::INFINITY, most: f32::NEG_INFINITY };
    for (group, window) in windows {
        // Less the first value, so that squares of large values do not cancel.
        let value = window.mean(place) - first;
        counts[*group] += 1.0;
        sums[*group] += value;
        squares[*group] += value * value;
        spreads += window.spread(place);
        range.least = range.least.min(window.mean(place) as f32);
        range.most = range.most.max(window.mean(place) as f32);
    }
    let scatter = |group: usize| (squares[group] - sums[group] * sums[group] / counts[group].max(1.0)).max(0.0);
    let windows: f64 = counts.iter().sum();
    let variance = (0..GROUPS.1).map(scatter).sum::<f64>() / windows;
    let enough = |group: &usize| {
        let own = scatter(*group) / counts[*group].max(1.0);
        counts[*group] > FEWEST_PAIRS.1 && own >= VARYING.1 * VARYING.1 * variance
    };
    let is_slow = spreads / windows <= FASTEST * variance.sqrt();
    let varies = variance > SMALLEST_ERROR * SMALLEST_ERROR && (0..GROUPS.1).filter(enough).count() >= VARYING.0;
    (is_slow && varies).then(|| Signal { place, mean: first + sums.iter().sum::<f64>() / windows, variance, range })
}

/// Usual residual of a relation: a quantile of those in the sample, at least 1.
fn usual(relation: &Relation, windows: &[(usize, &Nodes)]) -> f32 {
    let residual = |nodes: &Nodes| {
        let of_id = |can_id: u32| {
            let at = nodes.binary_search_by_key(&can_id, |(can_id, _)| *can_id).ok()?;
            Some(&nodes[at].1)
        };
        Some(relation.judge(of_id(relation.can_id)?, of_id)?.size)
    };
    let mut residuals: Vec<f32> = windows.iter().filter_map(|(_, nodes)| residual(nodes)).collect();
    residuals.sort_by(f32::total_cmp);
    let at = ((USUAL * residuals.len() as f64).ceil() as usize).saturating_sub(1);
    residuals.get(at).copied().unwrap_or(1.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use kdgat_base::random::{Purpose, unit};
    use kdgat_can::Frame;

    use super::super::{CarProfile, Place, ProfileLearner, deviations, rules::Rule, test_windows};
    use crate::Columns;

    const WINDOW: usize = 20;
    /// A speed as a word, the same speed as a word of the other byte order, and something else.
    const IDS: [u32; 3] = [0x100, 0x200, 0x300];
    const SPEED: Place = Place { high: Some(0), low: 1 };
    const SWAPPED: Place = Place { high: Some(3), low: 2 };

    /// A value that wanders between 0 and 1, over some hundred steps.
    fn wander(purpose: Purpose, step: usize) -> f64 {
        let (at, share) = (step / 300, (step % 300) as f64 / 300.0);
        let corner = |at: usize| unit(5, purpose, 0, at as u64);
        corner(at) + share * (corner(at + 1) - corner(at))
    }

    /// `steps` steps of 10 ms; from step `forged` on, the speed of the first ID stands still.
    fn traffic(steps: usize, forged: usize) -> Vec<Frame> {
        let of_step = |step: usize| {
            let noise = |index: usize| unit(6, Purpose::Step, step as u64, index as u64) * 4.0 - 2.0;
            let speed = |step: usize| 20_000.0 * wander(Purpose::Shuffle, step);
            let [one, two] = [speed(step.min(forged)) + noise(0), speed(step) / 2.0 + 300.0 + noise(1)];
            let other = 250.0 * wander(Purpose::Bootstrap, step);
            let [a, b] = (one.max(0.0) as u16).to_be_bytes();
            let [c, d] = (two as u16).to_le_bytes();
            let payloads = [[a, b, 7, 0, 0, 0, 0, 0], [0, 9, c, d, 0, 0, 0, 0], [other as u8, 0, 0, 0, 0, 0, 0, 0]];
            (0..3).map(move |index| Frame {
                timestamp: 0.01 * step as f64 + 0.002 * index as f64,
                can_id: IDS[index],
                payload: payloads[index],
                payload_length: 8,
                attack: step >= forged && index == 0,
            })
        };
        (0..steps).flat_map(of_step).collect()
    }

    fn columns(frames: &[Frame]) -> Columns {
        test_windows::of(frames, WINDOW)
    }

    fn learner(columns: &Columns, graphs: impl Iterator<Item = usize>) -> ProfileLearner {
        ProfileLearner::of(graphs.map(|graph| columns.graph(graph)))
    }

    fn profile(steps: usize) -> CarProfile {
        let columns = columns(&traffic(steps, usize::MAX));
        learner(&columns, 0..columns.num_graphs()).profile()
    }

    #[test]
    fn signals_of_two_ids_that_belong_together_are_found() {
        let profile = profile(8_000);
        let close = |can_id: u32, place: Place| {
            let found =
                profile.relations().iter().find(|relation| (relation.can_id, relation.place) == (can_id, place));
            found.unwrap_or_else(|| panic!("no relation of {can_id:X}: {:?}", profile.relations())).partners.clone()
        };
        let [one, two] = [close(0x100, SPEED), close(0x200, SWAPPED)];
        assert_eq!((one.len(), one[0].can_id, one[0].place), (1, 0x200, SWAPPED));
        assert!((one[0].slope - 2.0).abs() < 0.01 && (one[0].offset + 600.0).abs() < 20.0, "{one:?}");
        assert_eq!((two[0].can_id, two[0].place), (0x100, SPEED));
        assert!((two[0].slope - 0.5).abs() < 0.01, "{two:?}");
        assert!(profile.relations().iter().all(|relation| relation.can_id != 0x300), "{:?}", profile.relations());
        assert_eq!(profile.problem(), None);
    }

    #[test]
    fn little_traffic_has_no_relations() {
        assert_eq!(profile(6_000).relations(), []);
    }

    #[test]
    fn a_forged_signal_disagrees_with_the_others() {
        let profile = profile(8_000);
        let columns = columns(&traffic(9_000, 8_500));
        let judged = |graph: usize| {
            let view = columns.graph(graph);
            let mut rows = Vec::new();
            profile.append_deviations(&view, &mut rows);
            let feature = rows.chunks(deviations::DEVIATIONS).map(|row| row[deviations::DISAGREEMENT]);
            (feature.collect::<Vec<_>>(), profile.rule_counts(&view)[Rule::Disagreement as usize])
        };
        let last = columns.num_graphs() - 1;
        let (features, count) = judged(last);
        assert!(features[0] > 3.0 && count > 0, "{features:?} {count}");
        assert_eq!(features[2], 0.0);
        let usual: Vec<_> = (0..1200).map(judged).collect();
        let unusual = usual.iter().filter(|(_, count)| *count > 0).count();
        assert!(unusual < 12, "{unusual} of 1200 attack-free windows disagree");
        let culprits = profile.culprits(&columns.graph(last), 2);
        assert!(culprits[0].can_id == 0x100 || culprits[0].can_id == 0x200, "{culprits:?}");
        assert!(culprits[0].reasons.iter().any(|reason| reason.contains("which would fit bytes")), "{culprits:?}");
    }

    #[test]
    fn parts_are_merged_in_any_order() {
        let columns = columns(&traffic(8_000, usize::MAX));
        let count = columns.num_graphs();
        let whole = learner(&columns, 0..count).profile();
        let [one, two] = [0, 1].map(|rest| learner(&columns, (0..count).filter(move |graph| graph % 2 == rest)));
        for parts in [[one.clone(), two.clone()], [two, one]] {
            assert_eq!(ProfileLearner::merged(&parts, None).profile().relations(), whole.relations());
        }
        assert!(!whole.relations().is_empty());
    }
}
