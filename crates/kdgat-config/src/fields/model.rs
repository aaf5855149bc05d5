//! Fields of the section `[model]`.

use crate::rules::*;
use crate::table::Limit::{Below, Between};
use crate::table::config_section;
use crate::values::*;

config_section! {
/// The model. A preset such as `vgae,student` sets these fields together.
#[readers(Cache, CacheGraphs, CacheNodes, Plan)]
model: ModelConfig {
    /// Architecture of the model.
    model: ModelKind = ModelKind::Vgae;
    /// Name of the model's size; part of the run folder's name. Presets set it together with the widths. A model whose size starts with
    /// `teacher` and that is trained without `use_kd` is registered as the dataset's teacher.
    size: String = "student".to_string();
    /// Widths of the hidden layers: one number per layer for vgae and dqn, a single number for the others.
    #[rules(HAS_WIDTHS)]
    hidden: Vec<usize> = vec![80, 40, 16], Between(1.0, 1e6);
    /// Width of the latent space (vgae).
    #[rules(OF_GRAPH_MODELS, OF_VGAE)]
    latent: usize = 16, Between(1.0, 1e6);
    /// Attention heads per layer.
    #[rules(OF_GRAPH_MODELS, HAS_HEADS)]
    heads: usize = 1, Between(1.0, 1024.0);
    /// Width of a CAN ID's embedding.
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS)]
    embedding: usize = 4, Between(1.0, 1e6);
    /// Embedding of CAN IDs.
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS)]
    id_encoding: IdEncoding = IdEncoding::Vocabulary;
    /// Rows of the hashed embedding table (`id_encoding = "hash"`). More rows: fewer collisions between IDs, more parameters.
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS, HASHES_IDS)]
    id_buckets: usize = 128, Between(1.0, 1e8);
    /// Rows of that table that are combined into the embedding of one ID. More rows: two IDs are less likely to share an embedding.
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS, HASHES_IDS)]
    id_probes: usize = 2, Between(1.0, 8.0);
    /// Share of activations that dropout sets to zero in training. Raise it if the validation loss rises while the training loss falls.
    #[rules(NOT_OF_SPACE, OF_GRAPH_MODELS)]
    dropout: f64 = 0.1, Below(0.0, 1.0);
    /// Layers (gat and the models of `kdgat train`). A vgae of CAN windows has one per hidden width.
    #[rules(OF_GRAPH_MODELS, HAS_LAYERS)]
    layers: usize = 2, Between(1.0, 1024.0);
    /// Fully connected layers of the classification head (gat).
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS, OF_CLASSIFIER)]
    fc_layers: usize = 3, Between(1.0, 1024.0);
    /// Graph convolution of the attention layers.
    #[rules(CONVOLVES, OF_GRAPH_MODELS)]
    conv: Convolution = Convolution::Gat;
    /// Implementation of attention and of the layers and losses around it. It affects speed and memory, not the model.
    #[readers(Score, Evaluate, EvaluateDivided, ExportExamples)]
    attention: AttentionChoice = AttentionChoice::Auto;
    /// Probability of replacing a CAN ID by UNKNOWN in training (with `id_encoding = "hash"`: by a random other ID). Raise it for
    /// classifiers, so that they do not learn that an unknown ID alone means an attack; `--preset gat` uses 0.3.
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS)]
    unknown_drop: f64 = 0.01, Below(0.0, 1.0);
    /// Use CAN IDs unseen in attack-free traffic as extra evidence of an attack: they raise the log odds of their window by an amount
    /// measured on validation windows (gat). Turn it off when unseen IDs are normal in your traffic.
    #[rules(OF_WINDOWS, OF_GRAPH_MODELS, OF_CLASSIFIER)]
    foreign_ids: bool = true;
}}
