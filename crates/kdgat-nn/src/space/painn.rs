//! PaiNN: messages of scalars and of vectors (Schütt et al. 2021, "Equivariant message passing for the prediction of tensorial properties and
//! molecular spectra").

use tch::{Kind, TchError, Tensor};

use super::config::SpaceConfig;
use super::dense::{Dense, activated, product};
use super::messages::{directed, filtered};
use super::pairs::Pairs;
use super::radial::{basis, cosine_cutoff};
use crate::ModelError;
use crate::attention::Backend;
use crate::fused::smooth_activation::Smooth;
use crate::layers::Mode;
use crate::parameters::Scope;

/// Added to a squared length before its root, which has no derivative at 0.
const EPSILON: f64 = 1e-8;

/// The interactions of a PaiNN.
#[derive(Debug)]
pub struct PaiNN {
    kernel: Backend,
    columns: i64,
    /// Filters of all interactions, `[layers * 3 * columns, radial_functions]`.
    filters: Dense,
    interactions: Vec<[Dense; 2]>,
    mixings: Vec<Mixing>,
}

/// Exchange between the scalars and the vectors of a node.
#[derive(Debug)]
struct Mixing {
    kernel: Backend,
    context: [Dense; 2],
    /// Maps the columns of vectors, without a bias.
    channels: Dense,
}

/// Rows of the nodes.
#[derive(Debug)]
pub struct Features {
    /// `[num_nodes, columns]`: scalars.
    pub scalars: Tensor,
    /// `[num_nodes, 3, columns]`: vectors; `None` before the first interaction, where they are zero.
    pub vectors: Option<Tensor>,
}

/// The pairs as PaiNN reads them.
struct Messages<'a> {
    /// `[num_lines, radial_functions + 1]`: the radial basis times the cutoff function, and that function.
    functions: Tensor,
    /// `[num_lines, 3]`: unit vectors.
    directions: &'a Tensor,
    pairs: &'a Pairs,
    kernel: Backend,
}

impl PaiNN {
    /// Builds `layers` interactions of `columns` columns.
    pub fn new(
        scope: &mut Scope,
        config: &SpaceConfig,
        [layers, columns]: [i64; 2],
        kernel: Backend,
    ) -> Result<Self, ModelError> {
        let filters = Dense::new(scope.sub("filter_net"), [config.radial_functions, layers * 3 * columns], kernel)?;
        let context = |scope: &mut Scope, name: &str, inputs: i64| -> Result<[Dense; 2], ModelError> {
            let mut net = scope.sub(name);
            Ok([
                Dense::new(net.sub(0), [inputs, columns], kernel)?,
                Dense::new(net.sub(1), [columns, 3 * columns], kernel)?,
            ])
        };
        let (mut interactions, mut mixings) = (Vec::new(), Vec::new());
        for index in 0..layers {
            interactions.push(context(&mut scope.sub("interactions").sub(index), "interatomic_context_net", columns)?);
            let mut mixing = scope.sub("mixing");
            let mut mixing = mixing.sub(index);
            mixings.push(Mixing {
                kernel,
                context: context(&mut mixing, "intraatomic_context_net", 2 * columns)?,
                channels: Dense::without_bias(mixing.sub("mu_channel_mix"), [columns, 2 * columns], kernel)?,
            });
        }
        Ok(Self { kernel, columns, filters, interactions, mixings })
    }

    /// Rows of the nodes after all interactions. Distances of the lines are `[num_lines, 1]`, their directions `[num_lines, 3]`.
    pub fn forward(
        &self,
        config: &SpaceConfig,
        (scalars, distances, directions): (Tensor, &Tensor, &Tensor),
        pairs: &Pairs,
        mode: Mode,
    ) -> Result<Features, ModelError> {
        let kernel = self.kernel;
        let fading = cosine_cutoff(config, distances)?;
        let functions = Tensor::f_cat(&[basis(config, distances)?.f_mul(&fading)?, fading], 1)?;
        let messages = Messages { functions, directions, pairs, kernel };
        let weights = self.filters.with_bias_column(mode)?;
        let mut features = Features { scalars, vectors: None };
        for (index, (context, mixing)) in self.interactions.iter().zip(&self.mixings).enumerate() {
            let first = index as i64 * 3 * self.columns;
            let filters = |part: i64| {
                let rows = weights.f_narrow(0, first + part * self.columns, self.columns)?;
                product(&messages.functions, &rows, None, kernel)
            };
            features = messages.exchange(features, context, filters, mode)?;
            features = mixing.forward(features, mode)?;
        }
        Ok(features)
    }
}

impl Messages<'_> {
    /// Adds the messages of a node's neighbours to its scalars and vectors. `filters` computes the filters of the scalars, of the directions,
    /// and of the neighbours' vectors, `[num_lines, columns]` each.
    fn exchange(
        &self,
        Features { scalars, vectors }: Features,
        context: &[Dense; 2],
        filters: impl Fn(i64) -> Result<Tensor, ModelError>,
        mode: Mode,
    ) -> Result<Features, ModelError> {
        let [of_scalars, of_directions, of_vectors] = thirds(&context_net(context, &scalars, mode, self.kernel)?)?;
        let sums = filtered(&filters(0)?, &of_scalars.f_unsqueeze(1)?, self.pairs, self.kernel)?;
        let turned = directed(&filters(1)?, &of_directions, self.directions, self.pairs, self.kernel)?;
        let vectors = match vectors {
            None => turned,
            Some(vectors) => {
                let rows = vectors.f_mul(&of_vectors.f_unsqueeze(1)?)?;
                let passed = filtered(&filters(2)?, &rows, self.pairs, self.kernel)?;
                vectors.f_add(&turned)?.f_add(&passed)?
            }
        };
        Ok(Features { scalars: scalars.f_add(&sums.f_squeeze_dim(1)?)?, vectors: Some(vectors) })
    }
}

impl Mixing {
    fn forward(&self, features: Features, mode: Mode) -> Result<Features, ModelError> {
        let Features { scalars, vectors: Some(vectors) } = features else { return Ok(features) };
        let columns = scalars.size()[1];
        let mixed = self.channels.forward(&vectors.f_reshape([-1, columns])?, mode)?;
        let mixed = mixed.f_view([-1, 3, 2 * columns])?;
        let (left, right) = (mixed.f_narrow(2, 0, columns)?, mixed.f_narrow(2, columns, columns)?);
        let over_axes = |products: Tensor| products.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float);
        let lengths = over_axes(left.f_square()?)?.f_add_scalar(EPSILON)?.f_sqrt()?;
        let inputs = Tensor::f_cat(&[&scalars, &lengths], 1)?;
        let [own, of_vectors, of_products] = thirds(&context_net(&self.context, &inputs, mode, self.kernel)?)?;
        let products = of_products.f_mul(&over_axes(left.f_mul(&right)?)?)?;
        Ok(Features {
            scalars: scalars.f_add(&own)?.f_add(&products)?,
            vectors: Some(vectors.f_add(&right.f_mul(&of_vectors.f_unsqueeze(1)?)?)?),
        })
    }
}

/// W₂ silu(W₁ x).
fn context_net([first, second]: &[Dense; 2], x: &Tensor, mode: Mode, kernel: Backend) -> Result<Tensor, ModelError> {
    second.forward(&activated(&first.forward(x, mode)?, Smooth::Silu, kernel)?, mode)
}

/// The columns in three parts.
fn thirds(x: &Tensor) -> Result<[Tensor; 3], TchError> {
    let columns = x.size()[1] / 3;
    Ok([x.f_narrow(1, 0, columns)?, x.f_narrow(1, columns, columns)?, x.f_narrow(1, 2 * columns, columns)?])
}
