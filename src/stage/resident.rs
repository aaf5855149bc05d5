//! Graphs that stay on the training device, where there is room for them.

use std::sync::Arc;

use tch::Device;

use super::StageError;
use super::epochs::Graphs;
use super::sizing::{limit_of, planned_bytes};
use crate::config::Config;
use crate::graph::{AssembleOptions, Loader, ResidentGraphs, Store};
use crate::memory::budget::mebibytes;
use crate::memory::{self, Meter};
use crate::train::console::Console;

/// Largest share of the memory to plan for that graphs may take: the rest is for batches, weights and activations.
pub const LARGEST_SHARE: f64 = 0.5;

/// Loaders of training and validation batches that are made on the device; `None` if they are not asked for, or cannot be, which is said.
///
/// # Errors
/// An unreadable store, or a device that fails for another reason than want of memory.
pub fn loaders(
    config: &Config,
    store: &Arc<Store>,
    graphs: &Graphs,
    options: &[AssembleOptions; 2],
    device: Device,
    console: &mut Console,
) -> Result<Option<[Loader; 2]>, StageError> {
    if !config.memory.graphs_on_device {
        return Ok(None);
    }
    let mut all = [&graphs.training[..], &graphs.validation].concat();
    all.sort_unstable();
    all.dedup();
    let mut stay = |why: String| {
        console.line(&format!("memory: graphs stay in host memory, where batches are made: {why}"));
        Ok(None)
    };
    if let Some(obstacle) = ResidentGraphs::obstacle(store, &options[0]) {
        return stay(obstacle.to_owned());
    }
    let bytes = ResidentGraphs::most_bytes(store, &all, &options[0])?;
    let room = LARGEST_SHARE * planned_bytes(config, device, &limit_of(config, device)?);
    if bytes as f64 > room {
        let [bytes, room] = [bytes as f64, room].map(mebibytes);
        return stay(format!("they would take {bytes} on the device, and {room} are planned for them at most"));
    }
    let copied = memory::retry_on_oom(Meter::new(device), || {
        Ok::<_, StageError>(ResidentGraphs::copy(Arc::clone(store), &all, options[0].clone(), device)?)
    });
    // What the copies have left in the allocators' caches.
    Meter::new(device).release_kept();
    let resident = match copied {
        Ok(resident) => Arc::new(resident),
        Err(error) if memory::is_out_of_memory(&error) => return stay(error.to_string()),
        Err(error) => return Err(error),
    };
    let [count, bytes] = [all.len().to_string(), mebibytes(resident.bytes() as f64)];
    console.line(&format!("memory: {count} graphs stay on the device in {bytes}; batches are made there"));
    Ok(Some([0, 1].map(|set| Loader::on_device(Arc::clone(&resident), options[set].unknown_drop))))
}
