//! A model's tensors during training: parameters and gradients are views into two flat tensors.
//!
//! With all parameters in one flat tensor, clipping, the optimiser's update and zeroing the gradients are a few operations
//! on one tensor instead of a few for each.

use kdgat_nn::parameters::{NamedTensor, Role};
use kdgat_nn::weights::StateDict;
use kdgat_nn::{ModelError, weights};
use kdgat_torch as torch;
use kdgat_torch::allocator::{self, Phase};
use tch::{Device, Kind, TchError, Tensor};

use crate::memory::{Meter, retry_on_oom};

/// Parameters and buffers of a model, with the flat tensors of values and gradients.
#[derive(Debug)]
pub struct Trainable {
    tensors: Vec<NamedTensor>,
    /// `[num_parameters]`: all parameters, in order of construction.
    pub values: Tensor,
    /// `[num_parameters]`: their gradients.
    pub gradients: Tensor,
}

impl Trainable {
    /// Moves the parameters into one flat tensor, and makes their gradients views of another.
    pub fn new(mut tensors: Vec<NamedTensor>, device: Device) -> Result<Self, ModelError> {
        let total = tensors
            .iter()
            .filter(|named| named.role == Role::Parameter)
            .map(|named| named.tensor.numel())
            .sum::<usize>();
        let flat = |phase| {
            let _phase = allocator::enter_phase(phase);
            let zeros = || Ok::<_, ModelError>(Tensor::f_zeros([total as i64], (Kind::Float, device))?);
            retry_on_oom(Meter::new(device), zeros)
        };
        let (values, gradients) = (flat(Phase::Parameters)?, flat(Phase::Gradients)?);
        for named in tensors.iter().filter(|named| named.role != Role::Parameter) {
            allocator::attribute(&named.tensor, Phase::Parameters)?;
        }
        let mut offset = 0;
        for named in tensors.iter_mut().filter(|named| named.role == Role::Parameter) {
            let (length, shape) = (named.tensor.numel() as i64, named.tensor.size());
            let mut value = values.f_narrow(0, offset, length)?.f_view(&shape[..])?;
            tch::no_grad(|| value.f_copy_(&named.tensor))?;
            // The model holds handles to the same tensor: from here on they all read the flat one.
            named.tensor.f_set_data(&value)?;
            torch::grad::set_grad(&named.tensor, &gradients.f_narrow(0, offset, length)?.f_view(&shape[..])?)?;
            offset += length;
        }
        Ok(Self { tensors, values, gradients })
    }

    /// Sets all gradients to zero.
    pub fn zero_gradients(&mut self) -> Result<(), TchError> {
        tch::no_grad(|| self.gradients.f_zero_()).map(drop)
    }

    /// Name of a tensor that has a NaN or infinite value, if any.
    pub fn not_finite(&self) -> Result<Option<&str>, TchError> {
        for named in self.tensors.iter().filter(|named| named.tensor.is_floating_point()) {
            if tch::no_grad(|| named.tensor.f_isfinite()?.f_all())?.f_int64_value(&[])? == 0 {
                return Ok(Some(&named.name));
            }
        }
        Ok(None)
    }

    /// Number of trained values.
    pub fn num_parameters(&self) -> i64 {
        self.values.size()[0]
    }

    /// Number of trained values of tensors that `counted` accepts by name.
    pub fn count_parameters(&self, counted: impl Fn(&str) -> bool) -> i64 {
        let parameters = self.tensors.iter().filter(|named| named.role == Role::Parameter && counted(&named.name));
        parameters.map(|named| named.tensor.numel() as i64).sum()
    }

    /// All tensors, named.
    pub fn tensors(&self) -> &[NamedTensor] {
        &self.tensors
    }

    /// Copies of all tensors on the CPU.
    pub fn state_dict(&self) -> Result<StateDict, ModelError> {
        self.tensors
            .iter()
            .map(|named| Ok((named.name.clone(), named.tensor.f_detach()?.f_to_device(Device::Cpu)?.f_detach_copy()?)))
            .collect()
    }

    /// Overwrites every tensor with the one of the same name in `state`.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<(), ModelError> {
        for named in &mut self.tensors {
            let expected = named.tensor.size();
            let Some(tensor) = state.get(&named.name) else {
                return Err(ModelError::MissingTensor { name: named.name.clone(), expected });
            };
            if tensor.size() != expected {
                return Err(ModelError::TensorShape { name: named.name.clone(), found: tensor.size(), expected });
            }
            tch::no_grad(|| named.tensor.f_copy_(tensor))?;
        }
        Ok(())
    }

    /// Digest of the tensors whose names `counted` accepts.
    pub fn digest(&self, counted: impl Fn(&str) -> bool) -> Result<String, ModelError> {
        weights::digest(
            self.tensors.iter().filter(|named| counted(&named.name)).map(|named| (named.name.as_str(), &named.tensor)),
        )
    }
}
