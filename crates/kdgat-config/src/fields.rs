//! Every configuration field, defined once: section, type, default, limit and help text.

use std::path::PathBuf;

use figment::value::Value;
use serde::{Deserialize, Serialize};

use super::data_kind::DataKind;
use super::table::Limit::{Above, AtLeast, Below, Between, Inside};
use super::table::{Field, Section, config_fields};
use super::values::*;

config_fields! {
    /// The dataset, and how its traffic is cut into windows and graphs.
    data: DataConfig {
        /// The dataset: its folder, or a name from `kdgat data list`, which is looked up in the folder KDGAT_DATA. none (or `sim`, unless
        /// something has that name): the simulated dataset, created on first use.
        #[same_losses = true]
        data: Option<PathBuf> = None;
        /// Folder for graph stores. They are built from the logs on first use and can be deleted at any time.
        #[same_losses = true]
        stores_dir: PathBuf = "stores".into();
        /// Frames per window; each window becomes one graph. A model reads only windows of the length it was trained on.
        window: usize = 100, Between(2.0, 65534.0);
        /// Frames from the start of one window to the start of the next. Below `window`, windows overlap: more graphs, and earlier alarms.
        stride: usize = 100, Between(1.0, 4294967295.0);
        /// Feature set of nodes and edges. Teacher and student must use the same set.
        features: FeatureChoice = FeatureChoice::Window;
        /// Share of each training log that is held out for validation, in contiguous blocks of time. Raise it when validation has too few
        /// windows to choose a threshold on.
        validation_fraction: f64 = 0.2, Inside(0.0, 1.0);
        /// Training data that are held out for validation. With `logs` or `attacks` a model is validated on drives or attacks that it has not
        /// seen; `validation_fraction` is then the share of the logs' bytes. A student needs a teacher of the same division.
        validation: ValidationChoice = ValidationChoice::Blocks;
        /// Largest share of a log's rows that may be malformed; beyond it the log is refused. Raise it for logs known to be damaged.
        #[same_losses = true]
        max_reject_share: f64 = 0.01, Between(0.0, 1.0);
        /// Also train on graphs whose features all equal those of a validation or test graph. By default they are left out, because the
        /// model would be evaluated on graphs that it has seen.
        keep_duplicates: bool = false;
        /// Add synthetic attacks, made from the attack-free training logs, to the training data. A detector then learns many kinds and
        /// strengths of attacks instead of the recorded ones alone. They are written to `stores_dir`/synthetic on first use.
        synthetic_attacks: bool = false;
        /// Format of the log files. Set it when `auto` does not recognise them.
        #[alias = "format"]
        #[same_losses = true]
        log_format: LogFormat = LogFormat::Auto;
        /// Interface or channel (`can0`) whose frames are read. Set it for logs with frames of several: each is a bus of its own.
        interface: Option<String> = None;
        /// Unit of the times in the logs. With `auto` they are seconds, and logs whose times cannot be those of a bus are refused.
        time_unit: TimeUnitChoice = TimeUnitChoice::Auto;
    }

    /// The model. A preset such as `vgae,student` sets these fields together.
    model: ModelConfig {
        /// Architecture of the model.
        model: ModelKind = ModelKind::Vgae;
        /// Name of the model's size; part of the run folder's name. Presets set it together with the widths. A model whose size starts with
        /// `teacher` and that is trained without `use_kd` is registered as the dataset's teacher.
        size: String = "student".to_string();
        /// Widths of the hidden layers: one number per layer for vgae and dqn, a single number for the others.
        hidden: Vec<usize> = vec![80, 40, 16], Between(1.0, 1e6);
        /// Width of the latent space (vgae).
        latent: usize = 16, Between(1.0, 1e6);
        /// Attention heads per layer.
        heads: usize = 1, Between(1.0, 1024.0);
        /// Width of a CAN ID's embedding.
        embedding: usize = 4, Between(1.0, 1e6);
        /// Embedding of CAN IDs.
        id_encoding: IdEncoding = IdEncoding::Vocabulary;
        /// Rows of the hashed embedding table (`id_encoding = "hash"`). More rows: fewer collisions between IDs, more parameters.
        id_buckets: usize = 128, Between(1.0, 1e8);
        /// Rows of that table that are combined into the embedding of one ID. More rows: two IDs are less likely to share an embedding.
        id_probes: usize = 2, Between(1.0, 8.0);
        /// Share of activations that dropout sets to zero in training. Raise it if the validation loss rises while the training loss falls.
        dropout: f64 = 0.1, Below(0.0, 1.0);
        /// Layers (gat and the models of `kdgat train`). A vgae of CAN windows has one per hidden width.
        layers: usize = 2, Between(1.0, 1024.0);
        /// Fully connected layers of the classification head (gat).
        fc_layers: usize = 3, Between(1.0, 1024.0);
        /// Graph convolution of the attention layers.
        conv: Convolution = Convolution::Gat;
        /// Implementation of attention and of the layers and losses around it. It affects speed and memory, not the model.
        attention: AttentionChoice = AttentionChoice::Auto;
        /// Probability of replacing a CAN ID by UNKNOWN in training (with `id_encoding = "hash"`: by a random other ID). Raise it for
        /// classifiers, so that they do not learn that an unknown ID alone means an attack; `--preset gat` uses 0.3.
        unknown_drop: f64 = 0.01, Below(0.0, 1.0);
        /// Use CAN IDs unseen in attack-free traffic as extra evidence of an attack: they raise the log odds of their window by an amount
        /// measured on validation windows (gat). Turn it off when unseen IDs are normal in your traffic.
        foreign_ids: bool = true;
    }

    /// The training loop: epochs, optimiser, batches, threads, device and precision.
    training: TrainingConfig {
        /// Maximum number of epochs.
        max_epochs: usize = 300, AtLeast(1.0);
        /// Early stopping: training ends after this many epochs without a lower validation loss (or a better `monitor`).
        patience: usize = 100, AtLeast(1.0);
        /// Quantity that chooses the best epoch and stops the training early (`kdgat train`).
        monitor: MonitorChoice = MonitorChoice::Loss;
        /// Initial learning rate.
        lr: f64 = 0.002, Above(0.0);
        /// L2 penalty on the weights, added to the gradients in Adam. Raise it against overfitting.
        weight_decay: f64 = 1e-4, AtLeast(0.0);
        /// Learning rate schedule.
        schedule: Schedule = Schedule::Cosine;
        /// Epochs between two reductions of the learning rate (`schedule = "step"`).
        lr_step_epochs: usize = 100, AtLeast(1.0);
        /// Factor applied to the learning rate at each reduction (schedules `step` and `plateau`).
        lr_gamma: f64 = 0.5, Inside(0.0, 1.0);
        /// Largest norm of the gradient over all parameters; larger gradients are scaled down to it. 0 turns clipping off.
        gradient_clip: f64 = 1.0, AtLeast(0.0);
        /// Gradient accumulation: batches per optimiser step. Raise it together with a smaller `batch_size` to save memory.
        accumulate_grad_batches: usize = 1, Between(1.0, 1e9);
        /// Graphs per batch. With `optimize_batch_size` it is the upper bound.
        #[same_losses = true]
        batch_size: usize = 4096, Between(1.0, 1e9);
        /// Maximum number of nodes per batch, for datasets whose graphs differ much in size. Graphs beyond it move to the next batch. none:
        /// only graphs are counted.
        batch_nodes: Option<usize> = None, AtLeast(1.0);
        /// Maximum number of edges per batch, in the same way.
        batch_edges: Option<usize> = None, AtLeast(1.0);
        /// Choose the largest batch size up to `batch_size` that fits the memory. Turn it off to get the same batches, and losses, on every
        /// machine.
        #[same_losses = true]
        optimize_batch_size: bool = true;
        /// Minimum number of batches per epoch that `optimize_batch_size` leaves. Lower it for larger batches on small datasets.
        #[same_losses = true]
        min_steps_per_epoch: usize = 20, AtLeast(1.0);
        /// Seed of all random numbers.
        seed: u64 = 42;
        /// Begin with the weights of another model, a run's folder or a weight file: each tensor that it has by name and shape, but the
        /// head's. none: random weights.
        #[same_losses = true]
        init_from: Option<PathBuf> = None;
        /// Do not train the tensors that `init_from` gives.
        freeze: bool = false;
        /// Accept initial weights whose training may have seen what this run tests on.
        #[same_losses = true]
        transductive: bool = false;
        /// CPU threads for computation; 0 uses all cores. Set it to leave cores to other programs.
        #[same_losses = true]
        threads: usize = 0, Between(0.0, 4096.0);
        /// Threads that assemble batches. Raise it when a run reports a large share of waiting for data. `none`: one; when graphs are trained
        /// on a GPU, a quarter of the cores, at most four.
        #[same_losses = true]
        num_workers: Option<usize> = None, Between(1.0, 256.0);
        /// Batches that the workers prefetch, all workers together. Lower it to save host memory.
        #[same_losses = true]
        prefetch_batches: usize = 4, Between(1.0, 1024.0);
        /// Graphs per block when shuffling: a block is read from disk in one piece. 0 shuffles single graphs. Set it (to 64, for example)
        /// when the graph store is larger than the memory.
        shuffle_block: usize = 0;
        /// Minimum number of graphs, from several blocks, that are shuffled with each other (with `shuffle_block`). Larger: more random,
        /// more memory.
        shuffle_buffer: usize = 16384, AtLeast(1.0);
        /// Seconds without a sign of life after which one of several processes that train together counts as lost, and all end; also the time
        /// for which they wait for each other at the start. Lower it to notice a machine that hangs sooner.
        #[same_losses = true]
        process_timeout: f64 = 120.0, Between(1.0, 86400.0);
        /// Device to train on: auto (the first GPU if there is one, else the CPU), cpu, cuda, or cuda:N.
        #[same_losses = true]
        device: DeviceChoice = DeviceChoice::Auto;
        /// Floating-point precision of the computation. Mixed precision saves time and memory on GPUs that support it.
        precision: Precision = Precision::Single;
        /// Capture training steps as CUDA graphs and replay them: small models train several times as fast, because a GPU runs their small
        /// kernels faster than the host can launch them. Batches are padded by up to a sixteenth. `none` captures on a GPU where it is
        /// possible: not with `precision = "16-mixed"`, `features = "rich"`, `conv = "gatv2"`, targets of nodes or embeddings.
        #[same_losses = true]
        cuda_graphs: Option<bool> = None;
        /// Batches between two rows of steps.csv. On a GPU each row waits for the device.
        #[same_losses = true]
        log_every_n_steps: usize = 20, AtLeast(1.0);
        /// Loss of the classifier on the labels (gat).
        task_loss: TaskLoss = TaskLoss::CrossEntropy;
        /// Focusing exponent γ of the focal loss. Larger values give less weight to windows that are classified well already.
        focal_gamma: f64 = 2.0, AtLeast(0.0);
    }

    /// Knowledge distillation: the losses, the teacher's place in memory, and the cache of its outputs.
    distillation: DistillationConfig {
        /// Train with knowledge distillation from a teacher.
        use_kd: bool = false;
        /// The teacher: a run's folder, or a weight file (safetensors, or a PyTorch state dict with its config.json beside it). none: the
        /// dataset's registered teacher.
        #[same_losses = true]
        teacher_path: Option<PathBuf> = None;
        /// Further teachers, each a run's folder or a weight file: a student learns from the mean of the class probabilities of the teacher
        /// and these. For a gat, and for `kdgat train` on one large graph, where all must have the same division of the nodes.
        #[same_losses = true]
        more_teachers: Option<Paths> = None;
        /// Folder of the registered teachers.
        #[same_losses = true]
        teachers_dir: PathBuf = "teachers".into();
        /// Temperature that softens the class probabilities of teacher and student (gat).
        kd_temperature: f64 = 4.0, Above(0.0);
        /// Weight of the distillation loss; the task loss has the weight 1 − kd_alpha.
        kd_alpha: f64 = 0.7, Between(0.0, 1.0);
        /// Weight of the distillation loss in the last of `max_epochs`, which it moves to linearly from kd_alpha, one step an epoch; validation
        /// has this weight in every epoch. none: kd_alpha throughout.
        kd_alpha_end: Option<f64> = None, Between(0.0, 1.0);
        /// Weight of the latent distance within the distillation loss (vgae); with 0, latents are not compared and not cached.
        kd_vgae_latent_weight: f64 = 0.5, AtLeast(0.0);
        /// Weight of the reconstruction distance within the distillation loss (vgae).
        kd_vgae_recon_weight: f64 = 0.5, AtLeast(0.0);
        /// Weight of the distance between hidden layers within the distillation loss: the encoder's last hidden layer (vgae), the pooled
        /// attention layers (gat). 0 compares outputs only. A positive weight makes cached targets larger.
        kd_hint_weight: f64 = 0.0, AtLeast(0.0);
        /// Views of each training graph, which the epochs of a distilled classifier take in turn: `unknown_drop` hides other IDs in each, from
        /// the student and from the teacher, whose targets for each view are cached. The views are the same for every `seed`. 0: each epoch
        /// hides other IDs, from the student alone (gat).
        kd_views: usize = 0, Between(0.0, 64.0);
        /// Distillation loss of the classifier (gat).
        kd_loss: KdLoss = KdLoss::Kl;
        /// File with a teacher's outputs for all graphs of the dataset (`kdgat train`), from which the student learns instead of from a
        /// teacher's weights: safetensors or CSV, see docs/graphs.md. none: targets.safetensors in the dataset's folder, if there is one.
        #[same_losses = true]
        targets_file: Option<PathBuf> = None;
        /// Weight of the distance between embeddings within the distillation loss, if the teacher's outputs have one.
        kd_embedding_weight: f64 = 1.0, Above(0.0);
        /// Loss between the student's and the teacher's embeddings of graphs.
        kd_embedding_loss: EmbeddingLossChoice = EmbeddingLossChoice::Cosine;
        /// Temperature of the contrastive loss: the cosines are divided by it.
        kd_embedding_temperature: f64 = 0.1, Above(0.0);
        /// Keep the teacher's weights in host memory except while it computes: saves GPU memory. Short for `teacher_residency = "forward"`.
        #[alias = "offload_teacher_to_cpu"]
        #[same_losses = true]
        offload_teacher: bool = false;
        /// Place of the teacher's weights during training. none: forward with `offload_teacher`, else resident.
        #[same_losses = true]
        teacher_residency: Option<Residency> = None;
        /// Batches per visit of an offloaded teacher. More: fewer copies of its weights, and more memory for batches and targets.
        #[same_losses = true]
        teacher_burst: usize = 16, AtLeast(1.0);
        /// Teacher layers on the device at the same time (`teacher_residency = "layer"`).
        #[same_losses = true]
        teacher_layer_slots: usize = 2, AtLeast(1.0);
        /// Cache the teacher's outputs, so that it computes each graph only once.
        #[same_losses = true]
        use_teacher_cache: bool = true;
        /// Place of the cached teacher outputs.
        #[same_losses = true]
        teacher_cache: TeacherCache = TeacherCache::Auto;
        /// Precision of the cached outputs. f16 halves the size and rounds the targets.
        teacher_cache_precision: CachePrecision = CachePrecision::F32;
        /// Folder for outputs that are cached on disk.
        #[same_losses = true]
        teacher_cache_dir: PathBuf = "stores/targets".into();
    }

    /// Curricula: the graphs of an epoch, chosen by their difficulty. `kdgat curriculum` chooses among the normal graphs, `kdgat train` among
    /// all training graphs of a dataset of graphs.
    curriculum: CurriculumConfig {
        /// Choice of the graphs of an epoch. Attacks are in every epoch of `kdgat curriculum`.
        curriculum: CurriculumKind = CurriculumKind::Difficulty;
        /// Normal graphs per attack graph in the first epoch.
        curriculum_start_ratio: f64 = 1.0, Above(0.0);
        /// Normal graphs per attack graph at the end: the ratio grows linearly and would reach this value after `max_epochs`.
        curriculum_end_ratio: f64 = 10.0, Above(0.0);
        /// Percentile of difficulty above which the first epoch draws its graphs; it rises linearly to 95.
        difficulty_percentile: f64 = 50.0, Between(0.0, 95.0);
        /// Epochs between two scorings of difficulty; 0 scores once. With `kdgat curriculum`, set it only if the scoring model is replaced
        /// while this one trains.
        difficulty_cache_update: usize = 0;
        /// Graphs per batch when scoring difficulty. Lower it when scoring runs out of memory.
        difficulty_chunk: usize = 500, AtLeast(1.0);
        /// The model that scores difficulty: a run's folder or a weight file. For `kdgat curriculum` a VGAE (none: the dataset's registered
        /// VGAE teacher), for `kdgat train` a graph network, by its task loss, or a VGAE of graphs, by its error.
        difficulty_model: Option<PathBuf> = None;
        /// Share of the training graphs in the first epoch of `kdgat train`; it grows linearly to all of them. none: every epoch has all
        /// training graphs.
        curriculum_start_share: Option<f64> = None, Inside(0.0, 1.0);
        /// Epochs after which every epoch of `kdgat train` has all training graphs. none: `max_epochs`.
        curriculum_epochs: Option<usize> = None, AtLeast(1.0);
        /// Source of the difficulty of graphs that are no CAN windows.
        difficulty_source: DifficultySource = DifficultySource::Auto;
    }

    /// Graphs of other kinds than CAN windows (`kdgat train`, `kdgat autoencoder`): see docs/graphs.md.
    graphs: GraphsConfig {
        /// Pooling of each layer's nodes to one row of the graph.
        pooling: PoolingChoice = PoolingChoice::Sum;
        /// Add a virtual node to each graph, which all nodes read before each layer and write after it; not for an mlp.
        virtual_node: bool = false;
        /// Read edge features if the dataset has any: a gin becomes GIN-E.
        edge_features: bool = true;
        /// Part of regression targets that is fitted to the training graphs before training. `linear` needs 10 training graphs for each node
        /// feature, and at most 512 features; otherwise it is the mean.
        target_reference: TargetReference = TargetReference::Linear;
        /// Largest distance of two nodes that exchange messages in a schnet or painn, and that an sgmp has Gaussians for, in the data's unit
        /// of length.
        cutoff: f64 = 5.0, Above(0.0);
        /// Functions of the distance of two nodes, from which a schnet or painn makes its filters.
        radial_basis: RadialBasisChoice = RadialBasisChoice::Gaussian;
        /// Number of these functions.
        radial_functions: usize = 20, Between(2.0, 1000.0);
        /// Numbers of Gaussians that an sgmp expands distances, angles and torsions of paths in.
        path_gaussians: Vec<usize> = vec![50, 6, 12], Between(2.0, 1000.0);
        /// Weight of the energies in the loss of a schnet or painn on data with forces; both are standardised by the deviation of the energies.
        energy_weight: f64 = 0.01, AtLeast(0.0);
        /// Weight of the forces. 0: the energies alone are learned, and no forces are predicted.
        force_weight: f64 = 0.99, AtLeast(0.0);
        /// Number of folds that the graphs are divided into if the dataset does not say which graphs are for testing; one fold is the test
        /// set. Folds have the classes in equal shares and do not depend on the seed.
        folds: usize = 10, Between(2.0, 1e6);
        /// The fold to test on, from 0.
        fold: usize = 0;
        /// JSON file with published folds: a list of folds, each with `test` and `model_selection`, by number of the graph from 0.
        #[same_losses = true]
        folds_file: Option<PathBuf> = None;
        /// Layers of the encoder of `kdgat autoencoder`.
        encoder: EncoderChoice = EncoderChoice::Gin;
        /// Also decode the edges of `kdgat autoencoder`, from the inner products of latents, against as many pairs of nodes without an edge.
        decode_edges: bool = false;
        /// Classes whose graphs `kdgat autoencoder` trains and validates on, by name; in its evaluation, graphs of the others are anomalies.
        /// none: all graphs.
        train_classes: Option<Names> = None;
    }

    /// One large graph whose nodes are classified (`kdgat train` on NAME.npz, OGB's folders, or a table of nodes): see docs/nodes.md.
    nodes: NodesConfig {
        /// Add the reverse of each edge.
        undirected: bool = true;
        /// Use the largest connected component only, as published comparisons on small citation graphs do.
        largest_component: bool = true;
        /// Divide each node's features by the sum of their absolute values.
        row_normalized: bool = false;
        /// Store dense features in half precision: half of the disk and of the reads; values beyond ±65504 are refused.
        half_features: bool = false;
        /// Division of the nodes into training, validation and test sets.
        node_split: NodeSplitChoice = NodeSplitChoice::Auto;
        /// Training nodes of each class (`node_split = "per-class"`).
        labels_per_class: usize = 20, AtLeast(1.0);
        /// Validation nodes of each class (`node_split = "per-class"`).
        validation_per_class: usize = 30, AtLeast(1.0);
        /// Share of the labelled nodes for training (`node_split = "random"`); `validation_fraction` of them validate.
        training_fraction: f64 = 0.5, Inside(0.0, 1.0);
        /// Seed of the split. none: the run's seed.
        split_seed: Option<u64> = None;
        /// Share of the test nodes that are hidden with their edges in training and only appear in the evaluation (the production setting).
        hidden_fraction: f64 = 0.0, Below(0.0, 1.0);
        /// Columns of position features, which tell a network where in the graph a node is; 0 for none. See docs/nodes.md.
        position_columns: usize = 0, Between(0.0, 4096.0);
        /// Neighbours sampled for each node in training, from the seeds outwards: one number for each layer. none: the whole graph in each
        /// step.
        fanouts: Option<Vec<usize>> = None, AtLeast(1.0);
        /// Neighbours that the teacher reads for a target, from the node outwards: one number for each of its layers that reads neighbours.
        /// Targets are then computed before the training, into the cache on disk. none: all neighbours of all nodes, layer by layer.
        teacher_fanouts: Option<Vec<usize>> = None, AtLeast(1.0);
        /// Nodes that a student learns from, for each labelled training node: these nodes and others drawn at random (1: labelled ones
        /// alone). none: all visible nodes.
        kd_nodes_per_label: Option<usize> = None, AtLeast(1.0);
        /// Correct the teacher's probabilities for the shares that the classes have among all nodes, estimated with the validation nodes:
        /// training nodes of equal number for each class leave the teacher ignorant of them. See docs/nodes.md.
        kd_class_shares: bool = false;
        /// Steps over the edges that smooth the targets: each node's target moves towards the mean of its neighbours' targets, with the
        /// labels of the training nodes in place of the teacher's probabilities. 0: the targets are not smoothed.
        kd_smoothing_steps: usize = 0, Between(0.0, 1000.0);
        /// Weight of a node's own target in each step of `kd_smoothing_steps`.
        kd_smoothing_teleport: f64 = 0.1, Inside(0.0, 1.0);
        /// Weight of the consistency loss: a node's outputs under different dropout masks are drawn together, for nodes with and without a
        /// label. 0: there is none. See docs/nodes.md.
        consistency_weight: f64 = 0.0, Between(0.0, 1e6);
        /// Dropout masks that each step compares for the consistency loss.
        consistency_views: usize = 2, Between(2.0, 64.0);
        /// Temperature that sharpens the mean of the compared probabilities, which each of them is drawn to.
        consistency_temperature: f64 = 0.5, Inside(0.0, 1.0);
        /// Validation after each epoch of training on sampled neighbours.
        node_validation: NodeValidation = NodeValidation::Auto;
        /// Parts that the graph is divided into for training on clusters (ClusterGCN). none: no clusters.
        clusters: Option<usize> = None, AtLeast(2.0);
        /// Clusters per batch.
        clusters_per_batch: usize = 4, AtLeast(1.0);
        /// Aggregation of neighbours (sage).
        aggregator: AggregatorChoice = AggregatorChoice::Mean;
        /// Normalisation after each hidden layer.
        norm: NormChoice = NormChoice::None;
        /// Add each hidden layer's input to its output, where the widths are equal.
        residual: bool = false;
        /// Share of the input features that dropout sets to zero in training.
        input_dropout: f64 = 0.0, Below(0.0, 1.0);
        /// Share of the attention weights that dropout sets to zero in training (gat).
        attention_dropout: f64 = 0.0, Below(0.0, 1.0);
        /// Heads of the output layer, averaged (gat).
        output_heads: usize = 1, Between(1.0, 1024.0);
        /// Probability of returning to the node itself in each step of propagation (appnp).
        teleport: f64 = 0.1, Inside(0.0, 1.0);
        /// Steps of propagation (appnp).
        propagation_steps: usize = 10, Between(1.0, 1000.0);
    }

    /// The agent of `kdgat fusion`, which learns how much weight the classifier and the autoencoder get: see docs/fusion.md.
    fusion: FusionConfig {
        /// Learning algorithm of the agent.
        fusion: FusionKind = FusionKind::Dqn;
        /// The autoencoder to fuse: a run's folder or a weight file. none: for a size that starts with `teacher` the dataset's registered
        /// teacher, else its newest finished run of the same size.
        #[same_losses = true]
        fusion_vgae: Option<PathBuf> = None;
        /// The classifier to fuse, given or found in the same way.
        #[same_losses = true]
        fusion_gat: Option<PathBuf> = None;
        /// Discount factor of the next window's value. 0 treats each window as a separate episode (dqn).
        fusion_gamma: f64 = 0.0, Below(0.0, 1.0);
        /// Transitions in the replay memory; the oldest are overwritten.
        replay_capacity: usize = 100_000, Between(1.0, 4e9);
        /// Updates of the network between two copies to the target network (dqn).
        target_update_steps: usize = 100, AtLeast(1.0);
        /// Probability of trying a random weight in the first epoch (dqn).
        epsilon_start: f64 = 1.0, Between(0.0, 1.0);
        /// Probability of trying a random weight after `epsilon_epochs` (dqn).
        epsilon_end: f64 = 0.05, Between(0.0, 1.0);
        /// Epochs over which that probability falls from `epsilon_start` to `epsilon_end` (dqn).
        epsilon_epochs: usize = 20;
        /// Width of the upper confidence bounds. Larger values try uncertain weights more often (bandit).
        bandit_exploration: f64 = 1.0, AtLeast(0.0);
        /// Ridge penalty of the regressions (bandit).
        bandit_ridge: f64 = 1.0, Above(0.0);
        /// Reward for a fused score on the correct side of one half; a wrong one is penalised by the same amount.
        reward_correctness: f64 = 1.0, AtLeast(0.0);
        /// Additional reward or penalty, multiplied by how closely the two models agree.
        reward_agreement: f64 = 0.25, AtLeast(0.0);
        /// Additional reward or penalty, multiplied by how far the fused score is from one half.
        reward_confidence: f64 = 0.5, AtLeast(0.0);
        /// Penalty for relying on one model alone.
        reward_balance: f64 = 0.05, AtLeast(0.0);
    }

    /// Memory limits, the prediction of memory use, and ways to use less.
    memory: MemoryConfig {
        /// Recompute activations in the backward pass where that lets larger batches fit: less memory, longer steps, the same gradients.
        #[same_losses = true]
        gradient_checkpointing: bool = true;
        /// Prediction of a batch's memory use, from which the batch size is chosen.
        #[same_losses = true]
        memory_estimation: MemoryEstimation = MemoryEstimation::Measured;
        /// Share of the memory limit to plan for. Lower it when steps run out of memory or other programs need memory.
        #[same_losses = true]
        safety_factor: f64 = 0.6, Between(0.01, 1.0);
        /// Limit of host memory for tensors; the process takes up to 400 MB more. none: the smallest limit of the control group, the batch
        /// system and the machine.
        #[same_losses = true]
        memory_limit: Option<ByteSize> = None, Above(0.0);
        /// Limit of GPU memory, enforced by the allocator; batches are planned for at most what is free at the start. none: what is free
        /// at the start.
        #[same_losses = true]
        gpu_memory_limit: Option<ByteSize> = None, Above(0.0);
        /// Place that batches of one large graph read features from; no loss depends on it.
        #[same_losses = true]
        features_from: FeaturesFrom = FeaturesFrom::Auto;
        /// Rows of features of one large graph that are kept in memory: those that sampled batches read most often. none: as many as the
        /// limit leaves room for if features are read directly, otherwise 0.
        #[same_losses = true]
        hot_rows: Option<usize> = None;
        /// Batches between two releases of GPU memory that libtorch has cached but does not use; 0 never releases. Lower it when GPU
        /// memory is fragmented.
        #[same_losses = true]
        clear_cache_every_n: usize = 100;
        /// Keep Adam's states in host memory: less GPU memory, slower steps.
        #[same_losses = true]
        offload_optimizer: bool = false;
        /// Seconds between two rows of memory.csv.
        #[same_losses = true]
        memory_sample_seconds: f64 = 1.0, Between(0.01, 3600.0);
    }

    /// Results: folders, files and display.
    output: OutputConfig {
        /// Folder of all runs.
        #[same_losses = true]
        runs_dir: PathBuf = "runs".into();
        /// Resume the last unfinished run from its last checkpoint, or the run in `run_dir`.
        #[same_losses = true]
        resume: bool = false;
        /// Folder of this run. none: the next free number below `runs_dir`.
        #[same_losses = true]
        run_dir: Option<PathBuf> = None;
        /// Also write metrics.csv and steps.csv as TensorBoard event files.
        #[same_losses = true]
        tensorboard: bool = false;
        /// Also write metrics.csv and steps.csv as JSON lines: metrics.jsonl and steps.jsonl.
        #[same_losses = true]
        json_lines: bool = false;
        /// Show losses, memory, teacher and speed on a panel that fills the terminal (only in builds with `--features live`).
        #[same_losses = true]
        live: bool = false;
    }

    /// Evaluation of trained models.
    evaluation: EvaluationConfig {
        /// Decision threshold: windows with a higher score are classified as attacks. fpr:RATE: the score that this share of attack-free
        /// validation windows exceeds; youden: the score with the largest true-positive minus false-positive rate; or a number.
        #[same_losses = true]
        threshold: Threshold = Threshold::FalsePositiveRate(0.001);
    }
}
