//! How a teacher is run.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tch::Device;

use crate::cache::Precision;

/// Where the teacher's weights are between its visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// They stay on the device.
    Resident,
    /// They are on the device only around a visit (`--offload-teacher`).
    Forward,
    /// A few layers are on the device at a time, during a visit.
    Layer,
    /// The planner chooses from measured numbers.
    Auto,
}

impl Residency {
    /// The name as users type it.
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

/// Where targets are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheMode {
    /// Nowhere: the teacher runs in every epoch.
    Off,
    /// In memory; gone with the process.
    Ram,
    /// In a file, which later runs and other processes use too.
    Disk,
    /// In memory while they fit the budget, else in a file.
    Auto,
}

/// How targets are kept.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Where.
    pub mode: CacheMode,
    /// How exactly.
    pub precision: Precision,
    /// The file, needed for `disk`.
    pub path: Option<PathBuf>,
    /// The most bytes of memory that `ram` and `auto` may take.
    pub ram_budget_bytes: u64,
    /// The teacher's architecture as text: part of the cache's key.
    pub architecture: String,
    /// The features that the teacher reads, its vocabulary among them, as text: part of the cache's key.
    pub features: String,
}

impl CacheOptions {
    /// No cache.
    pub fn off() -> Self {
        Self {
            mode: CacheMode::Off,
            precision: Precision::F32,
            path: None,
            ram_budget_bytes: 0,
            architecture: String::new(),
            features: String::new(),
        }
    }
}

/// How a teacher is run.
#[derive(Debug, Clone)]
pub struct TeacherOptions {
    /// Where its forward runs, and where targets are given.
    pub device: Device,
    /// Where its weights are between visits.
    pub residency: Residency,
    /// Layers on the device at once under `layer`; at least 1.
    pub layer_slots: usize,
    /// How targets are kept.
    pub cache: CacheOptions,
    /// Batches that the loop submits at once, for the planner's arithmetic.
    pub burst: usize,
    /// Batches of an epoch, for the planner's arithmetic.
    pub batches_per_epoch: u64,
    /// Epochs to come, for the planner's arithmetic.
    pub epochs: u64,
}

impl TeacherOptions {
    /// A teacher that stays on `device` and keeps no targets.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            residency: Residency::Resident,
            layer_slots: 2,
            cache: CacheOptions::off(),
            burst: 1,
            batches_per_epoch: 0,
            epochs: 1,
        }
    }
}
