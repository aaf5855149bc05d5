//! The fields that a stage reads, and under which conditions. A flag that would be ignored is refused with the reason.

use std::collections::BTreeMap;

use super::check::Stage;
use super::conditions::{draws_views, is_node_store, reads_rows, trains_on_graphs};
use super::curriculum;
use super::data_kind::DataKind;
use super::field_groups::*;
use super::fields::Config;
use super::layer::fields;
use super::table::Field;
use super::values::*;

/// The condition under which fields are read. Fields without a rule are always read.
pub struct Rule {
    pub fields: &'static [&'static str],
    pub is_read: fn(&Config, Stage) -> bool,
    pub because: &'static str,
    pub remedy: &'static str,
}

/// True if a stage reads a field under any configuration; the stage's help lists these.
pub fn may_read(stage: Stage, field: &Field) -> bool {
    if NODE_FIELDS.contains(&field.name) {
        return stage == Stage::Train;
    }
    let mut configs = [FusionKind::Dqn, FusionKind::Bandit].map(|fusion| eager(stage, fusion)).to_vec();
    if stage == Stage::Autoencoder {
        configs[1].data_kind = DataKind::Graphs;
    }
    if stage == Stage::Train {
        for model in [ModelKind::PaiNN, ModelKind::Sgmp] {
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
    let of_field = || rules().filter(|rule| rule.fields.contains(&field.name));
    configs.iter().any(|config| of_field().all(|rule| (rule.is_read)(config, stage)))
}

/// The fields that the losses of a stage depend on under this configuration, with their values: a run can be resumed with the same ones.
pub fn loss_fields(config: &Config, stage: Stage) -> BTreeMap<&'static str, String> {
    let is_read = |field: &&Field| {
        rules().filter(|rule| rule.fields.contains(&field.name)).all(|rule| (rule.is_read)(config, stage))
    };
    let of_losses = fields().filter(|field| !field.same_losses).filter(is_read);
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

/// The rule of fields that only distillation reads.
const fn distilled(fields: &'static [&'static str]) -> Rule {
    Rule {
        fields,
        is_read: |config, _| config.distillation.use_kd,
        because: "nothing is distilled while use_kd is false",
        remedy: "add --use-kd or drop it",
    }
}

/// All rules. The first one that fails gives the reason.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().chain(curriculum::RULES)
}

const RULES: &[Rule] = &[
    Rule {
        fields: FUSION_FIELDS,
        is_read: |_, stage| stage == Stage::Fusion,
        because: "only `kdgat fusion` reads it",
        remedy: "use `kdgat fusion` or drop it",
    },
    Rule {
        fields: &["threshold"],
        is_read: |_, stage| stage == Stage::Fusion,
        because: "a model's threshold is chosen when it is evaluated",
        remedy: "give it to `kdgat evaluate`, or drop it",
    },
    Rule {
        fields: &["pooling", "virtual_node", "target_reference", "monitor"],
        is_read: |_, stage| stage == Stage::Train,
        because: "only `kdgat train` reads it",
        remedy: "use `kdgat train` or drop it",
    },
    Rule {
        fields: SPACE_FIELDS,
        is_read: |config, stage| stage == Stage::Train && config.model.model.is_in_space(),
        because: "only a schnet or painn reads it",
        remedy: "use --preset schnet,student or painn,teacher, or drop it",
    },
    Rule {
        fields: &["cutoff"],
        is_read: |config, stage| stage == Stage::Train && config.model.model.reads_positions(),
        because: "only networks of positions read it",
        remedy: "use --preset schnet,student, painn,teacher or sgmp,student, or drop it",
    },
    Rule {
        fields: &["path_gaussians"],
        is_read: |config, stage| stage == Stage::Train && config.model.model == ModelKind::Sgmp,
        because: "only an sgmp reads it",
        remedy: "use --preset sgmp,student, or drop it",
    },
    Rule {
        fields: &["virtual_node"],
        is_read: |config, _| !config.model.model.reads_positions(),
        because: "networks of positions have no virtual node",
        remedy: "drop it",
    },
    Rule {
        fields: &["dropout"],
        is_read: |config, _| !config.model.model.is_in_space(),
        because: "schnet and painn have no dropout",
        remedy: "drop it",
    },
    Rule {
        fields: &["freeze", "transductive"],
        is_read: |config, _| config.training.init_from.is_some(),
        because: "the weights are random at first",
        remedy: "name others with --init-from, or drop it",
    },
    Rule {
        fields: &["transductive"],
        is_read: |config, stage| stage == Stage::Train || trains_on_graphs(config, stage),
        because: "the test set of CAN windows is a folder of its own",
        remedy: "drop it",
    },
    Rule {
        fields: GRAPH_FIELDS,
        is_read: trains_on_graphs,
        because: "only `kdgat train` and, on a dataset of graphs, `kdgat autoencoder` read it",
        remedy: "name the dataset with --data, or drop it",
    },
    Rule {
        fields: GRAPH_AUTOENCODER_FIELDS,
        is_read: |config, stage| stage == Stage::Autoencoder && trains_on_graphs(config, stage),
        because: "only `kdgat autoencoder` on a dataset of graphs reads it",
        remedy: "name the dataset with --data, or drop it",
    },
    Rule {
        fields: &["targets_file", "kd_embedding_weight", "kd_embedding_loss", "kd_embedding_temperature"],
        is_read: |_, stage| stage == Stage::Train,
        because: "only `kdgat train` learns from a file with a teacher's outputs",
        remedy: "drop it",
    },
    Rule {
        fields: COMPUTING_TEACHER_FIELDS,
        is_read: |config, _| config.distillation.targets_file.is_none(),
        because: "targets_file has the teacher's outputs, so no teacher computes",
        remedy: "drop it, or drop --targets-file",
    },
    Rule {
        fields: &["more_teachers"],
        is_read: |config, stage| match stage {
            Stage::Classifier | Stage::Curriculum => true,
            Stage::Train => config.data_kind == DataKind::OneGraph,
            Stage::Autoencoder | Stage::Fusion => false,
        },
        because: "only the class probabilities of classifiers are averaged: a gat's, or those of `kdgat train` on one large graph",
        remedy: "drop it",
    },
    Rule {
        fields: &["kd_views"],
        is_read: draws_views,
        because: "views differ by the IDs that `kdgat classifier` and `kdgat curriculum` hide from a classifier, and none are hidden",
        remedy: "drop it, or raise --unknown-drop",
    },
    Rule {
        fields: &["kd_hint_weight"],
        is_read: |config, _| config.distillation.more_teachers.is_none(),
        because: "several teachers have no hidden layer in common",
        remedy: "drop it or --more-teachers",
    },
    Rule {
        fields: &["kd_embedding_temperature"],
        is_read: |config, _| config.distillation.kd_embedding_loss == EmbeddingLossChoice::Contrastive,
        because: "only the contrastive loss has a temperature",
        remedy: "add --kd-embedding-loss contrastive or drop it",
    },
    Rule {
        fields: CAN_FIELDS,
        is_read: |config, stage| !trains_on_graphs(config, stage),
        because: "the command reads graphs of other kinds than CAN windows",
        remedy: "drop it",
    },
    Rule {
        fields: &["conv"],
        is_read: |config, stage| {
            !trains_on_graphs(config, stage)
                || (config.model.model == ModelKind::Gat && config.data_kind == DataKind::OneGraph)
        },
        because: "for graphs that are no CAN windows, only a gat on one large graph reads it",
        remedy: "drop it",
    },
    Rule {
        fields: NODE_FIELDS,
        is_read: |config, stage| stage == Stage::Train && config.data_kind == DataKind::OneGraph,
        because: "only `kdgat train` on one large graph reads it",
        remedy: "name the graph with --data, or drop it",
    },
    Rule {
        fields: READING_FIELDS,
        is_read: |config, _| !is_node_store(config),
        because: STORE_IS_READ,
        remedy: "drop it",
    },
    Rule {
        fields: MANY_GRAPHS_FIELDS,
        is_read: |config, stage| stage != Stage::Train || config.data_kind != DataKind::OneGraph,
        because: "the data is one large graph, whose nodes are trained on",
        remedy: "drop it",
    },
    Rule {
        fields: &["optimize_batch_size"],
        is_read: |config, stage| {
            stage != Stage::Train || config.data_kind != DataKind::OneGraph || config.nodes.fanouts.is_some()
        },
        because: "only batches of sampled neighbours are fitted to the memory",
        remedy: "add --fanouts or drop it",
    },
    Rule {
        fields: &["safety_factor"],
        is_read: |config, stage| stage != Stage::Train || config.data_kind != DataKind::OneGraph || reads_rows(config),
        because: "each step reads the whole graph",
        remedy: "add --fanouts or drop it",
    },
    Rule {
        fields: &["features_from"],
        is_read: |config, _| reads_rows(config),
        because: "each step reads the whole graph from memory",
        remedy: "add --fanouts or --clusters, or drop it",
    },
    Rule {
        fields: &["features_from"],
        is_read: |config, _| config.nodes.position_columns == 0,
        because: "features with positions are in memory",
        remedy: "drop it or --position-columns",
    },
    Rule {
        fields: &["more_teachers", "kd_class_shares", "kd_smoothing_steps"],
        is_read: |config, _| config.nodes.teacher_fanouts.is_none(),
        because: "targets from sampled neighbours are those of one teacher",
        remedy: "drop it or --teacher-fanouts",
    },
    Rule {
        fields: &["kd_smoothing_teleport"],
        is_read: |config, _| config.nodes.kd_smoothing_steps > 0,
        because: "the targets are not smoothed",
        remedy: "add --kd-smoothing-steps or drop it",
    },
    Rule {
        fields: &["consistency_views", "consistency_temperature"],
        is_read: |config, _| config.nodes.consistency_weight > 0.0,
        because: "there is no consistency loss",
        remedy: "add --consistency-weight or drop it",
    },
    Rule {
        fields: &["hot_rows", "node_validation"],
        is_read: |config, _| config.nodes.fanouts.is_some(),
        because: "it belongs to sampled neighbours",
        remedy: "add --fanouts or drop it",
    },
    Rule {
        fields: &["hot_rows"],
        is_read: |config, _| config.memory.features_from != FeaturesFrom::Resident,
        because: "all features are in memory",
        remedy: "use --features-from direct or mapped, or drop it",
    },
    Rule {
        fields: &["labels_per_class", "validation_per_class"],
        is_read: |config, _| matches!(config.nodes.node_split, NodeSplitChoice::Auto | NodeSplitChoice::PerClass),
        because: "the nodes are divided in another way",
        remedy: "use --node-split per-class or drop it",
    },
    Rule {
        fields: &["training_fraction"],
        is_read: |config, _| config.nodes.node_split == NodeSplitChoice::Random,
        because: "only node_split = \"random\" reads it",
        remedy: "add --node-split random or drop it",
    },
    Rule {
        fields: &["split_seed"],
        is_read: |config, _| config.nodes.node_split != NodeSplitChoice::Given || config.nodes.hidden_fraction > 0.0,
        because: "the dataset's own split is used",
        remedy: "drop it",
    },
    Rule {
        fields: &["clusters_per_batch"],
        is_read: |config, _| config.nodes.clusters.is_some(),
        because: "there are no clusters",
        remedy: "add --clusters or drop it",
    },
    Rule {
        fields: &["aggregator"],
        is_read: |config, _| config.model.model == ModelKind::Sage,
        because: "only a sage aggregates by a mean or sum",
        remedy: "use --model sage or drop it",
    },
    Rule {
        fields: &["attention_dropout", "output_heads"],
        is_read: |config, _| config.model.model == ModelKind::Gat,
        because: "only a gat has attention",
        remedy: "use --model gat or drop it",
    },
    Rule {
        fields: &["teleport", "propagation_steps"],
        is_read: |config, _| config.model.model == ModelKind::Appnp,
        because: "only an appnp propagates its outputs",
        remedy: "use --model appnp or drop it",
    },
    Rule {
        fields: &["folds"],
        is_read: |config, _| config.graphs.folds_file.is_none(),
        because: "folds_file lists the folds",
        remedy: "drop it",
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
        because: "it belongs to the Q-network (dqn), and fusion is bandit",
        remedy: "drop it, or use --fusion dqn",
    },
    Rule {
        fields: &["bandit_exploration", "bandit_ridge"],
        is_read: |config, _| config.fusion.fusion == FusionKind::Bandit,
        because: "it belongs to the bandit, and fusion is dqn",
        remedy: "add --fusion bandit or drop it",
    },
    distilled(DISTILLATION_FIELDS),
    distilled(&[
        "teacher_fanouts",
        "kd_nodes_per_label",
        "kd_class_shares",
        "kd_smoothing_steps",
        "kd_smoothing_teleport",
    ]),
    distilled(COMPUTING_TEACHER_FIELDS),
    Rule {
        fields: &["layers"],
        is_read: |config, stage| config.model.model == ModelKind::Gat || trains_on_graphs(config, stage),
        because: "a vgae of CAN windows has a layer for each width of --hidden",
        remedy: "drop it",
    },
    Rule {
        fields: &["kd_temperature", "kd_loss", "task_loss", "focal_gamma", "fc_layers", "foreign_ids"],
        is_read: |config, stage| config.model.model == ModelKind::Gat || stage == Stage::Train,
        because: "it belongs to the classifier (gat), and this command trains a vgae",
        remedy: "drop it",
    },
    Rule {
        fields: &["kd_vgae_latent_weight", "kd_vgae_recon_weight", "latent"],
        is_read: |config, _| config.model.model == ModelKind::Vgae,
        because: "it belongs to the autoencoder (vgae), and this command trains a gat",
        remedy: "drop it",
    },
    Rule {
        fields: &["heads"],
        is_read: |config, stage| match stage {
            Stage::Train => config.model.model == ModelKind::Gat,
            _ => !trains_on_graphs(config, stage) || config.graphs.encoder == EncoderChoice::Gat,
        },
        because: "only a gat has attention heads",
        remedy: "drop it",
    },
    Rule {
        fields: &["virtual_node"],
        is_read: |config, _| config.model.model != ModelKind::Mlp,
        because: "an mlp sends no messages",
        remedy: "use --model gin or drop it",
    },
    Rule {
        fields: &["edge_features"],
        is_read: |config, stage| match stage {
            Stage::Autoencoder => config.graphs.encoder == EncoderChoice::Gin,
            _ => config.model.model == ModelKind::Gin,
        },
        because: "only a gin reads edge features",
        remedy: "use --model gin (autoencoder: --encoder gin) or drop it",
    },
    Rule {
        fields: &["kd_temperature"],
        is_read: |config, _| config.distillation.kd_loss != KdLoss::Mse,
        because: "kd_loss = \"mse\" compares the logits without a temperature",
        remedy: "use --kd-loss kl or drop it",
    },
    Rule {
        fields: &["teacher_burst"],
        is_read: |config, _| config.distillation.residency() != Residency::Resident,
        because: "a resident teacher stays on the device",
        remedy: "add --offload-teacher or drop it",
    },
    Rule {
        fields: &["teacher_layer_slots"],
        is_read: |config, _| matches!(config.distillation.residency(), Residency::Layer | Residency::Auto),
        because: "the teacher is not loaded layer by layer",
        remedy: "add --teacher-residency layer or drop it",
    },
    Rule {
        fields: &["teacher_cache_precision", "teacher_cache_dir"],
        is_read: |config, _| config.distillation.cache() != TeacherCache::Off,
        because: "the teacher's outputs are not cached",
        remedy: "add --teacher-cache auto or drop it",
    },
    Rule {
        fields: &["teacher_cache_dir"],
        is_read: |config, _| config.distillation.cache() != TeacherCache::Ram,
        because: "the teacher's outputs are cached in memory",
        remedy: "use --teacher-cache disk or drop it",
    },
    Rule {
        fields: &["focal_gamma"],
        is_read: |config, _| config.training.task_loss == TaskLoss::Focal,
        because: "task_loss is not focal",
        remedy: "add --task-loss focal or drop it",
    },
    Rule {
        fields: &["id_buckets", "id_probes"],
        is_read: |config, _| config.model.id_encoding == IdEncoding::Hash,
        because: "id_encoding is vocabulary",
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
        because: "optimize_batch_size is false",
        remedy: "add --optimize-batch-size true or drop it",
    },
    Rule {
        fields: &["gpu_memory_limit", "offload_optimizer", "clear_cache_every_n"],
        is_read: |config, _| config.training.device != DeviceChoice::Cpu,
        because: "it applies to GPUs, and device is cpu",
        remedy: "drop it, or use --device cuda",
    },
];
