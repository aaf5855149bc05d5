//! Values and combinations that are refused: out of range, contradicting each other, or given in vain.

use super::error::{ConfigError, Problem};
use super::fields::{Config, DistillationConfig};
use super::layer::{field, fields, out_of_range};
use super::load::Loaded;
use super::origin::Origin;
use super::table::Field;
use super::values::*;

/// A command that trains a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Autoencoder,
    Normal,
    Curriculum,
    Fusion,
}

impl Stage {
    /// The command's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Autoencoder => "autoencoder",
            Stage::Normal => "normal",
            Stage::Curriculum => "curriculum",
            Stage::Fusion => "fusion",
        }
    }

    /// The architecture that the stage trains.
    pub fn model(self) -> ModelKind {
        match self {
            Stage::Autoencoder => ModelKind::Vgae,
            Stage::Normal | Stage::Curriculum => ModelKind::Gat,
            Stage::Fusion => ModelKind::Dqn,
        }
    }
}

/// Refuses values out of range and combinations that contradict each other; names all of them.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    let mut problems: Vec<Problem> = fields().filter_map(|field| range_problem(field, config)).collect();
    problems.extend(contradictions(config));
    ConfigError::unless_empty(problems)
}

/// What [`check`] refuses, a model that the stage does not train, and flags of the command line that
/// the stage would not read. (A file or a variable may serve several stages, a flag is meant for this one.)
pub fn check_stage(loaded: &Loaded, stage: Stage) -> Result<(), ConfigError> {
    let mut problems = match check(&loaded.config) {
        Err(ConfigError::Invalid(problems)) => problems,
        other => other.map(|()| Vec::new())?,
    };
    let found = loaded.config.model.model;
    if found != stage.model() {
        problems.push(Problem::Combination {
            what: format!(
                "`kdgat {}` trains a {}, but model is {found} ({})",
                stage.as_str(),
                stage.model(),
                loaded.origin("model")
            ),
            remedy: format!("use --preset {},student or another {} preset", stage.model(), stage.model()),
        });
        return Err(ConfigError::Invalid(problems));
    }
    problems.extend(ignored_flags(loaded, stage));
    ConfigError::unless_empty(problems)
}

fn range_problem(field: &Field, config: &Config) -> Option<Problem> {
    (!field.admits(&(field.numbers)(config))).then(|| out_of_range(field, (field.show)(config), None))
}

fn contradictions(config: &Config) -> Vec<Problem> {
    let Config { model, training, distillation, .. } = config;
    let mut problems = Vec::new();
    let mut refuse = |refused: bool, what: &str, remedy: &str| {
        if refused {
            problems.push(Problem::Combination { what: what.to_string(), remedy: remedy.to_string() });
        }
    };
    refuse(
        model.model == ModelKind::Gat && model.hidden.len() != 1,
        &format!("model gat has one hidden width, hidden has {}", model.hidden.len()),
        "use --preset gat,student (or another size), or --hidden with one number",
    );
    refuse(
        training.precision == Precision::Half && training.device == DeviceChoice::Cpu,
        "precision 16-mixed needs a GPU, and device is cpu",
        "use --precision bf16-mixed or --precision 32",
    );
    refuse(
        distillation.offload_teacher && distillation.teacher_residency == Some(Residency::Resident),
        "offload_teacher takes the teacher off the device, teacher_residency = \"resident\" keeps it there",
        "use --teacher-residency forward, or --offload-teacher false",
    );
    refuse(
        !distillation.use_teacher_cache && matches!(distillation.teacher_cache, TeacherCache::Ram | TeacherCache::Disk),
        &format!("teacher_cache is {}, but use_teacher_cache is false", distillation.teacher_cache),
        "use --use-teacher-cache true, or --teacher-cache off",
    );
    refuse(
        distillation.use_kd && distillation.kd_alpha == 0.0,
        "use_kd with kd_alpha = 0 would run the teacher and use nothing of it",
        "raise --kd-alpha, or use --use-kd false",
    );
    refuse(
        distillation.use_kd
            && model.model == ModelKind::Vgae
            && distillation.kd_vgae_latent_weight == 0.0
            && distillation.kd_vgae_recon_weight == 0.0,
        "kd_vgae_latent_weight and kd_vgae_recon_weight are both 0, so that nothing is distilled",
        "raise --kd-vgae-latent-weight or --kd-vgae-recon-weight, or use --use-kd false",
    );
    let fusion = &config.fusion;
    refuse(
        [fusion.reward_correctness, fusion.reward_agreement, fusion.reward_confidence].iter().all(|part| *part == 0.0),
        "reward_correctness, reward_agreement and reward_confidence are all 0, so that no label counts",
        "raise --reward-correctness",
    );
    refuse(
        fusion.epsilon_end > fusion.epsilon_start,
        &format!("epsilon_end = {} is above epsilon_start = {}", fusion.epsilon_end, fusion.epsilon_start),
        "lower --epsilon-end, or raise --epsilon-start",
    );
    problems
}

/// When a field is read at all. Fields without a rule always are.
struct Rule {
    fields: &'static [&'static str],
    is_read: fn(&Config, Stage) -> bool,
    because: &'static str,
    remedy: &'static str,
}

const DISTILLATION_FIELDS: &[&str] = &[
    "teacher_path",
    "kd_temperature",
    "kd_alpha",
    "kd_vgae_latent_weight",
    "kd_vgae_recon_weight",
    "kd_loss",
    "offload_teacher",
    "teacher_residency",
    "teacher_burst",
    "teacher_layer_slots",
    "use_teacher_cache",
    "teacher_cache",
    "teacher_cache_precision",
    "teacher_cache_dir",
];

const CURRICULUM_FIELDS: &[&str] = &[
    "curriculum",
    "curriculum_start_ratio",
    "curriculum_end_ratio",
    "difficulty_percentile",
    "difficulty_cache_update",
    "difficulty_chunk",
    "difficulty_model",
];

/// What `kdgat fusion` reads of no model and no teacher of its kind.
const GRAPH_MODEL_FIELDS: &[&str] = &[
    "latent",
    "heads",
    "embedding",
    "id_encoding",
    "id_buckets",
    "id_probes",
    "dropout",
    "layers",
    "fc_layers",
    "conv",
    "unknown_drop",
    "accumulate_grad_batches",
    "batch_nodes",
    "optimize_batch_size",
    "min_steps_per_epoch",
    "num_workers",
    "prefetch_batches",
    "shuffle_block",
    "shuffle_buffer",
    "precision",
    "log_every_n_steps",
    "task_loss",
    "focal_gamma",
    "kd_temperature",
    "kd_vgae_latent_weight",
    "kd_vgae_recon_weight",
    "kd_loss",
    "offload_teacher",
    "teacher_residency",
    "teacher_burst",
    "teacher_layer_slots",
    "use_teacher_cache",
    "teacher_cache",
    "teacher_cache_precision",
    "teacher_cache_dir",
    "gradient_checkpointing",
    "memory_estimation",
    "safety_factor",
    "gpu_memory_limit",
    "clear_cache_every_n",
    "memory_sample_seconds",
];

const FUSION_FIELDS: &[&str] = &[
    "fusion",
    "fusion_vgae",
    "fusion_gat",
    "fusion_gamma",
    "replay_capacity",
    "target_update_steps",
    "epsilon_start",
    "epsilon_end",
    "epsilon_epochs",
    "bandit_exploration",
    "bandit_ridge",
    "reward_correctness",
    "reward_agreement",
    "reward_confidence",
    "reward_balance",
];

/// The first rule that fails tells the reason.
const RULES: &[Rule] = &[
    Rule {
        fields: FUSION_FIELDS,
        is_read: |_, stage| stage == Stage::Fusion,
        because: "this command fuses no models",
        remedy: "use `kdgat fusion` or drop it",
    },
    Rule {
        fields: GRAPH_MODEL_FIELDS,
        is_read: |_, stage| stage != Stage::Fusion,
        because: "the agent of `kdgat fusion` reads states, not graphs",
        remedy: "drop it",
    },
    Rule {
        fields: &["fusion_gamma", "target_update_steps", "epsilon_start", "epsilon_end", "epsilon_epochs"],
        is_read: |config, _| config.fusion.fusion == FusionKind::Dqn,
        because: "it belongs to the Q-network, and fusion is bandit",
        remedy: "drop it, or use --fusion dqn",
    },
    Rule {
        fields: &["bandit_exploration", "bandit_ridge"],
        is_read: |config, _| config.fusion.fusion == FusionKind::Bandit,
        because: "it belongs to the bandit, and fusion is dqn",
        remedy: "add --fusion bandit or drop it",
    },
    Rule {
        fields: DISTILLATION_FIELDS,
        is_read: |config, _| config.distillation.use_kd,
        because: "nothing is distilled while use_kd is false",
        remedy: "add --use-kd or drop it",
    },
    Rule {
        fields: &["kd_temperature", "kd_loss", "task_loss", "focal_gamma", "layers", "fc_layers"],
        is_read: |config, _| config.model.model == ModelKind::Gat,
        because: "it belongs to the classifier, and a vgae is trained",
        remedy: "drop it",
    },
    Rule {
        fields: &["kd_vgae_latent_weight", "kd_vgae_recon_weight", "latent"],
        is_read: |config, _| config.model.model == ModelKind::Vgae,
        because: "it belongs to the autoencoder, and a gat is trained",
        remedy: "drop it",
    },
    Rule {
        fields: &["kd_temperature"],
        is_read: |config, _| config.distillation.kd_loss != KdLoss::Mse,
        because: "kd_loss = \"mse\" compares logits as they are",
        remedy: "use --kd-loss kl or drop it",
    },
    Rule {
        fields: &["teacher_burst"],
        is_read: |config, _| config.distillation.residency() != Residency::Resident,
        because: "a resident teacher makes no visits",
        remedy: "add --offload-teacher or drop it",
    },
    Rule {
        fields: &["teacher_layer_slots"],
        is_read: |config, _| matches!(config.distillation.residency(), Residency::Layer | Residency::Auto),
        because: "the teacher is not brought in layer by layer",
        remedy: "add --teacher-residency layer or drop it",
    },
    Rule {
        fields: &["teacher_cache_precision", "teacher_cache_dir"],
        is_read: |config, _| config.distillation.cache() != TeacherCache::Off,
        because: "the teacher's outputs are not kept",
        remedy: "add --teacher-cache auto or drop it",
    },
    Rule {
        fields: &["teacher_cache_dir"],
        is_read: |config, _| config.distillation.cache() != TeacherCache::Ram,
        because: "the teacher's outputs are kept in memory",
        remedy: "use --teacher-cache disk or drop it",
    },
    Rule {
        fields: &["focal_gamma"],
        is_read: |config, _| config.training.task_loss == TaskLoss::Focal,
        because: "the task loss is not the focal one",
        remedy: "add --task-loss focal or drop it",
    },
    Rule {
        fields: &["id_buckets", "id_probes"],
        is_read: |config, _| config.model.id_encoding == IdEncoding::Hash,
        because: "IDs are looked up in the vocabulary",
        remedy: "add --id-encoding hash or drop it",
    },
    Rule {
        fields: &["lr_step_epochs"],
        is_read: |config, _| config.training.schedule == Schedule::Step,
        because: "only the schedule `step` reads it",
        remedy: "add --schedule step or drop it",
    },
    Rule {
        fields: &["lr_gamma"],
        is_read: |config, _| matches!(config.training.schedule, Schedule::Step | Schedule::Plateau),
        because: "only the schedules `step` and `plateau` read it",
        remedy: "add --schedule step or drop it",
    },
    Rule {
        fields: &["min_steps_per_epoch", "memory_estimation"],
        is_read: |config, _| config.training.optimize_batch_size,
        because: "the batch size is not found automatically",
        remedy: "add --optimize-batch-size true or drop it",
    },
    Rule {
        fields: &["gpu_memory_limit", "offload_optimizer", "clear_cache_every_n"],
        is_read: |config, _| config.training.device != DeviceChoice::Cpu,
        because: "it concerns GPUs, and device is cpu",
        remedy: "drop it, or use --device cuda",
    },
    Rule {
        fields: CURRICULUM_FIELDS,
        is_read: |_, stage| stage == Stage::Curriculum,
        because: "this command has no curriculum",
        remedy: "use `kdgat curriculum` or drop it",
    },
    Rule {
        fields: &["curriculum_start_ratio", "curriculum_end_ratio"],
        is_read: |config, _| config.curriculum.curriculum != CurriculumKind::Off,
        because: "curriculum is none",
        remedy: "use another --curriculum or drop it",
    },
    Rule {
        fields: &["difficulty_percentile"],
        is_read: |config, _| config.curriculum.curriculum == CurriculumKind::Difficulty,
        because: "only the curriculum `difficulty` reads it",
        remedy: "add --curriculum difficulty or drop it",
    },
    Rule {
        fields: &["difficulty_cache_update", "difficulty_chunk", "difficulty_model"],
        is_read: |config, _| {
            matches!(config.curriculum.curriculum, CurriculumKind::Difficulty | CurriculumKind::Static)
        },
        because: "the curriculum does not look at difficulty",
        remedy: "add --curriculum difficulty or drop it",
    },
];

fn ignored_flags(loaded: &Loaded, stage: Stage) -> Vec<Problem> {
    let given_in_vain = |name: &&str, rule: &Rule| -> bool {
        // Switching something off that is off anyway does no harm.
        let says_no = field(name).is_some_and(|field| field.kind.switch && (field.show)(&loaded.config) == "false");
        matches!(loaded.origin(name), Origin::Flag(_)) && !says_no && !(rule.is_read)(&loaded.config, stage)
    };
    let mut problems: Vec<(&str, Problem)> = Vec::new();
    for rule in RULES {
        for name in rule.fields.iter().filter(|name| given_in_vain(name, rule)) {
            if !problems.iter().any(|(told, _)| told == name) {
                let problem = Problem::Ignored {
                    flag: loaded.origin(name).to_string(),
                    because: rule.because.to_string(),
                    remedy: rule.remedy.to_string(),
                };
                problems.push((name, problem));
            }
        }
    }
    problems.into_iter().map(|(_, problem)| problem).collect()
}

impl DistillationConfig {
    /// Where the teacher is, `offload_teacher` considered.
    pub fn residency(&self) -> Residency {
        match self.teacher_residency {
            Some(residency) => residency,
            None if self.offload_teacher => Residency::Forward,
            None => Residency::Resident,
        }
    }

    /// Where the teacher's outputs are kept, `use_teacher_cache` considered.
    pub fn cache(&self) -> TeacherCache {
        if self.use_teacher_cache { self.teacher_cache } else { TeacherCache::Off }
    }
}
