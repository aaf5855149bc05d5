//! SchNet: continuous-filter convolutions (Schütt et al. 2018, "SchNet – A deep learning architecture for molecules and materials").

use tch::Tensor;

use super::config::SpaceConfig;
use super::dense::{Dense, activated};
use super::messages::filtered;
use super::pairs::Pairs;
use super::radial::{Radial, basis, cosine_cutoff};
use crate::ModelError;
use crate::attention::Backend;
use crate::fused::linear;
use crate::fused::pair_filters::pair_filters;
use crate::fused::smooth_activation::Smooth;
use crate::layers::Mode;
use crate::parameters::Scope;

/// The interactions of a SchNet.
#[derive(Debug)]
pub struct SchNet {
    kernel: Backend,
    interactions: Vec<Interaction>,
}

/// x_i + W₂ s(W₁ Σ_j F(d_ij) ∘ V x_j), with the shifted softplus s and a filter network F.
#[derive(Debug)]
struct Interaction {
    /// V, without a bias.
    values: Dense,
    filters: [Dense; 2],
    /// W₁ and W₂.
    outputs: [Dense; 2],
}

impl SchNet {
    /// Builds `layers` interactions of `columns` columns.
    pub fn new(
        scope: &mut Scope,
        config: &SpaceConfig,
        [layers, columns]: [i64; 2],
        kernel: Backend,
    ) -> Result<Self, ModelError> {
        let mut interactions = scope.sub("interactions");
        let interaction = |index| {
            let mut scope = interactions.sub(index);
            Ok(Interaction {
                values: Dense::without_bias(scope.sub("in2f"), [columns, columns], kernel)?,
                filters: [
                    Dense::new(scope.sub("filter_network").sub(0), [config.radial_functions, columns], kernel)?,
                    Dense::new(scope.sub("filter_network").sub(1), [columns, columns], kernel)?,
                ],
                outputs: [
                    Dense::new(scope.sub("f2out").sub(0), [columns, columns], kernel)?,
                    Dense::new(scope.sub("f2out").sub(1), [columns, columns], kernel)?,
                ],
            })
        };
        Ok(Self { kernel, interactions: (0..layers).map(interaction).collect::<Result<_, ModelError>>()? })
    }

    /// Rows of the nodes after all interactions, `[num_nodes, columns]`; distances of the lines are `[num_lines, 1]`.
    pub fn forward(
        &self,
        config: &SpaceConfig,
        (x, distances): (Tensor, &Tensor),
        pairs: &Pairs,
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        let (mut x, kernel) = (x, self.kernel);
        let filters = Filters::new(config, distances, (&self.interactions, kernel))?;
        for Interaction { values, filters: layers, outputs: [hidden, last] } in &self.interactions {
            let filters = filters.of(layers, mode)?;
            let sums =
                filtered(&filters, &values.forward(&x, mode)?.f_unsqueeze(1)?, pairs, kernel)?.f_squeeze_dim(1)?;
            let inner = activated(&hidden.forward(&sums, mode)?, Smooth::ShiftedSoftplus, kernel)?;
            x = x.f_add(&last.forward(&inner, mode)?)?;
        }
        Ok(x)
    }
}

/// The filters of the lines, in one pass or composed of torch's operations; both are the same up to rounding.
enum Filters<'a> {
    Fused { radial: Radial, distances: &'a Tensor },
    Composed { functions: Tensor, fading: Tensor, kernel: Backend },
}

impl<'a> Filters<'a> {
    fn new(
        config: &SpaceConfig,
        distances: &'a Tensor,
        (interactions, kernel): (&[Interaction], Backend),
    ) -> Result<Self, ModelError> {
        let mut fused = true;
        for layer in interactions.iter().flat_map(|interaction| &interaction.filters) {
            fused &= linear::applies(kernel, distances, layer.weight())?;
        }
        if fused {
            let radial = Radial::constants(config, distances, distances.requires_grad())?;
            return Ok(Self::Fused { radial, distances });
        }
        let (functions, fading) = (basis(config, distances)?, cosine_cutoff(config, distances)?);
        Ok(Self::Composed { functions, fading, kernel })
    }

    /// `[num_lines, columns]`
    fn of(&self, [first, second]: &[Dense; 2], mode: Mode) -> Result<Tensor, ModelError> {
        match self {
            Self::Fused { radial, distances } => {
                let ([w1, b1], [w2, b2]) = (first.tensors(mode)?, second.tensors(mode)?);
                Ok(pair_filters(radial, distances, [&w1, &b1, &w2, &b2])?)
            }
            Self::Composed { functions, fading, kernel } => {
                let inner = activated(&first.forward(functions, mode)?, Smooth::ShiftedSoftplus, *kernel)?;
                Ok(second.forward(&inner, mode)?.f_mul(fading)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kdgat_torch::autograd::recorded_gradients;
    use tch::{Device, Kind};

    use super::super::config::RadialBasis;
    use super::*;
    use crate::FreshParameters;

    /// Filters, their derivatives by the distances, and gradients of a loss of both, in one pass and composed; some distances are beyond the
    /// cutoff.
    #[test]
    fn filters_in_one_pass_are_the_composed_ones() {
        let distances = Tensor::linspace(0.3, 5.5, 333, (Kind::Float, Device::Cpu)).view([-1, 1]);
        let weights = Tensor::randn([333, 24], (Kind::Float, Device::Cpu));
        for (basis, forces) in
            [(RadialBasis::Gaussian, true), (RadialBasis::Bessel, true), (RadialBasis::Gaussian, false)]
        {
            let config = SpaceConfig {
                cutoff: 5.0,
                kinds: 3,
                features: false,
                basis,
                radial_functions: 7,
                forces,
                irreps: None,
            };
            let of = |kernel: Backend| {
                let mut fresh = FreshParameters::new(7, Device::Cpu);
                let network = SchNet::new(&mut Scope::root(&mut fresh), &config, [1, 24], kernel).unwrap();
                let distances = distances.copy().set_requires_grad(forces);
                let filters = Filters::new(&config, &distances, (&network.interactions, kernel)).unwrap();
                assert_eq!(matches!(filters, Filters::Fused { .. }), kernel == Backend::Fused);
                let filters = filters.of(&network.interactions[0].filters, Mode::Training).unwrap();
                let sum = (&filters * &weights).sum(Kind::Float);
                let (mut found, mut loss) = (vec![filters.detach()], &sum / 100.0);
                if forces {
                    let slopes = recorded_gradients(&[&sum], &[&distances]).unwrap().remove(0).unwrap();
                    found.push(slopes.detach());
                    loss += slopes.square().mean(Kind::Float);
                }
                loss.backward();
                let layers = fresh.into_tensors().into_iter().filter(|named| named.name.contains("filter_network"));
                found.extend(layers.map(|named| named.tensor.grad()));
                found
            };
            let (found, expected) = (of(Backend::Fused), of(Backend::Composed));
            assert_eq!((found.len(), expected.len()), if forces { (6, 6) } else { (5, 5) });
            for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let scale = expected.abs().max().double_value(&[]).max(1.0);
                let error = (found - expected).abs().max().double_value(&[]) / scale;
                assert!(found.size() == expected.size() && error < 1e-5, "{basis:?}, part {part}: {error}");
            }
        }
    }
}
