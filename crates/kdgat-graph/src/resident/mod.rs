//! Graphs that stay on a device: a batch is a list of their numbers, and everything else of it is made there.
//!
//! ```text
//! once:   graphs -> assembled on the host, some hundred at a time -> columns on the device, of all graphs one after another
//! batch:  numbers -> for each graph where its nodes, edges and successors begin, there and in the batch  (64 bytes a graph, copied)
//!                 -> rows and edges gathered, node numbers moved, random IDs replaced, padding           (four kernels on the device)
//! ```
//!
//! Within the columns, nodes and edges are numbered from the first of their graph, so that no number grows with the dataset. Batches are equal, bit by
//! bit, to those that [`assemble`](super::assemble()) and [`Batch::padded`] make on the host. Nothing waits for the device: all sizes are known to
//! the host.

mod gather;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use kdgat_base::random::{self, Purpose};
use kdgat_torch::cuda_program::Argument;
use kdgat_torch::device::Uploader;
use kdgat_torch::device::packing::Packing;
use parking_lot::Mutex;
use tch::{Device, Kind, TchError, Tensor};

pub use gather::Gatherer;

use super::assemble::{Assembler, keys_of_views};
use super::padding::{Mask, Real, SizeClass};
use super::{Adjacency, AssembleOptions, Batch, Store, StoreError, UnknownDrop};

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
    gatherer: Arc<Gatherer>,
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
    /// An unreadable store, no memory for the graphs, and a machine without CUDA's run-time compiler.
    pub fn copy(
        store: Arc<Store>,
        graphs: &[u64],
        options: AssembleOptions,
        device: Device,
    ) -> Result<Self, StoreError> {
        let gatherer = Gatherer::of(device).map_err(failed)?;
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
        Ok(Self {
            store,
            options,
            device,
            slots,
            starts,
            bytes,
            there: Mutex::new(There { columns, uploader, gatherer }),
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The store, for errors.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// The batch of these graphs, in this order, on the device. With `pads`, it has its [padded form](Batch::padded_form), of which it is a part.
    ///
    /// # Errors
    /// A graph that is not on the device, and no memory for the batch.
    pub fn batch(&self, graphs: &[u64], drop: Option<UnknownDrop>, pads: bool) -> Result<Batch, StoreError> {
        let places = Places::of(self, graphs, drop)?;
        let class = if pads { places.sizes.rounded_up() } else { places.sizes };
        let made = self.gather(&places, drop, class, pads).map_err(failed)?;
        let mut batch = match pads {
            true => made.without_padding(places.sizes).map_err(failed)?,
            false => made.shallow_clone(),
        };
        batch.graph_index = places.keys(graphs, self.store.num_graphs(), drop);
        batch.can_ids = Arc::clone(&places.can_ids);
        batch.padded_form = pads.then(|| Box::new(made));
        Ok(batch)
    }

    /// A batch of these sizes, which are those of `places` or, for a padded one, larger; without its graphs' numbers.
    fn gather(
        &self,
        places: &Places,
        drop: Option<UnknownDrop>,
        class: SizeClass,
        pads: bool,
    ) -> Result<Batch, TchError> {
        let mut there = self.there.lock();
        let There { columns, uploader, gatherer } = &mut *there;
        let table = Tensor::f_from_slice(&places.table)?;
        let uploaded = uploader.upload(&[&table])?;
        let table = uploaded.first().ok_or_else(|| TchError::Shape("a table was to be uploaded".into()))?;
        let drop = drop.filter(|drop| drop.probability > 0.0 && !self.store.features().needs_history());
        let vocabulary_size = self.options.vocabulary.len() as i64;
        let batch = columns.room(class, drop.is_some(), pads, vocabulary_size, self.device)?;
        let (how, limit) = match drop {
            None => (0, 0),
            // A unit is a multiple of 2^-53, so that comparing it is comparing its numerator.
            Some(drop) => {
                (1 + i32::from(self.options.hashed_ids), (drop.probability * (1_u64 << 53) as f64).ceil() as u64)
            }
        };
        columns.gather(&batch, gatherer, table, (how, limit))?;
        Ok(batch)
    }
}

fn failed(source: impl Into<TchError>) -> StoreError {
    StoreError::Tensor { tensor: "graphs on the device", source: source.into() }
}

/// Rows of the table of a batch, which `gather.cu` documents.
#[derive(Clone, Copy)]
enum Row {
    FirstNode,
    FirstEdge,
    FirstPair,
    NodeShift,
    EdgeShift,
    PairShift,
    Slot,
    DropKey,
}

const ROWS: usize = Row::DropKey as usize + 1;

/// The places of a batch's graphs, in the columns and in the batch.
struct Places {
    /// `[ROWS, graphs + 1]`.
    table: Vec<i64>,
    sizes: SizeClass,
    can_ids: Arc<Vec<u32>>,
}

impl Places {
    fn of(resident: &ResidentGraphs, graphs: &[u64], drop: Option<UnknownDrop>) -> Result<Self, StoreError> {
        let count = graphs.len();
        let mut table = vec![0; ROWS * (count + 1)];
        let mut can_ids = Vec::new();
        let mut first = Start::default();
        let mut set = |row: Row, place: usize, value: i64| table[row as usize * (count + 1) + place] = value;
        for (place, &graph) in graphs.iter().enumerate() {
            let slot = resident.slots.get(graph as usize).copied().filter(|&slot| slot != ABSENT);
            let slot = slot.ok_or_else(|| StoreError::Graph { graph, detail: "it is not on the device".into() })?;
            let [start, end] = [0, 1].map(|next| resident.starts[slot as usize + next]);
            let key = drop.map_or(0, |drop| random::bits(drop.seed, Purpose::UnknownDrop, drop.view(), graph));
            set(Row::FirstNode, place, first.node);
            set(Row::FirstEdge, place, first.edge);
            set(Row::FirstPair, place, first.successor);
            set(Row::NodeShift, place, start.node - first.node);
            set(Row::EdgeShift, place, start.edge - first.edge);
            set(Row::PairShift, place, start.successor - first.successor);
            set(Row::Slot, place, i64::from(slot));
            set(Row::DropKey, place, key.cast_signed());
            first.node += end.node - start.node;
            first.edge += end.edge - start.edge;
            first.successor += end.successor - start.successor;
            can_ids.extend_from_slice(resident.store.try_graph(graph)?.can_ids);
        }
        set(Row::FirstNode, count, first.node);
        set(Row::FirstEdge, count, first.edge);
        set(Row::FirstPair, count, first.successor);
        let Start { node: nodes, edge: edges, successor: successors } = first;
        // A batch on the host has the same limit.
        if edges > i64::from(i32::MAX) {
            let value = format!("{count} ({edges} edges)");
            return Err(StoreError::Parameter { name: "batch_size", value, expected: "small enough for 2^31 edges" });
        }
        let sizes = SizeClass { nodes, edges, successors, graphs: count as i64 };
        Ok(Self { table, sizes, can_ids: Arc::new(can_ids) })
    }

    fn keys(&self, graphs: &[u64], num_graphs: u64, drop: Option<UnknownDrop>) -> Arc<Vec<u64>> {
        match drop.filter(|drop| drop.views > 0) {
            Some(drop) => keys_of_views(graphs, num_graphs, |_| drop.view()),
            None => Arc::new(graphs.to_vec()),
        }
    }
}

fn array(tensor: &Option<Tensor>) -> Argument<'_> {
    tensor.as_ref().map_or(Argument::Absent, Argument::Array)
}

impl Columns {
    /// An empty batch of these sizes, in one allocation. `has_input`: its random IDs differ from its IDs. A padded one has a place of its own for
    /// them in any case, because a captured step's batch is a copy of the first one and takes all others of its sizes.
    fn room(
        &self,
        class: SizeClass,
        has_input: bool,
        pads: bool,
        vocabulary_size: i64,
        device: Device,
    ) -> Result<Batch, TchError> {
        let SizeClass { nodes, edges, successors, graphs } = class;
        let has_input = has_input || pads || self.id_input.is_some();
        let mut packing = Packing::default();
        let mut add = |shape: &[i64], kind| packing.add(shape, kind);
        add(&[nodes], Kind::Int64);
        if has_input {
            add(&[nodes], Kind::Int64);
        }
        add(&[nodes, self.continuous.size()[1]], Kind::Float);
        for shape in [nodes + 1, edges, edges, nodes + 1, edges] {
            add(&[shape], Kind::Int);
        }
        if let Some(attributes) = &self.edge_attributes {
            add(&[edges, attributes.size()[1]], Kind::Float);
        }
        for shape in [successors, graphs + 1, nodes, graphs] {
            add(&[shape], Kind::Int64);
        }
        if let Some(targets) = &self.targets_of_graphs {
            add(&[graphs, targets.size()[1]], targets.f_kind()?);
        }
        if pads {
            for shape in [&[nodes][..], &[], &[graphs], &[]] {
                add(shape, Kind::Float);
            }
        }
        let memory = Tensor::f_empty([packing.bytes() as i64], (Kind::Uint8, device))?;
        let mut tensors = packing.tensors(&memory)?.into_iter();
        let mut next = || tensors.next().ok_or_else(|| TchError::Shape("a batch has more tensors".into()));
        let id_index = next()?;
        Ok(Batch {
            graph_index: Arc::default(),
            can_ids: Arc::default(),
            id_input: if has_input { next()? } else { id_index.shallow_clone() },
            id_index,
            continuous: next()?,
            adjacency: Adjacency {
                row_pointers: next()?,
                sources: next()?,
                targets: next()?,
                column_pointers: next()?,
                transposed: next()?,
                components: Arc::default(),
            },
            edge_attributes: self.edge_attributes.is_some().then(&mut next).transpose()?,
            successors: next()?,
            vocabulary_size,
            node_pointers: next()?,
            graph_of_node: next()?,
            labels: next()?,
            targets: self.targets_of_graphs.is_some().then(&mut next).transpose()?,
            node_targets: None,
            neighbourhood: None,
            space: None,
            real: match pads {
                true => Some(Real {
                    nodes: Mask { rows: next()?, count: next()? },
                    graphs: Mask { rows: next()?, count: next()? },
                }),
                false => None,
            },
            padded_form: None,
            memory: Some(memory),
        })
    }

    /// Fills an empty batch with the graphs of a table. `drop`: how random IDs are replaced, and the numerator of their share.
    fn gather(
        &self,
        batch: &Batch,
        gatherer: &Gatherer,
        table: &Tensor,
        (how, limit): (i32, u64),
    ) -> Result<(), TchError> {
        use Argument::{Absent, Array, Int, UnsignedLong};
        let SizeClass { nodes, edges, successors, graphs: padded_graphs } = batch.size_class();
        let [padded_nodes, padded_edges] = [nodes, edges].map(|size| UnsignedLong(size as u64));
        let graphs = Int((table.numel() / ROWS) as i32 - 1);
        let Adjacency { row_pointers, sources, targets, column_pointers, transposed, .. } = &batch.adjacency;
        let mask = |of: fn(&Real) -> &Tensor| batch.real.as_ref().map_or(Absent, |real| Array(of(real)));
        let has_input = batch.id_input.data_ptr() != batch.id_index.data_ptr();
        gatherer.launch(
            "assemble_nodes",
            nodes + 1,
            &[
                graphs,
                padded_nodes,
                padded_edges,
                Int(self.continuous.size()[1] as i32),
                Int(how),
                UnsignedLong(limit),
                Array(table),
                Array(&self.id_index),
                array(&self.id_input),
                Array(&self.continuous),
                Array(&self.row_starts),
                Array(&self.column_starts),
                Array(&batch.id_index),
                if has_input { Array(&batch.id_input) } else { Absent },
                Array(&batch.continuous),
                Array(row_pointers),
                Array(column_pointers),
                Array(&batch.graph_of_node),
                mask(|real| &real.nodes.rows),
            ],
        )?;
        gatherer.launch(
            "assemble_edges",
            edges,
            &[
                graphs,
                padded_nodes,
                padded_edges,
                Int(self.edge_attributes.as_ref().map_or(0, |attributes| attributes.size()[1] as i32)),
                Array(table),
                Array(&self.sources),
                Array(&self.targets),
                Array(&self.transposed),
                array(&self.edge_attributes),
                Array(sources),
                Array(targets),
                Array(transposed),
                array(&batch.edge_attributes),
            ],
        )?;
        gatherer.launch(
            "assemble_pairs",
            successors,
            &[
                graphs,
                padded_nodes,
                UnsignedLong(successors as u64),
                UnsignedLong(batch.vocabulary_size as u64),
                Array(table),
                Array(&self.successors),
                Array(&batch.successors),
            ],
        )?;
        let words = |targets: &Tensor| {
            let bytes = targets.size()[1] as usize * targets.kind().elt_size_in_bytes();
            (bytes / size_of::<i32>()) as i32
        };
        gatherer.launch(
            "assemble_graphs",
            padded_graphs + 1,
            &[
                graphs,
                padded_nodes,
                UnsignedLong(padded_graphs as u64),
                Int(self.targets_of_graphs.as_ref().map_or(0, words)),
                Array(table),
                Array(&self.labels),
                array(&self.targets_of_graphs),
                Array(&batch.node_pointers),
                Array(&batch.labels),
                array(&batch.targets),
                mask(|real| &real.graphs.rows),
                mask(|real| &real.nodes.count),
                mask(|real| &real.graphs.count),
            ],
        )
    }

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
