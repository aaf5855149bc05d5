//! Validation: refuses values that are out of range, combinations that contradict each other, and flags that would be ignored.

use super::data_kind::DataKind;
use super::error::{ConfigError, Problem};
use super::fields::{Config, DistillationConfig};
use super::layer::{fields, out_of_range};
use super::load::Loaded;
use super::origin::Origin;
use super::table::Field;
use super::values::*;

/// A command that trains a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `kdgat autoencoder`: a VGAE on attack-free graphs.
    Autoencoder,
    /// `kdgat classifier`: a GAT classifier on all graphs.
    Classifier,
    /// `kdgat curriculum`: a GAT classifier on graphs sampled by difficulty.
    Curriculum,
    /// `kdgat fusion`: an agent that weighs the VGAE's score against the classifier's.
    Fusion,
    /// `kdgat train`: a network on any graphs, or on one large graph.
    Train,
    /// `kdgat pretrain`: a network on any graphs, without their labels.
    Pretrain,
}

impl Stage {
    /// The command's name.
    pub fn command(self) -> &'static str {
        match self {
            Stage::Autoencoder => "autoencoder",
            Stage::Classifier => "classifier",
            Stage::Curriculum => "curriculum",
            Stage::Fusion => "fusion",
            Stage::Train => "train",
            Stage::Pretrain => "pretrain",
        }
    }

    /// The stage of a command's name, as a run records it.
    pub fn of_command(name: &str) -> Option<Stage> {
        let all = [Self::Autoencoder, Self::Classifier, Self::Curriculum, Self::Fusion, Self::Train, Self::Pretrain];
        all.into_iter().find(|stage| stage.command() == name)
    }

    /// The stage's name in KD-GAT, which is part of the names of run folders: `gat_student_normal`.
    pub fn run_name(self) -> &'static str {
        if self == Stage::Classifier { "normal" } else { self.command() }
    }

    /// The architecture that the stage trains.
    pub fn model(self) -> ModelKind {
        match self {
            Stage::Autoencoder => ModelKind::Vgae,
            Stage::Classifier | Stage::Curriculum => ModelKind::Gat,
            Stage::Fusion => ModelKind::Dqn,
            Stage::Train | Stage::Pretrain => ModelKind::Gin,
        }
    }

    /// True if the stage trains this architecture.
    pub fn trains(self, model: ModelKind) -> bool {
        let is_of_graphs = !matches!(model, ModelKind::Vgae | ModelKind::Dqn);
        model == self.model() || (matches!(self, Stage::Train | Stage::Pretrain) && is_of_graphs)
    }
}

/// Refuses values out of range and contradicting combinations; reports all of them together.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    let mut problems: Vec<Problem> = fields().filter_map(|field| range_problem(field, config)).collect();
    problems.extend(contradictions(config));
    ConfigError::unless_empty(problems)
}

/// Runs [`check`], and also refuses a model that the stage does not train and command-line flags that the stage would not read.
/// (A file or a variable may serve several stages; a flag is meant for this one.)
pub fn check_stage(loaded: &Loaded, stage: Stage) -> Result<(), ConfigError> {
    let mut problems = match check(&loaded.config) {
        Err(ConfigError::Invalid(problems)) => problems,
        other => other.map(|()| Vec::new())?,
    };
    let found = loaded.config.model.model;
    if !stage.trains(found) {
        problems.push(Problem::Combination {
            what: format!(
                "`kdgat {}` trains a {}, but model is {found} ({})",
                stage.command(),
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
    let of_graphs = !matches!(model.model, ModelKind::Vgae | ModelKind::Gat | ModelKind::Dqn);
    let in_space = model.model.is_in_space();
    refuse(
        in_space && config.graphs.pooling == PoolingChoice::Max,
        &format!(
            "a {} has outputs of each node, which pooling = \"{}\" cannot put together",
            model.model, config.graphs.pooling
        ),
        "use --pooling sum, mean or attention",
    );
    refuse(
        in_space && config.graphs.energy_weight == 0.0 && config.graphs.force_weight == 0.0,
        "energy_weight and force_weight are both 0, so nothing would be learned",
        "raise one of them",
    );
    refuse(
        model.model.reads_positions() && config.data_kind == DataKind::OneGraph,
        &format!("{} reads positions, and the nodes of one large graph have none", model.model.with_article()),
        "use --preset sage,student or another model",
    );
    refuse(
        model.model == ModelKind::Sgmp && config.graphs.path_gaussians.len() != 3,
        &format!("path_gaussians has {} numbers, expected three", config.graphs.path_gaussians.len()),
        "give the Gaussians of distances, angles and torsions, such as --path-gaussians 50,6,12",
    );
    refuse(
        of_graphs && model.model != ModelKind::Irreps && model.hidden.len() != 1,
        &format!("model {} has one hidden width, hidden has {}", model.model, model.hidden.len()),
        "use a preset such as gin,student, or --hidden with one number",
    );
    refuse(
        distillation.use_kd && distillation.kd_loss == KdLoss::Dkd && config.data_kind == DataKind::OneGraph,
        "kd_loss = \"dkd\" needs the class of each node, and most nodes of one large graph have none that may be used",
        "use --kd-loss kl or mse",
    );
    let nodes = &config.nodes;
    let attention_dropout = if model.model == ModelKind::Gat { nodes.attention_dropout } else { 0.0 };
    refuse(
        nodes.consistency_weight > 0.0 && [model.dropout, nodes.input_dropout, attention_dropout] == [0.0; 3],
        "consistency_weight compares outputs under different dropout masks, and there is no dropout",
        "raise --dropout or --input-dropout, or drop --consistency-weight",
    );
    refuse(
        config.data.test_data.is_some() && config.data_kind != DataKind::Graphs,
        "test_data has test graphs of a dataset of graphs, and data is not one",
        "name a dataset of graphs with --data (docs/graphs.md), or drop --test-data",
    );
    refuse(
        config.graphs.fold >= config.graphs.folds && config.graphs.folds_file.is_none(),
        &format!("fold is {}, but there are {} folds, counted from 0", config.graphs.fold, config.graphs.folds),
        "lower --fold, or raise --folds",
    );
    refuse(
        training.precision == Precision::Half && training.device == DeviceChoice::Cpu,
        "precision 16-mixed needs a GPU, and device is cpu",
        "use --precision bf16-mixed or --precision 32",
    );
    refuse(
        training.cuda_graphs == Some(true) && training.device == DeviceChoice::Cpu,
        "cuda_graphs needs a GPU, and device is cpu",
        "use --cuda-graphs false",
    );
    for (problem, advice) in capture_obstacles(config) {
        refuse(training.cuda_graphs == Some(true), problem, advice);
    }
    refuse(
        distillation.offload_teacher && distillation.teacher_residency == Some(Residency::Resident),
        "offload_teacher takes the teacher off the device, teacher_residency = \"resident\" keeps it there",
        "use --teacher-residency forward, or --offload-teacher false",
    );
    refuse(
        distillation.use_kd && distillation.kd_displacement > 0.0 && distillation.kd_views < 2,
        "kd_displacement displaces all views of a graph but the first, and there are fewer than two",
        "add --kd-views 11, or another number of views, or drop --kd-displacement",
    );
    refuse(
        !distillation.use_teacher_cache && matches!(distillation.teacher_cache, TeacherCache::Ram | TeacherCache::Disk),
        &format!("teacher_cache is {}, but use_teacher_cache is false", distillation.teacher_cache),
        "use --use-teacher-cache true, or --teacher-cache off",
    );
    refuse(
        distillation.use_kd && distillation.kd_alpha == 0.0 && distillation.kd_alpha_end.unwrap_or(0.0) == 0.0,
        "use_kd with kd_alpha = 0 would run the teacher and ignore its outputs",
        "raise --kd-alpha, or use --use-kd false",
    );
    refuse(
        distillation.use_kd
            && model.model == ModelKind::Vgae
            && distillation.kd_vgae_latent_weight == 0.0
            && distillation.kd_vgae_recon_weight == 0.0
            && distillation.kd_hint_weight == 0.0,
        "kd_vgae_latent_weight, kd_vgae_recon_weight and kd_hint_weight are all 0, so nothing would be distilled",
        "raise --kd-vgae-latent-weight or --kd-vgae-recon-weight, or use --use-kd false",
    );
    let fusion = &config.fusion;
    refuse(
        [fusion.reward_correctness, fusion.reward_agreement, fusion.reward_confidence].iter().all(|part| *part == 0.0),
        "reward_correctness, reward_agreement and reward_confidence are all 0, so the reward would ignore the labels",
        "raise --reward-correctness",
    );
    refuse(
        fusion.epsilon_end > fusion.epsilon_start,
        &format!("epsilon_end = {} is above epsilon_start = {}", fusion.epsilon_end, fusion.epsilon_start),
        "lower --epsilon-end, or raise --epsilon-start",
    );
    problems
}

/// Switch that is saved in models: a model that has the feature keeps it despite the flag.
const SAVED_IN_MODELS: &str = "foreign_ids";

/// True if the field switches something off. A command that does not read the field has it off anyway, so the flag is harmless, unless
/// the feature is [saved in models](SAVED_IN_MODELS).
pub(super) fn says_no(field: &Field, config: &Config) -> bool {
    field.kind.switch && field.name != SAVED_IN_MODELS && (field.show)(config) == "false"
}

fn ignored_flags(loaded: &Loaded, stage: Stage) -> impl Iterator<Item = Problem> {
    let config = &loaded.config;
    let given = |field: &&Field| matches!(loaded.origin(field.name), Origin::Flag(_)) && !says_no(field, config);
    fields().filter(given).filter_map(move |field| {
        let rule = field.unread(config, stage)?;
        Some(Problem::Ignored {
            flag: loaded.origin(field.name).to_string(),
            because: rule.because.to_string(),
            remedy: rule.remedy.to_string(),
        })
    })
}

impl DistillationConfig {
    /// The teacher's residency, taking `offload_teacher` into account.
    pub fn residency(&self) -> Residency {
        match self.teacher_residency {
            Some(residency) => residency,
            None if self.offload_teacher => Residency::Forward,
            None => Residency::Resident,
        }
    }

    /// The teacher's cache, taking `use_teacher_cache` into account.
    pub fn cache(&self) -> TeacherCache {
        if self.use_teacher_cache { self.teacher_cache } else { TeacherCache::Off }
    }
}

/// Settings whose training steps cannot be captured as CUDA graphs: what is wrong, and what to do.
pub fn capture_obstacles(config: &Config) -> impl Iterator<Item = (&'static str, &'static str)> {
    let obstacles = [
        (
            config.training.precision == Precision::Half,
            "cuda_graphs captures the loss scale, which precision 16-mixed changes during training",
            "use --precision bf16-mixed or 32, or --cuda-graphs false",
        ),
        (
            config.model.conv == Convolution::GatV2,
            "cuda_graphs cannot capture the edge scaling that conv = \"gatv2\" copies to the GPU in every step",
            "use --conv gat, or --cuda-graphs false",
        ),
        (
            config.data.features == FeatureChoice::Rich,
            "cuda_graphs cannot capture the feature scaling that features = \"rich\" copies to the GPU in every step",
            "use --features window, or --cuda-graphs false",
        ),
        (
            config.distillation.use_kd && config.distillation.kd_alpha_end.is_some(),
            "cuda_graphs captures the weight of the distillation, which kd_alpha_end changes during training",
            "drop --kd-alpha-end, or use --cuda-graphs false",
        ),
    ];
    obstacles.into_iter().filter(|(applies, ..)| *applies).map(|(_, problem, advice)| (problem, advice))
}
