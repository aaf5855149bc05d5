//! Graphs as plain arrays (node features, `edge_index`, pointers), the format of PyTorch programs.
//!
//! Training does not use this format; it serves comparisons with reference values and other programs. The first column of
//! `x` is the vocabulary index, the others are the continuous features.

use std::collections::HashMap;
use std::path::Path;

use kdgat_base::files;
use safetensors::tensor::{Dtype, TensorView};
use tch::{Kind, Tensor};

use super::assemble::{Assembler, Shape};
use super::columns::Columns;
use super::{Batch, EDGE_FEATURES, FeatureSet, Store, StoreError};

/// Arrays of several concatenated graphs.
#[derive(Debug, Clone, Copy)]
pub struct EdgeList<'a> {
    /// `[num_nodes]`: vocabulary index of each node's ID.
    pub id_index: &'a [u32],
    /// `[num_nodes, node features]`; the width selects the feature set.
    pub continuous: &'a [f32],
    /// `[num_edges]`: source of each edge, numbered over all graphs.
    pub sources: &'a [i64],
    /// `[num_edges]`: target of each edge, numbered over all graphs.
    pub targets: &'a [i64],
    /// `[num_edges, EDGE_FEATURES]`, in the order of `sources`.
    pub edge_attributes: Option<&'a [f32]>,
    /// `[num_graphs + 1]`: nodes of graph `g` are `node_pointers[g]..node_pointers[g + 1]`.
    pub node_pointers: &'a [i64],
    /// `[num_graphs]`: 1 for an attack, else 0.
    pub labels: &'a [i64],
    /// Size of the vocabulary, including UNKNOWN.
    pub vocabulary_size: i64,
}

/// Makes one batch of all graphs of the list. Its CAN IDs are the vocabulary indices.
///
/// # Errors
/// [`StoreError::EdgeList`] when lengths differ or an index is out of range.
pub fn from_edge_list(list: &EdgeList<'_>) -> Result<Batch, StoreError> {
    let columns =
        columns_of(list).map_err(|detail| StoreError::EdgeList { origin: "in memory".to_string(), detail })?;
    let graphs: Vec<usize> = (0..columns.num_graphs()).collect();
    batch_of(&columns, &graphs, list.vocabulary_size, list.edge_attributes.is_some())
}

/// Graphs of a safetensors file with `x`, `edge_index`, `ptr` or `node_ptr`, `y`, and optionally `edge_attr`
/// and `edge_ptr` (with `edge_ptr`, `edge_index` is numbered within each graph, else over all graphs).
#[derive(Debug)]
pub struct EdgeListFile {
    columns: Columns,
    has_edge_attributes: bool,
}

impl EdgeListFile {
    /// Reads the whole file.
    ///
    /// # Errors
    /// [`StoreError::EdgeList`] when the file cannot be read, a tensor is missing, or shapes do not match.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let error = |detail| StoreError::EdgeList { origin: path.display().to_string(), detail };
        let tensors = Tensor::read_safetensors(path).map_err(|source| error(source.to_string()))?;
        Self::from_tensors(&tensors.into_iter().collect()).map_err(error)
    }

    fn from_tensors(tensors: &HashMap<String, Tensor>) -> Result<Self, String> {
        let find = |name: &str| tensors.get(name).ok_or_else(|| format!("has no tensor {name}"));
        let (x, edge_index, labels) = (find("x")?, find("edge_index")?, find("y")?);
        let node_pointers = integers(find("node_ptr").or_else(|_| find("ptr"))?)?;
        let width = x.size().get(1).map_or(0, |&columns| columns - 1);
        if x.dim() != 2 || FeatureSet::of_width(width.max(0) as usize).is_none() {
            return Err(format!("x has shape {:?}, expected [nodes, 11] or [nodes, 36]", x.size()));
        }
        if edge_index.dim() != 2 || edge_index.size()[0] != 2 {
            return Err(format!("edge_index has shape {:?}, expected [2, edges]", edge_index.size()));
        }
        let id_index: Vec<u32> = integers(&x.select(1, 0))?.into_iter().map(|index| index as u32).collect();
        let (mut sources, mut targets) = (integers(&edge_index.get(0))?, integers(&edge_index.get(1))?);
        if let Some(edge_pointers) = tensors.get("edge_ptr") {
            let edge_pointers = integers(edge_pointers)?;
            for (edges, &first_node) in edge_pointers.windows(2).zip(&node_pointers) {
                let edges = edges[0] as usize..edges[1] as usize;
                let both = (sources.get_mut(edges.clone()), targets.get_mut(edges));
                let (Some(sources), Some(targets)) = both else {
                    return Err("edge_ptr points past the last edge".to_string());
                };
                sources.iter_mut().chain(targets).for_each(|node| *node += first_node);
            }
        }
        let edge_attributes = tensors.get("edge_attr").map(floats).transpose()?;
        let columns = columns_of(&EdgeList {
            id_index: &id_index,
            continuous: &floats(&x.narrow(1, 1, width))?,
            sources: &sources,
            targets: &targets,
            edge_attributes: edge_attributes.as_deref(),
            node_pointers: &node_pointers,
            labels: &integers(labels)?,
            vocabulary_size: i64::MAX,
        })?;
        Ok(Self { columns, has_edge_attributes: edge_attributes.is_some() })
    }

    /// Number of graphs in the file.
    pub fn num_graphs(&self) -> usize {
        self.columns.num_graphs()
    }

    /// The graphs in the layout of a store's shard.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Makes a batch of the graphs at these positions, with edge attributes if the file has them.
    ///
    /// # Errors
    /// [`StoreError::Graph`] when a vocabulary index is not below `vocabulary_size`; [`StoreError::Tensor`] when out of memory.
    ///
    /// # Panics
    /// When a position is out of range.
    pub fn batch(&self, graphs: &[usize], vocabulary_size: i64) -> Result<Batch, StoreError> {
        batch_of(&self.columns, graphs, vocabulary_size, self.has_edge_attributes)
    }
}

/// Writes graphs of a store to a file that [`EdgeListFile`] and PyTorch programs read: `x`, `edge_index` (numbered within each
/// graph), `node_ptr`, `edge_ptr`, `y`. The same graphs give the same bytes.
///
/// # Errors
/// [`StoreError::EdgeList`] when the file cannot be written; the error of [`Store::try_graph`] for a position out of range.
pub fn write(store: &Store, graphs: &[u64], path: &Path) -> Result<(), StoreError> {
    let vocabulary = store.vocabulary();
    let (mut x, mut sources, mut targets) = (Vec::new(), Vec::new(), Vec::new());
    let (mut node_pointers, mut edge_pointers, mut labels) = (vec![0i64], vec![0i64], Vec::new());
    let width = store.features().node_features();
    for &graph in graphs {
        let view = store.try_graph(graph)?;
        let features = store.node_features_of(&view)?;
        for (&can_id, features) in view.can_ids.iter().zip(features.chunks_exact(width)) {
            x.push(vocabulary.index_of(can_id) as f32);
            x.extend_from_slice(features);
        }
        sources.extend(view.sources.iter().map(|&node| i32::from(node)));
        targets.extend(view.targets.iter().map(|&node| i32::from(node)));
        node_pointers.push(node_pointers[node_pointers.len() - 1] + view.can_ids.len() as i64);
        edge_pointers.push(sources.len() as i64);
        labels.push(i32::from(view.attack));
    }
    let both: Vec<i32> = [sources, targets].concat();
    let tensors: [(&str, Dtype, Vec<usize>, &[u8]); 5] = [
        ("x", Dtype::F32, vec![x.len() / (1 + width), 1 + width], bytemuck::cast_slice(&x)),
        ("edge_index", Dtype::I32, vec![2, both.len() / 2], bytemuck::cast_slice(&both)),
        ("node_ptr", Dtype::I64, vec![node_pointers.len()], bytemuck::cast_slice(&node_pointers)),
        ("edge_ptr", Dtype::I64, vec![edge_pointers.len()], bytemuck::cast_slice(&edge_pointers)),
        ("y", Dtype::I32, vec![labels.len()], bytemuck::cast_slice(&labels)),
    ];
    let failed = |detail: String| StoreError::EdgeList { origin: path.display().to_string(), detail };
    let views: Result<Vec<_>, _> = tensors
        .into_iter()
        .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(dtype, shape, bytes)?)))
        .collect();
    let file = views.and_then(|views| safetensors::serialize(views, None));
    let file = file.map_err(|error| failed(error.to_string()))?;
    files::write_atomically(path, &file).map_err(|error| failed(format!("cannot be written: {error}")))
}

fn batch_of(
    columns: &Columns,
    graphs: &[usize],
    vocabulary_size: i64,
    edge_attributes: bool,
) -> Result<Batch, StoreError> {
    let views: Vec<_> = graphs.iter().map(|&graph| columns.graph(graph)).collect();
    let shape = Shape::new(vocabulary_size, columns.features, edge_attributes);
    let row_of = |id: u32| match i64::from(id) < vocabulary_size {
        true => Ok(id),
        false => Err(format!("vocabulary index {id} of a node is not below {vocabulary_size}")),
    };
    let mut batch = Assembler::default().assemble_views(&views, &shape, &row_of)?;
    batch.graph_index = std::sync::Arc::new(graphs.iter().map(|&graph| graph as u64).collect());
    Ok(batch)
}

/// Checks the list and sorts the edges of each graph by target, then source.
fn columns_of(list: &EdgeList<'_>) -> Result<Columns, String> {
    let nodes = list.id_index.len();
    let features = match FeatureSet::of_width(list.continuous.len() / nodes.max(1)) {
        Some(features) => features,
        None => FeatureSet::Window,
    };
    check_length("continuous", list.continuous.len(), nodes * features.node_features())?;
    check_length("targets", list.targets.len(), list.sources.len())?;
    if let Some(attributes) = list.edge_attributes {
        check_length("edge_attributes", attributes.len(), list.sources.len() * EDGE_FEATURES)?;
    }
    check_length("node_pointers", list.node_pointers.len(), list.labels.len() + 1)?;
    let pointers = list.node_pointers;
    if pointers.first() != Some(&0) || pointers.last() != Some(&(nodes as i64)) || !pointers.is_sorted() {
        return Err(format!("node pointers do not ascend from 0 to {nodes}"));
    }
    let mut order: Vec<usize> = (0..list.sources.len()).collect();
    order.sort_by_key(|&edge| (list.targets[edge], list.sources[edge]));
    let mut columns = Columns::new(features);
    let mut remaining = order.as_slice();
    for (span, &label) in pointers.windows(2).zip(list.labels) {
        let count = remaining.partition_point(|&edge| list.targets[edge] < span[1]);
        append_graph(&mut columns, list, span[0]..span[1], &remaining[..count])?;
        columns.finish_graph(label != 0, 0, 0, 0.0);
        remaining = &remaining[count..];
    }
    match remaining.first() {
        Some(&edge) => Err(format!("edge {edge} leads to node {} of {nodes}", list.targets[edge])),
        None => Ok(columns),
    }
}

fn append_graph(
    columns: &mut Columns,
    list: &EdgeList<'_>,
    span: std::ops::Range<i64>,
    edges: &[usize],
) -> Result<(), String> {
    let (begin, end) = (span.start as usize, span.end as usize);
    if end - begin > usize::from(u16::MAX) || edges.len() > usize::from(u16::MAX) {
        return Err(format!("a graph has {} nodes and {} edges, at most 65535 fit", end - begin, edges.len()));
    }
    columns.can_ids.extend_from_slice(&list.id_index[begin..end]);
    columns.attack_free.resize(columns.can_ids.len(), 1);
    let width = columns.features.node_features();
    columns.node_features.extend_from_slice(&list.continuous[begin * width..end * width]);
    let mut rows = vec![0u16; end - begin + 1];
    for &edge in edges {
        let (source, target) = (list.sources[edge], list.targets[edge]);
        if !span.contains(&source) || !span.contains(&target) {
            return Err(format!("edge {edge} from {source} to {target} leaves the graph of nodes {span:?}"));
        }
        columns.sources.push((source - span.start) as u16);
        columns.targets.push((target - span.start) as u16);
        rows[(target - span.start) as usize + 1] += 1;
        match list.edge_attributes {
            Some(all) => {
                columns.edge_features.extend_from_slice(&all[edge * EDGE_FEATURES..(edge + 1) * EDGE_FEATURES])
            }
            None => columns.edge_features.extend_from_slice(&[0.0; EDGE_FEATURES]),
        }
    }
    for node in 1..rows.len() {
        rows[node] += rows[node - 1];
    }
    columns.row_pointers.extend_from_slice(&rows);
    Ok(())
}

fn check_length(name: &str, found: usize, expected: usize) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{name} has {found} values, expected {expected}")),
    }
}

fn integers(tensor: &Tensor) -> Result<Vec<i64>, String> {
    let flat = tensor.to_kind(Kind::Int64).contiguous().view([-1]);
    Vec::try_from(&flat).map_err(|source: tch::TchError| source.to_string())
}

fn floats(tensor: &Tensor) -> Result<Vec<f32>, String> {
    let flat = tensor.to_kind(Kind::Float).contiguous().view([-1]);
    Vec::try_from(&flat).map_err(|source: tch::TchError| source.to_string())
}
