//! Batch normalisation over the rows of several processes that compute parts of the same batch.
//!
//! While a [`Sums`] is entered, the statistics of a training forward, and the sums of its backward, are added up over the processes. Each
//! process then normalises its rows as one process would that has all of them.

use std::cell::RefCell;
use std::ffi::CStr;
use std::fmt::Debug;
use std::sync::Arc;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use tch::{Kind, TchError, Tensor};

use super::ModelError;
use super::fused::norm::{EPSILON, MOMENTUM};

/// Adds numbers up over the processes that train together. All call it in the same order with equally many numbers.
pub trait Sums: Debug + Send + Sync {
    /// Replaces each number by its sum over all processes, the same bits in each.
    ///
    /// # Errors
    /// A process that ended, or whose part of the batch failed.
    fn add_up(&self, numbers: &mut [f64]) -> Result<(), TchError>;

    /// Fills a contiguous tensor of f32, of whose elements each process has `stride` in a row, the last one fewer, with the elements of all.
    ///
    /// # Errors
    /// Those of [`Sums::add_up`].
    fn gather(&self, values: &mut Tensor, stride: usize) -> Result<(), TchError>;

    /// Replaces a contiguous tensor of f32 by its sum over all processes.
    ///
    /// # Errors
    /// Those of [`Sums::add_up`].
    fn sum(&self, values: &mut Tensor) -> Result<(), TchError>;
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn Sums>>> = const { RefCell::new(None) };
}

/// The exchanges of batch normalisation and of rows of a graph on this thread; `None` if this process has the whole batch.
pub fn current() -> Option<Arc<dyn Sums>> {
    CURRENT.with(|current| current.borrow().clone())
}

/// Runs `work` with these sums on this thread.
pub fn with<T>(sums: Option<Arc<dyn Sums>>, work: impl FnOnce() -> T) -> T {
    /// Puts the former sums back, also after a panic.
    struct Before(Option<Arc<dyn Sums>>);

    impl Drop for Before {
        fn drop(&mut self) {
            let before = self.0.take();
            CURRENT.with(|current| *current.borrow_mut() = before);
        }
    }

    let _before = Before(CURRENT.with(|current| current.replace(sums)));
    work()
}

/// Tensors of a batch normalisation.
#[derive(Clone, Copy, Debug)]
pub struct NormTensors<'a> {
    /// `[columns]` each: weight and bias.
    pub affine: [&'a Tensor; 2],
    /// `[columns]` each: running mean and variance to update, if they move.
    pub running: Option<[&'a Tensor; 2]>,
}

/// Normalises `x`, `[rows, columns]`, by the statistics of all processes' rows, composed of torch's operations.
///
/// # Errors
/// Those of [`Sums::add_up`] and of libtorch.
pub fn norm_of_all(x: &Tensor, tensors: NormTensors, sums: &Arc<dyn Sums>) -> Result<Tensor, ModelError> {
    let columns = x.size()[1];
    let wide = x.f_to_kind(Kind::Float)?;
    let of_columns = |x: &Tensor| x.f_sum_dim_intlist([0_i64].as_slice(), false, Kind::Double);
    let rows = Tensor::f_from_slice(&[x.size()[0] as f64])?.f_to_device(x.device())?;
    let first = total(&Tensor::f_cat(&[&rows, &of_columns(&wide)?], 0)?, sums)?;
    let count = first.f_double_value(&[0])?;
    let mean = first.f_narrow(0, 1, columns)?.f_div_scalar(count)?;
    let centred = wide.f_sub(&mean.f_to_kind(Kind::Float)?)?;
    let squares = total(&of_columns(&centred.f_square()?)?, sums)?;
    let variance = squares.f_div_scalar(count)?;
    // A single row has no variance; the running statistics then do not change.
    if let Some([running_mean, running_variance]) = tensors.running.filter(|_| count > 1.0) {
        let _ = tch::no_grad(|| {
            let unbiased = squares.f_div_scalar(count - 1.0)?.f_to_kind(Kind::Float)?;
            let _ = running_mean.shallow_clone().f_lerp_(&mean.f_to_kind(Kind::Float)?, MOMENTUM)?;
            running_variance.shallow_clone().f_lerp_(&unbiased, MOMENTUM)
        })?;
    }
    let [weight, bias] = tensors.affine;
    let scale = variance.f_add_scalar(EPSILON)?.f_rsqrt()?.f_to_kind(Kind::Float)?.f_mul(weight)?;
    Ok(centred.f_mul(&scale)?.f_add(bias)?.f_to_kind(x.f_kind()?)?)
}

/// The sum of `[numbers]`, f64, over all processes; differentiable.
fn total(numbers: &Tensor, sums: &Arc<dyn Sums>) -> Result<Tensor, TchError> {
    autograd::apply_one(Total { sums: Arc::clone(sums) }, &[numbers])
}

struct Total {
    sums: Arc<dyn Sums>,
}

impl Total {
    fn of(&self, numbers: &Tensor) -> Result<Tensor, TchError> {
        let mut values: Vec<f64> = Vec::try_from(numbers.f_detach()?.f_to_kind(Kind::Double)?.f_contiguous()?)?;
        self.sums.add_up(&mut values)?;
        Tensor::f_from_slice(&values)?.f_to_device(numbers.device())
    }
}

impl Function for Total {
    const NAME: &'static CStr = c"sum over processes";

    fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        Ok(Forward { outputs: vec![self.of(inputs[0])?], saved: Vec::new() })
    }

    /// Every process's loss depends on the sum, so that the gradient is the sum of theirs.
    fn backward(&self, _: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        Ok(vec![gradients[0].as_ref().map(|gradient| self.of(gradient)).transpose()?])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Barrier, Mutex};

    use tch::Device;

    use super::*;

    /// Sums over threads, each of which stands for a process.
    #[derive(Debug)]
    pub(crate) struct OverThreads {
        barrier: Barrier,
        total: Mutex<Vec<f64>>,
    }

    impl OverThreads {
        pub(crate) fn sums_of(threads: usize) -> Arc<dyn Sums> {
            Arc::new(Self { barrier: Barrier::new(threads), total: Mutex::default() })
        }
    }

    impl Sums for OverThreads {
        /// Elements that are not a thread's own are 0 before.
        fn gather(&self, values: &mut Tensor, _: usize) -> Result<(), TchError> {
            self.sum(values)
        }

        fn sum(&self, values: &mut Tensor) -> Result<(), TchError> {
            let mut numbers: Vec<f64> = Vec::try_from(values.f_to_kind(Kind::Double)?.f_flatten(0, -1)?)?;
            self.add_up(&mut numbers)?;
            let sums = Tensor::f_from_slice(&numbers)?.f_view(values.size().as_slice())?;
            tch::no_grad(|| values.f_copy_(&sums))
        }

        fn add_up(&self, numbers: &mut [f64]) -> Result<(), TchError> {
            self.barrier.wait();
            {
                let mut total = self.total.lock().unwrap();
                total.resize(numbers.len(), 0.0);
                total.iter_mut().zip(&*numbers).for_each(|(total, number)| *total += number);
            }
            self.barrier.wait();
            numbers.copy_from_slice(&self.total.lock().unwrap());
            if self.barrier.wait().is_leader() {
                self.total.lock().unwrap().clear();
            }
            self.barrier.wait();
            Ok(())
        }
    }

    /// Output, gradients of x, weight and bias, and running statistics of a normalisation of `x`.
    pub(crate) type NormResults = Vec<Tensor>;

    /// Calls `norm` with the rows before and from `at` on in two threads, and compares the results with those of all rows.
    pub(crate) fn expect_same_as_whole(norm: impl Fn(&Tensor, &Tensor) -> NormResults + Sync, columns: i64, at: i64) {
        tch::manual_seed(3);
        let x = Tensor::randn([50, columns], (Kind::Float, Device::Cpu)) * 2.0 + 1.5;
        let gradient = Tensor::randn([50, columns], (Kind::Float, Device::Cpu));
        let whole = norm(&x, &gradient);
        let sums = OverThreads::sums_of(2);
        let parts: Vec<NormResults> = std::thread::scope(|scope| {
            let (norm, sums) = (&norm, &sums);
            let start = |(first, rows): (i64, i64)| {
                let (x, gradient) = (x.narrow(0, first, rows).copy(), gradient.narrow(0, first, rows).copy());
                scope.spawn(move || with(Some(Arc::clone(sums)), || norm(&x, &gradient)))
            };
            let threads: Vec<_> = [(0, at), (at, 50 - at)].map(start).into_iter().collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let close = |found: &Tensor, expected: &Tensor| {
            let distance = (found - expected).abs().max().double_value(&[]);
            assert!(
                distance < 2e-5 * (1.0 + expected.abs().max().double_value(&[])),
                "{distance}: {found:?} {expected:?}"
            );
        };
        // Rows of output and gradient, then gradients of weight and bias, which add up, then running statistics, which are equal.
        for index in 0..2 {
            close(&Tensor::cat(&[&parts[0][index], &parts[1][index]], 0), &whole[index]);
        }
        for index in 2..4 {
            close(&(&parts[0][index] + &parts[1][index]), &whole[index]);
        }
        for index in 4..6 {
            close(&parts[0][index], &whole[index]);
            assert!(parts[0][index] == parts[1][index]);
        }
    }

    #[test]
    fn composed_norms_of_parts_are_those_of_the_whole() {
        let results = |x: &Tensor, gradient: &Tensor| {
            let leaf = |tensor: Tensor| tensor.set_requires_grad(true);
            let ones = Tensor::ones([5], (Kind::Float, Device::Cpu));
            let (x, weight, bias) = (leaf(x.copy()), leaf(&ones * 1.3), leaf(&ones * 0.2));
            let running = [ones.zeros_like(), ones.copy()];
            let tensors = NormTensors { affine: [&weight, &bias], running: Some([&running[0], &running[1]]) };
            let output = match current() {
                Some(sums) => norm_of_all(&x, tensors, &sums).unwrap(),
                None => {
                    let [mean, variance] = &running;
                    let (bias, weight) = (Some(&bias), Some(&weight));
                    x.batch_norm(weight, bias, Some(mean), Some(variance), true, MOMENTUM, EPSILON, true)
                }
            };
            (&output * gradient).sum(Kind::Float).backward();
            let [mean, variance] = running;
            vec![output.detach(), x.grad(), weight.grad(), bias.grad(), mean, variance]
        };
        expect_same_as_whole(results, 5, 20);
        expect_same_as_whole(results, 5, 1);
    }
}
