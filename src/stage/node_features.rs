//! The place that batches of one large graph read features from, and the rows that are kept in memory.

use std::sync::Arc;

use super::StageError;
use crate::config::{Config, FeaturesFrom};
use crate::memory::budget::gibibytes;
use crate::nodes::{Fanout, FeatureRows, Features, HotNodes, NodeGraph, RowAccess, visit_probabilities};

/// Features up to this size are mapped: the system's cache holds them, and nothing has to be read before the first batch.
pub(super) const SMALL_BYTES: f64 = (256 << 20) as f64;

/// Edges above which counting visits takes so long that a line announces it.
const MANY_EDGES: usize = 100_000_000;

/// Rows of features, and lines for the user.
pub struct ChosenRows {
    pub rows: Arc<FeatureRows>,
    pub notes: Vec<String>,
}

/// The sampled batches of a training.
pub struct SampledBatches<'a> {
    /// Seeds of an epoch.
    pub seeds: &'a [u64],
    /// Seeds whose neighbours are sampled after each epoch; empty if validation reads the whole graph.
    pub validation: &'a [u64],
    pub batch_nodes: usize,
    pub fanouts: &'a [Fanout],
}

impl SampledBatches<'_> {
    /// `[num_nodes]`: probability that a batch of an epoch, of training or validation, reads each node.
    fn visits(&self, graph: &NodeGraph) -> Vec<f32> {
        let of = |seeds: &[u64]| {
            let seeds = seeds.iter().map(|&seed| seed as u32);
            visit_probabilities(graph, seeds, self.batch_nodes, self.fanouts)
        };
        let mut likely = of(self.seeds);
        if !self.validation.is_empty() {
            let share = self.validation.len() as f32 / (self.seeds.len() + self.validation.len()) as f32;
            let also = of(self.validation);
            likely.iter_mut().zip(also).for_each(|(likely, also)| *likely += share * (also - *likely));
        }
        likely
    }
}

/// Chooses the place by the configuration and by the memory that is free for features, and fills the hot rows. `sampled` is `None` for
/// batches without sampled neighbours, which have no hot rows.
///
/// # Errors
/// A place that these features do not allow, rows that cannot be read, or no memory for them.
pub fn choose(
    config: &Config,
    graph: &NodeGraph,
    free_bytes: f64,
    sampled: Option<SampledBatches>,
) -> Result<ChosenRows, StageError> {
    let mapped = FeatureRows::mapped(&graph.features);
    let Some(row_bytes) = mapped.row_bytes().filter(|&bytes| bytes > 0) else {
        return Ok(ChosenRows {
            rows: Arc::new(FeatureRows::open(&graph.features, given(config))?),
            notes: Vec::new(),
        });
    };
    let bytes = (row_bytes * graph.num_nodes()) as f64;
    let (access, reason) = match config.memory.features_from {
        FeaturesFrom::Auto => automatic(&graph.features, bytes, free_bytes),
        _ => (given(config), (config.memory.features_from != FeaturesFrom::Mapped).then(|| "as configured".to_owned())),
    };
    let mut rows = FeatureRows::open(&graph.features, access)?;
    let mut notes = Vec::new();
    if let Some(reason) = reason {
        let way = match access {
            RowAccess::Mapped => "read from the mapped store",
            RowAccess::Resident => "kept in memory",
            RowAccess::Direct if rows.is_direct() => "read around the system's cache",
            RowAccess::Direct => "read from the file, whose file system allows no direct reads",
        };
        let method = match rows.reader()?.method() {
            Some(method) => format!(" by {}", method.as_str()),
            None => String::new(),
        };
        notes.push(format!("features: {} {way}{method}: {reason}", gibibytes(bytes)));
    }
    if let Some(sampled) = sampled {
        let wanted = match (config.memory.hot_rows, access) {
            (Some(wanted), _) => wanted,
            (None, RowAccess::Direct) => room_for_rows(free_bytes, row_bytes, graph.num_nodes()),
            (None, _) => 0,
        };
        if wanted > 0 {
            if graph.num_edges() > MANY_EDGES {
                eprintln!("features: computing how often batches read each of {} nodes", graph.num_nodes());
            }
            let likely = sampled.visits(graph);
            let hot = HotNodes::most_likely(&likely, wanted);
            let sum = |values: &mut dyn Iterator<Item = f32>| values.map(f64::from).sum::<f64>();
            let expected = sum(&mut hot.iter().map(|node| likely[node as usize])) / sum(&mut likely.iter().copied());
            drop(likely);
            notes.push(format!(
                "features: the {} most read rows are kept in {}: about {:.1} % of what batches read",
                hot.len(),
                gibibytes((hot.len() * row_bytes) as f64),
                100.0 * expected
            ));
            rows = rows.with_hot(hot)?;
        }
    }
    Ok(ChosenRows { rows: Arc::new(rows), notes })
}

/// The configured place; mapped if it is chosen automatically.
fn given(config: &Config) -> RowAccess {
    match config.memory.features_from {
        FeaturesFrom::Auto | FeaturesFrom::Mapped => RowAccess::Mapped,
        FeaturesFrom::Direct => RowAccess::Direct,
        FeaturesFrom::Resident => RowAccess::Resident,
    }
}

/// Rows for batches whose memory is measured, before it is known which rows are kept in memory: read around the system's cache if they do
/// not fit into memory, because the system would read megabytes around each of them.
///
/// # Errors
/// If the file cannot be opened.
pub fn for_measuring(graph: &NodeGraph, free_bytes: f64) -> Result<Arc<FeatureRows>, StageError> {
    let row_bytes = FeatureRows::mapped(&graph.features).row_bytes().unwrap_or(0);
    let (access, _) = automatic(&graph.features, (row_bytes * graph.num_nodes()) as f64, free_bytes);
    Ok(Arc::new(match access {
        RowAccess::Direct => FeatureRows::open(&graph.features, access)?,
        RowAccess::Mapped | RowAccess::Resident => FeatureRows::mapped(&graph.features),
    }))
}

/// Prepares a graph for sampling: without room in memory for the edges, the system would read megabytes around each row of them.
///
/// # Errors
/// If the system does not take the advice.
pub fn prepare_sampling(graph: &NodeGraph, free_bytes: f64) -> Result<(), StageError> {
    if (graph.edge_bytes() as f64) <= free_bytes {
        return Ok(());
    }
    tracing::debug!("edges are read ahead row by row: they take {}", gibibytes(graph.edge_bytes() as f64));
    graph.read_edges_randomly().map_err(|error| StageError::Input(format!("the edges of {}: {error}", graph.name)))
}

/// Prepares a graph for passes over its edges, after [`prepare_sampling`].
///
/// # Errors
/// If the system does not take the advice.
pub fn prepare_passes(graph: &NodeGraph) -> Result<(), StageError> {
    graph.read_edges_in_order().map_err(|error| StageError::Input(format!("the edges of {}: {error}", graph.name)))
}

/// The place for features of this size, and the reason if there is something to say.
fn automatic(features: &Features, bytes: f64, free_bytes: f64) -> (RowAccess, Option<String>) {
    let in_file = match features {
        Features::Dense { values, .. } => values.place().is_some(),
        Features::Half { values, .. } => values.place().is_some(),
        Features::Sparse { .. } => false,
    };
    let room = gibibytes(free_bytes);
    if !in_file || bytes <= SMALL_BYTES {
        (RowAccess::Mapped, None)
    } else if bytes <= free_bytes {
        (RowAccess::Resident, Some(format!("the memory limit leaves {room}")))
    } else {
        (RowAccess::Direct, Some(format!("the memory limit leaves {room} for them")))
    }
}

/// Number of rows that fit into the free memory with the index of the hot nodes.
pub fn room_for_rows(free_bytes: f64, row_bytes: usize, num_nodes: usize) -> usize {
    let left = (free_bytes - crate::nodes::hot_rows::index_bytes(num_nodes) as f64).max(0.0);
    ((left / row_bytes as f64) as usize).min(num_nodes)
}

/// The line on what was read, for the end of a training; `None` if all rows came from the mapped store or from memory.
pub fn summary(rows: &FeatureRows) -> Option<String> {
    let counts = rows.counts();
    if counts.rows == 0 || (rows.num_hot() == 0 && rows.access() != RowAccess::Direct) {
        return None;
    }
    let reads = match rows.access() {
        RowAccess::Direct => format!("; {} direct reads of {}", counts.reads, gibibytes(counts.read_bytes as f64)),
        RowAccess::Mapped | RowAccess::Resident => String::new(),
    };
    let share = 100.0 * counts.hot as f64 / counts.rows as f64;
    Some(format!(
        "features: {} rows read, {share:.1} % of them from the {} hot rows{reads}",
        counts.rows,
        rows.num_hot()
    ))
}
