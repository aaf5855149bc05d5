//! Every configuration field, defined once in the file of its section: type, default, limit, help text, what depends on it, and who reads it.

use serde::{Deserialize, Serialize};

use super::data_kind::DataKind;
use super::table::{Section, config_sections};

mod curriculum;
mod data;
mod distillation;
mod evaluation;
mod fusion;
mod graphs;
mod memory;
mod model;
mod nodes;
mod output;
mod training;

pub use curriculum::CurriculumConfig;
pub use data::DataConfig;
pub use distillation::DistillationConfig;
pub use evaluation::EvaluationConfig;
pub use fusion::FusionConfig;
pub use graphs::GraphsConfig;
pub use memory::MemoryConfig;
pub use model::ModelConfig;
pub use nodes::NodesConfig;
pub use output::OutputConfig;
pub use training::TrainingConfig;

config_sections! {
    /// The dataset, and how its traffic is cut into windows and graphs.
    data: DataConfig,
    /// The model. A preset such as `vgae,student` sets these fields together.
    model: ModelConfig,
    /// The training loop: epochs, optimiser, batches, threads, device and precision.
    training: TrainingConfig,
    /// Knowledge distillation: the losses, the teacher's place in memory, and the cache of its outputs.
    distillation: DistillationConfig,
    /// Curricula: the graphs of an epoch, chosen by their difficulty. `kdgat curriculum` chooses among the normal graphs, `kdgat train` among
    /// all training graphs of a dataset of graphs.
    curriculum: CurriculumConfig,
    /// Graphs of other kinds than CAN windows (`kdgat train`, `kdgat autoencoder`): see docs/graphs.md.
    graphs: GraphsConfig,
    /// One large graph whose nodes are classified (`kdgat train` on NAME.npz, OGB's folders, or a table of nodes): see docs/nodes.md.
    nodes: NodesConfig,
    /// The agent of `kdgat fusion`, which learns how much weight the classifier and the autoencoder get: see docs/fusion.md.
    fusion: FusionConfig,
    /// Memory limits, the prediction of memory use, and ways to use less.
    memory: MemoryConfig,
    /// Results: folders, files and display.
    output: OutputConfig,
    /// Evaluation of trained models.
    evaluation: EvaluationConfig,
}
