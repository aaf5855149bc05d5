//! Messages of angles or dihedrals to the scalars of a node.

use tch::Tensor;

use super::bonds::BondPaths;
use super::parts::IrrepsLinear;
use super::representations::Irreps;
use crate::attention::Backend;
use crate::fused::smooth_activation::Smooth;
use crate::layers::Mode;
use crate::parameters::Scope;
use crate::recompute::made_again;
use crate::space::dense::{Dense, activated};
use crate::{ModelError, segments};

/// `W · mean_p MLP(x_first(p), x_last(p), cos p, f_p)` over the paths p that a node receives, with the scalars x of the path's first and last node
/// and the path's parameters f, if the data list any (after the encoder of binding pockets of RNA-3E-FFI, whose paths have parameters of a force
/// field instead of the cosine).
#[derive(Debug)]
pub struct PathMessages {
    mlp: [Dense; 3],
    output: IrrepsLinear,
    kernel: Backend,
}

impl PathMessages {
    /// Creates messages from `input` scalars to `output` scalars, of paths with so many attributes.
    pub fn new(
        mut scope: Scope,
        [input, output, attributes]: [usize; 3],
        hidden: i64,
        kernel: Backend,
    ) -> Result<Self, ModelError> {
        let (columns, read) = (input as i64, (2 * input + attributes) as i64);
        let mlp = Dense::chain(scope.sub("mlp"), [read, hidden, hidden, columns], kernel)?;
        let output =
            IrrepsLinear::new(scope.sub("output"), [&Irreps::scalars(input), &Irreps::scalars(output)], kernel)?;
        Ok(Self { mlp, output, kernel })
    }

    /// Messages to the nodes, `[num_nodes, output]`, from their scalars, `[num_nodes, input]`; 0 for a node that receives no path. `pieces` are
    /// the [pieces](BondPaths::pieces) of the paths, whose rows exist one piece after the other; with `once`, derivatives of derivatives are
    /// not needed, and the backward makes the rows again.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn forward(
        &self,
        scalars: &Tensor,
        pieces: &[BondPaths],
        (mode, once): (Mode, bool),
    ) -> Result<Tensor, ModelError> {
        let means = pieces.iter().map(|piece| match mode == Mode::Training && once {
            true => self.recomputed(scalars, piece),
            false => means_of_paths(&self.mlp, [scalars, &piece.attributes], piece, (mode, self.kernel)),
        });
        let means = Tensor::f_cat(&means.collect::<Result<Vec<_>, _>>()?, 0)?;
        self.output.forward(&means, mode)
    }

    fn recomputed(&self, scalars: &Tensor, piece: &BondPaths) -> Result<Tensor, ModelError> {
        let parameters: Vec<&Tensor> = self.mlp.iter().flat_map(Dense::parameters).collect();
        let (own, own_piece, kernel) =
            (self.mlp.each_ref().map(Dense::shallow_clone), piece.shallow_clone(), self.kernel);
        let body = move |inputs: &[Tensor]| {
            means_of_paths(&own, [&inputs[0], &inputs[1]], &own_piece, (Mode::Training, kernel))
        };
        made_again(body, &[scalars, &piece.attributes], &parameters)
    }
}

/// Means of the network's rows over the paths that each node receives. Inputs: the scalars of all nodes, and the paths' attributes.
fn means_of_paths(
    mlp: &[Dense; 3],
    [scalars, attributes]: [&Tensor; 2],
    paths: &BondPaths,
    (mode, kernel): (Mode, Backend),
) -> Result<Tensor, ModelError> {
    let [first, last] = paths.ends.each_ref().map(|nodes| scalars.f_index_select(0, nodes));
    let mut rows = Tensor::f_cat(&[first?, last?, attributes.f_to_kind(scalars.f_kind()?)?], 1)?;
    let [hidden @ .., output] = mlp;
    for layer in hidden {
        rows = activated(&layer.forward(&rows, mode)?, Smooth::Silu, kernel)?;
    }
    let sums = segments::sums(&output.forward(&rows, mode)?, &paths.pointers, &paths.receivers)?;
    let counts = paths.pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?.f_clamp_min(1)?;
    Ok(sums.f_div(&counts.f_to_kind(sums.f_kind()?)?.f_unsqueeze(1)?)?)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::parameters::FreshParameters;

    /// Five nodes, of which the third receives no path; paths have so many attributes.
    fn paths(columns: i64) -> BondPaths {
        let integers = |values: &[i64]| Tensor::from_slice(values);
        BondPaths {
            receivers: integers(&[0, 0, 0, 1, 3, 4, 4]),
            pointers: integers(&[0, 3, 4, 4, 5, 7]),
            ends: [integers(&[1, 2, 3, 0, 4, 2, 0]), integers(&[2, 1, 4, 2, 0, 3, 1])],
            attributes: Tensor::linspace(-1.0, 1.0, 7 * columns, (Kind::Float, Device::Cpu)).view([7, columns]),
        }
    }

    /// Pieces and rows that are made again change neither messages nor gradients, and messages are means.
    #[test]
    fn messages_are_the_same_in_pieces() {
        [1, 3].into_iter().for_each(expect_the_same_in_pieces);
    }

    fn expect_the_same_in_pieces(attributes: i64) {
        let paths = || paths(attributes);
        let mut fresh = FreshParameters::new(3, Device::Cpu);
        let messages =
            PathMessages::new(Scope::root(&mut fresh), [6, 4, attributes as usize], 8, Backend::Auto).unwrap();
        let tensors = fresh.into_tensors();
        let scalars = Tensor::arange(30, (Kind::Float, Device::Cpu)).sin().view([5, 6]).set_requires_grad(true);
        let answer = |once: bool, most_paths: i64| {
            let found =
                messages.forward(&scalars, &paths().pieces(most_paths).unwrap(), (Mode::Training, once)).unwrap();
            let variables: Vec<&Tensor> =
                std::iter::once(&scalars).chain(tensors.iter().map(|named| &named.tensor)).collect();
            let gradients = Tensor::run_backward(&[found.square().sum(Kind::Float)], &variables, false, false);
            (found.detach(), gradients)
        };
        let (whole, gradients) = answer(false, 100);
        assert_eq!(whole.size(), [5, 4]);
        assert!(whole.get(2).abs().max().double_value(&[]) == 0.0);
        for (once, most_paths) in [(true, 100), (true, 3), (false, 1)] {
            let (found, others) = answer(once, most_paths);
            assert!(found == whole, "{once} {most_paths}: other bits");
            for (one, other) in gradients.iter().zip(&others) {
                assert!((one - other).abs().max().double_value(&[]) < 1e-6, "{once} {most_paths}");
            }
        }
        // The first node's mean is that of its three paths alone.
        let alone = |first: i64, last: i64, at: i64| {
            let rows =
                Tensor::cat(&[scalars.get(first), scalars.get(last), paths().attributes.get(at)], 0).view([1, -1]);
            let dense = |rows: &Tensor, index: usize| messages.mlp[index].forward(rows, Mode::Evaluation).unwrap();
            dense(&dense(&dense(&rows, 0).silu(), 1).silu(), 2)
        };
        let mean = (alone(1, 2, 0) + alone(2, 1, 1) + alone(3, 4, 2)) / 3.0;
        let expected = messages.output.forward(&mean, Mode::Evaluation).unwrap();
        assert!((expected - whole.narrow(0, 0, 1)).abs().max().double_value(&[]) < 1e-5);
    }
}
