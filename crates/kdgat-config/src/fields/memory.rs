//! Fields of the section `[memory]`.

use crate::rules::*;
use crate::table::Limit::{Above, Between};
use crate::table::config_section;
use crate::values::*;

config_section! {
/// Memory limits, the prediction of memory use, and ways to use less.
#[readers(Plan)]
memory: MemoryConfig {
    /// Recompute activations in the backward pass where that lets larger batches fit: less memory, longer steps, the same gradients.
    #[same_losses = true]
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS)]
    gradient_checkpointing: bool = true;
    /// Share of the memory limit to plan for. Lower it when steps run out of memory or other programs need memory.
    #[same_losses = true]
    #[rules(FITS_MEMORY, OF_GRAPH_MODELS)]
    #[readers(CacheNodes)]
    safety_factor: f64 = 0.6, Between(0.01, 1.0);
    /// Limit of host memory for tensors; the process takes up to 400 MB more. none: the smallest limit of the control group, the batch
    /// system and the machine.
    #[same_losses = true]
    #[readers(
        SimulateCitations, Build, BuildNodes, Info, Cache, CacheGraphs, CacheNodes, Score, Evaluate, EvaluateDivided,
        ExportExamples
    )]
    memory_limit: Option<ByteSize> = None, Above(0.0);
    /// Limit of GPU memory, enforced by the allocator; batches are planned for at most what is free at the start. none: what is free
    /// at the start.
    #[same_losses = true]
    #[rules(OF_GRAPH_MODELS, ON_A_GPU)]
    #[readers(Cache, CacheGraphs, CacheNodes, Score)]
    gpu_memory_limit: Option<ByteSize> = None, Above(0.0);
    /// Keep the training and validation graphs on the GPU and make batches there, if they take at most half of the memory to plan for: nothing
    /// but the graphs' numbers is copied in a step. Cached targets are brought there, too. Not for graphs in space and targets of nodes.
    #[same_losses = true]
    #[rules(OF_MANY_GRAPHS, OF_GRAPH_MODELS, ON_A_GPU)]
    graphs_on_device: bool = false;
    /// Place that batches of one large graph read features from; no loss depends on it.
    #[same_losses = true]
    #[rules(OF_ONE_GRAPH, READS_ROWS, READS_NO_POSITIONS)]
    #[readers(CacheNodes)]
    features_from: FeaturesFrom = FeaturesFrom::Auto;
    /// Rows of features of one large graph that are kept in memory: those that sampled batches read most often. none: as many as the
    /// limit leaves room for if features are read directly, otherwise 0.
    #[same_losses = true]
    #[rules(OF_ONE_GRAPH, SAMPLES_NEIGHBOURS, FEATURES_ARE_ON_DISK)]
    #[readers(CacheNodes)]
    hot_rows: Option<usize> = None;
    /// Batches between two releases of GPU memory that libtorch has cached but does not use; 0 never releases. Lower it when GPU
    /// memory is fragmented.
    #[same_losses = true]
    #[rules(OF_GRAPH_MODELS, ON_A_GPU)]
    clear_cache_every_n: usize = 100;
    /// Keep Adam's states in host memory: less GPU memory, slower steps.
    #[same_losses = true]
    #[rules(ON_A_GPU)]
    offload_optimizer: bool = false;
    /// Seconds between two rows of memory.csv.
    #[same_losses = true]
    #[rules(OF_GRAPH_MODELS)]
    memory_sample_seconds: f64 = 1.0, Between(0.01, 3600.0);
}}
