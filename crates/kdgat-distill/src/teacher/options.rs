//! Options of a teacher.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use kdgat_train::processes::Processes;
use serde::{Deserialize, Serialize};
use tch::Device;

use crate::cache::Precision;

/// Residency of the teacher's weights between its visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// The weights stay on the device.
    Resident,
    /// The weights are on the device only during a visit (`--offload-teacher`).
    Forward,
    /// During a visit, a few layers at a time are on the device.
    Layer,
    /// The planner chooses from measured numbers.
    Auto,
}

impl Residency {
    /// Name of the residency on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Forward => "forward",
            Self::Layer => "layer",
            Self::Auto => "auto",
        }
    }
}

impl std::fmt::Display for Residency {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Residency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Resident, Self::Forward, Self::Layer, Self::Auto]
            .into_iter()
            .find(|residency| residency.as_str() == text)
            .ok_or_else(|| format!("unknown residency '{text}' (known: resident, forward, layer, auto)"))
    }
}

/// Storage of cached targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheMode {
    /// No cache: the teacher runs in every epoch.
    Off,
    /// In memory, for this process only.
    Ram,
    /// In a file, which later runs and other processes use, too.
    Disk,
    /// In memory if the targets fit the budget, else in a file.
    Auto,
}

/// Options of the target cache.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Storage of the targets.
    pub mode: CacheMode,
    /// Precision of the targets.
    pub precision: Precision,
    /// The cache file, required for `disk`.
    pub path: Option<PathBuf>,
    /// Memory budget in bytes for `ram` and `auto`.
    pub ram_budget_bytes: u64,
    /// The teacher's architecture as text: part of the cache's key.
    pub architecture: String,
    /// The features that the teacher reads, including its vocabulary, as text: part of the cache's key.
    pub features: String,
    /// The items that targets belong to, in messages: graphs or nodes.
    pub unit: &'static str,
}

impl CacheOptions {
    /// Options without a cache.
    pub fn off() -> Self {
        Self {
            mode: CacheMode::Off,
            precision: Precision::F32,
            path: None,
            ram_budget_bytes: 0,
            architecture: String::new(),
            features: String::new(),
            unit: "graphs",
        }
    }
}

/// Options of a teacher.
#[derive(Debug, Clone)]
pub struct TeacherOptions {
    /// Device of the teacher's forward and of the targets.
    pub device: Device,
    /// Residency of the weights between visits.
    pub residency: Residency,
    /// Layers on the device at once under `layer`; at least 1.
    pub layer_slots: usize,
    /// Options of the target cache.
    pub cache: CacheOptions,
    /// Batches that the training loop submits at once, for the planner.
    pub burst: usize,
    /// Batches per epoch, for the planner.
    pub batches_per_epoch: u64,
    /// Number of epochs, for the planner.
    pub epochs: u64,
    /// Bring the targets to the device once all are cached; on a CPU they are there.
    pub keeps_targets_on_device: bool,
    /// The processes that train together, each with this teacher: those of one machine have its weights in host memory once.
    pub processes: Option<Arc<Processes>>,
}

impl TeacherOptions {
    /// Options of a teacher that stays on `device` and caches no targets.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            residency: Residency::Resident,
            layer_slots: 2,
            cache: CacheOptions::off(),
            burst: 1,
            batches_per_epoch: 0,
            epochs: 1,
            keeps_targets_on_device: false,
            processes: None,
        }
    }
}
