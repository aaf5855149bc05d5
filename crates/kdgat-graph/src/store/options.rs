//! Options of building a store from a dataset.

use kdgat_can::{Format, ReadOptions, TimeUnit};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::features::LONGEST_WINDOW;
use crate::{FeatureSet, StoreError, Validation};

/// Options that determine the content of a store, and how fast it is built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildOptions {
    /// Window size in frames.
    pub window: usize,
    /// Distance between the starts of two windows, in frames.
    pub stride: usize,
    /// Share of each training file's windows used for validation, from 0 to below 1; with whole logs or kinds of attack, of their bytes.
    pub validation_fraction: f64,
    /// Rule that chooses the validation data.
    pub validation: Validation,
    /// Largest allowed share of a file's rows that cannot be read, from 0 to 1.
    pub max_reject_share: f64,
    /// Format of all logs; detected for each log if `None`.
    pub format: Option<Format>,
    /// Interface whose frames are read; `None` for logs of one interface.
    pub interface: Option<String>,
    /// Unit of the logs' times; `None` for seconds that must be plausible.
    pub time_unit: Option<TimeUnit>,
    /// Size in bytes at which a shard is complete. Each thread holds one in memory while building.
    pub shard_bytes: u64,
    /// Target size of pieces in bytes: logs of at least twice this size are read in pieces, if their format allows it.
    pub piece_bytes: u64,
    /// True to train on graphs that are also in validation or a test.
    pub keep_duplicates: bool,
    /// Features of nodes and edges; part of the key in a store's name, beside the other options.
    pub features: FeatureSet,
    /// Threads for the build; 0 for one per core. The store is the same for any number.
    #[serde(skip)]
    pub threads: usize,
    /// Memory limit of the build in bytes: a low limit reduces the number of threads. The store is the same for any limit.
    #[serde(skip)]
    pub memory_limit_bytes: Option<u64>,
}

/// Estimated maximum memory of a build thread: the frames of a piece, and the graphs of a shard.
const THREAD_BYTES: u64 = 64 << 20;
const DEFAULT_PIECE_BYTES: u64 = 8 << 20;

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            window: 100,
            stride: 100,
            validation_fraction: 0.2,
            validation: Validation::Blocks,
            max_reject_share: 0.01,
            format: None,
            interface: None,
            time_unit: None,
            shard_bytes: 16 << 20,
            piece_bytes: DEFAULT_PIECE_BYTES,
            keep_duplicates: false,
            features: FeatureSet::Window,
            threads: 0,
            memory_limit_bytes: None,
        }
    }
}

impl BuildOptions {
    /// Checks all values.
    ///
    /// # Errors
    /// [`StoreError::Parameter`].
    pub fn check(&self) -> Result<(), StoreError> {
        let parameter = |name, value: String, expected| Err(StoreError::Parameter { name, value, expected });
        if !(2..=LONGEST_WINDOW).contains(&self.window) {
            return parameter("window", self.window.to_string(), "2 to 65534 frames");
        }
        if self.stride == 0 {
            return parameter("stride", "0".to_string(), "at least 1 frame");
        }
        if !(0.0..1.0).contains(&self.validation_fraction) {
            return parameter("validation_fraction", self.validation_fraction.to_string(), "at least 0 and below 1");
        }
        if !(0.0..=1.0).contains(&self.max_reject_share) {
            return parameter("max_reject_share", self.max_reject_share.to_string(), "0 to 1");
        }
        if self.shard_bytes == 0 {
            return parameter("shard_bytes", "0".to_string(), "at least 1 byte");
        }
        if self.piece_bytes == 0 {
            return parameter("piece_bytes", "0".to_string(), "at least 1 byte");
        }
        Ok(())
    }

    /// The settings for reading the logs.
    pub fn read_options(&self) -> ReadOptions {
        ReadOptions { interface: self.interface.clone(), time_unit: self.time_unit, needs_labels: false }
    }

    /// The values that determine the content, with shares as integers, so that they compare equal after a JSON round trip.
    pub(super) fn canonical(&self) -> serde_json::Value {
        let billionths = |share: f64| (share * 1e9).round() as u64;
        let mut canonical = json!({
            "window": self.window,
            "stride": self.stride,
            "validation_fraction": billionths(self.validation_fraction),
            "max_reject_share": billionths(self.max_reject_share),
            "format": self.format,
            "shard_bytes": self.shard_bytes,
            "piece_bytes": self.piece_bytes,
            "validation": self.validation,
            "keep_duplicates": self.keep_duplicates,
        });
        // Without these settings, names and digests of stores do not depend on them.
        if let Some(interface) = &self.interface {
            canonical["interface"] = json!(interface);
        }
        if let Some(unit) = self.time_unit {
            canonical["time_unit"] = json!(unit);
        }
        canonical
    }

    pub(super) fn num_threads(&self) -> usize {
        let wanted = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, |count| count.get()),
            threads => threads,
        };
        let affordable = self.memory_limit_bytes.map_or(usize::MAX, |limit| (limit / THREAD_BYTES) as usize);
        wanted.min(affordable).max(1)
    }
}
