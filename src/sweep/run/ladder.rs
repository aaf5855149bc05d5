//! The memory ladder of a sweep: what is changed, one rung after the other, when a task ran out of memory.

use crate::config::{Config, Residency, TeacherCache};

/// Batches are halved at most so often.
const HALVINGS: u32 = 3;

/// A change, as pairs of a field and its text.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    pub settings: Vec<(&'static str, String)>,
    /// Whether the run begins anew, since a checkpoint of other batches does not fit.
    pub restarts: bool,
}

/// All rungs of a training, those that change no number first. `batch_graphs` is what ran out of memory.
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
    // Same graphs a step, fewer at a time. Batch norm sees fewer, so the numbers are others.
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

/// The settings in force on a rung; a later change of a field replaces an earlier one.
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
