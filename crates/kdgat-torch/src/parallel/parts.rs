//! Output buffers of multithreaded loops.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// A slice divided into parts; the threads of a loop take each part once, for writing.
pub struct Parts<'a, T> {
    data: *const UnsafeCell<T>,
    bounds: Vec<usize>,
    taken: Vec<AtomicBool>,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: threads get disjoint parts, each at most once, as `&mut [T]`, which `T: Send` allows.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Divides `data` at `bounds`: part `i` is `bounds[i]..bounds[i + 1]`.
    ///
    /// # Panics
    /// If the bounds do not ascend or exceed the slice.
    pub fn new(data: &'a mut [T], bounds: impl IntoIterator<Item = usize>) -> Self {
        let bounds: Vec<usize> = bounds.into_iter().collect();
        assert!(bounds.is_sorted(), "bounds of parts must ascend");
        assert!(bounds.last().is_none_or(|&end| end <= data.len()), "bounds of parts exceed the slice");
        let taken = (1..bounds.len()).map(|_| AtomicBool::new(false)).collect();
        Self { data: data.as_mut_ptr().cast::<UnsafeCell<T>>(), bounds, taken, slice: PhantomData }
    }

    /// Takes part `index`.
    ///
    /// # Panics
    /// If the part was taken before or does not exist.
    #[allow(clippy::mut_from_ref)]
    pub fn take(&self, index: usize) -> &'a mut [T] {
        assert!(!self.taken[index].swap(true, Ordering::Relaxed), "part {index} is already being written");
        let range = self.bounds[index]..self.bounds[index + 1];
        // SAFETY: the range is inside the slice borrowed for 'a, overlaps no other part, and this part is returned only
        // once.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(self.data.add(range.start)), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "already being written")]
    fn a_part_is_taken_once() {
        let mut data = [0; 4];
        let parts = Parts::new(&mut data, [0, 2, 4]);
        parts.take(0)[0] = 1;
        parts.take(0)[0] = 2;
    }
}
