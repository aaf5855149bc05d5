//! Selection of some graphs of a batch, for which the teacher runs when the others are cached.

use std::ops::Range;
use std::sync::Arc;

use tch::{Kind, TchError, Tensor};

use crate::{Adjacency, Batch, NodeTargets};

impl Batch {
    /// A batch of the graphs at `positions`, in that order, equal to the batch assembled from them alone. The host reads
    /// pointers and successors, so on a GPU this synchronises.
    pub fn select_graphs(&self, positions: &[usize]) -> Result<Batch, TchError> {
        let node_pointers = integers(&self.node_pointers)?;
        let nodes = Runs::new(positions.iter().map(|&graph| node_pointers[graph]..node_pointers[graph + 1]));
        let edges = nodes.rows(&self.adjacency.row_pointers)?;
        let successors = self.successor_runs(&nodes)?;
        let take = |tensor: &Tensor, runs: &Runs| tensor.f_index_select(0, &runs.index(tensor)?);
        let edge_attributes = self.edge_attributes.as_ref().map(|tensor| take(tensor, &edges)).transpose()?;
        let rows: Vec<i64> = positions.iter().map(|&graph| graph as i64).collect();
        let rows = Tensor::f_from_slice(&rows)?.f_to_device(self.labels.device())?;
        Ok(Batch {
            graph_index: Arc::new(positions.iter().map(|&graph| self.graph_index[graph]).collect()),
            can_ids: Arc::new(nodes.ranges.iter().flat_map(|nodes| &self.can_ids[as_usize(nodes)]).copied().collect()),
            id_index: take(&self.id_index, &nodes)?,
            id_input: take(&self.id_input, &nodes)?,
            continuous: take(&self.continuous, &nodes)?,
            adjacency: select_adjacency(&self.adjacency, &nodes, &edges)?,
            edge_attributes,
            successors: take(&self.successors, &successors)?
                .f_sub(&(nodes.shift_by_run(&successors, &self.successors)? * self.vocabulary_size))?,
            vocabulary_size: self.vocabulary_size,
            node_pointers: nodes.pointers(&self.node_pointers)?,
            graph_of_node: nodes.number_of_run(&self.graph_of_node)?,
            labels: self.labels.f_index_select(0, &rows)?,
            targets: self.targets.as_ref().map(|targets| targets.f_index_select(0, &rows)).transpose()?,
            node_targets: self
                .node_targets
                .as_ref()
                .map(|targets| targets.select_graphs(positions, &nodes).map(Box::new))
                .transpose()?,
            neighbourhood: self
                .neighbourhood
                .as_ref()
                .map(|part| part.select_seeds(&rows).map(Box::new))
                .transpose()?,
            space: self.space.as_ref().map(|space| space.select(&nodes).map(Box::new)).transpose()?,
            real: None,
            padded_form: None,
            memory: None,
        })
    }

    /// Successor pairs of each run of nodes; pairs ascend by node, so those of a run are contiguous.
    fn successor_runs(&self, nodes: &Runs) -> Result<Runs, TchError> {
        let pairs = integers(&self.successors)?;
        let first = |node: i64| pairs.partition_point(|pair| *pair < node * self.vocabulary_size) as i64;
        Ok(Runs::new(nodes.ranges.iter().map(|nodes| first(nodes.start)..first(nodes.end))))
    }
}

impl NodeTargets {
    /// The targets of the graphs at `positions`, whose nodes are `nodes`.
    fn select_graphs(&self, positions: &[usize], nodes: &Runs) -> Result<Self, TchError> {
        let rows = |graph: usize| self.pointers[graph] as i64..self.pointers[graph + 1] as i64;
        let rows = Runs::new(positions.iter().map(|&graph| rows(graph)));
        let take = |tensor: &Tensor| tensor.f_index_select(0, &rows.index(tensor)?);
        Ok(Self {
            nodes: take(&self.nodes)?.f_sub(&nodes.shift_by_run(&rows, &self.nodes)?)?,
            values: take(&self.values)?,
            pointers: Arc::new(rows.starts.iter().map(|&row| row as u64).collect()),
        })
    }
}

fn select_adjacency(adjacency: &Adjacency, nodes: &Runs, edges: &Runs) -> Result<Adjacency, TchError> {
    let take = |tensor: &Tensor| tensor.f_index_select(0, &edges.index(tensor)?);
    let moved = |tensor: &Tensor| take(tensor)?.f_sub(&nodes.shift_by_run(edges, tensor)?);
    Ok(Adjacency {
        row_pointers: counts_to_pointers(&adjacency.row_pointers, nodes)?,
        sources: moved(&adjacency.sources)?,
        targets: moved(&adjacency.targets)?,
        column_pointers: counts_to_pointers(&adjacency.column_pointers, nodes)?,
        // A graph's edges by source occupy the same positions as its edges by target.
        transposed: take(&adjacency.transposed)?.f_sub(&edges.shift_by_run(edges, &adjacency.transposed)?)?,
        components: Arc::default(),
    })
}

/// Row pointers of the selected nodes, from their edge counts.
pub(super) fn counts_to_pointers(pointers: &Tensor, nodes: &Runs) -> Result<Tensor, TchError> {
    let old = integers(pointers)?;
    let mut new = vec![0i64];
    for node in nodes.ranges.iter().cloned().flatten() {
        new.push(new[new.len() - 1] + old[node as usize + 1] - old[node as usize]);
    }
    like(&new, pointers)
}

/// Runs of consecutive elements that are selected one after another.
pub(super) struct Runs {
    ranges: Vec<Range<i64>>,
    /// Start of each run among the selected elements, followed by their number.
    starts: Vec<i64>,
}

impl Runs {
    fn new(ranges: impl Iterator<Item = Range<i64>>) -> Self {
        let ranges: Vec<_> = ranges.collect();
        let mut starts = vec![0];
        for range in &ranges {
            starts.push(starts[starts.len() - 1] + range.end - range.start);
        }
        Self { ranges, starts }
    }

    /// The rows of these runs of nodes, by the pointers to the rows of each node.
    pub fn rows(&self, pointers: &Tensor) -> Result<Self, TchError> {
        let rows = integers(pointers)?;
        Ok(Self::new(self.ranges.iter().map(|nodes| rows[nodes.start as usize]..rows[nodes.end as usize])))
    }

    /// The positions of the elements, as an index for `of`.
    pub fn index(&self, of: &Tensor) -> Result<Tensor, TchError> {
        let index: Vec<i64> = self.ranges.iter().cloned().flatten().collect();
        Tensor::f_from_slice(&index)?.f_to_device(of.device())
    }

    fn pointers(&self, of: &Tensor) -> Result<Tensor, TchError> {
        like(&self.starts, of)
    }

    fn number_of_run(&self, of: &Tensor) -> Result<Tensor, TchError> {
        self.spread(self, |run| run as i64, of)
    }

    /// For each element of `elements`, whose runs correspond to these: the distance by which the run moved forward.
    pub fn shift_by_run(&self, elements: &Runs, of: &Tensor) -> Result<Tensor, TchError> {
        self.spread(elements, |run| self.ranges[run].start - self.starts[run], of)
    }

    fn spread(&self, elements: &Runs, value: impl Fn(usize) -> i64, of: &Tensor) -> Result<Tensor, TchError> {
        let each = elements.ranges.iter().enumerate();
        let values: Vec<i64> =
            each.flat_map(|(run, range)| std::iter::repeat_n(value(run), as_usize(range).len())).collect();
        like(&values, of)
    }
}

fn as_usize(range: &Range<i64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

fn like(values: &[i64], tensor: &Tensor) -> Result<Tensor, TchError> {
    Tensor::f_from_slice(values)?.f_to_kind(tensor.f_kind()?)?.f_to_device(tensor.device())
}

fn integers(tensor: &Tensor) -> Result<Vec<i64>, TchError> {
    Vec::try_from(tensor.f_to_kind(Kind::Int64)?)
}
