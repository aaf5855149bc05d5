//! Choice of the threads that run the loops of a training.

use kdgat_nn::attention::Backend;
use kdgat_nn::fused::linear;
use kdgat_nn::parameters::Role;
use kdgat_torch::parallel::OwnThreads;
use tch::{Device, Kind};

use super::trainable::Trainable;

/// Gives the calling thread threads of its own if all the parallel work of a step is in loops of this program, as far as the
/// tensors show: on the CPU, in f32, with fused kernels, and no weight whose products use libtorch (see [`linear::is_small`]).
/// Otherwise returns `None`, and the loops run on libtorch's threads.
pub fn own_threads(
    trainable: &Trainable,
    kernel: Backend,
    device: Device,
    precision: Option<Kind>,
) -> Option<OwnThreads> {
    let is_fused = device == Device::Cpu && precision.is_none() && kernel != Backend::Composed;
    let mut parameters = trainable.tensors().iter().filter(|named| named.role == Role::Parameter);
    (is_fused && parameters.all(|named| linear::is_small(&named.tensor))).then(OwnThreads::new)
}
