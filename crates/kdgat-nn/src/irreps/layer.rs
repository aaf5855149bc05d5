//! A layer of representations: messages of neighbours, a node's own map, gate, residual and layer norm.

use std::sync::Arc;

use kdgat_torch::autocast::widened;
use tch::Tensor;

use super::coupling::Coupling;
use super::edges::Edges;
use super::parts::{Gate, IrrepsLinear, IrrepsNorm};
use super::product::sum_of_products;
use super::representations::Irreps;
use crate::ModelError;
use crate::attention::Backend;
use crate::fused::smooth_activation::Smooth;
use crate::layers::Mode;
use crate::parameters::Scope;
use crate::recompute::made_again;
use crate::space::dense::{Dense, activated};

/// Parts of a layer that may be left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerOptions {
    /// Columns of the radial network's two hidden layers.
    pub radial_hidden: i64,
    /// Messages are divided by its root.
    pub neighbours: f64,
    /// Add a linear map of the node's own row.
    pub self_connection: bool,
    /// Apply a gate.
    pub gate: bool,
    /// Add the input, if it has the representations of the output.
    pub residual: bool,
    /// Apply a layer norm.
    pub layer_norm: bool,
}

/// `norm(x + gate(C x + Σ_e (L x)_source(e) ⊗ Y_e · R(e) / √neighbours))` with linear maps C and L, and a radial network R that gives the weights
/// of each product.
#[derive(Debug)]
pub struct IrrepsLayer {
    coupling: Arc<Coupling>,
    kernel: Backend,
    /// Order of the weights, [`Coupling::order`].
    order: Tensor,
    linear: IrrepsLinear,
    radial: [Dense; 3],
    self_connection: Option<IrrepsLinear>,
    gate: Option<Gate>,
    norm: Option<IrrepsNorm>,
    is_residual: bool,
    factor: f64,
}

/// The edges of a layer and their features.
pub struct EdgeFeatures<'a> {
    /// The edges.
    pub edges: &'a Edges,
    /// `[lines, radial_inputs]`: functions of the length, and attributes.
    pub radial: &'a Tensor,
    /// `[lines, 1]`: a factor of all weights, by which messages fade out with the length; `None`: 1.
    pub fading: Option<&'a Tensor>,
    /// `[lines, 9]`: spherical harmonics of the direction.
    pub harmonics: &'a Tensor,
}

impl IrrepsLayer {
    /// Creates a layer from `input` to `output`, of edges with `radial_inputs` features.
    pub fn new(
        mut scope: Scope,
        [input, output]: [&Irreps; 2],
        radial_inputs: i64,
        options: LayerOptions,
        kernel: Backend,
    ) -> Result<Self, ModelError> {
        let gate = options.gate.then(|| Gate::new(output, kernel));
        let before_gate = gate.as_ref().map_or_else(|| output.clone(), Gate::input);
        // Before the coupling, whose size grows with the cube of the features: a file without a weight of this shape is refused here.
        let linear = IrrepsLinear::new(scope.sub("linear_in"), [input, input], kernel)?;
        let coupling = Coupling::new(input, &before_gate);
        let (hidden, weights) = (options.radial_hidden, coupling.order.len() as i64);
        let radial = Dense::chain(scope.sub("radial_mlp"), [radial_inputs, hidden, hidden, weights], kernel)?;
        let device = radial[0].weight().device();
        let self_connection = match options.self_connection {
            true => Some(IrrepsLinear::new(scope.sub("self_connection"), [input, &before_gate], kernel)?),
            false => None,
        };
        let norm = match options.layer_norm {
            true => Some(IrrepsNorm::new(scope.sub("layer_norm"), output)?),
            false => None,
        };
        Ok(Self {
            order: Tensor::f_from_slice(&coupling.order)?.f_to_device(device)?,
            coupling: Arc::new(coupling),
            kernel,
            linear,
            radial,
            self_connection,
            gate,
            norm,
            is_residual: options.residual && input == output,
            factor: 1.0 / options.neighbours.sqrt(),
        })
    }

    /// Rows of the nodes after the layer. With `once`, derivatives of derivatives are not needed, and the radial network's activations are
    /// computed again in the backward instead of stored.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn forward(
        &self,
        x: &Tensor,
        features: &EdgeFeatures,
        (mode, once): (Mode, bool),
    ) -> Result<Tensor, ModelError> {
        let values = self.linear.forward(x, mode)?;
        let radial = self.radial_features(features, (mode, once))?;
        let weights = self.radial[2].with_bias_column(mode)?.f_index_select(0, &self.order)?;
        let arguments = [&radial, &values, features.harmonics, &weights];
        let messages = sum_of_products(&self.coupling, features.edges, arguments, self.kernel)?;
        let mut rows = messages.f_mul_scalar(self.factor)?;
        if let Some(map) = &self.self_connection {
            rows = rows.f_add(&widened(&map.forward(x, mode)?)?)?;
        }
        if let Some(gate) = &self.gate {
            rows = gate.forward(&rows)?;
        }
        if self.is_residual {
            rows = rows.f_add(x)?;
        }
        match &self.norm {
            Some(norm) => norm.forward(&rows, mode),
            None => Ok(rows),
        }
    }

    /// `[lines, radial_hidden + 1]`: the last hidden layer of the radial network, and a column of ones for the bias.
    fn radial_features(&self, features: &EdgeFeatures, (mode, once): (Mode, bool)) -> Result<Tensor, ModelError> {
        let [first, second, _] = &self.radial;
        let inputs: Vec<Tensor> =
            [Some(features.radial), features.fading].into_iter().flatten().map(Tensor::shallow_clone).collect();
        if mode == Mode::Evaluation || !once {
            return hidden([first, second], &inputs, mode, self.kernel);
        }
        let parameters: Vec<&Tensor> = first.parameters().chain(second.parameters()).collect();
        let own = [first.shallow_clone(), second.shallow_clone()];
        let kernel = self.kernel;
        let body = move |inputs: &[Tensor]| hidden([&own[0], &own[1]], inputs, mode, kernel);
        made_again(body, &inputs.iter().collect::<Vec<_>>(), &parameters)
    }
}

/// `[lines, columns + 1]` of functions of the length and, if messages fade out, the factor.
fn hidden([first, second]: [&Dense; 2], inputs: &[Tensor], mode: Mode, kernel: Backend) -> Result<Tensor, ModelError> {
    let of = |layer: &Dense, x: &Tensor| activated(&layer.forward(x, mode)?, Smooth::Silu, kernel);
    let rows = of(second, &of(first, &inputs[0])?)?;
    let ones = Tensor::f_ones([rows.size()[0], 1], (rows.f_kind()?, rows.device()))?;
    let rows = Tensor::f_cat(&[rows, ones], 1)?;
    Ok(match inputs.get(1) {
        Some(fading) => rows.f_mul(fading)?,
        None => rows,
    })
}
