//! Graphs that stay on a device: a batch is a list of their numbers, and everything else of it is made there.
//!
//! ```text
//! once:   graphs -> assembled on the host, some hundred at a time -> columns on the device, of all graphs one after another
//! batch:  numbers -> for each graph where its nodes, edges and successors begin, there and in the batch  (88 bytes a graph, copied)
//!                 -> rows and edges gathered, node numbers moved, random IDs replaced                   (on the device)
//! ```
//!
//! Within the columns, nodes and edges are numbered from the first of their graph, so that no number grows with the dataset. Batches are equal, bit by
//! bit, to those that [`assemble`](super::assemble()) makes on the host. No operation waits for the device: all sizes are known to the host.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use kdgat_base::random::{self, Purpose};
use kdgat_torch::device::Uploader;
use parking_lot::Mutex;
use tch::{Device, Kind, TchError, Tensor};

use super::assemble::{Assembler, ID_BITS, keys_of_views};
use super::{Adjacency, AssembleOptions, Batch, Store, StoreError, UnknownDrop, Vocabulary};

/// Bytes of graphs that are assembled on the host at a time, but at least one graph.
const CHUNK_BYTES: u64 = 16 << 20;
/// Slot of a graph that is not on the device.
const ABSENT: u32 = u32::MAX;

/// The first node, edge and successor of a graph.
#[derive(Debug, Clone, Copy, Default)]
struct Start {
    node: i64,
    edge: i64,
    successor: i64,
}

/// Graphs of a store on a device.
#[derive(Debug)]
pub struct ResidentGraphs {
    store: Arc<Store>,
    /// Those of all batches; random IDs are replaced later.
    options: AssembleOptions,
    device: Device,
    /// For each graph of the store its place among those on the device.
    slots: Vec<u32>,
    /// By place, with an end.
    starts: Vec<Start>,
    bytes: u64,
    /// Under a lock, because torch's handles belong to one thread at a time. It is held while work is queued.
    there: Mutex<There>,
}

/// The part that belongs to the device.
#[derive(Debug)]
struct There {
    columns: Columns,
    uploader: Uploader,
}

/// Columns of all graphs. Nodes, edges and rows are numbered from their graph's first.
#[derive(Debug)]
struct Columns {
    /// `[nodes]`, i32.
    id_index: Tensor,
    /// `[nodes]`, i64; `None` if it is `id_index`.
    id_input: Option<Tensor>,
    /// `[nodes, features]`, f32.
    continuous: Tensor,
    /// `[nodes]`, i32: the first edge to each node, and the first one from it.
    row_starts: Tensor,
    column_starts: Tensor,
    /// `[edges]`, i32.
    sources: Tensor,
    targets: Tensor,
    transposed: Tensor,
    /// `[edges, features]`, f32.
    edge_attributes: Option<Tensor>,
    /// `[successors]`, i64.
    successors: Tensor,
    /// `[graphs]`, i64.
    labels: Tensor,
    /// `[graphs, targets]`, f32 or f64.
    targets_of_graphs: Option<Tensor>,
}

impl ResidentGraphs {
    /// Why graphs of this store cannot be made on a device; `None` if they can.
    pub fn obstacle(store: &Store, options: &AssembleOptions) -> Option<&'static str> {
        if options.space.is_some() {
            return Some("pairs of near nodes are made on the host");
        }
        (store.features().node_targets() > 0).then_some("targets of nodes are read on the host")
    }

    /// Bytes on the device of these graphs, at most.
    ///
    /// # Errors
    /// Those of reading the store.
    pub fn most_bytes(store: &Store, graphs: &[u64], options: &AssembleOptions) -> Result<u64, StoreError> {
        graphs.iter().map(|&graph| Self::most_bytes_of_one(store, graph, options)).sum()
    }

    fn most_bytes_of_one(store: &Store, graph: u64, options: &AssembleOptions) -> Result<u64, StoreError> {
        let (features, view) = (store.features(), store.try_graph(graph)?);
        let (nodes, edges) = (view.num_nodes() as u64, view.num_edges() as u64);
        let of_node = 4 * (3 + features.node_features() as u64)
            + if options.hashed_ids || features.needs_history() { 8 } else { 0 };
        let of_edge = 12 + if options.edge_attributes { 4 * features.edge_features() as u64 } else { 0 };
        let of_graph = 8 + 8 * features.targets() as u64;
        Ok(nodes * of_node + (nodes + edges) * of_edge + 8 * edges + of_graph)
    }

    /// Copies these graphs, each once, to a device.
    ///
    /// # Errors
    /// An unreadable store, and no memory for the graphs.
    pub fn copy(
        store: Arc<Store>,
        graphs: &[u64],
        options: AssembleOptions,
        device: Device,
    ) -> Result<Self, StoreError> {
        let mut uploader = Uploader::new(device).map_err(failed)?;
        let options = AssembleOptions { unknown_drop: None, ..options };
        let mut slots = vec![ABSENT; store.num_graphs() as usize];
        for (slot, &graph) in graphs.iter().enumerate() {
            slots[graph as usize] = slot as u32;
        }
        let mut starts = vec![Start::default()];
        let mut parts: Vec<Columns> = Vec::new();
        // IDs where they are hashed, and none where they are hidden.
        let has_own_input = options.hashed_ids || store.features().needs_history();
        let mut assembler = Assembler::default();
        let mut rest = graphs;
        while !rest.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            while count == 0 || (count < rest.len() && bytes < CHUNK_BYTES) {
                bytes += Self::most_bytes_of_one(&store, rest[count], &options)?;
                count += 1;
            }
            let batch = assembler.assemble(&store, &rest[..count], &options)?;
            let part = Columns::of(&batch, &mut starts, has_own_input).map_err(failed)?;
            parts.push(part.upload(&mut uploader).map_err(failed)?);
            rest = &rest[count..];
        }
        let (columns, bytes) = Columns::joined(parts).map_err(failed)?;
        // Without the page-locked blocks of the copies.
        let uploader = Uploader::new(device).map_err(failed)?;
        Ok(Self { store, options, device, slots, starts, bytes, there: Mutex::new(There { columns, uploader }) })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The store, for errors.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// The batch of these graphs, in this order, on the device.
    ///
    /// # Errors
    /// A graph that is not on the device, and no memory for the batch.
    pub fn batch(&self, graphs: &[u64], drop: Option<UnknownDrop>) -> Result<Batch, StoreError> {
        let places = Places::of(self, graphs, drop)?;
        self.gather(graphs, &places, drop).map_err(failed)
    }

    fn gather(&self, graphs: &[u64], places: &Places, drop: Option<UnknownDrop>) -> Result<Batch, TchError> {
        let mut there = self.there.lock();
        let There { columns, uploader } = &mut *there;
        let Columns { continuous, sources, targets, transposed, successors, labels, .. } = columns;
        let table = Tensor::f_from_slice(&places.table)?.f_view([ROWS, -1])?;
        let pointers = Tensor::f_from_slice(&places.node_pointers)?;
        let uploaded = uploader.upload(&[&table, &pointers])?;
        let [table, node_pointers] = &uploaded[..] else {
            return Err(TchError::Shape("two tensors were to be uploaded".into()));
        };
        let row = |row: Row| table.f_select(0, row as i64);
        let (first_node, first_edge) = (row(Row::FirstNode)?, row(Row::FirstEdge)?);
        let [num_nodes, num_edges, num_successors] = places.sizes;
        let vocabulary_size = self.options.vocabulary.len() as i64;
        // One axis after the other, because its places take more memory than what is gathered.
        let successors = {
            let pairs = Axis::new(&row(Row::Successors)?, num_successors, &row(Row::SuccessorShift)?)?;
            let first_rows = first_node.f_mul_scalar(vocabulary_size)?;
            pairs.take(successors)?.f_add(&first_rows.f_index_select(0, &pairs.run)?)?
        };
        let (sources, targets, transposed, edge_attributes) = {
            let edges = Axis::new(&row(Row::Edges)?, num_edges, &row(Row::EdgeShift)?)?;
            let attributes = columns.edge_attributes.as_ref().map(|column| edges.take(column)).transpose()?;
            let [sources, targets] = [sources, targets].map(|column| edges.moved(column, &first_node));
            (sources?, targets?, edges.moved(transposed, &first_edge)?, attributes)
        };
        let nodes = Axis::new(&row(Row::Nodes)?, num_nodes, &row(Row::NodeShift)?)?;
        let end = Tensor::f_full([1], num_edges, (Kind::Int, self.device))?;
        let pointers = |starts: &Tensor| Tensor::f_cat(&[&nodes.moved(starts, &first_edge)?, &end], 0);
        let id_index = nodes.take(&columns.id_index)?.f_to_kind(Kind::Int64)?;
        let id_input = match &columns.id_input {
            Some(input) => nodes.take(input)?,
            None => id_index.shallow_clone(),
        };
        let id_input = match drop.filter(|drop| drop.probability > 0.0 && !self.store.features().needs_history()) {
            Some(drop) => self.dropped(&id_input, &nodes, (&first_node, &row(Row::DropKey)?), drop)?,
            None => id_input,
        };
        let slots = row(Row::Slot)?;
        Ok(Batch {
            graph_index: places.keys(graphs, self.store.num_graphs(), drop),
            can_ids: Arc::clone(&places.can_ids),
            id_input,
            continuous: nodes.take(continuous)?,
            adjacency: Adjacency {
                row_pointers: pointers(&columns.row_starts)?,
                sources,
                targets,
                column_pointers: pointers(&columns.column_starts)?,
                transposed,
                components: Arc::default(),
            },
            edge_attributes,
            successors,
            vocabulary_size,
            node_pointers: node_pointers.shallow_clone(),
            graph_of_node: nodes.run.shallow_clone(),
            labels: labels.f_index_select(0, &slots)?,
            targets: columns.targets_of_graphs.as_ref().map(|all| all.f_index_select(0, &slots)).transpose()?,
            id_index,
            node_targets: None,
            neighbourhood: None,
            space: None,
            real: None,
            padded_form: None,
        })
    }

    /// Replaces random IDs: [`Assembler`]'s `drop_ids` in torch's 64-bit operations, whose products wrap as they do there.
    fn dropped(
        &self,
        input: &Tensor,
        nodes: &Axis,
        (first_node, keys): (&Tensor, &Tensor),
        drop: UnknownDrop,
    ) -> Result<Tensor, TchError> {
        let place = nodes.numbers.f_sub(&first_node.f_index_select(0, &nodes.run)?)?;
        let bits = mix(&keys.f_index_select(0, &nodes.run)?.f_bitwise_xor_tensor(&place)?)?;
        // A unit is a multiple of 2^-53, so that comparing it is comparing its numerator.
        let limit = (drop.probability * (1_u64 << 53) as f64).ceil() as i64;
        let is_dropped = shifted_right(&bits, 11)?.f_lt(limit)?;
        match self.options.hashed_ids {
            true => shifted_right(&mix(&bits)?, 64 - ID_BITS)?.f_where_self(&is_dropped, input),
            false => input.f_masked_fill(&is_dropped, i64::from(Vocabulary::UNKNOWN)),
        }
    }
}

fn failed(source: impl Into<TchError>) -> StoreError {
    StoreError::Tensor { tensor: "graphs on the device", source: source.into() }
}

/// [`random::mix`] of each element.
fn mix(values: &Tensor) -> Result<Tensor, TchError> {
    let multiplied = |bits: &Tensor, shift: u32, factor: u64| {
        bits.f_bitwise_xor_tensor(&shifted_right(bits, shift)?)?.f_mul_scalar(factor.cast_signed())
    };
    let bits = values.f_add_scalar(random::GOLDEN.cast_signed())?;
    let bits = multiplied(&bits, 30, random::MULTIPLIERS[0])?;
    let bits = multiplied(&bits, 27, random::MULTIPLIERS[1])?;
    bits.f_bitwise_xor_tensor(&shifted_right(&bits, 31)?)
}

/// Shifts 64 bits right, with zeros from the left.
fn shifted_right(bits: &Tensor, by: u32) -> Result<Tensor, TchError> {
    let kept = i64::MAX >> (by - 1);
    bits.f_bitwise_right_shift_tensor_scalar(i64::from(by))?.f_bitwise_and(kept)
}

/// Rows of the table of a batch.
#[derive(Clone, Copy)]
enum Row {
    /// Numbers of a graph's nodes, edges and successors.
    Nodes,
    Edges,
    Successors,
    /// Distances from the places in the batch to those in the columns.
    NodeShift,
    EdgeShift,
    SuccessorShift,
    /// The first ones in the batch.
    FirstNode,
    FirstEdge,
    Slot,
    /// Seed of the graph's random IDs.
    DropKey,
}

const ROWS: i64 = Row::DropKey as i64 + 1;

/// The places of a batch's graphs, in the columns and in the batch.
struct Places {
    /// `[ROWS, graphs]`.
    table: Vec<i64>,
    node_pointers: Vec<i64>,
    /// Nodes, edges and successors of the batch.
    sizes: [i64; 3],
    can_ids: Arc<Vec<u32>>,
}

impl Places {
    fn of(resident: &ResidentGraphs, graphs: &[u64], drop: Option<UnknownDrop>) -> Result<Self, StoreError> {
        let count = graphs.len();
        let mut table = vec![0; ROWS as usize * count];
        let mut node_pointers = vec![0];
        let mut can_ids = Vec::new();
        let [mut nodes, mut edges, mut successors] = [0; 3];
        for (place, &graph) in graphs.iter().enumerate() {
            let slot = resident.slots.get(graph as usize).copied().filter(|&slot| slot != ABSENT);
            let slot = slot.ok_or_else(|| StoreError::Graph { graph, detail: "it is not on the device".into() })?;
            let [start, end] = [0, 1].map(|next| resident.starts[slot as usize + next]);
            let key = drop.map_or(0, |drop| random::bits(drop.seed, Purpose::UnknownDrop, drop.view(), graph));
            let values = [
                (Row::Nodes, end.node - start.node),
                (Row::Edges, end.edge - start.edge),
                (Row::Successors, end.successor - start.successor),
                (Row::NodeShift, start.node - nodes),
                (Row::EdgeShift, start.edge - edges),
                (Row::SuccessorShift, start.successor - successors),
                (Row::FirstNode, nodes),
                (Row::FirstEdge, edges),
                (Row::Slot, i64::from(slot)),
                (Row::DropKey, key.cast_signed()),
            ];
            for (row, value) in values {
                table[row as usize * count + place] = value;
            }
            nodes += end.node - start.node;
            edges += end.edge - start.edge;
            successors += end.successor - start.successor;
            node_pointers.push(nodes);
            can_ids.extend_from_slice(resident.store.try_graph(graph)?.can_ids);
        }
        // A batch on the host has the same limit.
        if edges > i64::from(i32::MAX) {
            let value = format!("{count} ({edges} edges)");
            return Err(StoreError::Parameter { name: "batch_size", value, expected: "small enough for 2^31 edges" });
        }
        Ok(Self { table, node_pointers, sizes: [nodes, edges, successors], can_ids: Arc::new(can_ids) })
    }

    fn keys(&self, graphs: &[u64], num_graphs: u64, drop: Option<UnknownDrop>) -> Arc<Vec<u64>> {
        match drop.filter(|drop| drop.views > 0) {
            Some(drop) => keys_of_views(graphs, num_graphs, |_| drop.view()),
            None => Arc::new(graphs.to_vec()),
        }
    }
}

/// Elements of some graphs, such as their nodes, as rows of columns on a device that have them one graph after another.
#[derive(Debug)]
pub struct Axis {
    /// `[elements]`: the graph of each, its number among these, and its row of the columns.
    run: Tensor,
    numbers: Tensor,
    rows: Tensor,
}

impl Axis {
    /// `counts` and `shifts` are `[graphs]`, i64: of each graph the number of its elements, whose sum is `elements`, and the distance from the
    /// place of the first among these elements to its row. Nothing waits for the device.
    ///
    /// # Errors
    /// Want of memory.
    pub fn new(counts: &Tensor, elements: i64, shifts: &Tensor) -> Result<Self, TchError> {
        let run = Tensor::f_repeat_interleave(counts, elements)?;
        let numbers = Tensor::f_arange(elements, (Kind::Int64, counts.device()))?;
        let rows = numbers.f_add(&shifts.f_index_select(0, &run)?)?;
        Ok(Self { run, numbers, rows })
    }

    /// The elements' rows of a column.
    ///
    /// # Errors
    /// Want of memory.
    pub fn take(&self, column: &Tensor) -> Result<Tensor, TchError> {
        column.f_index_select(0, &self.rows)
    }

    /// The same of a column of numbers, each higher by what `by` has for its graph.
    fn moved(&self, column: &Tensor, by: &Tensor) -> Result<Tensor, TchError> {
        let by = by.f_to_kind(Kind::Int)?.f_index_select(0, &self.run)?;
        self.take(column)?.f_add(&by)
    }
}

impl Columns {
    /// The columns of a batch on the host; adds the ends of its graphs to `starts`.
    fn of(batch: &Batch, starts: &mut Vec<Start>, has_own_input: bool) -> Result<Self, TchError> {
        let Adjacency { row_pointers, sources, targets, column_pointers, transposed, .. } = &batch.adjacency;
        let first_nodes = &batch.node_pointers;
        let first_edges = row_pointers.f_index_select(0, first_nodes)?.f_to_kind(Kind::Int64)?;
        let first_rows = first_nodes.f_mul_scalar(batch.vocabulary_size)?;
        let first_pairs = first_rows.f_searchsorted(&batch.successors, false, false, "left", None::<Tensor>)?;
        let ends = [first_nodes, &first_edges, &first_pairs].map(Vec::<i64>::try_from);
        let [nodes, edges, successors] = ends;
        let before = starts.last().copied().unwrap_or_default();
        for ((node, edge), successor) in nodes?.into_iter().zip(edges?).zip(successors?).skip(1) {
            starts.push(Start {
                node: before.node + node,
                edge: before.edge + edge,
                successor: before.successor + successor,
            });
        }
        let graphs = batch.num_graphs() as i64;
        let count = |pointers: &Tensor| pointers.f_narrow(0, 1, graphs)?.f_sub(&pointers.f_narrow(0, 0, graphs)?);
        let of_edge = Tensor::f_repeat_interleave(&count(&first_edges)?, sources.size()[0])?;
        let of_pair = Tensor::f_repeat_interleave(&count(&first_pairs)?, batch.successors.size()[0])?;
        let local = |values: &Tensor, firsts: &Tensor, of: &Tensor| {
            values.f_sub(&firsts.f_index_select(0, of)?.f_to_kind(values.f_kind()?)?)
        };
        let own_starts =
            |pointers: &Tensor| local(&pointers.f_narrow(0, 0, batch.num_nodes())?, &first_edges, &batch.graph_of_node);
        Ok(Self {
            id_index: batch.id_index.f_to_kind(Kind::Int)?,
            id_input: has_own_input.then(|| batch.id_input.shallow_clone()),
            continuous: batch.continuous.shallow_clone(),
            row_starts: own_starts(row_pointers)?,
            column_starts: own_starts(column_pointers)?,
            sources: local(sources, first_nodes, &of_edge)?,
            targets: local(targets, first_nodes, &of_edge)?,
            transposed: local(transposed, &first_edges, &of_edge)?,
            edge_attributes: batch.edge_attributes.as_ref().map(Tensor::shallow_clone),
            successors: local(&batch.successors, &first_rows, &of_pair)?,
            labels: batch.labels.shallow_clone(),
            targets_of_graphs: batch.targets.as_ref().map(Tensor::shallow_clone),
        })
    }

    /// The same columns on the device, each in memory of its own.
    fn upload(&self, uploader: &mut Uploader) -> Result<Self, TchError> {
        let missing = || TchError::Shape("a column was to be uploaded".into());
        self.try_map(&mut |column| uploader.upload(&[column])?.pop().ok_or_else(missing))
    }

    /// The columns of all parts one after another, and their bytes. Each is joined by itself, so that no more than one of them and the last part
    /// are there twice.
    fn joined(mut parts: Vec<Self>) -> Result<(Self, u64), TchError> {
        let last = parts.pop().ok_or_else(|| TchError::Shape("there are no graphs".into()))?;
        let mut columns: Vec<VecDeque<Tensor>> = Vec::new();
        for part in parts {
            let mut column = VecDeque::new();
            part.try_map(&mut |tensor| {
                column.push_back(tensor.shallow_clone());
                Ok(tensor.shallow_clone())
            })?;
            columns.push(column);
        }
        let mut bytes = 0;
        let joined = last.try_map(&mut |end| {
            let begin: Vec<Tensor> = columns.iter_mut().filter_map(VecDeque::pop_front).collect();
            let whole = Tensor::f_cat(&begin.iter().chain([end]).collect::<Vec<_>>(), 0)?;
            bytes += (whole.numel() * whole.f_kind()?.elt_size_in_bytes()) as u64;
            Ok(whole)
        })?;
        Ok((joined, bytes))
    }

    /// Applies `tensor` to every column, in a fixed order.
    fn try_map(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, TchError>) -> Result<Self, TchError> {
        Ok(Self {
            id_index: tensor(&self.id_index)?,
            id_input: self.id_input.as_ref().map(&mut *tensor).transpose()?,
            continuous: tensor(&self.continuous)?,
            row_starts: tensor(&self.row_starts)?,
            column_starts: tensor(&self.column_starts)?,
            sources: tensor(&self.sources)?,
            targets: tensor(&self.targets)?,
            transposed: tensor(&self.transposed)?,
            edge_attributes: self.edge_attributes.as_ref().map(&mut *tensor).transpose()?,
            successors: tensor(&self.successors)?,
            labels: tensor(&self.labels)?,
            targets_of_graphs: self.targets_of_graphs.as_ref().map(&mut *tensor).transpose()?,
        })
    }
}
