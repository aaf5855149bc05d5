//! The key of a target cache: made of content digests, never of names or shapes alone.

use serde::{Deserialize, Serialize};

use crate::targets::TargetLayout;
use kdgat_graph::Store;
use tch::Kind;

/// Precision of cached values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Exactly as the teacher computed them.
    F32,
    /// Rounded to half precision. Live targets are rounded too, so that a loss does not depend on what is cached.
    F16,
}

impl Precision {
    /// Name of the precision on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// torch's type of the values.
    pub fn kind(self) -> Kind {
        match self {
            Self::F32 => Kind::Float,
            Self::F16 => Kind::Half,
        }
    }

    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// The graphs of a store whose targets a run needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreShape {
    /// Digest of the store of graphs.
    pub dataset_digest: String,
    /// Nodes of each graph of the store; they determine the size of its record.
    pub node_counts: Vec<u32>,
    /// Numbers of the graphs that the run needs, if not all: a complete cache has these.
    pub used: Option<Vec<u64>>,
}

impl StoreShape {
    /// The shape of `store`. `used`: the graphs that will be requested, if not all.
    pub fn new(store: &Store, used: Option<Vec<u64>>) -> Self {
        Self {
            dataset_digest: store.digest().to_owned(),
            node_counts: (0..store.num_graphs()).map(|graph| store.graph(graph).num_nodes() as u32).collect(),
            used,
        }
    }

    /// The shape for `views` views of each of the first `num_viewed` used graphs, and one of the others, in the order in which as many epochs
    /// see them: in epoch e, graph g is seen in view e, or with `staggered` views in view e + g, less multiples of their number. View v of graph
    /// g has the number v·G + g in a store of G graphs.
    pub fn in_views(mut self, views: u64, num_viewed: usize, staggered: bool) -> Self {
        let num_graphs = self.node_counts.len() as u64;
        if views <= 1 {
            return self;
        }
        let used = self.used.unwrap_or_else(|| (0..num_graphs).collect());
        let (viewed, others) = used.split_at(num_viewed.min(used.len()));
        let view = |epoch: u64, graph: u64| if staggered { (epoch + graph % views) % views } else { epoch };
        let seen =
            (0..views).flat_map(|epoch| viewed.iter().map(move |graph| view(epoch, *graph) * num_graphs + graph));
        self.used = Some(seen.chain(others.iter().copied()).collect());
        self.node_counts = self.node_counts.repeat(views as usize);
        self
    }
}

/// Everything that targets depend on. Caches with equal keys have equal values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheKey {
    /// Digest of the teacher's weights.
    pub teacher_weights: String,
    /// The teacher's architecture, as JSON with sorted keys.
    pub architecture: String,
    /// Digest of the store of graphs.
    pub dataset: String,
    /// Features that the teacher reads, as text.
    pub features: String,
    /// Targets and their shapes, as text.
    pub targets: String,
    /// Precision of the values.
    pub precision: Precision,
    /// Digest of the graphs' node counts, which determine the offset of each record.
    pub node_counts: String,
}

impl CacheKey {
    /// Builds the key of a teacher's targets for the graphs of `shape`.
    pub fn new(
        teacher_weights: &str,
        architecture: &str,
        features: &str,
        targets: &TargetLayout,
        precision: Precision,
        shape: &StoreShape,
    ) -> Self {
        let mut hasher = blake3::Hasher::new();
        for count in &shape.node_counts {
            hasher.update(&count.to_le_bytes());
        }
        Self {
            teacher_weights: teacher_weights.to_string(),
            architecture: architecture.to_string(),
            dataset: shape.dataset_digest.clone(),
            features: features.to_string(),
            targets: targets.describe(),
            precision,
            node_counts: hasher.finalize().to_hex().to_string(),
        }
    }

    /// Differences between a cache that was found (`self`) and the one that is needed: name, found, needed.
    pub fn differences(&self, needed: &Self) -> Vec<(&'static str, String, String)> {
        let precision = (self.precision.as_str().to_string(), needed.precision.as_str().to_string());
        let pairs = [
            ("teacher's weights", self.teacher_weights.clone(), needed.teacher_weights.clone()),
            ("teacher's architecture", self.architecture.clone(), needed.architecture.clone()),
            ("dataset", self.dataset.clone(), needed.dataset.clone()),
            ("features", self.features.clone(), needed.features.clone()),
            ("targets", self.targets.clone(), needed.targets.clone()),
            ("precision", precision.0, precision.1),
            ("node counts", self.node_counts.clone(), needed.node_counts.clone()),
        ];
        pairs.into_iter().filter(|(_, found, needed)| found != needed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> CacheKey {
        let shape = StoreShape { dataset_digest: "d".to_string(), node_counts: vec![3, 4], used: None };
        CacheKey::new("w", "{}", "10 continuous", &TargetLayout::vgae(Some(4), 10), Precision::F32, &shape)
    }

    #[test]
    fn every_part_is_named_when_it_differs() {
        assert!(key().differences(&key()).is_empty());
        let changed = [
            ("teacher's weights", CacheKey { teacher_weights: "x".to_string(), ..key() }),
            ("teacher's architecture", CacheKey { architecture: "x".to_string(), ..key() }),
            ("dataset", CacheKey { dataset: "x".to_string(), ..key() }),
            ("features", CacheKey { features: "x".to_string(), ..key() }),
            ("targets", CacheKey { targets: "x".to_string(), ..key() }),
            ("precision", CacheKey { precision: Precision::F16, ..key() }),
            ("node counts", CacheKey { node_counts: "x".to_string(), ..key() }),
        ];
        for (name, other) in changed {
            let differences = other.differences(&key());
            assert_eq!(differences.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), [name]);
        }
    }
}
