//! Several processes that train together: how they meet, and what process 0 decides for all.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::StageError;
use crate::config::{self, Config, DataKind, Stage};
use crate::files;
use crate::train::fit::{LAST, METRICS};
use crate::train::processes::place::{self, Place};
use crate::train::processes::{LAUNCH, Meeting, ProcessError, Processes};
use crate::train::run_directory::RunDirectory;

/// Joins the processes that the environment names; `None` if this one trains alone.
///
/// # Errors
/// Variables that contradict each other, processes that do not come, or a configuration that only one process can train.
pub fn join(stage: Stage, config: &Config) -> Result<Option<Arc<Processes>>, StageError> {
    let Some(place) = place::from_environment()? else { return Ok(None) };
    let refused = |text: &str| StageError::Input(format!("{} processes: {text}", place.size));
    if config.data_kind == DataKind::OneGraph && config.nodes.clusters.is_some() {
        return Err(refused(
            "batches of clusters cannot be divided; leave out --clusters, sample neighbours with --fanouts, or train in one process",
        ));
    }
    if config.training.cuda_graphs == Some(true) {
        return Err(refused(
            "a step that is captured as a CUDA graph cannot exchange its sums; use --cuda-graphs false",
        ));
    }
    let run = digest(stage, config);
    let timeout = Duration::from_secs_f64(config.training.process_timeout);
    Ok(Some(Processes::join(place, &Meeting { run: &run, timeout })?))
}

/// The digest of what all processes must have in common.
fn digest(stage: Stage, config: &Config) -> String {
    let training = &config.training;
    let content = json!({
        "stage": stage.command(),
        "losses": config::loss_fields(config, stage),
        "batches": [training.batch_size, training.min_steps_per_epoch, training.log_every_n_steps],
        "finds_batch_size": training.optimize_batch_size,
        "resume": config.output.resume,
    });
    blake3::hash(content.to_string().as_bytes()).to_hex()[..16].to_owned()
}

/// A folder of a process that does not write the run's: its logs, and copies of what it reads of the run. Removed at the end.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder, and the run directory in it.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn new(place: &Place) -> Result<(Self, RunDirectory), StageError> {
        // That of the launcher is removed even if this process is killed.
        let parent = std::env::var_os(LAUNCH).map_or_else(std::env::temp_dir, PathBuf::from);
        let path = parent.join(format!("kdgat-{}-process-{}", std::process::id(), place.rank));
        let directory = RunDirectory::at(&path, true)?;
        Ok((Self(path), directory))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that stays costs a few kilobytes.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Gives all processes the files of process 0's run that a resumed training reads. Returns true if it resumes.
///
/// # Errors
/// A file that cannot be read or written, or a process that ended.
pub fn share_run(processes: &Processes, directory: &RunDirectory, resumes: bool) -> Result<bool, StageError> {
    let resumes = processes.bytes_of_first(&[u8::from(resumes)])? == [1];
    for name in ["config.json", LAST, METRICS].into_iter().filter(|_| resumes) {
        let path = directory.file(name);
        let error = |action| files::failed(action, &path);
        let own = match processes.is_first() && path.exists() {
            true => fs::read(&path).map_err(error("read"))?,
            false => Vec::new(),
        };
        let bytes = processes.bytes_of_first(&own)?;
        if !processes.is_first() && !bytes.is_empty() {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(error("create"))?;
            }
            files::write_atomically(&path, &bytes).map_err(error("write"))?;
        }
    }
    Ok(resumes)
}

/// Sizes of batches that each process has decided for its share of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareSizes {
    /// Graphs of a share.
    pub graphs: usize,
    /// True if the backward pass recomputes activations.
    pub recomputes: bool,
}

/// The sizes that fit in every process: the smallest share, and recomputed activations if one of them needs that.
///
/// # Errors
/// A process that ended.
pub fn agree(processes: &Processes, own: ShareSizes) -> Result<ShareSizes, ProcessError> {
    let all = processes.exchange(&[own.graphs as f64, f64::from(u8::from(own.recomputes))])?;
    Ok(ShareSizes {
        graphs: all.iter().map(|row| row[0] as usize).min().unwrap_or(own.graphs),
        recomputes: all.iter().any(|row| row[1] > 0.0),
    })
}
