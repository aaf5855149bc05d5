//! Measured models with random weights: their sizes, and the work of a batch.

use kdgat::distill::Weights;
use kdgat::graph::{Batch, NODE_FEATURES};
use kdgat::nn::attention::Backend;
use kdgat::nn::{
    Architecture, FreshParameters, Gat, GatConfig, Gnn, GnnConfig, GnnKind, GraphVgae, GraphVgaeConfig, NodeGnn, Scope,
    Vgae, VgaeConfig,
};
use tch::{Device, Tensor};

use super::Error;

/// Architecture of a preset size, with the dropout of the Python program.
pub fn architecture(model: &str, size: &str, vocabulary_size: i64) -> Result<Architecture, Error> {
    let vgae = |hidden: &[i64], latent, heads, embedding| {
        let (hidden, dropout, edge_scaling) = (hidden.to_vec(), 0.1, None);
        Architecture::Vgae(VgaeConfig {
            hidden,
            latent,
            heads,
            embedding,
            vocabulary_size,
            dropout,
            edge_scaling,
            input: Default::default(),
        })
    };
    let gat = |hidden, layers, heads, embedding, fc_layers| {
        let (dropout, edge_scaling) = (0.1, None);
        let config = GatConfig {
            hidden,
            layers,
            heads,
            embedding,
            fc_layers,
            vocabulary_size,
            dropout,
            edge_scaling,
            input: Default::default(),
        };
        Architecture::Gat(config)
    };
    let gnn = |hidden, layers| {
        Architecture::Graph(GnnConfig {
            dropout: 0.1,
            ..GnnConfig::new(
                if model == "sage" { GnnKind::Sage } else { GnnKind::Gin },
                [NODE_FEATURES as i64, hidden, layers, 2],
            )
        })
    };
    Ok(match (model, size) {
        ("vgae", "student") => vgae(&[80, 40], 16, 1, 4),
        ("vgae", "teacher") => vgae(&[480, 240], 48, 4, 32),
        ("vgae", "teacher_xl") => vgae(&[1024, 512], 96, 4, 64),
        ("gat", "student") => gat(24, 2, 4, 8, 3),
        ("gat", "teacher") => gat(48, 3, 8, 16, 2),
        ("gat", "teacher_xl") => gat(64, 5, 8, 32, 3),
        ("gin" | "sage", "student") => gnn(32, 3),
        ("gin" | "sage", "teacher") => gnn(256, 4),
        _ => {
            return Err(format!(
                "no {model} of size {size}; expected vgae, gat, gin or sage; student, teacher or teacher_xl"
            )
            .into());
        }
    })
}

/// VGAE with four encoder and four decoder layers whose weights take about `bytes` bytes.
pub fn vgae_of_bytes(bytes: u64, vocabulary_size: i64) -> Result<VgaeConfig, Error> {
    let config = |width: i64| VgaeConfig {
        hidden: vec![width; 4],
        latent: 48,
        heads: 4,
        embedding: 32,
        vocabulary_size,
        dropout: 0.1,
        edge_scaling: None,
        input: Default::default(),
    };
    // Five of the layers are width × width; the others are small.
    let mut width = ((bytes as f64 / 4.0 / 5.0).sqrt() as u64).next_multiple_of(8) as i64;
    while width > 8 && 4 * (5 * width * width + 200 * width) > bytes as i64 * 21 / 20 {
        width -= 8;
    }
    Ok(config(width))
}

/// Random weights of an architecture, in host memory.
pub fn random_tensors(architecture: &Architecture, seed: u64) -> Result<Vec<(String, Tensor)>, Error> {
    let mut parameters = FreshParameters::new(seed, Device::Cpu);
    let scope = Scope::root(&mut parameters);
    match architecture {
        Architecture::Vgae(config) => drop(Vgae::new(scope, config, Backend::Auto)?),
        Architecture::Gat(config) => drop(Gat::new(scope, config, Backend::Auto)?),
        Architecture::Graph(config) => drop(Gnn::new(scope, config, Backend::Auto)?),
        Architecture::Nodes(config) => drop(NodeGnn::new(scope, config, Backend::Auto)?),
        Architecture::GraphVgae(config) => drop(GraphVgae::new(scope, config, Backend::Auto)?),
        Architecture::Pretraining(config) => drop(Gnn::new(scope, &config.network, Backend::Auto)?),
    }
    Ok(parameters.into_tensors().into_iter().map(|named| (named.name, named.tensor.detach())).collect())
}

/// Random weights of a teacher.
pub fn random_weights(architecture: &Architecture, seed: u64) -> Result<Weights, Error> {
    Ok(Weights::from_tensors(random_tensors(architecture, seed)?)?)
}

/// Minimum work of a forward pass: operations of matrix products, and bytes of memory traffic if each layer reads
/// its input, writes and reads the products once, and writes its output.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Work {
    pub operations: f64,
    pub bytes: f64,
}

impl Work {
    fn linear(rows: f64, input: i64, output: i64) -> Self {
        let (input, output) = (input as f64, output as f64);
        Self { operations: 2.0 * rows * input * output, bytes: 4.0 * rows * (input + output) }
    }

    /// Work of a linear layer and of attention over its output.
    fn attention(rows: f64, input: i64, output: i64) -> Self {
        let products = Self::linear(rows, input, output);
        Self { bytes: products.bytes + 4.0 * rows * 2.0 * output as f64, ..products }
    }

    /// Work of summing neighbours and of a linear layer over the sums.
    fn messages(rows: f64, input: i64, output: i64) -> Self {
        let products = Self::linear(rows, input, output);
        Self { bytes: products.bytes + 4.0 * rows * 2.0 * input as f64, ..products }
    }

    /// Sum of both.
    pub fn and(self, other: Self) -> Self {
        Self { operations: self.operations + other.operations, bytes: self.bytes + other.bytes }
    }

    /// Work of a training step of a model with `parameters` parameters: the backward pass is two forward passes, and Adam reads four
    /// and writes four values per parameter.
    pub fn trained(self, parameters: i64) -> Self {
        Self { operations: 3.0 * self.operations, bytes: 3.0 * self.bytes + 32.0 * parameters as f64 }
    }
}

/// Work of a forward pass of `batch`; a teacher skips the decoders of IDs and successors.
pub fn forward_work(architecture: &Architecture, batch: &Batch, is_teacher: bool) -> Work {
    let (nodes, graphs) = (batch.num_nodes() as f64, batch.num_graphs() as f64);
    let features = NODE_FEATURES as i64;
    let mut work = Work::default();
    let mut add = |more: Work| work = work.and(more);
    match architecture {
        Architecture::Vgae(config) => {
            let mut input = config.embedding + features;
            for &width in config.encoder_widths() {
                add(Work::attention(nodes, input, width));
                input = width;
            }
            add(Work::linear(nodes, input, if is_teacher { config.latent } else { 2 * config.latent }));
            input = config.latent;
            for width in config.decoder_widths() {
                add(Work::attention(nodes, input, width));
                input = width;
            }
            add(Work::attention(nodes, input, features));
            if !is_teacher {
                let (latent, ids) = (config.latent, config.vocabulary_size);
                for (input, output) in [(latent, ids), (latent, latent), (latent, latent), (latent, ids)] {
                    add(Work::linear(nodes, input, output));
                }
            }
        }
        Architecture::Nodes(config) => {
            let mut input = config.node_features;
            for layer in 0..config.num_layers() {
                let output = config.output_columns(layer);
                add(Work::linear(nodes, input, output));
                input = output;
            }
        }
        Architecture::Graph(config) => {
            let mut input = config.node_features;
            for _ in 0..config.layers {
                // Both kinds have two linear layers: GIN one after the other, GraphSAGE side by side.
                let second = if config.kind == GnnKind::Sage { input } else { config.width() };
                add(Work::messages(nodes, input, config.width()));
                add(Work::linear(nodes, second, config.width()));
                input = config.width();
            }
            add(Work::linear(graphs, config.pooled_columns(), config.width()));
            add(Work::linear(graphs, config.width(), config.outputs));
        }
        Architecture::Pretraining(config) => {
            return forward_work(&Architecture::Graph(config.network.clone()), batch, is_teacher);
        }
        Architecture::GraphVgae(GraphVgaeConfig { encoder, .. }) => {
            let mut input = encoder.node_features;
            for _ in 0..encoder.layers {
                add(Work::messages(nodes, input, encoder.width()));
                input = encoder.width();
            }
            add(Work::linear(nodes, input, if is_teacher { encoder.outputs } else { 2 * encoder.outputs }));
            add(Work::linear(nodes, encoder.outputs, encoder.width()));
            add(Work::linear(nodes, encoder.width(), encoder.node_features));
        }
        Architecture::Gat(config) => {
            let width = config.hidden * config.heads;
            for layer in 0..config.layers {
                let input = if layer == 0 { config.embedding + features } else { width };
                add(Work::attention(nodes, input, width));
            }
            let columns = config.embedding_columns();
            for _ in 1..config.fc_layers {
                add(Work::linear(graphs, columns, columns));
            }
            add(Work::linear(graphs, columns, kdgat::nn::gat::CLASSES));
        }
    }
    work
}
