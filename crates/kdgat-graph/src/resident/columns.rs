//! The columns of graphs on a device, and batches that are filled from them.

use std::collections::VecDeque;
use std::sync::Arc;

use kdgat_torch::cuda_program::Argument;
use kdgat_torch::device::Uploader;
use kdgat_torch::device::packing::Packing;
use tch::{Device, Kind, TchError, Tensor};

use super::super::padding::{Mask, Real, SizeClass};
use super::super::{Adjacency, Batch};
use super::{Gatherer, ROWS};

/// The first node, edge and successor of a graph.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Start {
    pub node: i64,
    pub edge: i64,
    pub successor: i64,
}

/// Columns of all graphs. Nodes, edges and rows are numbered from their graph's first.
#[derive(Debug)]
pub(super) struct Columns {
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

fn array(tensor: &Option<Tensor>) -> Argument<'_> {
    tensor.as_ref().map_or(Argument::Absent, Argument::Array)
}

impl Columns {
    /// An empty batch of these sizes, in one allocation. `has_input`: its random IDs differ from its IDs. A padded one has a place of its own for
    /// them in any case, because a captured step's batch is a copy of the first one and takes all others of its sizes.
    pub fn room(
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
    pub fn gather(
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
    pub fn of(batch: &Batch, starts: &mut Vec<Start>, has_own_input: bool) -> Result<Self, TchError> {
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
    pub fn upload(&self, uploader: &mut Uploader) -> Result<Self, TchError> {
        let missing = || TchError::Shape("a column was to be uploaded".into());
        self.try_map(&mut |column| uploader.upload(&[column])?.pop().ok_or_else(missing))
    }

    /// The columns of all parts one after another, and their bytes. Each is joined by itself, so that no more than one of them and the last part
    /// are there twice.
    pub fn joined(mut parts: Vec<Self>) -> Result<(Self, u64), TchError> {
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
