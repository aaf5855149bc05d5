//! First calls of libtorch's elementwise functions, made before several threads can make them at once.

use std::sync::Once;

use tch::{Device, Kind, TchError, Tensor};

/// Makes libtorch's math library choose its code path for each function that models use, once per process.
///
/// oneMKL chooses at a function's first call. If several threads make that call at once (a loop over a large tensor is
/// enough), releases before 2025 may run one of them in the least accurate code path: errors of 1e-4, in that call only
/// (PyTorch issue 188792; seen here in one of about a hundred starts under load). Cached teacher targets would contain
/// them. Call this before models and threads start; later calls cost nothing.
pub fn resolve_vector_math() {
    static RESOLVED: Once = Once::new();
    RESOLVED.call_once(|| {
        let resolved = call_each(Kind::Float).and_then(|()| call_each(Kind::Double));
        if let Err(error) = resolved {
            tracing::warn!("cannot call libtorch's elementwise functions ahead of time: {error}");
        }
    });
}

/// Calls each function on one element, which libtorch never splits among threads.
fn call_each(kind: Kind) -> Result<(), TchError> {
    let one = Tensor::f_ones([1], (kind, Device::Cpu))?;
    for function in [
        Tensor::f_exp,
        Tensor::f_expm1,
        Tensor::f_log,
        Tensor::f_log1p,
        Tensor::f_sqrt,
        Tensor::f_tanh,
        Tensor::f_erf,
        Tensor::f_sin,
        Tensor::f_cos,
    ] {
        drop(function(&one)?);
    }
    Ok(())
}
