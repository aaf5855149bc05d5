//! Fields of the section `[training]`.

use std::path::PathBuf;

use crate::rules::*;
use crate::table::Limit::{Above, AtLeast, Below, Between, Inside};
use crate::table::config_section;
use crate::values::*;

config_section! {
/// The training loop: epochs, optimiser, batches, threads, device and precision.
#[readers(Plan)]
training: TrainingConfig {
    /// Maximum number of epochs.
    max_epochs: usize = 300, AtLeast(1.0);
    /// Early stopping: training ends after this many epochs without a lower validation loss (or a better `monitor`).
    patience: usize = 100, AtLeast(1.0);
    /// Quantity that chooses the best epoch and stops the training early (`kdgat train`).
    #[rules(OF_TRAIN)]
    monitor: MonitorChoice = MonitorChoice::Loss;
    /// Initial learning rate.
    lr: f64 = 0.002, Above(0.0);
    /// L2 penalty on the weights, added to the gradients in Adam. Raise it against overfitting.
    weight_decay: f64 = 1e-4, AtLeast(0.0);
    /// Learning rate schedule.
    schedule: Schedule = Schedule::Cosine;
    /// Epochs between two reductions of the learning rate (`schedule = "step"`).
    #[rules(STEPS_RATE)]
    lr_step_epochs: usize = 100, AtLeast(1.0);
    /// Factor applied to the learning rate at each reduction (schedules `step` and `plateau`).
    #[rules(LOWERS_RATE)]
    lr_gamma: f64 = 0.5, Inside(0.0, 1.0);
    /// Largest norm of the gradient over all parameters; larger gradients are scaled down to it. 0 turns clipping off.
    gradient_clip: f64 = 1.0, AtLeast(0.0);
    /// Exponential moving average of the weights, which is validated and saved in their place: the share of the old average in each update
    /// (0.995, for example). It takes out what the last steps add to the weights by chance. Running statistics of batch norm are not averaged. 0:
    /// none; the weights themselves.
    #[rules(OF_GRAPH_MODELS)]
    ema_decay: f64 = 0.0, Below(0.0, 1.0);
    /// Gradient accumulation: batches per optimiser step. Raise it together with a smaller `batch_size` to save memory.
    #[rules(OF_GRAPH_MODELS)]
    accumulate_grad_batches: usize = 1, Between(1.0, 1e9);
    /// Graphs per batch. With `optimize_batch_size` it is the upper bound.
    #[same_losses = true]
    #[readers(Cache, CacheGraphs, CacheNodes)]
    batch_size: usize = 4096, Between(1.0, 1e9);
    /// Maximum number of nodes per batch, for datasets whose graphs differ much in size. Graphs beyond it move to the next batch. none:
    /// only graphs are counted.
    #[rules(OF_MANY_GRAPHS, OF_GRAPH_MODELS)]
    batch_nodes: Option<usize> = None, AtLeast(1.0);
    /// Maximum number of edges per batch, in the same way.
    #[rules(OF_MANY_GRAPHS, OF_GRAPH_MODELS)]
    batch_edges: Option<usize> = None, AtLeast(1.0);
    /// Choose the largest batch size up to `batch_size` that fits the memory. Turn it off to get the same batches, and losses, on every
    /// machine.
    #[same_losses = true]
    #[rules(FITS_BATCHES, OF_GRAPH_MODELS)]
    optimize_batch_size: bool = true;
    /// Minimum number of batches per epoch that `optimize_batch_size` leaves. Lower it for larger batches on small datasets.
    #[same_losses = true]
    #[rules(OF_MANY_GRAPHS, OF_GRAPH_MODELS, CHOOSES_BATCH_SIZE)]
    min_steps_per_epoch: usize = 20, AtLeast(1.0);
    /// Seed of all random numbers.
    #[divides = true]
    #[repeats = true]
    #[readers(Simulate, SimulateDrive, SimulateCitations, CacheNodes, Evaluate, EvaluateDivided)]
    seed: u64 = 42;
    /// Begin with the weights of another model, a run's folder or a weight file: each tensor that it has by name and shape, but the
    /// head's. none: random weights.
    #[same_losses = true]
    #[rules(OF_GRAPH_MODELS)]
    init_from: Option<PathBuf> = None;
    /// Do not train the tensors that `init_from` gives.
    #[rules(HAS_INITIAL_WEIGHTS, OF_GRAPH_MODELS)]
    freeze: bool = false;
    /// Accept initial weights whose training may have seen what this run tests on; `kdgat pretrain` learns from the test graphs, too.
    #[same_losses = true]
    #[rules(MAY_SEE_TESTS, IS_DIVIDED, OF_GRAPH_MODELS)]
    transductive: bool = false;
    /// CPU threads for computation; 0 uses all cores. Set it to leave cores to other programs.
    #[same_losses = true]
    #[readers(
        SimulateCitations, Build, BuildNodes, Info, Check, Cache, CacheGraphs, CacheNodes, Score, Evaluate, EvaluateDivided, Export,
        ExportExamples
    )]
    threads: usize = 0, Between(0.0, 4096.0);
    /// Threads that assemble batches. Raise it when a run reports a large share of waiting for data. `none`: one; when graphs are trained
    /// on a GPU, a quarter of the cores, at most four.
    #[same_losses = true]
    #[rules(OF_GRAPH_MODELS)]
    #[readers(Cache, CacheGraphs, CacheNodes)]
    num_workers: Option<usize> = None, Between(1.0, 256.0);
    /// Batches that the workers prefetch, all workers together. Lower it to save host memory.
    #[same_losses = true]
    #[rules(OF_GRAPH_MODELS)]
    #[readers(Cache, CacheGraphs, CacheNodes)]
    prefetch_batches: usize = 4, Between(1.0, 1024.0);
    /// Graphs per block when shuffling: a block is read from disk in one piece. 0 shuffles single graphs. Set it (to 64, for example)
    /// when the graph store is larger than the memory.
    #[rules(OF_MANY_GRAPHS, OF_GRAPH_MODELS)]
    shuffle_block: usize = 0;
    /// Minimum number of graphs, from several blocks, that are shuffled with each other (with `shuffle_block`). Larger: more random,
    /// more memory.
    #[rules(OF_MANY_GRAPHS, OF_GRAPH_MODELS)]
    shuffle_buffer: usize = 16384, AtLeast(1.0);
    /// Seconds without a sign of life after which one of several processes that train together counts as lost, and all end; also the time
    /// for which they wait for each other at the start. Lower it to notice a machine that hangs sooner.
    #[same_losses = true]
    #[rules(OF_GRAPH_MODELS)]
    process_timeout: f64 = 120.0, Between(1.0, 86400.0);
    /// Device to train on: auto (the first GPU if there is one, else the CPU), cpu, cuda, or cuda:N.
    #[same_losses = true]
    #[readers(Cache, CacheGraphs, CacheNodes, Score, Evaluate, EvaluateDivided)]
    device: DeviceChoice = DeviceChoice::Auto;
    /// Floating-point precision of the computation. Mixed precision saves time and memory on GPUs that support it.
    #[rules(OF_GRAPH_MODELS)]
    #[readers(Cache, CacheGraphs)]
    precision: Precision = Precision::Single;
    /// Capture training steps, and validation in their sizes, as CUDA graphs and replay them: small models train several times as fast, because a GPU runs their small
    /// kernels faster than the host can launch them. Batches are padded by up to a sixteenth. `none` captures on a GPU where it is
    /// possible: not with `precision = "16-mixed"`, `features = "rich"`, `conv = "gatv2"`, targets of nodes or embeddings.
    #[same_losses = true]
    #[rules(OF_MANY_GRAPHS, OF_GRAPH_MODELS)]
    cuda_graphs: Option<bool> = None;
    /// Batches between two rows of steps.csv. On a GPU each row waits for the device.
    #[same_losses = true]
    #[rules(OF_GRAPH_MODELS)]
    log_every_n_steps: usize = 20, AtLeast(1.0);
    /// Loss of the classifier on the labels (gat).
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS, OF_CLASSIFIER)]
    task_loss: TaskLoss = TaskLoss::CrossEntropy;
    /// Focusing exponent γ of the focal loss. Larger values give less weight to windows that are classified well already.
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS, OF_CLASSIFIER, IS_FOCAL)]
    focal_gamma: f64 = 2.0, AtLeast(0.0);
}}
