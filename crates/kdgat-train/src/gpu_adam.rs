//! Adam on a GPU: one kernel where torch's operations would be twenty.

use std::sync::{Arc, OnceLock};

use kdgat_torch::cuda_program::{Argument, Program, ProgramError, Programs, Source};
use kdgat_torch::test_cuda_library;
use tch::{Device, TchError, Tensor};

use super::fused_adam::Update;

/// The kernel of `adam.cu` on a device.
#[derive(Debug)]
pub(super) struct GpuAdam(Arc<Program>);

impl GpuAdam {
    /// The kernel for a GPU; `None` where it cannot be compiled, which is logged once.
    pub(super) fn of(device: Device) -> Option<Self> {
        static REFUSED: OnceLock<()> = OnceLock::new();
        // The GPU that tests simulate computes as the CPU does, with the same rounding.
        if !device.is_cuda() || test_cuda_library().is_some() || REFUSED.get().is_some() {
            return None;
        }
        let compiled = Self::compiled(device);
        if let Err(error) = &compiled
            && REFUSED.set(()).is_ok()
        {
            tracing::warn!("Adam is composed of libtorch's operations on {device:?}, which is slower: {error}");
        }
        compiled.ok()
    }

    /// The kernel for a device. On the CPU it is emulated, for tests.
    pub(super) fn compiled(device: Device) -> Result<Self, ProgramError> {
        static COMPILED: Programs<Device> = Programs::new();
        Ok(Self(COMPILED.get(device, || Program::compile(&source(), device))?))
    }

    /// Updates values, state and average, and zeroes the gradients. `norm` is that of all gradients, a scalar on the device; its factor is in
    /// place of `update.clip`. All others are flat and have the same length.
    pub(super) fn update(
        &self,
        update: Update,
        (gradient_clip, norm): (f64, &Tensor),
        [values, gradients, mean, mean_square]: [&mut Tensor; 4],
        average: Option<(&mut Tensor, f32)>,
    ) -> Result<(), TchError> {
        let Update { clip: _, weight_decay, share_first, share_second, beta_second, step, correction, epsilon } =
            update;
        let count = values.numel() as u64;
        let (average, share_in_average) = match average {
            Some((average, share)) => (Argument::Array(average), share),
            None => (Argument::Absent, 0.0),
        };
        let mut arguments = vec![Argument::UnsignedLong(count)];
        let numbers = [
            gradient_clip as f32,
            weight_decay,
            share_first,
            share_second,
            beta_second,
            step,
            correction,
            epsilon,
            share_in_average,
        ];
        arguments.extend(numbers.map(Argument::Float));
        arguments.extend([norm, values, gradients, mean, mean_square].map(Argument::Array));
        arguments.push(average);
        Ok(self.0.launch("update_weights", count, &arguments)?)
    }
}

fn source() -> Source {
    let kernels = &[("update_weights", 16)];
    Source { name: "Adam", text: include_str!("adam.cu"), kernels, definitions: Vec::new() }
}

#[cfg(test)]
mod tests {
    use kdgat_torch::cuda_program;

    use super::*;

    #[test]
    fn nvrtc_compiles_the_kernel_for_old_and_new_gpus() {
        if let Err(ProgramError::CompilerMissing) = cuda_program::compiler_version() {
            return println!("skipped: compiling for a GPU needs NVRTC (scripts/test --all installs it)");
        }
        let architectures = cuda_program::architectures().unwrap();
        for architecture in [architectures[0], 90, architectures[architectures.len() - 1]] {
            cuda_program::compile_for(&source(), architecture).unwrap();
        }
    }
}
