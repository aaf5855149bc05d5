//! Place and size of a teacher's cached targets.

use super::StageError;
use super::cache_settings::cache_memory_bytes;
use crate::config::{CachePrecision, Config, TeacherCache};
use crate::distill::cache::RecordLayout;
use crate::distill::objective::TeacherLink;
use crate::distill::{FrozenModel, Precision, TeacherError};

/// Bytes of a block of targets cached in memory.
pub const CACHE_BLOCK_BYTES: f64 = (1 << 20) as f64;

/// The place of a teacher's targets after its first visit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachedTargets {
    pub place: CachePlace,
    /// Bytes of the targets of a graph of mean size.
    pub record_bytes: f64,
    /// Graphs with targets, those of each view counted.
    pub graphs: u64,
    /// Graphs whose targets are cached before the first epoch.
    pub filled: u64,
    /// True if these are all.
    pub complete: bool,
    /// True if they are on the training device, too, which is a GPU.
    pub on_device: bool,
}

impl CachedTargets {
    /// No cache.
    pub const NONE: Self =
        Self { place: CachePlace::Nowhere, record_bytes: 0.0, graphs: 0, filled: 0, complete: false, on_device: false };
}

/// Storage of cached targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePlace {
    Nowhere,
    Memory,
    Disk,
}

impl CachedTargets {
    /// The targets that a teacher's link reports.
    pub fn of(link: &TeacherLink) -> Self {
        let Some(cache) = link.cache() else { return Self::NONE };
        let place = if cache.kind == "ram" { CachePlace::Memory } else { CachePlace::Disk };
        let record_bytes = cache.bytes as f64 / cache.used_graphs.max(1) as f64;
        let (graphs, filled) = (cache.used_graphs, cache.filled_graphs);
        Self { place, record_bytes, graphs, filled, complete: link.keeps_all(), on_device: false }
    }

    /// The targets of so many graphs of `mean_nodes` nodes that a training would choose a place for, none of which are cached yet.
    ///
    /// # Errors
    /// A layout of targets that no record has.
    pub fn planned(config: &Config, model: &dyn FrozenModel, graphs: u64, mean_nodes: f64) -> Result<Self, StageError> {
        let precision = match config.distillation.teacher_cache_precision {
            CachePrecision::F32 => Precision::F32,
            CachePrecision::F16 => Precision::F16,
        };
        let layout = RecordLayout::new(model.target_layout(), precision, &[mean_nodes.ceil() as u32]);
        // Rows of nodes are as many as the graph has nodes, here rounded up.
        let whole = layout.record_bytes(0).map_err(TeacherError::from)? as f64;
        let record_bytes =
            whole * if model.target_layout().values_per_node() > 0 { mean_nodes / mean_nodes.ceil() } else { 1.0 };
        let place = match config.distillation.cache() {
            TeacherCache::Off => CachePlace::Nowhere,
            TeacherCache::Ram => CachePlace::Memory,
            TeacherCache::Disk => CachePlace::Disk,
            TeacherCache::Auto if record_bytes * graphs as f64 <= cache_memory_bytes(config) as f64 => {
                CachePlace::Memory
            }
            TeacherCache::Auto => CachePlace::Disk,
        };
        Ok(Self { place, record_bytes, graphs, ..Self::NONE })
    }

    /// Bytes of all targets.
    pub fn bytes(&self) -> f64 {
        self.record_bytes * self.graphs as f64
    }

    /// Bytes of memory that all targets take, in whole blocks.
    pub fn memory_bytes(&self) -> f64 {
        match self.place {
            CachePlace::Memory => (self.bytes() / CACHE_BLOCK_BYTES).ceil() * CACHE_BLOCK_BYTES,
            CachePlace::Nowhere | CachePlace::Disk => 0.0,
        }
    }
}
