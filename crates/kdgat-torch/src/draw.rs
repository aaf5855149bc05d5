//! Random tensors that are a function of their seed alone.
//!
//! `tch` draws from torch's default generator, which the whole process shares: between `manual_seed` and the draw,
//! another thread may advance or reseed it. Here each draw has its own generator. It yields the same numbers as the
//! default generator after the same seed.

use std::ffi::c_char;

use tch::{Device, Kind, TchError, Tensor};
use torch_sys::C_tensor;

use super::ffi::check;

/// A CPU tensor of numbers uniform in [`low`, `high`).
pub fn uniform(shape: &[i64], kind: Kind, low: f64, high: f64, seed: u64) -> Result<Tensor, TchError> {
    let tensor = Tensor::f_empty(shape, (kind, Device::Cpu))?;
    // SAFETY: a live tensor that nobody else holds.
    unsafe { check(kdgat_fill_uniform(tensor.as_ptr(), low, high, seed))? };
    Ok(tensor)
}

/// A CPU tensor of standard normal numbers.
pub fn normal(shape: &[i64], kind: Kind, seed: u64) -> Result<Tensor, TchError> {
    let tensor = Tensor::f_empty(shape, (kind, Device::Cpu))?;
    // SAFETY: a live tensor that nobody else holds.
    unsafe { check(kdgat_fill_normal(tensor.as_ptr(), seed))? };
    Ok(tensor)
}

unsafe extern "C" {
    fn kdgat_fill_uniform(tensor: *const C_tensor, low: f64, high: f64, seed: u64) -> *mut c_char;
    fn kdgat_fill_normal(tensor: *const C_tensor, seed: u64) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_drawn_is_an_error() {
        assert!(uniform(&[4], Kind::Float, 1.0, -1.0, 7).is_err());
        assert!(normal(&[4], Kind::Int64, 7).is_err());
    }
}
