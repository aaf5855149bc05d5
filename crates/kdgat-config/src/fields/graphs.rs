//! Fields of the section `[graphs]`.

use std::path::PathBuf;

use crate::rules::*;
use crate::table::Limit::{Above, AtLeast, Between, Inside};
use crate::table::config_section;
use crate::values::*;

config_section! {
/// Graphs of other kinds than CAN windows (`kdgat train`, `kdgat autoencoder`): see docs/graphs.md.
#[readers(Plan, CacheGraphs)]
graphs: GraphsConfig {
    /// Pooling of each layer's nodes to one row of the graph.
    #[rules(OF_TRAIN, OF_MANY_GRAPHS)]
    pooling: PoolingChoice = PoolingChoice::Sum;
    /// Add a virtual node to each graph, which all nodes read before each layer and write after it; not for an mlp.
    #[rules(OF_NETWORKS, HAS_EDGES_OF_ITS_OWN, OF_MANY_GRAPHS, SENDS_MESSAGES)]
    virtual_node: bool = false;
    /// Read edge features if the dataset has any: a gin becomes GIN-E, and an irreps with bonds has them beside functions of the length.
    #[rules(OF_GRAPHS, OF_MANY_GRAPHS, READS_EDGES)]
    edge_features: bool = true;
    /// Part of regression targets that is fitted to the training graphs before training. `linear` needs 10 training graphs for each node
    /// feature, and at most 512 features; otherwise it is the mean.
    #[rules(OF_TRAIN, OF_MANY_GRAPHS)]
    target_reference: TargetReference = TargetReference::Linear;
    /// Largest distance of two nodes that exchange messages in a schnet, painn or irreps, and that an sgmp has Gaussians for, in the data's
    /// unit of length.
    #[rules(OF_POSITIONS)]
    cutoff: f64 = 5.0, Above(0.0);
    /// Functions of the distance of two nodes, from which a schnet, painn or irreps makes its filters.
    #[rules(OF_SPACE)]
    radial_basis: RadialBasisChoice = RadialBasisChoice::Gaussian;
    /// Number of these functions.
    #[rules(OF_SPACE)]
    radial_functions: usize = 20, Between(2.0, 1000.0);
    /// Features of a node in an irreps: numbers of scalars (0e), vectors (1o), symmetric matrices (2e) and their mirrored kinds (0o, 1e, 2o).
    #[rules(OF_IRREPS)]
    irreps: Representations = Representations("32x0e + 16x1o + 8x2e".to_owned());
    /// Columns of the two hidden layers of an irreps' radial networks.
    #[rules(OF_IRREPS)]
    radial_hidden: usize = 64, Between(1.0, 4096.0);
    /// Gate in each layer of an irreps: SiLU for scalars, and a factor from a scalar for each other feature.
    #[rules(OF_IRREPS)]
    gate: bool = true;
    /// Layer norm at the end of each layer of an irreps.
    #[rules(OF_IRREPS)]
    layer_norm: bool = false;
    /// Messages along the data's edges in an irreps, with the edges' features, in layers of their own beside those of near nodes.
    #[rules(OF_IRREPS)]
    bonds: bool = false;
    /// Messages of nodes within the cutoff, too, in an irreps with bonds.
    #[rules(OF_IRREPS, HAS_BONDS)]
    nonbonded: bool = true;
    /// Messages of angles and dihedrals along the bonds of an irreps.
    #[rules(OF_IRREPS, HAS_BONDS)]
    multi_hop: bool = true;
    /// Numbers of Gaussians that an sgmp expands distances, angles and torsions of paths in.
    #[rules(OF_SGMP)]
    path_gaussians: Vec<usize> = vec![50, 6, 12], Between(2.0, 1000.0);
    /// Weight of the energies in the loss of a network in space on data with forces; both are standardised by the deviation of the energies.
    #[rules(OF_SPACE, OF_TRAIN)]
    energy_weight: f64 = 0.01, AtLeast(0.0);
    /// Weight of the forces. 0: the energies alone are learned, and no forces are predicted.
    #[rules(OF_SPACE, OF_TRAIN)]
    force_weight: f64 = 0.99, AtLeast(0.0);
    /// Number of folds that the graphs are divided into if the dataset does not say which graphs are for testing; one fold is the test
    /// set. Folds have the classes in equal shares and do not depend on the seed.
    #[rules(OF_GRAPHS, OF_MANY_GRAPHS, DRAWS_FOLDS)]
    folds: usize = 10, Between(2.0, 1e6);
    /// The fold to test on, from 0.
    #[repeats = true]
    #[rules(OF_GRAPHS, OF_MANY_GRAPHS)]
    fold: usize = 0;
    /// JSON file with published folds: a list of folds, each with `test` and `model_selection`, by number of the graph from 0.
    #[same_losses = true]
    #[rules(OF_GRAPHS, OF_MANY_GRAPHS)]
    folds_file: Option<PathBuf> = None;
    /// Question that `kdgat pretrain` asks, which the graphs themselves answer.
    #[rules(OF_PRETRAINING)]
    objective: PretrainingObjectiveChoice = PretrainingObjectiveChoice::Masked;
    /// Share of each graph's nodes whose features `kdgat pretrain` hides; of each graph at least one.
    #[rules(OF_PRETRAINING, MASKS)]
    mask_share: f64 = 0.15, Inside(0.0, 1.0);
    /// Layers of the encoder of `kdgat autoencoder`.
    #[rules(OF_GRAPH_AUTOENCODER)]
    encoder: EncoderChoice = EncoderChoice::Gin;
    /// Also decode the edges of `kdgat autoencoder`, from the inner products of latents, against as many pairs of nodes without an edge.
    #[rules(OF_GRAPH_AUTOENCODER)]
    decode_edges: bool = false;
    /// Classes whose graphs `kdgat autoencoder` trains and validates on, by name; in its evaluation, graphs of the others are anomalies.
    /// none: all graphs.
    #[rules(OF_GRAPH_AUTOENCODER)]
    train_classes: Option<Names> = None;
}}
