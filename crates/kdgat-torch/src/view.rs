//! Host tensors as slices.

use std::borrow::Cow;
use std::ffi::c_void;
use std::ptr;

use half::bf16;
use tch::{Device, Kind, TchError, Tensor};
use torch_sys::C_tensor;

use super::device::scalar_type;

/// A type that a tensor's elements can be viewed as.
///
/// (tch's own `Element` maps `bf16` to `Half`.)
///
/// # Safety
/// `KIND` is the same type, and every bit pattern is a valid value.
pub unsafe trait Storable: Copy {
    /// torch's name for the type.
    const KIND: Kind;
}

macro_rules! storable {
    ($($type:ty: $kind:ident),*) => {
        // SAFETY: numbers of the same width and format, without invalid bit patterns.
        $(unsafe impl Storable for $type { const KIND: Kind = Kind::$kind; })*
    };
}

storable!(f32: Float, f64: Double, bf16: BFloat16, i32: Int, i64: Int64, u8: Uint8);

/// The elements of a contiguous CPU tensor; errors call it `name`.
///
/// The caller ensures that nobody writes to the tensor's storage through another handle while the slice lives.
pub fn read<'a, T: Storable>(name: &str, tensor: &'a Tensor) -> Result<&'a [T], TchError> {
    let (pointer, length) = checked::<T>(name, tensor)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: contiguous memory of `length` elements of this type, alive while the tensor is borrowed.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// The elements of a contiguous CPU tensor, for writing; errors call it `name`.
///
/// The caller ensures that nobody uses another handle to the tensor's storage while the slice lives: call it on newly
/// created tensors.
pub fn write<'a, T: Storable>(name: &str, tensor: &'a mut Tensor) -> Result<&'a mut [T], TchError> {
    let (pointer, length) = checked::<T>(name, tensor)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: see `read`; the tensor is borrowed exclusively.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

/// The elements of a tensor of any type as bytes, row by row: in place if it is contiguous on the CPU, otherwise a copy.
///
/// The caller ensures what [`read`] asks for.
pub fn raw(tensor: &Tensor) -> Result<Cow<'_, [u8]>, TchError> {
    let bytes = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
    if tensor.defined() && !tensor.is_sparse() && tensor.device() == Device::Cpu && tensor.is_contiguous() {
        let start = tensor.data_ptr().cast::<u8>();
        return Ok(match bytes(tensor) {
            0 => Cow::Borrowed(&[]),
            // SAFETY: contiguous memory of these bytes, alive while the tensor is borrowed.
            length => Cow::Borrowed(unsafe { std::slice::from_raw_parts(start, length) }),
        });
    }
    let tensor = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
    let mut copy = vec![0; bytes(&tensor)];
    tensor.f_copy_data_u8(&mut copy, tensor.numel())?;
    Ok(Cow::Owned(copy))
}

/// Reinterprets bytes as f32 values. `None` if they are misaligned or end within a value.
pub fn of_bytes(bytes: &[u8]) -> Option<&[f32]> {
    // SAFETY: any four bytes are a valid f32.
    match unsafe { bytes.align_to::<f32>() } {
        ([], values, []) => Some(values),
        _ => None,
    }
}

/// The bytes of f32 values.
pub fn bytes_of(values: &[f32]) -> &[u8] {
    // SAFETY: a float has no padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Copies the values of `from` into `to`, a tensor of the same shape that shares no memory with it and is not part of a
/// recorded graph.
pub fn copy_values(to: &mut Tensor, from: &Tensor) -> Result<(), TchError> {
    fn copied<T: Storable>(to: &mut Tensor, from: &Tensor) -> bool {
        match (elements::<T>(to), elements::<T>(from)) {
            (Some((to, wanted)), Some((from, found))) if wanted == found => {
                if found > 0 {
                    // SAFETY: both sides have `found` elements of this type and do not overlap; `to` is borrowed
                    // exclusively.
                    unsafe { ptr::copy_nonoverlapping(from, to, found) };
                }
                true
            }
            _ => false,
        }
    }
    if copied::<f32>(to, from) || copied::<i64>(to, from) {
        return Ok(());
    }
    tch::no_grad(|| to.f_copy_(from))
}

/// Address and number of the elements of a contiguous CPU tensor of type `T`. `None` for any other tensor.
fn elements<T: Storable>(tensor: &Tensor) -> Option<(*mut T, usize)> {
    let (kind, mut elements, mut count) = (scalar_type(T::KIND).ok()?, ptr::null_mut(), 0);
    // SAFETY: a live tensor, and valid pointers to the results.
    let found = unsafe { kdgat_elements(tensor.as_ptr(), kind, &raw mut elements, &raw mut count) };
    found.then_some((elements.cast(), usize::try_from(count).unwrap_or(0)))
}

/// [`elements`], or an error that says why the tensor cannot be viewed.
fn checked<T: Storable>(name: &str, tensor: &Tensor) -> Result<(*mut T, usize), TchError> {
    if let Some(found) = elements(tensor) {
        return Ok(found);
    }
    let kind = tensor.f_kind()?;
    if kind != T::KIND {
        return Err(TchError::Kind(format!("{name} has elements of type {kind:?}, expected {:?}", T::KIND)));
    }
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        return Err(TchError::Shape(format!(
            "{name} must be contiguous on the CPU, got strides {:?} on {:?}",
            tensor.stride(),
            tensor.device()
        )));
    }
    Ok((tensor.data_ptr().cast(), tensor.numel()))
}

/// True if this is the only handle to the tensor and its memory: nobody else can read what is written to it.
pub fn is_only_handle(tensor: &Tensor) -> bool {
    // SAFETY: a live tensor.
    unsafe { kdgat_is_only_handle(tensor.as_ptr()) }
}

unsafe extern "C" {
    fn kdgat_is_only_handle(tensor: *const C_tensor) -> bool;
    fn kdgat_elements(tensor: *const C_tensor, kind: i8, elements: *mut *mut c_void, count: *mut i64) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_handles_are_seen() {
        let tensor = Tensor::zeros([2, 3], tch::kind::FLOAT_CPU);
        assert!(is_only_handle(&tensor));
        let others: [fn(&Tensor) -> Tensor; 4] =
            [Tensor::shallow_clone, Tensor::detach, Tensor::data, |tensor| tensor.narrow(0, 0, 1)];
        for other in others {
            let other = other(&tensor);
            assert!(!is_only_handle(&tensor) && !is_only_handle(&other));
            drop(other);
            assert!(is_only_handle(&tensor));
        }
    }

    #[test]
    fn tensors_of_every_type_are_seen_in_one_call() {
        fn found<T: Storable>() -> bool {
            elements::<T>(&Tensor::zeros([2, 3], (T::KIND, Device::Cpu))).is_some_and(|(_, count)| count == 6)
        }
        let found = [found::<u8>(), found::<i32>(), found::<i64>(), found::<f32>(), found::<f64>(), found::<bf16>()];
        assert_eq!(found, [true; 6], "u8, i32, i64, f32, f64, bf16");
    }

    #[test]
    fn other_tensors_are_refused_with_the_reason() {
        let matrix = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
        let error = |found: Result<&[f32], TchError>| found.unwrap_err().to_string();
        assert!(error(read("x", &matrix.transpose(0, 1))).contains("x must be contiguous on the CPU"));
        assert!(error(read("x", &matrix.to_kind(Kind::Double))).contains("type Double, expected Float"));
        assert!(read::<f32>("x", &Tensor::zeros([0, 3], (Kind::Float, Device::Cpu))).unwrap().is_empty());
    }

    #[test]
    fn values_are_copied_whatever_their_type_and_place() {
        let from = Tensor::arange(6, (Kind::Float, Device::Cpu)).reshape([2, 3]);
        for from in [from.shallow_clone(), from.to_kind(Kind::Int64), from.to_kind(Kind::Half), from.transpose(0, 1)] {
            let mut to = Tensor::zeros(from.size(), (from.kind(), Device::Cpu));
            copy_values(&mut to, &from).unwrap();
            assert!(to == from, "{from:?}");
        }
        assert!(copy_values(&mut Tensor::zeros([4], (Kind::Float, Device::Cpu)), &from).is_err());
    }
}
