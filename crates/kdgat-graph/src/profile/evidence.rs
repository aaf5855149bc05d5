//! Relations that other traffic bears out.
//!
//! Among thousands of pairs of signals some look related in any recording, and break as soon as the car does something else. A calibration has no other
//! recording to tell, but it has parts: a relation counts if the traffic without each part shows it, too, and that part does not break it more often than
//! is usual. An accidental one holds in the traffic that it was found in, and not in the part that it was not.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{CarProfile, Place, Relation};
use crate::Columns;

/// Share of the attack-free windows that break a relation which holds: it is called broken beyond the 99.9 % quantile of its residuals.
pub const USUALLY_BROKEN: f64 = 0.001;

/// Windows in which a relation was compared, and those of them that broke it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Comparisons {
    /// Windows that compared its signal with a partner.
    pub windows: usize,
    /// Windows in which they disagreed by more than is usual.
    pub broken: usize,
}

impl CarProfile {
    /// The same profile with these of its relations only.
    fn with_relations(&self, keep: impl Fn(&Relation) -> bool) -> Self {
        let relations = self.relations().iter().filter(|relation| keep(relation)).cloned().collect();
        let profile = Self::new(self.ids().to_vec(), relations);
        if self.counts_bytes() { profile } else { profile.without_bytes() }
    }

    /// The relations of the car's profile, by ID and place, that all parts of the calibration traffic `windows` bear out. `judging` has the profile
    /// learned without each of `parts`. `is_usual` tells whether so few broken windows may be chance.
    fn borne_out(
        &self,
        windows: &Columns,
        parts: &[Range<usize>],
        judging: &[Self],
        is_usual: impl Fn(Comparisons) -> bool,
    ) -> BTreeMap<(u32, Place), Comparisons> {
        let mut found: BTreeMap<(u32, Place), Comparisons> = BTreeMap::new();
        for relation in self.relations() {
            found.insert((relation.can_id, relation.place), Comparisons::default());
        }
        for (profile, part) in judging.iter().zip(parts) {
            let has = |key: &(u32, Place)| profile.relations().iter().any(|own| (own.can_id, own.place) == *key);
            found.retain(|key, _| has(key));
            for window in part.clone() {
                let view = windows.graph(window);
                let disagreements = profile.disagreements(&view);
                for one in (0..view.num_nodes()).flat_map(|node| disagreements.of(node)) {
                    if let Some(counts) = found.get_mut(&(one.relation.can_id, one.relation.place)) {
                        counts.windows += 1;
                        counts.broken += usize::from(one.size > 1.0);
                    }
                }
            }
        }
        found.retain(|_, counts| is_usual(*counts));
        found
    }

    /// Leaves out the relations of a calibration that not all parts of its traffic bear out, in the car's profile and in those that judge the parts.
    /// `judging` has the profile learned without each of `parts` of `windows`. `is_usual` tells whether so few broken windows may be chance.
    pub fn keep_borne_out(
        &mut self,
        judging: &mut [Self],
        windows: &Columns,
        parts: &[Range<usize>],
        is_usual: impl Fn(Comparisons) -> bool,
    ) {
        if self.relations().is_empty() && judging.iter().all(|profile| profile.relations().is_empty()) {
            return;
        }
        let kept = self.borne_out(windows, parts, judging, is_usual);
        for profile in judging.iter_mut().chain([self]) {
            *profile = profile.with_relations(|relation| kept.contains_key(&(relation.can_id, relation.place)));
        }
    }
}

#[cfg(test)]
mod tests {
    use kdgat_can::Frame;

    use super::super::{ProfileLearner, fold_parts, test_windows};
    use super::*;

    const WINDOW: usize = 20;
    const STEPS: usize = 14_000;

    /// A value between 0 and 1 that wanders.
    fn wander(stream: u64, step: usize) -> f64 {
        let corner = |at: u64| (kdgat_base::random::mix(at * 7 + stream) % 1000) as f64 / 1000.0;
        let (at, share) = ((step / 300) as u64, (step % 300) as f64 / 300.0);
        corner(at) + share * (corner(at + 1) - corner(at))
    }

    /// ID 1 and ID 2 have the same value in their first bytes, up to noise; ID 3 another. In the last fifth, `breaks` says in which steps the value of ID 2
    /// is off by 25.
    fn traffic(breaks: fn(usize) -> bool) -> Columns {
        let of_step = |step: usize| {
            let value = 200.0 * wander(1, step);
            let off = if step > STEPS * 4 / 5 && breaks(step) { 25.0 } else { 0.0 };
            let noise = |index: u64| (kdgat_base::random::mix(step as u64 * 3 + index) % 5) as f64;
            let values = [value + noise(0), (value + off + noise(1)).min(255.0), 200.0 * wander(2, step)];
            (0..3).map(move |index| Frame {
                timestamp: 0.01 * step as f64 + 0.002 * index as f64,
                can_id: 1 + index as u32,
                payload: [values[index] as u8, 0, 0, 0, 0, 0, 0, 0],
                payload_length: 8,
                attack: false,
            })
        };
        test_windows::of(&(0..STEPS).flat_map(of_step).collect::<Vec<_>>(), WINDOW)
    }

    /// The car's profile and the relations of it that are kept.
    fn kept(windows: &Columns) -> (usize, usize) {
        let parts = fold_parts(windows.num_graphs());
        let (mut profile, mut judging) = ProfileLearner::of_columns(windows, &parts);
        let before = profile.relations().len();
        profile.keep_borne_out(&mut judging, windows, &parts, |counts| {
            counts.broken as f64 <= 3.0 + 2.0 * USUALLY_BROKEN * counts.windows as f64
        });
        let of_judging: Vec<usize> = judging.iter().map(|profile| profile.relations().len()).collect();
        assert!(of_judging.iter().all(|&relations| relations <= profile.relations().len()), "{of_judging:?}");
        (before, profile.relations().len())
    }

    #[test]
    fn a_relation_that_every_part_bears_out_is_kept() {
        let (before, after) = kept(&traffic(|_| false));
        assert!(before >= 2 && after == before, "{after} of {before}");
    }

    /// A twentieth of the windows of one part is too little to hide the relation from the whole, whose usual residual it only widens.
    #[test]
    fn a_relation_that_one_part_breaks_is_left_out() {
        let (before, after) = kept(&traffic(|step| (step / 8).is_multiple_of(20)));
        assert!(before >= 2 && after < before, "{after} of {before}");
    }
}
