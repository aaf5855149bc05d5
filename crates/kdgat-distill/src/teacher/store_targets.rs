//! Opens the cache according to the options, states its size, and chooses between memory and disk.

use std::path::Path;

use crate::cache::{CacheError, CacheKey, RecordLayout, StoreShape, TargetCache, free_disk_bytes};
use crate::planner::format_bytes;
use crate::targets::TargetLayout;

use super::{CacheMode, CacheOptions, TeacherError};

/// Opens the cache, if there is one. Also returns lines for the user.
pub(super) fn open(
    options: &CacheOptions,
    targets: TargetLayout,
    teacher_digest: &str,
    shape: &StoreShape,
) -> Result<(Option<TargetCache>, Vec<String>), TeacherError> {
    if options.mode == CacheMode::Off {
        return Ok((None, Vec::new()));
    }
    let precision = options.precision;
    let key = CacheKey::new(teacher_digest, &options.architecture, &options.features, &targets, precision, shape);
    let layout = RecordLayout::new(targets, precision, &shape.node_counts);
    let used = shape.used.as_deref();
    let bytes = layout.total_bytes(used)?;
    let graphs = used.map_or(layout.graphs(), |used| used.len() as u64);
    let unit = options.unit;
    let size = format!("targets of {graphs} {unit} take {} in {}", format_bytes(bytes), precision.as_str());
    let budget = format_bytes(options.ram_budget_bytes);
    let fits = bytes <= options.ram_budget_bytes;
    match (options.mode, &options.path) {
        (CacheMode::Ram, _) | (CacheMode::Auto, _) if fits => {
            let mut cache = TargetCache::in_memory(layout.clone(), used)?;
            let mut lines = vec![format!("teacher cache: {size}; cached in memory ({budget} allowed)")];
            // Targets computed ahead of time or by another run.
            if let (CacheMode::Auto, Some(path)) = (options.mode, options.path.as_ref().filter(|path| path.exists())) {
                let read = cache.read_from(&mut TargetCache::open(path, &key, layout, used)?)?;
                lines.push(format!("teacher cache: {read} of {graphs} {unit} read from {}", path.display()));
            }
            Ok((Some(cache), lines))
        }
        (CacheMode::Ram, _) => Err(TeacherError::CacheTooLarge { size, budget }),
        (CacheMode::Auto, None) => {
            let line = format!("teacher cache: none: {size}, memory allows {budget}, and no cache file is named");
            Ok((None, vec![line]))
        }
        (_, None) => Err(TeacherError::NoCachePath),
        (_, Some(path)) => on_disk(path, &key, layout, used, (&size, unit)),
    }
}

fn on_disk(
    path: &Path,
    key: &CacheKey,
    layout: RecordLayout,
    used: Option<&[u64]>,
    (size, unit): (&str, &str),
) -> Result<(Option<TargetCache>, Vec<String>), TeacherError> {
    let bytes = layout.total_bytes(used)?;
    if let Some(folder) = path.parent() {
        let error = |source| CacheError::Io { path: folder.to_owned(), action: "create the folder of", source };
        std::fs::create_dir_all(folder).map_err(error)?;
    }
    let free = free_disk_bytes(path.parent().unwrap_or(Path::new(".")));
    let place = path.display();
    let free_text = free.map_or("an unknown amount".to_string(), format_bytes);
    // A cache file that exists needs no more room for its filled records.
    if !path.exists() && free.is_some_and(|free| free < bytes) {
        tracing::warn!("{size}, but the disk of {place} has {free_text} free: targets are computed in every epoch");
        return Ok((None, vec![format!("teacher cache: none: {size}, and the disk of {place} has {free_text} free")]));
    }
    let cache = TargetCache::open(path, key, layout, used)?;
    let summary = cache.summary();
    let line = format!(
        "teacher cache: {size}; in {place} ({free_text} free), {} of {} {unit} already cached",
        summary.filled_graphs, summary.used_graphs
    );
    Ok((Some(cache), vec![line]))
}
