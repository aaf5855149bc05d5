//! Synthetic attacks of the configured dataset: their folder among the stores, written on first use.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;

use super::{StageError, setup};
use crate::can::synthetic::{SYNTHETIC_VERSION, SourceBlock, SyntheticOptions};
use crate::can::{CanError, Dataset, Role, ensure_synthetic, has_synthetic};
use crate::config::Config;
use crate::graph::split::source_blocks;

/// Folder below `stores_dir` for synthetic attacks.
const FOLDER: &str = "synthetic";

/// Adds the synthetic attacks of a dataset; writes them on first use.
pub fn add(dataset: Dataset, config: &Config) -> Result<Dataset, StageError> {
    let (options, start) = (SyntheticOptions::default(), Instant::now());
    let folder = folder(&dataset, &options, config)?;
    let format = setup::build_options(config).format;
    let is_new = ensure_synthetic(&dataset, &options, format, &|frames| blocks(config, frames), &folder)?;
    let logs = dataset.files.len();
    let dataset = dataset.with_synthetic(&folder)?;
    if is_new {
        eprintln!(
            "made {} logs with synthetic attacks from the attack-free training logs of the dataset '{}' in {:.1} s: {}",
            dataset.files.len() - logs,
            dataset.name,
            start.elapsed().as_secs_f64(),
            folder.display()
        );
    }
    Ok(dataset)
}

/// Adds the synthetic attacks of a dataset if they exist and its logs have not changed; `None` otherwise. Writes nothing.
pub fn add_existing(dataset: Dataset, config: &Config) -> Result<Option<Dataset>, StageError> {
    let options = SyntheticOptions::default();
    let folder = folder(&dataset, &options, config)?;
    let format = setup::build_options(config).format;
    let exists = has_synthetic(&dataset, &options, format, &|frames| blocks(config, frames), &folder)?;
    Ok(if exists { Some(dataset.with_synthetic(&folder)?) } else { None })
}

/// The blocks of a training log for training and validation, as the store cuts it.
fn blocks(config: &Config, frames: u64) -> Vec<SourceBlock> {
    let data = &config.data;
    source_blocks(frames, data.window, data.stride, data.validation_fraction)
}

/// The folder of the dataset's synthetic attacks, with a key of everything they depend on but the contents of the logs.
fn folder(dataset: &Dataset, options: &SyntheticOptions, config: &Config) -> Result<PathBuf, StageError> {
    let mut logs = Vec::new();
    for file in dataset.files_of(Role::TrainAttackFree) {
        let bytes =
            std::fs::metadata(&file.path).map_err(|source| CanError::Open { path: file.path.clone(), source })?;
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        logs.push(json!([file.folder, name, bytes.len()]));
    }
    let data = &config.data;
    let cut = json!([data.window, data.stride, data.validation_fraction, data.log_format]);
    let key = blake3::hash(json!([SYNTHETIC_VERSION, options, cut, logs]).to_string().as_bytes()).to_hex();
    Ok(data.stores_dir.join(FOLDER).join(format!("{}-{}", dataset.name, &key[..12])))
}
