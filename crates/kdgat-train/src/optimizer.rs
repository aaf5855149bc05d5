//! Adam (Kingma & Ba 2015) with coupled weight decay, on the flat parameters, and gradient clipping.
//!
//! Each of several processes has the state of its share of many parameters, updates that share, and gets the others from their processes
//! (stage 1 of ZeRO, Rajbhandari et al. 2020). All have all gradients, so that the norm is the same in each; an element's update depends on
//! no other element. The parameters are those of an update by one process, bit by bit with the fused pass; torch's operations may round
//! otherwise where they divide large tensors among threads.
//!
//! An exponential moving average of the parameters (Polyak & Juditsky 1992) may go along, like the moments. It takes the parameters' place while
//! the model is validated and saved.

use std::ops::Range;

use kdgat_nn::ModelError;
use kdgat_nn::attention::Backend;
use kdgat_torch::allocator::{self, Phase};
use tch::{Device, Kind, TchError, Tensor};

use super::error::FitError;
use super::fused_adam::{self, Update};
use super::gpu_adam::GpuAdam;
use super::processes::{Processes, Stride};
use super::trainable::Trainable;
use crate::memory::{Meter, retry_on_oom};

const BETA_FIRST: f64 = 0.9;
const BETA_SECOND: f64 = 0.999;
const EPSILON: f64 = 1e-8;
/// Shares begin at a multiple of this many parameters: at the same place in a vector of any instruction set as in the whole tensor.
const ALIGNMENT: usize = 64;

/// Parameters that are exchanged with their average at a time: the memory for a copy of them is all that it takes.
const EXCHANGED: i64 = 1 << 20;

/// Bytes of a parameter's two moments.
const STATE_BYTES: u64 = 2 * size_of::<f32>() as u64;
/// Smallest state that is divided among processes: exchanging the parameters of a smaller one takes a larger share of a step than the memory
/// is worth.
const LEAST_DIVIDED_BYTES: u64 = 4 << 20;

/// The share of the parameters whose state a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    rank: usize,
    size: usize,
    /// A smaller state is whole in each process.
    least_bytes: u64,
}

impl Share {
    /// All parameters.
    pub const WHOLE: Self = Self { rank: 0, size: 1, least_bytes: 0 };

    /// The share of one of the processes that train together.
    pub fn of(processes: &Processes) -> Self {
        Self { rank: processes.rank(), size: processes.size(), least_bytes: LEAST_DIVIDED_BYTES }
    }

    /// The same share of a state of any size.
    #[cfg(test)]
    pub(crate) fn of_any_size(self) -> Self {
        Self { least_bytes: 0, ..self }
    }

    /// The division of `total` parameters; `None` if each process has the state of all.
    fn stride(self, total: usize) -> Option<Stride> {
        let is_divided = self.size > 1 && STATE_BYTES * total as u64 >= self.least_bytes;
        is_divided.then(|| Stride(total.div_ceil(self.size).next_multiple_of(ALIGNMENT)))
    }

    /// The parameters of this share of `total`.
    fn range(self, total: usize) -> Range<usize> {
        self.stride(total).map_or(0..total, |stride| stride.range(self.rank, total))
    }

    /// This share of a flat tensor, a view.
    fn narrow(self, tensor: &Tensor) -> Result<Tensor, TchError> {
        let range = self.range(tensor.numel());
        tensor.f_narrow(0, range.start as i64, range.len() as i64)
    }
}

/// Settings of Adam that stay constant during a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamOptions {
    /// L2 penalty, added to the gradient as PyTorch's `Adam` does.
    pub weight_decay: f64,
    /// Maximum norm of the gradient; 0 disables clipping.
    pub gradient_clip: f64,
    /// Keep the state in host memory and compute the update there.
    pub offload: bool,
    /// `Composed` uses torch's operations; other backends use one fused pass: in Rust on the CPU, a kernel on a GPU.
    pub kernel: Backend,
    /// The parameters that this process updates.
    pub share: Share,
    /// Decay of the moving average of the parameters in each update; 0: none is kept.
    pub ema_decay: f64,
}

impl AdamOptions {
    /// Plain Adam by one process, without penalty, clipping and average.
    pub const PLAIN: Self = Self {
        weight_decay: 0.0,
        gradient_clip: 0.0,
        offload: false,
        kernel: Backend::Auto,
        share: Share::WHOLE,
        ema_decay: 0.0,
    };

    /// Bytes of this process's state for so many parameters.
    pub fn state_bytes(&self, num_parameters: usize) -> u64 {
        self.bytes_of_one() * self.share.range(num_parameters).len() as u64
    }

    fn bytes_of_one(&self) -> u64 {
        STATE_BYTES + if self.keeps_average() { size_of::<f32>() as u64 } else { 0 }
    }

    fn keeps_average(&self) -> bool {
        self.ema_decay > 0.0
    }

    /// Weight of new parameters in the average after `steps` earlier updates: 1 − min(`ema_decay`, n / (n + 9)). The decay rises from 0, as
    /// that of TensorFlow's `ExponentialMovingAverage` does, so that the first average is made of the first parameters that were learned.
    fn share_in_average(&self, steps: i64) -> f64 {
        let steps = steps as f64;
        1.0 - self.ema_decay.min(steps / (steps + 9.0))
    }
}

/// State of all parameters, by name.
pub type State = Vec<(&'static str, Tensor)>;

/// Adam's state: flat tensors `[num_parameters]`, or this process's share of them, and the step count.
#[derive(Debug)]
pub struct Adam {
    options: AdamOptions,
    /// Number of all parameters.
    total: usize,
    steps: i64,
    mean: Tensor,
    mean_square: Tensor,
    /// `None` if no average is kept.
    average: Option<Tensor>,
    /// `None` on the CPU, and where the update is composed of torch's operations.
    kernel: Option<GpuAdam>,
}

impl Adam {
    /// A fresh state for `trainable`.
    pub fn new(trainable: &Trainable, options: AdamOptions) -> Result<Self, ModelError> {
        let _phase = allocator::enter_phase(Phase::Optimizer);
        let home = if options.offload { Device::Cpu } else { trainable.values.device() };
        let total = trainable.values.numel();
        let zeros = || Tensor::f_zeros([options.share.range(total).len() as i64], (Kind::Float, home));
        let (mean, mean_square) = (zeros()?, zeros()?);
        let average = options.keeps_average().then(zeros).transpose()?;
        let kernel = if options.kernel == Backend::Composed { None } else { GpuAdam::of(home) };
        Ok(Self { options, total, steps: 0, mean, mean_square, average, kernel })
    }

    /// Makes one update of this process's share with learning rate `lr`, then zeroes all gradients. Does not synchronise with the device
    /// unless the state is in host memory. Repeatable if it ran out of memory: nothing has changed then.
    ///
    /// Returns the gradient norm before clipping, a scalar tensor.
    pub fn step(&mut self, trainable: &mut Trainable, lr: f64) -> Result<Tensor, ModelError> {
        let _phase = allocator::enter_phase(Phase::Optimizer);
        let is_fused = self.options.kernel != Backend::Composed && trainable.values.device() == Device::Cpu;
        if is_fused || self.kernel.is_some() {
            return tch::no_grad(|| self.fused_step(trainable, lr));
        }
        let norm = tch::no_grad(|| self.step_without_graph(trainable, lr))?;
        retry_on_oom(Meter::new(trainable.values.device()), || Ok::<_, ModelError>(trainable.zero_gradients()?))?;
        Ok(norm)
    }

    fn fused_step(&mut self, trainable: &mut Trainable, lr: f64) -> Result<Tensor, ModelError> {
        let steps = (self.steps + 1) as i32;
        let update = Update {
            clip: 1.0,
            weight_decay: self.options.weight_decay as f32,
            share_first: (1.0 - BETA_FIRST) as f32,
            share_second: (1.0 - BETA_SECOND) as f32,
            beta_second: BETA_SECOND as f32,
            step: (lr / (1.0 - BETA_FIRST.powi(steps))) as f32,
            correction: (1.0 - BETA_SECOND.powi(steps)).sqrt() as f32,
            epsilon: EPSILON as f32,
        };
        let (share, clip) = (self.options.share, self.options.gradient_clip);
        let share_in_average = self.options.share_in_average(self.steps) as f32;
        let (mut values, mut gradients) = (share.narrow(&trainable.values)?, share.narrow(&trainable.gradients)?);
        let average = self.average.as_mut().map(|average| (average, share_in_average));
        let tensors = [&mut values, &mut gradients, &mut self.mean, &mut self.mean_square];
        let norm = match &self.kernel {
            Some(kernel) => {
                let norm = trainable.gradients.f_norm()?;
                kernel.update(update, (clip, &norm), tensors, average)?;
                norm
            }
            None => {
                let norm = fused_adam::norm(&trainable.gradients)?;
                let norm_tensor = Tensor::f_from_slice(&[norm as f32])?.f_reshape([] as [i64; 0])?;
                // Like PyTorch's clip_grad_norm_; a NaN norm stays NaN.
                let clip = match clip > 0.0 {
                    true if clip / (norm + 1e-6) >= 1.0 => 1.0,
                    true => clip / (norm + 1e-6),
                    false => 1.0,
                };
                fused_adam::update(tensors, Update { clip: clip as f32, ..update })?;
                if let Some((average, share)) = average {
                    fused_adam::average(average, &values, share)?;
                }
                norm_tensor
            }
        };
        self.steps += 1;
        if share.stride(self.total).is_some() {
            // The update has zeroed its own. It must not be repeated from here on.
            retry_on_oom(Meter::new(trainable.values.device()), || Ok::<_, ModelError>(trainable.zero_gradients()?))?;
        }
        Ok(norm)
    }

    /// Gets the parameters that the other processes have updated, if each has its share.
    ///
    /// # Errors
    /// A process that ended or failed.
    pub fn gather(&self, trainable: &mut Trainable, processes: &Processes) -> Result<(), FitError> {
        match self.options.share.stride(self.total) {
            Some(stride) => Ok(processes.gather_shares(&mut trainable.values, stride)?),
            None => Ok(()),
        }
    }

    /// Everything that can fail comes before the first change, so that a step that ran out of memory can be repeated.
    fn step_without_graph(&mut self, trainable: &mut Trainable, lr: f64) -> Result<Tensor, ModelError> {
        let norm = trainable.gradients.f_norm()?;
        let home = self.mean.device();
        let mut gradients = self.options.share.narrow(&trainable.gradients)?.f_to_device(home)?;
        let mut updated = self.options.share.narrow(&trainable.values.f_detach()?)?;
        let values = updated.f_to_device(home)?;
        if self.options.gradient_clip > 0.0 {
            // Like PyTorch's clip_grad_norm_: factor clip / (norm + 1e-6), at most 1; computed on the device.
            let factor = norm.f_add_scalar(1e-6)?.f_reciprocal()?.f_mul_scalar(self.options.gradient_clip)?;
            gradients = gradients.f_mul(&factor.f_clamp_max(1.0)?.f_to_device(home)?)?;
        }
        if self.options.weight_decay > 0.0 {
            gradients = gradients.f_add(&values.f_mul_scalar(self.options.weight_decay)?)?;
        }
        let steps = self.steps + 1;
        let mean = self.mean.f_lerp(&gradients, 1.0 - BETA_FIRST)?;
        let square = gradients.f_square()?.f_mul_scalar(1.0 - BETA_SECOND)?;
        drop(gradients);
        let mean_square = self.mean_square.f_mul_scalar(BETA_SECOND)?.f_add(&square)?;
        drop(square);
        let correction_first = 1.0 - BETA_FIRST.powi(steps as i32);
        let correction_second = 1.0 - BETA_SECOND.powi(steps as i32);
        let denominator = mean_square.f_sqrt()?.f_div_scalar(correction_second.sqrt())?.f_add_scalar(EPSILON)?;
        let update = mean.f_div(&denominator)?.f_mul_scalar(-lr / correction_first)?;
        drop(denominator);
        let values = values.f_add(&update)?;
        drop(update);
        let share = self.options.share_in_average(self.steps);
        let average = self.average.as_ref().map(|average| average.f_lerp(&values, share)).transpose()?;
        updated.f_copy_(&values)?;
        (self.mean, self.mean_square, self.average, self.steps) = (mean, mean_square, average, steps);
        Ok(norm)
    }

    /// Lets the parameters and their average change places; a second call undoes it. Nothing happens if no average is kept. Each of several
    /// processes does so with its share, and gets the others'.
    ///
    /// # Errors
    /// Want of memory for a copy of a few parameters, before anything has changed; a process that ended or failed.
    pub fn exchange_average(
        &mut self,
        trainable: &mut Trainable,
        processes: Option<&Processes>,
    ) -> Result<(), FitError> {
        // Where every update was discarded so far (an overflow of half precision), there is no average.
        let Some(average) = self.average.as_mut().filter(|_| self.steps > 0) else { return Ok(()) };
        let values = self.options.share.narrow(&trainable.values.f_detach()?)?;
        let total = values.numel() as i64;
        let kept = retry_on_oom(Meter::new(values.device()), || {
            Ok::<_, ModelError>(Tensor::f_empty([total.min(EXCHANGED)], (Kind::Float, values.device()))?)
        })?;
        tch::no_grad(|| {
            for start in (0..total).step_by(EXCHANGED as usize) {
                let length = EXCHANGED.min(total - start);
                let [mut value, mut average] =
                    [values.f_narrow(0, start, length)?, average.f_narrow(0, start, length)?];
                let mut kept = kept.f_narrow(0, 0, length)?;
                kept.f_copy_(&value)?;
                value.f_copy_(&average)?;
                average.f_copy_(&kept)?;
            }
            Ok::<_, ModelError>(())
        })?;
        processes.map_or(Ok(()), |processes| self.gather(trainable, processes))
    }

    /// State of all parameters to save in a checkpoint, by name. Only for a state that is not shared.
    pub fn state(&self) -> Result<State, ModelError> {
        let copies = self.tensors().into_iter().map(|(name, tensor)| Ok((name, tensor.f_detach_copy()?)));
        self.with_steps(copies.collect::<Result<_, ModelError>>()?)
    }

    /// The state of all processes, collected in process 0; `None` in the others.
    ///
    /// # Errors
    /// A process that ended or failed.
    pub fn collect(&self, processes: &Processes) -> Result<Option<State>, FitError> {
        let Some(stride) = self.options.share.stride(self.total) else {
            return processes.is_first().then(|| self.state()).transpose().map_err(FitError::from);
        };
        let collect = |own: &Tensor| -> Result<Option<Tensor>, FitError> {
            let meter = Meter::new(Device::Cpu);
            let (own, mut whole) = retry_on_oom(meter, || {
                let zeros = || Tensor::f_zeros([self.total as i64], (Kind::Float, Device::Cpu));
                let whole = processes.is_first().then(zeros).transpose()?;
                Ok::<_, FitError>((own.f_to_device(Device::Cpu)?, whole))
            })?;
            processes.collect_shares(&own, whole.as_mut(), stride)?;
            Ok(whole)
        };
        let mut state = State::new();
        for (name, own) in self.tensors() {
            state.extend(collect(own)?.map(|whole| (name, whole)));
        }
        processes.is_first().then(|| self.with_steps(state)).transpose().map_err(FitError::from)
    }

    fn tensors(&self) -> Vec<(&'static str, &Tensor)> {
        let moments = [("mean", &self.mean), ("mean_square", &self.mean_square)];
        moments.into_iter().chain(self.average.as_ref().map(|average| ("average", average))).collect()
    }

    fn with_steps(&self, mut state: State) -> Result<State, ModelError> {
        state.push(("steps", Tensor::f_from_slice(&[self.steps])?));
        Ok(state)
    }

    /// Restores this process's share of the state that [`Self::state`] or [`Self::collect`] returned.
    ///
    /// # Errors
    /// A tensor that `find` does not find, or one of another shape.
    pub fn load(&mut self, find: impl Fn(&str) -> Result<Tensor, ModelError>) -> Result<(), ModelError> {
        let moments = [("mean", &mut self.mean), ("mean_square", &mut self.mean_square)];
        for (name, own) in moments.into_iter().chain(self.average.as_mut().map(|average| ("average", average))) {
            let (whole, expected) = (find(name)?, vec![self.total as i64]);
            if whole.size() != expected {
                return Err(ModelError::TensorShape {
                    name: format!("optimizer.{name}"),
                    found: whole.size(),
                    expected,
                });
            }
            own.f_copy_(&self.options.share.narrow(&whole)?)?;
        }
        self.steps = i64::try_from(find("steps")?.f_flatten(0, -1)?)?;
        Ok(())
    }

    /// Size of this process's state in bytes.
    pub fn bytes(&self) -> u64 {
        self.options.bytes_of_one() * self.mean.numel() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_nn::parameters::{NamedTensor, Role};

    /// A network of some thousand parameters.
    fn trainable(seed: i64) -> Trainable {
        tch::manual_seed(seed);
        let tensor = Tensor::randn([5000], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let named = NamedTensor { name: "weight".to_owned(), tensor, role: Role::Parameter };
        Trainable::new(vec![named], Device::Cpu).unwrap()
    }

    #[test]
    fn the_kernel_for_gpus_updates_as_the_one_for_cpus() {
        for (gradient_clip, weight_decay, ema_decay) in [(0.0, 0.0, 0.0), (1.0, 1e-3, 0.9), (1e6, 0.0, 0.9)] {
            let options = AdamOptions { gradient_clip, weight_decay, ema_decay, ..AdamOptions::PLAIN };
            let [mut on_cpu, mut emulated] = [trainable(1), trainable(1)];
            let [mut adam, mut other] = [&on_cpu, &emulated].map(|trainable| Adam::new(trainable, options).unwrap());
            other.kernel = Some(GpuAdam::compiled(Device::Cpu).unwrap());
            for step in 0..5 {
                let slopes = Tensor::randn([5000], (Kind::Float, Device::Cpu));
                let norms = [(&mut adam, &mut on_cpu), (&mut other, &mut emulated)].map(|(adam, trainable)| {
                    trainable.gradients.copy_(&slopes);
                    adam.step(trainable, 0.01).unwrap().double_value(&[])
                });
                assert!((norms[0] - norms[1]).abs() < 1e-5 * norms[0], "{norms:?}");
                let average = |adam: &Adam| adam.average.as_ref().map(Tensor::shallow_clone);
                let mut pairs = vec![
                    (on_cpu.values.detach(), emulated.values.detach()),
                    (adam.mean.shallow_clone(), other.mean.shallow_clone()),
                    (adam.mean_square.shallow_clone(), other.mean_square.shallow_clone()),
                ];
                pairs.extend(average(&adam).zip(average(&other)));
                for (expected, found) in pairs {
                    let distance = (&found - &expected).norm().double_value(&[]);
                    let size = expected.norm().double_value(&[]);
                    assert!(distance <= 1e-6 * size, "step {step}: {distance} of {size}");
                }
                assert_eq!(emulated.gradients.abs().max().double_value(&[]), 0.0);
            }
        }
    }

    #[test]
    fn gradients_that_are_not_numbers_are_not_clipped_away() {
        for kernel in [None, Some(GpuAdam::compiled(Device::Cpu).unwrap())] {
            let mut trainable = trainable(2);
            let mut adam = Adam::new(&trainable, AdamOptions { gradient_clip: 1.0, ..AdamOptions::PLAIN }).unwrap();
            adam.kernel = kernel;
            let _ = trainable.gradients.fill_(f64::NAN);
            assert!(adam.step(&mut trainable, 0.1).unwrap().double_value(&[]).is_nan());
            assert!(trainable.values.isnan().all().int64_value(&[]) == 1);
        }
    }

    #[test]
    fn the_average_follows_its_formula_and_changes_places_with_the_weights() {
        const DECAY: f64 = 0.4;
        let length = EXCHANGED + 1000;
        for kernel in [Backend::Auto, Backend::Composed] {
            let tensor = Tensor::zeros([length], (Kind::Float, Device::Cpu)).set_requires_grad(true);
            let named = NamedTensor { name: "weight".to_owned(), tensor, role: Role::Parameter };
            let mut trainable = Trainable::new(vec![named], Device::Cpu).unwrap();
            let mut adam =
                Adam::new(&trainable, AdamOptions { kernel, ema_decay: DECAY, ..AdamOptions::PLAIN }).unwrap();
            let weight = |trainable: &Trainable, place| trainable.values.double_value(&[place]);
            let mut expected = 0.0;
            for step in 0..20 {
                let _ = trainable.gradients.fill_((f64::from(step) * 0.7).sin());
                let _norm = adam.step(&mut trainable, 0.1).unwrap();
                let decay = DECAY.min(f64::from(step) / f64::from(step + 9));
                expected = decay * expected + (1.0 - decay) * weight(&trainable, 0);
            }
            let learned = trainable.values.copy();
            adam.exchange_average(&mut trainable, None).unwrap();
            for place in [0, length - 1] {
                assert!(
                    (weight(&trainable, place) - expected).abs() < 1e-6,
                    "{} {expected}",
                    weight(&trainable, place)
                );
            }
            assert_ne!(trainable.values, learned);
            adam.exchange_average(&mut trainable, None).unwrap();
            assert_eq!(trainable.values, learned);
        }
    }
}
