//! The VGAE's outputs, losses, distillation losses, gradients and optimiser step equal the reference values.

use std::collections::BTreeMap;

use kdgat::distill::losses::{self, Projection, VgaeTaught, VgaeWeights};
use kdgat::nn::attention::Backend;
use kdgat::nn::parameters::{NamedTensor, Role};
use kdgat::nn::vgae::{self, Latent, Mode, VgaeConfig, reparameterize};
use kdgat::nn::{FreshParameters, GivenTensors, Scope, Vgae, VgaeOutput};
use kdgat::train::optimizer::{Adam, AdamOptions};
use kdgat::train::trainable::Trainable;
use support::parity::{
    PARITY_VOCABULARY, assert_close, assert_scalar, parity_batch, parity_scalars, parity_tensors, value,
};
use tch::{Device, Kind, Tensor};

const TOLERANCE: f64 = 1e-5;
const LEARNING_RATE: f64 = 0.002;
const KERNELS: [Backend; 2] = [Backend::Composed, Backend::Fused];

fn config(size: &str) -> VgaeConfig {
    let (hidden, latent, heads, embedding) = match size {
        "student" => (vec![80, 40, 16], 16, 1, 4),
        "teacher" => (vec![480, 240, 48], 48, 4, 32),
        "teacher_xl" => (vec![1024, 512, 96], 96, 4, 64),
        other => panic!("no size {other}"),
    };
    VgaeConfig {
        hidden,
        latent,
        heads,
        embedding,
        vocabulary_size: PARITY_VOCABULARY,
        dropout: 0.0,
        edge_scaling: None,
        input: Default::default(),
    }
}

/// Reference model and its named tensors, in the form that training uses.
fn model(size: &str, kernel: Backend) -> (Vgae, Vec<NamedTensor>) {
    let state = parity_tensors(&format!("vgae_{size}_state"));
    let mut fresh = FreshParameters::new(0, Device::Cpu);
    let model = Vgae::new(Scope::root(&mut fresh), &config(size), kernel).unwrap();
    let mut tensors = fresh.into_tensors();
    load(&mut tensors, &state);
    assert_eq!(tensors.len(), state.len(), "the model has other tensors than the reference");
    (model, tensors)
}

fn given(model: &Vgae, latent: Tensor, mean: Tensor, log_variance: Tensor) -> Latent {
    Latent::new(&latent, mean, log_variance, model.kernel()).unwrap()
}

fn load(tensors: &mut [NamedTensor], state: &BTreeMap<String, Tensor>) {
    for named in tensors {
        let given = state.get(&named.name).unwrap_or_else(|| panic!("the reference has no '{}'", named.name));
        tch::no_grad(|| named.tensor.copy_(given));
    }
}

fn check_outputs(what: &str, output: &VgaeOutput, reference: &BTreeMap<String, Tensor>) {
    let pairs = [
        ("cont_out", &output.reconstruction),
        ("canid_logits", &output.id_logits),
        ("nbr_logits", &output.successor_logits),
        ("z", &output.latent),
        ("mu", &output.mean),
        ("logvar", &output.log_variance),
    ];
    for (name, found) in pairs {
        assert_close(&format!("{what}.{name}"), found, &reference[name], TOLERANCE);
    }
}

#[test]
fn evaluation_equals_the_reference() {
    for size in ["student", "teacher", "teacher_xl"] {
        for kernel in KERNELS {
            for (batch, suffix) in [("batch", ""), ("edge_batch", "_edge")] {
                let name = format!("vgae_{size}_eval_eps0{suffix}");
                let ((model, _), reference) = (model(size, kernel), parity_tensors(&name));
                let batch = parity_batch(batch);
                let output = model.forward(&batch, Mode::Evaluation).unwrap();
                check_outputs(&name, &output, &reference);
                check_losses(&name, &output, &batch);
                let (mean, reconstruction) = model.targets(&batch).unwrap();
                assert_close("targets: latent", &mean, &reference["mu"], TOLERANCE);
                assert_close("targets: reconstruction", &reconstruction, &reference["cont_out"], TOLERANCE);
            }
        }
    }
}

fn check_losses(name: &str, output: &VgaeOutput, batch: &kdgat::graph::Batch) {
    let scalars = &parity_scalars()[name];
    let loss = vgae::task_loss(output, batch).unwrap();
    for (part, found) in [
        ("recon", &loss.reconstruction),
        ("canid", &loss.id),
        ("nbr", &loss.successors),
        ("kl", &loss.kl),
        ("task", &loss.total),
    ] {
        assert_scalar(&format!("{name}.{part}"), value(found), &scalars[part], TOLERANCE);
    }
    let difficulty = vgae::difficulty(output, batch).unwrap();
    for graph in 0..batch.num_graphs() {
        let reference = &scalars["per_graph"][graph];
        for (part, found) in
            [("recon", &difficulty.reconstruction), ("canid", &difficulty.id), ("difficulty", &difficulty.total)]
        {
            let found = found.double_value(&[graph as i64]);
            assert_scalar(&format!("{name}, graph {graph}, {part}"), found, &reference[part], TOLERANCE);
        }
    }
}

#[test]
fn a_drawn_latent_equals_the_reference() {
    let noise = parity_tensors("eps");
    for (size, noise_name) in [("student", "eps_student"), ("teacher", "eps_teacher"), ("teacher_xl", "eps_teacher_xl")]
    {
        let name = format!("vgae_{size}_eval_eps");
        let ((model, _), reference) = (model(size, Backend::Auto), parity_tensors(&name));
        let batch = parity_batch("batch");
        let (mean, log_variance) = model.encode(&batch, Mode::Evaluation).unwrap();
        let latent = reparameterize(&mean, &log_variance, &noise[noise_name]).unwrap();
        let output = model.decode(&batch, Mode::Evaluation, given(&model, latent, mean, log_variance)).unwrap();
        check_outputs(&name, &output, &reference);
        check_losses(&name, &output, &batch);
    }
}

#[test]
fn training_with_batch_statistics_equals_the_reference() {
    for size in ["student", "teacher", "teacher_xl"] {
        for kernel in KERNELS {
            let name = format!("vgae_{size}_train_eps0");
            let ((model, tensors), reference) = (model(size, kernel), parity_tensors(&name));
            let batch = parity_batch("batch");
            let (mean, log_variance) = model.encode(&batch, Mode::Training).unwrap();
            let output =
                model.decode(&batch, Mode::Training, given(&model, mean.shallow_clone(), mean, log_variance)).unwrap();
            check_outputs(&name, &output, &reference);
            check_losses(&name, &output, &batch);
            let running = parity_tensors(&format!("vgae_{size}_train_bn_running_after"));
            for named in tensors.iter().filter(|named| running.contains_key(&named.name)) {
                assert_close(&named.name, &named.tensor, &running[&named.name], TOLERANCE);
            }
            if size == "student" {
                let gradients = parity_tensors("vgae_student_train_eps0_grads");
                vgae::task_loss(&output, &batch).unwrap().total.backward();
                check_gradients(&name, &tensors, &gradients);
            }
        }
    }
}

fn check_gradients(what: &str, tensors: &[NamedTensor], reference: &BTreeMap<String, Tensor>) {
    let scale = reference.values().map(|gradient| gradient.abs().max().double_value(&[])).fold(0.0, f64::max);
    let parameters: Vec<_> = tensors.iter().filter(|named| named.role == Role::Parameter).collect();
    assert_eq!(parameters.len(), reference.len(), "{what}: number of gradients");
    for named in parameters {
        let (found, expected) = (named.tensor.grad(), &reference[&named.name]);
        let own_scale = expected.abs().max().double_value(&[]);
        if own_scale < 1e-6 * scale {
            // A bias before a batch norm: subtracting the mean removes it, so its gradient is zero except for rounding.
            let found = found.abs().max().double_value(&[]);
            assert!(found < 1e-6 * scale, "{what}: gradient of {} is {found:e} instead of zero", named.name);
        } else {
            // A sum that cancels far below the other gradients has their rounding errors: the floor is 1e-4 of the largest.
            let allowed = TOLERANCE * (1e-4 * scale / own_scale).max(1.0);
            assert_close(&format!("{what}: gradient of {}", named.name), &found, expected, allowed);
        }
    }
}

#[test]
fn distillation_equals_the_reference() {
    for teacher in ["teacher", "teacher_xl"] {
        for mode in ["eval", "train", "train_eps"] {
            for kernel in KERNELS {
                distil(teacher, mode, kernel);
            }
        }
    }
}

/// One step of a student distilled from `teacher`: losses, gradients, and weights after clipping and Adam.
fn distil(teacher: &str, mode: &str, kernel: Backend) {
    let name = format!("kd_vgae_student_from_{teacher}_{mode}");
    let projection_name = teacher.replace("teacher", "projection_student_to_teacher");
    let noise = parity_tensors("eps");
    let projection_state = parity_tensors(&projection_name);
    let (teacher_model, _) = model(teacher, kernel);
    let (student, mut tensors) = model("student", kernel);

    let latent = config(teacher).latent;
    let mut fresh = FreshParameters::new(0, Device::Cpu);
    let projection = Projection::new(Scope::root(&mut fresh), 16, latent).unwrap();
    let mut projection_tensors = fresh.into_tensors();
    let prefixed = projection_state.into_iter().map(|(name, tensor)| (format!("projection.{name}"), tensor)).collect();
    load(&mut projection_tensors, &prefixed);
    tensors.extend(projection_tensors);
    let mut trainable = Trainable::new(tensors, Device::Cpu).unwrap();

    let batch = parity_batch("batch");
    let drawn = mode == "train_eps";
    let (teacher_latent, teacher_reconstruction) = tch::no_grad(|| {
        let (mean, log_variance) = teacher_model.encode(&batch, Mode::Evaluation).unwrap();
        let noise_name = if teacher == "teacher" { "eps_teacher" } else { "eps_teacher_xl" };
        let latent = if drawn {
            reparameterize(&mean, &log_variance, &noise[noise_name]).unwrap()
        } else {
            mean.shallow_clone()
        };
        let output =
            teacher_model.decode(&batch, Mode::Evaluation, given(&teacher_model, latent, mean, log_variance)).unwrap();
        (output.latent, output.reconstruction)
    });
    let student_mode = if mode == "eval" { Mode::Evaluation } else { Mode::Training };
    let (mean, log_variance) = student.encode(&batch, student_mode).unwrap();
    let latent =
        if drawn { reparameterize(&mean, &log_variance, &noise["eps_student"]).unwrap() } else { mean.shallow_clone() };
    let output = student.decode(&batch, student_mode, given(&student, latent, mean, log_variance)).unwrap();

    let weights = VgaeWeights { alpha: 0.7, latent: 0.5, reconstruction: 0.5 };
    let (latent, reconstruction) = (&teacher_latent.into(), &teacher_reconstruction.into());
    let taught = VgaeTaught { latent: Some((&projection, latent)), reconstruction };
    let (task, kd) = losses::vgae(&output, &batch, taught, weights).unwrap();
    let task = task.total;
    let scalars = &parity_scalars()[&name];
    for (part, found) in [
        ("task", &task),
        ("latent_kd", kd.latent.as_ref().unwrap()),
        ("recon_kd", &kd.reconstruction),
        ("kd", &kd.kd),
        ("total", &kd.total),
    ] {
        assert_scalar(&format!("{name}.{part}"), value(found), &scalars[part], TOLERANCE);
    }

    kd.total.backward();
    let gradients = parity_tensors(&format!("{name}_grads"));
    check_gradients(&name, trainable.tensors(), &gradients);
    let options = AdamOptions { weight_decay: 1e-4, gradient_clip: 1.0, offload: false, kernel, ..AdamOptions::PLAIN };
    let mut adam = Adam::new(&trainable, options).unwrap();
    let slopes: BTreeMap<String, Tensor> = trainable
        .tensors()
        .iter()
        .map(|named| (named.name.clone(), slope(&named.tensor, &scalars["grad_norm"])))
        .collect();
    let norm = adam.step(&mut trainable, LEARNING_RATE).unwrap();
    assert_scalar(&format!("{name}.grad_norm"), value(&norm), &scalars["grad_norm"], TOLERANCE);
    let after = parity_tensors(&format!("{name}_after_step"));
    for named in trainable.tensors() {
        // Adam's first step divides a gradient by its own size. If the gradient is only rounding (see check_gradients), so
        // is the step, up to the learning rate; weight decay keeps it well below.
        let rounding = gradients.get(&named.name).is_some_and(|gradient| gradient.abs().max().double_value(&[]) < 1e-7);
        let (what, expected) = (format!("{name} after the step: {}", named.name), &after[&named.name]);
        if rounding || named.role == Role::Buffer || kernel == Backend::Composed {
            assert_close(&what, &named.tensor, expected, if rounding { 1e-3 } else { TOLERANCE });
        } else {
            assert_step(&what, &named.tensor, expected, &slopes[&named.name]);
        }
    }
}

/// Gradient of a parameter as Adam uses it: clipped to a norm of 1, with a weight decay of 1e-4.
fn slope(tensor: &Tensor, norm: &serde_json::Value) -> Tensor {
    let gradient = tensor.grad();
    if !gradient.defined() {
        return Tensor::default();
    }
    let clip = (1.0 / (norm.as_f64().unwrap() + 1e-6)).min(1.0);
    tch::no_grad(|| gradient * clip + tensor * 1e-4)
}

/// Fails unless the weights equal the expected ones within [`TOLERANCE`] of the largest. A larger difference is allowed only where
/// gradient and weight decay cancel to about Adam's ε: its first step, lr·g / (|g| + ε), then amplifies the rounding of
/// g (one part in 10⁷ of the tensor's largest), in the reference and here.
fn assert_step(what: &str, found: &Tensor, expected: &Tensor, slope: &Tensor) {
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let (size, epsilon) = (slope.to_kind(Kind::Double).abs(), 1e-8);
    let error = size.max() * 1e-7;
    let allowed = expected.abs().max() * TOLERANCE + error * (LEARNING_RATE * epsilon) / (size + epsilon).square();
    let excess = ((found - expected).abs() - allowed).max().double_value(&[]);
    assert!(excess <= 0.0, "{what}: differs by {excess:e} more than is allowed");
}

#[test]
fn given_tensors_make_the_same_model() {
    let state = parity_tensors("vgae_student_state");
    let mut given = GivenTensors::new(state);
    let model = Vgae::new(Scope::root(&mut given), &config("student"), Backend::Auto).unwrap();
    given.check_all_used(|_| false).unwrap();
    let reference = parity_tensors("vgae_student_eval_eps0");
    check_outputs("given", &model.forward(&parity_batch("batch"), Mode::Evaluation).unwrap(), &reference);
}
