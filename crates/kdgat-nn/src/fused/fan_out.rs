//! A tensor that several parts of a model read.
//!
//! libtorch adds the gradients of such a tensor two at a time as they arrive: each addition costs a pass over memory
//! and a loop of its threads. Here all of them are added at once.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::{Blocks, applies, expect_elements};
use crate::attention::Backend;

/// Handles to `tensor`, one for each reader, in the order in which they read.
///
/// The gradient of `tensor` is the sum of the handles' gradients from the last to the first. This is libtorch's order
/// if each handle is read once, since the backward starts with the latest operation.
pub fn fan_out<const READERS: usize>(tensor: &Tensor, kernel: Backend) -> Result<[Tensor; READERS], TchError> {
    let shared = || Ok(std::array::from_fn(|_| tensor.shallow_clone()));
    if !tensor.requires_grad() || !applies(kernel, &[tensor]) || !tensor.is_contiguous() {
        return shared();
    }
    let handles = autograd::apply(FanOut { readers: READERS }, &[tensor])?;
    handles.try_into().or_else(|_| shared())
}

struct FanOut {
    readers: usize,
}

impl Function for FanOut {
    const NAME: &'static CStr = c"fan-out";

    fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        let outputs = (0..self.readers).map(|_| inputs[0].f_data()).collect::<Result<_, _>>()?;
        Ok(Forward { outputs, saved: Vec::new() })
    }

    fn backward(&self, _: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        let mut parts = gradients.into_iter().rev().flatten();
        let Some(first) = parts.next() else { return Ok(vec![None]) };
        let Some(second) = parts.next() else { return Ok(vec![Some(first)]) };
        // Adds in place if nobody else reads one of the gradients: no further memory is needed.
        let (mut sum, other) = match [&first, &second].map(is_ours) {
            [true, _] => (first, second),
            [false, true] => (second, first),
            [false, false] => (first.f_contiguous()?.f_detach_copy()?, second),
        };
        let others: Vec<Tensor> = [other].into_iter().chain(parts).collect();
        add(&mut sum, &others)?;
        Ok(vec![Some(sum)])
    }
}

fn is_ours(gradient: &Tensor) -> bool {
    gradient.is_contiguous() && view::is_only_handle(gradient)
}

/// Adds `others` to `sum`, one after the other.
fn add(sum: &mut Tensor, others: &[Tensor]) -> Result<(), TchError> {
    let length = sum.numel();
    let others = others.iter().map(Tensor::f_contiguous).collect::<Result<Vec<_>, _>>()?;
    let values = others.iter().map(|other| {
        expect_elements("a gradient", other, length)?;
        view::read::<f32>("a gradient", other)
    });
    let values = values.collect::<Result<Vec<_>, _>>()?;
    let blocks = Blocks::new(length, 1 + others.len(), 1);
    let sums = Parts::new(view::write("a sum of gradients", sum)?, blocks.bounds(1));
    blocks.for_each(|block| {
        let (sum, elements) = (sums.take(block), blocks.rows(block));
        for other in &values {
            dispatch(Add { sum: &mut *sum, other: &other[elements.clone()] });
        }
    });
    Ok(())
}

struct Add<'a> {
    sum: &'a mut [f32],
    other: &'a [f32],
}

impl Kernel for Add<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (sum, other) in self.sum.iter_mut().zip(self.other) {
            *sum += other;
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// The gradient of a sum over readers, each of which weights the values by its own tensor; a reader with `None`
    /// does nothing.
    fn gradient(x: &Tensor, weights: &[Option<Tensor>; 4], kernel: Backend) -> Tensor {
        let x = x.copy().set_requires_grad(true);
        let handles: [Tensor; 4] = fan_out(&(&x * 1.0), kernel).unwrap();
        let mut loss = Tensor::zeros([], (Kind::Float, Device::Cpu));
        for (handle, weight) in handles.iter().zip(weights) {
            if let Some(weight) = weight {
                loss += (handle * weight).sum(Kind::Float);
            }
        }
        loss.backward();
        x.grad()
    }

    #[test]
    fn gradients_are_those_of_libtorch_to_the_bit() {
        let normal = |size: [i64; 2]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        for size in [[0, 3], [1, 1], [37, 16], [5000, 16]] {
            for readers in 1..16 {
                let weights = std::array::from_fn(|reader| (readers >> reader & 1 == 1).then(|| normal(size)));
                let x = normal(size);
                let [found, expected] = [Backend::Auto, Backend::Composed].map(|kernel| gradient(&x, &weights, kernel));
                assert!(found == expected, "{size:?}, readers {readers:04b}");
            }
        }
    }

    #[test]
    fn handles_share_values_and_are_recorded_only_if_needed() {
        let x = Tensor::randn([8, 4], (Kind::Float, Device::Cpu));
        let handles: [Tensor; 2] = fan_out(&x, Backend::Auto).unwrap();
        assert!(handles.iter().all(|handle| handle.data_ptr() == x.data_ptr() && !handle.requires_grad()));
        let x = x.set_requires_grad(true);
        let handles: [Tensor; 2] = fan_out(&x, Backend::Auto).unwrap();
        assert!(handles.iter().all(|handle| handle.data_ptr() == x.data_ptr() && handle.requires_grad()));
        let handles: [Tensor; 2] = tch::no_grad(|| fan_out(&x, Backend::Auto).unwrap());
        assert!(handles.iter().all(|handle| handle.data_ptr() == x.data_ptr()));
    }
}
