//! The conditions under which a stage reads fields, named by the fields in [`super::fields`]. A flag that would be ignored is refused with
//! the reason.

use std::collections::BTreeMap;

use super::check::Stage;
use super::conditions::{draws_views, has_bonds, is_node_store, reads_rows, trains_on_graphs};
use super::data_kind::DataKind;
use super::fields::Config;
use super::layer::fields;
use super::table::Field;
use super::values::*;

/// A condition under which a field is read. A field without a rule is always read.
pub struct Rule {
    /// True if the field is read.
    pub is_read: fn(&Config, Stage) -> bool,
    /// The reason if it is not.
    pub because: &'static str,
    /// The advice.
    pub remedy: &'static str,
}

impl Field {
    /// The rule that says why a stage does not read this field; `None` if it reads it.
    pub(super) fn unread(&self, config: &Config, stage: Stage) -> Option<&'static Rule> {
        self.all_rules().find(|rule| !(rule.is_read)(config, stage))
    }

    /// The rules of the section, then the field's own; the first that fails gives the reason.
    fn all_rules(&self) -> impl Iterator<Item = &'static Rule> {
        self.section.rules.iter().chain(self.rules).copied()
    }
}

/// True if a stage reads a field under any configuration; the stage's help lists these.
pub fn may_read(stage: Stage, field: &Field) -> bool {
    if field.all_rules().any(|rule| std::ptr::eq(rule, &OF_ONE_GRAPH)) {
        return stage == Stage::Train;
    }
    let mut configs = [FusionKind::Dqn, FusionKind::Bandit].map(|fusion| eager(stage, fusion)).to_vec();
    if stage == Stage::Autoencoder {
        configs[1].data_kind = DataKind::Graphs;
    }
    if matches!(stage, Stage::Train | Stage::Pretrain) {
        for model in [ModelKind::PaiNN, ModelKind::Sgmp, ModelKind::Irreps] {
            let mut of_positions = configs[0].clone();
            of_positions.model.model = model;
            configs.push(of_positions);
        }
        let sources = [DifficultySource::Student, DifficultySource::Auto];
        for ((config, model), source) in configs.iter_mut().zip([ModelKind::Gat, ModelKind::Gin]).zip(sources) {
            config.model.model = model;
            config.curriculum.difficulty_source = source;
        }
    }
    configs.iter().any(|config| field.unread(config, stage).is_none())
}

/// The fields that the losses of a stage depend on under this configuration, with their values: a run can be resumed with the same ones.
pub fn loss_fields(config: &Config, stage: Stage) -> BTreeMap<&'static str, String> {
    let of_losses = fields().filter(|field| !field.same_losses && field.unread(config, stage).is_none());
    of_losses.map(|field| (field.name, (field.show)(config))).collect()
}

/// A configuration of a stage with every option on that makes it read further fields.
fn eager(stage: Stage, fusion: FusionKind) -> Config {
    let mut config = Config::default();
    config.model.model = stage.model();
    config.model.id_encoding = IdEncoding::Hash;
    config.training.schedule = Schedule::Step;
    config.training.task_loss = TaskLoss::Focal;
    config.training.optimize_batch_size = true;
    config.training.init_from = Some("a run".into());
    config.training.device = DeviceChoice::Auto;
    config.distillation.use_kd = true;
    config.distillation.kd_loss = KdLoss::Kl;
    config.distillation.kd_embedding_loss = EmbeddingLossChoice::Contrastive;
    config.distillation.teacher_residency = Some(Residency::Layer);
    config.distillation.use_teacher_cache = true;
    config.distillation.teacher_cache = TeacherCache::Disk;
    config.curriculum.curriculum = CurriculumKind::Difficulty;
    config.curriculum.curriculum_start_share = Some(0.5);
    config.fusion.fusion = fusion;
    config
}

pub(super) static OF_FUSION: Rule = Rule {
    is_read: |_, stage| stage == Stage::Fusion,
    because: "only `kdgat fusion` reads it",
    remedy: "use `kdgat fusion` or drop it",
};

pub(super) static THRESHOLD_OF_FUSION: Rule = Rule {
    is_read: |_, stage| stage == Stage::Fusion,
    because: "a model's threshold is chosen when it is evaluated",
    remedy: "give it to `kdgat evaluate`, or drop it",
};

pub(super) static OF_TRAIN: Rule = Rule {
    is_read: |_, stage| stage == Stage::Train,
    because: "only `kdgat train` reads it",
    remedy: "use `kdgat train` or drop it",
};

pub(super) static OF_NETWORKS: Rule = Rule {
    is_read: |_, stage| matches!(stage, Stage::Train | Stage::Pretrain),
    because: "only `kdgat train` and `kdgat pretrain` read it",
    remedy: "use `kdgat train` or drop it",
};

pub(super) static OF_PRETRAINING: Rule = Rule {
    is_read: |_, stage| stage == Stage::Pretrain,
    because: "only `kdgat pretrain` reads it",
    remedy: "use `kdgat pretrain` or drop it",
};

pub(super) static MASKS: Rule = Rule {
    is_read: |config, _| config.graphs.objective == PretrainingObjectiveChoice::Masked,
    because: "gt-ssl hides no features of single nodes",
    remedy: "use --objective masked or drop it",
};

pub(super) static HAS_TEACHER: Rule =
    Rule { is_read: |_, stage| stage != Stage::Pretrain, because: "pre-training has no teacher", remedy: "drop it" };

pub(super) static OF_SPACE: Rule = Rule {
    is_read: |config, _| config.model.model.is_in_space(),
    because: "only a schnet, painn or irreps reads it",
    remedy: "use --preset schnet,student, painn,teacher or irreps,teacher, or drop it",
};

pub(super) static OF_IRREPS: Rule = Rule {
    is_read: |config, _| config.model.model == ModelKind::Irreps,
    because: "only an irreps reads it",
    remedy: "use --preset irreps,teacher, or drop it",
};

pub(super) static HAS_BONDS: Rule = Rule {
    is_read: |config, _| has_bonds(config),
    because: "only an irreps with messages along bonds reads it",
    remedy: "add --bonds true, or drop it",
};

pub(super) static HAS_WIDTHS: Rule = Rule {
    is_read: |config, _| config.model.model != ModelKind::Irreps,
    because: "the features of an irreps are counted in irreps",
    remedy: "use --irreps, or drop it",
};

pub(super) static OF_POSITIONS: Rule = Rule {
    is_read: |config, _| config.model.model.reads_positions(),
    because: "only networks of positions read it",
    remedy: "use --preset schnet,student, painn,teacher, irreps,teacher or sgmp,student, or drop it",
};

pub(super) static OF_SGMP: Rule = Rule {
    is_read: |config, _| config.model.model == ModelKind::Sgmp,
    because: "only an sgmp reads it",
    remedy: "use --preset sgmp,student, or drop it",
};

pub(super) static HAS_EDGES_OF_ITS_OWN: Rule = Rule {
    is_read: |config, _| !config.model.model.reads_positions(),
    because: "networks of positions have no virtual node",
    remedy: "drop it",
};

pub(super) static NOT_OF_SPACE: Rule = Rule {
    is_read: |config, _| !config.model.model.is_in_space(),
    because: "networks in space have no dropout",
    remedy: "drop it",
};

pub(super) static HAS_INITIAL_WEIGHTS: Rule = Rule {
    is_read: |config, _| config.training.init_from.is_some(),
    because: "the weights are random at first",
    remedy: "name others with --init-from, or drop it",
};

pub(super) static MAY_SEE_TESTS: Rule = Rule {
    is_read: |config, stage| config.training.init_from.is_some() || stage == Stage::Pretrain,
    because: "the weights are random at first",
    remedy: "name others with --init-from, or drop it",
};

pub(super) static IS_DIVIDED: Rule = Rule {
    is_read: trains_on_graphs,
    because: "the test set of CAN windows is a folder of its own",
    remedy: "drop it",
};

pub(super) static OF_GRAPHS: Rule = Rule {
    is_read: trains_on_graphs,
    because: "only `kdgat train` and, on a dataset of graphs, `kdgat autoencoder` read it",
    remedy: "name the dataset with --data, or drop it",
};

pub(super) static OF_GRAPH_AUTOENCODER: Rule = Rule {
    is_read: |config, stage| stage == Stage::Autoencoder && trains_on_graphs(config, stage),
    because: "only `kdgat autoencoder` on a dataset of graphs reads it",
    remedy: "name the dataset with --data, or drop it",
};

pub(super) static LEARNS_FROM_A_FILE: Rule = Rule {
    is_read: |_, stage| stage == Stage::Train,
    because: "only `kdgat train` learns from a file with a teacher's outputs",
    remedy: "drop it",
};

pub(super) static TEACHER_COMPUTES: Rule = Rule {
    is_read: |config, _| config.distillation.targets_file.is_none(),
    because: "targets_file has the teacher's outputs, so no teacher computes",
    remedy: "drop it, or drop --targets-file",
};

pub(super) static AVERAGES_CLASSES: Rule = Rule {
    is_read: |config, stage| match stage {
        Stage::Classifier | Stage::Curriculum => true,
        Stage::Train => config.data_kind == DataKind::OneGraph,
        Stage::Autoencoder | Stage::Fusion | Stage::Pretrain => false,
    },
    because: "only the class probabilities of classifiers are averaged: a gat's, or those of `kdgat train` on one large graph",
    remedy: "drop it",
};

pub(super) static DRAWS_VIEWS: Rule = Rule {
    is_read: draws_views,
    because: "views differ by the IDs that `kdgat classifier` and `kdgat curriculum` hide from a classifier, and none are hidden, or by displacements of nodes in space, and none are displaced",
    remedy: "drop it, or raise --unknown-drop or --kd-displacement",
};

pub(super) static READS_POSITIONS: Rule = Rule {
    is_read: |config, stage| stage == Stage::Train && config.model.model.reads_positions(),
    because: "only networks that read positions see displaced nodes",
    remedy: "use --preset painn,student or another network in space, or drop it",
};

pub(super) static ONE_TEACHER: Rule = Rule {
    is_read: |config, _| config.distillation.more_teachers.is_none(),
    because: "several teachers have no hidden layer in common",
    remedy: "drop it or --more-teachers",
};

pub(super) static IS_CONTRASTIVE: Rule = Rule {
    is_read: |config, _| config.distillation.kd_embedding_loss == EmbeddingLossChoice::Contrastive,
    because: "only the contrastive loss has a temperature",
    remedy: "add --kd-embedding-loss contrastive or drop it",
};

pub(super) static OF_WINDOWS: Rule = Rule {
    is_read: |config, stage| !trains_on_graphs(config, stage),
    because: "the command reads graphs of other kinds than CAN windows",
    remedy: "drop it",
};

pub(super) static CONVOLVES: Rule = Rule {
    is_read: |config, stage| {
        !trains_on_graphs(config, stage)
            || (config.model.model == ModelKind::Gat && config.data_kind == DataKind::OneGraph)
    },
    because: "for graphs that are no CAN windows, only a gat on one large graph reads it",
    remedy: "drop it",
};

pub(super) static OF_ONE_GRAPH: Rule = Rule {
    is_read: |config, stage| stage == Stage::Train && config.data_kind == DataKind::OneGraph,
    because: "only `kdgat train` on one large graph reads it",
    remedy: "name the graph with --data, or drop it",
};

pub(super) static IS_NO_STORE: Rule = Rule {
    is_read: |config, _| !is_node_store(config),
    because: "a store has its edges and features already",
    remedy: "drop it",
};

pub(super) static OF_MANY_GRAPHS: Rule = Rule {
    is_read: |config, stage| stage != Stage::Train || config.data_kind != DataKind::OneGraph,
    because: "the data is one large graph, whose nodes are trained on",
    remedy: "drop it",
};

pub(super) static FITS_BATCHES: Rule = Rule {
    is_read: |config, stage| {
        stage != Stage::Train || config.data_kind != DataKind::OneGraph || config.nodes.fanouts.is_some()
    },
    because: "only batches of sampled neighbours are fitted to the memory",
    remedy: "add --fanouts or drop it",
};

pub(super) static FITS_MEMORY: Rule = Rule {
    is_read: |config, stage| stage != Stage::Train || config.data_kind != DataKind::OneGraph || reads_rows(config),
    because: "each step reads the whole graph",
    remedy: "add --fanouts or drop it",
};

pub(super) static READS_ROWS: Rule = Rule {
    is_read: |config, _| reads_rows(config),
    because: "each step reads the whole graph from memory",
    remedy: "add --fanouts or --clusters, or drop it",
};

pub(super) static READS_NO_POSITIONS: Rule = Rule {
    is_read: |config, _| config.nodes.position_columns == 0,
    because: "features with positions are in memory",
    remedy: "drop it or --position-columns",
};

pub(super) static READS_ALL_NEIGHBOURS: Rule = Rule {
    is_read: |config, _| config.nodes.teacher_fanouts.is_none(),
    because: "targets from sampled neighbours are those of one teacher",
    remedy: "drop it or --teacher-fanouts",
};

pub(super) static IS_SMOOTHED: Rule = Rule {
    is_read: |config, _| config.nodes.kd_smoothing_steps > 0,
    because: "the targets are not smoothed",
    remedy: "add --kd-smoothing-steps or drop it",
};

pub(super) static IS_CONSISTENT: Rule = Rule {
    is_read: |config, _| config.nodes.consistency_weight > 0.0,
    because: "there is no consistency loss",
    remedy: "add --consistency-weight or drop it",
};

pub(super) static SAMPLES_NEIGHBOURS: Rule = Rule {
    is_read: |config, _| config.nodes.fanouts.is_some(),
    because: "it belongs to sampled neighbours",
    remedy: "add --fanouts or drop it",
};

pub(super) static FEATURES_ARE_ON_DISK: Rule = Rule {
    is_read: |config, _| config.memory.features_from != FeaturesFrom::Resident,
    because: "all features are in memory",
    remedy: "use --features-from direct or mapped, or drop it",
};

pub(super) static IS_SPLIT_BY_CLASS: Rule = Rule {
    is_read: |config, _| matches!(config.nodes.node_split, NodeSplitChoice::Auto | NodeSplitChoice::PerClass),
    because: "the nodes are divided in another way",
    remedy: "use --node-split per-class or drop it",
};

pub(super) static IS_SPLIT_AT_RANDOM: Rule = Rule {
    is_read: |config, _| config.nodes.node_split == NodeSplitChoice::Random,
    because: "only node_split = \"random\" reads it",
    remedy: "add --node-split random or drop it",
};

pub(super) static SPLIT_IS_DRAWN: Rule = Rule {
    is_read: |config, _| config.nodes.node_split != NodeSplitChoice::Given || config.nodes.hidden_fraction > 0.0,
    because: "the dataset's own split is used",
    remedy: "drop it",
};

pub(super) static HAS_CLUSTERS: Rule = Rule {
    is_read: |config, _| config.nodes.clusters.is_some(),
    because: "there are no clusters",
    remedy: "add --clusters or drop it",
};

pub(super) static OF_SAGE: Rule = Rule {
    is_read: |config, _| config.model.model == ModelKind::Sage,
    because: "only a sage aggregates by a mean or sum",
    remedy: "use --model sage or drop it",
};

pub(super) static OF_NODE_GAT: Rule = Rule {
    is_read: |config, _| config.model.model == ModelKind::Gat,
    because: "only a gat has attention",
    remedy: "use --model gat or drop it",
};

pub(super) static OF_APPNP: Rule = Rule {
    is_read: |config, _| config.model.model == ModelKind::Appnp,
    because: "only an appnp propagates its outputs",
    remedy: "use --model appnp or drop it",
};

pub(super) static DRAWS_FOLDS: Rule = Rule {
    is_read: |config, _| config.graphs.folds_file.is_none(),
    because: "folds_file lists the folds",
    remedy: "drop it",
};

pub(super) static OF_GRAPH_MODELS: Rule = Rule {
    is_read: |_, stage| stage != Stage::Fusion,
    because: "the agent of `kdgat fusion` reads states, not graphs",
    remedy: "drop it",
};

pub(super) static OF_DQN: Rule = Rule {
    is_read: |config, _| config.fusion.fusion == FusionKind::Dqn,
    because: "it belongs to the Q-network (dqn), and fusion is bandit",
    remedy: "drop it, or use --fusion dqn",
};

pub(super) static OF_BANDIT: Rule = Rule {
    is_read: |config, _| config.fusion.fusion == FusionKind::Bandit,
    because: "it belongs to the bandit, and fusion is dqn",
    remedy: "add --fusion bandit or drop it",
};

pub(super) static DISTILS: Rule = Rule {
    is_read: |config, _| config.distillation.use_kd,
    because: "nothing is distilled while use_kd is false",
    remedy: "add --use-kd or drop it",
};

pub(super) static HAS_LAYERS: Rule = Rule {
    is_read: |config, stage| config.model.model == ModelKind::Gat || trains_on_graphs(config, stage),
    because: "a vgae of CAN windows has a layer for each width of --hidden",
    remedy: "drop it",
};

pub(super) static OF_CLASSIFIER: Rule = Rule {
    is_read: |config, stage| config.model.model == ModelKind::Gat || stage == Stage::Train,
    because: "it belongs to the classifier (gat), and this command trains a vgae",
    remedy: "drop it",
};

pub(super) static OF_VGAE: Rule = Rule {
    is_read: |config, _| config.model.model == ModelKind::Vgae,
    because: "it belongs to the autoencoder (vgae), and this command trains a gat",
    remedy: "drop it",
};

pub(super) static HAS_HEADS: Rule = Rule {
    is_read: |config, stage| match stage {
        Stage::Train | Stage::Pretrain => config.model.model == ModelKind::Gat,
        _ => !trains_on_graphs(config, stage) || config.graphs.encoder == EncoderChoice::Gat,
    },
    because: "only a gat has attention heads",
    remedy: "drop it",
};

pub(super) static SENDS_MESSAGES: Rule = Rule {
    is_read: |config, _| config.model.model != ModelKind::Mlp,
    because: "an mlp sends no messages",
    remedy: "use --model gin or drop it",
};

pub(super) static READS_EDGES: Rule = Rule {
    is_read: |config, stage| match stage {
        Stage::Autoencoder => config.graphs.encoder == EncoderChoice::Gin,
        _ => config.model.model == ModelKind::Gin || has_bonds(config),
    },
    because: "only a gin reads edge features, and an irreps with bonds",
    remedy: "use --model gin (autoencoder: --encoder gin) or --bonds true, or drop it",
};

pub(super) static HAS_TEMPERATURE: Rule = Rule {
    is_read: |config, _| config.distillation.kd_loss != KdLoss::Mse,
    because: "kd_loss = \"mse\" compares the logits without a temperature",
    remedy: "use --kd-loss kl or drop it",
};

pub(super) static TEACHER_VISITS: Rule = Rule {
    is_read: |config, _| config.distillation.residency() != Residency::Resident,
    because: "a resident teacher stays on the device",
    remedy: "add --offload-teacher or drop it",
};

pub(super) static TEACHER_HAS_SLOTS: Rule = Rule {
    is_read: |config, _| matches!(config.distillation.residency(), Residency::Layer | Residency::Auto),
    because: "the teacher is not loaded layer by layer",
    remedy: "add --teacher-residency layer or drop it",
};

pub(super) static CACHES: Rule = Rule {
    is_read: |config, _| config.distillation.cache() != TeacherCache::Off,
    because: "the teacher's outputs are not cached",
    remedy: "add --teacher-cache auto or drop it",
};

pub(super) static CACHES_ON_DISK: Rule = Rule {
    is_read: |config, _| config.distillation.cache() != TeacherCache::Ram,
    because: "the teacher's outputs are cached in memory",
    remedy: "use --teacher-cache disk or drop it",
};

pub(super) static IS_FOCAL: Rule = Rule {
    is_read: |config, _| config.training.task_loss == TaskLoss::Focal,
    because: "task_loss is not focal",
    remedy: "add --task-loss focal or drop it",
};

pub(super) static HASHES_IDS: Rule = Rule {
    is_read: |config, _| config.model.id_encoding == IdEncoding::Hash,
    because: "id_encoding is vocabulary",
    remedy: "add --id-encoding hash or drop it",
};

pub(super) static STEPS_RATE: Rule = Rule {
    is_read: |config, _| config.training.schedule == Schedule::Step,
    because: "only the schedule `step` reads it",
    remedy: "add --schedule step or drop it",
};

pub(super) static LOWERS_RATE: Rule = Rule {
    is_read: |config, _| matches!(config.training.schedule, Schedule::Step | Schedule::Plateau),
    because: "only the schedules `step` and `plateau` read it",
    remedy: "add --schedule step or drop it",
};

pub(super) static CHOOSES_BATCH_SIZE: Rule = Rule {
    is_read: |config, _| config.training.optimize_batch_size,
    because: "optimize_batch_size is false",
    remedy: "add --optimize-batch-size true or drop it",
};

pub(super) static ON_A_GPU: Rule = Rule {
    is_read: |config, _| config.training.device != DeviceChoice::Cpu,
    because: "it applies to GPUs, and device is cpu",
    remedy: "drop it, or use --device cuda",
};
