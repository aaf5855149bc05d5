//! Named tensors as bytes: digests and safetensors types.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kdgat_torch::view;
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

/// The elements of a tensor as little-endian bytes, in row-major order; in place where it is contiguous on the CPU.
pub fn bytes(tensor: &Tensor) -> Result<Cow<'_, [u8]>, ModelError> {
    Ok(view::raw(tensor)?)
}

/// Checks that all floating-point weights are finite.
///
/// # Errors
/// The first tensor that has NaN or an infinity.
pub fn expect_finite<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<(), ModelError> {
    for (name, tensor) in tensors {
        if let Some(found) = not_finite(tensor)? {
            return Err(ModelError::NotFinite { name: name.to_owned(), found });
        }
    }
    Ok(())
}

/// The first element that is NaN or infinite, and its indices, as text; `None` if all are finite.
pub fn not_finite(tensor: &Tensor) -> Result<Option<String>, ModelError> {
    let bytes = bytes(tensor)?;
    // An exponent of ones, all that a type has, stands for NaN and infinity.
    let at = match tensor.kind() {
        Kind::Float => first(&bytes, |element| !f32::from_le_bytes(element).is_finite()),
        Kind::Double => first(&bytes, |element| !f64::from_le_bytes(element).is_finite()),
        Kind::Half => first(&bytes, |element| u16::from_le_bytes(element) & 0x7c00 == 0x7c00),
        Kind::BFloat16 => first(&bytes, |element| u16::from_le_bytes(element) & 0x7f80 == 0x7f80),
        _ => None,
    };
    let Some(at) = at else { return Ok(None) };
    let (mut rest, mut indices) = (at, Vec::new());
    for &size in tensor.size().iter().rev() {
        indices.insert(0, rest % size as usize);
        rest /= size as usize;
    }
    let value = tensor.f_detach()?.f_flatten(0, -1)?.f_double_value(&[at as i64])?;
    Ok(Some(format!("{value} at {indices:?}")))
}

/// Position of the first element for which `is_found` holds.
fn first<const N: usize>(bytes: &[u8], is_found: impl Fn([u8; N]) -> bool) -> Option<usize> {
    bytes.as_chunks::<N>().0.iter().position(|&element| is_found(element))
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

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn elements_that_are_not_finite_are_named_with_their_indices() {
        for kind in [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16] {
            let zeros = || Tensor::zeros([2, 3], (kind, Device::Cpu));
            assert_eq!(not_finite(&zeros()).unwrap(), None);
            for (value, found) in [(f64::NAN, "NaN at [1, 2]"), (f64::NEG_INFINITY, "-inf at [1, 2]")] {
                let tensor = zeros();
                let _ = tensor.get(1).get(2).fill_(value);
                assert_eq!(not_finite(&tensor).unwrap().as_deref(), Some(found), "{kind:?}");
                let error = expect_finite([("a", &zeros()), ("b", &tensor)]).unwrap_err().to_string();
                assert!(error.contains(&format!("tensor 'b' has {found}")), "{error}");
            }
        }
        assert_eq!(not_finite(&Tensor::from(f32::NAN)).unwrap().as_deref(), Some("NaN at []"));
        assert_eq!(not_finite(&Tensor::from(i64::MAX)).unwrap(), None);
    }
}
