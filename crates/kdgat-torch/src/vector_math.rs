//! The first call of libtorch's elementwise functions, made before threads can make it together.

use std::sync::Once;

use tch::{Device, Kind, TchError, Tensor};

/// Lets libtorch's mathematics library choose its code for each function that models use, once a process.
///
/// oneMKL chooses at a function's first call. Where several threads make it together (a loop over a large tensor is
/// enough), releases before 2025 may run one of them in the code of lowest accuracy: errors of 1e-4, in that call only
/// (PyTorch issue 188792; seen here in one of some hundred busy starts). Targets of a teacher would be kept with
/// them. Call it where models and threads begin; later calls cost nothing.
pub fn resolve_vector_math() {
    static RESOLVED: Once = Once::new();
    RESOLVED.call_once(|| {
        let resolved = call_each(Kind::Float).and_then(|()| call_each(Kind::Double));
        if let Err(error) = resolved {
            tracing::warn!("libtorch's elementwise functions cannot be called ahead of time: {error}");
        }
    });
}

/// One element is enough, and is never shared among threads.
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
