//! Relations between signals of different IDs: what one control unit reports about the car follows from what others report.
//!
//! Speed, engine speed or the position of a pedal stand in messages of several control units. An attacker who silences one of them and
//! sends forged values on time breaks no rule of time or of single bytes, but the forged signal disagrees with the others.
//!
//! A relation is linear between means over a window: y ≈ slope · x + offset. A window judges it by the residual, in units of its usual
//! error. Two IDs are not sampled at the same times, so what x does since its frame before the window counts as error, too. What y does
//! does not: it may be forged.

use serde::{Deserialize, Serialize};

use super::CarProfile;
use super::signals::{Place, WindowSignals};
use crate::GraphView;

/// A window in which more than this share of the compared IDs disagree, and more than this number, is of a state of the car that the
/// relations do not cover: an attack forges few signals.
const FORGED: (f64, usize) = (0.25, 3);
/// A signal and the signals of other IDs that it follows from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relation {
    /// The signal's ID.
    pub can_id: u32,
    /// The signal's place.
    pub place: Place,
    /// Range of the signal.
    pub range: SignalRange,
    /// 99.9 % quantile of the [disagreement](Disagreement) in attack-free windows before it is divided by this value, at least 1.
    pub usual: f32,
    /// Signals of different IDs, the closest relation first.
    pub partners: Vec<Partner>,
}

/// A signal that another one follows from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partner {
    /// The signal's ID.
    pub can_id: u32,
    /// The signal's place.
    pub place: Place,
    /// Range of the signal.
    pub range: SignalRange,
    /// Factor of this signal.
    pub slope: f32,
    /// Value of the other signal where this one is 0.
    pub offset: f32,
    /// Root of the mean squared residual in traffic that the relation was not learned from.
    pub error: f32,
}

/// Range of a signal's means in the traffic that a relation was learned from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalRange {
    /// Smallest mean.
    pub least: f32,
    /// Largest mean.
    pub most: f32,
}

impl SignalRange {
    /// True if a value lies in the range or at most its width outside. Beyond that, a bit has changed that never did in training, such as
    /// the state of a control unit beside a counter, and the relation says nothing.
    fn covers(self, value: f64) -> bool {
        let (least, most) = (f64::from(self.least), f64::from(self.most));
        (least - (most - least)..=most + (most - least)).contains(&value)
    }

    fn is_valid(self) -> bool {
        self.least.is_finite() && self.most.is_finite() && self.least < self.most
    }
}

/// A signal that does not fit the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disagreement<'a> {
    /// Residual in units of what is usual: above 1 in one of a thousand attack-free windows.
    pub size: f32,
    /// The relation that it was found by.
    pub relation: &'a Relation,
    /// The partner whose relation holds best.
    pub partner: &'a Partner,
    /// Mean of the signal in the window.
    pub found: f64,
    /// The value that follows from the partner.
    pub expected: f64,
}

impl Partner {
    /// The mean of `of` at `place` that this signal predicts, and the residual in units of the usual error.
    fn residual(&self, place: Place, of: &WindowSignals, own: &WindowSignals) -> (f64, f64) {
        let (slope, error) = (f64::from(self.slope), f64::from(self.error));
        let expected = slope * own.mean(self.place) + f64::from(self.offset);
        let spread = slope * own.spread(self.place);
        (expected, (of.mean(place) - expected).abs() / (error * error + spread * spread).sqrt())
    }

    fn is_valid(&self) -> bool {
        let numbers = [self.slope, self.offset, self.error];
        self.place.is_valid() && self.range.is_valid() && numbers.into_iter().all(f32::is_finite) && self.error > 0.0
    }
}

impl Relation {
    /// The smallest residual under any partner that the window has: of two signals that disagree, the one that also disagrees with a
    /// third is the wrong one. `None` if no partner has a frame, or values are far outside of their ranges. `of_id` finds the means of an ID.
    pub(super) fn judge<'b>(
        &self,
        of: &WindowSignals,
        of_id: impl Fn(u32) -> Option<&'b WindowSignals>,
    ) -> Option<Disagreement<'_>> {
        let found = of.mean(self.place);
        let judged = self.partners.iter().filter_map(|partner| {
            let own = of_id(partner.can_id)?;
            if !(self.range.covers(found) && partner.range.covers(own.mean(partner.place))) {
                return None;
            }
            let (expected, residual) = partner.residual(self.place, of, own);
            let size = (residual / f64::from(self.usual)) as f32;
            Some(Disagreement { size, relation: self, partner, found, expected })
        });
        judged.min_by(|one, other| one.size.total_cmp(&other.size))
    }

    pub(super) fn is_valid(&self) -> bool {
        let is_number = self.usual.is_finite() && self.usual >= 1.0;
        is_number
            && self.range.is_valid()
            && self.place.is_valid()
            && !self.partners.is_empty()
            && self.partners.iter().all(Partner::is_valid)
    }
}

/// Disagreements of the nodes of a window.
#[derive(Default)]
pub(super) struct Disagreements<'a> {
    /// `[num_nodes]`, one for each signal that could be compared; empty if the relations do not cover the window.
    of_nodes: Vec<Vec<Disagreement<'a>>>,
}

impl<'a> Disagreements<'a> {
    /// Those of a node's signals.
    pub(super) fn of(&self, node: usize) -> &[Disagreement<'a>] {
        self.of_nodes.get(node).map_or(&[], Vec::as_slice)
    }

    /// The largest of a node's signals.
    pub(super) fn largest(&self, node: usize) -> Option<&Disagreement<'a>> {
        self.of(node).iter().max_by(|one, other| one.size.total_cmp(&other.size))
    }
}

impl CarProfile {
    /// The relations of an ID's signals.
    fn relations_of(&self, can_id: u32) -> &[Relation] {
        let relations = self.relations();
        let first = relations.partition_point(|relation| relation.can_id < can_id);
        let count = relations[first..].iter().take_while(|relation| relation.can_id == can_id).count();
        &relations[first..first + count]
    }

    /// Compares the signals of a window's nodes with those of other IDs.
    pub(super) fn disagreements(&self, view: &GraphView<'_>) -> Disagreements<'_> {
        if self.relations().is_empty() {
            return Disagreements::default();
        }
        let sums = WindowSignals::of_nodes(view, false);
        let of_id = |can_id: u32| sums[view.can_ids.binary_search(&can_id).ok()?].as_ref();
        let of_node = |(&can_id, own): (&u32, &Option<WindowSignals>)| match own {
            Some(own) => self.relations_of(can_id).iter().filter_map(|relation| relation.judge(own, of_id)).collect(),
            None => Vec::new(),
        };
        let of_nodes: Vec<Vec<Disagreement<'_>>> = view.can_ids.iter().zip(&sums).map(of_node).collect();
        let compared = of_nodes.iter().filter(|found| !found.is_empty()).count();
        let disagreeing = of_nodes.iter().filter(|found| found.iter().any(|one| one.size > 1.0)).count();
        if disagreeing > FORGED.1 && disagreeing as f64 > FORGED.0 * compared as f64 {
            return Disagreements::default();
        }
        Disagreements { of_nodes }
    }
}
