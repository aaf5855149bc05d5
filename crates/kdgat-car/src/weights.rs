//! A model's weights as plain numbers: looked up by name, checked, and rounded to 8 bits on request.

use kdgat_nn::weights::{StateDict, floats};
use tch::Tensor;

use crate::CarError;

/// Precision of the exported weight matrices. Biases, scales and statistics stay in single precision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// 8 bits, with one scale for each output (row) of a matrix.
    Int8,
}

/// Largest magnitude of an 8-bit weight; −128 is not used, so that the range is symmetric.
const MOST: f32 = 127.0;

/// A row of a matrix in 8 bits: the values are `scale * weights`.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantisedRow {
    pub scale: f32,
    pub weights: Vec<i8>,
}

impl QuantisedRow {
    /// Rounds a row: its largest magnitude becomes 127.
    pub fn of(row: &[f32]) -> Self {
        let largest = row.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let scale = if largest > 0.0 { largest / MOST } else { 1.0 };
        let weights = row.iter().map(|value| (value / scale).round().clamp(-MOST, MOST) as i8).collect();
        Self { scale, weights }
    }

    /// The rounded values.
    pub fn values(&self) -> impl Iterator<Item = f32> + '_ {
        self.weights.iter().map(|&weight| f32::from(weight) * self.scale)
    }
}

/// Rounds the values of `[rows, columns]` to 8 bits row by row, and returns them in single precision.
pub fn rounded(values: &[f32], columns: usize) -> Vec<f32> {
    values.chunks(columns.max(1)).flat_map(|row| QuantisedRow::of(row).values().collect::<Vec<_>>()).collect()
}

/// True for tensors that are matrices of weights, which [`Precision::Int8`] rounds.
fn is_matrix(name: &str) -> bool {
    name.ends_with("weight") && !name.contains("_bns.") || name == BUCKETS
}

/// Names of the tensors of embeddings.
pub const EMBEDDING: &str = "id_embedding.weight";
pub const BUCKETS: &str = "id_hash.buckets";
pub const BUCKET_WEIGHTS: &str = "id_hash.weights";

/// The weights that the C code computes with, for the trainer's own forward pass: equal to `state` in single precision, otherwise with
/// the matrices rounded to 8 bits.
///
/// # Errors
/// Those of libtorch.
pub fn as_exported(state: &StateDict, precision: Precision) -> Result<StateDict, CarError> {
    let one = |(name, tensor): (&String, &Tensor)| {
        let tensor = match precision {
            Precision::Int8 if is_matrix(name) && tensor.dim() == 2 => {
                let values = rounded(&floats(tensor)?, tensor.size()[1] as usize);
                Tensor::f_from_slice(&values)
                    .and_then(|flat| flat.f_reshape(tensor.size()))
                    .map_err(kdgat_nn::ModelError::from)?
            }
            _ => tensor.shallow_clone(),
        };
        Ok((name.clone(), tensor))
    };
    state.iter().map(one).collect()
}

/// Tensors of a model, looked up by name and shape.
#[derive(Debug)]
pub struct Weights<'a> {
    state: &'a StateDict,
}

impl<'a> Weights<'a> {
    pub fn new(state: &'a StateDict) -> Self {
        Self { state }
    }

    /// The elements of the tensor `name`, which must have this shape.
    ///
    /// # Errors
    /// Fails if the tensor is missing, has another shape, or contains a value that is not finite.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CarError> {
        let error = |found: String| CarError::Weight {
            name: name.to_owned(),
            found,
            expected: format!("finite values, {shape:?}"),
        };
        let tensor = self.state.get(name).ok_or_else(|| error("no such tensor".to_owned()))?;
        if !tensor.size().iter().map(|&length| length as usize).eq(shape.iter().copied()) {
            return Err(error(format!("{:?}", tensor.size())));
        }
        let values = floats(tensor)?;
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(error(value.to_string())),
            None => Ok(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Rounding changes a value by at most half a step, keeps the largest one, and is stable.
        #[test]
        fn rows_are_rounded_to_the_nearest_step(row in prop::collection::vec(-1e3_f32..1e3, 1..40)) {
            let quantised = QuantisedRow::of(&row);
            let values: Vec<f32> = quantised.values().collect();
            for (value, rounded) in row.iter().zip(&values) {
                prop_assert!((value - rounded).abs() <= 0.5001 * quantised.scale, "{value} {rounded}");
            }
            prop_assert_eq!(QuantisedRow::of(&values).weights, quantised.weights);
        }
    }

    #[test]
    fn a_row_of_zeros_stays_zero() {
        assert_eq!(rounded(&[0.0, 0.0, 1.0, -127.0], 2), [0.0, 0.0, 1.0, -127.0]);
    }

    #[test]
    fn only_matrices_are_rounded() {
        let named = ["convs.0.lin.weight", "id_hash.buckets", "fc_layers.3.weight", "id_embedding.weight"];
        assert!(named.into_iter().all(is_matrix));
        let others = ["encoder_bns.0.weight", "id_hash.weights", "convs.0.att_src", "fc_layers.3.bias"];
        assert!(!others.into_iter().any(is_matrix));
    }
}
