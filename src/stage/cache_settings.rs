//! The settings of a cache of a teacher's targets: its file, whose name and key contain everything that the targets depend on, and its memory.

use super::node_targets::joined;
use super::teacher::FoundTeacher;
use crate::config::{self, CachePrecision, Config, Stage, TeacherCache};
use crate::distill::frozen::{HiddenIds, TeacherVocabulary};
use crate::distill::{CacheMode, CacheOptions, Precision};
use crate::memory;
use crate::nn::{Architecture, DatasetIdentity};

/// With `teacher_cache = "auto"`, targets are cached in memory if they need at most 1/4 of the free memory.
const CACHE_SHARE_OF_FREE_MEMORY: u64 = 4;

/// Host memory in bytes that the automatic choices allow for cached targets and for a teacher's activations.
pub fn cache_memory_bytes(config: &Config) -> u64 {
    let limit = memory::limits::host_limit(config.memory.memory_limit.map(|size| size.0));
    memory::available_bytes().min(limit.bytes) / CACHE_SHARE_OF_FREE_MEMORY
}

/// The configured options for caching this teacher's targets.
pub fn cache_options(config: &Config, found: &FoundTeacher, dataset: &DatasetIdentity) -> CacheOptions {
    let settings = &config.distillation;
    let digest = &found.weights.digest()[..12];
    let precision = match settings.teacher_cache_precision {
        CachePrecision::F32 => Precision::F32,
        CachePrecision::F16 => Precision::F16,
    };
    let has_latents = matches!(found.architecture, Architecture::Vgae(_) | Architecture::GraphVgae(_));
    let has_latent = found.asked.latent || !has_latents;
    let latent = if has_latent { "" } else { "-no-latent" };
    let hints = if found.asked.hidden { "-hints" } else { "" };
    let fanouts = config.nodes.teacher_fanouts.as_deref().map(joined);
    let sampled = fanouts.as_ref().map(|text| format!("-sampled-{}", text.replace(',', "-"))).unwrap_or_default();
    let changes = found.changes.describe();
    let changed = changes.as_ref().map(|text| format!("-changed-{}", &blake3::hash(text.as_bytes()).to_hex()[..12]));
    let views = views_key(config, found.asked.hidden_ids);
    let seen = views.as_ref().map(|text| format!("-views-{}", &blake3::hash(text.as_bytes()).to_hex()[..12]));
    let suffixes = [latent, hints, &sampled, &changed.unwrap_or_default(), &seen.unwrap_or_default()].concat();
    let kept = format!("{}{suffixes}.targets", precision.as_str());
    let name = format!("{}-{digest}-{}-{kept}", dataset.name, &dataset.digest[..12]);
    let mode = match settings.cache() {
        TeacherCache::Auto => CacheMode::Auto,
        TeacherCache::Off => CacheMode::Off,
        TeacherCache::Ram => CacheMode::Ram,
        TeacherCache::Disk => CacheMode::Disk,
    };
    CacheOptions {
        mode,
        precision,
        path: Some(settings.teacher_cache_dir.join(name)),
        unit: if matches!(found.architecture, Architecture::Nodes(_)) { "nodes" } else { "graphs" },
        ram_budget_bytes: cache_memory_bytes(config),
        architecture: architectures(found),
        features: match (&found.vocabulary, fanouts, changes) {
            (TeacherVocabulary::Hidden, ..) => "IDs hidden".to_owned(),
            (_, None, None) => {
                let views = views.map(|text| format!(", {text}")).unwrap_or_default();
                format!("vocabulary {}{views}", found.vocabulary_digest)
            }
            (_, None, Some(changes)) => changes,
            (_, Some(fanouts), _) => format!("{fanouts} sampled neighbours"),
        },
    }
}

/// Everything that the views of training graphs depend on, as text; `None` without views.
fn views_key(config: &Config, hidden_ids: HiddenIds) -> Option<String> {
    let views = config.distillation.kd_views;
    let hidden = match hidden_ids {
        HiddenIds::Seen => {
            let deviation = config::displacement(config, Stage::Train)?;
            return Some(format!("{views} views displaced by {deviation}"));
        }
        HiddenIds::Unknown => "hidden",
        HiddenIds::Replaced => "replaced",
    };
    Some(format!("{views} views with {} of the IDs {hidden}", config.model.unknown_drop))
}

/// The architectures of a teacher's networks, as text.
fn architectures(found: &FoundTeacher) -> String {
    let texts = found.architectures().into_iter().map(|architecture| architecture.to_json().to_string());
    texts.collect::<Vec<_>>().join(" and ")
}
