//! Fields of the section `[distillation]`.

use std::path::PathBuf;

use crate::rules::*;
use crate::table::Limit::{Above, AtLeast, Between};
use crate::table::config_section;
use crate::values::*;

config_section! {
/// Knowledge distillation: the losses, the teacher's place in memory, and the cache of its outputs.
#[rules(HAS_TEACHER)]
#[readers(Plan)]
distillation: DistillationConfig {
    /// Train with knowledge distillation from a teacher.
    #[readers(Cache, CacheGraphs, CacheNodes)]
    use_kd: bool = false;
    /// The teacher: a run's folder, or a weight file (safetensors, or a PyTorch state dict with its config.json beside it). none: the
    /// dataset's registered teacher.
    #[same_losses = true]
    #[rules(TEACHER_COMPUTES, DISTILS)]
    #[readers(Cache, CacheGraphs, CacheNodes)]
    teacher_path: Option<PathBuf> = None;
    /// Further teachers, each a run's folder or a weight file: a student learns from the mean of the class probabilities of the teacher
    /// and these. For a gat, and for `kdgat train` on one large graph, where all must have the same division of the nodes.
    #[same_losses = true]
    #[rules(TEACHER_COMPUTES, AVERAGES_CLASSES, READS_ALL_NEIGHBOURS, DISTILS)]
    #[readers(Cache, CacheGraphs, CacheNodes)]
    more_teachers: Option<Paths> = None;
    /// Folder of the registered teachers.
    #[same_losses = true]
    #[readers(Teachers, Cache, CacheGraphs, CacheNodes, Score, Evaluate, EvaluateDivided)]
    teachers_dir: PathBuf = "teachers".into();
    /// Temperature that softens the class probabilities of teacher and student (gat).
    #[rules(OF_GRAPH_MODELS, DISTILS, OF_CLASSIFIER, HAS_TEMPERATURE)]
    kd_temperature: f64 = 4.0, Above(0.0);
    /// Weight of the distillation loss; the task loss has the weight 1 − kd_alpha.
    #[rules(DISTILS)]
    kd_alpha: f64 = 0.7, Between(0.0, 1.0);
    /// Weight of the distillation loss in the last of `max_epochs`, which it moves to linearly from kd_alpha, one step an epoch; validation
    /// has this weight in every epoch. none: kd_alpha throughout.
    #[rules(OF_GRAPH_MODELS, DISTILS)]
    kd_alpha_end: Option<f64> = None, Between(0.0, 1.0);
    /// Weight of the latent distance within the distillation loss (vgae); with 0, latents are not compared and not cached.
    #[rules(OF_GRAPH_MODELS, DISTILS, OF_VGAE)]
    #[readers(Cache, CacheGraphs)]
    kd_vgae_latent_weight: f64 = 0.5, AtLeast(0.0);
    /// Weight of the reconstruction distance within the distillation loss (vgae).
    #[rules(OF_GRAPH_MODELS, DISTILS, OF_VGAE)]
    kd_vgae_recon_weight: f64 = 0.5, AtLeast(0.0);
    /// Weight of the distance between hidden layers within the distillation loss: the encoder's last hidden layer (vgae), the pooled
    /// attention layers (gat). 0 compares outputs only. A positive weight makes cached targets larger.
    #[rules(TEACHER_COMPUTES, ONE_TEACHER, OF_MANY_GRAPHS, OF_GRAPH_MODELS, DISTILS)]
    #[readers(Cache, CacheGraphs)]
    kd_hint_weight: f64 = 0.0, AtLeast(0.0);
    /// Views of each training graph, which the epochs of a distilled classifier take in turn: `unknown_drop` hides other IDs in each, from
    /// the student and from the teacher, whose targets for each view are cached. The views are the same for every `seed`. 0: each epoch
    /// hides other IDs, from the student alone (gat). With `kd_displacement`, the first view of a graph is the graph itself.
    #[rules(DRAWS_VIEWS, OF_GRAPH_MODELS, DISTILS)]
    #[readers(Cache, CacheGraphs)]
    kd_views: usize = 0, Between(0.0, 64.0);
    /// Standard deviation of random displacements of the nodes of training graphs in space, in the unit of the positions (`kdgat train`): all
    /// views of a graph but the first are displaced, and have the teacher's values and forces for targets. 0: none.
    #[rules(READS_POSITIONS, TEACHER_COMPUTES, DISTILS)]
    #[readers(CacheGraphs)]
    kd_displacement: f64 = 0.0, AtLeast(0.0);
    /// Distillation loss of the classifier (gat).
    #[rules(OF_GRAPH_MODELS, DISTILS, OF_CLASSIFIER)]
    kd_loss: KdLoss = KdLoss::Kl;
    /// File with a teacher's outputs for all graphs of the dataset (`kdgat train`), from which the student learns instead of from a
    /// teacher's weights: safetensors, CSV, or a folder that kdgat.Teacher has filled, see docs/graphs.md. none: targets.safetensors in the
    /// dataset's folder, if there is one.
    #[same_losses = true]
    #[rules(LEARNS_FROM_A_FILE, OF_MANY_GRAPHS, DISTILS)]
    targets_file: Option<PathBuf> = None;
    /// Weight of the distance between embeddings within the distillation loss, if the teacher's outputs have one.
    #[rules(LEARNS_FROM_A_FILE, OF_MANY_GRAPHS, DISTILS)]
    kd_embedding_weight: f64 = 1.0, Above(0.0);
    /// Loss between the student's and the teacher's embeddings of graphs.
    #[rules(LEARNS_FROM_A_FILE, OF_MANY_GRAPHS, DISTILS)]
    kd_embedding_loss: EmbeddingLossChoice = EmbeddingLossChoice::Cosine;
    /// Temperature of the contrastive loss: the cosines are divided by it.
    #[rules(LEARNS_FROM_A_FILE, IS_CONTRASTIVE, OF_MANY_GRAPHS, DISTILS)]
    kd_embedding_temperature: f64 = 0.1, Above(0.0);
    /// Keep the teacher's weights in host memory except while it computes: saves GPU memory. Short for `teacher_residency = "forward"`.
    #[alias = "offload_teacher_to_cpu"]
    #[same_losses = true]
    #[rules(TEACHER_COMPUTES, OF_GRAPH_MODELS, DISTILS)]
    #[readers(Cache, CacheGraphs)]
    offload_teacher: bool = false;
    /// Place of the teacher's weights during training. none: forward with `offload_teacher`, else resident.
    #[same_losses = true]
    #[rules(TEACHER_COMPUTES, OF_GRAPH_MODELS, DISTILS)]
    #[readers(Cache, CacheGraphs)]
    teacher_residency: Option<Residency> = None;
    /// Batches per visit of an offloaded teacher. More: fewer copies of its weights, and more memory for batches and targets.
    #[same_losses = true]
    #[rules(TEACHER_COMPUTES, OF_GRAPH_MODELS, DISTILS, TEACHER_VISITS)]
    #[readers(Cache, CacheGraphs)]
    teacher_burst: usize = 16, AtLeast(1.0);
    /// Teacher layers on the device at the same time (`teacher_residency = "layer"`).
    #[same_losses = true]
    #[rules(TEACHER_COMPUTES, OF_GRAPH_MODELS, DISTILS, TEACHER_HAS_SLOTS)]
    #[readers(Cache, CacheGraphs)]
    teacher_layer_slots: usize = 2, AtLeast(1.0);
    /// Cache the teacher's outputs, so that it computes each graph only once.
    #[same_losses = true]
    #[rules(TEACHER_COMPUTES, OF_GRAPH_MODELS, DISTILS)]
    #[readers(Cache, CacheGraphs, CacheNodes)]
    use_teacher_cache: bool = true;
    /// Place of the cached teacher outputs.
    #[same_losses = true]
    #[rules(TEACHER_COMPUTES, OF_GRAPH_MODELS, DISTILS)]
    #[readers(Cache, CacheGraphs, CacheNodes)]
    teacher_cache: TeacherCache = TeacherCache::Auto;
    /// Precision of the cached outputs. f16 halves the size and rounds the targets.
    #[rules(TEACHER_COMPUTES, OF_GRAPH_MODELS, DISTILS, CACHES)]
    #[readers(Cache, CacheGraphs, CacheNodes)]
    teacher_cache_precision: CachePrecision = CachePrecision::F32;
    /// Folder for outputs that are cached on disk.
    #[same_losses = true]
    #[rules(TEACHER_COMPUTES, OF_GRAPH_MODELS, DISTILS, CACHES, CACHES_ON_DISK)]
    #[readers(Cache, CacheGraphs, CacheNodes)]
    teacher_cache_dir: PathBuf = "stores/targets".into();
}}
