//! The layers of a network of representations for nodes in space.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::edges::Edges;
use super::layer::{EdgeFeatures, IrrepsLayer, LayerOptions};
use super::parts::{harmonics, invariants, polynomial_cutoff};
use super::representations::Irreps;
use crate::ModelError;
use crate::attention::Backend;
use crate::layers::Mode;
use crate::parameters::Scope;
use crate::space::radial::basis;
use crate::space::{Pairs, RadialBasis, SpaceConfig};

/// Settings of a network of representations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IrrepsConfig {
    /// Representations of a node.
    pub irreps: Irreps,
    /// Columns of the hidden layers of radial networks.
    pub radial_hidden: i64,
    /// Mean number of neighbours of a node in the training set.
    pub neighbours: f64,
    /// True if layers have a gate.
    pub gate: bool,
    /// True if layers end with a layer norm.
    pub layer_norm: bool,
}

impl IrrepsConfig {
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let refuse = |field, found: String, expected| Err(ModelError::Architecture { field, found, expected });
        if !(1..=4096).contains(&self.radial_hidden) {
            return refuse("radial_hidden", self.radial_hidden.to_string(), "must be from 1 to 4096");
        }
        if !(self.neighbours.is_finite() && self.neighbours >= 1.0) {
            return refuse("neighbours", self.neighbours.to_string(), "must be a number of at least 1");
        }
        if self.irreps.columns() > 100_000 {
            let found = format!("{} with {} columns", self.irreps, self.irreps.columns());
            return refuse("irreps", found, "must have at most 100000 columns");
        }
        Ok(())
    }

    fn options(&self) -> LayerOptions {
        LayerOptions {
            radial_hidden: self.radial_hidden,
            neighbours: self.neighbours,
            self_connection: true,
            gate: self.gate,
            residual: true,
            layer_norm: self.layer_norm,
        }
    }
}

/// Layers from scalars to representations, whose invariants a head reads.
#[derive(Debug)]
pub struct IrrepsNetwork {
    layers: Vec<IrrepsLayer>,
    irreps: Irreps,
}

impl IrrepsNetwork {
    /// Builds `layers` layers; the first one reads scalars alone.
    pub fn new(
        scope: &mut Scope,
        space: &SpaceConfig,
        irreps: &IrrepsConfig,
        layers: i64,
        kernel: Backend,
    ) -> Result<Self, ModelError> {
        let of_nodes = &irreps.irreps;
        let scalars = Irreps::scalars(of_nodes.num_scalars());
        let mut sub = scope.sub("interactions");
        let layer = |index: i64| {
            let input = if index == 0 { &scalars } else { of_nodes };
            IrrepsLayer::new(sub.sub(index), [input, of_nodes], space.radial_functions, irreps.options(), kernel)
        };
        Ok(Self { layers: (0..layers).map(layer).collect::<Result<_, _>>()?, irreps: of_nodes.clone() })
    }

    /// Invariants of the nodes after all layers, `[num_nodes, features]`: scalars, and lengths of the other representations. Scalars of the
    /// nodes are `[num_nodes, scalars]`, distances of the lines `[num_lines, 1]` and directions `[num_lines, 3]`.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn forward(
        &self,
        space: &SpaceConfig,
        (scalars, distances, directions): (Tensor, &Tensor, &Tensor),
        pairs: &Pairs,
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        let radial = match space.basis {
            RadialBasis::Gaussian => basis(space, distances)?,
            RadialBasis::Bessel => basis(space, distances)?.f_mul_scalar((2.0 / space.cutoff).sqrt())?,
        };
        let (fading, harmonics) = (polynomial_cutoff(space.cutoff, distances)?, harmonics(directions)?);
        let edges = Edges::of_pairs(pairs)?;
        let features = EdgeFeatures { edges: &edges, radial: &radial, fading: Some(&fading), harmonics: &harmonics };
        let mut rows = scalars;
        for layer in &self.layers {
            rows = layer.forward(&rows, &features, (mode, !space.forces))?;
        }
        Ok(invariants(&self.irreps, &rows)?)
    }
}
