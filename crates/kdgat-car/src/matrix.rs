//! Linear maps in the layout of the C code.

use crate::weights::{Precision, QuantisedRow};
use crate::{CText, CarError};

/// Outputs that the C code computes together (`KDGAT_TILE`).
const TILE: usize = 8;

/// A linear map `y = factor * (W x) + bias`.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub inputs: usize,
    pub outputs: usize,
    /// `[outputs, inputs]`
    pub weight: Vec<f32>,
    /// `[outputs]`: factor of each output, folded into the weights. Batch norm is one.
    pub factor: Vec<f32>,
    /// `[outputs]`
    pub bias: Vec<f32>,
    pub precision: Precision,
}

impl Matrix {
    /// A map with a factor of 1.
    pub fn new(inputs: usize, outputs: usize, weight: Vec<f32>, bias: Vec<f32>, precision: Precision) -> Self {
        Self { inputs, outputs, weight, factor: vec![1.0; outputs], bias, precision }
    }

    /// Bytes of its constants.
    pub fn bytes(&self) -> usize {
        let padded = self.outputs.next_multiple_of(TILE) * self.inputs;
        match self.precision {
            Precision::F32 => 4 * (padded + self.outputs),
            Precision::Int8 => padded + 8 * self.outputs,
        }
    }

    /// Multiply-accumulates of one product.
    pub fn operations(&self) -> usize {
        self.inputs * self.outputs
    }

    /// Appends the arrays of the map, and returns the initialiser of its `kdgat_matrix`. `name` is a C identifier.
    ///
    /// # Errors
    /// Fails if folding the factor leaves the range of single precision.
    pub fn write(&self, name: &str, tables: &mut CText) -> Result<String, CarError> {
        let finite = |values: &[f32]| match values.iter().all(|value| value.is_finite()) {
            true => Ok(()),
            false => Err(CarError::Unsupported(format!("the weights of {name} are too large for single precision"))),
        };
        finite(&self.bias)?;
        let scale = match self.precision {
            Precision::F32 => {
                let folded = self
                    .rows()
                    .zip(&self.factor)
                    .flat_map(|(row, factor)| row.iter().map(move |weight| weight * factor));
                let folded = self.tiled(&folded.collect::<Vec<f32>>());
                finite(&folded)?;
                tables.local_floats(&format!("{name}_weight"), &folded);
                String::new()
            }
            Precision::Int8 => {
                let rows: Vec<QuantisedRow> = self.rows().map(QuantisedRow::of).collect();
                let weights: Vec<i8> = rows.iter().flat_map(|row| row.weights.iter().copied()).collect();
                let scale: Vec<f32> = rows.iter().zip(&self.factor).map(|(row, factor)| row.scale * factor).collect();
                finite(&scale)?;
                let tiled = self.tiled(&weights);
                tables.local_integers("int8_t", &format!("{name}_weight"), tiled.into_iter().map(i64::from));
                tables.local_floats(&format!("{name}_scale"), &scale);
                format!("{name}_scale, ")
            }
        };
        tables.local_floats(&format!("{name}_bias"), &self.bias);
        Ok(format!("{{{name}_weight, {scale}{name}_bias, {}u, {}u}}", self.inputs, self.outputs))
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.weight.chunks(self.inputs)
    }

    /// `[outputs, inputs]` → `[outputs / 8, inputs, 8]`, padded with zeros.
    fn tiled<T: Copy + Default>(&self, values: &[T]) -> Vec<T> {
        let mut tiled = Vec::with_capacity(self.outputs.next_multiple_of(TILE) * self.inputs);
        for first in (0..self.outputs).step_by(TILE) {
            for input in 0..self.inputs {
                let of_output = |output: usize| match output < self.outputs {
                    true => values[output * self.inputs + input],
                    false => T::default(),
                };
                tiled.extend((first..first + TILE).map(of_output));
            }
        }
        tiled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_hold_eight_outputs_of_each_input() {
        let weight: Vec<f32> = (0..20).map(|value| value as f32).collect();
        let matrix = Matrix::new(2, 10, weight, vec![0.0; 10], Precision::F32);
        let tiled = matrix.tiled(&matrix.weight);
        assert_eq!(tiled[..8], [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
        assert_eq!(tiled[8..16], [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0]);
        assert_eq!(tiled[16..], [16.0, 18.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 17.0, 19.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!((matrix.bytes(), matrix.operations()), (4 * (32 + 10), 20));
    }

    #[test]
    fn factors_are_folded() {
        let mut text = CText::default();
        let mut matrix = Matrix::new(1, 2, vec![2.0, -254.0], vec![0.5, 0.0], Precision::F32);
        matrix.factor = vec![3.0, 0.5];
        assert_eq!(matrix.write("m", &mut text).unwrap(), "{m_weight, m_bias, 1u, 2u}");
        matrix.precision = Precision::Int8;
        assert_eq!(matrix.write("q", &mut text).unwrap(), "{q_weight, q_scale, q_bias, 1u, 2u}");
        let text = text.into_string();
        assert!(text.contains("m_weight[8] = {\n    6e0f, -1.27e2f, 0e0f,"), "{text}");
        assert!(text.contains("q_weight[8] = {\n    127, -127, 0,"), "{text}");
        matrix.factor[0] = f32::INFINITY;
        assert!(matrix.write("q", &mut CText::default()).is_err());
    }
}
