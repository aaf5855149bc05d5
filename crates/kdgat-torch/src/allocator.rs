//! The allocator of host tensors. It counts bytes exactly, refuses an allocation beyond a limit instead of letting the
//! system kill the process, and caches freed memory for the next step.
//!
//! Call [`install`] at the start of `main`, before the first tensor: earlier memory is neither counted nor limited,
//! though it is freed correctly. Each block is counted under the [`Phase`] of the thread that requested it.

use std::ffi::c_char;
use std::ptr::NonNull;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::ffi;

/// Purpose of a memory block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Anything else.
    #[default]
    Other,
    /// Batches and their source data.
    Data,
    /// Weights of the trained model.
    Parameters,
    /// Gradients of those weights.
    Gradients,
    /// Optimizer state.
    Optimizer,
    /// Activations: everything between batch and loss.
    Activations,
    /// A teacher's weights and activations.
    Teacher,
    /// Cached targets.
    Cache,
}

impl Phase {
    /// All phases, in the order of the arrays in [`Stats`].
    pub const ALL: [Self; 8] = [
        Self::Other,
        Self::Data,
        Self::Parameters,
        Self::Gradients,
        Self::Optimizer,
        Self::Activations,
        Self::Teacher,
        Self::Cache,
    ];

    /// The name used in columns and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Data => "data",
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Teacher => "teacher",
            Self::Cache => "cache",
        }
    }

    /// The entry of this phase in an array of [`Stats`].
    pub fn of(self, bytes: &[u64; PHASES]) -> u64 {
        bytes[self as usize]
    }
}

/// Length of the per-phase arrays in [`Stats`].
pub const PHASES: usize = 16;

/// A consistent snapshot of the allocator's counts. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stats {
    /// Bytes in live tensors, as requested.
    pub current: u64,
    /// Maximum of `current` since [`reset_peak`].
    pub peak: u64,
    /// Bytes taken from the system for live tensors, including rounding and headers.
    pub in_use: u64,
    /// Bytes taken from the system and cached for future tensors.
    pub kept: u64,
    /// Maximum of `in_use + kept` since [`reset_peak`]; never above the limit.
    pub peak_reserved: u64,
    /// The limit in bytes, see [`set_limit`]; `u64::MAX` if there is none.
    pub limit: u64,
    /// Number of allocations since the start.
    pub allocations: u64,
    /// Number of allocations served from cached memory.
    pub reused: u64,
    /// Number of allocations refused.
    pub failures: u64,
    /// `current` by phase.
    pub phases: [u64; PHASES],
    /// `current` by phase at the moment of `peak`; the entries add up to `peak`.
    pub phases_at_peak: [u64; PHASES],
    /// Maximum of each phase since [`reset_peak`].
    pub phase_peaks: [u64; PHASES],
}

impl Stats {
    /// Bytes this process holds for tensors: in use and cached.
    pub fn reserved(&self) -> u64 {
        self.in_use + self.kept
    }
}

/// Installs this allocator for all host tensors allocated from now on. A second call does nothing.
pub fn install() -> Result<(), TchError> {
    // SAFETY: no arguments; the allocator lives as long as the process.
    unsafe { ffi::check(kdgat_allocator_install()) }
}

/// True if [`install`] was called.
pub fn is_installed() -> bool {
    // SAFETY: reads one pointer.
    unsafe { kdgat_allocator_installed() }
}

/// The current counts, all taken at the same moment.
pub fn stats() -> Stats {
    let mut stats = Stats::default();
    // SAFETY: writes one `KdgatHostStats`, which `Stats` mirrors.
    unsafe { kdgat_allocator_stats(&mut stats) };
    stats
}

/// Resets all peaks to the current values.
pub fn reset_peak() {
    // SAFETY: no arguments.
    unsafe { kdgat_allocator_reset_peak() }
}

/// Limits of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Limit in bytes on memory taken from the system, in use and cached. An allocation beyond it fails (see
    /// [`is_out_of_memory`]).
    pub limit_bytes: Option<u64>,
    /// Maximum of cached memory in bytes. In any case, memory in use and cached together stays within 1.25 times the
    /// most ever in use, or 128 MiB if that is more.
    pub keep_bytes: Option<u64>,
}

/// Sets the limits. Memory already in use stays allocated, even above a new limit.
pub fn set_limits(limits: Limits) {
    let bytes = |bytes: Option<u64>| bytes.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    // SAFETY: two numbers.
    unsafe { kdgat_allocator_set_limits(bytes(limits.limit_bytes), bytes(limits.keep_bytes)) }
}

/// Sets the limit in bytes on memory taken from the system, `None` for no limit. Caching is bounded by this limit
/// alone.
pub fn set_limit(limit_bytes: Option<u64>) {
    set_limits(Limits { limit_bytes, keep_bytes: None });
}

/// Returns all cached memory to the system.
pub fn release_cached() {
    // SAFETY: no arguments.
    unsafe { kdgat_allocator_release_kept() }
}

/// True if an error means that host or GPU memory ran out: freeing memory or a smaller batch can help.
pub fn is_out_of_memory(error: &TchError) -> bool {
    says_out_of_memory(&error.to_string())
}

/// True if the message is that of an error for which [`is_out_of_memory`] is true.
pub fn says_out_of_memory(text: &str) -> bool {
    const KNOWN: [&str; 7] = [
        "kdgat: host memory limit",
        "out of memory",
        "can't allocate memory",
        "std::bad_alloc",
        // CUDA's libraries allocate workspaces of their own (CUBLAS_, CUDNN_, CUSPARSE_...), and cuBLAS cannot
        // initialise without one.
        "_STATUS_ALLOC_FAILED",
        "_DEVICE_ALLOCATION_FAILED",
        "CUBLAS_STATUS_NOT_INITIALIZED",
    ];
    KNOWN.iter().any(|known| text.contains(known))
}

/// True if an allocation failed although the limit had room: other processes use the memory, perhaps only for a moment.
pub fn says_refused_inside_limit(text: &str) -> bool {
    text.contains("kdgat: host memory limit") && !text.contains("it would be exceeded")
}

/// The limit on host memory in bytes if the message is that of an allocation that would have exceeded it; the same work
/// would fail again under the same limit.
pub fn limit_reached(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("kdgat: host memory limit of ")?;
    let (bytes, rest) = rest.split_once(" bytes: ")?;
    rest.starts_with("it would be exceeded").then(|| bytes.parse().ok())?
}

/// Counts this thread's allocations under `phase` until the guard is dropped.
pub fn enter_phase(phase: Phase) -> PhaseGuard {
    // SAFETY: one number.
    PhaseGuard { previous: unsafe { kdgat_allocator_set_phase(phase as u8) }, thread_bound: std::marker::PhantomData }
}

/// Guard of a phase; ends it on the thread that entered it.
#[must_use = "the phase ends when this is dropped"]
#[derive(Debug)]
pub struct PhaseGuard {
    previous: u8,
    thread_bound: std::marker::PhantomData<*const ()>,
}

impl Drop for PhaseGuard {
    fn drop(&mut self) {
        // SAFETY: one number.
        unsafe { kdgat_allocator_set_phase(self.previous) };
    }
}

/// Counts the storage of `tensor` under `phase` from now on, such as gradients that a backward allocated among
/// activations.
///
/// Returns false if this allocator does not own the memory (a GPU's, allocated before [`install`], or mapped from a
/// file).
pub fn attribute(tensor: &Tensor, phase: Phase) -> Result<bool, TchError> {
    let mut attributed = false;
    // SAFETY: the tensor outlives the call.
    unsafe { ffi::check(kdgat_attribute(tensor.as_ptr(), phase as u8, &mut attributed))? };
    Ok(attributed)
}

/// Memory outside of this allocator that counts like its own until this is dropped, such as a process's part of memory that several share.
#[must_use = "the memory counts until this is dropped"]
#[derive(Debug)]
pub struct Outside {
    bytes: usize,
    phase: Phase,
}

impl Outside {
    /// Counts `bytes` under `phase`.
    ///
    /// # Errors
    /// If the limit would be exceeded.
    pub fn count(bytes: usize, phase: Phase) -> Result<Self, TchError> {
        // SAFETY: two numbers.
        unsafe { ffi::check(kdgat_allocator_count_outside(bytes, phase as u8))? };
        Ok(Self { bytes, phase })
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // SAFETY: two numbers, those that were counted.
        unsafe { kdgat_allocator_uncount_outside(self.bytes, self.phase as u8) };
    }
}

/// Equal buffers that are allocated once, for the tensors of batches, and reused in turn. They are counted in full from the start, so
/// that memory does not depend on how many batches wait at a moment.
#[derive(Debug)]
pub struct Buffers {
    pool: NonNull<BufferPool>,
    bytes: usize,
    count: usize,
}

// SAFETY: the pool is only accessed under the allocator's lock.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

/// The pool in C++.
enum BufferPool {}

impl Buffers {
    /// Bytes that a buffer needs beyond those of its tensors, for up to a hundred of them: headers and alignment.
    pub const OVERHEAD_BYTES: usize = 100 * 128;

    /// Allocates `count` buffers of `bytes` each, counted under this thread's phase.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(count: usize, bytes: usize) -> Result<Self, TchError> {
        let mut pool = std::ptr::null_mut();
        // SAFETY: two numbers, and a place for the pointer.
        unsafe { ffi::check(kdgat_buffers_new(count, bytes.max(1), &mut pool))? };
        let pool = NonNull::new(pool).ok_or_else(|| TchError::Torch("no pool of buffers was made".to_owned()))?;
        Ok(Self { pool, bytes, count })
    }

    /// Number of buffers.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of each buffer.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Places this thread's tensors in the buffer that was free for the longest time, until the guard is dropped. A tensor that does not
    /// fit, and all of them if no buffer is free or the thread is in one already, have memory of their own. The buffer is free again when all its tensors are dropped.
    pub fn enter(&self) -> BufferGuard {
        // SAFETY: the pool lives as long as `self`; a buffer in use keeps it beyond that.
        let has_entered = unsafe { kdgat_buffers_enter(self.pool.as_ptr()) };
        BufferGuard { has_entered, thread_bound: std::marker::PhantomData }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: not used after this; C++ releases it with the last tensor in it.
        unsafe { kdgat_buffers_drop(self.pool.as_ptr()) };
    }
}

/// Guard of a buffer; ends its use on the thread that entered it.
#[must_use = "the buffer is left when this is dropped"]
#[derive(Debug)]
pub struct BufferGuard {
    has_entered: bool,
    thread_bound: std::marker::PhantomData<*const ()>,
}

impl Drop for BufferGuard {
    fn drop(&mut self) {
        if self.has_entered {
            // SAFETY: no arguments.
            unsafe { kdgat_buffers_leave() };
        }
    }
}

/// Injected allocation failures, for tests of recovery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failures {
    /// None (the default).
    Never,
    /// The `n`-th allocation from now fails, counted from one.
    Nth(u64),
    /// Each allocation fails with some probability, as a function of the seed and of the number of allocations before
    /// it.
    Random {
        /// Seed of the random decisions.
        seed: u64,
        /// Probability of a failure, from 0 to 1.
        probability: f64,
    },
}

/// Makes allocations fail on all threads, with the error of a reached limit.
pub fn inject_failures(failures: Failures) {
    let (countdown, seed, threshold) = match failures {
        Failures::Never => (0, 0, 0),
        Failures::Nth(n) => (n, 0, 0),
        // A probability of one covers all but one of the 2^64 values.
        Failures::Random { seed, probability } => (0, seed, (probability * 18_446_744_073_709_551_616.0) as u64),
    };
    // SAFETY: three numbers.
    unsafe { kdgat_allocator_inject(countdown, seed, threshold) }
}

unsafe extern "C" {
    fn kdgat_allocator_install() -> *mut c_char;
    fn kdgat_allocator_installed() -> bool;
    fn kdgat_allocator_stats(stats: *mut Stats);
    fn kdgat_allocator_reset_peak();
    fn kdgat_allocator_set_limits(limit: usize, keep_limit: usize);
    fn kdgat_allocator_release_kept();
    fn kdgat_allocator_count_outside(bytes: usize, phase: u8) -> *mut c_char;
    fn kdgat_allocator_uncount_outside(bytes: usize, phase: u8);
    fn kdgat_allocator_inject(countdown: u64, seed: u64, threshold: u64);
    fn kdgat_buffers_new(count: usize, bytes: usize, pool: *mut *mut BufferPool) -> *mut c_char;
    fn kdgat_buffers_enter(pool: *mut BufferPool) -> bool;
    fn kdgat_buffers_leave();
    fn kdgat_buffers_drop(pool: *mut BufferPool);
    fn kdgat_allocator_set_phase(phase: u8) -> u8;
    fn kdgat_attribute(tensor: *const C_tensor, phase: u8, attributed: *mut bool) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use super::says_out_of_memory;

    #[test]
    fn errors_of_cudas_libraries_say_that_memory_ran_out() {
        for text in [
            "CUDA out of memory. Tried to allocate 2.00 GiB",
            "CUDA error: out of memory",
            "std::bad_alloc",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        ] {
            assert!(says_out_of_memory(text), "{text}");
        }
        for text in ["CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", "CUDA error: device-side assert triggered"] {
            assert!(!says_out_of_memory(text), "{text}");
        }
    }
}
