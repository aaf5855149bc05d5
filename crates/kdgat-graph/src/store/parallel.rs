//! Parallel work with results in order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::StoreError;

/// Calls `work` for 0 to `count - 1` on up to `threads` threads, each with its own state.
///
/// The results are in order. After an error no further work starts; of several errors the first in order is returned.
pub fn in_parallel<T: Send, S: Default>(
    count: usize,
    threads: usize,
    work: impl Fn(usize, &mut S) -> Result<T, StoreError> + Sync,
) -> Result<Vec<T>, StoreError> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let results: Mutex<Vec<Option<Result<T, StoreError>>>> = Mutex::new((0..count).map(|_| None).collect());
    let run = || {
        let mut state = S::default();
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = catch_unwind(AssertUnwindSafe(|| work(index, &mut state)))
                .unwrap_or_else(|payload| Err(StoreError::panic("a thread of the build", payload.as_ref())));
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            results.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[index] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, count.max(1)) {
            scope.spawn(run);
        }
        run();
    });
    // Work that never started comes after the error that stopped it.
    results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).into_iter().flatten().collect()
}
