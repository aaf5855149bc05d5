//! The traffic of a stretch, by ID: where the frames of an ID are, and which values its bytes have.

use std::collections::BTreeMap;
use std::ops::Range;

use super::WINDOW_FRAMES;
use crate::frame::{Frame, PAYLOAD_BYTES};
use crate::simulator::random::Stream;

/// Frames per second of a stretch whose times do not tell.
const USUAL_FRAMES_PER_SECOND: f64 = 1_000.0;
/// Share of the episodes whose targets are drawn by their share of the traffic; the others draw from all IDs alike.
const BY_TRAFFIC: f64 = 1.0 / 3.0;
/// Share of the episodes with several targets, where the kind of attack can have several.
const SEVERAL: f64 = 1.0 / 3.0;
/// Largest number of targets, where the kind can have several.
const MOST_TARGETS: usize = 4;
/// Attempts to draw an eligible ID by its share of the traffic.
const ATTEMPTS: u64 = 32;

/// The frames of a stretch.
pub(super) struct Traffic<'a> {
    pub frames: &'a [Frame],
    /// The IDs, ascending.
    pub ids: Vec<IdTraffic>,
    pub frames_per_second: f64,
}

/// The frames of one ID.
pub(super) struct IdTraffic {
    pub can_id: u32,
    /// Positions of its frames in the stretch, ascending.
    pub positions: Vec<usize>,
    /// Number of its frames in 100 frames of traffic, on average.
    pub per_window: f64,
    /// Shortest payload in bytes.
    pub length: usize,
    pub bytes: [ByteValues; PAYLOAD_BYTES],
}

/// The values of one byte of an ID's payloads.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteValues {
    pub low: u8,
    pub high: u8,
    seen: [u64; 4],
}

impl ByteValues {
    const NONE: Self = Self { low: u8::MAX, high: 0, seen: [0; 4] };

    fn add(&mut self, value: u8) {
        self.low = self.low.min(value);
        self.high = self.high.max(value);
        self.seen[usize::from(value) / 64] |= 1 << (value % 64);
    }

    /// True if the byte has had this value.
    pub fn has(&self, value: u8) -> bool {
        self.seen[usize::from(value) / 64] >> (value % 64) & 1 == 1
    }

    /// Number of values that the byte has not had.
    pub fn unseen(&self) -> usize {
        256 - self.seen.iter().map(|bits| bits.count_ones() as usize).sum::<usize>()
    }
}

impl<'a> Traffic<'a> {
    /// Sorts the frames by ID.
    pub fn new(frames: &'a [Frame]) -> Self {
        let mut ids: BTreeMap<u32, IdTraffic> = BTreeMap::new();
        for (position, frame) in frames.iter().enumerate() {
            let new = || IdTraffic {
                can_id: frame.can_id,
                positions: Vec::new(),
                per_window: 0.0,
                length: PAYLOAD_BYTES,
                bytes: [ByteValues::NONE; PAYLOAD_BYTES],
            };
            let id = ids.entry(frame.can_id).or_insert_with(new);
            id.positions.push(position);
            id.length = id.length.min(usize::from(frame.payload_length));
            id.bytes.iter_mut().zip(frame.payload).for_each(|(values, byte)| values.add(byte));
        }
        let mut ids: Vec<IdTraffic> = ids.into_values().collect();
        for id in &mut ids {
            id.per_window = (WINDOW_FRAMES * id.positions.len()) as f64 / frames.len() as f64;
        }
        Self { frames, ids, frames_per_second: frames_per_second(frames) }
    }

    /// The ID with this number, if it has frames.
    pub fn find(&self, can_id: u32) -> Option<&IdTraffic> {
        self.ids.binary_search_by_key(&can_id, |id| id.can_id).ok().map(|place| &self.ids[place])
    }

    /// Draws one ID from the frames in `among` that is eligible.
    pub fn pick(
        &self,
        among: &Range<usize>,
        random: Stream,
        eligible: impl Fn(&IdTraffic) -> bool,
    ) -> Option<&IdTraffic> {
        if random.uniform(0) < BY_TRAFFIC && !among.is_empty() {
            for attempt in 0..ATTEMPTS {
                let position = among.start + random.below(2 + attempt, among.len());
                if let Some(id) = self.find(self.frames[position].can_id).filter(|id| eligible(id)) {
                    return Some(id);
                }
            }
        }
        let all: Vec<&IdTraffic> = self.ids.iter().filter(|id| id.is_among(among) && eligible(id)).collect();
        if all.is_empty() { None } else { Some(all[random.below(1, all.len())]) }
    }

    /// Draws one eligible ID, or several ones whose frames are at most half of the traffic.
    pub fn pick_several(
        &self,
        among: &Range<usize>,
        random: Stream,
        eligible: impl Fn(&IdTraffic) -> bool,
    ) -> Vec<&IdTraffic> {
        let wanted = if random.uniform(0) < SEVERAL { 2 + random.below(1, MOST_TARGETS - 1) } else { 1 };
        let mut picked: Vec<&IdTraffic> = Vec::new();
        let mut per_window = 0.0;
        for number in 0..wanted {
            let is_free = |id: &IdTraffic| {
                eligible(id)
                    && picked.iter().all(|other| other.can_id != id.can_id)
                    && (picked.is_empty() || per_window + id.per_window <= WINDOW_FRAMES as f64 / 2.0)
            };
            let Some(id) = self.pick(among, random.child(number as u64), is_free) else { break };
            per_window += id.per_window;
            picked.push(id);
        }
        picked.sort_by_key(|id| id.can_id);
        picked
    }

    /// The last frame of an ID before `position`, or its first one.
    pub fn latest(&self, id: &IdTraffic, position: usize) -> &Frame {
        let before = id.positions.partition_point(|&other| other < position);
        &self.frames[id.positions[before.saturating_sub(1)]]
    }
}

impl IdTraffic {
    /// Positions of its frames within a range.
    pub fn within(&self, range: &Range<usize>) -> &[usize] {
        let place = |end: usize| self.positions.partition_point(|&position| position < end);
        &self.positions[place(range.start)..place(range.end)]
    }

    /// Numbers of the bytes that change.
    pub fn varying(&self) -> Vec<usize> {
        (0..self.length).filter(|&byte| self.bytes[byte].low < self.bytes[byte].high).collect()
    }

    fn is_among(&self, range: &Range<usize>) -> bool {
        !self.within(range).is_empty()
    }
}

fn frames_per_second(frames: &[Frame]) -> f64 {
    let seconds = match frames {
        [first, .., last] => last.timestamp - first.timestamp,
        _ => 0.0,
    };
    let found = frames.len() as f64 / seconds;
    if (1.0..=100_000.0).contains(&found) { found } else { USUAL_FRAMES_PER_SECOND }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(ids: &[u32]) -> Vec<Frame> {
        let frame = |(number, &can_id): (usize, &u32)| {
            let payload = [7, number as u8, 0, 0, 0, 0, 0, 0];
            Frame { timestamp: number as f64 / 500.0, can_id, payload, payload_length: 2, attack: false }
        };
        ids.iter().enumerate().map(frame).collect()
    }

    #[test]
    fn the_frames_of_an_id_are_found() {
        let frames = frames(&[5, 3, 5, 5, 3]);
        let traffic = Traffic::new(&frames);
        let id = traffic.find(5).unwrap();
        assert_eq!((id.positions.as_slice(), id.per_window, id.length), (&[0, 2, 3][..], 60.0, 2));
        assert_eq!(id.varying(), [1]);
        assert!(id.bytes[1].has(2) && !id.bytes[1].has(1));
        assert_eq!((id.bytes[1].unseen(), id.bytes[0].unseen()), (253, 255));
        let latest = |position| traffic.latest(id, position).payload[1];
        assert_eq!([latest(0), latest(1), latest(3), latest(5)], [0, 0, 2, 3]);
        assert_eq!(id.within(&(1..3)), [2]);
        assert!((traffic.frames_per_second - 625.0).abs() < 1e-9);
    }

    #[test]
    fn targets_are_drawn_from_all_ids_and_more_often_from_frequent_ones() {
        let ids: Vec<u32> = (0..1000).map(|number| if number % 10 == 0 { number / 100 } else { 0x100 }).collect();
        let frames = frames(&ids);
        let traffic = Traffic::new(&frames);
        let picked: Vec<u32> =
            (0..2000).map(|seed| traffic.pick(&(0..1000), Stream::new(seed), |_| true).unwrap().can_id).collect();
        let frequent = picked.iter().filter(|&&id| id == 0x100).count() as f64 / 2000.0;
        // A third of the draws by traffic (0.9), the others from 11 IDs.
        assert!((frequent - 0.36).abs() < 0.04, "{frequent}");
        assert!((0..10).all(|id| picked.contains(&id)));
        assert!(traffic.pick(&(0..1000), Stream::new(1), |_| false).is_none());
        for seed in 0..100 {
            let several = traffic.pick_several(&(0..1000), Stream::new(seed), |_| true);
            assert!(several.len() == 1 || several.iter().map(|id| id.per_window).sum::<f64>() <= 50.0);
        }
    }
}
