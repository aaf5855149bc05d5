//! Weights in and out: kdgat's safetensors, and the state dicts that PyTorch writes.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use tch::{Kind, TchError, Tensor};

use super::ModelError;

/// Prefix that Lightning puts before a module's tensors.
const LIGHTNING_PREFIX: &str = "model.";

/// Named tensors on the CPU.
pub type StateDict = BTreeMap<String, Tensor>;

/// Reads `.safetensors`, or a PyTorch state dict (`.pt`, `.pth`, `.bin`, `.ckpt`; Lightning's `model.` prefix is dropped).
pub fn read(path: &Path) -> Result<StateDict, ModelError> {
    let file_error = |reason: String| ModelError::File { path: path.to_owned(), reason };
    let metadata = std::fs::metadata(path).map_err(|error| file_error(error.to_string()))?;
    if !metadata.is_file() {
        return Err(file_error("is not a file; a weight file ends in .safetensors, .pt, .pth or .ckpt".into()));
    }
    let named = match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => Tensor::read_safetensors(path),
        Some("pt" | "pth" | "bin" | "ckpt") => Tensor::loadz_multi(path),
        other => return Err(file_error(format!("extension {other:?} is none of .safetensors, .pt, .pth, .ckpt"))),
    };
    let named = named.map_err(|error| file_error(format!("cannot be read as weights: {error}")))?;
    let lightning = !named.is_empty() && named.iter().all(|(name, _)| name.starts_with(LIGHTNING_PREFIX));
    let skip = if lightning { LIGHTNING_PREFIX.len() } else { 0 };
    Ok(named.into_iter().map(|(name, tensor)| (name[skip..].to_owned(), tensor)).collect())
}

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

/// `[numel]` elements of an f32 tensor.
pub fn floats(tensor: &Tensor) -> Result<Vec<f32>, ModelError> {
    let flat = tensor.f_detach()?.f_to_kind(Kind::Float)?.f_flatten(0, -1)?;
    Ok(Vec::<f32>::try_from(flat)?)
}

/// The safetensors type of a tensor's elements; `None` for kinds that are not stored.
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

/// A tensor of a safetensors file.
pub fn from_view(view: &TensorView) -> Result<Tensor, ModelError> {
    let kinds =
        [Kind::Bool, Kind::Uint8, Kind::Int, Kind::Int64, Kind::BFloat16, Kind::Half, Kind::Float, Kind::Double];
    let kind = kinds.into_iter().find(|kind| dtype_of(*kind) == Some(view.dtype()));
    let kind =
        kind.ok_or_else(|| TchError::Convert(format!("safetensors type {:?} is not used here", view.dtype())))?;
    let shape: Vec<i64> = view.shape().iter().map(|&length| length as i64).collect();
    Ok(Tensor::f_from_data_size(view.data(), &shape, kind)?)
}
