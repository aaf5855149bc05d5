//! Graphs as flat arrays: the columns of a shard, and views of single graphs.

use super::{EDGE_FEATURES, FeatureSet};

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
    /// `[num_nodes]`: CAN IDs, ascending within a graph.
    pub can_ids: Vec<u32>,
    /// `[num_nodes, features.node_features()]`: node features.
    pub node_features: Vec<f32>,
    /// `[num_edges, EDGE_FEATURES]`: edge features.
    pub edge_features: Vec<f32>,
    /// `[num_edges]`: source node of each edge, numbered within the graph.
    pub sources: Vec<u16>,
    /// `[num_edges]`: target node of each edge, numbered within the graph, ascending; sources ascend for each target.
    pub targets: Vec<u16>,
    /// `[num_nodes + num_graphs]`: for each graph, the start of each target's edges, followed by the number of edges.
    pub row_pointers: Vec<u16>,
    /// `[num_graphs]`: 1 if any frame of the window is an attack frame.
    pub labels: Vec<u8>,
    /// `[num_nodes]`: 1 if the node sent at least one frame of the window that is not an attack frame.
    pub attack_free: Vec<u8>,
}

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
            can_ids: Vec::new(),
            node_features: Vec::new(),
            edge_features: Vec::new(),
            sources: Vec::new(),
            targets: Vec::new(),
            row_pointers: Vec::new(),
            labels: Vec::new(),
            attack_free: Vec::new(),
        }
    }
}

/// One graph, as slices of a shard's columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphView<'a> {
    /// `[num_nodes]`: CAN IDs, ascending.
    pub can_ids: &'a [u32],
    /// `[num_nodes]`: 1 if the node sent an attack-free frame.
    pub attack_free: &'a [u8],
    /// `[num_nodes, node features of the set]`: node features.
    pub node_features: &'a [f32],
    /// `[num_edges]`: source node of each edge, in order of target; including self-loops of the data.
    pub sources: &'a [u16],
    /// `[num_edges]`: target node of each edge, ascending.
    pub targets: &'a [u16],
    /// `[num_nodes + 1]`: edges of target `i` are `row_pointers[i]..row_pointers[i + 1]`.
    pub row_pointers: &'a [u16],
    /// `[num_edges, EDGE_FEATURES]`: edge features.
    pub edge_features: &'a [f32],
    /// True if any frame of the window is an attack frame.
    pub attack: bool,
    /// Index of the file in the manifest.
    pub file: u32,
    /// Position of the window's first frame in its file.
    pub first_frame: u64,
    /// Timestamp of that frame, in seconds.
    pub start_time: f64,
}

impl GraphView<'_> {
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
        if self.row_pointers.first() != Some(&0) || self.row_pointers.last().map(|&end| end as usize) != Some(edges) {
            return Some(format!("row pointers do not span its {edges} edges"));
        }
        if !self.row_pointers.is_sorted() {
            return Some("row pointers descend".to_string());
        }
        let highest = self.sources.iter().fold(0, |highest, &source| highest.max(source));
        (edges > 0 && highest as usize >= nodes).then(|| format!("an edge comes from node {highest} of {nodes}"))
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
        let per_node = 4 + 4 * self.features.node_features() as u64 + 2 + 1;
        let per_edge = 4 * EDGE_FEATURES as u64 + 2 + 2;
        16 + graphs * (8 + 8 + 8 + 8 + 4 + 2 + 1) + nodes * per_node + edges * per_edge
    }

    /// Removes all graphs but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.node_pointers.truncate(1);
        self.edge_pointers.truncate(1);
        self.first_frames.clear();
        self.start_times.clear();
        self.files.clear();
        self.can_ids.clear();
        self.node_features.clear();
        self.edge_features.clear();
        self.sources.clear();
        self.targets.clear();
        self.row_pointers.clear();
        self.labels.clear();
        self.attack_free.clear();
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
        self.edge_features.extend_from_slice(graph.edge_features);
        self.finish_graph(graph.attack, graph.file, graph.first_frame, graph.start_time);
    }

    /// The graph at `index`.
    ///
    /// # Panics
    /// When `index` is out of range.
    pub fn graph(&self, index: usize) -> GraphView<'_> {
        let nodes = self.node_pointers[index] as usize..self.node_pointers[index + 1] as usize;
        let edges = self.edge_pointers[index] as usize..self.edge_pointers[index + 1] as usize;
        let width = self.features.node_features();
        GraphView {
            can_ids: &self.can_ids[nodes.clone()],
            attack_free: &self.attack_free[nodes.clone()],
            node_features: &self.node_features[nodes.start * width..nodes.end * width],
            sources: &self.sources[edges.clone()],
            targets: &self.targets[edges.clone()],
            row_pointers: &self.row_pointers[nodes.start + index..nodes.end + index + 1],
            edge_features: &self.edge_features[edges.start * EDGE_FEATURES..edges.end * EDGE_FEATURES],
            attack: self.labels[index] != 0,
            file: self.files[index],
            first_frame: self.first_frames[index],
            start_time: self.start_times[index],
        }
    }
}
