//! Text of a memory plan for a training on many graphs.

use std::fmt::Write;

use super::expected_peak::{AlwaysBytes, ExpectedPeak};
use super::levers::Lever;
use crate::memory::budget::{MemoryBudget, WorstBatches, gibibytes};
use crate::memory::forecast::Work;
use crate::memory::limits::{Limit, PROCESS_BYTES};

/// Batch sizes of the table, in graphs.
const BATCH_SIZES: [usize; 8] = [16, 32, 64, 128, 256, 512, 1024, 2048];

/// A line of a table: a name and its bytes.
#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    pub bytes: f64,
}

impl Row {
    /// A row of this name.
    pub fn new(name: impl Into<String>, bytes: f64) -> Self {
        Self { name: name.into(), bytes }
    }
}

/// The peak that is expected of the batches that will occur.
#[derive(Debug, Clone)]
pub struct Expected {
    /// Moment and batch of the peak.
    at: String,
    /// Its components.
    rows: Vec<Row>,
}

impl Expected {
    /// The peak of a training; `counted` names what the network computes besides nodes.
    pub fn of(found: &ExpectedPeak, max_epochs: u64, counted: &str) -> Self {
        let looked_at = match found.epochs < max_epochs {
            true => format!(" (the first {} are looked at)", found.epochs),
            false => String::new(),
        };
        let at = format!(
            "{} on {:.0} graphs, {:.0} nodes and {:.0} {counted} in epoch {} of {max_epochs}{looked_at}",
            found.work(),
            found.shape.graphs,
            found.shape.nodes,
            found.shape.edges,
            found.epoch + 1
        );
        Self { at, rows: rows(found) }
    }

    /// All components together, in bytes.
    fn bytes(&self) -> f64 {
        self.rows.iter().map(|row| row.bytes).sum()
    }
}

/// The components of the peak that are not empty.
fn rows(found: &ExpectedPeak) -> Vec<Row> {
    let AlwaysBytes { weights, gradients, optimizer, teacher: _, other } = found.always;
    let peak = found.peak;
    let batches = |count: usize| if count == 1 { "batch" } else { "batches" };
    let work = match peak.work {
        Work::Visit => "teacher's activations",
        Work::Step => "activations",
    };
    let rows = [
        Row::new("weights and running statistics", weights),
        Row::new("gradients", gradients),
        Row::new("optimiser states", optimizer),
        // A teacher whose targets are all cached is no longer in memory.
        Row::new("teacher's weights", (peak.always - weights - gradients - optimizer - other).max(0.0)),
        Row::new("work space of libraries, and rounding", other),
        Row::new("captured steps and their batches", peak.captured),
        Row::new("cached targets", peak.cached),
        Row::new("targets", peak.targets),
        Row::new(format!("{} {} in use", peak.announced.0, batches(peak.announced.0)), peak.announced.1),
        Row::new(format!("{} {} in the loader's queue", peak.waiting.0, batches(peak.waiting.0)), peak.waiting.1),
        Row::new(work, peak.activations),
    ];
    rows.into_iter().filter(|row| row.bytes > 0.0).collect()
}

/// A plan for many graphs.
#[derive(Debug)]
pub struct GraphPlan {
    /// Lines about model, data and teacher.
    pub what: Vec<String>,
    /// Files, with their bytes.
    pub files: Vec<Row>,
    /// Bytes of a file that takes the place of targets cached in memory, if they are.
    pub disk_cache: Option<f64>,
    /// `None` if the batches are not known, or the GPU is not here.
    pub expected: Option<Expected>,
    /// Measured budget of the worst batches.
    pub budget: MemoryBudget,
    pub worst: WorstBatches,
    /// Training graphs.
    pub graphs: usize,
    /// Wanted graphs per batch.
    pub wanted: usize,
    /// Graphs that fit at a time, at most the wanted ones; `None` if not even one does.
    pub fitting: Option<usize>,
    /// True if they fit because activations are recomputed.
    pub recomputes: bool,
    /// True if the batch has the wanted graphs even if they go through the model in parts.
    pub is_fixed: bool,
    pub safety_factor: f64,
    /// The part of the limit that is planned for, in bytes.
    pub planned_bytes: f64,
    pub limit: Limit,
    /// The flag that raises the limit.
    pub limit_flag: &'static str,
    /// The batches that the levers are compared at, and their peak.
    pub at: Row,
    pub levers: Vec<Lever>,
}

impl GraphPlan {
    /// The plan as text: model and data, disk, memory at the expected peak, the most that a batch can need, and settings.
    pub fn describe(&self) -> String {
        let mut text = self.what.join("\n");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n\non disk:");
        self.files.iter().for_each(|row| line(&mut text, &row.name, row.bytes));
        line(&mut text, "sum", self.files.iter().map(|row| row.bytes).sum());
        if let Some(bytes) = self.disk_cache {
            line(&mut text, "cached targets, with --teacher-cache disk", bytes);
        }
        if let Some(expected) = &self.expected {
            let _ = writeln!(text, "\nmemory at the expected peak, {}:", expected.at);
            expected.rows.iter().for_each(|row| line(&mut text, &row.name, row.bytes));
            line(&mut text, "expected peak of tensors", expected.bytes());
            line(&mut text, "the program itself, at most", PROCESS_BYTES as f64);
        }
        self.describe_worst(&mut text);
        self.describe_levers(&mut text);
        self.describe_fitting(&mut text);
        text
    }

    fn describe_worst(&self, text: &mut String) {
        let limit = gibibytes(self.limit.bytes as f64);
        let _ = writeln!(
            text,
            "\nthe most that any batch can need, which decides on its size ({:.0} % of {limit} {} are planned for):",
            100.0 * self.safety_factor,
            self.limit.source
        );
        let most = self.wanted.max(1).saturating_mul(4);
        let sizes = BATCH_SIZES.into_iter().filter(|&size| size < most && size < self.graphs && size != self.wanted);
        let mut sizes: Vec<usize> = sizes.chain([self.wanted.clamp(1, self.graphs.max(1))]).collect();
        sizes.sort_unstable();
        for size in sizes {
            let bytes = self.budget.peak_bytes(self.worst.shape(size));
            let fits = if bytes <= self.planned_bytes { "" } else { ", too large" };
            line(text, &format!("batches of {size} graphs{fits}"), bytes);
        }
        let _ = writeln!(text, "\n{}", self.budget.table("graphs", self.fitting.unwrap_or(1), &self.worst).trim_end());
    }

    fn describe_levers(&self, text: &mut String) {
        if self.levers.is_empty() {
            return;
        }
        let _ = writeln!(text, "\nwhat would need less than the {} of {}:", gibibytes(self.at.bytes), self.at.name);
        for Lever { name, flags, bytes } in &self.levers {
            let saved = 100.0 * (1.0 - bytes / self.at.bytes);
            let _ =
                writeln!(text, "  {:<72} {:>12}  saves {saved:.0} %", format!("{name}: {flags}"), gibibytes(*bytes));
        }
    }

    fn describe_fitting(&self, text: &mut String) {
        let recomputed =
            if self.recomputes { ", activations computed again (--gradient-checkpointing true)" } else { "" };
        let _ = match self.fitting {
            None => {
                writeln!(text, "\nnot even one graph at a time fits: raise {}, or use a smaller model", self.limit_flag)
            }
            Some(graphs) if graphs >= self.wanted.min(self.graphs) => {
                writeln!(text, "\nwithin this memory: --batch-size {}{recomputed}", self.wanted)
            }
            Some(graphs) if self.is_fixed => writeln!(
                text,
                "\nwithin this memory: --batch-size {}, {graphs} graphs at a time{recomputed}",
                self.wanted
            ),
            Some(graphs) => writeln!(
                text,
                "\nwithin this memory: --batch-size {graphs}{recomputed}; for the gradients of {} graphs, add --accumulate-grad-batches {}",
                self.wanted,
                self.wanted.div_ceil(graphs)
            ),
        };
    }
}

fn line(text: &mut String, name: &str, bytes: f64) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  {name:<58} {:>12}", gibibytes(bytes));
}
