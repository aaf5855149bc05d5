//! One window of frames as a graph: its nodes, edges and their features.
//!
//! One pass over the frames finds the distinct IDs with a table of all standard IDs (and a small open-addressing table for
//! extended ones) and sums payloads; two counting sorts order the window's edges by target and source, so that the
//! occurrences of an edge are contiguous, oldest first. Nothing is allocated once the buffers have grown.

use kdgat_can::Frame;
use kdgat_can::frame::PAYLOAD_BYTES;

use super::columns::Columns;
use super::history::{MOST_OVERDUE, WindowFacts};
use super::{EDGE_FEATURES, FeatureSet, NODE_FEATURES, rich};

/// Longest supported window, in frames: its nodes and edges are counted in 16 bits.
pub const LONGEST_WINDOW: usize = u16::MAX as usize - 1;

/// Number of standard IDs, which have 11 bits.
const STANDARD_IDS: usize = 1 << 11;

/// Turns windows into graphs; reuses its buffers.
#[derive(Debug)]
pub struct FeatureExtractor {
    window: usize,
    slots: SlotTable,
    /// Statistics of each distinct ID, in order of first appearance.
    tallies: Vec<Tally>,
    /// For each frame of the window and the frame after it: its slot, later replaced by its node.
    node_of_frame: Vec<u16>,
    /// Slots in ascending order of ID.
    slot_of_node: Vec<u16>,
    node_of_slot: Vec<u16>,
    /// Positions in the window, ordered by their frame's node.
    by_source: Vec<u16>,
    /// Positions in the window, ordered by the next frame's node, then by their own: edge after edge.
    by_target: Vec<u16>,
    /// Next free place of each node in a counting sort.
    next_place: Vec<u32>,
    /// Graph structure for the rich features.
    structure: rich::Structure,
}

/// Statistics of one ID in a window.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    id: u32,
    /// Frames in the window; each is the source of an edge.
    count: u32,
    /// Frames that are the target of an edge.
    count_as_target: u32,
    last_position: u32,
    payload_sums: [u32; PAYLOAD_BYTES],
    attack_free: bool,
}

impl FeatureExtractor {
    /// An extractor for windows of `window` frames, 2 to [`LONGEST_WINDOW`].
    pub fn new(window: usize) -> Self {
        assert!((2..=LONGEST_WINDOW).contains(&window), "a window of {window} frames is not 2 to {LONGEST_WINDOW}");
        Self {
            window,
            slots: SlotTable::new(window + 1 + MOST_OVERDUE),
            tallies: Vec::new(),
            node_of_frame: Vec::new(),
            slot_of_node: Vec::new(),
            node_of_slot: Vec::new(),
            by_source: Vec::new(),
            by_target: Vec::new(),
            next_place: Vec::new(),
            structure: rich::Structure::default(),
        }
    }

    /// Appends the graph of `frames` (the window and the frame after it) to `columns`, with the feature set of `columns`.
    ///
    /// # Panics
    /// When there are not `window + 1` frames.
    pub fn append_graph(&mut self, frames: &[Frame], file: u32, first_frame: u64, columns: &mut Columns) {
        self.append_graph_with(frames, None, file, first_frame, columns);
    }

    /// Like [`FeatureExtractor::append_graph`], with the facts about the window that [`FeatureSet::needs_history`] asks for.
    ///
    /// # Panics
    /// When there are not `window + 1` frames, or facts that the feature set needs are missing.
    pub fn append_graph_with(
        &mut self,
        frames: &[Frame],
        facts: Option<WindowFacts<'_>>,
        file: u32,
        first_frame: u64,
        columns: &mut Columns,
    ) {
        assert_eq!(frames.len(), self.window + 1, "a window and the frame after it");
        let attack = self.tally(frames);
        for &(can_id, _) in facts.map_or(&[][..], |facts| facts.overdue) {
            self.slot_of(can_id);
        }
        self.number_nodes();
        self.order_edges();
        match columns.features {
            FeatureSet::Window => {
                self.append_edges(columns, |extractor, source, target, occurrences| {
                    extractor.edge_features(source, target, occurrences)
                });
                self.append_nodes(columns);
            }
            FeatureSet::Rich => {
                self.append_edges(columns, |_, _, _, occurrences| rich::edge_features(frames, occurrences));
                self.append_rich_nodes(frames, columns);
            }
            FeatureSet::Columns { .. } => unreachable!("graphs of a schema are not made from frames"),
            FeatureSet::Profile => {
                self.append_edges(columns, |extractor, source, target, occurrences| {
                    extractor.edge_features(source, target, occurrences)
                });
                self.append_frames(frames, facts.expect("the profile set needs the facts of its window"), columns);
            }
        }
        columns.finish_graph(attack, file, first_frame, frames[0].timestamp);
    }

    /// Finds the distinct IDs and accumulates their statistics; returns true if there is an attack frame.
    fn tally(&mut self, frames: &[Frame]) -> bool {
        self.slots.start();
        self.tallies.clear();
        self.node_of_frame.clear();
        let mut attack = false;
        let (next, window) = frames.split_last().expect("a window is not empty");
        for (position, frame) in window.iter().enumerate() {
            let slot = self.slot_of(frame.can_id);
            let tally = &mut self.tallies[slot as usize];
            tally.count += 1;
            tally.last_position = position as u32;
            tally.attack_free |= !frame.attack;
            tally.payload_sums.iter_mut().zip(frame.payload).for_each(|(sum, byte)| *sum += u32::from(byte));
            attack |= frame.attack;
            self.node_of_frame.push(slot);
        }
        let slot = self.slot_of(next.can_id);
        self.node_of_frame.push(slot);
        // Every frame but the first is the target of the previous one.
        self.tallies.iter_mut().for_each(|tally| tally.count_as_target = tally.count);
        self.tallies[self.node_of_frame[0] as usize].count_as_target -= 1;
        self.tallies[slot as usize].count_as_target += 1;
        attack
    }

    fn slot_of(&mut self, id: u32) -> u16 {
        let slot = self.slots.slot_of(id, self.tallies.len() as u16);
        if slot as usize == self.tallies.len() {
            self.tallies.push(Tally { id, ..Tally::default() });
        }
        slot
    }

    /// Numbers the nodes in ascending order of ID, and replaces each frame's slot by its node.
    fn number_nodes(&mut self) {
        self.slots.ascending(&mut self.slot_of_node);
        self.node_of_slot.resize(self.slot_of_node.len(), 0);
        for (node, &slot) in self.slot_of_node.iter().enumerate() {
            self.node_of_slot[slot as usize] = node as u16;
        }
        self.node_of_frame.iter_mut().for_each(|entry| *entry = self.node_of_slot[*entry as usize]);
    }

    fn append_nodes(&self, columns: &mut Columns) {
        let counts = self.tallies.iter().map(|tally| tally.count);
        let (fewest, most) = counts.fold((u32::MAX, 0), |(fewest, most), count| (fewest.min(count), most.max(count)));
        let last_position = (self.window - 1) as f64;
        for &slot in &self.slot_of_node {
            let tally = &self.tallies[slot as usize];
            let mut features = [0.0f32; NODE_FEATURES];
            if tally.count > 0 {
                let full_scale = 255.0 * f64::from(tally.count);
                for (feature, &sum) in features.iter_mut().zip(&tally.payload_sums) {
                    *feature = (f64::from(sum) / full_scale) as f32;
                }
                features[8] = match most > fewest {
                    true => (f64::from(tally.count - fewest) / f64::from(most - fewest)) as f32,
                    false => tally.count as f32,
                };
                features[9] = (f64::from(tally.last_position) / last_position) as f32;
            }
            columns.can_ids.push(tally.id);
            columns.attack_free.push(tally.attack_free.into());
            columns.node_features.extend_from_slice(&features);
        }
    }

    /// Appends nodes with rich features; the graph's edges must have been appended.
    fn append_rich_nodes(&mut self, frames: &[Frame], columns: &mut Columns) {
        let Self { tallies, slot_of_node, by_source, structure, .. } = self;
        let first_edge = columns.edge_pointers.last().map_or(0, |&end| end as usize);
        let features = &columns.edge_features[first_edge * EDGE_FEATURES..];
        structure.look(slot_of_node.len(), &columns.sources[first_edge..], &columns.targets[first_edge..], features);
        let mut remaining = by_source.as_slice();
        for (node, &slot) in slot_of_node.iter().enumerate() {
            let tally = &tallies[slot as usize];
            let (positions, others) = remaining.split_at(tally.count as usize);
            remaining = others;
            let mut features = rich::node_features(frames, positions);
            structure.describe(node, &mut features);
            columns.can_ids.push(tally.id);
            columns.attack_free.push(tally.attack_free.into());
            columns.node_features.extend_from_slice(&features);
        }
    }

    /// Appends nodes without features, but with their frames and what was before them.
    fn append_frames(&self, frames: &[Frame], facts: WindowFacts<'_>, columns: &mut Columns) {
        let begin = frames[0].timestamp;
        let end = frames[self.window - 1].timestamp;
        let mut remaining = self.by_source.as_slice();
        for &slot in &self.slot_of_node {
            let tally = &self.tallies[slot as usize];
            let (positions, others) = remaining.split_at(tally.count as usize);
            remaining = others;
            let silence = match positions.last() {
                Some(&last) => (end - frames[last as usize].timestamp) as f32,
                // The node is only the target of the last frame's edge, or overdue.
                None => facts.silence_of(tally.id).unwrap_or(f32::NAN),
            };
            columns.can_ids.push(tally.id);
            columns.attack_free.push(tally.attack_free.into());
            columns.node_frames.push(tally.count as u16);
            columns.node_silence.push(silence);
            columns.node_scheduled.push(facts.scheduled(tally.id, begin));
            let repeated = positions.first().map_or([0; PAYLOAD_BYTES], |&first| facts.frames[first as usize].repeated);
            columns.node_repeated.extend_from_slice(&repeated);
            for &position in positions {
                let (frame, fact) = (&frames[position as usize], &facts.frames[position as usize]);
                columns.push_frame(frame, fact, (frame.timestamp - begin) as f32);
            }
        }
    }

    /// Orders edges by two stable counting sorts: by source, then by target.
    fn order_edges(&mut self) {
        let Self { window, tallies, slot_of_node, node_of_frame, next_place, by_source, by_target, .. } = self;
        let places = |next_place: &mut Vec<u32>, count: fn(&Tally) -> u32| {
            next_place.clear();
            let mut begin = 0;
            for &slot in slot_of_node.iter() {
                next_place.push(begin);
                begin += count(&tallies[slot as usize]);
            }
        };
        by_source.resize(*window, 0);
        by_target.resize(*window, 0);
        places(next_place, |tally| tally.count);
        for position in 0..*window {
            let place = &mut next_place[node_of_frame[position] as usize];
            by_source[*place as usize] = position as u16;
            *place += 1;
        }
        places(next_place, |tally| tally.count_as_target);
        for &position in by_source.iter() {
            let place = &mut next_place[node_of_frame[position as usize + 1] as usize];
            by_target[*place as usize] = position;
            *place += 1;
        }
    }

    /// Appends edges; `features` computes an edge's features from (source, target, positions of its occurrences in the window).
    fn append_edges(&self, columns: &mut Columns, features: impl Fn(&Self, u16, u16, &[u16]) -> [f32; EDGE_FEATURES]) {
        let first_edge = columns.sources.len();
        let mut remaining = self.by_target.as_slice();
        for (target, &slot) in self.slot_of_node.iter().enumerate() {
            columns.row_pointers.push((columns.sources.len() - first_edge) as u16);
            let (mut row, rest) = remaining.split_at(self.tallies[slot as usize].count_as_target as usize);
            remaining = rest;
            while let Some(&first) = row.first() {
                let source = self.node_of_frame[first as usize];
                let end = row.iter().position(|&position| self.node_of_frame[position as usize] != source);
                let (occurrences, others) = row.split_at(end.unwrap_or(row.len()));
                row = others;
                columns.sources.push(source);
                columns.targets.push(target as u16);
                columns.edge_features.extend_from_slice(&features(self, source, target as u16, occurrences));
            }
        }
        columns.row_pointers.push((columns.sources.len() - first_edge) as u16);
        mark_reverse_edges(columns, first_edge, self.slot_of_node.len());
    }

    /// All edge features of the window set except the flag of the reverse edge, which needs all edges.
    fn edge_features(&self, source: u16, target: u16, occurrences: &[u16]) -> [f32; EDGE_FEATURES] {
        let window = self.window as f64;
        let count = occurrences.len() as f64;
        let (first, last) = (f64::from(occurrences[0]), f64::from(occurrences[occurrences.len() - 1]));
        let (gap_mean, gap_deviation, regularity) = gap_statistics(occurrences);
        let degree = |node: u16| {
            let tally = &self.tallies[self.slot_of_node[node as usize] as usize];
            f64::from(tally.count + tally.count_as_target)
        };
        let (source_degree, target_degree) = (degree(source), degree(target));
        [
            count as f32,
            (count / window) as f32,
            gap_mean as f32,
            gap_deviation as f32,
            regularity as f32,
            (first / window) as f32,
            (last / window) as f32,
            ((last - first) / window) as f32,
            0.0,
            (source_degree * target_degree) as f32,
            (source_degree / target_degree) as f32,
        ]
    }
}

/// Mean, population standard deviation and regularity of the gaps between ascending positions.
///
/// Uses integers up to the last step, so that equal gaps have a deviation of exactly 0.
fn gap_statistics(positions: &[u16]) -> (f64, f64, f64) {
    let &[first, .., last] = positions else { return (0.0, 0.0, 0.0) };
    let gaps = positions.len() as u64 - 1;
    let sum = u64::from(last - first);
    let squares: u64 = positions.windows(2).map(|pair| u64::from(pair[1] - pair[0]).pow(2)).sum();
    let mean = sum as f64 / gaps as f64;
    let deviation = ((gaps * squares - sum * sum) as f64).sqrt() / gaps as f64;
    (mean, deviation, 1.0 / (1.0 + deviation))
}

fn mark_reverse_edges(columns: &mut Columns, first_edge: usize, nodes: usize) {
    let reverse_exists = columns.features.reverse_exists();
    let sources = &columns.sources[first_edge..];
    let targets = &columns.targets[first_edge..];
    let rows = &columns.row_pointers[columns.row_pointers.len() - nodes - 1..];
    let features = columns.edge_features[first_edge * EDGE_FEATURES..].chunks_exact_mut(EDGE_FEATURES);
    for ((&source, target), features) in sources.iter().zip(targets).zip(features) {
        let row = rows[source as usize] as usize..rows[source as usize + 1] as usize;
        features[reverse_exists] = f32::from(u8::from(sources[row].binary_search(target).is_ok()));
    }
}

/// Numbers the distinct IDs of a window in order of first appearance.
#[derive(Debug)]
struct SlotTable {
    /// Marks the entries of the current window.
    stamp: u32,
    standard: Vec<SlotEntry>,
    /// One bit for each standard ID of the window.
    present: [u64; STANDARD_IDS / 64],
    /// Open-addressing table; its length is a power of two, at least twice the number of IDs of a window.
    extended: Vec<SlotEntry>,
    /// Extended IDs of the window with their slots.
    extended_ids: Vec<(u32, u16)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct SlotEntry {
    id: u32,
    stamp: u32,
    slot: u16,
}

impl SlotTable {
    fn new(most_ids: usize) -> Self {
        Self {
            stamp: 0,
            standard: vec![SlotEntry::default(); STANDARD_IDS],
            present: [0; STANDARD_IDS / 64],
            extended: vec![SlotEntry::default(); (2 * most_ids).next_power_of_two()],
            extended_ids: Vec::new(),
        }
    }

    /// Starts a new window without IDs.
    fn start(&mut self) {
        self.extended_ids.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            // After 2^32 windows the stamps wrap around, and old entries must not look current.
            self.standard.fill(SlotEntry::default());
            self.extended.fill(SlotEntry::default());
            self.stamp = 1;
        }
    }

    /// Slot of `id`, which is set to `free_slot` if the ID is new.
    #[inline]
    fn slot_of(&mut self, id: u32, free_slot: u16) -> u16 {
        let Some(entry) = self.standard.get_mut(id as usize) else { return self.extended_slot_of(id, free_slot) };
        if entry.stamp != self.stamp {
            *entry = SlotEntry { id, stamp: self.stamp, slot: free_slot };
            self.present[id as usize / 64] |= 1 << (id % 64);
        }
        entry.slot
    }

    fn extended_slot_of(&mut self, id: u32, free_slot: u16) -> u16 {
        let mask = self.extended.len() - 1;
        let mut place = (id.wrapping_mul(0x9e37_79b1) >> 7) as usize & mask;
        loop {
            let entry = &mut self.extended[place];
            if entry.stamp != self.stamp {
                *entry = SlotEntry { id, stamp: self.stamp, slot: free_slot };
                self.extended_ids.push((id, free_slot));
                return free_slot;
            }
            if entry.id == id {
                return entry.slot;
            }
            place = (place + 1) & mask;
        }
    }

    /// The slots in ascending order of ID.
    fn ascending(&mut self, slots: &mut Vec<u16>) {
        slots.clear();
        for (word, bits) in self.present.iter_mut().enumerate() {
            while *bits != 0 {
                slots.push(self.standard[word * 64 + bits.trailing_zeros() as usize].slot);
                *bits &= *bits - 1;
            }
        }
        self.extended_ids.sort_unstable();
        slots.extend(self.extended_ids.iter().map(|&(_, slot)| slot));
    }
}
