//! The memory ladder of a sweep: settings that are changed step by step when a task runs out of memory.

use kdgat_config::{Config, Residency, TeacherCache};

/// Maximum number of times that batches are halved.
const HALVINGS: u32 = 3;

/// One rung: changed settings, as pairs of a field and its value as text.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    pub settings: Vec<(&'static str, String)>,
    /// Set when the run starts over, because a checkpoint with other batches cannot be resumed.
    pub restarts: bool,
}

/// Returns all rungs of a training, starting with those that do not change its results. `batch_graphs` is the number of
/// graphs per batch when memory ran out; `None` for the configured number.
pub fn ladder(config: &Config, batch_graphs: Option<u64>) -> Vec<Rung> {
    let mut rungs = Vec::new();
    let mut change = |settings: Vec<(&'static str, String)>| rungs.push(Rung { settings, restarts: false });
    let distillation = &config.distillation;
    if distillation.use_kd && distillation.cache() == TeacherCache::Ram {
        change(vec![("teacher_cache", "disk".to_owned())]);
    }
    if distillation.use_kd && distillation.residency() == Residency::Resident {
        change(vec![("teacher_residency", "forward".to_owned())]);
    }
    if !config.memory.gradient_checkpointing {
        change(vec![("gradient_checkpointing", "true".to_owned())]);
    }
    // Same graphs per step in smaller batches. Batch norm sees fewer graphs, so the results change.
    let (mut graphs, mut accumulate) =
        (batch_graphs.unwrap_or(config.training.batch_size as u64), config.training.accumulate_grad_batches);
    for _ in 0..HALVINGS {
        if graphs < 2 {
            break;
        }
        (graphs, accumulate) = (graphs.div_ceil(2), accumulate * 2);
        let settings = vec![
            ("optimize_batch_size", "false".to_owned()),
            ("batch_size", graphs.to_string()),
            ("accumulate_grad_batches", accumulate.to_string()),
        ];
        rungs.push(Rung { settings, restarts: true });
    }
    rungs
}

/// Returns the settings that apply on a rung; a later change of a field replaces an earlier one.
pub fn settings(rungs: &[Rung], rung: u32) -> Vec<(&'static str, String)> {
    let mut settings: Vec<(&'static str, String)> = Vec::new();
    for (name, text) in rungs.iter().take(rung as usize).flat_map(|rung| &rung.settings) {
        settings.retain(|(known, _)| known != name);
        settings.push((name, text.clone()));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_no_number_comes_first() {
        let mut config = Config::default();
        config.distillation.use_kd = true;
        config.distillation.teacher_cache = TeacherCache::Ram;
        config.memory.gradient_checkpointing = false;
        let rungs = ladder(&config, Some(100));
        let first: Vec<&str> = rungs.iter().map(|rung| rung.settings[0].0).collect();
        assert_eq!(first[..3], ["teacher_cache", "teacher_residency", "gradient_checkpointing"]);
        assert!(rungs[..3].iter().all(|rung| !rung.restarts) && rungs[3..].iter().all(|rung| rung.restarts));
        assert_eq!(settings(&rungs, 0), []);
        let all = settings(&rungs, rungs.len() as u32);
        assert!(all.contains(&("batch_size", "13".to_owned())), "{all:?}");
        assert!(all.contains(&("accumulate_grad_batches", "8".to_owned())), "{all:?}");
        assert!(all.contains(&("teacher_cache", "disk".to_owned())), "{all:?}");
        assert!(ladder(&Config::default(), Some(1)).is_empty(), "nothing is left to halve");
    }
}
