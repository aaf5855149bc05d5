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

mod columns;
mod gather;

use std::path::Path;
use std::sync::Arc;

use kdgat_base::random::{self, Purpose};
use kdgat_torch::device::Uploader;
use parking_lot::Mutex;
use tch::{Device, TchError, Tensor};

use columns::{Columns, Start};
pub use gather::Gatherer;

use super::assemble::{Assembler, keys_of_views};
use super::padding::SizeClass;
use super::{AssembleOptions, Batch, Store, StoreError, UnknownDrop};

/// Bytes of graphs that are assembled on the host at a time, but at least one graph.
const CHUNK_BYTES: u64 = 16 << 20;
/// Slot of a graph that is not on the device.
const ABSENT: u32 = u32::MAX;

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
    gatherer: Gatherer,
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
