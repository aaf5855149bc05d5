//! Memory-mapped files, and tensors over them without a copy.

use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use memmap2::Mmap;
use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::device::scalar_type;
use super::ffi;
use super::view::Storable;

pub use kdgat_mapped::{map, release_pages};

/// A CPU tensor of shape `size` over the bytes `range` of the map. The tensor keeps the map alive.
///
/// The map is read-only: an operation that writes to the tensor ends the process.
///
/// # Errors
/// If the range leaves the map, is misaligned for its elements, or has a different number of elements than `size`.
pub fn tensor_over<T: Storable>(map: &Arc<Mmap>, range: Range<usize>, size: &[i64]) -> Result<Tensor, TchError> {
    let bytes = map.get(range.clone()).ok_or_else(|| {
        TchError::Shape(format!("bytes {range:?} are outside of a mapped file of {} bytes", map.len()))
    })?;
    let expected = size.iter().product::<i64>() as usize * size_of::<T>();
    if bytes.len() != expected || !bytes.as_ptr().cast::<T>().is_aligned() {
        return Err(TchError::Shape(format!(
            "a tensor of shape {size:?} needs {expected} aligned bytes, got {} at byte {} of a mapped file",
            bytes.len(),
            range.start
        )));
    }
    let kind = scalar_type(T::KIND)?;
    let owner = Arc::into_raw(map.clone());
    let mut tensor = ptr::null_mut();
    // SAFETY: `bytes` has the tensor's size and alignment, and stays mapped until `release` drops the owner.
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
        // SAFETY: created above, and not taken by the callee.
        drop(unsafe { Arc::from_raw(owner) });
        return Err(error);
    }
    // SAFETY: a tensor on the heap that we now own.
    unsafe { ffi::from_raw(tensor) }
        .ok_or_else(|| TchError::Torch("libtorch returned no tensor over a mapped file".to_owned()))
}

unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: the pointer that `tensor_over` made from an `Arc<Mmap>`; libtorch calls this once.
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
        assert_eq!(Arc::strong_count(&map), 2, "a view still uses it");
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
