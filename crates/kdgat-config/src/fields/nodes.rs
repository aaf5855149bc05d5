//! Fields of the section `[nodes]`.

use crate::rules::*;
use crate::table::Limit::{AtLeast, Below, Between, Inside};
use crate::table::config_section;
use crate::values::*;

config_section! {
/// One large graph whose nodes are classified (`kdgat train` on NAME.npz, OGB's folders, or a table of nodes): see docs/nodes.md.
#[rules(OF_ONE_GRAPH)]
#[readers(CacheNodes, Plan)]
nodes: NodesConfig {
    /// Add the reverse of each edge.
    #[divides = true]
    #[rules(IS_NO_STORE)]
    #[readers(BuildNodes, Check)]
    undirected: bool = true;
    /// Use the largest connected component only, as published comparisons on small citation graphs do.
    #[divides = true]
    #[rules(IS_NO_STORE)]
    #[readers(BuildNodes, Check)]
    largest_component: bool = true;
    /// Divide each node's features by the sum of their absolute values.
    #[divides = true]
    #[rules(IS_NO_STORE)]
    #[readers(BuildNodes, Check)]
    row_normalized: bool = false;
    /// Store dense features in half precision: half of the disk and of the reads; values beyond ±65504 are refused.
    #[divides = true]
    #[rules(IS_NO_STORE)]
    #[readers(SimulateCitations, BuildNodes, Check)]
    half_features: bool = false;
    /// Division of the nodes into training, validation and test sets.
    #[divides = true]
    node_split: NodeSplitChoice = NodeSplitChoice::Auto;
    /// Training nodes of each class (`node_split = "per-class"`).
    #[divides = true]
    #[rules(IS_SPLIT_BY_CLASS)]
    labels_per_class: usize = 20, AtLeast(1.0);
    /// Validation nodes of each class (`node_split = "per-class"`).
    #[divides = true]
    #[rules(IS_SPLIT_BY_CLASS)]
    validation_per_class: usize = 30, AtLeast(1.0);
    /// Share of the labelled nodes for training (`node_split = "random"`); `validation_fraction` of them validate.
    #[divides = true]
    #[rules(IS_SPLIT_AT_RANDOM)]
    training_fraction: f64 = 0.5, Inside(0.0, 1.0);
    /// Seed of the split. none: the run's seed.
    #[divides = true]
    #[repeats = true]
    #[rules(SPLIT_IS_DRAWN)]
    split_seed: Option<u64> = None;
    /// Share of the test nodes that are hidden with their edges in training and only appear in the evaluation (the production setting).
    #[divides = true]
    hidden_fraction: f64 = 0.0, Below(0.0, 1.0);
    /// Columns of position features, which tell a network where in the graph a node is; 0 for none. See docs/nodes.md.
    position_columns: usize = 0, Between(0.0, 4096.0);
    /// Neighbours sampled for each node in training, from the seeds outwards: one number for each layer. none: the whole graph in each
    /// step.
    fanouts: Option<Vec<usize>> = None, AtLeast(1.0);
    /// Neighbours that the teacher reads for a target, from the node outwards: one number for each of its layers that reads neighbours.
    /// Targets are then computed before the training, into the cache on disk. none: all neighbours of all nodes, layer by layer.
    #[rules(DISTILS)]
    teacher_fanouts: Option<Vec<usize>> = None, AtLeast(1.0);
    /// Nodes that a student learns from, for each labelled training node: these nodes and others drawn at random (1: labelled ones
    /// alone). none: all visible nodes.
    #[rules(DISTILS)]
    kd_nodes_per_label: Option<usize> = None, AtLeast(1.0);
    /// Correct the teacher's probabilities for the shares that the classes have among all nodes, estimated with the validation nodes:
    /// training nodes of equal number for each class leave the teacher ignorant of them. See docs/nodes.md.
    #[rules(READS_ALL_NEIGHBOURS, DISTILS)]
    kd_class_shares: bool = false;
    /// Steps over the edges that smooth the targets: each node's target moves towards the mean of its neighbours' targets, with the
    /// labels of the training nodes in place of the teacher's probabilities. 0: the targets are not smoothed.
    #[rules(READS_ALL_NEIGHBOURS, DISTILS)]
    kd_smoothing_steps: usize = 0, Between(0.0, 1000.0);
    /// Weight of a node's own target in each step of `kd_smoothing_steps`.
    #[rules(IS_SMOOTHED, DISTILS)]
    kd_smoothing_teleport: f64 = 0.1, Inside(0.0, 1.0);
    /// Weight of the consistency loss: a node's outputs under different dropout masks are drawn together, for nodes with and without a
    /// label. 0: there is none. See docs/nodes.md.
    consistency_weight: f64 = 0.0, Between(0.0, 1e6);
    /// Dropout masks that each step compares for the consistency loss.
    #[rules(IS_CONSISTENT)]
    consistency_views: usize = 2, Between(2.0, 64.0);
    /// Temperature that sharpens the mean of the compared probabilities, which each of them is drawn to.
    #[rules(IS_CONSISTENT)]
    consistency_temperature: f64 = 0.5, Inside(0.0, 1.0);
    /// Validation after each epoch of training on sampled neighbours.
    #[rules(SAMPLES_NEIGHBOURS)]
    node_validation: NodeValidation = NodeValidation::Auto;
    /// Parts that the graph is divided into for training on clusters (ClusterGCN). none: no clusters.
    clusters: Option<usize> = None, AtLeast(2.0);
    /// Clusters per batch.
    #[rules(HAS_CLUSTERS)]
    clusters_per_batch: usize = 4, AtLeast(1.0);
    /// Aggregation of neighbours (sage).
    #[rules(OF_SAGE)]
    aggregator: AggregatorChoice = AggregatorChoice::Mean;
    /// Normalisation after each hidden layer.
    norm: NormChoice = NormChoice::None;
    /// Add each hidden layer's input to its output, where the widths are equal.
    residual: bool = false;
    /// Share of the input features that dropout sets to zero in training.
    input_dropout: f64 = 0.0, Below(0.0, 1.0);
    /// Share of the attention weights that dropout sets to zero in training (gat).
    #[rules(OF_NODE_GAT)]
    attention_dropout: f64 = 0.0, Below(0.0, 1.0);
    /// Heads of the output layer, averaged (gat).
    #[rules(OF_NODE_GAT)]
    output_heads: usize = 1, Between(1.0, 1024.0);
    /// Probability of returning to the node itself in each step of propagation (appnp).
    #[rules(OF_APPNP)]
    teleport: f64 = 0.1, Inside(0.0, 1.0);
    /// Steps of propagation (appnp).
    #[rules(OF_APPNP)]
    propagation_steps: usize = 10, Between(1.0, 1000.0);
}}
