//! Number of concurrent tasks on this machine, and the resources of each.

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;

use super::attempt::Grant;
use crate::SweepError;
use crate::plan::Plan;
use kdgat_config::DeviceChoice;
use kdgat_train::memory::limits::{LEAST_PROCESS_BYTES, PROCESS_BYTES, host_limit};

/// Slots for concurrent tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Slots {
    /// Resources of each slot.
    pub grants: Vec<Grant>,
    /// Explanation of the number of slots, for display.
    pub reason: String,
}

/// Limits that the user asks for.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Concurrent tasks; `None` for as many as memory, GPUs and cores allow.
    pub jobs: Option<usize>,
    /// Host memory of all tasks together, in bytes; `None` for the limit of the control group, the batch system or the machine.
    pub memory_bytes: Option<u64>,
}

/// A GPU as in CUDA_VISIBLE_DEVICES, and its free memory in bytes.
type Gpu = (String, u64);

/// Divides the machine's resources among the tasks of a plan.
///
/// # Errors
/// If not even one task can run.
pub fn slots(plan: &Plan, wish: &Wish) -> Result<Slots, SweepError> {
    let wants_gpu =
        plan.tasks.iter().any(|task| task.kind.stage().is_some() && task.config.training.device != DeviceChoice::Cpu);
    let gpus = if wants_gpu { gpus() } else { Vec::new() };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    // The limit for tensors, plus the memory of one process without them.
    let memory = wish.memory_bytes.unwrap_or_else(|| host_limit(None).bytes + PROCESS_BYTES);
    divide(plan, wish, &gpus, cores, memory)
}

fn divide(plan: &Plan, wish: &Wish, gpus: &[Gpu], cores: usize, memory: u64) -> Result<Slots, SweepError> {
    let resources = &plan.resources;
    let needed = resources.memory_per_trial.0.max(LEAST_PROCESS_BYTES);
    if wish.jobs == Some(0) {
        return Err(SweepError::Usage("--jobs 0 runs nothing; use 1 or more".to_owned()));
    }
    if memory < LEAST_PROCESS_BYTES {
        return Err(SweepError::Usage(format!(
            "{} MiB of memory are not enough for one trial, which needs at least {} MiB; raise --memory",
            memory >> 20,
            LEAST_PROCESS_BYTES >> 20
        )));
    }
    let per_gpu = resources.trials_per_gpu.max(1);
    // Each process of a task has a thread at least.
    let wanted = plan.tasks.iter().map(|task| task.config.training.threads * task.processes as usize);
    let configured = wanted.max().filter(|threads| *threads > 0);
    let processes = plan.tasks.iter().map(|task| task.processes as usize).max().filter(|processes| *processes > 1);
    let wanted_threads = resources.threads.or(configured.max(processes));
    let mut limits = vec![
        (cores / wanted_threads.unwrap_or(1).max(1), format!("{cores} cores")),
        (usize::try_from(memory / needed).unwrap_or(usize::MAX), format!("{} MiB of memory", memory >> 20)),
        widest(plan),
    ];
    if !gpus.is_empty() {
        limits.push((gpus.len() * per_gpu, format!("{} GPUs", gpus.len())));
    }
    limits.extend(wish.jobs.map(|jobs| (jobs, format!("--jobs {jobs}"))));
    let (count, reason) = limits.into_iter().min_by_key(|(count, _)| *count).unwrap_or((1, String::new()));
    let count = count.max(1);
    let threads = wanted_threads.unwrap_or_else(|| (cores / count).max(1));
    let grant = |slot: usize| {
        let gpu = gpus.get(slot % gpus.len().max(1));
        Grant {
            threads,
            memory_bytes: Some(memory / count as u64),
            gpu: gpu.map(|(name, _)| name.clone()),
            gpu_memory_bytes: gpu.filter(|_| per_gpu > 1).map(|(_, free)| free / per_gpu as u64),
            may_grow: false,
        }
    };
    let reason =
        format!("{count} at once ({reason}), {threads} threads and {} MiB each", (memory / count as u64) >> 20);
    Ok(Slots { grants: (0..count).map(grant).collect(), reason })
}

/// Returns the maximum useful concurrency, with its reason: the number of trials, or the number of tasks at one depth of the
/// dependency graph if that is larger.
fn widest(plan: &Plan) -> (usize, String) {
    let mut levels: BTreeMap<&str, usize> = BTreeMap::new();
    let mut counts: Vec<usize> = Vec::new();
    for task in &plan.tasks {
        let level = task.needs.iter().filter_map(|need| levels.get(need.as_str())).max().map_or(0, |level| level + 1);
        levels.insert(&task.id, level);
        counts.resize(counts.len().max(level + 1), 0);
        counts[level] += 1;
    }
    let (trials, side_by_side) = (plan.trials.len(), counts.into_iter().max().unwrap_or(0));
    match side_by_side > trials {
        true => (side_by_side, format!("{side_by_side} parallel steps")),
        false => (trials, format!("{trials} trials")),
    }
}

/// Lists the visible GPUs; empty if the driver does not report any.
fn gpus() -> Vec<Gpu> {
    let Ok(nvml) = Nvml::init() else { return Vec::new() };
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let names: Vec<String> = match &visible {
        Some(list) => list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect(),
        None => (0..nvml.device_count().unwrap_or(0)).map(|index| index.to_string()).collect(),
    };
    let free = |name: String| {
        let device = match name.parse::<u32>() {
            Ok(index) => nvml.device_by_index(index),
            Err(_) => nvml.device_by_uuid(name.as_str()),
        };
        Some((name, device.ok()?.memory_info().ok()?.free))
    };
    names.into_iter().filter_map(free).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Surroundings, SweepFile, expand};

    fn plan(resources: &str) -> Plan {
        let text = format!(
            "metric = \"val_loss\"\nseeds = [1, 2, 3, 4, 5, 6]\n[resources]\n{resources}\n[[step]]\nname = \"student\"\n\
             command = \"autoencoder\"\npreset = \"vgae,student\"\nset = {{ use_kd = false }}\n"
        );
        let file = SweepFile::parse("test", &text).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let surroundings = Surroundings { working_folder: folder.path().to_owned(), variables: Vec::new() };
        expand(&file, "test", "test", &surroundings).unwrap()
    }

    fn gpus(count: usize) -> Vec<Gpu> {
        (0..count).map(|index| (index.to_string(), 8 << 30)).collect()
    }

    #[test]
    fn the_scarcest_decides() {
        let count = |plan: &Plan, jobs, gpus: &[Gpu], cores, memory: u64| {
            let wish = Wish { jobs, memory_bytes: None };
            let slots = divide(plan, &wish, gpus, cores, memory << 30).unwrap();
            let (grants, first) = (slots.grants.len(), slots.grants[0].clone());
            assert!(first.memory_bytes.unwrap() * grants as u64 <= memory << 30, "more is granted than there is");
            assert!(first.threads * grants <= cores.max(grants), "more threads than cores");
            (grants, first.threads)
        };
        let plain = plan("");
        assert_eq!(count(&plain, None, &[], 16, 64), (6, 2));
        assert_eq!(count(&plain, None, &[], 2, 64), (2, 1));
        assert_eq!(count(&plain, None, &[], 16, 3), (3, 5));
        assert_eq!(count(&plain, Some(1), &[], 16, 64), (1, 16));
        assert_eq!(count(&plain, None, &gpus(2), 16, 64), (2, 8));
        let mut configured = plain.clone();
        configured.tasks[0].config.training.threads = 4;
        assert_eq!(count(&configured, None, &[], 16, 64), (4, 4));
        assert_eq!(count(&plan("threads = 8"), None, &[], 16, 64), (2, 8));
        assert_eq!(count(&plan("memory_per_trial = \"20GiB\""), None, &[], 16, 64), (3, 5));
        let shared = plan("trials_per_gpu = 2");
        assert_eq!(count(&shared, None, &gpus(2), 16, 64), (4, 4));
        let slots = divide(&shared, &Wish::default(), &gpus(2), 16, 64 << 30).unwrap();
        let of: Vec<&str> = slots.grants.iter().map(|grant| grant.gpu.as_deref().unwrap()).collect();
        assert_eq!(of, ["0", "1", "0", "1"]);
        assert_eq!(slots.grants[0].gpu_memory_bytes, Some(4 << 30));
        assert!(divide(&plain, &Wish::default(), &[], 2, 300 << 20).is_err());
    }
}
