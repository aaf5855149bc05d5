//! What libtorch has and `tch` does not expose. The only `unsafe` code of the crate, and the only C++.
//!
//! [`autograd`] makes differentiable functions in Rust, [`parallel`] and [`simd`] let their inner loops use
//! libtorch's threads and the machine's widest vectors, [`view`] reads tensors as slices.
#![allow(unsafe_code)]

pub mod autograd;
mod ffi;
pub mod grad;
pub mod parallel;
pub mod philox;
pub mod simd;
pub mod view;
