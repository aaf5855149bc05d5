//! The columns of a shard: names, types and rows of its tensors, and their order in the file.

use kdgat_can::frame::PAYLOAD_BYTES;
use safetensors::Dtype;

use crate::columns::{Columns, FRAME_FLAGS};
use crate::{FeatureSet, PathKind};

/// A column of a shard: one tensor of the file. The base columns are in every shard; the frames of the profile set follow at the end, in
/// shards of that set alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Column {
    NodePointers,
    EdgePointers,
    FirstFrames,
    StartTimes,
    Files,
    GraphHashes,
    CanIds,
    NodeFeatures,
    EdgeFeatures,
    Sources,
    Targets,
    RowPointers,
    WideRowPointers,
    GraphTargets,
    TargetRests,
    NodeTargets,
    Cells,
    AnglePointers,
    DihedralPointers,
    AngleParameters,
    DihedralParameters,
    Angles,
    Dihedrals,
    Positions,
    Forces,
    Kinds,
    Labels,
    AttackFree,
    FrameGaps,
    FrameTimes,
    NodeSilence,
    NodeRepeated,
    NodeScheduled,
    NodeFrames,
    FramePayloads,
    FrameFlags,
}

/// Columns of pointers to the rows of each graph: nodes, edges, angles and dihedrals.
pub const POINTERS: [(Column, &str); 4] = [
    (Column::NodePointers, "node_ptr"),
    (Column::EdgePointers, "edge_ptr"),
    (Column::AnglePointers, "angle_ptr"),
    (Column::DihedralPointers, "dihedral_ptr"),
];
/// Number of columns of all sets together.
pub const COLUMNS: usize = Column::FrameFlags as usize + 1;

/// Number of rows of a column.
#[derive(Debug, Clone, Copy)]
pub enum Rows {
    /// One per graph, and one more.
    GraphEnds,
    Graphs,
    Nodes,
    /// One per node, and one more per graph.
    NodesAndGraphs,
    Edges,
    /// One per listed path.
    Paths(PathKind),
    Frames,
}

/// Name, type, values per row and number of rows of a column's tensor.
pub type Layout = Vec<(Column, &'static str, Dtype, usize, Rows)>;

/// The columns in the order of the file. Wide types come first, so that each column is aligned; a column without values takes no space.
pub fn layout(features: FeatureSet) -> Layout {
    use Column::*;
    let space = features.space();
    let [angles, dihedrals] = PathKind::ALL.map(Rows::Paths);
    let listed = PathKind::ALL.map(|kind| space.paths.of(kind).map_or(0, |_| 1));
    let parameters = PathKind::ALL.map(|kind| space.paths.of(kind).map_or(0, |&count| usize::from(count)));
    let wide = [
        (NodePointers, "node_ptr", Dtype::U64, 1, Rows::GraphEnds),
        (EdgePointers, "edge_ptr", Dtype::U64, 1, Rows::GraphEnds),
        (FirstFrames, "first_frame", Dtype::U64, 1, Rows::Graphs),
        (StartTimes, "start_time", Dtype::F64, 1, Rows::Graphs),
        (Cells, "cell", Dtype::F64, if space.cells { 9 } else { 0 }, Rows::Graphs),
        (AnglePointers, "angle_ptr", Dtype::U64, listed[0], Rows::GraphEnds),
        (DihedralPointers, "dihedral_ptr", Dtype::U64, listed[1], Rows::GraphEnds),
        (GraphHashes, "graph_hash", Dtype::U64, usize::from(features.is_columns()), Rows::Graphs),
        (Files, "file", Dtype::U32, 1, Rows::Graphs),
        (CanIds, "can_id", Dtype::U32, 1, Rows::Nodes),
        (NodeFeatures, "node_features", Dtype::F32, features.stored_node_features(), Rows::Nodes),
        (EdgeFeatures, "edge_features", Dtype::F32, features.edge_features(), Rows::Edges),
        (GraphTargets, "graph_targets", Dtype::F32, features.targets(), Rows::Graphs),
        (TargetRests, "target_rests", Dtype::F32, features.target_rests(), Rows::Graphs),
        (NodeTargets, "node_targets", Dtype::F32, features.node_targets(), Rows::Nodes),
        (Positions, "position", Dtype::F32, if space.positions { 3 } else { 0 }, Rows::Nodes),
        (Forces, "force", Dtype::F32, if space.forces { 3 } else { 0 }, Rows::Nodes),
        (AngleParameters, "angle_parameters", Dtype::F32, parameters[0], angles),
        (DihedralParameters, "dihedral_parameters", Dtype::F32, parameters[1], dihedrals),
        (WideRowPointers, "row_ptr", Dtype::U32, usize::from(features.has_wide_rows()), Rows::NodesAndGraphs),
        (Kinds, "kind", Dtype::U16, usize::from(space.positions), Rows::Nodes),
        (Angles, "angle", Dtype::U16, 3 * listed[0], angles),
        (Dihedrals, "dihedral", Dtype::U16, 4 * listed[1], dihedrals),
    ];
    let narrow = [
        (Sources, "edge_source", Dtype::U16, 1, Rows::Edges),
        (Targets, "edge_target", Dtype::U16, 1, Rows::Edges),
        (RowPointers, "row_ptr", Dtype::U16, usize::from(!features.has_wide_rows()), Rows::NodesAndGraphs),
    ];
    let bytes = [(Labels, "label", Dtype::U8, 1, Rows::Graphs), (AttackFree, "attack_free", Dtype::U8, 1, Rows::Nodes)];
    let mut columns: Layout = wide.to_vec();
    columns.retain(|&(_, _, _, width, _)| width > 0);
    if features.needs_history() {
        columns.push((FrameGaps, "frame_gap", Dtype::F32, 1, Rows::Frames));
        columns.push((FrameTimes, "frame_time", Dtype::F32, 1, Rows::Frames));
        columns.push((NodeSilence, "node_silence", Dtype::F32, 1, Rows::Nodes));
        columns.push((NodeScheduled, "node_scheduled", Dtype::F32, 1, Rows::Nodes));
        columns.push((NodeFrames, "node_frames", Dtype::U16, 1, Rows::Nodes));
    }
    columns.extend(narrow.into_iter().filter(|&(_, _, _, width, _)| width > 0));
    columns.extend(bytes);
    if features.needs_history() {
        columns.push((NodeRepeated, "node_repeated", Dtype::U8, PAYLOAD_BYTES, Rows::Nodes));
        columns.push((FramePayloads, "frame_payload", Dtype::U8, 2 * PAYLOAD_BYTES, Rows::Frames));
        columns.push((FrameFlags, "frame_flags", Dtype::U8, FRAME_FLAGS, Rows::Frames));
    }
    columns
}

/// A column's values as bytes.
pub fn content(columns: &Columns, column: Column) -> &[u8] {
    match column {
        Column::NodePointers => bytemuck::cast_slice(&columns.node_pointers),
        Column::EdgePointers => bytemuck::cast_slice(&columns.edge_pointers),
        Column::FirstFrames => bytemuck::cast_slice(&columns.first_frames),
        Column::StartTimes => bytemuck::cast_slice(&columns.start_times),
        Column::Files => bytemuck::cast_slice(&columns.files),
        Column::GraphHashes => bytemuck::cast_slice(&columns.graph_hashes),
        Column::CanIds => bytemuck::cast_slice(&columns.can_ids),
        Column::NodeFeatures => bytemuck::cast_slice(&columns.node_features),
        Column::EdgeFeatures => bytemuck::cast_slice(&columns.edge_features),
        Column::Sources => bytemuck::cast_slice(&columns.sources),
        Column::Targets => bytemuck::cast_slice(&columns.targets),
        Column::RowPointers => bytemuck::cast_slice(&columns.row_pointers),
        Column::WideRowPointers => bytemuck::cast_slice(&columns.wide_row_pointers),
        Column::GraphTargets => bytemuck::cast_slice(&columns.graph_targets),
        Column::TargetRests => bytemuck::cast_slice(&columns.target_rests),
        Column::NodeTargets => bytemuck::cast_slice(&columns.node_targets),
        Column::Cells => bytemuck::cast_slice(&columns.cells),
        Column::AnglePointers => bytemuck::cast_slice(&columns.paths[0].pointers),
        Column::DihedralPointers => bytemuck::cast_slice(&columns.paths[1].pointers),
        Column::AngleParameters => bytemuck::cast_slice(&columns.paths[0].parameters),
        Column::DihedralParameters => bytemuck::cast_slice(&columns.paths[1].parameters),
        Column::Angles => bytemuck::cast_slice(&columns.paths[0].nodes),
        Column::Dihedrals => bytemuck::cast_slice(&columns.paths[1].nodes),
        Column::Positions => bytemuck::cast_slice(&columns.positions),
        Column::Forces => bytemuck::cast_slice(&columns.forces),
        Column::Kinds => bytemuck::cast_slice(&columns.kinds),
        Column::Labels => &columns.labels,
        Column::AttackFree => &columns.attack_free,
        Column::FrameGaps => bytemuck::cast_slice(&columns.frame_gaps),
        Column::FrameTimes => bytemuck::cast_slice(&columns.frame_times),
        Column::NodeSilence => bytemuck::cast_slice(&columns.node_silence),
        Column::NodeScheduled => bytemuck::cast_slice(&columns.node_scheduled),
        Column::NodeRepeated => &columns.node_repeated,
        Column::NodeFrames => bytemuck::cast_slice(&columns.node_frames),
        Column::FramePayloads => &columns.frame_payloads,
        Column::FrameFlags => &columns.frame_flags,
    }
}
