//! Mapped files, and tensors that lie over them without a copy.

use std::ffi::{c_char, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use memmap2::{Mmap, UncheckedAdvice};
use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::device::scalar_type;
use super::ffi;
use super::view::Storable;

/// The bytes of a file that has its final name and is never written to again: whoever makes such files writes another one
/// beside it and renames that. One that is cut short by others all the same ends the program with a message
/// ([`explain_bus_errors`](super::explain_bus_errors)).
///
/// # Errors
/// What the system says.
pub fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes do not change while they are mapped, as the caller promises.
    unsafe { Mmap::map(file) }
}

/// Takes the pages of a map out of this process's memory; they are mapped again where they are read next.
///
/// # Errors
/// What the system says.
pub fn release_pages(map: &Mmap) -> io::Result<()> {
    // SAFETY: the map is shared with its file and never written to: the file has all that the pages hold, whoever reads
    // them at this moment.
    unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) }
}

/// The bytes `range` of the map as a tensor on the CPU of this size; the map stays as long as the tensor.
///
/// The map is for reading: an operation that writes into the tensor ends the process.
///
/// # Errors
/// A range that leaves the map, is not aligned for its elements, or holds another number of them than `size` says.
pub fn tensor_over<T: Storable>(map: &Arc<Mmap>, range: Range<usize>, size: &[i64]) -> Result<Tensor, TchError> {
    let bytes = map.get(range.clone()).ok_or_else(|| {
        TchError::Shape(format!("bytes {range:?} of a mapped file are asked for, it has {}", map.len()))
    })?;
    let expected = size.iter().product::<i64>() as usize * size_of::<T>();
    if bytes.len() != expected || !bytes.as_ptr().cast::<T>().is_aligned() {
        return Err(TchError::Shape(format!(
            "a tensor of {size:?} takes {expected} aligned bytes, {} at byte {} of a mapped file are asked for",
            bytes.len(),
            range.start
        )));
    }
    let kind = scalar_type(T::KIND)?;
    let owner = Arc::into_raw(map.clone());
    let mut tensor = ptr::null_mut();
    // SAFETY: `bytes` are as many as the tensor has, aligned, and mapped until `release` lets go of the owner.
    let made = unsafe {
        ffi::check(kdgat_tensor_over(
            bytes.as_ptr().cast(),
            size.as_ptr(),
            size.len(),
            kind,
            owner.cast_mut().cast(),
            release,
            &mut tensor,
        ))
    };
    if let Err(error) = made {
        // SAFETY: made above, and not taken.
        drop(unsafe { Arc::from_raw(owner) });
        return Err(error);
    }
    // SAFETY: a tensor on the heap that is now ours.
    unsafe { ffi::from_raw(tensor) }
        .ok_or_else(|| TchError::Torch("libtorch made no tensor over a mapped file".to_owned()))
}

unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: the pointer that `tensor_over` made of an `Arc<Mmap>`; libtorch calls this once.
    drop(unsafe { Arc::from_raw(owner.cast_const().cast::<Mmap>()) });
}

unsafe extern "C" {
    fn kdgat_tensor_over(
        data: *const c_void,
        sizes: *const i64,
        dimensions: usize,
        kind: i8,
        owner: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
        tensor: *mut *mut C_tensor,
    ) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn map(values: &[f32]) -> Arc<Mmap> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytemuck::cast_slice(values)).unwrap();
        // SAFETY: nobody else has the file.
        Arc::new(unsafe { Mmap::map(&file) }.unwrap())
    }

    #[test]
    fn a_tensor_reads_the_map_and_keeps_it() {
        let map = map(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let tensor = tensor_over::<f32>(&map, 4..20, &[2, 2]).unwrap();
        let part = tensor.narrow(0, 1, 1);
        assert_eq!(Arc::strong_count(&map), 2);
        assert_eq!(tensor.data_ptr().cast_const().cast::<u8>(), map[4..].as_ptr());
        drop(tensor);
        assert_eq!(Arc::strong_count(&map), 2, "a part still lies over it");
        assert_eq!(Vec::<f32>::try_from(&part.reshape([2])).unwrap(), [3.0, 4.0]);
        drop(part);
        assert_eq!(Arc::strong_count(&map), 1);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let map = map(&[0.0; 6]);
        for (range, size) in [(0..28, 7), (0..20, 6), (2..22, 5)] {
            let error = tensor_over::<f32>(&map, range.clone(), &[size]).unwrap_err();
            assert!(error.to_string().contains("mapped file"), "{range:?}: {error}");
            assert_eq!(Arc::strong_count(&map), 1);
        }
    }
}
