//! The bytes of a graph's record, and targets of a batch as bytes.
//!
//! A record consists of the graph's rows of every target, one target after the other, and a CRC-32 of its graph's number and those
//! bytes. Its offset follows from the node counts of all graphs before it, so records can be written in any order and found
//! without a search.

use std::sync::Arc;

use kdgat_torch::rows::{Blocks, Pieces, Place, Rows};
use kdgat_torch::view;
use tch::{Device, Kind, Tensor};

use crate::targets::{Per, TargetLayout, TargetRows, Targets};

use super::places::{Places, rows_before};
use super::{CacheError, Precision};

pub(super) const CHECKSUM_BYTES: usize = 4;

/// Offsets and lengths of the records of a store's graphs.
#[derive(Debug, Clone)]
pub struct RecordLayout {
    /// The targets of a record.
    pub targets: TargetLayout,
    /// Precision of the values.
    pub precision: Precision,
    /// Number of nodes before each graph, then of all graphs, `[num_graphs + 1]`.
    node_starts: Arc<Vec<u64>>,
}

impl RecordLayout {
    /// Computes the layout from the graphs' node counts.
    pub fn new(targets: TargetLayout, precision: Precision, node_counts: &[u32]) -> Self {
        let mut node_starts = Vec::with_capacity(node_counts.len() + 1);
        node_starts.push(0u64);
        for count in node_counts {
            node_starts.push(node_starts[node_starts.len() - 1] + u64::from(*count));
        }
        Self { targets, precision, node_starts: Arc::new(node_starts) }
    }

    /// Number of graphs in the store.
    pub fn graphs(&self) -> u64 {
        self.node_starts.len() as u64 - 1
    }

    /// Number of nodes of a graph.
    pub fn nodes(&self, graph: u64) -> Result<usize, CacheError> {
        match self.node_starts.get(graph as usize..).and_then(|rest| rest.first_chunk::<2>()) {
            Some([start, end]) => Ok((end - start) as usize),
            None => Err(CacheError::UnknownGraph { graph, graphs: self.graphs() }),
        }
    }

    /// First node of each of `graphs` when they are concatenated, then the total, `[graphs + 1]`.
    fn node_starts_of(&self, graphs: &[u64]) -> Result<Vec<usize>, CacheError> {
        let mut node_starts = Vec::with_capacity(graphs.len() + 1);
        node_starts.push(0);
        for graph in graphs {
            node_starts.push(node_starts[node_starts.len() - 1] + self.nodes(*graph)?);
        }
        Ok(node_starts)
    }

    /// Bytes of a graph's record, its checksum included.
    pub fn record_bytes(&self, graph: u64) -> Result<usize, CacheError> {
        let values = self.nodes(graph)? * self.targets.values_per_node() + self.targets.values_per_graph();
        Ok(values * self.precision.bytes() + CHECKSUM_BYTES)
    }

    /// Returns the rows of `graphs` as views into their records (f32 only). `places` has block and offset of each record in `blocks`.
    pub fn rows_in_records(
        &self,
        graphs: &[u64],
        blocks: &Arc<Blocks>,
        mut places: Vec<Place>,
    ) -> Result<TargetRows, CacheError> {
        let per_node = Arc::new(self.node_starts_of(graphs)?);
        let per_graph = Arc::new((0..=graphs.len()).collect::<Vec<_>>());
        let mut rows = Vec::with_capacity(self.targets.0.len());
        for spec in &self.targets.0 {
            let starts = if spec.per == Per::Node { &per_node } else { &per_graph };
            let pieces = Pieces::new(Arc::clone(blocks), places.clone(), Arc::clone(starts), spec.columns)?;
            rows.push((spec.name, Rows::Apart(pieces)));
            // A record holds one target after the other.
            for ((_, byte), rows) in places.iter_mut().zip(starts.windows(2)) {
                *byte += ((rows[1] - rows[0]) * spec.columns * self.precision.bytes()) as u32;
            }
        }
        Ok(TargetRows { rows })
    }

    /// Bytes of all records before that of `graph`; for `graph == graphs()`, of all records.
    pub fn offset(&self, graph: u64) -> u64 {
        let per_graph = self.targets.values_per_graph() * self.precision.bytes() + CHECKSUM_BYTES;
        let per_node = self.targets.values_per_node() * self.precision.bytes();
        let nodes = self.node_starts[(graph as usize).min(self.node_starts.len() - 1)];
        nodes * per_node as u64 + graph * per_graph as u64
    }

    /// Bytes of the records of `graphs`, or of all records for `None`.
    pub fn total_bytes(&self, graphs: Option<&[u64]>) -> Result<u64, CacheError> {
        match graphs {
            None => Ok(self.offset(self.graphs())),
            Some(graphs) => graphs.iter().map(|graph| Ok(self.record_bytes(*graph)? as u64)).sum(),
        }
    }
}

/// The checksum that ends a record. It covers the graph's number, so that a record at another graph's offset is detected.
pub(super) fn checksum(graph: u64, payload: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&graph.to_le_bytes());
    hasher.update(payload);
    hasher.finalize().to_le_bytes()
}

/// Targets of some graphs as bytes, rows in the graphs' order.
#[derive(Debug)]
pub struct HostRows {
    layout: RecordLayout,
    graphs: Vec<u64>,
    /// First node of each graph, then the total, `[graphs + 1]`.
    node_starts: Vec<usize>,
    /// One buffer per target, `[bytes]`, u8, from torch's allocator, so that a tensor of the values is a view of it.
    buffers: Vec<Tensor>,
}

impl HostRows {
    /// Allocates uninitialised rows for `graphs`: every graph must be decoded or copied afterwards.
    pub fn empty(layout: &RecordLayout, graphs: &[u64]) -> Result<Self, CacheError> {
        let mut rows = Self::without_buffers(layout, graphs)?;
        for target in 0..layout.targets.0.len() {
            let bytes = rows.range(target, 0..graphs.len()).end as i64;
            rows.buffers.push(Tensor::f_empty([bytes], (Kind::Uint8, Device::Cpu))?);
        }
        Ok(rows)
    }

    fn without_buffers(layout: &RecordLayout, graphs: &[u64]) -> Result<Self, CacheError> {
        let node_starts = layout.node_starts_of(graphs)?;
        Ok(Self { layout: layout.clone(), graphs: graphs.to_vec(), node_starts, buffers: Vec::new() })
    }

    /// Copies targets to the host, rounded to the layout's precision. Targets in f32 on the host share the tensors' memory.
    pub fn from_targets(layout: &RecordLayout, graphs: &[u64], targets: &Targets) -> Result<Self, CacheError> {
        let mut rows = Self::without_buffers(layout, graphs)?;
        for (target, (name, tensor)) in targets.tensors.iter().enumerate() {
            let kept = match layout.precision {
                Precision::F32 => tensor.shallow_clone(),
                Precision::F16 => {
                    let half = tensor.f_to_kind(Kind::Half)?;
                    let lost = half.f_isfinite()?.f_logical_not()?.f_logical_and(&tensor.f_isfinite()?)?;
                    if lost.f_any()?.f_int64_value(&[])? != 0 {
                        let largest = tensor.f_abs()?.f_max()?.f_double_value(&[])?;
                        return Err(CacheError::NotRepresentable { name: *name, largest });
                    }
                    half
                }
            };
            let bytes = kept.f_to_device(Device::Cpu)?.f_contiguous()?.f_flatten(0, -1)?.f_view_dtype(Kind::Uint8)?;
            if bytes.numel() != rows.range(target, 0..graphs.len()).end {
                let expected = rows.node_starts[graphs.len()];
                return Err(CacheError::OtherGraphs { found: tensor.size()[0], expected: expected as i64 });
            }
            rows.buffers.push(bytes);
        }
        Ok(rows)
    }

    /// Copies the rows to tensors on `device`, in f32. On the host, in f32, the tensors are views of the rows.
    pub fn to_targets(&self, device: Device) -> Result<Targets, CacheError> {
        let kind = self.layout.precision.kind();
        let mut tensors = Vec::with_capacity(self.buffers.len());
        for (spec, bytes) in self.layout.targets.0.iter().zip(&self.buffers) {
            let rows = match spec.per {
                Per::Node => self.node_starts[self.graphs.len()],
                Per::Graph => self.graphs.len(),
            };
            let host = bytes.f_view_dtype(kind)?.f_view([rows as i64, spec.columns as i64])?;
            tensors.push((spec.name, host.f_to_device(device)?.f_to_kind(Kind::Float)?));
        }
        Ok(Targets { tensors })
    }

    /// Copies the rows of `from`'s graph number `source` to graph number `position`.
    pub fn copy_graph(&mut self, position: usize, from: &HostRows, source: usize) -> Result<(), CacheError> {
        for target in 0..self.buffers.len() {
            let to = self.range(target, position..position + 1);
            let rows = from.range(target, source..source + 1);
            let from = view::read::<u8>("targets", &from.buffers[target])?;
            view::write::<u8>("targets", &mut self.buffers[target])?[to].copy_from_slice(&from[rows]);
        }
        Ok(())
    }

    /// Writes the record of graph number `position` to `record`, checksum last.
    pub fn encode(&self, position: usize, record: &mut Vec<u8>) -> Result<(), CacheError> {
        record.clear();
        for (target, buffer) in self.buffers.iter().enumerate() {
            let rows = self.range(target, position..position + 1);
            record.extend_from_slice(&view::read::<u8>("targets", buffer)?[rows]);
        }
        let checksum = checksum(self.graphs[position], record);
        record.extend_from_slice(&checksum);
        Ok(())
    }

    /// Splits the buffers into slices that several threads fill at once.
    pub fn places(&mut self) -> Result<Places<'_>, CacheError> {
        let Self { layout, graphs, node_starts, buffers } = self;
        Ok(Places::new(layout, graphs, node_starts, buffers)?)
    }

    /// The graphs, in row order.
    pub fn graphs(&self) -> &[u64] {
        &self.graphs
    }

    fn range(&self, target: usize, positions: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let spec = &self.layout.targets.0[target];
        let row_bytes = spec.columns * self.layout.precision.bytes();
        let rows = |position: usize| rows_before(spec.per, &self.node_starts, position);
        rows(positions.start) * row_bytes..rows(positions.end) * row_bytes
    }
}

/// Rounds live targets to the cache's precision.
pub fn rounded(targets: Targets, precision: Precision) -> Result<Targets, CacheError> {
    if precision == Precision::F32 {
        return Ok(targets);
    }
    let round = |(name, tensor): (_, Tensor)| Ok((name, tensor.f_to_kind(Kind::Half)?.f_to_kind(Kind::Float)?));
    Ok(Targets { tensors: targets.tensors.into_iter().map(round).collect::<Result<_, CacheError>>()? })
}

#[cfg(test)]
mod tests {
    use super::super::places::BLOCK_GRAPHS;
    use super::*;
    use proptest::prelude::*;

    fn layout(node_counts: &[u32], precision: Precision) -> RecordLayout {
        let mut targets = TargetLayout::vgae(Some(3), 2);
        targets.0.extend(TargetLayout::classifier(2).0);
        RecordLayout::new(targets, precision, node_counts)
    }

    fn targets(layout: &RecordLayout, graphs: &[u64]) -> Targets {
        let nodes: usize = graphs.iter().map(|graph| layout.nodes(*graph).unwrap()).sum();
        let tensor = |rows: usize, columns: i64| Tensor::rand([rows as i64, columns], (Kind::Float, Device::Cpu));
        let names: Vec<_> = layout.targets.0.iter().map(|spec| spec.name).collect();
        Targets {
            tensors: vec![
                (names[0], tensor(nodes, 3)),
                (names[1], tensor(nodes, 2)),
                (names[2], tensor(graphs.len(), 2)),
            ],
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn records_lie_side_by_side_and_come_back(
            node_counts in proptest::collection::vec(0u32..7, 1..20),
            half in any::<bool>(),
            order in any::<u64>(),
        ) {
            let layout = layout(&node_counts, if half { Precision::F16 } else { Precision::F32 });
            for graph in 0..layout.graphs() {
                let end = layout.offset(graph) + layout.record_bytes(graph).unwrap() as u64;
                prop_assert_eq!(end, layout.offset(graph + 1));
            }
            let mut graphs: Vec<u64> = (0..layout.graphs()).collect();
            graphs.rotate_left(order as usize % node_counts.len());
            let given = rounded(targets(&layout, &graphs), layout.precision).unwrap();
            let rows = HostRows::from_targets(&layout, &graphs, &given).unwrap();
            let mut back = HostRows::empty(&layout, &graphs).unwrap();
            let mut broken = HostRows::empty(&layout, &graphs).unwrap();
            let (places, broken_places) = (back.places().unwrap(), broken.places().unwrap());
            let (mut block, mut broken_block) = (places.block(0), broken_places.block(0));
            let mut record = Vec::new();
            for (position, graph) in graphs.iter().enumerate() {
                rows.encode(position, &mut record).unwrap();
                prop_assert_eq!(record.len(), layout.record_bytes(*graph).unwrap());
                prop_assert!(block.decode(&record));
                let broken = order as usize % record.len();
                record[broken] ^= 1;
                prop_assert!(!broken_block.decode(&record), "a changed byte went unnoticed");
            }
            drop((block, broken_block));
            drop((places, broken_places));
            let back = back.to_targets(Device::Cpu).unwrap();
            for ((_, left), (_, right)) in back.tensors.iter().zip(&given.tensors) {
                prop_assert!(left.f_equal(right).unwrap());
            }
        }
    }

    #[test]
    fn a_record_in_anothers_place_is_noticed() {
        let layout = layout(&[2, 2], Precision::F32);
        let rows = HostRows::from_targets(&layout, &[0, 1], &targets(&layout, &[0, 1])).unwrap();
        let mut record = Vec::new();
        rows.encode(0, &mut record).unwrap();
        let mut other = HostRows::empty(&layout, &[0, 1]).unwrap();
        let places = other.places().unwrap();
        let mut block = places.block(0);
        block.skip();
        assert!(!block.decode(&record));
    }

    #[test]
    fn records_of_several_blocks_and_of_other_lengths() {
        let node_counts: Vec<u32> = (0..3 * BLOCK_GRAPHS as u32 - 5).map(|graph| graph % 4).collect();
        let layout = layout(&node_counts, Precision::F32);
        let graphs: Vec<u64> = (0..layout.graphs()).collect();
        let given = targets(&layout, &graphs);
        let rows = HostRows::from_targets(&layout, &graphs, &given).unwrap();
        let mut back = HostRows::from_targets(&layout, &graphs, &targets(&layout, &graphs)).unwrap();
        let places = back.places().unwrap();
        let mut record = Vec::new();
        for number in 0..3 {
            let mut block = places.block(number);
            for position in number * BLOCK_GRAPHS..(number * BLOCK_GRAPHS + BLOCK_GRAPHS).min(graphs.len()) {
                rows.encode(position, &mut record).unwrap();
                assert!(block.decode_unchecked(&record), "graph {position}");
            }
        }
        drop(places);
        let back = back.to_targets(Device::Cpu).unwrap();
        assert!(back.tensors.iter().zip(&given.tensors).all(|((_, left), (_, right))| left.f_equal(right).unwrap()));
        let (mut short, mut long) = (record.clone(), record.clone());
        short.pop();
        long.push(0);
        for record in [short, long, Vec::new()] {
            let mut again = HostRows::empty(&layout, &graphs[graphs.len() - 1..]).unwrap();
            assert!(!again.places().unwrap().block(0).decode_unchecked(&record), "{} bytes", record.len());
        }
    }

    #[test]
    fn what_half_precision_cannot_hold_is_refused() {
        let layout = RecordLayout::new(TargetLayout::classifier(2), Precision::F16, &[1]);
        let name = layout.targets.0[0].name;
        let large = Targets { tensors: vec![(name, Tensor::from_slice(&[1e6f32, 0.0]).view([1, 2]))] };
        let error = HostRows::from_targets(&layout, &[0], &large).unwrap_err().to_string();
        assert!(error.contains("1000000") && error.contains("f32"), "{error}");
    }
}
