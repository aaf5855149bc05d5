//! Groups of configuration fields that are read together: by a kind of data, of a model or of a stage.

/// Fields of the distillation losses and of a file with a teacher's outputs.
pub(super) const DISTILLATION_FIELDS: &[&str] = &[
    "kd_temperature",
    "kd_views",
    "kd_alpha",
    "kd_alpha_end",
    "kd_vgae_latent_weight",
    "kd_vgae_recon_weight",
    "kd_loss",
    "targets_file",
    "kd_embedding_weight",
    "kd_embedding_loss",
    "kd_embedding_temperature",
];

/// Fields of a teacher that computes, which a file with its outputs replaces.
pub(super) const COMPUTING_TEACHER_FIELDS: &[&str] = &[
    "teacher_path",
    "more_teachers",
    "kd_hint_weight",
    "offload_teacher",
    "teacher_residency",
    "teacher_burst",
    "teacher_layer_slots",
    "use_teacher_cache",
    "teacher_cache",
    "teacher_cache_precision",
    "teacher_cache_dir",
];

/// Fields of graph models and their training, which `kdgat fusion` does not read.
pub(super) const GRAPH_MODEL_FIELDS: &[&str] = &[
    "kd_alpha_end",
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
    "foreign_ids",
    "accumulate_grad_batches",
    "batch_nodes",
    "batch_edges",
    "optimize_batch_size",
    "min_steps_per_epoch",
    "num_workers",
    "prefetch_batches",
    "process_timeout",
    "shuffle_block",
    "shuffle_buffer",
    "precision",
    "cuda_graphs",
    "log_every_n_steps",
    "task_loss",
    "focal_gamma",
    "kd_temperature",
    "kd_views",
    "kd_vgae_latent_weight",
    "kd_vgae_recon_weight",
    "kd_hint_weight",
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
    "init_from",
    "freeze",
    "transductive",
];

pub(super) const FUSION_FIELDS: &[&str] = &[
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

/// Fields of CAN windows and of models of them.
pub(super) const CAN_FIELDS: &[&str] = &[
    "window",
    "stride",
    "features",
    "validation",
    "max_reject_share",
    "keep_duplicates",
    "synthetic_attacks",
    "log_format",
    "interface",
    "time_unit",
    "embedding",
    "id_encoding",
    "id_buckets",
    "id_probes",
    "unknown_drop",
    "fc_layers",
    "foreign_ids",
    "task_loss",
    "focal_gamma",
    "gradient_checkpointing",
];

/// Fields of many graphs that are no CAN windows, which an autoencoder reads, too.
pub(super) const GRAPH_FIELDS: &[&str] = &["edge_features", "folds", "fold", "folds_file"];

/// Fields of an autoencoder of such graphs.
pub(super) const GRAPH_AUTOENCODER_FIELDS: &[&str] = &["encoder", "decode_edges", "train_classes"];

/// Fields of networks in space.
pub(super) const SPACE_FIELDS: &[&str] = &["radial_basis", "radial_functions", "energy_weight", "force_weight"];

/// Fields of one large graph and of models of its nodes.
pub(super) const NODE_FIELDS: &[&str] = &[
    "undirected",
    "largest_component",
    "row_normalized",
    "half_features",
    "node_split",
    "labels_per_class",
    "validation_per_class",
    "training_fraction",
    "split_seed",
    "hidden_fraction",
    "position_columns",
    "fanouts",
    "teacher_fanouts",
    "kd_nodes_per_label",
    "kd_class_shares",
    "kd_smoothing_steps",
    "kd_smoothing_teleport",
    "consistency_weight",
    "consistency_views",
    "consistency_temperature",
    "node_validation",
    "features_from",
    "hot_rows",
    "clusters",
    "clusters_per_batch",
    "aggregator",
    "norm",
    "residual",
    "input_dropout",
    "attention_dropout",
    "output_heads",
    "teleport",
    "propagation_steps",
];

/// Fields of reading a graph's source, which a store has behind it.
pub(super) const READING_FIELDS: &[&str] = &["undirected", "largest_component", "row_normalized", "half_features"];
/// Why a store does not read them.
pub(super) const STORE_IS_READ: &str = "a store has its edges and features already";

/// Fields of many graphs, which a training on the nodes of one graph does not read.
pub(super) const MANY_GRAPHS_FIELDS: &[&str] = &[
    "pooling",
    "virtual_node",
    "edge_features",
    "target_reference",
    "folds",
    "fold",
    "folds_file",
    "batch_nodes",
    "batch_edges",
    "cuda_graphs",
    "min_steps_per_epoch",
    "memory_estimation",
    "shuffle_block",
    "shuffle_buffer",
    "kd_hint_weight",
    "targets_file",
    "kd_embedding_weight",
    "kd_embedding_loss",
    "kd_embedding_temperature",
];
