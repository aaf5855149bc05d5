//! The C library's heap, where working memory that is no tensor (`Vec`s of the kernels) comes from.

/// Variables by which a user may have set the thresholds already, and what is then in them.
const SET_BY_USER: [(&str, &str); 3] =
    [("MALLOC_TRIM_THRESHOLD_", ""), ("MALLOC_MMAP_THRESHOLD_", ""), ("GLIBC_TUNABLES", "glibc.malloc.")];

/// Lets the C library keep up to `bytes` of freed memory at the end of each thread's heap, and take blocks of up to half of that from there. By
/// default it returns what a step freed, and the next step waits until the kernel has filled the same pages with zeros again: a third of the
/// time of steps with paths of three edges. Does nothing where the user has set these thresholds, or where the C library is not glibc.
pub fn keep_freed(bytes: usize) {
    let is_set = |(name, part): &(_, _)| std::env::var(name).is_ok_and(|value| value.contains(part));
    if SET_BY_USER.iter().any(is_set) {
        return;
    }
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in [(libc::M_TRIM_THRESHOLD, bytes), (libc::M_MMAP_THRESHOLD, bytes / 2)] {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        // SAFETY: takes two numbers; a value that it does not accept leaves the threshold as it is.
        let _accepted = unsafe { libc::mallopt(parameter, bytes) };
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Page faults of this thread so far.
    fn faults() -> i64 {
        // SAFETY: all zeros is a value of the type, and the call only writes to it.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt
        }
    }

    #[test]
    fn what_a_step_freed_is_there_for_the_next_step() {
        const BLOCKS: usize = 64;
        const BYTES: usize = 100 << 10;
        keep_freed(64 << 20);
        let step = || {
            let before = faults();
            let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| std::hint::black_box(vec![1; BYTES])).collect();
            drop(blocks);
            faults() - before
        };
        let pages = (BLOCKS * BYTES / 4096) as i64;
        let (_first, second) = (step(), step());
        assert!(second < pages / 8, "{second} page faults for {pages} pages");
    }
}
