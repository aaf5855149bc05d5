//! The check before targets are cached: a teacher's outputs must be a function of the graph alone.

use tch::Kind;

use crate::targets::{TargetName, Targets};

use super::CacheError;

/// Largest difference that rounding may cause when a graph is computed in a smaller batch, relative to the largest value.
const ROUNDING: f64 = 5e-3;

/// The reason why a teacher's targets cannot be cached.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GateError {
    /// The same batch gave two results.
    #[error(
        "the teacher's {name} differs when the same graphs are computed twice (by up to {largest_difference:e}), so it \
         cannot be cached; check for active dropout, a latent that is sampled instead of its mean, or sums on a GPU \
         in a varying order; --teacher-cache off trains without the cache"
    )]
    NotRepeatable {
        /// The target.
        name: TargetName,
        /// Largest difference of two values.
        largest_difference: f64,
    },
    /// A graph's targets depend on the graphs beside it.
    #[error(
        "the teacher's {name} of a graph depends on the other graphs of its batch (by {relative_difference:e} of the \
         largest value), so it cannot be cached; check for batch norm that uses the batch's statistics (training mode) \
         instead of the running ones; --teacher-cache off trains without the cache"
    )]
    DependsOnBatch {
        /// The target.
        name: TargetName,
        /// Largest difference, relative to the largest value.
        relative_difference: f64,
    },
}

/// Compares three computations of the same graphs: in a larger batch, and twice alone.
///
/// The two computed alone must be equal bit by bit; the larger batch may differ by rounding.
pub fn check_repetition(
    in_batch: &Targets,
    alone: &Targets,
    again: &Targets,
) -> Result<Result<(), GateError>, CacheError> {
    for (((name, in_batch), (_, alone)), (_, again)) in in_batch.tensors.iter().zip(&alone.tensors).zip(&again.tensors)
    {
        if !same_bits(alone, again)? {
            let largest_difference = (alone - again).f_abs()?.f_max()?.f_double_value(&[])?;
            return Ok(Err(GateError::NotRepeatable { name: *name, largest_difference }));
        }
        let relative_difference = relative(in_batch, alone)?;
        // NaN in one of them is a difference, too.
        let differs = relative_difference > ROUNDING || relative_difference.is_nan();
        if differs && !same_bits(in_batch, alone)? {
            return Ok(Err(GateError::DependsOnBatch { name: *name, relative_difference }));
        }
    }
    Ok(Ok(()))
}

/// Largest difference over all targets, relative to the largest value.
pub(super) fn deviation(left: &Targets, right: &Targets) -> Result<f64, CacheError> {
    let mut largest = 0f64;
    for ((_, left), (_, right)) in left.tensors.iter().zip(&right.tensors) {
        largest = largest.max(relative(left, &right.f_to_device(left.device())?)?);
    }
    Ok(largest)
}

fn same_bits(left: &tch::Tensor, right: &tch::Tensor) -> Result<bool, CacheError> {
    Ok(left.f_view_dtype(Kind::Int)?.f_equal(&right.f_view_dtype(Kind::Int)?)?)
}

fn relative(left: &tch::Tensor, right: &tch::Tensor) -> Result<f64, CacheError> {
    if left.numel() == 0 {
        return Ok(0.0);
    }
    let scale = right.f_abs()?.f_max()?.f_double_value(&[])?;
    let difference = (left - right).f_abs()?.f_max()?.f_double_value(&[])?;
    Ok(if difference == 0.0 { 0.0 } else { difference / scale })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Tensor;

    fn targets(values: &[f32]) -> Targets {
        Targets { tensors: vec![(TargetName::Logits, Tensor::from_slice(values).view([-1, 1]))] }
    }

    #[test]
    fn repetition_has_to_be_exact_and_batches_close() {
        let check = |in_batch: &[f32], alone: &[f32], again: &[f32]| {
            check_repetition(&targets(in_batch), &targets(alone), &targets(again)).unwrap()
        };
        assert_eq!(check(&[1.0, 2.0], &[1.0, 2.0], &[1.0, 2.0]), Ok(()));
        assert_eq!(check(&[1.0, 2.000001], &[1.0, 2.0], &[1.0, 2.0]), Ok(()));
        let error = check(&[1.0, 2.0], &[1.0, 2.0], &[1.0, 2.000001]).unwrap_err();
        assert!(error.to_string().contains("dropout"), "{error}");
        let error = check(&[1.0, 2.5], &[1.0, 2.0], &[1.0, 2.0]).unwrap_err();
        assert!(error.to_string().contains("batch norm"), "{error}");
        assert!(check(&[1.0, f32::NAN], &[1.0, 2.0], &[1.0, 2.0]).is_err());
    }
}
