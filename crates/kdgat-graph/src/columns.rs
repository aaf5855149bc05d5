//! Graphs as flat arrays: the columns of a shard, and views of single graphs.

use kdgat_can::Frame;
use kdgat_can::frame::PAYLOAD_BYTES;

use super::feature_set::{FeatureSet, SpaceColumns};
use super::history::FrameFacts;
use super::path_list::{PathKind, PathList, PathView};

/// Graphs in memory as columns, in the layout of a shard.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    /// Features of the nodes and edges.
    pub features: FeatureSet,
    /// `[num_graphs + 1]`: nodes of graph `g` are `node_pointers[g]..node_pointers[g + 1]`.
    pub node_pointers: Vec<u64>,
    /// `[num_graphs + 1]`: edges of graph `g` are `edge_pointers[g]..edge_pointers[g + 1]`.
    pub edge_pointers: Vec<u64>,
    /// `[num_graphs]`: position of the window's first frame in its file.
    pub first_frames: Vec<u64>,
    /// `[num_graphs]`: timestamp of that frame, in seconds.
    pub start_times: Vec<f64>,
    /// `[num_graphs]`: index of the file in the manifest.
    pub files: Vec<u32>,
    /// `[num_graphs]`: hash of each graph in its source, for graphs that are no CAN windows; empty for others.
    pub graph_hashes: Vec<u64>,
    /// `[num_nodes]`: CAN IDs, ascending within a graph.
    pub can_ids: Vec<u32>,
    /// `[num_nodes, features.node_features()]`: node features; empty for graphs of the profile set that hold frames.
    pub node_features: Vec<f32>,
    /// `[num_edges, features.edge_features()]`: edge features.
    pub edge_features: Vec<f32>,
    /// `[num_edges]`: source node of each edge, numbered within the graph.
    pub sources: Vec<u16>,
    /// `[num_edges]`: target node of each edge, numbered within the graph, ascending; sources ascend for each target.
    pub targets: Vec<u16>,
    /// `[num_nodes + num_graphs]`: for each graph, the start of each target's edges, followed by the number of edges.
    pub row_pointers: Vec<u16>,
    /// The same, for a set of graphs with more edges than 16 bits count; one of both is empty.
    pub wide_row_pointers: Vec<u32>,
    /// `[num_graphs]`: 1 if any frame of the window is an attack frame.
    pub labels: Vec<u8>,
    /// `[num_graphs, features.targets()]`: targets of graphs that are no CAN windows: numbers of classes, labels or values.
    pub graph_targets: Vec<f32>,
    /// `[num_graphs, features.target_rests()]`: what rounding to `graph_targets` has left of each value.
    pub target_rests: Vec<f32>,
    /// `[num_nodes, features.node_targets()]`: targets of nodes; NaN for a node without any.
    pub node_targets: Vec<f32>,
    /// Graphs in space only. `[num_nodes, 3]`: positions.
    pub positions: Vec<f32>,
    /// `[num_nodes]`: number of each node's kind.
    pub kinds: Vec<u16>,
    /// `[num_nodes, 3]` if there are forces as targets, else empty.
    pub forces: Vec<f32>,
    /// `[num_graphs, 9]` if graphs may have periodic cells, else empty: the vectors of the periodic axes, then zeros.
    pub cells: Vec<f64>,
    /// Listed angles and dihedrals; of a kind that is not listed without pointers beyond the first.
    pub paths: [PathList; 2],
    /// `[num_nodes]`: 1 if the node sent at least one frame of the window that is not an attack frame.
    pub attack_free: Vec<u8>,
    /// The nodes' frames; only for the profile set.
    /// `[num_frames]`: seconds since the previous frame of the same ID in the file, NaN without one. Frames are ordered by node, then
    /// by time.
    pub frame_gaps: Vec<f32>,
    /// `[num_frames]`: seconds since the window's first frame.
    pub frame_times: Vec<f32>,
    /// `[num_frames, 2, PAYLOAD_BYTES]`: payloads of the frame and of the previous frame of its ID.
    pub frame_payloads: Vec<u8>,
    /// `[num_frames, FRAME_FLAGS]`: payload lengths of both, [`NO_PREVIOUS`](super::history::NO_PREVIOUS) without a previous frame,
    /// 1 if the payload [returns](FrameFacts::returns), and 1 for an attack frame.
    pub frame_flags: Vec<u8>,
    /// `[num_nodes]`: number of the node's frames.
    pub node_frames: Vec<u16>,
    /// `[num_nodes]`: seconds from the node's last frame to the window's last frame; NaN for an ID that only the frame after the
    /// window has.
    pub node_silence: Vec<f32>,
    /// `[num_nodes]`: time of the ID's last frame on schedule before the window, in seconds from the window's first frame; NaN without one.
    pub node_scheduled: Vec<f32>,
    /// `[num_nodes, PAYLOAD_BYTES]`: see [`FrameFacts::repeated`], at the node's first frame; 0 for a node without frames.
    pub node_repeated: Vec<u8>,
}

/// Values of [`Columns::frame_flags`] per frame.
pub const FRAME_FLAGS: usize = 4;

impl Default for Columns {
    fn default() -> Self {
        Self::new(FeatureSet::Window)
    }
}

impl Columns {
    /// Columns without graphs, for graphs with these features.
    pub fn new(features: FeatureSet) -> Self {
        Self {
            features,
            node_pointers: vec![0],
            edge_pointers: vec![0],
            first_frames: Vec::new(),
            start_times: Vec::new(),
            files: Vec::new(),
            graph_hashes: Vec::new(),
            can_ids: Vec::new(),
            node_features: Vec::new(),
            edge_features: Vec::new(),
            sources: Vec::new(),
            targets: Vec::new(),
            row_pointers: Vec::new(),
            wide_row_pointers: Vec::new(),
            labels: Vec::new(),
            graph_targets: Vec::new(),
            target_rests: Vec::new(),
            node_targets: Vec::new(),
            positions: Vec::new(),
            kinds: Vec::new(),
            forces: Vec::new(),
            cells: Vec::new(),
            paths: Default::default(),
            attack_free: Vec::new(),
            frame_gaps: Vec::new(),
            frame_times: Vec::new(),
            frame_payloads: Vec::new(),
            frame_flags: Vec::new(),
            node_frames: Vec::new(),
            node_silence: Vec::new(),
            node_scheduled: Vec::new(),
            node_repeated: Vec::new(),
        }
    }
}

/// The frames of a graph's nodes, for the profile set; empty for others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FramesView<'a> {
    /// `[num_frames]`: see [`Columns::frame_gaps`].
    pub gaps: &'a [f32],
    /// `[num_frames]`: seconds since the window's first frame.
    pub times: &'a [f32],
    /// `[num_frames, 2, PAYLOAD_BYTES]`: see [`Columns::frame_payloads`].
    pub payloads: &'a [u8],
    /// `[num_frames, FRAME_FLAGS]`: see [`Columns::frame_flags`].
    pub flags: &'a [u8],
    /// `[num_nodes]`: number of the node's frames.
    pub of_node: &'a [u16],
    /// `[num_nodes]`: see [`Columns::node_silence`].
    pub silence: &'a [f32],
    /// `[num_nodes]`: see [`Columns::node_scheduled`].
    pub scheduled: &'a [f32],
    /// `[num_nodes, PAYLOAD_BYTES]`: see [`Columns::node_repeated`].
    pub repeated: &'a [u8],
}

/// The positions of a graph's nodes and what belongs to them; empty for graphs without positions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SpaceView<'a> {
    /// `[num_nodes, 3]`: positions.
    pub positions: &'a [f32],
    /// `[num_nodes]`: number of each node's kind.
    pub kinds: &'a [u16],
    /// `[num_nodes, 3]`: forces as targets; empty without any.
    pub forces: &'a [f32],
    /// `[9]`: the vectors of the periodic axes, then zeros; empty if no graph of the set has a cell.
    pub cell: &'a [f64],
    /// Listed angles and dihedrals; empty for a kind that the set does not list.
    pub paths: [PathView<'a>; 2],
}

/// One frame of a node, with the previous frame of its ID.
#[derive(Debug, Clone, Copy)]
pub struct NodeFrame<'a> {
    /// Seconds since the previous frame; NaN without one.
    pub gap_seconds: f32,
    /// Payload, padded with zeros.
    pub payload: &'a [u8],
    /// Payload length in bytes.
    pub length: usize,
    /// Payload of the previous frame, if there is one.
    pub previous: Option<&'a [u8]>,
    /// See [`FrameFacts::returns`].
    pub returns: bool,
    /// True for an attack frame.
    pub attack: bool,
}

impl<'a> FramesView<'a> {
    /// Frame `index` of the graph.
    ///
    /// # Panics
    /// When there is no such frame.
    pub fn frame(&self, index: usize) -> NodeFrame<'a> {
        let (payload, previous) =
            self.payloads[index * 2 * PAYLOAD_BYTES..][..2 * PAYLOAD_BYTES].split_at(PAYLOAD_BYTES);
        let &[length, previous_length, returns, attack] = &self.flags[index * FRAME_FLAGS..][..FRAME_FLAGS] else {
            unreachable!("the slice has FRAME_FLAGS values")
        };
        let has_previous = previous_length != super::history::NO_PREVIOUS;
        NodeFrame {
            gap_seconds: self.gaps[index],
            payload,
            length: usize::from(length).min(PAYLOAD_BYTES),
            previous: has_previous.then_some(previous),
            returns: returns != 0,
            attack: attack != 0,
        }
    }

    /// Seconds from the window's first frame to its last.
    pub fn duration_seconds(&self) -> f32 {
        self.times.iter().fold(0.0, |longest, &time| longest.max(time))
    }
}

/// Row pointers of either width; one of both is empty.
#[derive(Clone, Copy)]
struct RowEnds<'a> {
    narrow: &'a [u16],
    wide: &'a [u32],
}

impl RowEnds<'_> {
    fn len(&self) -> usize {
        self.narrow.len().max(self.wide.len())
    }

    fn at(&self, node: usize) -> usize {
        if self.wide.is_empty() { usize::from(self.narrow[node]) } else { self.wide[node] as usize }
    }
}

/// One graph, as slices of a shard's columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphView<'a> {
    /// `[num_nodes]`: CAN IDs, ascending.
    pub can_ids: &'a [u32],
    /// `[num_nodes]`: 1 if the node sent an attack-free frame.
    pub attack_free: &'a [u8],
    /// `[num_nodes, stored node features of the set]`: node features.
    pub node_features: &'a [f32],
    /// The nodes' frames, for the profile set.
    pub frames: FramesView<'a>,
    /// `[num_edges]`: source node of each edge, in order of target; including self-loops of the data.
    pub sources: &'a [u16],
    /// `[num_edges]`: target node of each edge, ascending.
    pub targets: &'a [u16],
    /// `[num_nodes + 1]`: edges of target `i` are `row_pointers[i]..row_pointers[i + 1]`.
    pub row_pointers: &'a [u16],
    /// The same, for a set of graphs with more edges than 16 bits count; one of both is empty.
    pub wide_row_pointers: &'a [u32],
    /// `[num_edges, features.edge_features()]`: edge features.
    pub edge_features: &'a [f32],
    /// `[features.targets()]`: targets of a graph that is no CAN window.
    pub targets_of_graph: &'a [f32],
    /// The rest that rounding has left of each of them; empty if that is nothing beside their spread.
    pub target_rests: &'a [f32],
    /// `[num_nodes, features.node_targets()]`: targets of its nodes; NaN for a node without any.
    pub targets_of_nodes: &'a [f32],
    /// Positions of its nodes, for graphs in space.
    pub space: SpaceView<'a>,
    /// True if any frame of the window is an attack frame.
    pub attack: bool,
    /// Index of the file in the manifest.
    pub file: u32,
    /// Position of the window's first frame in its file.
    pub first_frame: u64,
    /// Timestamp of that frame, in seconds.
    pub start_time: f64,
}

impl<'a> GraphView<'a> {
    /// Number of the graph's class; only for a dataset whose graphs have classes.
    pub fn class(&self) -> u32 {
        self.targets_of_graph.first().map_or(0, |&class| class as u32)
    }

    /// The targets of the graph as the source has them, `[features.targets()]`.
    pub fn exact_targets(&self) -> impl Iterator<Item = f64> + use<'a> {
        let rests = self.target_rests.iter().copied().chain(std::iter::repeat(0.0));
        self.targets_of_graph.iter().zip(rests).map(|(&value, rest)| f64::from(value) + f64::from(rest))
    }

    /// The nodes that have targets, ascending, with these targets.
    pub fn node_targets(&self) -> impl Iterator<Item = (usize, &'a [f32])> + use<'a> {
        // Without targets the rows are empty, and there is none.
        let width = (self.targets_of_nodes.len() / self.num_nodes().max(1)).max(1);
        let rows = self.targets_of_nodes.chunks_exact(width).enumerate();
        rows.filter(|(_, values)| !values.iter().any(|value| value.is_nan()))
    }

    /// Row pointers of either width.
    fn row_ends(&self) -> RowEnds<'a> {
        RowEnds { narrow: self.row_pointers, wide: self.wide_row_pointers }
    }

    /// The edges of a target.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn edges_of(&self, target: usize) -> std::ops::Range<usize> {
        let ends = self.row_ends();
        ends.at(target)..ends.at(target + 1)
    }

    /// Number of nodes: the distinct IDs of the window and of the frame after it.
    pub fn num_nodes(&self) -> usize {
        self.can_ids.len()
    }

    /// Number of edges: the distinct ordered pairs of consecutive IDs, including self-loops.
    pub fn num_edges(&self) -> usize {
        self.sources.len()
    }

    /// IDs that sent a frame of the window, ascending; the frame after the window does not count.
    pub fn sending_ids(&self) -> Vec<u32> {
        let mut sends = vec![false; self.num_nodes()];
        self.sources.iter().for_each(|&node| sends[usize::from(node)] = true);
        self.can_ids.iter().zip(sends).filter_map(|(&id, sends)| sends.then_some(id)).collect()
    }

    /// Describes a contradiction in the layout, if there is one: damaged bytes must not become array indices.
    pub(crate) fn inconsistency(&self) -> Option<String> {
        let (nodes, edges) = (self.num_nodes(), self.num_edges());
        let in_nodes: usize = self.frames.of_node.iter().map(|&frames| usize::from(frames)).sum();
        if in_nodes != self.frames.gaps.len() {
            return Some(format!("its nodes have {in_nodes} frames, but there are {}", self.frames.gaps.len()));
        }
        let ends = self.row_ends();
        if ends.len() != nodes + 1 || [ends.at(0), ends.at(nodes)] != [0, edges] {
            return Some(format!("row pointers do not span its {edges} edges"));
        }
        if !(self.row_pointers.is_sorted() && self.wide_row_pointers.is_sorted()) {
            return Some("row pointers descend".to_string());
        }
        let highest = self.sources.iter().fold(0, |highest, &source| highest.max(source));
        if edges > 0 && highest as usize >= nodes {
            return Some(format!("an edge comes from node {highest} of {nodes}"));
        }
        PathKind::ALL.iter().zip(self.space.paths).find_map(|(&kind, paths)| paths.inconsistency(kind, nodes))
    }
}

impl Columns {
    /// Number of graphs.
    pub fn num_graphs(&self) -> usize {
        self.labels.len()
    }

    /// Size of these graphs in a shard, in bytes.
    pub fn bytes(&self) -> u64 {
        let graphs = self.num_graphs() as u64;
        let (nodes, edges) = (self.can_ids.len() as u64, self.sources.len() as u64);
        let (of_node, of_frame) = if self.features.needs_history() {
            (4 + 2 + 4 + PAYLOAD_BYTES as u64, 8 + 2 * PAYLOAD_BYTES + FRAME_FLAGS)
        } else {
            (0, 0)
        };
        let node_values = self.features.stored_node_features() + self.features.node_targets();
        let SpaceColumns { positions, cells, forces, paths } = self.features.space();
        let of_place = if positions { 12 + 2 } else { 0 } + if forces { 12 } else { 0 };
        let of_row = if self.features.has_wide_rows() { 4 } else { 2 };
        let per_node = 4 + 4 * node_values as u64 + of_row + 1 + of_node + of_place;
        let per_edge = 4 * self.features.edge_features() as u64 + 2 + 2;
        let frames = self.frame_gaps.len() as u64 * of_frame as u64;
        let of_hash = if self.features.is_columns() { 8 } else { 0 };
        let of_cell = if cells { 72 } else { 0 };
        let per_graph = 8
            + 8
            + 8
            + 8
            + 4
            + 2
            + 1
            + of_hash
            + of_cell
            + 4 * (self.features.targets() + self.features.target_rests()) as u64;
        let of_paths = PathKind::ALL.iter().zip(&self.paths).filter_map(|(&kind, list)| {
            let parameters = u64::from(*paths.of(kind)?);
            Some(8 * (graphs + 1) + list.count() * (2 * kind.nodes() as u64 + 4 * parameters))
        });
        16 + graphs * per_graph + nodes * per_node + edges * per_edge + frames + of_paths.sum::<u64>()
    }

    /// Appends a frame of the node appended last.
    pub(super) fn push_frame(&mut self, frame: &Frame, fact: &FrameFacts, time_seconds: f32) {
        self.frame_gaps.push(fact.gap_seconds);
        self.frame_times.push(time_seconds);
        self.frame_payloads.extend_from_slice(&frame.payload);
        self.frame_payloads.extend_from_slice(&fact.previous);
        let (length, previous_length) = (frame.payload_length.min(64), fact.previous_length);
        self.frame_flags.extend_from_slice(&[length, previous_length, fact.returns.into(), frame.attack.into()]);
    }

    /// Removes all graphs but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.node_pointers.truncate(1);
        self.edge_pointers.truncate(1);
        self.first_frames.clear();
        self.start_times.clear();
        self.files.clear();
        self.graph_hashes.clear();
        self.can_ids.clear();
        self.node_features.clear();
        self.edge_features.clear();
        self.sources.clear();
        self.targets.clear();
        self.row_pointers.clear();
        self.wide_row_pointers.clear();
        self.labels.clear();
        self.graph_targets.clear();
        self.target_rests.clear();
        self.node_targets.clear();
        self.positions.clear();
        self.kinds.clear();
        self.forces.clear();
        self.cells.clear();
        self.paths.iter_mut().for_each(PathList::clear);
        self.attack_free.clear();
        self.frame_gaps.clear();
        self.frame_times.clear();
        self.frame_payloads.clear();
        self.frame_flags.clear();
        self.node_frames.clear();
        self.node_silence.clear();
        self.node_scheduled.clear();
        self.node_repeated.clear();
    }

    /// Ends a graph whose nodes, edges and row pointers have been appended: adds its pointers, label and origin.
    pub fn finish_graph(&mut self, attack: bool, file: u32, first_frame: u64, start_time: f64) {
        self.node_pointers.push(self.can_ids.len() as u64);
        self.edge_pointers.push(self.sources.len() as u64);
        self.labels.push(attack.into());
        self.files.push(file);
        self.first_frames.push(first_frame);
        self.start_times.push(start_time);
    }

    /// Appends a copy of a graph.
    pub fn push(&mut self, graph: &GraphView<'_>) {
        self.can_ids.extend_from_slice(graph.can_ids);
        self.attack_free.extend_from_slice(graph.attack_free);
        self.node_features.extend_from_slice(graph.node_features);
        self.sources.extend_from_slice(graph.sources);
        self.targets.extend_from_slice(graph.targets);
        self.row_pointers.extend_from_slice(graph.row_pointers);
        self.wide_row_pointers.extend_from_slice(graph.wide_row_pointers);
        self.edge_features.extend_from_slice(graph.edge_features);
        self.graph_targets.extend_from_slice(graph.targets_of_graph);
        self.target_rests.extend_from_slice(graph.target_rests);
        self.node_targets.extend_from_slice(graph.targets_of_nodes);
        self.positions.extend_from_slice(graph.space.positions);
        self.kinds.extend_from_slice(graph.space.kinds);
        self.forces.extend_from_slice(graph.space.forces);
        self.cells.extend_from_slice(graph.space.cell);
        self.push_paths(graph.space.paths);
        self.frame_gaps.extend_from_slice(graph.frames.gaps);
        self.frame_times.extend_from_slice(graph.frames.times);
        self.frame_payloads.extend_from_slice(graph.frames.payloads);
        self.frame_flags.extend_from_slice(graph.frames.flags);
        self.node_frames.extend_from_slice(graph.frames.of_node);
        self.node_silence.extend_from_slice(graph.frames.silence);
        self.node_scheduled.extend_from_slice(graph.frames.scheduled);
        self.node_repeated.extend_from_slice(graph.frames.repeated);
        self.finish_graph(graph.attack, graph.file, graph.first_frame, graph.start_time);
    }

    /// Appends a graph's listed paths, of the kinds that the set lists.
    pub(crate) fn push_paths(&mut self, paths: [PathView<'_>; 2]) {
        let listed = self.features.space().paths;
        for ((list, &kind), own) in self.paths.iter_mut().zip(&PathKind::ALL).zip(paths) {
            if listed.of(kind).is_some() {
                list.push(kind, own);
            }
        }
    }

    /// The frames of the graph at `index`: every graph of the profile set has the same number.
    fn frames_of(&self, index: usize, nodes: std::ops::Range<usize>) -> FramesView<'_> {
        if self.frame_gaps.is_empty() {
            return FramesView::default();
        }
        let window = self.frame_gaps.len() / self.num_graphs().max(1);
        let frames = index * window..(index + 1) * window;
        FramesView {
            gaps: &self.frame_gaps[frames.clone()],
            times: &self.frame_times[frames.clone()],
            payloads: &self.frame_payloads[frames.start * 2 * PAYLOAD_BYTES..frames.end * 2 * PAYLOAD_BYTES],
            flags: &self.frame_flags[frames.start * FRAME_FLAGS..frames.end * FRAME_FLAGS],
            of_node: &self.node_frames[nodes.clone()],
            silence: &self.node_silence[nodes.clone()],
            scheduled: &self.node_scheduled[nodes.clone()],
            repeated: &self.node_repeated[nodes.start * PAYLOAD_BYTES..nodes.end * PAYLOAD_BYTES],
        }
    }

    fn space_of(&self, index: usize, nodes: std::ops::Range<usize>) -> SpaceView<'_> {
        let SpaceColumns { positions, cells, forces, paths } = self.features.space();
        let vectors = nodes.start * 3..nodes.end * 3;
        SpaceView {
            positions: if positions { &self.positions[vectors.clone()] } else { &[] },
            kinds: if positions { &self.kinds[nodes] } else { &[] },
            forces: if forces { &self.forces[vectors] } else { &[] },
            cell: if cells { &self.cells[index * 9..(index + 1) * 9] } else { &[] },
            paths: PathKind::ALL.map(|kind| match paths.of(kind) {
                Some(&parameters) => self.paths[kind as usize].of(kind, index, usize::from(parameters)),
                None => PathView::default(),
            }),
        }
    }

    /// The graph at `index`.
    ///
    /// # Panics
    /// When `index` is out of range.
    pub fn graph(&self, index: usize) -> GraphView<'_> {
        let nodes = self.node_pointers[index] as usize..self.node_pointers[index + 1] as usize;
        let edges = self.edge_pointers[index] as usize..self.edge_pointers[index + 1] as usize;
        // Graphs of the profile set have frames; only those of an edge list have features already.
        let width = if self.node_features.is_empty() { 0 } else { self.features.node_features() };
        let (edge_width, targets) = (self.features.edge_features(), self.features.targets());
        let (rests, node_targets) = (self.features.target_rests(), self.features.node_targets());
        let (is_wide, rows) = (self.features.has_wide_rows(), nodes.start + index..nodes.end + index + 1);
        GraphView {
            frames: self.frames_of(index, nodes.clone()),
            can_ids: &self.can_ids[nodes.clone()],
            attack_free: &self.attack_free[nodes.clone()],
            node_features: &self.node_features[nodes.start * width..nodes.end * width],
            sources: &self.sources[edges.clone()],
            targets: &self.targets[edges.clone()],
            row_pointers: if is_wide { &[] } else { &self.row_pointers[rows.clone()] },
            wide_row_pointers: if is_wide { &self.wide_row_pointers[rows] } else { &[] },
            edge_features: &self.edge_features[edges.start * edge_width..edges.end * edge_width],
            targets_of_graph: &self.graph_targets[index * targets..(index + 1) * targets],
            target_rests: &self.target_rests[index * rests..(index + 1) * rests],
            targets_of_nodes: &self.node_targets[nodes.start * node_targets..nodes.end * node_targets],
            space: self.space_of(index, nodes),
            attack: self.labels[index] != 0,
            file: self.files[index],
            first_frame: self.first_frames[index],
            start_time: self.start_times[index],
        }
    }
}
