//! Messages of angles or dihedrals to the scalars of a node.

use tch::Tensor;

use super::bonds::BondPaths;
use super::parts::IrrepsLinear;
use super::representations::Irreps;
use crate::attention::Backend;
use crate::fused::smooth_activation::Smooth;
use crate::layers::Mode;
use crate::parameters::{Init, Scope};
use crate::space::dense::{Dense, activated};
use crate::{ModelError, segments};

/// `W · mean_p MLP(x_first(p), x_last(p), cos p)` over the paths p that a node receives, with the scalars x of the path's first and last node
/// (after the encoder of binding pockets of RNA-3E-FFI, whose paths have parameters of a force field instead of the cosine).
#[derive(Debug)]
pub struct PathMessages {
    mlp: [Dense; 3],
    output: IrrepsLinear,
    kernel: Backend,
}

impl PathMessages {
    /// Creates messages from `input` scalars to `output` scalars.
    pub fn new(
        mut scope: Scope,
        [input, output]: [usize; 2],
        hidden: i64,
        kernel: Backend,
    ) -> Result<Self, ModelError> {
        let mut mlp = scope.sub("mlp");
        let mut dense = |index: i64, input: i64, output: i64| {
            Dense::with_init(mlp.sub(index), [input, output], Init::Linear { fan_in: input }, kernel)
        };
        let (columns, cosine) = (input as i64, 1);
        let mlp = [dense(0, 2 * columns + cosine, hidden)?, dense(2, hidden, hidden)?, dense(4, hidden, columns)?];
        let output =
            IrrepsLinear::new(scope.sub("output"), [&Irreps::scalars(input), &Irreps::scalars(output)], kernel)?;
        Ok(Self { mlp, output, kernel })
    }

    /// Messages to the nodes, `[num_nodes, output]`, from their scalars, `[num_nodes, input]`; 0 for a node that receives no path.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn forward(&self, scalars: &Tensor, paths: &BondPaths, mode: Mode) -> Result<Tensor, ModelError> {
        let [first, last] = paths.ends.each_ref().map(|nodes| scalars.f_index_select(0, nodes));
        let mut rows = Tensor::f_cat(&[first?, last?, paths.cosines.f_to_kind(scalars.f_kind()?)?], 1)?;
        let [hidden @ .., output] = &self.mlp;
        for layer in hidden {
            rows = activated(&layer.forward(&rows, mode)?, Smooth::Silu, self.kernel)?;
        }
        let sums = segments::sums(&output.forward(&rows, mode)?, &paths.pointers, &paths.receivers)?;
        let counts = paths.pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?.f_clamp_min(1)?;
        let means = sums.f_div(&counts.f_to_kind(sums.f_kind()?)?.f_unsqueeze(1)?)?;
        self.output.forward(&means, mode)
    }
}
