//! The GAT's layer outputs, logits, losses, distillation loss and gradients equal the reference values.

use kdgat::distill::losses;
use kdgat::nn::attention::Backend;
use kdgat::nn::parameters::NamedTensor;
use kdgat::nn::vgae::Mode;
use kdgat::nn::{FreshParameters, Gat, GatConfig, Scope};
use support::parity::{
    PARITY_VOCABULARY, assert_close, assert_scalar, parity_batch, parity_scalars, parity_tensors, value,
};
use tch::{Device, Tensor};

const TOLERANCE: f64 = 1e-5;
const KERNELS: [Backend; 2] = [Backend::Composed, Backend::Fused];

fn model(size: &str, kernel: Backend) -> (Gat, Vec<NamedTensor>) {
    let state = parity_tensors(&format!("gat_{size}_state"));
    let config = match size {
        "student" => GatConfig {
            hidden: 24,
            layers: 2,
            heads: 4,
            embedding: 8,
            fc_layers: 3,
            vocabulary_size: PARITY_VOCABULARY,
            dropout: 0.0,
            edge_scaling: None,
            input: Default::default(),
        },
        _ => GatConfig {
            hidden: 48,
            layers: 3,
            heads: 8,
            embedding: 16,
            fc_layers: 2,
            vocabulary_size: PARITY_VOCABULARY,
            dropout: 0.0,
            edge_scaling: None,
            input: Default::default(),
        },
    };
    let mut fresh = FreshParameters::new(0, Device::Cpu);
    let model = Gat::new(Scope::root(&mut fresh), &config, kernel).unwrap();
    let mut tensors = fresh.into_tensors();
    assert_eq!(tensors.len(), state.len(), "the model has other tensors than the reference");
    for named in &mut tensors {
        tch::no_grad(|| named.tensor.copy_(&state[&named.name]));
    }
    (model, tensors)
}

#[test]
fn evaluation_equals_the_reference() {
    for size in ["student", "teacher"] {
        for kernel in KERNELS {
            for (batch, suffix) in [("batch", ""), ("edge_batch", "_edge")] {
                let name = format!("gat_{size}_eval{suffix}");
                let ((model, _), reference) = (model(size, kernel), parity_tensors(&name));
                let batch = parity_batch(batch);
                for (index, output) in model.layer_outputs(&batch, Mode::Evaluation).unwrap().iter().enumerate() {
                    assert_close(&format!("{name}.xs{index}"), output, &reference[&format!("xs{index}")], TOLERANCE);
                }
                let logits = model.forward(&batch, Mode::Evaluation).unwrap();
                assert_close(&format!("{name}.logits"), &logits, &reference["logits"], TOLERANCE);
                let loss = logits.cross_entropy_for_logits(&batch.labels);
                assert_scalar(&format!("{name}.ce"), value(&loss), &parity_scalars()[&name]["ce"], TOLERANCE);
            }
        }
    }
}

#[test]
fn soft_label_distillation_equals_the_reference() {
    let name = "kd_gat_student_from_teacher";
    let batch = parity_batch("batch");
    let teacher = &parity_tensors("gat_teacher_eval")["logits"];
    for kernel in KERNELS {
        let (model, tensors) = model("student", kernel);
        let logits = model.forward(&batch, Mode::Evaluation).unwrap();
        let kd = losses::soft_labels(&logits, teacher, 4.0, None).unwrap();
        let task = logits.cross_entropy_for_logits(&batch.labels);
        let total = losses::total(&kd, &task, 0.7).unwrap();
        let scalars = &parity_scalars()[name];
        assert_scalar("task", value(&task), &scalars["task"], TOLERANCE);
        assert_scalar("total", value(&total), &scalars["total"], TOLERANCE);
        assert_kd(value(&kd), scalars["kd"].as_f64().unwrap());
        total.backward();
        let gradients = parity_tensors(&format!("{name}_grads"));
        let scale = gradients.values().map(|gradient| gradient.abs().max().double_value(&[])).fold(0.0, f64::max);
        for named in &tensors {
            let expected = &gradients[&named.name];
            // A sum that cancels far below the other gradients has their rounding errors: the floor is 1e-4 of the largest.
            let own_scale: f64 = expected.abs().max().double_value(&[]);
            let allowed = TOLERANCE * (1e-4 * scale / own_scale.max(1e-30)).max(1.0);
            assert_close(&format!("gradient of {}", named.name), &grad(&named.tensor), expected, allowed);
        }
    }
}

/// The reference distillation loss is a difference of nearly equal f32 numbers, so it is only as exact as their rounding:
/// one part in 2^24 of 16 times the entropy, about 11.
fn assert_kd(found: f64, expected: f64) {
    assert!((found - expected).abs() < 16.0 * 0.7 * f64::from(f32::EPSILON), "kd: {found} instead of {expected}");
}

fn grad(tensor: &Tensor) -> Tensor {
    let gradient = tensor.grad();
    if gradient.defined() { gradient } else { tensor.zeros_like() }
}
