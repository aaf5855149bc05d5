//! Scoring speed of a model, measured on graphs of a store from mapped columns to scores.

use std::time::{Duration, Instant};

use super::{EvaluateError, Scorer};
use kdgat_graph::Store;
use kdgat_graph::assemble::Assembler;
use kdgat_train::memory::{Meter, retry_on_oom};

/// Graphs per large batch.
const LARGE_BATCH: usize = 512;
/// Measuring time per batch size.
const MEASURED: Duration = Duration::from_millis(300);
/// Warm-up batches that are not counted: memory is not allocated yet.
const WARM_UP: usize = 3;

/// Time and throughput, including batch assembly.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Speed {
    /// Median milliseconds per graph, one graph at a time.
    pub ms_per_graph_batch_1: f64,
    /// Median milliseconds per graph in batches of 512.
    pub ms_per_graph_batch_512: f64,
    /// Frames per second at batch 512: a new window begins every `stride` frames.
    pub frames_per_second: f64,
    /// Number of compute threads.
    pub threads: i32,
}

impl Speed {
    /// Speed of running one model after the other.
    pub fn and_then(&self, other: &Speed) -> Speed {
        Speed {
            ms_per_graph_batch_1: self.ms_per_graph_batch_1 + other.ms_per_graph_batch_1,
            ms_per_graph_batch_512: self.ms_per_graph_batch_512 + other.ms_per_graph_batch_512,
            frames_per_second: 1.0 / (1.0 / self.frames_per_second + 1.0 / other.frames_per_second),
            threads: self.threads,
        }
    }
}

/// Measures on these graphs; `None` if there are none.
pub fn measure(scorer: &Scorer, store: &Store, graphs: &[u64]) -> Result<Option<Speed>, EvaluateError> {
    if graphs.is_empty() {
        return Ok(None);
    }
    let single = median_seconds(scorer, store, graphs, 1)?;
    let large = median_seconds(scorer, store, graphs, LARGE_BATCH)?;
    Ok(Some(Speed {
        ms_per_graph_batch_1: 1e3 * single,
        ms_per_graph_batch_512: 1e3 * large,
        frames_per_second: store.manifest().options.stride as f64 / large,
        threads: tch::get_num_threads(),
    }))
}

/// Median seconds per graph in batches of `size`, or of all graphs if there are fewer.
fn median_seconds(scorer: &Scorer, store: &Store, graphs: &[u64], size: usize) -> Result<f64, EvaluateError> {
    let options = scorer.assemble_options();
    let mut assembler = Assembler::default();
    let mut seconds = Vec::new();
    let begin = Instant::now();
    for (count, batch) in graphs.chunks_exact(size.min(graphs.len())).cycle().enumerate() {
        let start = Instant::now();
        retry_on_oom(Meter::new(scorer.device()), || scorer.raw_scores(&assembler.assemble(store, batch, &options)?))?;
        if count >= WARM_UP {
            seconds.push(start.elapsed().as_secs_f64() / batch.len() as f64);
        }
        if count > WARM_UP && begin.elapsed() > MEASURED {
            break;
        }
    }
    seconds.sort_unstable_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}
