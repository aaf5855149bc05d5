//! A shard: a safetensors file whose tensors are the columns of graphs, memory-mapped and read in place.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::Pod;
use kdgat_can::frame::PAYLOAD_BYTES;
use kdgat_torch::mapped;
use memmap2::Mmap;
use safetensors::tensor::TensorInfo;
use tch::Tensor;

use super::manifest::ShardEntry;
use super::shard_columns::{COLUMNS, Column, Layout, POINTERS, Rows, content, layout};
use crate::columns::{Columns, FRAME_FLAGS, FramesView, SpaceView};
use crate::feature_set::SpaceColumns;
use crate::{FeatureSet, GraphView, OfPaths, PathKind, PathView, StoreError};

#[cfg(target_endian = "big")]
compile_error!("shards are little-endian and read in place");

/// Smallest page size of any supported system.
const PAGE_BYTES: usize = 4096;

/// Writes the graphs to a new file. The entry's `first_graph` is not set yet, and the bytes may not be on the disk yet:
/// call `sync_all` on the returned file.
///
/// # Errors
/// [`StoreError::Io`].
pub fn write(path: &Path, columns: &Columns) -> Result<(ShardEntry, File), StoreError> {
    let failed = || StoreError::io("write", path);
    let file = File::create_new(path).map_err(StoreError::io("create", path))?;
    let inner = BufWriter::with_capacity(1 << 20, file);
    let mut output = HashingWriter { inner, hash: blake3::Hasher::new(), bytes: 0 };
    write_columns(&mut output, columns).map_err(failed())?;
    let file = output.inner.into_inner().map_err(|error| failed()(error.into_error()))?;
    let space = columns.features.space();
    let entry = ShardEntry {
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        first_graph: 0,
        graphs: columns.num_graphs() as u64,
        nodes: columns.can_ids.len() as u64,
        edges: columns.sources.len() as u64,
        paths: OfPaths::of_all(|kind| space.paths.of(kind).map(|_| columns.paths[kind as usize].count())),
        bytes: output.bytes,
        blake3: output.hash.finalize().to_hex().to_string(),
    };
    Ok((entry, file))
}

fn write_columns(output: &mut impl Write, columns: &Columns) -> io::Result<()> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_string(), serde_json::json!({"format": "kdgat graph store"}));
    let layout = layout(columns.features);
    let mut begin = 0;
    for &(column, name, dtype, width, _) in &layout {
        let bytes = content(columns, column);
        let rows = bytes.len() / (dtype.bitsize() / 8 * width);
        let shape = if width == 1 { vec![rows] } else { vec![rows, width] };
        let end = begin + bytes.len();
        let entry = serde_json::json!({"dtype": dtype.to_string(), "shape": shape, "data_offsets": [begin, end]});
        header.insert(name.to_string(), entry);
        begin = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    output.write_all(&(header.len() as u64).to_le_bytes())?;
    output.write_all(&header)?;
    layout.iter().try_for_each(|&(column, ..)| output.write_all(content(columns, column)))
}

struct HashingWriter<W> {
    inner: W,
    hash: blake3::Hasher,
    bytes: u64,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.hash.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A memory-mapped shard.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    map: Arc<Mmap>,
    graphs: usize,
    nodes: usize,
    edges: usize,
    /// Listed paths of each kind.
    paths: [usize; 2],
    /// Start of each column in the file, in bytes; 0 for a column that the file does not have.
    offsets: [usize; COLUMNS],
    features: FeatureSet,
    /// Frames of each graph; 0 if the shard does not hold frames.
    frames: usize,
}

impl Shard {
    /// Maps the file and checks its size, header, shapes and pointers to each graph, but not its contents. Its graphs have windows of
    /// `window` frames.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when something differs from the manifest.
    pub fn open(folder: &Path, entry: &ShardEntry, features: FeatureSet, window: usize) -> Result<Self, StoreError> {
        let path = folder.join(&entry.name);
        let damaged = |detail: String| StoreError::Damaged { shard: folder.join(&entry.name), detail };
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => damaged("the file is missing".to_string()),
            _ => StoreError::io("open", &path)(error),
        })?;
        let bytes = file.metadata().map_err(StoreError::io("read the size of", &path))?.len();
        if bytes != entry.bytes {
            return Err(damaged(format!("it has {bytes} bytes, the manifest says {}", entry.bytes)));
        }
        let (graphs, nodes, edges) = (entry.graphs as usize, entry.nodes as usize, entry.edges as usize);
        let paths = PathKind::ALL.map(|kind| entry.paths.of(kind).map_or(0, |&count| count as usize));
        let header = read_header(&file, bytes).map_err(StoreError::io("read", &path))?;
        let frames = if features.needs_history() { window } else { 0 };
        let rows = |rows: Rows| match rows {
            Rows::GraphEnds => graphs + 1,
            Rows::Graphs => graphs,
            Rows::Nodes => nodes,
            Rows::NodesAndGraphs => nodes + graphs,
            Rows::Edges => edges,
            Rows::Paths(kind) => paths[kind as usize],
            Rows::Frames => graphs * frames,
        };
        let offsets = header.and_then(|header| column_offsets(&header, bytes, &layout(features), rows));
        let offsets = offsets.map_err(damaged)?;
        let lasts = [nodes, edges, paths[0], paths[1]];
        let pointers = POINTERS.into_iter().zip(lasts).filter(|((column, _), _)| offsets[*column as usize] > 0);
        for ((column, name), last) in pointers {
            let checked = check_pointers(&file, offsets[column as usize], graphs + 1, last as u64);
            let checked = checked.map_err(StoreError::io("read", &path))?;
            checked.map_err(|detail| damaged(format!("{name} {detail}")))?;
        }
        // A store is never modified in place: it is built beside, and replaced as a whole folder.
        let map = mapped::map(&file).map_err(StoreError::io("map", &path))?;
        Ok(Self { path, map: Arc::new(map), graphs, nodes, edges, paths, offsets, features, frames })
    }

    /// The shard's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compares the checksum of the whole file with the manifest's.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn verify(&self, entry: &ShardEntry) -> Result<(), StoreError> {
        let found = blake3::hash(&self.map[..]).to_hex();
        match found.as_str() == entry.blake3 {
            true => Ok(()),
            false => Err(self.damaged(format!("its checksum is {found}, the manifest says {}", entry.blake3))),
        }
    }

    /// The graph at `index` in the shard.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when its pointers reach beyond the shard.
    pub fn graph(&self, index: usize) -> Result<GraphView<'_>, StoreError> {
        let nodes = self.span(Column::NodePointers, index, self.nodes)?;
        let edges = self.span(Column::EdgePointers, index, self.edges)?;
        let width = self.features.stored_node_features();
        let (edge_width, targets) = (self.features.edge_features(), self.features.targets());
        let (rests, node_targets) = (self.features.target_rests(), self.features.node_targets());
        let (is_wide, rows) = (self.features.has_wide_rows(), nodes.start + index..nodes.end + index + 1);
        Ok(GraphView {
            first_frame: self.column::<u64>(Column::FirstFrames, index..index + 1)[0],
            start_time: self.column::<f64>(Column::StartTimes, index..index + 1)[0],
            file: self.column::<u32>(Column::Files, index..index + 1)[0],
            can_ids: self.column(Column::CanIds, nodes.clone()),
            node_features: self.column(Column::NodeFeatures, nodes.start * width..nodes.end * width),
            frames: self.frames_of(index, nodes.clone()),
            edge_features: self.column(Column::EdgeFeatures, edges.start * edge_width..edges.end * edge_width),
            targets_of_graph: self.column(Column::GraphTargets, index * targets..(index + 1) * targets),
            target_rests: self.column(Column::TargetRests, index * rests..(index + 1) * rests),
            targets_of_nodes: self.column(Column::NodeTargets, nodes.start * node_targets..nodes.end * node_targets),
            space: self.space_of(index, nodes.clone())?,
            sources: self.column(Column::Sources, edges.clone()),
            targets: self.column(Column::Targets, edges),
            row_pointers: self.column(Column::RowPointers, if is_wide { 0..0 } else { rows.clone() }),
            wide_row_pointers: self.column(Column::WideRowPointers, if is_wide { rows } else { 0..0 }),
            attack: self.column::<u8>(Column::Labels, index..index + 1)[0] != 0,
            attack_free: self.column(Column::AttackFree, nodes),
        })
    }

    fn space_of(&self, index: usize, nodes: Range<usize>) -> Result<SpaceView<'_>, StoreError> {
        let SpaceColumns { positions, cells, forces, paths } = self.features.space();
        let rows = |wanted: bool, rows: Range<usize>| if wanted { rows } else { 0..0 };
        let vectors = nodes.start * 3..nodes.end * 3;
        let listed = |kind: PathKind| self.paths_of(index, kind, paths.of(kind).copied());
        Ok(SpaceView {
            paths: [listed(PathKind::Angles)?, listed(PathKind::Dihedrals)?],
            positions: self.column(Column::Positions, rows(positions, vectors.clone())),
            kinds: self.column(Column::Kinds, rows(positions, nodes)),
            forces: self.column(Column::Forces, rows(forces, vectors)),
            cell: self.column(Column::Cells, rows(cells, index * 9..(index + 1) * 9)),
        })
    }

    /// The listed paths of a graph, with so many parameters; none of a kind that the set does not list.
    fn paths_of(&self, index: usize, kind: PathKind, parameters: Option<u16>) -> Result<PathView<'_>, StoreError> {
        let Some(parameters) = parameters else { return Ok(PathView::default()) };
        let [pointers, of_nodes, of_parameters] = match kind {
            PathKind::Angles => [Column::AnglePointers, Column::Angles, Column::AngleParameters],
            PathKind::Dihedrals => [Column::DihedralPointers, Column::Dihedrals, Column::DihedralParameters],
        };
        let rows = self.span(pointers, index, self.paths[kind as usize])?;
        let wide = |width: usize| rows.start * width..rows.end * width;
        let nodes = self.column(of_nodes, wide(kind.nodes()));
        Ok(PathView { nodes, parameters: self.column(of_parameters, wide(usize::from(parameters))) })
    }

    fn frames_of(&self, index: usize, nodes: Range<usize>) -> FramesView<'_> {
        if self.frames == 0 {
            return FramesView::default();
        }
        let frames = index * self.frames..(index + 1) * self.frames;
        let wide = |width: usize| frames.start * width..frames.end * width;
        FramesView {
            gaps: self.column(Column::FrameGaps, frames.clone()),
            times: self.column(Column::FrameTimes, frames.clone()),
            payloads: self.column(Column::FramePayloads, wide(2 * PAYLOAD_BYTES)),
            flags: self.column(Column::FrameFlags, wide(FRAME_FLAGS)),
            of_node: self.column(Column::NodeFrames, nodes.clone()),
            silence: self.column(Column::NodeSilence, nodes.clone()),
            scheduled: self.column(Column::NodeScheduled, nodes.clone()),
            repeated: self.column(Column::NodeRepeated, nodes.start * PAYLOAD_BYTES..nodes.end * PAYLOAD_BYTES),
        }
    }

    /// Node features of these graphs, `[num_nodes, node_features]`, as a read-only tensor over the file.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when pointers reach beyond the shard; [`StoreError::Tensor`].
    pub fn node_features(&self, graphs: Range<usize>) -> Result<Tensor, StoreError> {
        let span = |graph| self.span(Column::NodePointers, graph, self.nodes);
        let (first, last) = (span(graphs.start)?, span(graphs.end - 1)?);
        if last.end < first.start {
            return Err(self.damaged(format!("node_ptr of graphs {graphs:?} descends")));
        }
        let width = self.features.stored_node_features();
        let size = [(last.end - first.start) as i64, width as i64];
        let row_bytes = width * size_of::<f32>();
        let offset = self.offsets[Column::NodeFeatures as usize];
        let bytes = offset + first.start * row_bytes..offset + last.end * row_bytes;
        // Touch all pages here: the thread that assembles batches should wait for the disk, not the reader of the tensor.
        self.map[bytes.clone()].iter().step_by(PAGE_BYTES).for_each(|byte| _ = std::hint::black_box(*byte));
        mapped::tensor_over::<f32>(&self.map, bytes, &size)
            .map_err(|source| StoreError::Tensor { tensor: "continuous", source })
    }

    /// `[num_graphs]`: 1 if any frame of the window is an attack frame.
    pub fn labels(&self) -> &[u8] {
        self.column(Column::Labels, 0..self.graphs)
    }

    /// `[num_graphs]`: hash of each graph in its source; empty for CAN windows.
    pub fn graph_hashes(&self) -> &[u64] {
        match self.features.is_columns() {
            true => self.column(Column::GraphHashes, 0..self.graphs),
            false => &[],
        }
    }

    /// Releases the file's pages from this process's memory; they are mapped again when read.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn release_pages(&self) -> Result<(), StoreError> {
        mapped::release_pages(&self.map).map_err(StoreError::io("release the pages of", &self.path))
    }

    fn span(&self, column: Column, index: usize, length: usize) -> Result<Range<usize>, StoreError> {
        let ends: &[u64] = self.column(column, index..index + 2);
        let (begin, end) = (ends[0] as usize, ends[1] as usize);
        match begin <= end && end <= length {
            true => Ok(begin..end),
            false => {
                let name = POINTERS.iter().find(|(known, _)| *known == column).map_or("", |(_, name)| name);
                Err(self.damaged(format!("{name} of graph {index} is {begin}..{end}, but there are {length}")))
            }
        }
    }

    /// Values of a column; the caller must stay within its length, which `open` has checked.
    fn column<T: Pod>(&self, column: Column, values: Range<usize>) -> &[T] {
        if values.is_empty() {
            return &[];
        }
        let size = size_of::<T>();
        let begin = self.offsets[column as usize];
        bytemuck::cast_slice(&self.map[begin + values.start * size..begin + values.end * size])
    }

    fn damaged(&self, detail: String) -> StoreError {
        StoreError::Damaged { shard: self.path.clone(), detail }
    }
}

/// Largest accepted header: real ones have a few hundred bytes.
const LONGEST_HEADER_BYTES: u64 = 1 << 20;

/// Returns the header's text, or what is wrong with its length. Reads the file instead of the map: touching a mapped page loads
/// its neighbours, too, and a store has many shards.
fn read_header(mut file: &File, file_bytes: u64) -> io::Result<Result<Vec<u8>, String>> {
    let mut length = [0; 8];
    if file_bytes < 8 {
        return Ok(Err(format!("its {file_bytes} bytes are too few for a header")));
    }
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER_BYTES.min(file_bytes - 8) {
        return Ok(Err(format!("its header cannot have {length} bytes")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    Ok(Ok(header))
}

/// Bytes of pointers read at a time.
const POINTER_BLOCK_BYTES: usize = 1 << 16;

/// Checks that `count` pointers ascend from 0 to `last`; returns what is wrong otherwise. Every graph is then within the shard, and
/// reading one needs no other check. Costs reading 16 bytes per graph, where a graph has some thousands. Reads the file instead
/// of the map, like [`read_header`].
fn check_pointers(mut file: &File, offset: usize, count: usize, last: u64) -> io::Result<Result<(), String>> {
    file.seek(SeekFrom::Start(offset as u64))?;
    let mut block = vec![0; POINTER_BLOCK_BYTES.min(count * size_of::<u64>())];
    let (mut index, mut previous) = (0, 0);
    while index < count {
        let bytes = block.len().min((count - index) * size_of::<u64>());
        let block = &mut block[..bytes];
        file.read_exact(block)?;
        for pointer in block.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned::<u64>) {
            if pointer < previous || pointer > last || (index == 0 && pointer != 0) {
                return Ok(Err(format!("does not ascend from 0 to {last}: [{index}] is {pointer} after {previous}")));
            }
            (index, previous) = (index + 1, pointer);
        }
    }
    Ok(if previous == last { Ok(()) } else { Err(format!("ends at {previous}, expected {last}")) })
}

fn column_offsets(
    header: &[u8],
    file_bytes: u64,
    layout: &Layout,
    rows_of: impl Fn(Rows) -> usize,
) -> Result<[usize; COLUMNS], String> {
    let mut entries: HashMap<String, serde_json::Value> =
        serde_json::from_slice(header).map_err(|error| format!("its header: {error}"))?;
    let data = 8 + header.len();
    let mut offsets = [0; COLUMNS];
    for &(column, name, dtype, width, rows) in layout {
        let rows = rows_of(rows);
        let info = entries.remove(name).ok_or_else(|| format!("it has no tensor {name}"))?;
        let info: TensorInfo =
            serde_json::from_value(info).map_err(|error| format!("{name} in its header: {error}"))?;
        let shape = if width == 1 { vec![rows] } else { vec![rows, width] };
        if info.dtype != dtype || info.shape != shape {
            return Err(format!("{name} is {} {:?}, expected {dtype} {shape:?}", info.dtype, info.shape));
        }
        let (begin, end) = info.data_offsets;
        let size = rows.checked_mul(width).and_then(|values| values.checked_mul(dtype.bitsize() / 8));
        let Some(size) = size else { return Err(format!("{name} cannot have {rows} rows")) };
        if begin.checked_add(size) != Some(end) || end as u64 > file_bytes - data as u64 {
            return Err(format!("{name} is at bytes {begin}..{end}, expected {size} bytes within the file"));
        }
        if !(data + begin).is_multiple_of(dtype.bitsize() / 8) {
            return Err(format!("{name} begins at byte {}, which is not aligned", data + begin));
        }
        offsets[column as usize] = data + begin;
    }
    Ok(offsets)
}
