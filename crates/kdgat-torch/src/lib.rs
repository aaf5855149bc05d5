//! What libtorch has and `tch` does not expose. The only `unsafe` code of the workspace, and the only C++.
//!
//! [`autograd`] makes differentiable functions in Rust ([`checkpoint`] is one), [`parallel`] and [`simd`] let their inner loops use
//! several threads and the machine's widest vectors, [`view`] reads tensors as slices, [`rows`] matrices that lie in
//! pieces, `mapped` lays tensors over files.
//! [`draw`] makes random tensors that are a function of their seed alone. [`allocator`] counts and limits host memory, [`device`] has streams, events and page-locked memory, and
//! [`load_cuda`] lets one binary serve machines with and without a GPU. [`cuda_program`] compiles kernels for it.
#![allow(unsafe_code)]

pub mod allocator;
pub mod autocast;
pub mod autograd;
mod bus_error;
pub mod checkpoint;
mod cuda;
pub mod cuda_program;
pub mod device;
pub mod draw;
mod exit;
mod ffi;
pub mod grad;
pub mod mapped;
pub mod parallel;
pub mod philox;
mod recover;
pub mod rows;
pub mod simd;
mod vector_math;
pub mod version;
pub mod view;

pub use bus_error::explain_bus_errors;
pub use cuda::{CudaLibrary, TEST_CUDA_LIBRARY, load_cuda, number_gpus_by_bus, test_cuda_library};
pub use exit::exit_now;
pub use recover::recover;
pub use vector_math::resolve_vector_math;
