//! Cached targets on the teacher's device: once all are cached, a batch's are gathered there instead of copied from the host.

use kdgat_graph::Gatherer;
use kdgat_torch::device::Uploader;
use kdgat_train::memory::{Meter, is_out_of_memory, retry_on_oom};
use tch::{Device, TchError, Tensor};

use crate::accelerator::Accelerator;
use crate::cache::{CacheError, TargetCache};
use crate::order::Stream;
use crate::planner::format_bytes;
use crate::shuttle::Ready;
use crate::targets::{Per, TargetSpec, Targets};

use super::TeacherError;

/// Graphs that are read from the cache at a time.
const CHUNK: usize = 512;

/// Targets of all graphs that a run needs, on a device.
pub(super) struct ResidentTargets {
    specs: Vec<TargetSpec>,
    /// For each target `[rows, columns]` of all graphs, in the cache's precision.
    columns: Vec<Tensor>,
    /// By key of the cache; `None` for a graph that the run does not need.
    places: Vec<Option<Place>>,
    uploader: Uploader,
    gatherer: Gatherer,
}

/// A graph's rows of the columns.
#[derive(Clone, Copy)]
struct Place {
    graph: i64,
    first_node: i64,
    nodes: i64,
}

impl ResidentTargets {
    /// Copies the targets of a complete cache to a device, and says so. `None` if there is no room for them there, a record is
    /// damaged, or CUDA's run-time compiler is missing.
    ///
    /// # Errors
    /// Those of the cache and the device.
    pub fn of(cache: &mut TargetCache, device: Device) -> Result<(Option<Self>, String), TeacherError> {
        let bytes = format_bytes(cache.summary().bytes);
        let gatherer = match Gatherer::of(device) {
            Ok(gatherer) => gatherer,
            Err(error) => return Ok((None, format!("teacher cache: targets stay on the host: {error}"))),
        };
        Ok(match Self::copied(cache, gatherer, device) {
            Ok(Some(targets)) => (Some(targets), format!("teacher cache: the targets stay on the device, {bytes}")),
            Ok(None) => (None, "teacher cache: targets stay on the host, because a record is damaged".to_owned()),
            Err(error) if is_out_of_memory(&error) => {
                (None, format!("teacher cache: targets stay on the host; there is no room for {bytes} on the device"))
            }
            Err(error) => return Err(error),
        })
    }

    fn copied(cache: &mut TargetCache, gatherer: Gatherer, device: Device) -> Result<Option<Self>, TeacherError> {
        let specs = cache.layout().targets.0.clone();
        let kind = cache.layout().precision.kind();
        let used = cache.used();
        let mut places = vec![None; cache.layout().graphs() as usize];
        let mut nodes = 0;
        for (number, &graph) in used.iter().enumerate() {
            let of_graph = cache.layout().nodes(graph)? as i64;
            places[graph as usize] = Some(Place { graph: number as i64, first_node: nodes, nodes: of_graph });
            nodes += of_graph;
        }
        let rows_of = |spec: &TargetSpec| if spec.per == Per::Node { nodes } else { used.len() as i64 };
        let room = |spec: &TargetSpec| Tensor::f_zeros([rows_of(spec), spec.columns as i64], (kind, device));
        let columns = specs.iter().map(room).collect::<Result<Vec<_>, _>>()?;
        let mut filled = vec![0; specs.len()];
        for graphs in used.chunks(CHUNK) {
            let (rows, missing) = retry_on_oom(Meter::new(Device::Cpu), || cache.lookup(graphs))?;
            if !missing.is_empty() {
                return Ok(None);
            }
            let targets = rows.to_targets(Device::Cpu)?;
            for (((_, target), column), filled) in targets.tensors.iter().zip(&columns).zip(&mut filled) {
                let rows = target.size()[0];
                // Half precision is what the values were rounded to: nothing is lost.
                tch::no_grad(|| column.f_narrow(0, *filled, rows)?.f_copy_(&target.f_to_kind(kind)?))?;
                *filled += rows;
            }
        }
        let uploader = Uploader::new(device).map_err(TchError::from)?;
        Ok(Some(Self { specs, columns, places, uploader, gatherer }))
    }

    /// The targets of a batch of these graphs, on the current stream.
    ///
    /// # Errors
    /// A graph that the run does not need; want of memory.
    pub fn ready<A: Accelerator>(
        &mut self,
        graphs: &[u64],
        accelerator: &mut A,
    ) -> Result<Ready<A::Event>, TeacherError> {
        let meter = Meter::new(self.uploader.device());
        let targets = retry_on_oom(meter, || self.targets(graphs))?;
        Ok(Ready { targets, events: vec![accelerator.record(Stream::Teacher)?] })
    }

    fn targets(&mut self, graphs: &[u64]) -> Result<Targets, TeacherError> {
        let width = graphs.len() + 1;
        let mut table = vec![0; 3 * width];
        let mut nodes = 0;
        for (number, &graph) in graphs.iter().enumerate() {
            let place = self.places.get(graph as usize).copied().flatten();
            let place = place.ok_or(CacheError::UnknownGraph { graph, graphs: self.places.len() as u64 })?;
            for (row, value) in [nodes, place.first_node - nodes, place.graph].into_iter().enumerate() {
                table[row * width + number] = value;
            }
            nodes += place.nodes;
        }
        table[graphs.len()] = nodes;
        // One copy, of 24 bytes a graph, for which the host does not wait.
        let table = Tensor::f_from_slice(&table)?.f_view([3, -1])?;
        let uploaded = self.uploader.upload(&[&table]).map_err(TchError::from)?;
        let table = uploaded.first().ok_or_else(|| TchError::Shape("a table was to be uploaded".into()))?;
        let mut tensors = Vec::with_capacity(self.specs.len());
        for (spec, column) in self.specs.iter().zip(&self.columns) {
            let (rows, of_nodes) = match spec.per {
                Per::Node => (nodes, true),
                Per::Graph => (graphs.len() as i64, false),
            };
            tensors.push((spec.name, self.gatherer.rows(table, column, rows, of_nodes)?));
        }
        Ok(Targets { tensors })
    }
}
