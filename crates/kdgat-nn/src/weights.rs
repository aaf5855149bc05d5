//! Named tensors as bytes: digests and safetensors types.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, TensorView};
use tch::{Kind, TchError, Tensor};

use super::ModelError;

/// Named tensors on the CPU.
pub type StateDict = BTreeMap<String, Tensor>;

/// Content digest of weights: names, kinds, shapes and bytes, in order of name (blake3, hex).
pub fn digest<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<String, ModelError> {
    let sorted: BTreeMap<&str, &Tensor> = tensors.into_iter().collect();
    let mut hasher = blake3::Hasher::new();
    for (name, tensor) in sorted {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(format!("{:?}{:?}", tensor.kind(), tensor.size()).as_bytes());
        hasher.update(&bytes(tensor)?);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// The elements of a tensor as little-endian bytes, in row-major order.
pub fn bytes(tensor: &Tensor) -> Result<Vec<u8>, ModelError> {
    let tensor = tensor.f_detach()?.f_to_device(tch::Device::Cpu)?.f_contiguous()?.f_flatten(0, -1)?;
    let as_bytes = |width: usize| tensor.numel() * width;
    let mut out = vec![0u8; as_bytes(tensor.kind().elt_size_in_bytes())];
    tensor.f_copy_data_u8(&mut out, tensor.numel())?;
    Ok(out)
}

/// The elements of a tensor as f32, `[numel]`, in row-major order.
pub fn floats(tensor: &Tensor) -> Result<Vec<f32>, ModelError> {
    let flat = tensor.f_detach()?.f_to_kind(Kind::Float)?.f_flatten(0, -1)?;
    Ok(Vec::<f32>::try_from(flat)?)
}

/// The safetensors type for a kind of elements; `None` for kinds that cannot be stored.
pub fn dtype_of(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Bool => Dtype::BOOL,
        Kind::Uint8 => Dtype::U8,
        Kind::Int => Dtype::I32,
        Kind::Int64 => Dtype::I64,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Half => Dtype::F16,
        Kind::Float => Dtype::F32,
        Kind::Double => Dtype::F64,
        _ => return None,
    })
}

/// Copies a tensor out of a safetensors file.
pub fn from_view(view: &TensorView) -> Result<Tensor, ModelError> {
    let kinds =
        [Kind::Bool, Kind::Uint8, Kind::Int, Kind::Int64, Kind::BFloat16, Kind::Half, Kind::Float, Kind::Double];
    let kind = kinds.into_iter().find(|kind| dtype_of(*kind) == Some(view.dtype()));
    let kind =
        kind.ok_or_else(|| TchError::Convert(format!("safetensors type {:?} is not supported", view.dtype())))?;
    let shape: Vec<i64> = view.shape().iter().map(|&length| length as i64).collect();
    Ok(Tensor::f_from_data_size(view.data(), &shape, kind)?)
}
