//! Tasks that trials share: graph stores and cached teacher targets.

use super::task::{Input, Task, TaskKind};
use kdgat_config::{Config, ModelKind, Stage, TeacherCache};

/// Returns the task that builds the graph store for this configuration.
pub fn store(config: &Config) -> Task {
    let reduced = Config { data: config.data.clone(), ..Config::default() };
    let dataset = match &config.data.data {
        Some(path) => path.display().to_string(),
        None => kdgat_can::catalogue::SIMULATED.to_owned(),
    };
    Task::new(TaskKind::Store, "store", format!("data={dataset}"), reduced, Vec::new(), Vec::new())
}

/// Returns true if a training reads its targets from disk. Changes the cache mode `auto` to `disk`, since trials cannot share
/// targets in memory; losses stay the same.
pub fn shares_targets(config: &mut Config) -> bool {
    if !config.distillation.use_kd {
        return false;
    }
    if config.distillation.cache() == TeacherCache::Auto {
        config.distillation.teacher_cache = TeacherCache::Disk;
    }
    config.distillation.cache() == TeacherCache::Disk
}

/// Returns the task that caches the targets for a training with this configuration. `store` is the ID of its store task;
/// `teachers` are the tasks that train its networks; none for a registered teacher.
pub fn targets(config: &Config, store: &str, teachers: Vec<Input>) -> Task {
    let mut reduced = Config { data: config.data.clone(), ..Config::default() };
    reduced.model.model = config.model.model;
    if config.model.model == ModelKind::Gat {
        // A classifier has one width, which does not affect its teacher.
        reduced.model.hidden = vec![1];
        if kdgat_config::views(config, Stage::Classifier) > 0 {
            reduced.distillation.kd_views = config.distillation.kd_views;
            reduced.model.unknown_drop = config.model.unknown_drop;
            reduced.model.id_encoding = config.model.id_encoding;
        }
    }
    reduced.model.attention = config.model.attention;
    reduced.training.device = config.training.device;
    let (from, to) = (&config.distillation, &mut reduced.distillation);
    to.use_kd = true;
    to.teacher_path = from.teacher_path.clone();
    to.more_teachers = from.more_teachers.clone();
    to.teachers_dir = from.teachers_dir.clone();
    to.teacher_cache = TeacherCache::Disk;
    to.teacher_cache_precision = from.teacher_cache_precision;
    to.teacher_cache_dir = from.teacher_cache_dir.clone();
    to.kd_hint_weight = from.kd_hint_weight;
    if config.model.model == ModelKind::Vgae {
        to.kd_vgae_latent_weight = from.kd_vgae_latent_weight;
    }
    let mut needs = vec![store.to_owned()];
    needs.extend(teachers.iter().map(|input| input.task.clone()));
    let label = format!("teacher {}", config.model.model);
    Task::new(TaskKind::Targets, "targets", label, reduced, needs, teachers)
}
