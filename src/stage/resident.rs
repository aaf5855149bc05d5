//! Graphs that stay on the training device, where there is room for them.

use std::sync::Arc;

use tch::Device;

use super::StageError;
use super::epochs::Graphs;
use super::sizing::{limit_of, planned_bytes};
use crate::config::Config;
use crate::graph::{AssembleOptions, Gatherer, Loader, ResidentGraphs, Store};
use crate::memory::budget::mebibytes;
use crate::memory::{self, Meter};
use crate::train::console::Console;

/// Largest share of the memory to plan for that graphs may take: the rest is for batches, weights and activations.
const LARGEST_SHARE: f64 = 0.5;

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
    if !device.is_cuda() {
        return stay("it is the memory of the device".to_owned());
    }
    if let Err(error) = Gatherer::of(device) {
        return stay(error.to_string());
    }
    let planned = planned_bytes(config, device, &limit_of(config, device)?);
    if let Err(why) = room(store, &all, &options[0], planned)? {
        return stay(why);
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

/// Bytes that these graphs take at most if they may stay on a device of whose memory so many bytes are planned for, or the reason why not.
///
/// # Errors
/// An unreadable store.
pub fn room(
    store: &Store,
    graphs: &[u64],
    options: &AssembleOptions,
    planned: f64,
) -> Result<Result<f64, String>, StageError> {
    if let Some(obstacle) = ResidentGraphs::obstacle(store, options) {
        return Ok(Err(obstacle.to_owned()));
    }
    let (bytes, room) = (ResidentGraphs::most_bytes(store, graphs, options)? as f64, LARGEST_SHARE * planned);
    Ok(match bytes <= room {
        true => Ok(bytes),
        false => {
            let [bytes, room] = [bytes, room].map(mebibytes);
            Err(format!("they would take {bytes} on the device, and {room} are planned for them at most"))
        }
    })
}
