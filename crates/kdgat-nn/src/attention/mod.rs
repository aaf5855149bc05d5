//! Graph attention: for target i and head h, `out_i = Σ_j a_ij · values_j` over the sources j of its edges, with `a_ij
//! = softmax over j of leaky_relu(s_j + t_i)` (Veličković et al. 2018).
//!
//! The targets are the first of the sources; usually all of them.
//!
//! [`gat_conv`] is the layer after its linear map, [`gat_attention`] the same with given scores, and
//! [`gatv2_attention`] the layer of GATv2. Each has two implementations: [fused](Backend::Fused), on the CPU and on a
//! GPU, which never creates an array of edges × channels in forward or backward; and [composed](Backend::Composed) of
//! torch's operations. Both give the same numbers up to rounding.

// All functions on tiles have the same signature, even if they do not use the instruction set.
#![allow(clippy::extra_unused_type_parameters)]

mod backward;
mod composed;
mod dropout;
mod element;
mod fused;
mod fused_gatv2;
mod gatv2;
mod gpu;
mod kernels;
mod layout;
mod passes;
mod softmax;
mod tiles;

use tch::{Device, Kind, TchError, Tensor};

pub use dropout::AttentionDropout;
use kdgat_graph::Adjacency;
use kdgat_torch::autograd::{self, Function};
use kdgat_torch::cuda_program::ProgramError;
use kernels::Shape;

/// Implementation of attention, and of the operations between attention and matrix products ([`fused`](super::fused),
/// f32 only).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Fused on the CPU and, where its kernels can be compiled, on a GPU (f32, f64 or bf16), otherwise composed.
    #[default]
    Auto,
    /// Fused, or an error if unsupported. On a GPU, kernels are compiled at their first use, which needs NVRTC.
    Fused,
    /// Composed of torch's own operations.
    Composed,
}

/// Options of attention, common to all implementations.
#[derive(Clone, Debug)]
pub struct AttentionOptions {
    /// Slope of the leaky ReLU for negative scores.
    pub negative_slope: f64,
    /// Dropout of attention weights, in training.
    pub dropout: Option<AttentionDropout>,
    /// Set to return the attention weights as well.
    pub return_weights: bool,
}

impl Default for AttentionOptions {
    fn default() -> Self {
        Self { negative_slope: 0.2, dropout: None, return_weights: false }
    }
}

/// Result of attention.
#[derive(Debug)]
pub struct Attended {
    /// The output, in the shape of the values.
    pub output: Tensor,
    /// Attention weights as applied (after dropout), `[num_edges, heads]` in the order of the adjacency, without
    /// gradient.
    pub weights: Option<Tensor>,
}

/// Errors of attention.
#[derive(Debug, thiserror::Error)]
pub enum AttentionError {
    /// A tensor's shape does not match the others'.
    #[error("attention: {tensor} has shape {found:?}, expected {expected:?}; check the model's heads and widths")]
    Shape {
        /// Name of the tensor.
        tensor: &'static str,
        /// Its shape.
        found: Vec<i64>,
        /// The required shape; -1 for any size.
        expected: Vec<i64>,
    },
    /// The fused kernels do not support this device or type.
    #[error(
        "fused attention does not support {kind:?} on {device:?}; it runs on the CPU and on CUDA devices, for f32, f64 and \
         bf16; use attention = \"auto\" or \"composed\""
    )]
    Unsupported {
        /// Device of the values.
        device: Device,
        /// Type of the values.
        kind: Kind,
    },
    /// The GPU kernels cannot be compiled or loaded.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The dropout probability, given here, is out of range.
    #[error("attention dropout must be in [0, 1), got {0}")]
    Dropout(f64),
    /// libtorch reported an error.
    #[error(transparent)]
    Torch(#[from] TchError),
}

/// The attention layer of `GATConv` after its linear map, heads concatenated.
///
/// `values` is `[num_sources, heads * channels]`, the attention vectors `[1, heads, channels]`, the bias
/// `[heads * channels]`. Returns `[num_targets, heads * channels]` in the type of the values.
pub fn gat_conv(
    kernel: Backend,
    values: &Tensor,
    attention_source: &Tensor,
    attention_target: &Tensor,
    bias: Option<&Tensor>,
    adjacency: &Adjacency,
    options: &AttentionOptions,
) -> Result<Attended, AttentionError> {
    let (heads, channels) = match attention_source.size()[..] {
        [1, heads, channels] => (heads, channels),
        ref found => return Err(shape("the attention vector", found, &[1, -1, -1])),
    };
    let row = heads * channels;
    expect("values", values, &[adjacency.num_sources(), row])?;
    expect("the target's attention vector", attention_target, &[1, heads, channels])?;
    if let Some(bias) = bias {
        expect("the bias", bias, &[row])?;
    }
    let real = computing_kind(values)?;
    let attention_source = attention_source.f_to_kind(real)?;
    let attention_target = attention_target.f_to_kind(real)?;
    let bias = bias.map(|bias| bias.f_to_kind(real)).transpose()?;
    let implementation = Implementation::choose(kernel, gpu::LayerKind::Gat, values, (heads, channels), options)?;
    if implementation != Implementation::Composed {
        let vectors = [attention_source.f_reshape([row])?, attention_target.f_reshape([row])?];
        let values = values.f_contiguous()?;
        let inputs: Vec<&Tensor> = [&values, &vectors[0], &vectors[1]].into_iter().chain(&bias).collect();
        return run_fused(implementation, &inputs, adjacency, (heads, channels), options, true);
    }
    let by_head = values.f_reshape([-1, heads, channels])?;
    let wide = by_head.f_to_kind(real)?;
    let source_scores = wide.f_mul(&attention_source)?.f_sum_dim_intlist(-1_i64, false, real)?;
    let target_scores = wide.f_mul(&attention_target)?.f_sum_dim_intlist(-1_i64, false, real)?;
    let mut attended = composed::attend(&by_head, &source_scores, &target_scores, adjacency, options)?;
    attended.output = attended.output.f_reshape([-1, row])?;
    if let Some(bias) = &bias {
        attended.output = attended.output.f_add(bias)?.f_to_kind(values.f_kind()?)?;
    }
    Ok(attended)
}

/// Attention with given scores, for values `[num_sources, heads, channels]`, and scores `[num_sources, heads]` and
/// `[num_targets, heads]`.
///
/// Returns `[num_targets, heads, channels]` in the type of the values.
pub fn gat_attention(
    kernel: Backend,
    values: &Tensor,
    score_source: &Tensor,
    score_target: &Tensor,
    adjacency: &Adjacency,
    options: &AttentionOptions,
) -> Result<Attended, AttentionError> {
    let (heads, channels) = match values.size()[..] {
        [_, heads, channels] => (heads, channels),
        ref found => return Err(shape("values", found, &[adjacency.num_sources(), -1, -1])),
    };
    expect("values", values, &[adjacency.num_sources(), heads, channels])?;
    expect("the sources' scores", score_source, &[adjacency.num_sources(), heads])?;
    expect("the targets' scores", score_target, &[adjacency.num_targets(), heads])?;
    let real = computing_kind(values)?;
    let score_source = score_source.f_to_kind(real)?;
    let score_target = score_target.f_to_kind(real)?;
    let implementation = Implementation::choose(kernel, gpu::LayerKind::Gat, values, (heads, channels), options)?;
    if implementation != Implementation::Composed {
        let inputs = [values.f_contiguous()?, score_source.f_contiguous()?, score_target.f_contiguous()?];
        return run_fused(implementation, &inputs.each_ref(), adjacency, (heads, channels), options, false);
    }
    Ok(composed::attend(values, &score_source, &score_target, adjacency, options)?)
}

/// The attention layer of `GATv2Conv` (Brody et al. 2022) after its linear maps, heads concatenated: `a_ij = softmax
/// over j of att · leaky_relu(source_j + target_i + edge_ij)`, `out_i = Σ_j a_ij · source_j + bias`.
///
/// `source` is `[num_sources, heads * channels]`, `target` `[num_targets, heads * channels]`, `edge_term` (the linear map of
/// the edge features) `[num_edges, heads * channels]` in the order of the adjacency, `attention` `[1, heads, channels]`, the
/// bias `[heads * channels]`. Returns `[num_targets, heads * channels]` in the type of `source`.
#[allow(clippy::too_many_arguments)]
pub fn gatv2_attention(
    kernel: Backend,
    source: &Tensor,
    target: &Tensor,
    edge_term: Option<&Tensor>,
    attention: &Tensor,
    bias: Option<&Tensor>,
    adjacency: &Adjacency,
    options: &AttentionOptions,
) -> Result<Attended, AttentionError> {
    let (heads, channels) = match attention.size()[..] {
        [1, heads, channels] => (heads, channels),
        ref found => return Err(shape("the attention vector", found, &[1, -1, -1])),
    };
    let row = heads * channels;
    expect("source values", source, &[adjacency.num_sources(), row])?;
    expect("target values", target, &[adjacency.num_targets(), row])?;
    if let Some(edge_term) = edge_term {
        expect("edge terms", edge_term, &[adjacency.num_edges(), row])?;
    }
    if let Some(bias) = bias {
        expect("the bias", bias, &[row])?;
    }
    let (kind, real) = (source.f_kind()?, computing_kind(source)?);
    let attention = attention.f_to_kind(real)?;
    let bias = match bias {
        Some(bias) => bias.f_to_kind(real)?,
        None => Tensor::f_zeros([row], (real, source.device()))?,
    };
    let implementation = Implementation::choose(kernel, gpu::LayerKind::GatV2, source, (heads, channels), options)?;
    if implementation != Implementation::Composed {
        let source = source.f_contiguous()?;
        let target = target.f_to_kind(kind)?.f_contiguous()?;
        let attention = attention.f_reshape([row])?;
        let edge_term = edge_term.map(|edge_term| edge_term.f_to_kind(kind)?.f_contiguous()).transpose()?;
        let inputs: Vec<&Tensor> = [&source, &target, &attention, &bias].into_iter().chain(&edge_term).collect();
        let shape = Shape { heads: heads as usize, channels: channels as usize };
        if implementation == Implementation::Gpu {
            let layer = gpu::Layer::new(gpu::LayerKind::GatV2, source.device(), kind, adjacency, shape, options)?;
            return Ok(run(gpu::GpuGatV2 { layer }, options.return_weights, &inputs)?);
        }
        let (adjacency, return_weights) = (adjacency.shallow_clone(), options.return_weights);
        let function = fused_gatv2::FusedGatV2 { adjacency, shape, options: options.clone() };
        return Ok(run(function, return_weights, &inputs)?);
    }
    let by_head = |tensor: &Tensor| tensor.f_reshape([-1, heads, channels]);
    let edge_term = edge_term.map(by_head).transpose()?;
    let mut attended = composed::attend_pairs(
        &by_head(source)?,
        &by_head(target)?,
        edge_term.as_ref(),
        &attention,
        adjacency,
        options,
    )?;
    attended.output = attended.output.f_reshape([-1, row])?.f_add(&bias)?.f_to_kind(kind)?;
    Ok(attended)
}

/// Implementation of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Implementation {
    /// Fused, on the CPU.
    Cpu,
    /// Fused, on a GPU.
    Gpu,
    Composed,
}

impl Implementation {
    fn choose(
        kernel: Backend,
        layer: gpu::LayerKind,
        values: &Tensor,
        (heads, channels): (i64, i64),
        options: &AttentionOptions,
    ) -> Result<Self, AttentionError> {
        if let Some(dropout) = options.dropout.filter(|dropout| !(0.0..1.0).contains(&dropout.probability)) {
            return Err(AttentionError::Dropout(dropout.probability));
        }
        let (device, kind) = (values.device(), values.f_kind()?);
        let known = matches!(kind, Kind::Float | Kind::Double | Kind::BFloat16);
        match (kernel, device) {
            (Backend::Composed, _) => Ok(Self::Composed),
            (Backend::Auto | Backend::Fused, Device::Cpu) if known => Ok(Self::Cpu),
            (Backend::Fused, Device::Cuda(_)) if known => Ok(Self::Gpu),
            (Backend::Fused, _) => Err(AttentionError::Unsupported { device, kind }),
            (Backend::Auto, Device::Cuda(_)) if known => {
                // Sizes of tensors are never negative.
                let shape = Shape { heads: heads as usize, channels: channels as usize };
                Ok(if gpu::is_usable(layer, device, shape, kind) { Self::Gpu } else { Self::Composed })
            }
            (Backend::Auto, _) => Ok(Self::Composed),
        }
    }
}

/// Runs a fused layer of GAT. Inputs: values, two attention vectors (if `projected`) or scores, and an optional bias.
fn run_fused(
    implementation: Implementation,
    inputs: &[&Tensor],
    adjacency: &Adjacency,
    (heads, channels): (i64, i64),
    options: &AttentionOptions,
    projected: bool,
) -> Result<Attended, AttentionError> {
    // Sizes of tensors are never negative.
    let shape = Shape { heads: heads as usize, channels: channels as usize };
    if implementation == Implementation::Gpu {
        let layer =
            gpu::Layer::new(gpu::LayerKind::Gat, inputs[0].device(), inputs[0].f_kind()?, adjacency, shape, options)?;
        return Ok(run(gpu::GpuGat { layer, projected }, options.return_weights, inputs)?);
    }
    let (adjacency, return_weights) = (adjacency.shallow_clone(), options.return_weights);
    let function = fused::FusedGat { adjacency, shape, options: options.clone(), projected };
    Ok(run(function, return_weights, inputs)?)
}

/// Runs a layer. It returns its weights as the second output if requested.
fn run<F: Function>(function: F, return_weights: bool, inputs: &[&Tensor]) -> Result<Attended, TchError> {
    let mut outputs = autograd::apply(function, inputs)?.into_iter();
    let output = outputs.next().unwrap_or_default();
    let weights = if return_weights { outputs.next().map(|weights| weights.detach()) } else { None };
    Ok(Attended { output, weights })
}

/// The type in which scores, softmax and sums are computed.
fn computing_kind(values: &Tensor) -> Result<Kind, TchError> {
    Ok(if values.f_kind()? == Kind::Double { Kind::Double } else { Kind::Float })
}

fn expect(tensor: &'static str, value: &Tensor, expected: &[i64]) -> Result<(), AttentionError> {
    let found = value.size();
    if found == expected { Ok(()) } else { Err(shape(tensor, &found, expected)) }
}

fn shape(tensor: &'static str, found: &[i64], expected: &[i64]) -> AttentionError {
    AttentionError::Shape { tensor, found: found.to_vec(), expected: expected.to_vec() }
}
