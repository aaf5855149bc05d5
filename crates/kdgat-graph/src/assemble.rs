//! Makes batches of graphs: one pass over the mapped columns, and one copy into each tensor. Node features, most of the bytes,
//! are not copied for adjacent graphs, as in validation, scoring and evaluation: their tensor points into the mapped file.
//!
//! A stored graph's edges are already sorted by target, so the rows of a batch are those of its graphs, shifted;
//! the transpose comes from counting the edges of each source. There is no sorting and no hashing.

use std::sync::Arc;

use bytemuck::Pod;
use kdgat_base::random::{self, Purpose};
use tch::{Kind, Tensor};

use super::deviation_cache::DeviationCache;
use super::profile::DEVIATIONS;
use super::space::SpaceBuffers;
use super::{
    Adjacency, Batch, CarProfile, Columns, FeatureSet, GraphView, NodeTargets, Space, SpaceOptions, Store, StoreError,
    Vocabulary,
};

/// Options for assembling batches.
#[derive(Debug, Clone)]
pub struct AssembleOptions {
    /// Vocabulary of the model that uses the batch.
    pub vocabulary: Arc<Vocabulary>,
    /// Replaces some IDs of the model's input by UNKNOWN; only for training.
    pub unknown_drop: Option<UnknownDrop>,
    /// True if the model uses edge features.
    pub edge_attributes: bool,
    /// True if the model hashes CAN IDs: its input is the IDs instead of vocabulary indices.
    pub hashed_ids: bool,
    /// Profile of the car, for graphs of the profile set: their features are deviations from it, and IDs are hidden from the model.
    pub profile: Option<CarProfile>,
    /// True to use the profile of each log's first seconds instead, for logs that have one: the model then sees its own car as it will see
    /// another one after a short calibration.
    pub short_profiles: bool,
    /// Makes the pairs of near nodes; for networks in space.
    pub space: Option<SpaceOptions>,
}

impl AssembleOptions {
    /// Options for inference with a model with this vocabulary and without edge features.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            vocabulary,
            unknown_drop: None,
            edge_attributes: false,
            hashed_ids: false,
            profile: None,
            short_profiles: false,
            space: None,
        }
    }

    /// Options for one inference batch that two models can read; `None` if their inputs differ.
    pub fn shared_with(&self, other: &Self) -> Option<Self> {
        let is_same = self.unknown_drop.is_none()
            && other.unknown_drop.is_none()
            && self.vocabulary == other.vocabulary
            && (self.hashed_ids, self.short_profiles) == (other.hashed_ids, other.short_profiles)
            && self.profile == other.profile
            && (self.space == other.space || self.space.is_none() || other.space.is_none());
        is_same.then(|| Self {
            edge_attributes: self.edge_attributes || other.edge_attributes,
            space: self.space.or(other.space),
            ..self.clone()
        })
    }
}

/// Random replacement of IDs by UNKNOWN or, for a model that hashes IDs, by random IDs, which look like unknown ones to it.
/// A pure function of seed, view, the graph's position in the store, and the node.
#[derive(Debug, Clone, Copy)]
pub struct UnknownDrop {
    /// Share of the nodes to replace, 0 to 1.
    pub probability: f64,
    /// Seed of the run.
    pub seed: u64,
    /// Current epoch.
    pub epoch: u64,
    /// Number of views of a graph, each with other IDs replaced, which the epochs take in turn, so that a teacher's targets for them can be
    /// cached. 0: each epoch has a view of its own.
    pub views: u64,
}

impl UnknownDrop {
    /// The view of the current epoch.
    pub(super) fn view(&self) -> u64 {
        if self.views == 0 { self.epoch } else { self.epoch % self.views }
    }
}

/// The numbers of these graphs of a store of `num_graphs` as keys of caches: that of view v of graph g is v·`num_graphs` + g.
pub(super) fn keys_of_views(graphs: &[u64], num_graphs: u64, view_of: impl Fn(u64) -> u64) -> Arc<Vec<u64>> {
    Arc::new(graphs.iter().map(|&graph| view_of(graph) * num_graphs + graph).collect())
}

/// Makes a batch of the graphs at these positions in the store, in this order.
///
/// # Errors
/// A position out of range, a damaged shard, or no memory for the tensors.
pub fn assemble(store: &Store, graphs: &[u64], options: &AssembleOptions) -> Result<Batch, StoreError> {
    Assembler::default().assemble(store, graphs, options)
}

/// Assembles batches; reuses its buffers.
#[derive(Debug, Default)]
pub struct Assembler {
    can_ids: Vec<u32>,
    id_index: Vec<i64>,
    id_input: Vec<i64>,
    continuous: Vec<f32>,
    row_pointers: Vec<i32>,
    sources: Vec<i32>,
    targets: Vec<i32>,
    column_pointers: Vec<i32>,
    transposed: Vec<i32>,
    edge_attributes: Vec<f32>,
    successors: Vec<i64>,
    node_pointers: Vec<i64>,
    graph_of_node: Vec<i64>,
    labels: Vec<i64>,
    targets_of_graphs: Vec<f32>,
    /// The same, as the source has them, for a store that knows them.
    exact_targets: Vec<f64>,
    /// Nodes with targets, these targets, and the number of such nodes before each graph.
    known_nodes: Vec<i64>,
    known_targets: Vec<f32>,
    known_pointers: Vec<u64>,
    /// For each node of the current graph, true if the data has a self-loop.
    data_self_loop: Vec<bool>,
    /// Next free place of each source of the current graph.
    next_place: Vec<i32>,
    /// Positions and pairs, for networks in space.
    space: SpaceBuffers,
    /// Deviations of the store's graphs that have been computed already; always of the same options.
    deviations: Option<Arc<DeviationCache>>,
}

/// Bits of an extended CAN ID.
pub(super) const ID_BITS: u32 = 29;

/// An ID that stands for a hidden one where IDs are hashed: any extended CAN ID, chosen by `bits`.
pub fn any_id(bits: u64) -> u32 {
    (random::mix(bits) >> (64 - ID_BITS)) as u32
}

/// Sizes of a batch's tensors.
pub(super) struct Shape {
    vocabulary_size: i64,
    node_features: usize,
    edge_attributes: bool,
    /// Number of features of an edge.
    edge_features: usize,
    /// Number of targets of a graph.
    targets: usize,
    /// True if targets of graphs are exact.
    exact_targets: bool,
    /// Number of targets of a node.
    node_targets: usize,
    /// True if node features are copied; otherwise a tensor is passed in.
    copies_node_features: bool,
}

impl Shape {
    pub(super) fn new(vocabulary_size: i64, features: FeatureSet, edge_attributes: bool) -> Self {
        Self {
            vocabulary_size,
            node_features: features.node_features(),
            edge_attributes,
            edge_features: features.edge_features(),
            targets: features.targets(),
            exact_targets: features.target_rests() > 0,
            node_targets: features.node_targets(),
            copies_node_features: true,
        }
    }
}

/// The profile for the graph at this position of the batch, given the model's.
type ProfileOf<'a> = &'a dyn Fn(usize, &'a CarProfile) -> &'a CarProfile;

/// Maps a CAN ID to its vocabulary index, or returns an error text.
type RowOf<'a> = &'a dyn Fn(u32) -> Result<u32, String>;

impl Assembler {
    /// An assembler of batches of one store, always with the same options but for `unknown_drop`.
    pub(super) fn caching(deviations: Option<Arc<DeviationCache>>) -> Self {
        Self { deviations, ..Self::default() }
    }

    /// Makes a batch like [`assemble`].
    ///
    /// # Errors
    /// Those of [`assemble`].
    pub fn assemble(&mut self, store: &Store, graphs: &[u64], options: &AssembleOptions) -> Result<Batch, StoreError> {
        let views = graphs.iter().map(|&graph| store.try_graph(graph)).collect::<Result<Vec<_>, _>>()?;
        let in_place = store.node_features_in_place(graphs)?;
        let profile_of = |at: usize, of_model| store.profile_for(graphs[at], of_model, options.short_profiles);
        let batch = self.assemble_with(&views, graphs, in_place, store.features(), options, &profile_of);
        let mut batch = batch.map_err(|error| match error {
            // A store contains only graphs that fit a batch.
            StoreError::Graph { graph, detail } => store.damaged(graph, &detail),
            other => other,
        })?;
        if let Some(drop) = options.unknown_drop.filter(|drop| drop.views > 0) {
            batch.graph_index = keys_of_views(graphs, store.num_graphs(), |_| drop.view());
        }
        if let Some(displacement) = options.space.and_then(|space| space.displacement) {
            batch.graph_index = keys_of_views(graphs, store.num_graphs(), |graph| displacement.view(graph));
        }
        Ok(batch)
    }

    /// Makes a batch of all graphs of `columns`, which are not from a store; their positions are 0, 1, 2…
    ///
    /// # Errors
    /// Inconsistent columns, or no memory for the tensors.
    pub fn assemble_columns(&mut self, columns: &Columns, options: &AssembleOptions) -> Result<Batch, StoreError> {
        let views: Vec<GraphView<'_>> = (0..columns.num_graphs()).map(|graph| columns.graph(graph)).collect();
        let graphs: Vec<u64> = (0..views.len() as u64).collect();
        let options = AssembleOptions { unknown_drop: None, ..options.clone() };
        self.assemble_with(&views, &graphs, None, columns.features, &options, &|_, of_model| of_model)
    }

    fn assemble_with<'a>(
        &mut self,
        views: &[GraphView<'_>],
        graphs: &[u64],
        node_features: Option<Tensor>,
        features: FeatureSet,
        options: &'a AssembleOptions,
        profile_of: ProfileOf<'a>,
    ) -> Result<Batch, StoreError> {
        let vocabulary = &options.vocabulary;
        let mut shape = Shape::new(vocabulary.len() as i64, features, options.edge_attributes);
        shape.copies_node_features = node_features.is_none();
        self.fill(views, graphs, &shape, &|id| Ok(vocabulary.index_of(id)))?;
        let space = match &options.space {
            Some(space) => Some(Box::new(self.space(views, graphs, features, space)?)),
            None => None,
        };
        if features.needs_history() {
            let profile = options.profile.as_ref().ok_or(StoreError::NoProfile)?;
            self.continuous.clear();
            for (at, view) in views.iter().enumerate() {
                let compute = |rows: &mut Vec<f32>| profile_of(at, profile).append_deviations(view, rows);
                match &self.deviations {
                    Some(cache) => {
                        cache.append(graphs[at], view.num_nodes() * DEVIATIONS, &mut self.continuous, compute);
                    }
                    None => compute(&mut self.continuous),
                }
            }
            self.id_input.clear();
            self.id_input.resize(self.can_ids.len(), i64::from(Vocabulary::UNKNOWN));
            return self.tensors(graphs.to_vec(), None, space, &shape);
        }
        let dropped = options.unknown_drop.filter(|drop| drop.probability > 0.0);
        self.id_input.clear();
        if options.hashed_ids {
            self.id_input.extend(self.can_ids.iter().map(|&id| i64::from(id)));
        } else if dropped.is_some() {
            self.id_input.extend_from_slice(&self.id_index);
        }
        if let Some(drop) = &dropped {
            self.drop_ids(graphs, drop, options.hashed_ids);
        }
        self.tensors(graphs.to_vec(), node_features, space, &shape)
    }

    /// Positions of the graphs' nodes, and pairs of near ones.
    fn space(
        &mut self,
        views: &[GraphView<'_>],
        graphs: &[u64],
        features: FeatureSet,
        options: &SpaceOptions,
    ) -> Result<Space, StoreError> {
        self.space.clear();
        for (view, &graph) in views.iter().zip(graphs) {
            self.space.append(graph, view, options)?;
        }
        self.space.tensors(features.space(), options.paths)
    }

    /// Makes a batch of graphs that are not from a store; their positions are 0, 1, 2…
    pub(super) fn assemble_views(
        &mut self,
        views: &[GraphView<'_>],
        shape: &Shape,
        row_of: RowOf<'_>,
    ) -> Result<Batch, StoreError> {
        let graphs: Vec<u64> = (0..views.len() as u64).collect();
        self.fill(views, &graphs, shape, row_of)?;
        self.id_input.clear();
        self.tensors(graphs, None, None, shape)
    }

    fn fill(
        &mut self,
        views: &[GraphView<'_>],
        graphs: &[u64],
        shape: &Shape,
        row_of: RowOf<'_>,
    ) -> Result<(), StoreError> {
        self.reserve(views, shape)?;
        for (view, &graph) in views.iter().zip(graphs) {
            let error = |detail| StoreError::Graph { graph, detail };
            if let Some(detail) = view.inconsistency() {
                return Err(error(detail));
            }
            let first_node = self.can_ids.len();
            self.append_nodes(view, shape, row_of).map_err(error)?;
            self.append_rows(view, first_node, shape);
            self.append_columns(view, first_node);
            self.append_successors(view, first_node, shape.vocabulary_size);
        }
        Ok(())
    }

    fn reserve(&mut self, views: &[GraphView<'_>], shape: &Shape) -> Result<(), StoreError> {
        let nodes: usize = views.iter().map(GraphView::num_nodes).sum();
        let edges: usize = views.iter().map(GraphView::num_edges).sum();
        if nodes + edges > i32::MAX as usize {
            let value = format!("{} ({nodes} nodes, {edges} edges)", views.len());
            return Err(StoreError::Parameter { name: "batch_size", value, expected: "small enough for 2^31 edges" });
        }
        emptied(&mut self.can_ids, nodes);
        emptied(&mut self.id_index, nodes);
        emptied(&mut self.continuous, if shape.copies_node_features { nodes * shape.node_features } else { 0 });
        emptied(&mut self.row_pointers, nodes + 1).push(0);
        emptied(&mut self.sources, edges + nodes);
        emptied(&mut self.targets, edges + nodes);
        emptied(&mut self.column_pointers, nodes + 1).push(0);
        emptied(&mut self.transposed, edges + nodes);
        let attributes = if shape.edge_attributes { (edges + nodes) * shape.edge_features } else { 0 };
        emptied(&mut self.edge_attributes, attributes);
        emptied(&mut self.successors, edges + 1);
        emptied(&mut self.node_pointers, views.len() + 1).push(0);
        emptied(&mut self.graph_of_node, nodes);
        emptied(&mut self.labels, views.len());
        emptied(&mut self.targets_of_graphs, views.len() * shape.targets);
        emptied(&mut self.exact_targets, if shape.exact_targets { views.len() * shape.targets } else { 0 });
        let known = if shape.node_targets > 0 { nodes } else { 0 };
        emptied(&mut self.known_nodes, known);
        emptied(&mut self.known_targets, known * shape.node_targets);
        emptied(&mut self.known_pointers, views.len() + 1).push(0);
        Ok(())
    }

    fn append_nodes(&mut self, view: &GraphView<'_>, shape: &Shape, row_of: RowOf<'_>) -> Result<(), String> {
        let graph = self.labels.len() as i64;
        if shape.node_targets > 0 {
            for (node, values) in view.node_targets() {
                self.known_nodes.push((self.can_ids.len() + node) as i64);
                self.known_targets.extend_from_slice(values);
            }
            self.known_pointers.push(self.known_nodes.len() as u64);
        }
        for &id in view.can_ids {
            self.id_index.push(i64::from(row_of(id)?));
        }
        self.can_ids.extend_from_slice(view.can_ids);
        if shape.copies_node_features {
            self.continuous.extend_from_slice(view.node_features);
        }
        self.graph_of_node.resize(self.can_ids.len(), graph);
        self.node_pointers.push(self.can_ids.len() as i64);
        self.targets_of_graphs.extend_from_slice(view.targets_of_graph);
        if shape.exact_targets {
            self.exact_targets.extend(view.exact_targets());
        }
        self.labels.push(match view.targets_of_graph {
            [] => view.attack.into(),
            // Numbers of classes are small; other targets have no label.
            [first, ..] => *first as i64,
        });
        Ok(())
    }

    /// Appends edges by target: for each row the sources below the target, the self-loop, the sources above.
    fn append_rows(&mut self, view: &GraphView<'_>, first_node: usize, shape: &Shape) {
        let (base, width) = (first_node as i32, shape.edge_features);
        let nodes = view.num_nodes();
        let begin = self.sources.len();
        self.sources.resize(begin + view.num_edges() + nodes, 0);
        self.targets.resize(begin + view.num_edges() + nodes, 0);
        self.data_self_loop.clear();
        let mut row_begin = begin;
        for target in 0..nodes {
            let row = view.edges_of(target);
            let data = &view.sources[row.clone()];
            let sources = &mut self.sources[row_begin..row_begin + data.len() + 1];
            // Without branches, because rows are short and unpredictable. A self-loop of the data is written where the one
            // self-loop belongs, and the sources above follow it.
            let (mut below, mut others) = (0, 0);
            for &source in data {
                let source = source as usize;
                sources[others + usize::from(source > target)] = base + source as i32;
                below += usize::from(source < target);
                others += usize::from(source != target);
            }
            sources[below] = base + target as i32;
            let has_loop = others < data.len();
            self.data_self_loop.push(has_loop);
            self.targets[row_begin..row_begin + others + 1].fill(base + target as i32);
            row_begin += others + 1;
            self.row_pointers.push(row_begin as i32);

            if shape.edge_attributes {
                let features = &view.edge_features[row.start * width..row.end * width];
                let (before, rest) = features.split_at(below * width);
                let after = &rest[usize::from(has_loop) * width..];
                self.edge_attributes.extend_from_slice(before);
                append_mean_of_rows(before, after, width, &mut self.edge_attributes);
                self.edge_attributes.extend_from_slice(after);
            }
        }
        self.sources.truncate(row_begin);
        self.targets.truncate(row_begin);
    }

    /// Appends edges by source: counts them, sums the counts, and places the edges.
    fn append_columns(&mut self, view: &GraphView<'_>, first_node: usize) {
        let nodes = view.num_nodes();
        let first_edge = self.row_pointers[first_node];
        let edges = first_edge as usize..self.sources.len();
        emptied(&mut self.next_place, nodes).resize(nodes, 0);
        for &source in &self.sources[edges.clone()] {
            self.next_place[source as usize - first_node] += 1;
        }
        let mut end = first_edge;
        for place in &mut self.next_place {
            let count = std::mem::replace(place, end);
            end += count;
            self.column_pointers.push(end);
        }
        self.transposed.resize(edges.end, 0);
        for (edge, &source) in edges.clone().zip(&self.sources[edges]) {
            let place = &mut self.next_place[source as usize - first_node];
            self.transposed[*place as usize] = edge as i32;
            *place += 1;
        }
    }

    /// Appends the vocabulary indices that follow each node in the data. Known IDs are already ascending, like the nodes;
    /// several unknown ones share an index, so the few rows that are not strictly ascending are sorted and deduplicated.
    fn append_successors(&mut self, view: &GraphView<'_>, first_node: usize, vocabulary_size: i64) {
        let mut end = self.successors.len();
        // One place more than edges: a self-loop that the data does not have is written, then overwritten or cut off.
        self.successors.resize(end + view.num_edges() + 1, 0);
        for (source, &has_loop) in self.data_self_loop.iter().enumerate() {
            let node = first_node + source;
            let begin = end;
            let row = node as i64 * vocabulary_size;
            let mut last = row - 1;
            let mut ascending = true;
            let column = self.column_pointers[node] as usize..self.column_pointers[node + 1] as usize;
            for &edge in &self.transposed[column] {
                let target = self.targets[edge as usize] as usize;
                let is_data = target != node || has_loop;
                let successor = row + self.id_index[target];
                self.successors[end] = successor;
                end += usize::from(is_data);
                ascending &= !is_data || successor > last;
                last = if is_data { successor } else { last };
            }
            if !ascending {
                end = begin + sort_distinct(&mut self.successors[begin..end]);
            }
        }
        self.successors.truncate(end);
    }

    fn drop_ids(&mut self, graphs: &[u64], drop: &UnknownDrop, hashed: bool) {
        for (position, &graph) in graphs.iter().enumerate() {
            let key = random::bits(drop.seed, Purpose::UnknownDrop, drop.view(), graph);
            let nodes = self.node_pointers[position] as usize..self.node_pointers[position + 1] as usize;
            for (node, input) in self.id_input[nodes].iter_mut().enumerate() {
                let bits = random::mix(key ^ node as u64);
                if random::to_unit(bits) < drop.probability {
                    *input = i64::from(if hashed { any_id(bits) } else { Vocabulary::UNKNOWN });
                }
            }
        }
    }

    /// The targets of nodes, `count` of each.
    fn known_targets(&self, count: i64) -> Result<NodeTargets, StoreError> {
        let known = self.known_nodes.len() as i64;
        Ok(NodeTargets {
            nodes: tensor("nodes with targets", &self.known_nodes, &[known], Kind::Int64)?,
            values: tensor("targets of nodes", &self.known_targets, &[known, count], Kind::Float)?,
            pointers: Arc::new(self.known_pointers.clone()),
        })
    }

    /// Makes the tensors; `id_input` shares the tensor `id_index` if it was not filled.
    fn tensors(
        &self,
        graphs: Vec<u64>,
        node_features: Option<Tensor>,
        space: Option<Box<Space>>,
        shape: &Shape,
    ) -> Result<Batch, StoreError> {
        let (nodes, edges) = (self.can_ids.len() as i64, self.sources.len() as i64);
        let id_index = tensor("id_index", &self.id_index, &[nodes], Kind::Int64)?;
        let id_input = match self.id_input.is_empty() {
            false => tensor("id_input", &self.id_input, &[nodes], Kind::Int64)?,
            true => id_index.shallow_clone(),
        };
        let edge_attributes = match shape.edge_attributes {
            true => Some(tensor(
                "edge_attributes",
                &self.edge_attributes,
                &[edges, shape.edge_features as i64],
                Kind::Float,
            )?),
            false => None,
        };
        let adjacency = Adjacency {
            row_pointers: tensor("row_pointers", &self.row_pointers, &[nodes + 1], Kind::Int)?,
            sources: tensor("sources", &self.sources, &[edges], Kind::Int)?,
            targets: tensor("targets", &self.targets, &[edges], Kind::Int)?,
            column_pointers: tensor("column_pointers", &self.column_pointers, &[nodes + 1], Kind::Int)?,
            transposed: tensor("transposed", &self.transposed, &[edges], Kind::Int)?,
            components: Arc::default(),
        };
        let continuous = match node_features {
            Some(tensor) => tensor,
            None => tensor("continuous", &self.continuous, &[nodes, shape.node_features as i64], Kind::Float)?,
        };
        let num_graphs = self.labels.len() as i64;
        Ok(Batch {
            graph_index: Arc::new(graphs),
            can_ids: Arc::new(self.can_ids.clone()),
            id_index,
            id_input,
            continuous,
            adjacency,
            edge_attributes,
            successors: tensor("successors", &self.successors, &[self.successors.len() as i64], Kind::Int64)?,
            vocabulary_size: shape.vocabulary_size,
            node_pointers: tensor("node_pointers", &self.node_pointers, &[num_graphs + 1], Kind::Int64)?,
            graph_of_node: tensor("graph_of_node", &self.graph_of_node, &[nodes], Kind::Int64)?,
            labels: tensor("labels", &self.labels, &[num_graphs], Kind::Int64)?,
            targets: match shape.targets {
                0 => None,
                count if shape.exact_targets => {
                    Some(tensor("targets", &self.exact_targets, &[num_graphs, count as i64], Kind::Double)?)
                }
                count => Some(tensor("targets", &self.targets_of_graphs, &[num_graphs, count as i64], Kind::Float)?),
            },
            node_targets: match shape.node_targets {
                0 => None,
                count => Some(Box::new(self.known_targets(count as i64)?)),
            },
            neighbourhood: None,
            space,
            real: None,
            padded_form: None,
            memory: None,
        })
    }
}

fn emptied<T>(buffer: &mut Vec<T>, capacity: usize) -> &mut Vec<T> {
    buffer.clear();
    buffer.reserve(capacity);
    buffer
}

/// Sorts the values, moves the distinct ones to the front and returns their number.
pub(super) fn sort_distinct(values: &mut [i64]) -> usize {
    values.sort_unstable();
    let mut kept = 0;
    for position in 0..values.len() {
        if kept == 0 || values[kept - 1] != values[position] {
            values[kept] = values[position];
            kept += 1;
        }
    }
    kept
}

/// Appends the mean of rows of `width` values; zeros without rows.
fn append_mean_of_rows(before: &[f32], after: &[f32], width: usize, means: &mut Vec<f32>) {
    if width == 0 {
        return;
    }
    let begin = means.len();
    means.resize(begin + width, 0.0);
    let mean = &mut means[begin..];
    let rows = (before.len() + after.len()) / width;
    for row in before.chunks_exact(width).chain(after.chunks_exact(width)) {
        mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    if rows > 0 {
        mean.iter_mut().for_each(|sum| *sum /= rows as f32);
    }
}

pub(crate) fn tensor<T: Pod>(name: &'static str, values: &[T], size: &[i64], kind: Kind) -> Result<Tensor, StoreError> {
    Tensor::f_from_data_size(bytemuck::cast_slice(values), size, kind)
        .map_err(|source| StoreError::Tensor { tensor: name, source })
}
