//! Basic layers that the models share.

use kdgat_graph::Batch;
use kdgat_graph::padding::Mask;
use kdgat_torch::autocast::widened;
use tch::{Kind, Tensor};

use super::ModelError;
use super::attention::Backend;
use super::fused::dropout::Dropout;
use super::fused::elementwise::{Elementwise, with_dropout};
use super::fused::norm::{EPSILON, MOMENTUM, Moments, norm_relu_dropout};
use super::fused::step_seed::{self, LayerId};
use super::fused::{self, Pass, activation, pool};
use super::masked;
pub use super::node_input::{InputConfig, NodeInput};
use super::parameters::{Init, Scope};
use super::segments;
use super::shared_statistics::{self, NormTensors, norm_of_all};

/// Minimum number of rows from which a matrix product computes each row the same way, whatever their number (measured
/// for MKL on one thread of an Intel Xeon: 16; with fewer rows, MKL uses other kernels, which round differently).
const LEAST_ROWS: i64 = 16;

/// Number of rows such that an elementwise function on a multiple of it runs in vectors alone, whatever the number of
/// columns: nothing is left for the scalar code, which rounds differently.
const VECTOR_ROWS: i64 = 64;

/// Computes `x Wᵀ`, `[rows, input]` → `[rows, output]`, for a weight in PyTorch's layout, `[output, input]`. A row of
/// the result depends on that row of `x` alone, not on the number of rows.
pub fn matmul_transposed(x: &Tensor, weight: &Tensor, kernel: Backend) -> Result<Tensor, ModelError> {
    if fused::linear::applies(kernel, x, weight)? {
        return Ok(fused::linear::linear(x, weight, None)?);
    }
    with_enough_rows(x, |x| Ok(x.f_matmul(&weight.f_transpose(0, 1)?)?))
}

/// The logistic function of each element of `[rows, columns]`. In evaluation, an element's value does not depend on its
/// position, so that a teacher's target for a graph is the same in every batch.
pub fn sigmoid(x: &Tensor, kernel: Backend, mode: Mode) -> Result<Tensor, ModelError> {
    if fused::applies(kernel, &[x]) {
        return Ok(with_dropout(x, Elementwise::Sigmoid, None)?);
    }
    match mode {
        Mode::Training => Ok(x.f_sigmoid()?),
        Mode::Evaluation => {
            let rows = (x.size()[0] as u64).next_multiple_of(VECTOR_ROWS as u64) as i64;
            with_rows(x, rows, |x| Ok(x.f_sigmoid()?))
        }
    }
}

/// Applies `function` to `x`, or to `x` padded with zero rows if it has so few that a matrix product would compute its rows in another way
/// than among more.
pub(crate) fn with_enough_rows(
    x: &Tensor,
    function: impl Fn(&Tensor) -> Result<Tensor, ModelError>,
) -> Result<Tensor, ModelError> {
    with_rows(x, LEAST_ROWS.max(x.size()[0]), function)
}

/// Applies `function` to `x` padded with zero rows up to `rows`, and removes the padding from the result.
fn with_rows(
    x: &Tensor,
    rows: i64,
    function: impl Fn(&Tensor) -> Result<Tensor, ModelError>,
) -> Result<Tensor, ModelError> {
    let own = x.size()[0];
    if own == rows {
        return function(x);
    }
    let padded = x.f_constant_pad_nd([0, 0, 0, rows - own].as_slice())?;
    Ok(function(&padded)?.f_narrow(0, 0, own)?)
}

/// Mode of a model: training or evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Batch statistics, dropout, and a sampled latent.
    Training,
    /// Running statistics, no dropout, z = μ: the result is deterministic and does not depend on the rest of the batch.
    Evaluation,
}

/// A linear layer, `x Wᵀ + b`.
#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    /// Creates a linear layer with a bias.
    pub fn new(scope: Scope, input: i64, output: i64) -> Result<Self, ModelError> {
        Self::with_init(scope, input, output, Init::Linear { fan_in: input })
    }

    /// Like [`Linear::new`], with another initialisation of the weight.
    pub fn with_init(mut scope: Scope, input: i64, output: i64, weight: Init) -> Result<Self, ModelError> {
        Ok(Self {
            weight: scope.parameter("weight", &[output, input], weight)?,
            bias: scope.parameter("bias", &[output], Init::Linear { fan_in: input })?,
        })
    }

    /// Another handle to the same layer.
    pub fn shallow_clone(&self) -> Self {
        Self { weight: self.weight.shallow_clone(), bias: self.bias.shallow_clone() }
    }

    /// The trainable tensors.
    pub fn parameters(&self) -> [&Tensor; 2] {
        [&self.weight, &self.bias]
    }

    /// Applies the layer: `[rows, input]` → `[rows, output]`.
    pub fn forward(&self, x: &Tensor, kernel: Backend) -> Result<Tensor, ModelError> {
        if fused::linear::applies(kernel, x, &self.weight)? {
            return Ok(fused::linear::linear(x, &self.weight, Some(&self.bias))?);
        }
        with_enough_rows(x, |x| Ok(x.f_linear(&self.weight, Some(&self.bias))?))
    }
}

/// Batch normalisation over nodes (Ioffe & Szegedy 2015), followed by ReLU and dropout.
#[derive(Debug)]
pub struct BatchNorm {
    layer: LayerId,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    batches_seen: Tensor,
}

impl BatchNorm {
    /// Creates a normalisation of `columns` columns.
    pub fn new(mut scope: Scope, columns: i64) -> Result<Self, ModelError> {
        Ok(Self {
            layer: scope.layer_id(),
            weight: scope.parameter("weight", &[columns], Init::Constant(1.0))?,
            bias: scope.parameter("bias", &[columns], Init::Constant(0.0))?,
            running_mean: scope.buffer("running_mean", &[columns], Kind::Float, Init::Constant(0.0))?,
            running_variance: scope.buffer("running_var", &[columns], Kind::Float, Init::Constant(1.0))?,
            batches_seen: scope.buffer("num_batches_tracked", &[], Kind::Int64, Init::Constant(0.0))?,
        })
    }

    /// Applies the layer: `[rows, columns]` → the same shape. Training uses the statistics of the batch's real rows and
    /// updates the running statistics.
    pub fn forward(
        &self,
        x: &Tensor,
        real: Option<&Mask>,
        dropout: f64,
        kernel: Backend,
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        match mode {
            Mode::Training => {
                if real.is_none() && self.is_fused(x, kernel) {
                    return self.fused_of_batch(x, Pass::Forward, mask_of(self.layer, dropout, mode)?);
                }
                let (active, _) = self.active_of_batch(x, real, Pass::Forward, kernel, None)?;
                composed_dropout(&active, dropout, mode)
            }
            Mode::Evaluation if self.is_fused(x, kernel) => {
                let moments = Moments::Running([&self.running_mean, &self.running_variance]);
                Ok(norm_relu_dropout(x, &self.weight, &self.bias, moments, None, Pass::Forward)?)
            }
            Mode::Evaluation => Ok(self.composed_of_running(x)?.f_relu()?),
        }
    }

    /// Normalises by the batch's own statistics, then applies ReLU and `mask`. The flag is true if the mask was
    /// applied; without fused passes, the caller must apply dropout. Only the forward updates the running statistics.
    pub(super) fn active_of_batch(
        &self,
        x: &Tensor,
        real: Option<&Mask>,
        pass: Pass,
        kernel: Backend,
        mask: Option<Dropout>,
    ) -> Result<(Tensor, bool), ModelError> {
        match real {
            None if self.is_fused(x, kernel) => Ok((self.fused_of_batch(x, pass, mask)?, true)),
            None => Ok((self.composed_of_batch(x, pass)?.f_relu()?, false)),
            Some(real) => Ok((self.composed_of_real(x, pass, real)?.f_relu()?, false)),
        }
    }

    /// The normalisation alone, by torch's operations: `[rows, columns]` → the same shape.
    pub(super) fn normalised(&self, x: &Tensor, mode: Mode) -> Result<Tensor, ModelError> {
        match mode {
            Mode::Training => self.composed_of_batch(x, Pass::Forward),
            Mode::Evaluation => self.composed_of_running(x),
        }
    }

    /// The same normalisation of a row per graph.
    pub fn of_graphs(self) -> Self {
        Self { layer: self.layer.of_graphs(), ..self }
    }

    /// The layer whose seed its dropout mask uses.
    pub fn layer_id(&self) -> LayerId {
        self.layer
    }

    fn is_fused(&self, x: &Tensor, kernel: Backend) -> bool {
        fused::applies(kernel, &[x, &self.weight, &self.bias, &self.running_mean, &self.running_variance])
    }

    fn fused_of_batch(&self, x: &Tensor, pass: Pass, dropout: Option<Dropout>) -> Result<Tensor, ModelError> {
        let moments = Moments::OfBatch { running: self.running(pass)? };
        Ok(norm_relu_dropout(x, &self.weight, &self.bias, moments, dropout, pass)?)
    }

    /// The running statistics to update: none in a recomputation. Counts the batch otherwise.
    fn running(&self, pass: Pass) -> Result<Option<[&Tensor; 2]>, ModelError> {
        if pass == Pass::Again {
            return Ok(None);
        }
        let _ = tch::no_grad(|| self.batches_seen.shallow_clone().f_add_scalar_(1))?;
        Ok(Some([&self.running_mean, &self.running_variance]))
    }

    fn composed_of_running(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        // A product and a sum round the same way in vector and in scalar code, unlike torch's fused kernel: an
        // element's value does not depend on its position in the batch.
        let scale = self.running_variance.f_add_scalar(EPSILON)?.f_rsqrt()?.f_mul(&self.weight)?;
        let shift = self.bias.f_sub(&self.running_mean.f_mul(&scale)?)?;
        Ok(x.f_mul(&scale)?.f_add(&shift)?)
    }

    fn composed_of_batch(&self, x: &Tensor, pass: Pass) -> Result<Tensor, ModelError> {
        let running = self.running(pass)?;
        if let Some(sums) = shared_statistics::current() {
            return norm_of_all(x, NormTensors { affine: [&self.weight, &self.bias], running }, &sums);
        }
        // A single row has no variance: libtorch would write NaN into the running variance, permanently.
        let running = running.filter(|_| x.size()[0] > 1);
        let (training, cudnn_enabled) = (true, true);
        Ok(x.f_batch_norm(
            Some(&self.weight),
            Some(&self.bias),
            running.map(|[mean, _]| mean),
            running.map(|[_, variance]| variance),
            training,
            MOMENTUM,
            EPSILON,
            cudnn_enabled,
        )?)
    }

    /// Like [`Self::composed_of_batch`], for a padded batch.
    fn composed_of_real(&self, x: &Tensor, pass: Pass, real: &Mask) -> Result<Tensor, ModelError> {
        let ([mean, variance], centred) = masked::moments(&widened(x)?, real)?;
        if let Some([running_mean, running_variance]) = self.running(pass)? {
            let _ = tch::no_grad(|| {
                // The running variance is the unbiased one. A single row has none: then neither statistic changes.
                let unbiased = real.count.f_div(&real.count.f_sub_scalar(1.0)?.f_clamp_min(1.0)?)?.f_mul(&variance)?;
                let momentum = real.count.f_gt(1.0)?.f_to_kind(Kind::Float)?.f_mul_scalar(MOMENTUM)?;
                let _ = running_mean.shallow_clone().f_lerp_tensor_(&mean, &momentum)?;
                running_variance.shallow_clone().f_lerp_tensor_(&unbiased, &momentum)
            })?;
        }
        let scale = variance.f_add_scalar(EPSILON)?.f_rsqrt()?.f_mul(&self.weight)?;
        Ok(centred.f_mul(&scale)?.f_add(&self.bias)?.f_to_kind(x.f_kind()?)?)
    }

    /// Another handle to the same layer.
    pub fn shallow_clone(&self) -> Self {
        Self {
            layer: self.layer,
            weight: self.weight.shallow_clone(),
            bias: self.bias.shallow_clone(),
            running_mean: self.running_mean.shallow_clone(),
            running_variance: self.running_variance.shallow_clone(),
            batches_seen: self.batches_seen.shallow_clone(),
        }
    }

    /// The trainable tensors.
    pub fn parameters(&self) -> [&Tensor; 2] {
        [&self.weight, &self.bias]
    }
}

/// ReLU and dropout, applied after every hidden layer without a normalisation. Uses the mask of `layer` in the current
/// step.
pub fn relu_dropout(
    x: &Tensor,
    layer: LayerId,
    dropout: f64,
    kernel: Backend,
    mode: Mode,
) -> Result<Tensor, ModelError> {
    if fused::applies(kernel, &[x]) {
        return Ok(activation::relu_dropout(x, mask_of(layer, dropout, mode)?, Pass::Forward)?);
    }
    composed_dropout(&x.f_relu()?, dropout, mode)
}

/// Applies ReLU and `mask`. The flag is true if the mask was applied; without fused passes, the caller must apply
/// dropout.
pub(super) fn masked_relu(
    x: &Tensor,
    pass: Pass,
    kernel: Backend,
    mask: Option<Dropout>,
) -> Result<(Tensor, bool), ModelError> {
    match fused::applies(kernel, &[x]) {
        true => Ok((activation::relu_dropout(x, mask, pass)?, true)),
        false => Ok((x.f_relu()?, false)),
    }
}

/// The dropout mask of `layer` in the current step; `None` without dropout.
pub(super) fn mask_of(layer: LayerId, probability: f64, mode: Mode) -> Result<Option<Dropout>, ModelError> {
    if mode == Mode::Evaluation || probability <= 0.0 {
        return Ok(None);
    }
    let mask = Dropout::new(probability, step_seed::of_layer(layer)?);
    Ok(mask.map(|mask| mask.after_rows(step_seed::rows_before(layer))))
}

/// Dropout with torch's generator.
pub(super) fn composed_dropout(x: &Tensor, dropout: f64, mode: Mode) -> Result<Tensor, ModelError> {
    Ok(if mode == Mode::Training && dropout > 0.0 { x.f_dropout(dropout, true)? } else { x.shallow_clone() })
}

/// Linear layers with ReLU and dropout in between, named by the indices of a PyTorch `Sequential`: 0, 3, 6, …
#[derive(Debug)]
pub struct Mlp {
    layers: Vec<(LayerId, Linear)>,
}

impl Mlp {
    /// Creates the layers between neighbouring `widths`.
    pub fn new(mut scope: Scope, widths: &[i64]) -> Result<Self, ModelError> {
        let layers = widths
            .windows(2)
            .enumerate()
            .map(|(index, pair)| {
                let scope = scope.sub(3 * index);
                Ok((scope.layer_id(), Linear::new(scope, pair[0], pair[1])?))
            })
            .collect::<Result<_, ModelError>>()?;
        Ok(Self { layers })
    }

    /// The same layers for a row per graph.
    pub fn of_graphs(mut self) -> Self {
        self.layers.iter_mut().for_each(|(layer, _)| *layer = layer.of_graphs());
        self
    }

    /// Applies the layers in double precision and evaluation mode: `[rows, widths[0]]` → `[rows, widths[last]]`.
    pub fn forward_double(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let mut x = x.f_to_kind(Kind::Double)?;
        for (index, (_, layer)) in self.layers.iter().enumerate() {
            if index > 0 {
                x = x.f_relu()?;
            }
            x = fused::double_linear::linear(&x, &layer.weight, &layer.bias)?;
        }
        Ok(x)
    }

    /// Applies the layers: `[rows, widths[0]]` → `[rows, widths[last]]`.
    pub fn forward(&self, x: &Tensor, dropout: f64, kernel: Backend, mode: Mode) -> Result<Tensor, ModelError> {
        let mut x = x.shallow_clone();
        for (index, (id, layer)) in self.layers.iter().enumerate() {
            if index > 0 {
                x = relu_dropout(&x, *id, dropout, kernel, mode)?;
            }
            x = layer.forward(&x, kernel)?;
        }
        Ok(x)
    }
}

/// Means over each graph's nodes: layers of `[num_nodes, columns]` → `[num_graphs, all columns]`, concatenated.
pub fn pool_layers(layers: &[&Tensor], batch: &Batch, kernel: Backend) -> Result<Tensor, ModelError> {
    if batch.real.is_none() && fused::applies(kernel, layers) {
        return Ok(pool::mean_per_graph(layers, &batch.node_pointers)?);
    }
    // Pooling each layer gives the same means as pooling their concatenation, which would have `num_nodes` rows instead
    // of `num_graphs`.
    let pooled = layers.iter().map(|x| mean_per_graph(x, batch)).collect::<Result<Vec<_>, _>>()?;
    Ok(Tensor::f_cat(&pooled, 1)?)
}

/// Mean over each graph's nodes, composed of torch's operations: `[num_nodes, columns]` → `[num_graphs, columns]`.
pub fn mean_per_graph(x: &Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
    // In half precision, neither sums nor counts of large graphs are exact.
    let (kind, x) = (x.f_kind()?, &widened(x)?);
    let counts = batch.node_pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?.f_to_kind(x.kind())?;
    // Only a padding graph can have no nodes: its mean is 0, not 0 / 0.
    let counts = if batch.real.is_some() { counts.f_clamp_min(1.0)? } else { counts };
    let sums = segments::sums(x, &batch.node_pointers, &batch.graph_of_node)?;
    let counts = if x.dim() == 2 { counts.f_unsqueeze(1)? } else { counts };
    Ok(sums.f_div(&counts)?.f_to_kind(kind)?)
}
