//! Cache of compiled programs, one per shape.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use kdgat_torch::cuda_program::{Program, ProgramError, Source};
use parking_lot::Mutex;
use tch::{Device, Kind};

use super::super::kernels::Shape;

/// Number of nodes whose sums one warp adds up.
pub(super) const NODES_OF_PART: u64 = 64;

/// Device, heads, channels, and type of the values.
type Key = (Device, usize, usize, Kind);

/// The kernels for one shape of values on one device, compiled at first use.
pub(super) fn program(device: Device, shape: Shape, values: Kind) -> Result<Arc<Program>, ProgramError> {
    static COMPILED: OnceLock<Mutex<HashMap<Key, Arc<Program>>>> = OnceLock::new();
    // Held during compilation: another thread that needs the same program waits for it.
    let mut compiled = COMPILED.get_or_init(Mutex::default).lock();
    let key = (device, shape.heads, shape.channels, values);
    if let Some(program) = compiled.get(&key) {
        return Ok(Arc::clone(program));
    }
    let program = Arc::new(Program::compile(&source(shape, values), device)?);
    tracing::debug!("compiled attention of {} x {} for {values:?} on {device:?}", shape.heads, shape.channels);
    compiled.insert(key, Arc::clone(&program));
    Ok(program)
}

/// Source of the program for a shape.
pub(super) fn source(shape: Shape, values: Kind) -> Source {
    let real = if values == Kind::Double { "double" } else { "float" };
    Source {
        name: "graph attention",
        text: concat!(include_str!("shared.cu"), include_str!("gat.cu"), include_str!("gatv2.cu")),
        kernels: &[
            ("attend", 16),
            ("attend_backward_targets", 11),
            ("project_scores", 6),
            ("attend_backward_sources", 13),
            ("add_up_vector_gradients", 5),
            ("score_pairs", 9),
            ("pairs_backward_targets", 12),
            ("pairs_backward_sources", 14),
        ],
        definitions: vec![
            ("HEADS", shape.heads.to_string()),
            ("CHANNELS", shape.channels.to_string()),
            ("REAL", real.to_owned()),
            ("NODES_OF_PART", NODES_OF_PART.to_string()),
            ("VALUES_BF16", i32::from(values == Kind::BFloat16).to_string()),
        ],
    }
}
