//! The part of one large graph that a model reads to compute the outputs of some of its nodes, the seeds.
//!
//! In a [`Batch`](super::Batch) of seeds, each seed counts as a graph of one node, so that targets, caches and metrics
//! work by row as they do for whole graphs; the features and edges that a model reads are here.

use kdgat_torch::view;
use tch::{Device, TchError, Tensor};

use super::Adjacency;
use super::batch::infallible;

/// Features and edges around the seeds of a batch.
#[derive(Debug)]
pub struct Neighbourhood {
    /// Features of the nodes that the first layer reads.
    pub features: NodeFeatures,
    /// Edges of each layer that sends messages, in the order of the layers; empty for a model without messages.
    ///
    /// Layer `l` reads [`Adjacency::num_sources`] rows and computes [`Adjacency::num_targets`] rows: its targets are the
    /// first rows of its sources, in the same order, and the sources of layer `l + 1`.
    pub layers: Vec<Adjacency>,
    /// For each of `layers`, `[num_sources]`, f32: number of edges that lead to each source in the whole graph, plus 1 for
    /// the node itself. Empty if the model does not need them, or if `layers` have all edges of their nodes and are square:
    /// then they are counted there. GCN and APPNP normalise by them, on blocks of sampled or of all neighbours.
    pub source_degrees: Vec<Tensor>,
    /// `[num_seeds]`, i64: row of each seed in the last layer's output. `None`: the seeds are its rows, in order.
    pub seeds: Option<Tensor>,
    /// The nodes of the whole graph whose rows this process computes, if there are several; the rows of `seeds` are numbers in the graph then.
    /// `features` have their rows alone, and each layer computes them from the rows of all nodes, its own first.
    pub own: Option<OwnRows>,
}

/// The nodes of one graph whose rows one of several processes computes: as many nodes in a row as other processes have, the last one fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRows {
    /// The first node.
    pub first: i64,
    /// Number of these nodes.
    pub count: i64,
    /// Number of nodes of each process but the last.
    pub stride: i64,
    /// Number of nodes of the graph.
    pub nodes: i64,
    /// Number of edges to the nodes before the first one, a self-loop of each included.
    pub edges_before: i64,
}

impl OwnRows {
    /// The nodes of process `rank` of `size`, of a graph whose edges to node `v` end at `row_pointers[v + 1]`; `None` if a process would have
    /// no nodes.
    pub fn of<P: Copy + Into<u64>>(row_pointers: &[P], (rank, size): (usize, usize)) -> Option<Self> {
        let nodes = row_pointers.len().saturating_sub(1);
        let stride = nodes.div_ceil(size.max(1));
        let first = rank * stride;
        if (size - 1) * stride >= nodes {
            return None;
        }
        Some(Self {
            first: first as i64,
            count: stride.min(nodes - first) as i64,
            stride: stride as i64,
            nodes: nodes as i64,
            edges_before: row_pointers[first].into() as i64 + first as i64,
        })
    }

    /// The row of a node among those of all, this process's first.
    pub fn row_of(self, node: i64) -> i64 {
        let end = self.first + self.count;
        match node {
            own if own >= self.first && own < end => own - self.first,
            before if before < self.first => before + self.count,
            after => after,
        }
    }
}

/// Features of nodes.
#[derive(Debug)]
pub enum NodeFeatures {
    /// `[num_nodes, columns]`, f32.
    Dense(Tensor),
    /// Rows with few values that are not zero, such as bags of words.
    Sparse(SparseRows),
}

/// A sparse matrix, `[num_rows, columns]`, by row and by column.
#[derive(Debug)]
pub struct SparseRows {
    /// Number of columns.
    pub columns: i64,
    /// `[num_rows + 1]`, i32: values of row `i` are `row_pointers[i]..row_pointers[i + 1]`.
    pub row_pointers: Tensor,
    /// `[num_values]`, i32: column of each value, ascending in each row.
    pub column_index: Tensor,
    /// `[num_values]`, f32.
    pub values: Tensor,
    /// `[columns + 1]`, i32: values of column `j` are `column_pointers[j]..column_pointers[j + 1]` of the next two.
    pub column_pointers: Tensor,
    /// `[num_values]`, i32: row of each value in the order of columns, ascending in each column.
    pub row_index: Tensor,
    /// `[num_values]`, f32: the values in the order of columns.
    pub transposed_values: Tensor,
}

impl SparseRows {
    /// A matrix from its rows; computes the order by column.
    ///
    /// # Errors
    /// Those of libtorch, or inconsistent lengths.
    pub fn new(columns: usize, row_pointers: &[i32], column_index: &[i32], values: &[f32]) -> Result<Self, TchError> {
        let found = row_pointers.last().map_or(0, |&end| end as usize);
        if found != values.len() || column_index.len() != values.len() {
            let text =
                format!("{found} values by row pointers, {} columns, {} values", column_index.len(), values.len());
            return Err(TchError::Shape(text));
        }
        let mut column_pointers = vec![0i32; columns + 1];
        for &column in column_index {
            column_pointers[column as usize + 1] += 1;
        }
        (0..columns).for_each(|column| column_pointers[column + 1] += column_pointers[column]);
        let mut next = column_pointers.clone();
        let (mut row_index, mut transposed) = (vec![0i32; values.len()], vec![0f32; values.len()]);
        for (row, ends) in row_pointers.windows(2).enumerate() {
            for at in ends[0] as usize..ends[1] as usize {
                let place = &mut next[column_index[at] as usize];
                row_index[*place as usize] = row as i32;
                transposed[*place as usize] = values[at];
                *place += 1;
            }
        }
        Ok(Self {
            columns: columns as i64,
            row_pointers: Tensor::f_from_slice(row_pointers)?,
            column_index: Tensor::f_from_slice(column_index)?,
            values: Tensor::f_from_slice(values)?,
            column_pointers: Tensor::f_from_slice(&column_pointers)?,
            row_index: Tensor::f_from_slice(&row_index)?,
            transposed_values: Tensor::f_from_slice(&transposed)?,
        })
    }

    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        match self.try_map(&mut |tensor| Ok::<_, std::convert::Infallible>(tensor.shallow_clone())) {
            Ok(copy) => copy,
            Err(never) => match never {},
        }
    }

    /// Number of rows.
    pub fn num_rows(&self) -> i64 {
        (self.row_pointers.size()[0] - 1).max(0)
    }

    /// The matrix with all its zeros, `[num_rows, columns]`, f32.
    ///
    /// # Errors
    /// Those of libtorch, out of memory included.
    pub fn to_dense(&self) -> Result<Tensor, TchError> {
        let [pointers, columns] =
            [&self.row_pointers, &self.column_index].map(|tensor| tensor.f_to_device(Device::Cpu));
        let (pointers, columns, values) = (pointers?, columns?, self.values.f_to_device(Device::Cpu)?);
        let mut dense = Tensor::f_zeros([self.num_rows(), self.columns], (tch::Kind::Float, Device::Cpu))?;
        {
            let rows = view::write::<f32>("dense", &mut dense)?.chunks_exact_mut(self.columns.max(1) as usize);
            let (pointers, columns) =
                (view::read::<i32>("pointers", &pointers)?, view::read::<i32>("columns", &columns)?);
            let values = view::read::<f32>("values", &values)?;
            for (row, ends) in rows.zip(pointers.windows(2)) {
                for at in ends[0] as usize..ends[1] as usize {
                    row[columns[at] as usize] = values[at];
                }
            }
        }
        dense.f_to_device(self.values.device())
    }

    fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self {
            columns: self.columns,
            row_pointers: tensor(&self.row_pointers)?,
            column_index: tensor(&self.column_index)?,
            values: tensor(&self.values)?,
            column_pointers: tensor(&self.column_pointers)?,
            row_index: tensor(&self.row_index)?,
            transposed_values: tensor(&self.transposed_values)?,
        })
    }
}

impl NodeFeatures {
    /// Number of nodes.
    pub fn num_rows(&self) -> i64 {
        match self {
            Self::Dense(rows) => rows.size()[0],
            Self::Sparse(rows) => rows.num_rows(),
        }
    }

    /// A copy on `device`.
    ///
    /// # Errors
    /// When the device is out of memory or does not exist.
    pub fn to_device(&self, device: Device) -> Result<Self, TchError> {
        self.try_map(&mut |tensor| tensor.f_to_device(device))
    }

    /// Number of features.
    pub fn columns(&self) -> i64 {
        match self {
            Self::Dense(rows) => rows.size().get(1).copied().unwrap_or(0),
            Self::Sparse(rows) => rows.columns,
        }
    }

    fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(match self {
            Self::Dense(rows) => Self::Dense(tensor(rows)?),
            Self::Sparse(rows) => Self::Sparse(rows.try_map(tensor)?),
        })
    }
}

impl Neighbourhood {
    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        infallible(self.try_map(&mut |tensor| Ok(tensor.shallow_clone())))
    }

    pub(super) fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self {
            features: self.features.try_map(tensor)?,
            layers: self.layers.iter().map(|layer| layer.try_map(tensor)).collect::<Result<_, E>>()?,
            source_degrees: self.source_degrees.iter().map(&mut *tensor).collect::<Result<_, E>>()?,
            seeds: self.seeds.as_ref().map(&mut *tensor).transpose()?,
            own: self.own,
        })
    }

    /// The same features and edges for fewer seeds, given by their positions in the batch.
    pub(super) fn select_seeds(&self, positions: &Tensor) -> Result<Self, TchError> {
        let copy = self.shallow_clone();
        let seeds = match &self.seeds {
            Some(seeds) => seeds.f_index_select(0, positions)?,
            None => positions.shallow_clone(),
        };
        Ok(Self { seeds: Some(seeds), ..copy })
    }
}
