//! Pads batches to sizes that many batches share, so that a CUDA graph recorded for one batch is replayed for others.
//!
//! Every padded batch has at least one extra node, and an extra graph with all extra nodes. Extra edges are self-loops of extra
//! nodes, and extra pairs of the successor target belong to an extra node. No edge connects real and padded nodes, so padding
//! changes only sums over nodes and graphs, which must use a [`Mask`].

use std::ops::Add;
use std::sync::Arc;

use kdgat_torch::device::packing::offset_bytes;
use tch::{Device, Kind, TchError, Tensor};

use super::assemble::sort_distinct;
use super::{Adjacency, Batch, GraphView, Vocabulary};

/// Mask of the real rows of a tensor.
#[derive(Debug)]
pub struct Mask {
    /// `[rows]`, f32: 1 for a real row, 0 for padding.
    pub rows: Tensor,
    /// Number of real rows, a scalar, f32: on the device, so that using it does not synchronise with the host.
    pub count: Tensor,
}

impl Mask {
    /// A mask of `rows` rows, the first `real` of which are real.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn of(real: i64, rows: i64, device: Device) -> Result<Self, TchError> {
        let options = (Kind::Float, device);
        let rows = Tensor::f_cat(&[Tensor::f_ones([real], options)?, Tensor::f_zeros([rows - real], options)?], 0)?;
        Ok(Self { rows, count: Tensor::f_full([0_i64; 0], real as f64, options)? })
    }

    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        Self { rows: self.rows.shallow_clone(), count: self.count.shallow_clone() }
    }

    fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self { rows: tensor(&self.rows)?, count: tensor(&self.count)? })
    }
}

/// Masks of the real nodes and graphs of a padded batch.
#[derive(Debug)]
pub struct Real {
    /// Mask of the nodes.
    pub nodes: Mask,
    /// Mask of the graphs.
    pub graphs: Mask,
}

impl Real {
    pub(super) fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self { nodes: self.nodes.try_map(tensor)?, graphs: self.graphs.try_map(tensor)? })
    }
}

/// Sizes that a batch is padded to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass {
    /// Number of nodes.
    pub nodes: i64,
    /// Number of edges, including self-loops.
    pub edges: i64,
    /// Number of pairs of the successor target.
    pub successors: i64,
    /// Number of graphs.
    pub graphs: i64,
}

impl SizeClass {
    /// The size class of a batch: depends only on its sizes, so that a resumed run computes the same as an uninterrupted one.
    pub fn of(batch: &Batch) -> Self {
        batch.size_class().rounded_up()
    }

    /// The exact sizes of a graph. Those of a batch are their sum.
    ///
    /// # Errors
    /// The text of what is wrong with a graph of a damaged store.
    pub fn of_graph(view: &GraphView<'_>, vocabulary: &Vocabulary) -> Result<Self, String> {
        if let Some(detail) = view.inconsistency() {
            return Err(detail);
        }
        let index_of: Vec<u32> = view.can_ids.iter().map(|&id| vocabulary.index_of(id)).collect();
        let mut are_distinct = index_of.is_sorted_by(|a, b| a < b);
        let mut loops = 0;
        for target in 0..view.num_nodes() {
            let sources = &view.sources[view.edges_of(target)];
            are_distinct &= sources.is_sorted_by(|a, b| a < b);
            loops += sources.iter().filter(|&&source| usize::from(source) == target).count();
        }
        let successors = match are_distinct {
            true => view.num_edges(),
            // Nodes that share an index are the successor of a node once.
            false => {
                let of_target = |target: usize| {
                    let index = i64::from(index_of[target]);
                    view.sources[view.edges_of(target)]
                        .iter()
                        .map(move |&source| i64::from(source) << u32::BITS | index)
                };
                sort_distinct(&mut (0..view.num_nodes()).flat_map(of_target).collect::<Vec<_>>())
            }
        };
        Ok(Self {
            nodes: view.num_nodes() as i64,
            edges: (view.num_edges() - loops + view.num_nodes()) as i64,
            successors: successors as i64,
            graphs: 1,
        })
    }

    /// The size class of batches of these sizes.
    pub fn rounded_up(self) -> Self {
        let Self { nodes, edges, successors, graphs } = self;
        Self {
            nodes: rounded_up(nodes + 1),
            edges: rounded_up(edges),
            successors: rounded_up(successors),
            graphs: rounded_up(graphs + 1),
        }
    }
}

impl Add for SizeClass {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            nodes: self.nodes + other.nodes,
            edges: self.edges + other.edges,
            successors: self.successors + other.successors,
            graphs: self.graphs + other.graphs,
        }
    }
}

/// Number of size classes between two powers of two.
const CLASSES_OF_AN_OCTAVE: u64 = 16;
/// Largest padding as a share of a batch's size.
pub const LARGEST_FILLING: f64 = 1.0 / CLASSES_OF_AN_OCTAVE as f64;

fn rounded_up(size: i64) -> i64 {
    // Tensor sizes are never negative.
    let size = size.max(1) as u64;
    let step = ((1 << size.ilog2()) / CLASSES_OF_AN_OCTAVE).max(1);
    size.next_multiple_of(step) as i64
}

impl Batch {
    /// Pads the batch to the sizes of `class`, on the same device. The result has no graph indices, so it cannot be looked up in
    /// a teacher's outputs or a cache.
    ///
    /// # Errors
    /// When the batch does not fit the class; those of libtorch.
    pub fn padded(&self, class: SizeClass) -> Result<Self, TchError> {
        let own = self.size_class();
        let fits = own.edges <= class.edges && own.successors <= class.successors;
        if !fits || own.nodes >= class.nodes || own.graphs >= class.graphs {
            return Err(TchError::Shape(format!(
                "a batch of {own:?} does not fit {class:?}, which must have at least one node and one graph more"
            )));
        }
        if self.neighbourhood.is_some() || self.node_targets.is_some() {
            return Err(TchError::Shape("a batch with targets of nodes cannot be padded".into()));
        }
        if self.space.is_some() {
            return Err(TchError::Shape("a batch with positions of nodes cannot be padded".into()));
        }
        let device = self.id_index.device();
        let (nodes, graphs) = (class.nodes - own.nodes, class.graphs - own.graphs);
        let pair = (class.nodes - 1) * self.vocabulary_size;
        let attributes = self.edge_attributes.as_ref();
        Ok(Self {
            graph_index: Arc::default(),
            can_ids: Arc::default(),
            id_index: filled(&self.id_index, nodes, 0)?,
            id_input: filled(&self.id_input, nodes, 0)?,
            continuous: filled(&self.continuous, nodes, 0)?,
            adjacency: self.adjacency.padded(own, class)?,
            edge_attributes: attributes.map(|tensor| filled(tensor, class.edges - own.edges, 0)).transpose()?,
            successors: filled(&self.successors, class.successors - own.successors, pair)?,
            vocabulary_size: self.vocabulary_size,
            // The first extra graph has all extra nodes.
            node_pointers: filled(&self.node_pointers, graphs, class.nodes)?,
            graph_of_node: filled(&self.graph_of_node, nodes, own.graphs)?,
            labels: filled(&self.labels, graphs, 0)?,
            targets: self.targets.as_ref().map(|targets| filled(targets, graphs, 0)).transpose()?,
            node_targets: None,
            neighbourhood: None,
            space: None,
            real: Some(Real {
                nodes: Mask::of(own.nodes, class.nodes, device)?,
                graphs: Mask::of(own.graphs, class.graphs, device)?,
            }),
            padded_form: None,
            memory: None,
        })
    }

    /// The part of a padded batch that is not padding, which has these sizes: other handles to the same memory. Without its graphs' numbers.
    ///
    /// # Errors
    /// A batch that is smaller.
    pub(super) fn without_padding(&self, own: SizeClass) -> Result<Self, TchError> {
        let SizeClass { nodes, edges, successors, graphs } = own;
        let part = |tensor: &Tensor, rows: i64| tensor.f_narrow(0, 0, rows);
        let Adjacency { row_pointers, sources, targets, column_pointers, transposed, .. } = &self.adjacency;
        Ok(Self {
            id_index: part(&self.id_index, nodes)?,
            id_input: part(&self.id_input, nodes)?,
            continuous: part(&self.continuous, nodes)?,
            adjacency: Adjacency {
                row_pointers: part(row_pointers, nodes + 1)?,
                sources: part(sources, edges)?,
                targets: part(targets, edges)?,
                column_pointers: part(column_pointers, nodes + 1)?,
                transposed: part(transposed, edges)?,
                components: Arc::default(),
            },
            edge_attributes: self.edge_attributes.as_ref().map(|tensor| part(tensor, edges)).transpose()?,
            successors: part(&self.successors, successors)?,
            node_pointers: part(&self.node_pointers, graphs + 1)?,
            graph_of_node: part(&self.graph_of_node, nodes)?,
            labels: part(&self.labels, graphs)?,
            targets: self.targets.as_ref().map(|targets| part(targets, graphs)).transpose()?,
            real: None,
            ..self.shallow_clone()
        })
    }

    /// The exact sizes of the batch.
    pub fn size_class(&self) -> SizeClass {
        SizeClass {
            nodes: self.num_nodes(),
            edges: self.adjacency.num_edges(),
            successors: self.successors.size()[0],
            graphs: self.num_graphs() as i64,
        }
    }

    /// Overwrites all tensors with those of `other`, which has the same sizes and may be on another device.
    ///
    /// # Errors
    /// When the sizes differ; those of libtorch.
    pub fn copy_from(&mut self, other: &Self) -> Result<(), TchError> {
        self.adjacency.components = Arc::default();
        let (targets, sources) = (self.tensors(), other.tensors());
        if let (Some(own), Some(others)) = (&self.memory, &other.memory) {
            let place = |tensor: &Tensor, memory| (tensor.size(), offset_bytes(tensor, memory));
            let places = |tensors: [Option<&Tensor>; 18], memory| {
                tensors.map(|tensor| tensor.map(|tensor| place(tensor, memory)))
            };
            if own.size() == others.size() && places(targets, own) == places(sources, others) {
                return tch::no_grad(|| own.shallow_clone().f_copy_(others));
            }
        }
        for (target, source) in targets.into_iter().zip(sources) {
            match (target, source) {
                (Some(target), Some(source)) if target.size() == source.size() => {
                    tch::no_grad(|| target.shallow_clone().f_copy_(source))?;
                }
                (None, None) => {}
                (target, source) => {
                    let [target, source] = [target, source].map(|tensor| tensor.map(Tensor::size));
                    return Err(TchError::Shape(format!(
                        "cannot copy a tensor of shape {source:?} to one of shape {target:?}"
                    )));
                }
            }
        }
        Ok(())
    }

    fn tensors(&self) -> [Option<&Tensor>; 18] {
        let Adjacency { row_pointers, sources, targets, column_pointers, transposed, components: _ } = &self.adjacency;
        let nodes = self.real.as_ref().map(|real| &real.nodes);
        let graphs = self.real.as_ref().map(|real| &real.graphs);
        [
            Some(&self.id_index),
            Some(&self.id_input),
            Some(&self.continuous),
            Some(row_pointers),
            Some(sources),
            Some(targets),
            Some(column_pointers),
            Some(transposed),
            self.edge_attributes.as_ref(),
            Some(&self.successors),
            Some(&self.node_pointers),
            Some(&self.graph_of_node),
            Some(&self.labels),
            self.targets.as_ref(),
            nodes.map(|mask| &mask.rows),
            nodes.map(|mask| &mask.count),
            graphs.map(|mask| &mask.rows),
            graphs.map(|mask| &mask.count),
        ]
    }
}

impl Adjacency {
    /// Distributes the extra edges evenly over the extra nodes: a GPU is slow for a node with very many edges.
    fn padded(&self, own: SizeClass, class: SizeClass) -> Result<Self, TchError> {
        let (nodes, edges) = (class.nodes - own.nodes, class.edges - own.edges);
        // Made on the device of the batch, where nothing has to wait for a copy.
        let device = self.sources.device();
        let numbers = |start: i64, end: i64| Tensor::f_arange_start(start, end, (Kind::Int64, device));
        let ends = numbers(0, nodes + 1)?.f_mul_scalar(edges)?.f_floor_divide_scalar(nodes)?;
        let counts = ends.f_narrow(0, 1, nodes)?.f_sub(&ends.f_narrow(0, 0, nodes)?)?;
        let loops = Tensor::f_repeat_interleave(&counts, edges)?.f_add_scalar(own.nodes)?;
        let ends = ends.f_narrow(0, 1, nodes)?.f_add_scalar(own.edges)?;
        let positions = numbers(own.edges, class.edges)?;
        Ok(Self {
            row_pointers: followed_by(&self.row_pointers, &ends)?,
            sources: followed_by(&self.sources, &loops)?,
            targets: followed_by(&self.targets, &loops)?,
            column_pointers: followed_by(&self.column_pointers, &ends)?,
            transposed: followed_by(&self.transposed, &positions)?,
            components: Arc::default(),
        })
    }
}

/// Appends `rows` rows of `value`.
fn filled(tensor: &Tensor, rows: i64, value: i64) -> Result<Tensor, TchError> {
    let mut shape = tensor.size();
    shape[0] = rows;
    Tensor::f_cat(&[tensor, &Tensor::f_full(&shape, value, (tensor.f_kind()?, tensor.device()))?], 0)
}

fn followed_by(tensor: &Tensor, values: &Tensor) -> Result<Tensor, TchError> {
    Tensor::f_cat(&[tensor, &values.f_to_kind(tensor.f_kind()?)?], 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_class_is_hardly_larger_than_what_it_is_for(size in 1_i64..1_000_000_000) {
            let class = rounded_up(size);
            prop_assert!(class >= size && (class - size) * 16 <= size, "{size}: {class}");
            prop_assert_eq!(rounded_up(class), class);
        }
    }
}
