//! Which threads a training's loops run on.

use kdgat_nn::attention::Backend;
use kdgat_nn::fused::linear;
use kdgat_nn::parameters::Role;
use kdgat_torch::parallel::OwnThreads;
use tch::{Device, Kind};

use super::trainable::Trainable;

/// Threads of its own for the calling thread, where all of a step that is worth several threads is loops of ours, as far as the
/// tensors tell: on the CPU, in f32, by the fused kernels, with no weight whose products are left to libtorch (see
/// [`linear::is_small`]). Elsewhere loops run on libtorch's.
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
