//! A trained network as constants of the C code: its configuration, its tables, and its figures.

use kdgat_graph::EDGE_FEATURES;
use kdgat_graph::history::MOST_OVERDUE;
use kdgat_nn::id_hash::MOST_PROBES;
use kdgat_nn::weights::StateDict;
use kdgat_nn::{Architecture, GatConfig, InputConfig, ModelDescription, VgaeConfig};

use crate::layers::{Affine, Conv, ConvShape};
use crate::matrix::Matrix;
use crate::weights::{BUCKET_WEIGHTS, BUCKETS, EMBEDDING, Precision, QuantisedRow, Weights};
use crate::{CText, CarError};

/// Classes of the classifier's head: normal and attack.
const CLASSES: usize = 2;
/// Heads of the hidden layers of the decoder, if they divide the width.
const DECODER_HEADS: usize = 4;

/// A network read from a trained model.
#[derive(Debug)]
pub struct Network {
    /// Frames of a window.
    window: usize,
    /// Most nodes without a frame in the window or after it.
    most_overdue: usize,
    precision: Precision,
    input: Input,
    layers: Layers,
    edge_scaling: Option<kdgat_graph::EdgeScaling>,
}

#[derive(Debug)]
struct Input {
    embedding: usize,
    rows: usize,
    continuous: usize,
    /// `[rows, embedding]`
    table: Vec<f32>,
    id: IdInput,
}

#[derive(Debug)]
enum IdInput {
    Vocabulary,
    None,
    Hash { probes: usize, coefficients: Vec<[u32; 2]>, weights: Vec<f32> },
}

#[derive(Debug)]
enum Layers {
    Gat { convs: Vec<Conv>, head: Vec<Matrix> },
    Vgae { encoder: Vec<Conv>, mean: Matrix, decoder: Vec<Conv>, id_classifier: Matrix },
}

/// Sizes of the arrays of `kdgat_scratch`, in values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scratch {
    a: usize,
    b: usize,
    scores: usize,
    values: usize,
    most_inputs: usize,
    most_channels: usize,
    most_pooled: usize,
}

impl Scratch {
    /// Sizes for both networks, one after the other.
    fn or(self, other: Self) -> Self {
        Self {
            a: self.a.max(other.a),
            b: self.b.max(other.b),
            scores: self.scores.max(other.scores),
            values: self.values.max(other.values),
            most_inputs: self.most_inputs.max(other.most_inputs),
            most_channels: self.most_channels.max(other.most_channels),
            most_pooled: self.most_pooled.max(other.most_pooled),
        }
    }
}

impl Network {
    /// Reads the network.
    ///
    /// # Errors
    /// Fails if the model is none of CAN windows, or a weight is missing.
    pub fn read(
        name: &str,
        description: &ModelDescription,
        state: &StateDict,
        precision: Precision,
    ) -> Result<Self, CarError> {
        let ModelDescription { architecture, window, vocabulary, .. } = description;
        architecture.check()?;
        let weights = Weights::new(state);
        let (embedding, layers, edge_scaling) = match architecture {
            Architecture::Gat(config) => (config.embedding, gat(&weights, config, precision)?, &config.edge_scaling),
            Architecture::Vgae(config) => (config.embedding, vgae(&weights, config, precision)?, &config.edge_scaling),
            Architecture::Graph(_)
            | Architecture::Nodes(_)
            | Architecture::GraphVgae(_)
            | Architecture::Pretraining(_) => {
                return Err(CarError::Unsupported(format!(
                    "{name} is no model of CAN windows; --c writes models of those"
                )));
            }
        };
        let most = usize::from(u16::MAX);
        if !(2..=most / 2 - 1).contains(window) || vocabulary.len() > most {
            return Err(CarError::Unsupported(format!(
                "{name} has windows of {window} frames and {} known IDs; --c needs windows of 2 to {} frames and at most {most} IDs",
                vocabulary.len(),
                most / 2 - 1
            )));
        }
        let input = Input::read(&weights, architecture.input(), vocabulary.len(), embedding as usize)?;
        let most_overdue = if architecture.input().features().needs_history() { MOST_OVERDUE } else { 0 };
        Ok(Self { window: *window, most_overdue, precision, input, layers, edge_scaling: edge_scaling.clone() })
    }

    fn is_gatv2(&self) -> bool {
        self.edge_scaling.is_some()
    }

    /// Names the property in which this classifier and an autoencoder differ though the C code computes it once for both.
    pub fn difference(&self, autoencoder: &Self) -> Option<&'static str> {
        let kinds = (self.input.id.c_name(), autoencoder.input.id.c_name());
        let properties = [
            ("layers (gat and gatv2)", self.is_gatv2() == autoencoder.is_gatv2()),
            ("scaling of edge features", self.edge_scaling == autoencoder.edge_scaling),
            ("input of IDs", kinds.0 == kinds.1),
            ("window", self.window == autoencoder.window),
        ];
        properties.into_iter().find(|(_, is_same)| !is_same).map(|(name, _)| name)
    }

    /// Appends the `#define`s of the network, and of an autoencoder that judges together with it, to `config` and their arrays to `tables`.
    pub fn write(&self, autoencoder: Option<&Self>, config: &mut CText, tables: &mut CText) -> Result<(), CarError> {
        config.comment("The network.");
        config.define("KDGAT_INT8", u8::from(self.precision == Precision::Int8));
        config.define("KDGAT_GATV2", u8::from(self.is_gatv2()));
        config.define("KDGAT_EDGE_COLUMNS", if self.is_gatv2() { EDGE_FEATURES } else { 0 });
        self.input.define(config);
        if let Some(scaling) = &self.edge_scaling {
            tables.floats("kdgat_edge_mean", &scaling.mean.map(|value| value as f32));
            tables.floats("kdgat_edge_deviation", &scaling.deviation.map(|value| value as f32));
        }
        let mut scratch = self.scratch();
        self.write_layers(config, tables)?;
        if let Some(autoencoder) = autoencoder {
            scratch = scratch.or(autoencoder.scratch());
            autoencoder.write_layers(config, tables)?;
        }
        let Scratch { a, b, scores, values, most_inputs, most_channels, most_pooled } = scratch;
        config.comment("Intermediate values, in numbers of 4 bytes.");
        config.define("KDGAT_SCRATCH_A", a);
        config.define("KDGAT_SCRATCH_B", b);
        config.define("KDGAT_SCRATCH_SCORES", scores);
        config.define("KDGAT_SCRATCH_VALUES", values);
        // Four rows at a time.
        config.define("KDGAT_SCRATCH_ROWS", 4 * most_inputs.max(most_pooled));
        config.define("KDGAT_MOST_CHANNELS", most_channels);
        config.define("KDGAT_MOST_POOLED", most_pooled);
        Ok(())
    }

    /// Appends the embedding and the layers.
    fn write_layers(&self, config: &mut CText, tables: &mut CText) -> Result<(), CarError> {
        let kind = if matches!(self.layers, Layers::Gat { .. }) { "gat" } else { "vgae" };
        self.input.write(kind, tables, self.precision);
        match &self.layers {
            Layers::Gat { convs, head } => {
                config.define("KDGAT_LAYERS", format!("{}u", convs.len()));
                config.define("KDGAT_COLUMNS", format!("{}u", convs[0].shape.outputs()));
                config.define("KDGAT_HEAD_LAYERS", format!("{}u", head.len()));
                write_convs("kdgat_convs", "conv", convs, tables)?;
                let head =
                    head.iter().enumerate().map(|(layer, matrix)| matrix.write(&format!("head_{layer}"), tables));
                let head = head.collect::<Result<Vec<_>, _>>()?;
                tables.line(&format!(
                    "const kdgat_matrix kdgat_head[KDGAT_HEAD_LAYERS] = {{\n    {},\n}};",
                    head.join(",\n    ")
                ));
            }
            Layers::Vgae { encoder, mean, decoder, id_classifier } => {
                config.define("KDGAT_ENCODER_LAYERS", format!("{}u", encoder.len()));
                config.define("KDGAT_DECODER_LAYERS", format!("{}u", decoder.len()));
                config.define("KDGAT_LATENT", format!("{}u", mean.outputs));
                write_convs("kdgat_encoder", "encoder", encoder, tables)?;
                write_convs("kdgat_decoder", "decoder", decoder, tables)?;
                for (name, matrix) in [("mean", mean), ("id_classifier", id_classifier)] {
                    let written = matrix.write(name, tables)?;
                    tables.line(&format!("const kdgat_matrix kdgat_{name} = {written};"));
                }
            }
        }
        Ok(())
    }

    /// Most nodes of a graph: the distinct IDs of a window and of the frame after it, and overdue IDs in the profile set.
    fn most_nodes(&self) -> usize {
        self.window + 1 + self.most_overdue
    }

    fn convs(&self) -> Box<dyn Iterator<Item = &Conv> + '_> {
        match &self.layers {
            Layers::Gat { convs, .. } => Box::new(convs.iter()),
            Layers::Vgae { encoder, decoder, .. } => Box::new(encoder.iter().chain(decoder)),
        }
    }

    fn scratch(&self) -> Scratch {
        let nodes = self.most_nodes();
        let shapes: Vec<ConvShape> = self.convs().map(|conv| conv.shape).collect();
        let most = |value: fn(&ConvShape) -> usize| shapes.iter().map(value).max().unwrap_or(1);
        let (most_inputs, most_channels) = (most(|shape| shape.inputs), most(|shape| shape.channels));
        let [scores, values] = match self.is_gatv2() {
            false => [nodes * 2 * most(|shape| shape.heads), 1],
            true => [1, nodes * most_channels],
        };
        let embedded = nodes * self.input.embedding;
        let (a, b, most_pooled) = match &self.layers {
            Layers::Gat { convs, .. } => {
                let columns = convs[0].shape.outputs();
                let last = if self.is_gatv2() { nodes * columns } else { 0 };
                ((convs.len() - 1) * nodes * columns, embedded + last, (convs.len() * columns).max(CLASSES))
            }
            Layers::Vgae { encoder, mean, decoder, .. } => {
                let outputs = |convs: &[Conv]| convs.iter().map(|conv| conv.shape.outputs()).collect::<Vec<_>>();
                let columns = [outputs(encoder), vec![mean.outputs], outputs(decoder)].concat();
                let most =
                    |first: usize| columns.iter().skip(first).step_by(2).max().map_or(0, |columns| nodes * columns);
                (most(0), most(1).max(embedded), 1)
            }
        };
        Scratch { a: a.max(1), b, scores, values, most_inputs, most_channels, most_pooled }
    }

    /// Bytes of the network's constants.
    pub fn bytes(&self) -> usize {
        let input = self.input.bytes(self.precision);
        let layers = match &self.layers {
            Layers::Gat { head, .. } => head.iter().map(Matrix::bytes).sum(),
            Layers::Vgae { mean, id_classifier, .. } => mean.bytes() + id_classifier.bytes(),
        };
        input + layers + self.convs().map(Conv::bytes).sum::<usize>()
    }

    /// Multiply-accumulates of the score of the largest graph of a window: all its frames have different IDs.
    pub fn most_operations(&self) -> usize {
        // Each frame has an edge, each node a self-loop.
        let (nodes, edges) = (self.most_nodes(), self.window + self.most_nodes());
        let convs: usize = self.convs().map(|conv| conv.operations(nodes, edges)).sum();
        convs
            + match &self.layers {
                Layers::Gat { head, .. } => head.iter().map(Matrix::operations).sum(),
                Layers::Vgae { mean, id_classifier, .. } => nodes * (mean.operations() + id_classifier.operations()),
            }
    }
}

fn write_convs(array: &str, name: &str, convs: &[Conv], tables: &mut CText) -> Result<(), CarError> {
    let written = convs.iter().enumerate().map(|(layer, conv)| conv.write(&format!("{name}_{layer}"), tables));
    let written = written.collect::<Result<Vec<_>, _>>()?;
    tables.line(&format!("const kdgat_conv {array}[{}] = {{\n    {},\n}};", written.len(), written.join(",\n    ")));
    Ok(())
}

impl Input {
    fn read(weights: &Weights, config: &InputConfig, vocabulary: usize, embedding: usize) -> Result<Self, CarError> {
        let (rows, name, id) = match &config.id_hash {
            Some(hash) => {
                let (buckets, probes) = (hash.buckets as usize, hash.probes as usize);
                let coefficients =
                    (0..hash.probes).chain([MOST_PROBES]).map(|probe| hash.coefficients(probe)).collect();
                let of_buckets = weights.get(BUCKET_WEIGHTS, &[hash.weight_rows() as usize, probes])?;
                (buckets, BUCKETS, IdInput::Hash { probes, coefficients, weights: of_buckets })
            }
            None if config.profile.is_some() => (vocabulary, EMBEDDING, IdInput::None),
            None => (vocabulary, EMBEDDING, IdInput::Vocabulary),
        };
        let mut table = weights.get(name, &[rows, embedding])?;
        // A model of the profile set reads the row of UNKNOWN alone.
        let rows = if matches!(id, IdInput::None) { 1 } else { rows };
        table.truncate(rows * embedding);
        Ok(Self { embedding, rows, continuous: config.node_features() as usize, table, id })
    }

    /// Appends the `#define`s of the input.
    fn define(&self, config: &mut CText) {
        config.define("KDGAT_NODE_COLUMNS", format!("{}u", self.continuous));
        config.define("KDGAT_EMBEDDING", format!("{}u", self.embedding));
        config.define("KDGAT_ID_INPUT_NONE", 0);
        config.define("KDGAT_ID_INPUT_VOCABULARY", 1);
        config.define("KDGAT_ID_INPUT_HASH", 2);
        config.define("KDGAT_ID_INPUT", format!("KDGAT_ID_INPUT_{}", self.id.c_name()));
    }

    /// Appends the arrays of the embedding, and `kdgat_{kind}_embedding`, which names them.
    fn write(&self, kind: &str, tables: &mut CText, precision: Precision) {
        let mut fields = vec![format!("{}u", self.embedding), format!("{kind}_embedding_weights")];
        match precision {
            Precision::F32 => tables.local_floats(&format!("{kind}_embedding_weights"), &self.table),
            Precision::Int8 => {
                let rows: Vec<QuantisedRow> = self.table.chunks(self.embedding).map(QuantisedRow::of).collect();
                let weights = rows.iter().flat_map(|row| &row.weights).map(|&weight| i64::from(weight));
                tables.local_integers("int8_t", &format!("{kind}_embedding_weights"), weights);
                let scale: Vec<f32> = rows.iter().map(|row| row.scale).collect();
                tables.local_floats(&format!("{kind}_embedding_scale"), &scale);
                fields.push(format!("{kind}_embedding_scale"));
            }
        }
        if let IdInput::Hash { probes, coefficients, weights } = &self.id {
            let rows = coefficients.iter().map(|[a, b]| format!("{{{a}u, {b}u}}")).collect::<Vec<_>>();
            tables.line(&format!("static const uint32_t {kind}_hash[{}][2] = {{{}}};", rows.len(), rows.join(", ")));
            tables.local_floats(&format!("{kind}_hash_importance"), weights);
            fields.extend([format!("{probes}u"), format!("{}u", self.rows)]);
            fields.extend([format!("{kind}_hash"), format!("{kind}_hash_importance")]);
        }
        tables.line(&format!("const kdgat_embedding kdgat_{kind}_embedding = {{{}}};", fields.join(", ")));
    }

    fn bytes(&self, precision: Precision) -> usize {
        let hash = if let IdInput::Hash { weights, .. } = &self.id { weights.len() } else { 0 };
        let table = match precision {
            Precision::F32 => 4 * self.table.len(),
            Precision::Int8 => self.table.len() + 4 * self.rows,
        };
        4 * hash + table
    }
}

impl IdInput {
    /// Last part of the name in C.
    fn c_name(&self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Vocabulary => "VOCABULARY",
            Self::Hash { .. } => "HASH",
        }
    }
}

fn gat(weights: &Weights, config: &GatConfig, precision: Precision) -> Result<Layers, CarError> {
    let columns = (config.hidden * config.heads) as usize;
    let mut convs = Vec::new();
    for layer in 0..config.layers {
        let inputs = if layer == 0 { config.input.columns(config.embedding) as usize } else { columns };
        let shape = ConvShape { inputs, channels: config.hidden as usize, heads: config.heads as usize };
        let kind = (config.edge_scaling.is_some(), precision);
        convs.push(Conv::read(weights, &format!("convs.{layer}"), shape, Affine::identity(columns), kind)?);
    }
    let pooled = config.embedding_columns() as usize;
    let mut head = Vec::new();
    for layer in 0..config.fc_layers as usize {
        let outputs = if layer + 1 == config.fc_layers as usize { CLASSES } else { pooled };
        // Named by the indices of a `Sequential` with ReLU and dropout in between.
        head.push(linear(weights, &format!("fc_layers.{}", 3 * layer), pooled, outputs, precision)?);
    }
    Ok(Layers::Gat { convs, head })
}

fn vgae(weights: &Weights, config: &VgaeConfig, precision: Precision) -> Result<Layers, CarError> {
    let kind = (config.edge_scaling.is_some(), precision);
    let hidden = |part: &str, index: usize, shape: ConvShape| {
        let norm = Affine::batch_norm(weights, &format!("{part}_bns.{index}"), shape.outputs())?;
        Conv::read(weights, &format!("{part}_layers.{index}"), shape, norm, kind)
    };
    let mut inputs = config.input.columns(config.embedding) as usize;
    let mut encoder = Vec::new();
    for (index, &width) in config.encoder_widths().iter().enumerate() {
        let heads = if index == 0 { config.heads as usize } else { 1 };
        encoder.push(hidden("encoder", index, ConvShape::dividing(inputs, width as usize, heads))?);
        inputs = width as usize;
    }
    let latent = config.latent as usize;
    let mean = linear(weights, "z_mean", inputs, latent, precision)?;
    inputs = latent;
    let mut decoder = Vec::new();
    for (index, &width) in config.decoder_widths().iter().enumerate() {
        decoder.push(hidden("decoder", index, ConvShape::dividing(inputs, width as usize, DECODER_HEADS))?);
        inputs = width as usize;
    }
    let features = config.input.node_features() as usize;
    let output = ConvShape { inputs, channels: features, heads: 1 };
    let name = format!("decoder_layers.{}", decoder.len());
    decoder.push(Conv::read(weights, &name, output, Affine::identity(features), kind)?);
    let id_classifier = linear(weights, "canid_classifier", latent, config.vocabulary_size as usize, precision)?;
    Ok(Layers::Vgae { encoder, mean, decoder, id_classifier })
}

fn linear(
    weights: &Weights,
    name: &str,
    inputs: usize,
    outputs: usize,
    precision: Precision,
) -> Result<Matrix, CarError> {
    let weight = weights.get(&format!("{name}.weight"), &[outputs, inputs])?;
    let bias = weights.get(&format!("{name}.bias"), &[outputs])?;
    Ok(Matrix::new(inputs, outputs, weight, bias, precision))
}
