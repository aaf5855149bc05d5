//! Fused attention on a GPU: the kernels of `shared.cu`, `gat.cu` and `gatv2.cu` as differentiable functions of
//! tensors.

mod gat;
mod gatv2;
mod layer;
mod program;
#[cfg(test)]
mod tests;

pub(super) use gat::GpuGat;
pub(super) use gatv2::GpuGatV2;
pub(super) use layer::Layer;
pub(super) use program::{LayerKind, is_usable};
