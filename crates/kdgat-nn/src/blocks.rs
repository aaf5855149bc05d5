//! Networks as sequences of blocks, of which a forward needs one at a time.
//!
//! A trainable network holds all of its blocks. A frozen one builds each around tensors that are there for its computation alone, perhaps
//! for several batches, and lets them go. Both run [`Block::forward`], so that a network's forward stands once.

use std::cell::OnceCell;
use std::ops::Range;

use kdgat_graph::{Batch, EdgeScaling};
use tch::{Device, Kind, Tensor};

use super::attention::Backend;
use super::layers::Mode;
use super::parameters::{Init, Role, Scope, TensorSource};
use super::{EdgeInput, ModelError};

/// A part of a network between two points at which its state is a list of tensors.
pub trait Block: Sized {
    /// Architecture of the network.
    type Config;

    /// Names of the network's blocks, in their order.
    fn names(config: &Self::Config) -> Vec<String>;

    /// Scaling of the edge features that attention layers read; `None` if they read none.
    fn edge_scaling(_: &Self::Config) -> Option<&EdgeScaling> {
        None
    }

    /// Builds block `index` from the tensors of `scope`.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape.
    fn new(scope: &mut Scope, config: &Self::Config, index: usize, kernel: Backend) -> Result<Self, ModelError>;

    /// Applies the block to the state that the previous block left, which is empty before the first. The last block leaves the network's
    /// outputs, with what [`Run`] keeps.
    ///
    /// # Errors
    /// A batch that is not the network's, the state of another block, and errors of libtorch.
    fn forward(&self, config: &Self::Config, state: Vec<Tensor>, run: &Run) -> Result<Vec<Tensor>, ModelError>;
}

/// Names of the tensors of block `index`.
///
/// # Errors
/// An architecture that has no such block.
pub fn tensor_names<B: Block>(config: &B::Config, index: usize) -> Result<Vec<String>, ModelError> {
    names_of(|scope| B::new(scope, config, index, Backend::Auto))
}

/// Names of the tensors that `build` requests, in the order of its requests.
///
/// # Errors
/// Those of `build`.
pub fn names_of<T>(build: impl FnOnce(&mut Scope) -> Result<T, ModelError>) -> Result<Vec<String>, ModelError> {
    let mut names = Names::default();
    build(&mut Scope::root(&mut names))?;
    Ok(names.0)
}

/// Builds the blocks at these places.
///
/// # Errors
/// Those of [`Block::new`].
pub fn build<B: Block>(
    scope: &mut Scope,
    config: &B::Config,
    places: Range<usize>,
    kernel: Backend,
) -> Result<Vec<B>, ModelError> {
    places.map(|index| B::new(scope, config, index, kernel)).collect()
}

/// Applies blocks one after the other.
///
/// # Errors
/// Those of [`Block::forward`].
pub fn through<B: Block>(
    blocks: &[B],
    config: &B::Config,
    state: Vec<Tensor>,
    run: &Run,
) -> Result<Vec<Tensor>, ModelError> {
    blocks.iter().try_fold(state, |state, block| block.forward(config, state, run))
}

/// A batch on its way through a network, and how it is computed.
#[derive(Debug)]
pub struct Run<'a> {
    /// The batch.
    pub batch: &'a Batch,
    /// Implementation of the operations.
    pub kernel: Backend,
    /// Training or evaluation.
    pub mode: Mode,
    /// Recomputation in the backward of what is not stored (gradient checkpointing).
    pub recomputes: bool,
    /// The last block also leaves the latent of an autoencoder, before the reconstruction.
    pub keeps_latent: bool,
    /// The last block also leaves hidden rows, after the outputs.
    pub keeps_hidden: bool,
    scaling: Option<&'a EdgeScaling>,
    edges: OnceCell<EdgeInput<'a>>,
}

impl<'a> Run<'a> {
    /// A forward of a network whose layers read edge features with this scaling, or none.
    pub fn new(batch: &'a Batch, scaling: Option<&'a EdgeScaling>, kernel: Backend, mode: Mode) -> Self {
        let (recomputes, keeps_latent, keeps_hidden, edges) = (false, false, false, OnceCell::new());
        Self { batch, kernel, mode, recomputes, keeps_latent, keeps_hidden, scaling, edges }
    }

    /// The same forward, which recomputes in the backward what it does not store, or stores all.
    pub fn recomputing(self, recomputes: bool) -> Self {
        Self { recomputes, ..self }
    }

    /// The same forward, whose last block also leaves the latent or hidden rows.
    pub fn keeping(self, keeps_latent: bool, keeps_hidden: bool) -> Self {
        Self { keeps_latent, keeps_hidden, ..self }
    }

    /// The edges of the batch as attention layers read them, scaled once.
    ///
    /// # Errors
    /// A batch without the edge features that the network reads.
    pub fn edges(&self) -> Result<&EdgeInput<'a>, ModelError> {
        match self.edges.get() {
            Some(edges) => Ok(edges),
            None => {
                let edges = EdgeInput::new(self.batch, self.scaling)?;
                Ok(self.edges.get_or_init(|| edges))
            }
        }
    }
}

/// Takes the last tensor of a block's state.
pub(crate) fn last(state: &mut Vec<Tensor>) -> Result<Tensor, ModelError> {
    state.pop().ok_or_else(|| ModelError::Architecture {
        field: "layer",
        found: "no tensor from the previous layer".to_owned(),
        expected: "layers must run in order, each with the state of the previous one",
    })
}

/// Concatenates the pooled outputs of all layers, which precede the rows of the last one's nodes.
pub(crate) fn pooled(mut state: Vec<Tensor>) -> Result<Tensor, ModelError> {
    drop(last(&mut state)?);
    Ok(Tensor::f_cat(&state, 1)?)
}

/// Appends a mean to the state of an autoencoder, `[hidden, latent, x]` of which the first two are there if they are kept.
pub(crate) fn with_mean(mut state: Vec<Tensor>, hidden: Tensor, mean: Tensor, run: &Run) -> Vec<Tensor> {
    state.extend(run.keeps_hidden.then_some(hidden));
    state.extend(run.keeps_latent.then(|| mean.shallow_clone()));
    state.push(mean);
    state
}

/// The outputs of an autoencoder from that state without its last tensor: latent, reconstruction, hidden rows.
pub(crate) fn with_reconstruction(mut state: Vec<Tensor>, reconstruction: Tensor, run: &Run) -> Vec<Tensor> {
    state.push(reconstruction);
    if run.keeps_hidden {
        state.rotate_left(1);
    }
    state
}

/// The names of requested tensors.
#[derive(Default)]
struct Names(Vec<String>);

impl TensorSource for Names {
    /// A tensor of that shape which takes no memory.
    fn tensor(&mut self, name: &str, shape: &[i64], kind: Kind, _: Init, _: Role) -> Result<Tensor, ModelError> {
        self.0.push(name.to_owned());
        Ok(Tensor::f_zeros([1i64; 0].as_slice(), (kind, Device::Cpu))?.f_expand(shape, false)?)
    }
}
