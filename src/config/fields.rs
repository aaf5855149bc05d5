//! Every configuration field, once: its section, type, default, limit, and what it does.

use std::path::PathBuf;

use figment::value::Value;
use serde::{Deserialize, Serialize};

use super::table::Limit::{Above, AtLeast, Below, Between, Inside};
use super::table::{Field, Section, config_fields};
use super::values::*;

config_fields! {
    /// Where the traffic comes from and how it is cut into graphs.
    data: DataConfig {
        /// Folder of a dataset, or the name of one in the folder KDGAT_DATA (`kdgat data list`). none, or `sim` where nothing else has that name: the simulated dataset, made on first use.
        data: Option<PathBuf> = None;
        /// Folder of the graph stores.
        stores_dir: PathBuf = "stores".into();
        /// Frames of a window, which becomes one graph.
        window: usize = 100, Between(2.0, 65534.0);
        /// Frames from the start of a window to the start of the next.
        stride: usize = 100, Between(1.0, 4294967295.0);
        /// Features of nodes and edges; teacher and student have the same.
        features: FeatureChoice = FeatureChoice::Window;
        /// Share of each training file's time that is held out for validation.
        validation_fraction: f64 = 0.2, Inside(0.0, 1.0);
        /// Share of a file's rows that may be rejected before the file is refused.
        max_reject_share: f64 = 0.01, Between(0.0, 1.0);
        /// Train on graphs that are, feature by feature, also in validation or a test. Without it they are left out of training.
        keep_duplicates: bool = false;
        /// Format of the log files.
        #[alias = "format"]
        log_format: LogFormat = LogFormat::Auto;
    }

    /// What is trained. A preset such as `vgae,student` sets all that belongs together.
    model: ModelConfig {
        /// The architecture: graph autoencoder or classifier.
        model: ModelKind = ModelKind::Vgae;
        /// Name of the size, part of the run folder's name; a preset sets it together with the widths.
        size: String = "student".to_string();
        /// Widths of the hidden layers: one a layer for vgae, a single one for gat.
        hidden: Vec<usize> = vec![80, 40, 16], Between(1.0, 1e6);
        /// Width of the latent space (vgae).
        latent: usize = 16, Between(1.0, 1e6);
        /// Attention heads.
        heads: usize = 1, Between(1.0, 1024.0);
        /// Width of the embedding of a CAN ID.
        embedding: usize = 4, Between(1.0, 1e6);
        /// How a CAN ID is embedded.
        id_encoding: IdEncoding = IdEncoding::Vocabulary;
        /// Rows of the table that IDs are hashed into.
        id_buckets: usize = 128, Between(1.0, 1e8);
        /// Rows of that table that an ID is put together from.
        id_probes: usize = 2, Between(1.0, 8.0);
        /// Share of activations dropped in training.
        dropout: f64 = 0.1, Below(0.0, 1.0);
        /// Attention layers (gat; vgae has one a hidden width).
        layers: usize = 2, Between(1.0, 1024.0);
        /// Fully connected layers of the classifier's head (gat).
        fc_layers: usize = 3, Between(1.0, 1024.0);
        /// Graph convolution.
        conv: Convolution = Convolution::Gat;
        /// How attention and the layers and losses around it are computed.
        attention: AttentionChoice = AttentionChoice::Auto;
        /// Probability with which an ID is replaced by UNKNOWN in training (with `id_encoding = "hash"`: by any other ID).
        unknown_drop: f64 = 0.01, Below(0.0, 1.0);
        /// Use CAN IDs unseen in attack-free traffic as extra evidence of an attack: they raise the log odds of their window by an amount measured on validation windows (gat).
        foreign_ids: bool = true;
    }

    /// How it is trained.
    training: TrainingConfig {
        /// Epochs at most.
        max_epochs: usize = 300, AtLeast(1.0);
        /// Epochs without a better validation loss after which training stops.
        patience: usize = 100, AtLeast(1.0);
        /// Learning rate at the start.
        lr: f64 = 0.002, Above(0.0);
        /// L2 penalty of the weights in Adam.
        weight_decay: f64 = 1e-4, AtLeast(0.0);
        /// Schedule of the learning rate.
        schedule: Schedule = Schedule::Cosine;
        /// Epochs between two steps of the schedule `step`.
        lr_step_epochs: usize = 100, AtLeast(1.0);
        /// Factor of the learning rate at a step of the schedules `step` and `plateau`.
        lr_gamma: f64 = 0.5, Inside(0.0, 1.0);
        /// Largest norm of all gradients together; 0 does not clip.
        gradient_clip: f64 = 1.0, AtLeast(0.0);
        /// Batches whose gradients are added up before an optimiser step.
        accumulate_grad_batches: usize = 1, Between(1.0, 1e9);
        /// Graphs of a batch; the upper bound when the size is found automatically.
        batch_size: usize = 4096, Between(1.0, 1e9);
        /// Nodes of a batch at most: its last graphs go into the next one. none: graphs alone are counted.
        batch_nodes: Option<usize> = None, AtLeast(1.0);
        /// Find the batch size that fits the memory.
        optimize_batch_size: bool = true;
        /// Batches that an epoch keeps when the batch size is found automatically.
        min_steps_per_epoch: usize = 20, AtLeast(1.0);
        /// Seed of every random decision.
        seed: u64 = 42;
        /// Threads that compute; 0 uses all cores.
        threads: usize = 0, Between(0.0, 4096.0);
        /// Threads that assemble batches.
        num_workers: usize = 1, Between(1.0, 256.0);
        /// Batches that are assembled ahead.
        prefetch_batches: usize = 4, Between(1.0, 1024.0);
        /// Graphs that lie together in the store and are read together; 0 shuffles all graphs. For stores larger than the memory.
        shuffle_block: usize = 0;
        /// Graphs of several blocks that are mixed with each other, at least (with `shuffle_block`).
        shuffle_buffer: usize = 16384, AtLeast(1.0);
        /// Where to train: auto (a GPU when there is one), cpu, cuda, cuda:N.
        device: DeviceChoice = DeviceChoice::Auto;
        /// Precision of the computation.
        precision: Precision = Precision::Single;
        /// Experimental, no card has run it yet: capture training steps as CUDA graphs and replay them, so that a GPU waits less for its small kernels to be launched. Batches are padded by up to a sixteenth.
        cuda_graphs: bool = false;
        /// Batches between two rows of steps.csv.
        log_every_n_steps: usize = 20, AtLeast(1.0);
        /// Loss of the classifier (gat).
        task_loss: TaskLoss = TaskLoss::CrossEntropy;
        /// Exponent of the focal loss.
        focal_gamma: f64 = 2.0, AtLeast(0.0);
    }

    /// What the student learns from the teacher, and where the teacher is meanwhile.
    distillation: DistillationConfig {
        /// Distil from a teacher.
        use_kd: bool = false;
        /// The teacher: a run's folder, or its weights, safetensors or a PyTorch state dict beside its config.json. none: the dataset's registered teacher.
        teacher_path: Option<PathBuf> = None;
        /// Folder of the registered teachers.
        teachers_dir: PathBuf = "teachers".into();
        /// Temperature that softens the classes (gat).
        kd_temperature: f64 = 4.0, Above(0.0);
        /// Weight of the teacher's part of the loss; the task has the rest.
        kd_alpha: f64 = 0.7, Between(0.0, 1.0);
        /// Weight of the latent part of the VGAE's distillation loss.
        kd_vgae_latent_weight: f64 = 0.5, AtLeast(0.0);
        /// Weight of the reconstruction part of the VGAE's distillation loss.
        kd_vgae_recon_weight: f64 = 0.5, AtLeast(0.0);
        /// Weight of a hidden layer's part of the distillation loss: the encoder's last hidden layer (vgae), the pooled attention layers (gat). 0 compares outputs alone.
        kd_hint_weight: f64 = 0.0, AtLeast(0.0);
        /// Distillation loss of the classifier (gat).
        kd_loss: KdLoss = KdLoss::Kl;
        /// Keep the teacher off the device except while it works: short for `teacher_residency = "forward"`.
        #[alias = "offload_teacher_to_cpu"]
        offload_teacher: bool = false;
        /// Where the teacher's weights are. none: forward with `offload_teacher`, else resident.
        teacher_residency: Option<Residency> = None;
        /// Batches that one visit of an offloaded teacher serves.
        teacher_burst: usize = 16, AtLeast(1.0);
        /// Layers that are on the device at once with `teacher_residency = "layer"`.
        teacher_layer_slots: usize = 2, AtLeast(1.0);
        /// Keep the teacher's outputs, so that each graph is computed once.
        use_teacher_cache: bool = true;
        /// Where they are kept.
        teacher_cache: TeacherCache = TeacherCache::Auto;
        /// Precision of the kept outputs.
        teacher_cache_precision: CachePrecision = CachePrecision::F32;
        /// Folder of the outputs that are kept on disk.
        teacher_cache_dir: PathBuf = "stores/targets".into();
    }

    /// Which graphs an epoch of `kdgat curriculum` sees.
    curriculum: CurriculumConfig {
        /// Which normal graphs an epoch sees.
        curriculum: CurriculumKind = CurriculumKind::Difficulty;
        /// Normal graphs per attack graph at the first epoch.
        curriculum_start_ratio: f64 = 1.0, Above(0.0);
        /// Normal graphs per attack graph that the epochs go towards: after `max_epochs` it would be reached.
        curriculum_end_ratio: f64 = 10.0, Above(0.0);
        /// Percentile of difficulty that the first epoch starts from; it rises to 95.
        difficulty_percentile: f64 = 50.0, Between(0.0, 95.0);
        /// Epochs after which difficulty is scored again; 0 scores once.
        difficulty_cache_update: usize = 0;
        /// Graphs that are scored between two releases of memory.
        difficulty_chunk: usize = 500, AtLeast(1.0);
        /// The VGAE that scores: a run's folder or a weight file. none: the dataset's registered VGAE teacher.
        difficulty_model: Option<PathBuf> = None;
    }

    /// How `kdgat fusion` learns to weigh the classifier against the autoencoder: see docs/fusion.md.
    fusion: FusionConfig {
        /// Who learns the weights.
        fusion: FusionKind = FusionKind::Dqn;
        /// The autoencoder: a run's folder or a weight file. none: the registered teacher for the size `teacher`, else the newest finished run of the size.
        fusion_vgae: Option<PathBuf> = None;
        /// The classifier, found in the same way.
        fusion_gat: Option<PathBuf> = None;
        /// Discount of the next window's value; 0: each window is an episode of its own (dqn).
        fusion_gamma: f64 = 0.0, Below(0.0, 1.0);
        /// Tried weights that are remembered.
        replay_capacity: usize = 100_000, Between(1.0, 4e9);
        /// Updates between two renewals of the target network (dqn).
        target_update_steps: usize = 100, AtLeast(1.0);
        /// Share of random weights at the first epoch (dqn).
        epsilon_start: f64 = 1.0, Between(0.0, 1.0);
        /// Share of random weights at the end (dqn).
        epsilon_end: f64 = 0.05, Between(0.0, 1.0);
        /// Epochs from the one to the other (dqn).
        epsilon_epochs: usize = 20;
        /// Width of the confidence bounds that weights are tried by (bandit).
        bandit_exploration: f64 = 1.0, AtLeast(0.0);
        /// Penalty of the regressions (bandit).
        bandit_ridge: f64 = 1.0, Above(0.0);
        /// Reward of a fused score on the right side of one half, and price of one on the wrong side.
        reward_correctness: f64 = 1.0, AtLeast(0.0);
        /// The same, times the agreement of the two models.
        reward_agreement: f64 = 0.25, AtLeast(0.0);
        /// The same, times the sureness of the fused score.
        reward_confidence: f64 = 0.5, AtLeast(0.0);
        /// Price of listening to one model alone.
        reward_balance: f64 = 0.05, AtLeast(0.0);
    }

    /// How much memory is used, and what is done to use less.
    memory: MemoryConfig {
        /// Recompute activations in the backward pass: less memory, the same gradients.
        gradient_checkpointing: bool = true;
        /// How the memory of a batch is predicted.
        memory_estimation: MemoryEstimation = MemoryEstimation::Measured;
        /// Share of the free memory that is planned for.
        safety_factor: f64 = 0.6, Between(0.01, 1.0);
        /// Host memory that must not be exceeded. none: what the control group, the batch system, or the machine grants.
        memory_limit: Option<ByteSize> = None, Above(0.0);
        /// GPU memory that must not be exceeded; no more than what is free at the start is planned for. none: what is free at the start.
        gpu_memory_limit: Option<ByteSize> = None, Above(0.0);
        /// Batches between two releases of cached GPU memory; 0 never releases.
        clear_cache_every_n: usize = 100;
        /// Keep Adam's states in host memory.
        offload_optimizer: bool = false;
        /// Seconds between two rows of memory.csv.
        memory_sample_seconds: f64 = 1.0, Between(0.01, 3600.0);
    }

    /// Where results go.
    output: OutputConfig {
        /// Folder of all runs.
        runs_dir: PathBuf = "runs".into();
        /// Continue the last unfinished run, or the one that `run_dir` names.
        resume: bool = false;
        /// Folder of this run. none: the next free number below `runs_dir`.
        run_dir: Option<PathBuf> = None;
        /// Write metrics.csv and steps.csv as TensorBoard event files, too.
        tensorboard: bool = false;
        /// Write metrics.csv and steps.csv as JSON lines, too: metrics.jsonl and steps.jsonl.
        json_lines: bool = false;
        /// Show the training on a panel that fills the terminal: losses, memory, teacher, speed.
        live: bool = false;
    }

    /// How results are judged.
    evaluation: EvaluationConfig {
        /// Score above which a window is called an attack: fpr:RATE (the share of benign validation windows above it), youden, or a number.
        threshold: Threshold = Threshold::FalsePositiveRate(0.001);
    }
}
