//! Tensors of the host as slices.

use half::bf16;
use tch::{Device, Kind, TchError, Tensor};

/// A type that tensors can be seen as slices of.
///
/// (tch's own `Element` says that a `bf16` is a `Half`.)
///
/// # Safety
/// `KIND` names the same type, and every bit pattern is a value of it.
pub unsafe trait Storable: Copy {
    /// torch's name of the type.
    const KIND: Kind;
}

macro_rules! storable {
    ($($type:ty: $kind:ident),*) => {
        // SAFETY: numbers of the same width and format, without forbidden patterns.
        $(unsafe impl Storable for $type { const KIND: Kind = Kind::$kind; })*
    };
}

storable!(f32: Float, f64: Double, bf16: BFloat16, i32: Int, i64: Int64, u8: Uint8);

/// The elements of a contiguous tensor on the CPU.
///
/// The caller sees to it that nothing writes to the tensor's storage through another handle while the slice lives.
pub(crate) fn read<'a, T: Storable>(name: &str, tensor: &'a Tensor) -> Result<&'a [T], TchError> {
    let (pointer, length) = checked::<T>(name, tensor)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: contiguous memory of `length` elements of this type, alive while the tensor is borrowed.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// The elements of a contiguous tensor on the CPU, to be written.
///
/// The caller sees to it that no other handle to the tensor's storage is used while the slice lives: call it on
/// tensors just made.
pub(crate) fn write<'a, T: Storable>(name: &str, tensor: &'a mut Tensor) -> Result<&'a mut [T], TchError> {
    let (pointer, length) = checked::<T>(name, tensor)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as above, and borrowed exclusively.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

/// Bytes as the values that they are, unless they are misaligned or end within a value.
pub(crate) fn of_bytes(bytes: &[u8]) -> Option<&[f32]> {
    // SAFETY: every four bytes are an f32.
    match unsafe { bytes.align_to::<f32>() } {
        ([], values, []) => Some(values),
        _ => None,
    }
}

fn checked<T: Storable>(name: &str, tensor: &Tensor) -> Result<(*mut T, usize), TchError> {
    let kind = tensor.f_kind()?;
    if kind != T::KIND {
        return Err(TchError::Kind(format!("{name} has elements of type {kind:?}, {:?} is expected", T::KIND)));
    }
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        return Err(TchError::Shape(format!(
            "{name} must be contiguous on the CPU, it has strides {:?} on {:?}",
            tensor.stride(),
            tensor.device()
        )));
    }
    Ok((tensor.data_ptr().cast(), tensor.numel()))
}
