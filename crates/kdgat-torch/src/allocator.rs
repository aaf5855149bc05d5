//! The allocator of host tensors: exact counts, a limit that refuses instead of being killed, freed memory kept for
//! the next step.
//!
//! Call [`install`] at the start of `main`, before the first tensor: memory from before is neither counted nor
//! limited, though it is freed correctly. Each block belongs to the [`Phase`] of the thread that asked for it.

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::ffi;

/// What memory is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Nothing named.
    #[default]
    Other,
    /// Batches and what they are made of.
    Data,
    /// Weights of the model that is trained.
    Parameters,
    /// Gradients of those weights.
    Gradients,
    /// States of the optimiser.
    Optimizer,
    /// Everything between the batch and the loss.
    Activations,
    /// A teacher's weights and activations.
    Teacher,
    /// Targets kept for later.
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

    /// As columns and tables call it.
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

    /// This phase's entry of an array in [`Stats`].
    pub fn of(self, bytes: &[u64; PHASES]) -> u64 {
        bytes[self as usize]
    }
}

/// Room for phases in [`Stats`].
pub const PHASES: usize = 16;

/// The counts at one moment. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stats {
    /// In tensors now, as requested.
    pub current: u64,
    /// The most that `current` was since [`reset_peak`].
    pub peak: u64,
    /// Taken from the system for tensors, roundings included.
    pub in_use: u64,
    /// Taken from the system and kept for tensors to come.
    pub kept: u64,
    /// The most that `in_use + kept` was since [`reset_peak`]; never above the limit.
    pub peak_reserved: u64,
    /// See [`set_limit`]; `u64::MAX` when there is none.
    pub limit: u64,
    /// Allocations since the start.
    pub allocations: u64,
    /// Those of them that took kept memory.
    pub reused: u64,
    /// Those refused.
    pub failures: u64,
    /// `current` by phase.
    pub phases: [u64; PHASES],
    /// `current` by phase at the moment of `peak`: these add up to it.
    pub phases_at_peak: [u64; PHASES],
    /// The most that each phase had since [`reset_peak`].
    pub phase_peaks: [u64; PHASES],
}

impl Stats {
    /// Bytes that this process holds for tensors.
    pub fn reserved(&self) -> u64 {
        self.in_use + self.kept
    }
}

/// Makes this the allocator of all host tensors from now on. A second call does nothing.
pub fn install() -> Result<(), TchError> {
    // SAFETY: no arguments; the allocator lives as long as the process.
    unsafe { ffi::check(kdgat_allocator_install()) }
}

/// Whether [`install`] was called.
pub fn is_installed() -> bool {
    // SAFETY: reads one pointer.
    unsafe { kdgat_allocator_installed() }
}

/// The counts now, all of the same moment.
pub fn stats() -> Stats {
    let mut stats = Stats::default();
    // SAFETY: writes one `KdgatHostStats`, of which `Stats` is the mirror.
    unsafe { kdgat_allocator_stats(&mut stats) };
    stats
}

/// Lets the peaks begin anew from what is in use now.
pub fn reset_peak() {
    // SAFETY: no arguments.
    unsafe { kdgat_allocator_reset_peak() }
}

/// What the allocator may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes taken from the system, in use and kept, above which an allocation fails (see [`is_out_of_memory`]).
    pub limit_bytes: Option<u64>,
    /// Bytes of freed blocks to keep at most. In any case no more is kept than the largest step so far needed.
    pub keep_bytes: Option<u64>,
}

/// Sets the limits. What is in use already stays, even above a new limit.
pub fn set_limits(limits: Limits) {
    let bytes = |bytes: Option<u64>| bytes.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    // SAFETY: two numbers.
    unsafe { kdgat_allocator_set_limits(bytes(limits.limit_bytes), bytes(limits.keep_bytes)) }
}

/// Sets the limit of bytes taken from the system, `None` for none, and keeps freed blocks as far as it allows.
pub fn set_limit(limit_bytes: Option<u64>) {
    set_limits(Limits { limit_bytes, keep_bytes: None });
}

/// Returns all kept memory to the system.
pub fn release_cached() {
    // SAFETY: no arguments.
    unsafe { kdgat_allocator_release_kept() }
}

/// Whether an error says that host memory or a GPU's memory ran out: then freeing and a smaller batch can help.
pub fn is_out_of_memory(error: &TchError) -> bool {
    says_out_of_memory(&error.to_string())
}

/// Whether a message is that of an error for which [`is_out_of_memory`] holds.
pub fn says_out_of_memory(text: &str) -> bool {
    const KNOWN: [&str; 6] = [
        "kdgat: host memory limit",
        "out of memory",
        "can't allocate memory",
        // CUDA's libraries allocate workspaces of their own (CUBLAS_, CUDNN_, CUSPARSE_...), and cuBLAS does not initialise
        // without one.
        "_STATUS_ALLOC_FAILED",
        "_DEVICE_ALLOCATION_FAILED",
        "CUBLAS_STATUS_NOT_INITIALIZED",
    ];
    KNOWN.iter().any(|known| text.contains(known))
}

/// Whether a message is that of a refusal although the limit had room: others took the memory, perhaps for a moment.
pub fn says_refused_inside_limit(text: &str) -> bool {
    text.contains("kdgat: host memory limit") && !text.contains("it would be exceeded")
}

/// The limit of host memory, if the message is that of an allocation that would have exceeded it: the same work will fail
/// again under the same limit.
pub fn limit_reached(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("kdgat: host memory limit of ")?;
    let (bytes, rest) = rest.split_once(" bytes: ")?;
    rest.starts_with("it would be exceeded").then(|| bytes.parse().ok())?
}

/// Lets this thread's allocations belong to `phase` until the guard is dropped.
pub fn enter_phase(phase: Phase) -> PhaseGuard {
    // SAFETY: one number.
    PhaseGuard { previous: unsafe { kdgat_allocator_set_phase(phase as u8) }, thread_bound: std::marker::PhantomData }
}

/// Ends a phase on the thread that entered it.
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

/// Counts the storage of `tensor` to `phase` from now on, such as gradients that a backward made among activations.
///
/// False when its memory is not this allocator's (a GPU's, from before [`install`], or mapped from a file).
pub fn attribute(tensor: &Tensor, phase: Phase) -> Result<bool, TchError> {
    let mut attributed = false;
    // SAFETY: the tensor outlives the call.
    unsafe { ffi::check(kdgat_attribute(tensor.as_ptr(), phase as u8, &mut attributed))? };
    Ok(attributed)
}

/// Failures to be injected, for tests of recovery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failures {
    /// None: the normal state.
    Never,
    /// The `n`-th allocation from now, counted from one.
    Nth(u64),
    /// Each allocation with `probability`, as a function of `seed` and of how many came before.
    Random { seed: u64, probability: f64 },
}

/// Lets allocations fail, on all threads, with the error of a limit that is reached.
pub fn inject_failures(failures: Failures) {
    let (countdown, seed, threshold) = match failures {
        Failures::Never => (0, 0, 0),
        Failures::Nth(n) => (n, 0, 0),
        // A probability of one is all but one of 2^64 values.
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
    fn kdgat_allocator_inject(countdown: u64, seed: u64, threshold: u64);
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
