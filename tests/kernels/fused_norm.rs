//! Fused normalisation with ReLU, compared with torch's operations: values, gradients and running
//! statistics.

use kdgat::nn::attention::Backend;
use kdgat::nn::fused::norm;
use kdgat::nn::layers::{BatchNorm, Mode};
use kdgat::nn::parameters::{NamedTensor, Role};
use kdgat::nn::{FreshParameters, Scope};
use proptest::prelude::*;
use support::comparison::{KERNELS, assert_same_beside, normal, results};
use support::process::alone;
use tch::{Device, Kind, Tensor};

/// Mask of unambiguous ReLU gates and usual gradient magnitudes, computed in double precision.
struct Reference {
    /// 0 where rounding decides whether ReLU passes a value, 1 elsewhere; there the two implementations may differ.
    clear_gates: Tensor,
    /// Usual gradient magnitude of each leaf without cancellation. If the terms cancel, differences are relative to it.
    usual: [(&'static str, f64); 3],
}

impl Reference {
    /// Reference of `norm` on `x`, with `gradient` as the gradient of the output.
    fn new(x: &Tensor, norm: &[NamedTensor], gradient: &Tensor, mode: Mode) -> Self {
        let double = |suffix: &str| {
            let named = norm.iter().find(|named| named.name.ends_with(suffix)).unwrap();
            named.tensor.detach().to_kind(Kind::Double)
        };
        let (x_rows, x) = (x.size()[0], x.detach().to_kind(Kind::Double));
        let (mean, variance) = match mode {
            Mode::Training => (x.mean_dim(0, false, None), x.var_dim(0, false, false)),
            Mode::Evaluation => (double("running_mean"), double("running_var")),
        };
        let scale = (variance + norm::EPSILON).rsqrt();
        let (normalised, weight) = ((x - mean) * &scale, double("weight"));
        let before_relu = &normalised * &weight + double("bias");
        let addends = gradient.to_kind(Kind::Double) * before_relu.gt(0.0);
        let largest = |values: Tensor| values.abs().max().double_value(&[]);
        let root_of_squares =
            |addends: Tensor| largest(addends.square().sum_dim_intlist(0, false, Kind::Double).sqrt());
        let usual = [
            ("norm.weight", root_of_squares(&addends * normalised)),
            ("norm.bias", root_of_squares(addends.copy())),
            // For two rows: see below.
            ("x", if x_rows == 2 { 0.0 } else { largest(addends * weight * scale) }),
        ];
        Self { clear_gates: before_relu.abs().gt(2e-5).to_kind(Kind::Float), usual }
    }

    /// Minimum magnitude that differences of a result are relative to.
    fn least(&self, result: &str) -> f64 {
        let of_leaf = self.usual.iter().find(|(leaf, _)| result == format!("gradient of {leaf}"));
        of_leaf.map_or(0.0, |(_, usual)| *usual)
    }
}

/// Asserts that both implementations agree on `rows` × `columns` numbers around `offset`.
fn assert_equal_normalisation(rows: i64, columns: i64, offset: f64, mode: Mode) {
    let [(fused, reference), (composed, _)] = KERNELS.map(|kernel| norm_results(kernel, rows, columns, offset, mode));
    assert_eq!(fused.len(), composed.len());
    for ((name, fused), (_, composed)) in fused.iter().zip(&composed) {
        assert_same_beside(name, fused, composed, reference.least(name), 1e-5);
    }
}

fn norm_results(
    kernel: Backend,
    rows: i64,
    columns: i64,
    offset: f64,
    mode: Mode,
) -> (Vec<(String, Tensor)>, Reference) {
    let mut fresh = FreshParameters::new(1, Device::Cpu);
    let norm = BatchNorm::new(Scope::root(&mut fresh).sub("norm"), columns).unwrap();
    let tensors = fresh.into_tensors();
    for (index, named) in tensors.iter().enumerate().filter(|(_, named)| named.tensor.kind() == Kind::Float) {
        let values = normal(&[columns], 40 + index as i64).abs() + 0.3;
        tch::no_grad(|| named.tensor.shallow_clone().copy_(&values));
    }
    let x = (normal(&[rows, columns], 2) * 1.5 + offset).set_requires_grad(true);
    let reference = Reference::new(&x, &tensors, &normal(&[rows, columns], 99), mode);
    let output = norm.forward(&x, None, 0.0, kernel, mode).unwrap() * &reference.clear_gates;
    let parameters = tensors.iter().filter(|named| named.role == Role::Parameter);
    let mut leaves: Vec<(&str, &Tensor)> = parameters.map(|named| (named.name.as_str(), &named.tensor)).collect();
    leaves.push(("x", &x));
    let mut results = results(&output, &leaves);
    for (_, gradient) in results.iter_mut().filter(|(name, _)| rows == 2 && name == "gradient of x") {
        // With two rows the gradient is only rounding, because any two numbers are normalised to 1 and -1.
        // It is a difference of incoming gradients; adding these sets the scale of the error.
        *gradient = &*gradient + normal(&[rows, columns], 99);
    }
    let buffers = tensors.iter().filter(|named| named.role == Role::Buffer);
    results.extend(buffers.map(|named| (named.name.clone(), named.tensor.detach().copy())));
    (results, reference)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fused_normalisation_equals_composed(
        rows in 2_i64..700,
        columns in 1_i64..130,
        offset in prop::sample::select(vec![0.0, -1.0, 3.0]),
        mode in prop::sample::select(vec![Mode::Training, Mode::Evaluation]),
    ) {
        let _alone = alone();
        assert_equal_normalisation(rows, columns, offset, mode);
    }

    #[test]
    fn two_rows_are_normalised_as_composed(columns in 1_i64..130, offset in prop::sample::select(vec![0.0, -1.0, 3.0])) {
        let _alone = alone();
        assert_equal_normalisation(2, columns, offset, Mode::Training);
    }
}
