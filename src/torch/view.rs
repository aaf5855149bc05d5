//! Tensors of the host as slices.

use tch::kind::Element;
use tch::{Device, TchError, Tensor};

/// The elements of a contiguous tensor on the CPU.
///
/// The caller sees to it that nothing writes to the tensor's storage through another handle while the slice lives.
pub(crate) fn read<'a, T: Element>(name: &str, tensor: &'a Tensor) -> Result<&'a [T], TchError> {
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
pub(crate) fn write<'a, T: Element>(name: &str, tensor: &'a mut Tensor) -> Result<&'a mut [T], TchError> {
    let (pointer, length) = checked::<T>(name, tensor)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as above, and borrowed exclusively.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

fn checked<T: Element>(name: &str, tensor: &Tensor) -> Result<(*mut T, usize), TchError> {
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
