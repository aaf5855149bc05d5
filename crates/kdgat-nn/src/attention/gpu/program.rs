//! The compiled programs, one per layer type, shape and device.

use std::sync::{Arc, OnceLock};

use kdgat_torch::cuda_program::{Program, ProgramError, Programs, Source};
use kdgat_torch::test_cuda_library;
use tch::{Device, Kind};

use super::super::kernels::Shape;

/// Number of nodes whose sums one warp adds up.
pub(super) const NODES_OF_PART: u64 = 64;

/// The layers that have kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::attention) enum LayerKind {
    Gat,
    GatV2,
}

/// Layer, device, heads, channels, and type of the values.
type Key = (LayerKind, Device, usize, usize, Kind);

/// The kernels of a layer for one shape of values on one device, compiled at first use.
pub(super) fn program(
    layer: LayerKind,
    device: Device,
    shape: Shape,
    values: Kind,
) -> Result<Arc<Program>, ProgramError> {
    static COMPILED: Programs<Key> = Programs::new();
    let key = (layer, device, shape.heads, shape.channels, values);
    COMPILED.get(key, || {
        let program = Program::compile(&source(layer, shape, values), device)?;
        tracing::debug!(
            "loaded {layer:?} attention of {} x {} for {values:?} on {device:?}",
            shape.heads,
            shape.channels
        );
        Ok(program)
    })
}

/// True if the kernels can be compiled and loaded. If not, the reason is logged once, and every later answer is the same: a training
/// does not change its implementation.
pub(in crate::attention) fn is_usable(layer: LayerKind, device: Device, shape: Shape, values: Kind) -> bool {
    static REFUSED: OnceLock<()> = OnceLock::new();
    // The software card of the tests has memory and streams, but runs no kernels.
    if test_cuda_library().is_some() || REFUSED.get().is_some() {
        return false;
    }
    let Err(error) = program(layer, device, shape, values) else { return true };
    if REFUSED.set(()).is_ok() {
        tracing::warn!("attention is composed of libtorch's operations on {device:?}, which is slower: {error}");
    }
    false
}

/// Source of the program for a shape.
pub(super) fn source(layer: LayerKind, shape: Shape, values: Kind) -> Source {
    let real = if values == Kind::Double { "double" } else { "float" };
    let (name, text, kernels): (_, _, &'static [(&'static str, usize)]) = match layer {
        LayerKind::Gat => (
            "graph attention",
            concat!(include_str!("shared.cu"), include_str!("gat.cu")),
            &[
                ("attend", 16),
                ("attend_backward_targets", 11),
                ("project_scores", 6),
                ("attend_backward_sources", 13),
                ("add_up_vector_gradients", 5),
            ],
        ),
        LayerKind::GatV2 => (
            "graph attention v2",
            concat!(include_str!("shared.cu"), include_str!("gatv2.cu")),
            &[
                ("attend", 16),
                ("attend_backward_targets", 11),
                ("score_pairs", 9),
                ("pairs_backward_targets", 12),
                ("pairs_backward_sources", 14),
            ],
        ),
    };
    Source {
        name,
        text,
        kernels,
        definitions: vec![
            ("HEADS", shape.heads.to_string()),
            ("CHANNELS", shape.channels.to_string()),
            ("REAL", real.to_owned()),
            ("NODES_OF_PART", NODES_OF_PART.to_string()),
            ("VALUES_BF16", i32::from(values == Kind::BFloat16).to_string()),
        ],
    }
}
