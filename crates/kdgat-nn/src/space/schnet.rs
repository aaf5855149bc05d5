//! SchNet: continuous-filter convolutions (Schütt et al. 2018, "SchNet – A deep learning architecture for molecules and materials").

use std::f64::consts::LN_2;

use tch::Tensor;

use super::config::SpaceConfig;
use super::dense::Dense;
use super::messages::filtered;
use super::pairs::Pairs;
use super::radial::{basis, cosine_cutoff};
use crate::ModelError;
use crate::attention::Backend;
use crate::layers::Mode;
use crate::parameters::Scope;

/// The interactions of a SchNet.
#[derive(Debug)]
pub struct SchNet {
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
    pub fn new(scope: &mut Scope, config: &SpaceConfig, layers: i64, columns: i64) -> Result<Self, ModelError> {
        let mut interactions = scope.sub("interactions");
        let interaction = |index| {
            let mut scope = interactions.sub(index);
            Ok(Interaction {
                values: Dense::without_bias(scope.sub("in2f"), columns, columns)?,
                filters: [
                    Dense::new(scope.sub("filter_network").sub(0), config.radial_functions, columns)?,
                    Dense::new(scope.sub("filter_network").sub(1), columns, columns)?,
                ],
                outputs: [
                    Dense::new(scope.sub("f2out").sub(0), columns, columns)?,
                    Dense::new(scope.sub("f2out").sub(1), columns, columns)?,
                ],
            })
        };
        Ok(Self { interactions: (0..layers).map(interaction).collect::<Result<_, ModelError>>()? })
    }

    /// Rows of the nodes after all interactions, `[num_nodes, columns]`; distances of the lines are `[num_lines, 1]`.
    pub fn forward(
        &self,
        config: &SpaceConfig,
        (x, distances): (Tensor, &Tensor),
        (pairs, kernel): (&Pairs, Backend),
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        let (functions, fading) = (basis(config, distances)?, cosine_cutoff(config, distances)?);
        let mut x = x;
        for Interaction { values, filters: [first, second], outputs: [hidden, last] } in &self.interactions {
            let filters = second.forward(&shifted_softplus(&first.forward(&functions, mode)?)?, mode)?;
            let filters = filters.f_mul(&fading)?;
            let sums =
                filtered(&filters, &values.forward(&x, mode)?.f_unsqueeze(1)?, pairs, kernel)?.f_squeeze_dim(1)?;
            let update = last.forward(&shifted_softplus(&hidden.forward(&sums, mode)?)?, mode)?;
            x = x.f_add(&update)?;
        }
        Ok(x)
    }
}

/// ln(1 + eˣ) − ln 2.
fn shifted_softplus(x: &Tensor) -> Result<Tensor, ModelError> {
    Ok(x.f_softplus()?.f_sub_scalar(LN_2)?)
}
