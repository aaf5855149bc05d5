//! Features of libtorch that `tch` does not expose. All C++ of the workspace is in this crate, and all `unsafe` code but
//! that of kdgat-mapped.
//!
//! - [`autograd`]: differentiable functions in Rust; [`checkpoint`]: gradient checkpointing; [`autocast`]: mixed
//!   precision; [`grad`]: assignment of `.grad`.
//! - [`parallel`] and [`simd`]: multithreaded, vectorised inner loops; [`philox`]: counter-based random numbers.
//! - [`view`]: tensors as slices; [`rows`]: matrices stored in separate pieces; [`mapped`]: tensors over mapped files.
//! - [`draw`]: random tensors that are a function of their seed alone.
//! - [`allocator`]: counts and limits host memory; [`device`]: streams, events and page-locked memory.
//! - [`load_cuda`]: one binary for machines with and without a GPU; [`cuda_program`]: CUDA kernels compiled at run
//!   time.
//! - [`process_group`]: sums over processes that train together; [`shared_slots`]: the same on one machine, through shared memory.
//! - [`version`]: version and capabilities of the loaded libtorch.

#![warn(missing_docs)]
#![allow(unsafe_code)]

pub mod allocator;
pub mod autocast;
pub mod autograd;
mod bus_error;
pub mod checkpoint;
mod cuda;
pub mod cuda_program;
pub mod device;
pub mod direct_read;
pub mod draw;
mod exit;
mod ffi;
pub mod grad;
pub mod heap;
pub mod mapped;
pub mod parallel;
pub mod philox;
pub mod process_group;
mod recover;
pub mod rows;
pub mod shared_slots;
pub mod simd;
mod vector_math;
pub mod version;
pub mod view;

pub use bus_error::explain_bus_errors;
pub use cuda::{CudaLibrary, TEST_CUDA_LIBRARY, load_cuda, number_gpus_by_bus, test_cuda_library};
pub use exit::{exit_now, skip_destructors_at_exit};
pub use recover::recover;
pub use vector_math::resolve_vector_math;
