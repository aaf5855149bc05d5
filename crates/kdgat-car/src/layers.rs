//! Attention layers of a trained model in the layout of the C code.

use kdgat_graph::EDGE_FEATURES;

use crate::matrix::Matrix;
use crate::weights::{Precision, Weights};
use crate::{CText, CarError};

/// Added to a variance before its root, as in the trainer.
const EPSILON: f64 = 1e-5;

/// A factor and an addend for each output of a layer.
#[derive(Debug, Clone)]
pub struct Affine {
    pub factor: Vec<f32>,
    pub shift: Vec<f32>,
}

impl Affine {
    /// Batch norm with its running statistics (Ioffe & Szegedy 2015): `factor = weight / sqrt(variance + epsilon)`.
    pub fn batch_norm(weights: &Weights, name: &str, columns: usize) -> Result<Self, CarError> {
        let get = |part: &str| weights.get(&format!("{name}.{part}"), &[columns]);
        let (weight, bias, mean, variance) = (get("weight")?, get("bias")?, get("running_mean")?, get("running_var")?);
        let factor = weight
            .iter()
            .zip(&variance)
            .map(|(&weight, &variance)| f64::from(weight) / (f64::from(variance) + EPSILON).sqrt());
        let factor: Vec<f64> = factor.collect();
        let shift = factor.iter().zip(bias.iter().zip(&mean));
        let shift = shift.map(|(factor, (&bias, &mean))| (f64::from(bias) - f64::from(mean) * factor) as f32).collect();
        Ok(Self { factor: factor.into_iter().map(|factor| factor as f32).collect(), shift })
    }

    /// Changes nothing.
    pub fn identity(columns: usize) -> Self {
        Self { factor: vec![1.0; columns], shift: vec![0.0; columns] }
    }
}

/// Size of an attention layer.
#[derive(Debug, Clone, Copy)]
pub struct ConvShape {
    pub inputs: usize,
    pub channels: usize,
    pub heads: usize,
}

impl ConvShape {
    /// A layer of `outputs` columns: with `heads` heads if they divide `outputs`, otherwise with one.
    pub fn dividing(inputs: usize, outputs: usize, heads: usize) -> Self {
        let heads = if outputs.is_multiple_of(heads) { heads } else { 1 };
        Self { inputs, channels: outputs / heads, heads }
    }

    /// Columns of its output.
    pub fn outputs(&self) -> usize {
        self.channels * self.heads
    }
}

/// An attention layer with what follows it (batch norm) folded in.
#[derive(Debug)]
pub struct Conv {
    pub shape: ConvShape,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Gat {
        /// One map for each head.
        values: Vec<Matrix>,
        /// `[inputs, 2 * heads]`: columns `Wᵀ a` of sources, then of targets.
        scores: Vec<f32>,
    },
    GatV2 {
        values: Vec<Matrix>,
        targets: Vec<Matrix>,
        edges: Vec<Matrix>,
        /// `[heads, channels]`
        attention: Vec<f32>,
        output: Affine,
    },
}

impl Conv {
    /// Reads the layer `name`; `after` follows its bias.
    pub fn read(
        weights: &Weights,
        name: &str,
        shape: ConvShape,
        after: Affine,
        (gatv2, precision): (bool, Precision),
    ) -> Result<Self, CarError> {
        let outputs = shape.outputs();
        let bias = weights.get(&format!("{name}.bias"), &[outputs])?;
        let shifted = bias.iter().zip(&after.factor).zip(&after.shift);
        let shift: Vec<f32> = shifted.map(|((bias, factor), shift)| bias * factor + shift).collect();
        let after = Affine { factor: after.factor, shift };
        let kind = match gatv2 {
            false => gat(weights, name, shape, after, precision)?,
            true => gatv2_layer(weights, name, shape, after, precision)?,
        };
        Ok(Self { shape, kind })
    }

    /// Bytes of its constants.
    pub fn bytes(&self) -> usize {
        let floats = match &self.kind {
            Kind::Gat { scores, .. } => scores.len(),
            Kind::GatV2 { .. } => 3 * self.shape.outputs(),
        };
        self.matrices().map(Matrix::bytes).sum::<usize>() + 4 * floats
    }

    /// Multiply-accumulates for a graph of `nodes` nodes and `edges` edges, self-loops included.
    pub fn operations(&self, nodes: usize, edges: usize) -> usize {
        let ConvShape { inputs, channels, heads } = self.shape;
        match &self.kind {
            Kind::Gat { values, scores } => {
                let products = values.iter().map(Matrix::operations).sum::<usize>() + scores.len();
                nodes * products + edges * heads * inputs
            }
            Kind::GatV2 { values, targets, edges: of_edges, .. } => {
                let of_nodes: usize = values.iter().chain(targets).map(Matrix::operations).sum();
                let of_edges: usize = of_edges.iter().map(Matrix::operations).sum();
                nodes * of_nodes + edges * (of_edges + 2 * heads * channels)
            }
        }
    }

    fn matrices(&self) -> Box<dyn Iterator<Item = &Matrix> + '_> {
        match &self.kind {
            Kind::Gat { values, .. } => Box::new(values.iter()),
            Kind::GatV2 { values, targets, edges, .. } => Box::new(values.iter().chain(targets).chain(edges)),
        }
    }

    /// Appends the layer's arrays, and returns the initialiser of its `kdgat_conv`. `name` is a C identifier.
    pub fn write(&self, name: &str, tables: &mut CText) -> Result<String, CarError> {
        let heads = |part: &str, matrices: &[Matrix], tables: &mut CText| {
            let name = format!("{name}_{part}");
            let written =
                matrices.iter().enumerate().map(|(head, matrix)| matrix.write(&format!("{name}_{head}"), tables));
            let written = written.collect::<Result<Vec<_>, CarError>>()?;
            tables.line(&format!(
                "static const kdgat_matrix {name}[{}] = {{\n    {},\n}};",
                written.len(),
                written.join(",\n    ")
            ));
            Ok::<_, CarError>(name)
        };
        let pointers = match &self.kind {
            Kind::Gat { values, scores } => {
                let values = heads("values", values, tables)?;
                tables.local_floats(&format!("{name}_scores"), scores);
                format!("{values}, {name}_scores, 0, 0, 0, 0, 0")
            }
            Kind::GatV2 { values, targets, edges, attention, output } => {
                let names = [
                    heads("values", values, tables)?,
                    heads("targets", targets, tables)?,
                    heads("edges", edges, tables)?,
                ];
                for (part, floats) in [("attention", attention), ("scale", &output.factor), ("shift", &output.shift)] {
                    tables.local_floats(&format!("{name}_{part}"), floats);
                }
                let [values, targets, edges] = names;
                format!("{values}, 0, {targets}, {edges}, {name}_attention, {name}_scale, {name}_shift")
            }
        };
        Ok(format!("{{{}u, {}u, {pointers}}}", self.shape.heads, self.shape.channels))
    }
}

fn gat(weights: &Weights, name: &str, shape: ConvShape, after: Affine, precision: Precision) -> Result<Kind, CarError> {
    let ConvShape { inputs, channels, heads } = shape;
    let weight = weights.get(&format!("{name}.lin.weight"), &[shape.outputs(), inputs])?;
    let mut scores = Vec::with_capacity(2 * heads * inputs);
    for part in ["att_src", "att_dst"] {
        let attention = weights.get(&format!("{name}.{part}"), &[1, heads, channels])?;
        // The weights that the C code multiplies by: rounded ones if they are.
        let weight = match precision {
            Precision::F32 => weight.clone(),
            Precision::Int8 => crate::weights::rounded(&weight, inputs),
        };
        for (of_head, attention) in weight.chunks(channels * inputs).zip(attention.chunks(channels)) {
            let column = |input: usize| {
                let terms = attention.iter().enumerate();
                terms.map(|(channel, &a)| f64::from(a) * f64::from(of_head[channel * inputs + input])).sum::<f64>()
                    as f32
            };
            scores.extend((0..inputs).map(column));
        }
    }
    let values = per_head(&weight, shape, &after.shift, &after.factor, precision);
    let terms = 2 * heads;
    let scores = (0..inputs * terms).map(|index| scores[index % terms * inputs + index / terms]).collect();
    Ok(Kind::Gat { values, scores })
}

fn gatv2_layer(
    weights: &Weights,
    name: &str,
    shape: ConvShape,
    output: Affine,
    precision: Precision,
) -> Result<Kind, CarError> {
    let ConvShape { channels, heads, .. } = shape;
    let ones = vec![1.0; shape.outputs()];
    let map = |part: &str, inputs: usize, biased: bool| {
        let shape = ConvShape { inputs, ..shape };
        let weight = weights.get(&format!("{name}.{part}.weight"), &[shape.outputs(), inputs])?;
        let bias = match biased {
            true => weights.get(&format!("{name}.{part}.bias"), &[shape.outputs()])?,
            false => vec![0.0; shape.outputs()],
        };
        Ok::<_, CarError>(per_head(&weight, shape, &bias, &ones, precision))
    };
    Ok(Kind::GatV2 {
        values: map("lin_l", shape.inputs, true)?,
        targets: map("lin_r", shape.inputs, true)?,
        edges: map("lin_edge", EDGE_FEATURES, false)?,
        attention: weights.get(&format!("{name}.att"), &[1, heads, channels])?,
        output,
    })
}

/// Splits a map of all heads, `[heads * channels, inputs]`, into one for each head.
fn per_head(weight: &[f32], shape: ConvShape, bias: &[f32], factor: &[f32], precision: Precision) -> Vec<Matrix> {
    let ConvShape { inputs, channels, .. } = shape;
    let heads = weight.chunks(channels * inputs).zip(bias.chunks(channels)).zip(factor.chunks(channels));
    let matrix = |((weight, bias), factor): ((&[f32], &[f32]), &[f32])| {
        let matrix = Matrix::new(inputs, channels, weight.to_vec(), bias.to_vec(), precision);
        Matrix { factor: factor.to_vec(), ..matrix }
    };
    heads.map(matrix).collect()
}
