//! Memory of a training on the nodes of one large graph, and the settings that fit into a limit.

use std::fmt::Write;

use super::node_sizes::{BatchSize, Degrees};
use crate::memory::budget::{BatchBuffers, MemoryBudget, Moment, WorstBatches, gibibytes, largest_fitting};
use crate::memory::limits::{Limit, PROCESS_BYTES};

/// Memory sizes of the table of settings, in GB.
pub const GIGABYTES: [u64; 6] = [8, 16, 32, 64, 128, 256];

/// Place of features, as the training chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The mapped store.
    Mapped,
    /// The store's file, around the system's cache.
    Direct,
    /// Memory.
    Resident,
    /// The tensors of a batch, which has all of them.
    Batch,
}

impl Place {
    /// Its name among the values of `features_from`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Direct => "direct",
            Self::Resident => "resident",
            Self::Batch => "in each batch",
        }
    }
}

/// Sizes of a graph.
#[derive(Debug, Clone, Copy)]
pub struct GraphSize {
    pub nodes: f64,
    pub edges: f64,
    pub columns: f64,
    /// Bytes of a row of features in the store.
    pub row_bytes: f64,
}

/// Model, graph and settings to plan for.
#[derive(Debug)]
pub struct NodeQuestion {
    /// Description of the model and of the batches.
    pub what: String,
    pub graph: GraphSize,
    pub degrees: Degrees,
    /// Fan-outs from the seeds outwards; empty without sampling.
    pub fanouts: Vec<f64>,
    /// Measured on batches of the expected sizes, by the number of seeds, with a full queue of the loader.
    pub budget: MemoryBudget,
    /// Batches of a full queue.
    pub waiting_batches: usize,
    /// Batches announced to the teacher at a time; 1 without a teacher.
    pub burst: usize,
    /// Seeds of an epoch.
    pub seeds: usize,
    /// Seeds of a sampled validation; 0 if it reads the whole graph.
    pub validation: usize,
    /// Wanted seeds of a batch.
    pub wanted: usize,
    /// True if a step always takes all wanted seeds.
    pub is_fixed: bool,
    pub safety_factor: f64,
    /// The configured place of features; `None`: automatic.
    pub place: Option<Place>,
    /// The configured number of hot rows.
    pub hot_rows: Option<usize>,
    /// Features up to this size are mapped if nothing else is configured.
    pub small_bytes: f64,
    /// Files besides the store: name and bytes.
    pub other_files: Vec<(&'static str, f64)>,
}

/// Settings for a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Seeds per batch; `None` if not even one fits.
    pub batch: Option<usize>,
    pub place: Place,
    pub hot_rows: usize,
    /// Expected share of a batch's rows that are hot.
    pub hot_share: f64,
    /// Peak of tensors and arrays, in bytes.
    pub peak_bytes: f64,
}

impl NodeQuestion {
    fn worst(&self) -> WorstBatches {
        WorstBatches::uniform(1.0, 0.0, self.seeds.max(1))
    }

    fn feature_bytes(&self) -> f64 {
        self.graph.nodes * self.graph.row_bytes
    }

    fn sampled(&self, seeds: usize) -> BatchSize {
        self.degrees.batch(seeds as f64, &self.fanouts)
    }

    /// Buffers for batches of so many seeds; all batches of a whole graph share its tensors.
    fn buffers(&self, seeds: usize) -> BatchBuffers {
        let steps = self.seeds.max(self.validation).div_ceil(seeds.max(1));
        BatchBuffers { burst: self.burst, waiting: self.waiting_batches, steps }
    }

    /// The budget of batches of so many seeds.
    fn budget_of(&self, seeds: usize) -> MemoryBudget {
        self.budget_with(self.buffers(seeds), seeds)
    }

    /// Only batches of sampled neighbours are in buffers.
    fn budget_with(&self, buffers: BatchBuffers, seeds: usize) -> MemoryBudget {
        if self.fanouts.is_empty() { self.budget.clone() } else { self.budget.with_buffers(buffers, seeds) }
    }

    /// The settings that a training chooses within a limit for tensors.
    pub fn settings(&self, limit_bytes: f64) -> Settings {
        let (worst, wanted) = (self.worst(), self.wanted.min(self.seeds).max(1));
        let target = self.safety_factor * limit_bytes;
        let peak = |seeds: usize| self.budget_of(seeds).peak_bytes(worst.shape(seeds));
        let batch = match self.is_fixed {
            true => Some(wanted).filter(|&seeds| peak(seeds) <= limit_bytes),
            false if peak(wanted) <= target => Some(wanted),
            // Fewer seeds give longer epochs: the search takes a full queue for all.
            false => largest_fitting(wanted, |seeds| {
                let buffers = BatchBuffers { steps: usize::MAX, ..self.buffers(seeds) };
                self.budget_with(buffers, seeds).peak_bytes(worst.shape(seeds)) <= target
            }),
        };
        let seeds = batch.unwrap_or(wanted);
        let free = (target - peak(seeds)).max(0.0);
        let bytes = self.feature_bytes();
        let place = self.place.unwrap_or(match bytes {
            bytes if bytes <= self.small_bytes => Place::Mapped,
            bytes if bytes <= free => Place::Resident,
            _ => Place::Direct,
        });
        let index_bytes = self.graph.nodes / 64.0 * 12.0;
        let room = ((free - index_bytes).max(0.0) / self.graph.row_bytes.max(1.0)).min(self.graph.nodes) as usize;
        let hot_rows = match (self.hot_rows, place) {
            _ if self.fanouts.is_empty() => 0,
            (Some(rows), Place::Mapped | Place::Direct) => rows.min(self.graph.nodes as usize),
            (None, Place::Direct) => room,
            _ => 0,
        };
        let hot_share = match hot_rows {
            0 => 0.0,
            rows => self.degrees.hot_share(&self.sampled(seeds), rows as f64),
        };
        let kept = match place {
            Place::Resident => bytes,
            _ if hot_rows > 0 => hot_rows as f64 * self.graph.row_bytes + index_bytes,
            _ => 0.0,
        };
        Settings { batch, place, hot_rows, hot_share, peak_bytes: peak(seeds) + kept }
    }

    /// The plan as text: expected batch, disk, mapped arrays, memory by component, settings, and a table for other sizes of memory.
    pub fn describe(&self, limit: &Limit) -> String {
        let settings = self.settings(limit.bytes as f64);
        let seeds = settings.batch.unwrap_or(self.wanted.min(self.seeds)).max(1);
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", self.what);
        let sampled = self.sampled(seeds);
        if let Some(first) = sampled.layers.first() {
            let edges: f64 = sampled.layers.iter().map(|layer| layer.edges).sum();
            let _ = writeln!(
                text,
                "a batch of {seeds} nodes is expected to have {:.0} rows of features and {edges:.0} edges",
                first.sources
            );
        }
        self.describe_files(&mut text, settings);
        let _ = writeln!(text, "\n{}", self.budget_of(seeds).table_of("nodes", seeds, &self.worst()).trim_end());
        let mut row = |name: &str, bytes: f64| {
            let _ = writeln!(text, "{name:<28} {:>47}", gibibytes(bytes));
        };
        match settings.place {
            Place::Resident => row("resident features", self.feature_bytes()),
            _ if settings.hot_rows > 0 => row("hot rows", settings.hot_rows as f64 * self.graph.row_bytes),
            _ => {}
        }
        row("peak of tensors and arrays", settings.peak_bytes);
        row("the program itself, at most", PROCESS_BYTES as f64);
        self.describe_settings(&mut text, settings, limit);
        text
    }

    fn describe_files(&self, text: &mut String, settings: Settings) {
        let GraphSize { nodes, edges, .. } = self.graph;
        let mapped = if settings.place == Place::Mapped { ", mapped" } else { "" };
        let files = [("indptr, mapped".to_owned(), 8.0 * (nodes + 1.0)), ("indices, mapped".to_owned(), 4.0 * edges)];
        let files = files.into_iter().chain([
            (format!("features{mapped}"), self.feature_bytes()),
            ("labels and split, mapped".to_owned(), 5.0 * nodes),
        ]);
        let others = self.other_files.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes));
        let _ = writeln!(
            text,
            "\non disk (the system caches mapped arrays while it has memory, and drops them when it needs it):"
        );
        let mut sum = 0.0;
        for (name, bytes) in files.chain(others) {
            sum += bytes;
            let _ = writeln!(text, "  {name:<42} {:>12}", gibibytes(bytes));
        }
        let _ = writeln!(text, "  {:<42} {:>12}", "sum", gibibytes(sum));
    }

    fn describe_settings(&self, text: &mut String, settings: Settings, limit: &Limit) {
        let bytes = gibibytes(limit.bytes as f64);
        match settings.batch {
            Some(batch) => {
                let hot = match settings.hot_rows {
                    0 => String::new(),
                    rows => format!(" --hot-rows {rows} (about {:.0} % of a batch's rows)", 100.0 * settings.hot_share),
                };
                let place = match settings.place {
                    Place::Batch => String::new(),
                    place => format!(" --features-from {}", place.as_str()),
                };
                let _ = writeln!(
                    text,
                    "\nwithin {bytes} ({}), of which {:.0} % are planned for: --batch-size {batch}{place}{hot}",
                    limit.source,
                    100.0 * self.safety_factor
                );
            }
            None => {
                let _ = writeln!(
                    text,
                    "\ndoes not fit into {bytes} ({}): lower --batch-size, --fanouts, --hidden, --num-workers or --prefetch-batches, or \
                     raise --memory-limit",
                    limit.source
                );
            }
        }
        let _ = writeln!(
            text,
            "\n{:>8} {:>10} {:>14} {:>14} {:>10} {:>12}",
            "memory", "batch", "features", "hot rows", "hot share", "peak"
        );
        for gigabytes in GIGABYTES {
            let settings = self.settings(gigabytes as f64 * 1e9 - PROCESS_BYTES as f64);
            let batch = settings.batch.map_or("none fits".to_owned(), |batch| batch.to_string());
            let _ = writeln!(
                text,
                "{:>8} {batch:>10} {:>14} {:>14} {:>10} {:>12}",
                format!("{gigabytes} GB"),
                settings.place.as_str(),
                settings.hot_rows,
                format!("{:.0} %", 100.0 * settings.hot_share),
                gibibytes(settings.peak_bytes)
            );
        }
    }
}

/// Adds memory that does not depend on the batch, if there is any.
pub fn add(budget: &mut MemoryBudget, name: &'static str, moment: Moment, bytes: f64) {
    if bytes > 0.0 {
        budget.add(name, moment, bytes);
    }
}
