//! A batch: several graphs concatenated into one disconnected graph of tensors.

use std::sync::{Arc, OnceLock};

use tch::{Device, Kind, TchError, Tensor};

use kdgat_torch::device::packing::moved;
use kdgat_torch::device::{DeviceError, Uploader};

use super::Neighbourhood;
pub use super::edge_list::{EdgeList, EdgeListFile, from_edge_list};
use super::padding::Real;
use super::space::Space;

/// The nodes of a batch that have targets, and these targets.
#[derive(Debug)]
pub struct NodeTargets {
    /// `[known]`, i64: numbers of the nodes within the batch, ascending.
    pub nodes: Tensor,
    /// `[known, number of targets]`, f32: number of the class, labels, or values.
    pub values: Tensor,
    /// `[num_graphs + 1]`: rows of graph `g` are `pointers[g]..pointers[g + 1]`. On the host: it weighs parts of a batch.
    pub pointers: Arc<Vec<u64>>,
}

impl NodeTargets {
    pub(super) fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self { nodes: tensor(&self.nodes)?, values: tensor(&self.values)?, pointers: Arc::clone(&self.pointers) })
    }
}

/// Edges in the layout for attention: by target, with exactly one self-loop per node.
///
/// That self-loop replaces the self-loops of the data, as in PyTorch Geometric's `GATConv`. Edges of one
/// target are contiguous, sources ascending; the transpose lists them by source for the backward pass.
#[derive(Debug)]
pub struct Adjacency {
    /// `[num_targets + 1]`, i32: edges of target `i` are `row_pointers[i]..row_pointers[i + 1]`.
    pub row_pointers: Tensor,
    /// `[num_edges]`, i32: source of each edge, in order of target.
    pub sources: Tensor,
    /// `[num_edges]`, i32: target of each edge, in order of target.
    pub targets: Tensor,
    /// `[num_sources + 1]`, i32: edges of source `j` are `column_pointers[j]..column_pointers[j + 1]` of `transposed`.
    pub column_pointers: Tensor,
    /// `[num_edges]`, i32: for each edge in order of source, its position in the order of targets.
    pub transposed: Tensor,
    /// First nodes of the runs of nodes that no edge leaves, computed on first use.
    pub components: Arc<OnceLock<Vec<u32>>>,
}

impl Adjacency {
    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        infallible(self.try_map(&mut |tensor| Ok(tensor.shallow_clone())))
    }

    /// A copy on `device`.
    ///
    /// # Errors
    /// When the device is out of memory or does not exist.
    pub fn to_device(&self, device: Device) -> Result<Self, TchError> {
        self.try_map(&mut |tensor| tensor.f_to_device(device))
    }

    pub(super) fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self {
            row_pointers: tensor(&self.row_pointers)?,
            sources: tensor(&self.sources)?,
            targets: tensor(&self.targets)?,
            column_pointers: tensor(&self.column_pointers)?,
            transposed: tensor(&self.transposed)?,
            components: Arc::clone(&self.components),
        })
    }

    /// Number of nodes that edges lead to: rows of the output of a layer.
    pub fn num_targets(&self) -> i64 {
        (self.row_pointers.size()[0] - 1).max(0)
    }

    /// Number of nodes that edges may come from: rows of the input of a layer. Equal to the number of targets but for a
    /// [layer of a neighbourhood](super::Neighbourhood::layers), where the targets are the first of the sources.
    pub fn num_sources(&self) -> i64 {
        (self.column_pointers.size()[0] - 1).max(0)
    }

    /// Number of edges, including self-loops.
    pub fn num_edges(&self) -> i64 {
        self.sources.size()[0]
    }
}

/// Several graphs as tensors. All index tensors are relative to the batch.
#[derive(Debug)]
pub struct Batch {
    /// Position of each graph in its store, the key of the caches; for graphs in several views, see [`UnknownDrop`](super::UnknownDrop).
    pub graph_index: Arc<Vec<u64>>,
    /// CAN ID of each node, so that a teacher with another vocabulary can look up its own index.
    pub can_ids: Arc<Vec<u32>>,
    /// `[num_nodes]`, i64: vocabulary index of each node's ID, the target of the ID classifier.
    pub id_index: Tensor,
    /// `[num_nodes]`, i64: input of the model: `id_index`, with some entries replaced by UNKNOWN in training (`unknown_drop`).
    /// For a model that hashes IDs: the CAN IDs, with some replaced by random IDs.
    pub id_input: Tensor,
    /// `[num_nodes, node features of the set]`, f32: node features as stored.
    pub continuous: Tensor,
    /// Edges in the layout for attention.
    pub adjacency: Adjacency,
    /// `[num_edges, EDGE_FEATURES]`, f32, in the order of `adjacency.sources`; a self-loop has the mean of its
    /// node's other incoming edges (zeros without any). Only for models that use edge features.
    pub edge_attributes: Option<Tensor>,
    /// `[num_pairs]`, i64: `node * vocabulary_size + id_index[successor]` for every edge of the data (including
    /// self-loops), without repetition, ascending: the positions of ones in the multi-hot successor target.
    pub successors: Tensor,
    /// Size of the vocabulary that `id_index` and `successors` refer to, including UNKNOWN.
    pub vocabulary_size: i64,
    /// `[num_graphs + 1]`, i64: nodes of graph `g` are `node_pointers[g]..node_pointers[g + 1]`.
    pub node_pointers: Tensor,
    /// `[num_nodes]`, i64: the graph that each node belongs to.
    pub graph_of_node: Tensor,
    /// `[num_graphs]`, i64: 1 if any frame of the window is an attack frame; for other graphs the number of the class, if they have one.
    pub labels: Tensor,
    /// `[num_graphs, number of targets]`: targets of graphs that are no CAN windows; f32, or f64 where rounding would count.
    pub targets: Option<Tensor>,
    /// Targets of nodes, if the nodes of the graphs have any.
    pub node_targets: Option<Box<NodeTargets>>,
    /// The features and edges around the nodes of one large graph; then each graph of the batch is one of these nodes.
    pub neighbourhood: Option<Box<Neighbourhood>>,
    /// Positions of the nodes and pairs of near nodes, if the loader was asked for them ([`AssembleOptions::space`](super::AssembleOptions)).
    pub space: Option<Box<Space>>,
    /// Masks of the real nodes and graphs of a [padded](Batch::padded) batch; `None` for others.
    pub real: Option<Real>,
    /// The padded batch, if a [padding loader](super::Loader::padding) has made it.
    pub padded_form: Option<Box<Batch>>,
    /// The allocation that all tensors are [packed](kdgat_torch::device::packing::Packing) into, `[bytes]`, u8, if there is one: copying it copies them.
    pub memory: Option<Tensor>,
}

impl Batch {
    /// A batch of nodes of one large graph: each counts as a graph of one node without edges. `nodes` are their numbers, `labels`
    /// their classes (-100 for a node without one).
    ///
    /// # Errors
    /// Those of libtorch, out of memory included.
    pub fn of_seeds(nodes: Vec<u64>, labels: &[i64], neighbourhood: Neighbourhood) -> Result<Self, TchError> {
        let count = nodes.len() as i64;
        let indices = |end: i64| Tensor::f_arange(end, (Kind::Int64, Device::Cpu));
        let none = |kind| Tensor::f_zeros([0], (kind, Device::Cpu));
        let no_edges = |_| Tensor::f_zeros([count + 1], (Kind::Int, Device::Cpu));
        let id_index = Tensor::f_zeros([count], (Kind::Int64, Device::Cpu))?;
        Ok(Self {
            can_ids: Arc::new(vec![0; nodes.len()]),
            graph_index: Arc::new(nodes),
            id_input: id_index.shallow_clone(),
            id_index,
            continuous: Tensor::f_zeros([count, 0], (Kind::Float, Device::Cpu))?,
            adjacency: Adjacency {
                row_pointers: no_edges(())?,
                sources: none(Kind::Int)?,
                targets: none(Kind::Int)?,
                column_pointers: no_edges(())?,
                transposed: none(Kind::Int)?,
                components: Arc::default(),
            },
            edge_attributes: None,
            successors: none(Kind::Int64)?,
            vocabulary_size: 1,
            node_pointers: indices(count + 1)?,
            graph_of_node: indices(count)?,
            labels: Tensor::f_from_slice(labels)?,
            targets: None,
            node_targets: None,
            neighbourhood: Some(Box::new(neighbourhood)),
            space: None,
            real: None,
            padded_form: None,
            memory: None,
        })
    }

    /// Number of graphs in the batch.
    pub fn num_graphs(&self) -> usize {
        // There is one pointer more than graphs.
        (self.node_pointers.size()[0] - 1).max(0) as usize
    }

    /// Number of nodes in the batch.
    pub fn num_nodes(&self) -> i64 {
        self.id_index.size()[0]
    }

    /// For each node, true if its ID sent a frame of the window; a node that only the last edge leads to sent none.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn sending_nodes(&self) -> Result<Vec<bool>, TchError> {
        let mut sends = vec![false; self.can_ids.len()];
        for pair in Vec::<i64>::try_from(&self.successors)? {
            sends[(pair / self.vocabulary_size) as usize] = true;
        }
        Ok(sends)
    }

    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        let memory = self.memory.as_ref().map(Tensor::shallow_clone);
        Self { memory, ..infallible(self.try_map(&mut |tensor| Ok(tensor.shallow_clone()))) }
    }

    /// A copy on `device`, tensor by tensor; the host waits for each. [`Self::upload`] copies all of them at once.
    ///
    /// # Errors
    /// When the device is out of memory or does not exist.
    pub fn to_device(&self, device: Device) -> Result<Self, TchError> {
        self.try_map(&mut |tensor| tensor.f_to_device(device))
    }

    /// A copy on the uploader's device, by one asynchronous transfer; another handle to a batch that is there already.
    ///
    /// # Errors
    /// When memory is exhausted: the call can be repeated after some has been freed.
    pub fn upload(&self, uploader: &mut Uploader) -> Result<Self, DeviceError> {
        if self.id_index.device() == uploader.device() {
            return Ok(self.shallow_clone());
        }
        let mut tensors = Vec::new();
        infallible(self.try_map(&mut |tensor| {
            tensors.push(tensor.shallow_clone());
            Ok(tensor.shallow_clone())
        }));
        let (uploaded, memory) = uploader.upload_packed(&tensors.iter().collect::<Vec<_>>())?;
        let mut uploaded = uploaded.into_iter();
        let missing = || DeviceError::from(TchError::Shape("a tensor was not uploaded".into()));
        Ok(Self { memory, ..self.try_map(&mut |_| uploaded.next().ok_or_else(missing))? })
    }

    /// A copy that shares no memory with this batch.
    ///
    /// # Errors
    /// When memory is exhausted.
    pub fn copied(&self) -> Result<Self, TchError> {
        let Some(memory) = &self.memory else { return self.try_map(&mut |tensor| tensor.f_detach_copy()) };
        let copy = memory.f_detach_copy()?;
        let copied = self.try_map(&mut |tensor| moved(tensor, memory, &copy))?;
        Ok(Self { memory: Some(copy), ..copied })
    }

    /// Applies `tensor` to every tensor of the batch, in a fixed order. The result has no padded form and no memory of its own.
    fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self {
            graph_index: Arc::clone(&self.graph_index),
            can_ids: Arc::clone(&self.can_ids),
            id_index: tensor(&self.id_index)?,
            id_input: tensor(&self.id_input)?,
            continuous: tensor(&self.continuous)?,
            adjacency: self.adjacency.try_map(tensor)?,
            edge_attributes: self.edge_attributes.as_ref().map(&mut *tensor).transpose()?,
            successors: tensor(&self.successors)?,
            vocabulary_size: self.vocabulary_size,
            node_pointers: tensor(&self.node_pointers)?,
            graph_of_node: tensor(&self.graph_of_node)?,
            labels: tensor(&self.labels)?,
            targets: self.targets.as_ref().map(&mut *tensor).transpose()?,
            node_targets: self
                .node_targets
                .as_ref()
                .map(|targets| targets.try_map(tensor).map(Box::new))
                .transpose()?,
            neighbourhood: self.neighbourhood.as_ref().map(|part| part.try_map(tensor).map(Box::new)).transpose()?,
            space: self.space.as_ref().map(|space| space.try_map(tensor).map(Box::new)).transpose()?,
            real: self.real.as_ref().map(|real| real.try_map(tensor)).transpose()?,
            padded_form: None,
            memory: None,
        })
    }
}

pub(super) fn infallible<T>(result: Result<T, std::convert::Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}
