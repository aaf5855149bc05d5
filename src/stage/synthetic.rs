//! Synthetic attacks of the configured dataset: their folder among the stores, written on first use.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use super::{StageError, setup};
use crate::can::synthetic::{SYNTHETIC_VERSION, SourceBlock, SyntheticKind, SyntheticOptions};
use crate::can::{CanError, Dataset, Role, SourceFile, ensure_synthetic, has_synthetic};
use crate::config::{Config, FeatureChoice, TimeUnitChoice};
use crate::graph::Validation;
use crate::graph::division::{LogFacts, LogUse, attack_free_uses};
use crate::graph::split::blocks_of;
use crate::graph::window::count_windows;

/// Folder below `stores_dir` for synthetic attacks.
const FOLDER: &str = "synthetic";

/// Adds the synthetic attacks of a dataset; writes them on first use.
pub fn add(dataset: Dataset, config: &Config) -> Result<Dataset, StageError> {
    let (options, start) = (options(config), Instant::now());
    let folder = folder(&dataset, &options, config)?;
    let build = setup::build_options(config);
    let uses = uses(&dataset, config)?;
    let divide = |log: &SourceFile, frames| blocks(config, &uses, log, frames);
    let is_new = ensure_synthetic(&dataset, &options, build.format, &build.read_options(), &divide, &folder)?;
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
    let options = options(config);
    let folder = folder(&dataset, &options, config)?;
    let build = setup::build_options(config);
    let uses = uses(&dataset, config)?;
    let divide = |log: &SourceFile, frames| blocks(config, &uses, log, frames);
    let exists = has_synthetic(&dataset, &options, build.format, &build.read_options(), &divide, &folder)?;
    Ok(if exists { Some(dataset.with_synthetic(&folder)?) } else { None })
}

/// The kinds of attack that the configured features can show.
fn options(config: &Config) -> SyntheticOptions {
    let default = SyntheticOptions::default();
    match config.data.features {
        FeatureChoice::Profile => SyntheticOptions { kinds: SyntheticKind::FOR_PROFILES.to_vec(), ..default },
        _ => default,
    }
}

/// Use of each attack-free training log, by its path.
type Uses = HashMap<PathBuf, LogUse>;

/// Use of the attack-free training logs, as the store divides them.
fn uses(dataset: &Dataset, config: &Config) -> Result<Uses, StageError> {
    let options = setup::build_options(config);
    let mut names = Vec::new();
    for file in dataset.files_of(Role::TrainAttackFree) {
        names.push((file, file_name(&file.path), file_bytes(&file.path)?));
    }
    let facts = names.iter().map(|(file, name, bytes)| LogFacts {
        folder: &file.folder,
        name,
        role: file.role,
        bytes: *bytes,
        has_attacks: false,
        is_synthetic: false,
    });
    let uses = attack_free_uses(&facts.collect::<Vec<_>>(), options.validation, options.validation_fraction);
    Ok(names.iter().zip(uses).map(|((file, ..), one)| (file.path.clone(), one)).collect())
}

/// The blocks of a training log for training and validation, as the store cuts it.
fn blocks(config: &Config, uses: &Uses, log: &SourceFile, frames: u64) -> Vec<SourceBlock> {
    let data = &config.data;
    let graphs = count_windows(frames, data.window as u64, data.stride as u64);
    let one = uses.get(&log.path).copied().unwrap_or(LogUse::Blocks);
    blocks_of(one.split(graphs, data.window, data.stride, data.validation_fraction), data.window, data.stride)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn file_bytes(path: &Path) -> Result<u64, StageError> {
    let bytes = std::fs::metadata(path).map_err(|source| CanError::Open { path: path.to_owned(), source })?;
    Ok(bytes.len())
}

/// The folder of the dataset's synthetic attacks, with a key of everything they depend on but the contents of the logs.
fn folder(dataset: &Dataset, options: &SyntheticOptions, config: &Config) -> Result<PathBuf, StageError> {
    let mut logs = Vec::new();
    for file in dataset.files_of(Role::TrainAttackFree) {
        logs.push(json!([file.folder, file_name(&file.path), file_bytes(&file.path)?]));
    }
    let data = &config.data;
    let mut cut = vec![json!(data.window), json!(data.stride), json!(data.validation_fraction), json!(data.log_format)];
    // Whole kinds of attack are held out of the copies that blocks have.
    if setup::build_options(config).validation == Validation::Logs {
        cut.push(json!(Validation::Logs));
    }
    // Added later: folders without these settings keep their names.
    if data.interface.is_some() || data.time_unit != TimeUnitChoice::Auto {
        cut.push(json!([data.interface, data.time_unit]));
    }
    let key = blake3::hash(json!([SYNTHETIC_VERSION, options, cut, logs]).to_string().as_bytes()).to_hex();
    Ok(data.stores_dir.join(FOLDER).join(format!("{}-{}", dataset.name, &key[..12])))
}
