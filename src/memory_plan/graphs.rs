//! Text of a memory plan for a training on many graphs, from measured steps.

use std::fmt::Write;

use crate::memory::budget::{MemoryBudget, WorstBatches, gibibytes};
use crate::memory::limits::{Limit, PROCESS_BYTES};

/// Batch sizes of the table, in graphs.
const BATCH_SIZES: [usize; 8] = [16, 32, 64, 128, 256, 512, 1024, 2048];
/// Share of the peak that a setting must save to be named.
const WORTH_NAMING: f64 = 0.01;

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
    pub at: String,
    /// Its components.
    pub rows: Vec<Row>,
    /// Expected peaks with other settings, which name the rows.
    pub others: Vec<Row>,
}

impl Expected {
    /// All components together, in bytes.
    pub fn bytes(&self) -> f64 {
        self.rows.iter().map(|row| row.bytes).sum()
    }
}

/// A plan for a dataset of graphs.
#[derive(Debug)]
pub struct GraphPlan {
    /// Lines about model, data and teacher.
    pub what: Vec<String>,
    /// Files, with their bytes.
    pub files: Vec<Row>,
    /// `None` on a GPU.
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
    /// True if the batch has the wanted graphs even if they go through the model in parts.
    pub is_fixed: bool,
    pub safety_factor: f64,
    /// The part of the limit that is planned for, in bytes.
    pub planned_bytes: f64,
    pub limit: Limit,
    /// The flag that raises the limit.
    pub limit_flag: &'static str,
}

impl GraphPlan {
    /// The plan as text: model and data, disk, memory at the expected peak, the most that a batch can need, and settings.
    pub fn describe(&self) -> String {
        let mut text = self.what.join("\n");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n\non disk:");
        self.files.iter().for_each(|row| line(&mut text, &row.name, row.bytes));
        line(&mut text, "sum", self.files.iter().map(|row| row.bytes).sum());
        if let Some(expected) = &self.expected {
            let _ = writeln!(text, "\nmemory at the expected peak, {}:", expected.at);
            expected.rows.iter().for_each(|row| line(&mut text, &row.name, row.bytes));
            line(&mut text, "expected peak of tensors", expected.bytes());
            line(&mut text, "the program itself, at most", PROCESS_BYTES as f64);
            let worthwhile = |row: &&Row| row.bytes < (1.0 - WORTH_NAMING) * expected.bytes();
            for row in expected.others.iter().filter(worthwhile) {
                line(&mut text, &format!("expected peak with {}", row.name), row.bytes);
            }
        }
        self.describe_worst(&mut text);
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
        let most = self.wanted.max(1) * 4;
        let sizes = BATCH_SIZES.into_iter().filter(|&size| size < most && size < self.graphs && size != self.wanted);
        let mut sizes: Vec<usize> = sizes.chain([self.wanted.clamp(1, self.graphs.max(1))]).collect();
        sizes.sort_unstable();
        for size in sizes {
            let bytes = self.budget.peak_bytes(self.worst.shape(size));
            let fits = if bytes <= self.planned_bytes { "" } else { ", too large" };
            line(text, &format!("batches of {size} graphs{fits}"), bytes);
        }
        let _ = match self.fitting {
            None => {
                writeln!(text, "\nnot even one graph at a time fits: raise {}, or use a smaller model", self.limit_flag)
            }
            Some(graphs) if graphs >= self.wanted.min(self.graphs) => {
                writeln!(text, "\nwithin this memory: --batch-size {}", self.wanted)
            }
            Some(graphs) if self.is_fixed => {
                writeln!(text, "\nwithin this memory: --batch-size {}, {graphs} graphs at a time", self.wanted)
            }
            Some(graphs) => writeln!(
                text,
                "\nwithin this memory: --batch-size {graphs}; for the gradients of {} graphs, add --accumulate-grad-batches {}",
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
