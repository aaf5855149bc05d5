//! Inner loops compiled for several vector widths, the widest that the machine has chosen at run time.
//!
//! A [`Kernel`] is written once, in plain Rust over fixed-size arrays; it is compiled anew for each
//! instruction set, where the compiler turns the arrays into vectors. Everything it calls in its inner loops
//! has to be `#[inline(always)]`, or it is compiled without those instructions.

use std::sync::OnceLock;

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every machine of this architecture has.
    Baseline,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

impl Level {
    /// All levels this machine can run, narrowest first.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
            if avx2 {
                levels.push(Self::Avx2);
            }
            if avx2 && has_avx512() {
                levels.push(Self::Avx512);
            }
        }
        levels
    }

    /// The widest level this machine can run.
    pub fn best() -> Self {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Baseline))
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq")
}

/// What a kernel may rely on while it runs.
pub trait Instructions: Copy {
    /// Whether `mul_add` is one instruction (and not a call of a library).
    const FUSED: bool;
}

/// Work to be compiled for several instruction sets.
pub trait Kernel {
    /// What it computes.
    type Output;
    /// The work. Mark it `#[inline(always)]`.
    fn run<I: Instructions>(self) -> Self::Output;
}

/// Runs `kernel` on the widest vectors of this machine.
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    dispatch_at(Level::best(), kernel)
}

/// Runs `kernel` at `level`.
///
/// # Panics
/// When this machine does not have it.
pub fn dispatch_at<K: Kernel>(level: Level, kernel: K) -> K::Output {
    assert!(level <= Level::best(), "this machine has {:?}, not {level:?}", Level::best());
    match level {
        // SAFETY (both): the machine has these instructions, as just checked.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::run_avx2(kernel) },
        _ => kernel.run::<Baseline>(),
    }
}

#[derive(Clone, Copy)]
struct Baseline;

impl Instructions for Baseline {
    const FUSED: bool = cfg!(target_arch = "aarch64");
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Instructions, Kernel};

    #[derive(Clone, Copy)]
    struct Avx2;
    #[derive(Clone, Copy)]
    struct Avx512;

    impl Instructions for Avx2 {
        const FUSED: bool = true;
    }

    impl Instructions for Avx512 {
        const FUSED: bool = true;
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx2>()
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx512>()
    }
}
