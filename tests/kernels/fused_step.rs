//! The fused passes of a step, compared with torch's operations: values, gradients and running statistics.
//! Dropout masks depend only on seed, layer and position, and no result depends on the number of threads.

use kdgat::distill::losses::{self, Projection, VgaeTaught, VgaeWeights};
use kdgat::graph::Batch;
use kdgat::nn::attention::Backend;
use kdgat::nn::fused::linear::linear;
use kdgat::nn::fused::step_seed;
use kdgat::nn::layers::{BatchNorm, Mlp, Mode, NodeInput, pool_layers, relu_dropout, sigmoid};
use kdgat::nn::parameters::{NamedTensor, Role};
use kdgat::nn::vgae::{Latent, VgaeOutput, difficulty, task_loss};
use kdgat::nn::{FreshParameters, Gat, GatConfig, IdHash, InputConfig, Scope, Vgae, VgaeConfig};
use kdgat::train::optimizer::{Adam, AdamOptions};
use kdgat::train::trainable::Trainable;
use proptest::prelude::*;
use support::comparison::{KERNELS, assert_all_same, assert_same, normal, results};
use support::parity::{PARITY_VOCABULARY, parity_batch};
use support::process::alone;
use tch::{Device, Kind, Tensor};

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_linear_layer_equals_the_composed_one(
        rows in 0_i64..700,
        columns in 1_i64..130,
        outputs in 1_i64..130,
        has_bias in prop::bool::ANY,
    ) {
        let _alone = alone();
        let [fused, composed] = [true, false].map(|is_fused| linear_results(is_fused, [rows, columns, outputs], has_bias));
        assert_all_same(&fused, &composed);
    }

    #[test]
    fn fused_activations_equal_composed(rows in 0_i64..300, columns in 1_i64..100) {
        let _alone = alone();
        let layer = Scope::root(&mut FreshParameters::new(0, Device::Cpu)).layer_id();
        let both = KERNELS.map(|kernel| {
            let x = normal(&[rows, columns], 3).set_requires_grad(true);
            let mut found = results(&relu_dropout(&x, layer, 0.0, kernel, Mode::Training).unwrap(), &[("x", &x)]);
            let x = (normal(&[rows, columns], 4) * 4.0).set_requires_grad(true);
            found.extend(results(&sigmoid(&x, kernel, Mode::Training).unwrap(), &[("x", &x)]));
            found
        });
        assert_all_same(&both[0], &both[1]);
    }

    #[test]
    fn fused_pooling_and_input_equal_composed(columns in prop::collection::vec(1_i64..70, 1..4), embedding in 1_i64..40) {
        let _alone = alone();
        let batch = parity_batch("batch");
        let both = KERNELS.map(|kernel| {
            let layer = |(index, &columns): (usize, &i64)| {
                normal(&[batch.num_nodes(), columns], index as i64).set_requires_grad(true)
            };
            let layers: Vec<Tensor> = columns.iter().enumerate().map(layer).collect();
            let handles: Vec<&Tensor> = layers.iter().collect();
            let names: Vec<_> = handles.iter().map(|&layer| ("a layer", layer)).collect();
            let mut found = results(&pool_layers(&handles, &batch, kernel).unwrap(), &names);
            let mut fresh = FreshParameters::new(1, Device::Cpu);
            let input = NodeInput::new(&mut Scope::root(&mut fresh), &Default::default(), PARITY_VOCABULARY, embedding).unwrap();
            let output = input.forward(&batch.id_input, &batch.continuous, kernel).unwrap();
            found.extend(results(&output, &[("the embedding", &fresh.into_tensors()[0].tensor)]));
            let mut fresh = FreshParameters::new(1, Device::Cpu);
            let hash = IdHash { probes: 1 + embedding % 4, buckets: 7 };
            let config = InputConfig { id_hash: Some(hash), ..InputConfig::default() };
            let input = NodeInput::new(&mut Scope::root(&mut fresh), &config, PARITY_VOCABULARY, embedding).unwrap();
            let output = input.forward(&batch.id_input, &batch.continuous, kernel).unwrap();
            let tensors = fresh.into_tensors();
            found.extend(results(&output, &[("buckets", &tensors[0].tensor), ("weights", &tensors[1].tensor)]));
            found
        });
        assert_all_same(&both[0], &both[1]);
    }

    #[test]
    fn fused_losses_equal_composed(latent in 1_i64..50, scale in prop::sample::select(vec![0.1, 1.0, 6.0, 30.0])) {
        let _alone = alone();
        let batch = parity_batch("batch");
        for trained_on in [[1.0, 0.0], [0.7, 0.3], [0.25, 0.0]] {
            let both = KERNELS.map(|kernel| loss_results(kernel, &batch, latent, scale, trained_on));
            assert_all_same(&both[0], &both[1]);
        }
    }

    #[test]
    fn fused_distillation_equals_composed(
        graphs in 1_i64..30,
        scale in prop::sample::select(vec![1.0, 3.0]),
        sizes in prop::sample::select(vec![[16_i64, 48], [16, 16], [3, 5], [16, 100], [33, 17], [1, 1]]),
        alpha in 0.0_f64..1.0,
        compares_latents in prop::sample::select(vec![true, false]),
    ) {
        let _alone = alone();
        let weights = VgaeWeights { alpha, latent: 0.5, reconstruction: 0.3 };
        let kind = (scale, compares_latents);
        let both = KERNELS.map(|kernel| distillation_results(kernel, [graphs, sizes[0], sizes[1]], weights, kind));
        assert_all_same(&both[0], &both[1]);
    }

    #[test]
    fn a_fused_step_of_adam_equals_the_composed_one(
        length in 1_i64..20_000,
        weight_decay in prop::sample::select(vec![0.0, 1e-4]),
        gradient_clip in prop::sample::select(vec![0.0, 1.0, 1e6]),
        ema_decay in prop::sample::select(vec![0.0, 0.99]),
    ) {
        let _alone = alone();
        let both = KERNELS.map(|kernel| {
            adam_results(length, AdamOptions { weight_decay, gradient_clip, kernel, ema_decay, ..AdamOptions::PLAIN })
        });
        for ((name, found), (_, expected)) in both[0].iter().zip(&both[1]) {
            assert_same(name, found, expected, 1e-6);
        }
    }
}

fn linear_results(is_fused: bool, [rows, columns, outputs]: [i64; 3], has_bias: bool) -> Vec<(String, Tensor)> {
    let leaf = |size: &[i64], seed| normal(size, seed).set_requires_grad(true);
    let (x, weight, bias) = (leaf(&[rows, columns], 1), leaf(&[outputs, columns], 2), leaf(&[outputs], 3));
    let bias = has_bias.then_some(&bias);
    let output = match is_fused {
        true => linear(&x, &weight, bias).unwrap(),
        false => x.linear(&weight, bias),
    };
    let leaves = [("x", &x), ("weight", &weight)].into_iter().chain(bias.map(|bias| ("bias", bias)));
    results(&output, &leaves.collect::<Vec<_>>())
}

#[test]
fn a_row_of_a_linear_layer_does_not_depend_on_the_others() {
    let _alone = alone();
    for (columns, outputs) in [(26, 83), (14, 80), (1, 1), (4, 10), (10, 4), (80, 40), (16, 16), (48, 49)] {
        let (x, weight, bias) = (normal(&[700, columns], 1), normal(&[outputs, columns], 2), normal(&[outputs], 3));
        let whole = linear(&x, &weight, Some(&bias)).unwrap();
        for (first, rows) in [(0, 1), (699, 1), (1, 7), (8, 5), (3, 9), (3, 70), (64, 13)] {
            let part = linear(&x.narrow(0, first, rows), &weight, Some(&bias)).unwrap();
            assert_eq!(part, whole.narrow(0, first, rows), "{rows} rows from {first}, {columns} -> {outputs}");
        }
    }
}

#[test]
fn sizes_that_do_not_fit_a_linear_layer_are_errors() {
    let _alone = alone();
    let (x, weight) = (normal(&[4, 5], 1), normal(&[3, 6], 2));
    assert!(linear(&x, &weight, None).unwrap_err().to_string().contains("x has 5 columns, the weight is for 6"));
    let bias = normal(&[4], 3);
    assert!(linear(&x, &normal(&[3, 5], 2), Some(&bias)).unwrap_err().to_string().contains("bias"));
}

/// Random model outputs for a batch; all of them require gradients.
fn outputs_for(batch: &Batch, latent: i64, scale: f64, kernel: Backend) -> VgaeOutput {
    let leaf = |columns: i64, seed| (normal(&[batch.num_nodes(), columns], seed) * scale).set_requires_grad(true);
    VgaeOutput {
        continuous: batch.continuous.shallow_clone(),
        reconstruction: normal(&[batch.num_nodes(), 10], 1).set_requires_grad(true),
        id_logits: leaf(PARITY_VOCABULARY, 2),
        successor_logits: leaf(PARITY_VOCABULARY, 3),
        hidden: None,
        latent: leaf(latent, 4),
        mean: leaf(latent, 5),
        log_variance: (normal(&[batch.num_nodes(), latent], 6) * scale.min(2.0)).set_requires_grad(true),
        kernel,
    }
}

/// Gradients of the outputs that a task loss reads.
fn gradients_of(output: &VgaeOutput) -> Vec<(String, Tensor)> {
    let leaves =
        [&output.reconstruction, &output.id_logits, &output.successor_logits, &output.mean, &output.log_variance];
    leaves.iter().enumerate().map(|(index, leaf)| (format!("gradient {index}"), leaf.grad())).collect()
}

/// Losses, and gradients of `of_total` · total + `of_id` · ID loss; also the loss without gradients, and the difficulty.
fn loss_results(
    kernel: Backend,
    batch: &Batch,
    latent: i64,
    scale: f64,
    [of_total, of_id]: [f64; 2],
) -> Vec<(String, Tensor)> {
    let output = outputs_for(batch, latent, scale, kernel);
    let loss = task_loss(&output, batch).unwrap();
    match [of_total, of_id] {
        [1.0, 0.0] => loss.total.backward(),
        _ => (&loss.total * of_total + &loss.id * of_id).backward(),
    }
    let parts = [&loss.reconstruction, &loss.id, &loss.successors, &loss.kl, &loss.total];
    let mut found: Vec<(String, Tensor)> =
        parts.iter().enumerate().map(|(index, part)| (format!("part {index}"), part.detach())).collect();
    found.extend(gradients_of(&output));
    let detached = VgaeOutput {
        continuous: batch.continuous.shallow_clone(),
        reconstruction: output.reconstruction.detach(),
        id_logits: output.id_logits.detach(),
        successor_logits: output.successor_logits.detach(),
        hidden: None,
        latent: output.latent.detach(),
        mean: output.mean.detach(),
        log_variance: output.log_variance.detach(),
        kernel,
    };
    let without_gradients = task_loss(&detached, batch).unwrap();
    found.push(("total without gradients".to_owned(), without_gradients.total));
    let errors = difficulty(&detached, batch).unwrap();
    found.extend([errors.reconstruction, errors.id, errors.total].map(|errors| ("difficulty".to_owned(), errors)));
    found
}

/// Distillation losses and gradients of everything trained. The backward pass starts from `scale` times the total loss; if `scale`
/// is not 1, other loss terms are added.
fn distillation_results(
    kernel: Backend,
    [graphs, latent, teacher_latent]: [i64; 3],
    weights: VgaeWeights,
    (scale, compares_latents): (f64, bool),
) -> Vec<(String, Tensor)> {
    let all = parity_batch("batch");
    let graphs: Vec<usize> = (0..graphs as usize).map(|graph| graph % all.num_graphs()).collect();
    let batch = all.select_graphs(&graphs).unwrap();
    let nodes = batch.num_nodes();
    let mut fresh = FreshParameters::new(5, Device::Cpu);
    let projection = Projection::new(Scope::root(&mut fresh), latent, teacher_latent).unwrap();
    let output = outputs_for(&batch, latent, 1.0, kernel);
    let (latent, reconstruction) = (&normal(&[nodes, teacher_latent], 33).into(), &normal(&[nodes, 10], 34).into());
    let taught = VgaeTaught { latent: compares_latents.then_some((&projection, latent)), reconstruction };
    let (task, found) = losses::vgae(&output, &batch, taught, weights).unwrap();
    let latent = found.latent.as_ref();
    match scale {
        1.0 => found.total.backward(),
        scale => {
            let others = latent.map_or_else(|| found.kd.shallow_clone(), |latent| latent * 0.5 + &found.kd);
            (&found.total * scale + others + &task.id).backward();
        }
    }
    let mut parts =
        vec![("total", &found.total), ("kd", &found.kd), ("x", &found.reconstruction), ("task", &task.total)];
    parts.extend(latent.map(|latent| ("z", latent)));
    let mut results: Vec<(String, Tensor)> =
        parts.iter().map(|(name, part)| ((*name).to_owned(), part.detach())).collect();
    results.extend(gradients_of(&output));
    let mut leaves = Vec::new();
    if compares_latents {
        leaves.push(("of z", &output.latent));
        leaves.extend(projection.parameters().into_iter().flatten().map(|tensor| ("of the projection", tensor)));
    }
    results.extend(leaves.into_iter().map(|(name, leaf)| (format!("gradient {name}"), leaf.grad())));
    results
}

fn adam_results(length: i64, options: AdamOptions) -> Vec<(String, Tensor)> {
    let tensor = normal(&[length], 1).set_requires_grad(true);
    let named = NamedTensor { name: "weight".to_owned(), tensor, role: Role::Parameter };
    let mut trainable = Trainable::new(vec![named], Device::Cpu).unwrap();
    let mut adam = Adam::new(&trainable, options).unwrap();
    let mut results = Vec::new();
    for step in 0..4 {
        // With weight decay, no gradient near zero: where gradient and weight decay cancel, Adam divides the remaining
        // rounding error by its own size, and any two ways of summation diverge.
        let (noise, least) = (normal(&[length], 10 + step), if options.weight_decay > 0.0 { 0.05 } else { 0.0 });
        trainable.gradients.copy_(&(noise.sign() * least + noise * 0.1));
        results.push(("norm".to_owned(), adam.step(&mut trainable, 1e-2).unwrap()));
        assert_eq!(trainable.gradients.abs().sum(Kind::Float).double_value(&[]), 0.0, "gradients are left");
    }
    results.push(("weights".to_owned(), trainable.values.copy()));
    results
        .extend(adam.state().unwrap().into_iter().map(|(name, tensor)| (name.to_owned(), tensor.to_kind(Kind::Float))));
    results
}

/// Gradients of a training step with dropout on `threads` threads.
fn step_with_dropout(seed: u64, threads: i32) -> Vec<Tensor> {
    let before = tch::get_num_threads();
    tch::set_num_threads(threads);
    let batch = parity_batch("batch");
    let mut gradients = Vec::new();
    let mut fresh = FreshParameters::new(3, Device::Cpu);
    let config = VgaeConfig {
        hidden: vec![80, 40, 16],
        latent: 16,
        heads: 1,
        embedding: 4,
        vocabulary_size: PARITY_VOCABULARY,
        dropout: 0.3,
        edge_scaling: None,
        input: Default::default(),
    };
    let model = Vgae::new(Scope::root(&mut fresh), &config, Backend::Auto).unwrap();
    step_seed::set(seed);
    let (mean, log_variance) = model.encode(&batch, Mode::Training).unwrap();
    let latent = Latent::new(&mean.shallow_clone(), mean, log_variance, model.kernel()).unwrap();
    let output = model.decode(&batch, Mode::Training, latent).unwrap();
    task_loss(&output, &batch).unwrap().total.backward();
    gradients.extend(fresh.into_tensors().iter().map(|named| named.tensor.grad()));
    let mut fresh = FreshParameters::new(3, Device::Cpu);
    let config = GatConfig {
        hidden: 24,
        layers: 2,
        heads: 4,
        embedding: 8,
        fc_layers: 3,
        vocabulary_size: PARITY_VOCABULARY,
        dropout: 0.3,
        edge_scaling: None,
        input: Default::default(),
    };
    let model = Gat::new(Scope::root(&mut fresh), &config, Backend::Auto).unwrap();
    model.forward(&batch, Mode::Training).unwrap().cross_entropy_for_logits(&batch.labels).backward();
    gradients.extend(fresh.into_tensors().iter().map(|named| named.tensor.grad()));
    tch::set_num_threads(before);
    gradients.retain(Tensor::defined);
    gradients
}

#[test]
fn masks_depend_on_the_step_alone() {
    let _alone = alone();
    let same = |left: &[Tensor], right: &[Tensor]| left.iter().zip(right).all(|(left, right)| left == right);
    let once = step_with_dropout(1, 1);
    assert!(once.len() > 20);
    assert!(same(&once, &step_with_dropout(1, 1)), "the same step gives other gradients");
    assert!(!same(&once, &step_with_dropout(2, 1)), "another step gives the same gradients");
}

#[test]
fn fused_passes_do_not_depend_on_threads() {
    let _alone = alone();
    let run = |threads| {
        tch::set_num_threads(threads);
        step_seed::set(5);
        let (rows, columns) = (20_000, 80);
        let mut fresh = FreshParameters::new(1, Device::Cpu);
        let norm = BatchNorm::new(Scope::root(&mut fresh).sub("norm"), columns).unwrap();
        let x = normal(&[rows, columns], 2).set_requires_grad(true);
        let output = norm.forward(&x, None, 0.4, Backend::Fused, Mode::Training).unwrap();
        let mut found = results(&output, &[("x", &x)]);
        let layer = Scope::root(&mut fresh).sub("activation").layer_id();
        let active = relu_dropout(&x.detach(), layer, 0.4, Backend::Fused, Mode::Training).unwrap();
        found.push(("activations".to_owned(), active));
        found.extend(fresh.into_tensors().into_iter().map(|named| (named.name, named.tensor.detach().copy())));
        let kernel = Backend::Fused;
        let options =
            AdamOptions { weight_decay: 1e-4, gradient_clip: 0.1, offload: false, kernel, ..AdamOptions::PLAIN };
        found.extend(adam_results(300_000, options));
        let weights = VgaeWeights { alpha: 0.7, latent: 0.5, reconstruction: 0.5 };
        found.extend(distillation_results(kernel, [300, 16, 48], weights, (1.0, true)));
        found.extend(linear_results(true, [5000, 40, 80], true));
        found
    };
    let before = tch::get_num_threads();
    let (one, many) = (run(1), run(3));
    tch::set_num_threads(before);
    for ((name, one), (_, many)) in one.iter().zip(&many) {
        assert!(one == many, "{name} depends on the number of threads");
    }
}

#[test]
fn a_mask_drops_its_share_and_lets_gradients_pass_where_it_keeps() {
    let _alone = alone();
    step_seed::set(11);
    let mut fresh = FreshParameters::new(0, Device::Cpu);
    let layer = Scope::root(&mut fresh).layer_id();
    let x = Tensor::ones([1000, 100], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let output = relu_dropout(&x, layer, 0.1, Backend::Auto, Mode::Training).unwrap();
    let dropped = output.eq(0.0).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
    assert!((dropped - 0.1).abs() < 0.003, "{dropped} of the elements are dropped instead of 0.1");
    assert!((output.mean(Kind::Float).double_value(&[]) - 1.0).abs() < 0.004, "the mean is not kept");
    output.sum(Kind::Float).backward();
    assert!(x.grad() == output, "the gradient is not the mask");
    let evaluated = relu_dropout(&x.detach(), layer, 0.1, Backend::Auto, Mode::Evaluation).unwrap();
    assert!(evaluated == x.detach(), "evaluation drops activations");

    // An MLP draws a different mask for each of its layers.
    let mlp = Mlp::new(Scope::root(&mut fresh), &[4, 4, 4, 4]).unwrap();
    let x = normal(&[64, 4], 1);
    let forward = || mlp.forward(&x, 0.5, Backend::Auto, Mode::Training).unwrap();
    let (first, again) = (forward(), forward());
    assert!(first == again, "a recomputation in the same step draws another mask");
}
