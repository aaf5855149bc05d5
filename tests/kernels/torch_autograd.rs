//! Custom autograd functions: gradients, errors and panics in the backward pass, and when their state is dropped.

use std::ffi::CStr;
use std::sync::Arc;
use support::process::runs_alone;

use kdgat::torch::autograd::{self, Forward, Function, Gradients, apply, backward_from, gradients};
use kdgat::torch::checkpoint::checkpoint;
use kdgat::torch::draw;
use kdgat::torch::grad::{clear_grad, detached_leaves, set_grad};
use tch::{Device, Kind, TchError, Tensor};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

type Backward = fn(&[Tensor], &[Option<Tensor>], &[bool]) -> Result<Vec<Option<Tensor>>, TchError>;

/// `x²` and `3x`, with a configurable backward pass and a state whose drop can be observed.
struct Example {
    backward: Backward,
    save_output: bool,
    _state: Arc<()>,
}

impl Function for Example {
    const NAME: &'static CStr = c"example";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let outputs = vec![inputs[0] * inputs[0], inputs[0] * 3.0];
        let mut saved = if recorded { vec![inputs[0].shallow_clone()] } else { vec![] };
        if self.save_output {
            saved.push(outputs[0].shallow_clone());
        }
        Ok(Forward { outputs, saved })
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        (self.backward)(&saved, &gradients, needed)
    }
}

fn right(saved: &[Tensor], gradients: &[Option<Tensor>], needed: &[bool]) -> Result<Vec<Option<Tensor>>, TchError> {
    assert_eq!(needed, [true]);
    let square = gradients[0].as_ref().map(|gradient| gradient * &saved[0] * 2.0);
    let triple = gradients[1].as_ref().map(|gradient| gradient * 3.0);
    Ok(vec![match (square, triple) {
        (Some(square), Some(triple)) => Some(square + triple),
        (one, other) => one.or(other),
    }])
}

fn run(backward: Backward, x: &Tensor) -> (Vec<Tensor>, Arc<()>) {
    let state = Arc::new(());
    let function = Example { backward, save_output: false, _state: Arc::clone(&state) };
    (apply(function, &[x]).unwrap(), state)
}

fn leaf() -> Tensor {
    Tensor::from_slice(&[1.0_f32, -2.0, 3.0]).set_requires_grad(true)
}

fn error_of(loss: &Tensor) -> String {
    backward_from(&[loss], &[None], false).unwrap_err().to_string()
}

#[test]
fn gradients_flow_through_all_or_some_outputs() {
    let x = leaf();
    let (outputs, _) = run(right, &x);
    (&outputs[0] + &outputs[1]).sum(Kind::Float).backward();
    assert_eq!(x.grad(), &x.detach() * 2.0 + 3.0);
    let x = leaf();
    let (outputs, _) = run(right, &x);
    outputs[1].sum(Kind::Float).backward();
    assert_eq!(x.grad(), x.detach().full_like(3.0));
}

#[test]
fn an_error_or_a_panic_in_the_backward_is_an_error_of_backward() {
    let (outputs, _) = run(|_, _, _| Err(TchError::Shape("seventeen rows".into())), &leaf());
    let error = error_of(&outputs[0].sum(Kind::Float));
    assert!(error.contains("example: invalid shape: seventeen rows"), "{error}");
    let (outputs, _) = run(|_, _, _| panic!("on purpose"), &leaf());
    let error = error_of(&outputs[0].sum(Kind::Float));
    assert!(error.contains("example: panicked: on purpose"), "{error}");
    let (outputs, _) = run(|_, _, _| Ok(vec![None, None]), &leaf());
    let error = error_of(&outputs[0].sum(Kind::Float));
    assert!(error.contains("returned 2 gradients for 1 inputs"), "{error}");
    let (outputs, _) = run(|_, _, _| Ok(vec![Some(Tensor::zeros([5], FLOAT))]), &leaf());
    let error = error_of(&outputs[0].sum(Kind::Float));
    assert!(error.contains("shape"), "{error}");
    // And the engine still works.
    gradients_flow_through_all_or_some_outputs();
}

#[test]
fn the_state_lives_as_long_as_it_can_be_needed() {
    let x = leaf();
    let (outputs, state) = run(right, &x);
    assert_eq!(Arc::strong_count(&state), 2);
    drop(outputs);
    assert_eq!(Arc::strong_count(&state), 1, "dropped with the graph");

    let (outputs, state) = run(right, &x);
    let loss = outputs[0].sum(Kind::Float);
    backward_from(&[&loss], &[None], true).unwrap();
    assert_eq!(Arc::strong_count(&state), 2, "kept with the graph");
    backward_from(&[&loss], &[None], false).unwrap();
    assert_eq!(Arc::strong_count(&state), 1, "dropped by the last backward");
    let error = error_of(&loss);
    assert!(error.contains("second time"), "{error}");

    let (_, state) = tch::no_grad(|| run(right, &x));
    assert_eq!(Arc::strong_count(&state), 1, "never kept where nothing is recorded");
}

#[test]
fn saving_an_output_does_not_keep_the_graph_alive() {
    let x = leaf();
    let state = Arc::new(());
    let backward: Backward = |saved, gradients, _| {
        // The square root of the saved output is |x|.
        Ok(vec![Some(gradients[0].as_ref().unwrap() * saved[1].sqrt() * 2.0)])
    };
    let outputs = apply(Example { backward, save_output: true, _state: Arc::clone(&state) }, &[&x]).unwrap();
    outputs[0].sum(Kind::Float).backward();
    assert_eq!(x.grad(), x.detach().abs() * 2.0);
    let outputs = apply(Example { backward, save_output: true, _state: Arc::clone(&state) }, &[&x]).unwrap();
    assert_eq!(Arc::strong_count(&state), 2);
    drop(outputs);
    assert_eq!(Arc::strong_count(&state), 1);
}

#[test]
fn a_saved_tensor_that_was_changed_is_noticed() {
    let x = leaf();
    let hidden = &x * 1.0;
    let (outputs, _) = run(right, &hidden);
    let _ = hidden.detach().fill_(7.0);
    let error = error_of(&outputs[0].sum(Kind::Float));
    assert!(error.contains("modified by an inplace operation"), "{error}");
}

#[test]
fn differentiating_twice_is_refused() {
    let x = leaf();
    let (outputs, _) = run(right, &x);
    let error = Tensor::f_run_backward(&[outputs[0].sum(Kind::Float)], &[&x], true, true).unwrap_err().to_string();
    assert!(error.contains("cannot be differentiated twice"), "{error}");
}

#[test]
fn an_output_that_is_an_input_is_refused() {
    struct Identity;
    impl Function for Identity {
        const NAME: &'static CStr = c"identity";
        fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
            Ok(Forward { outputs: vec![inputs[0].shallow_clone()], saved: vec![] })
        }
        fn backward(&self, _: Vec<Tensor>, _: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
            unreachable!()
        }
    }
    let error = apply(Identity, &[&leaf()]).unwrap_err().to_string();
    assert!(error.contains("return a new tensor"), "{error}");
}

#[test]
fn a_deep_graph_is_dropped_without_recursion() {
    let x = leaf();
    let mut output = &x * 1.0;
    for _ in 0..100_000 {
        output = run(right, &output).0.swap_remove(0);
    }
    drop(output);
}

#[test]
fn a_graph_can_be_run_and_dropped_on_another_thread() {
    let x = leaf();
    let (mut outputs, state) = run(right, &x);
    let output = outputs.swap_remove(0);
    drop(outputs);
    std::thread::spawn(move || backward_from(&[&output.sum(Kind::Float)], &[None], false).unwrap()).join().unwrap();
    assert_eq!(x.grad(), x.detach() * 2.0);
    assert_eq!(Arc::strong_count(&state), 1);
}

#[test]
fn gradients_are_weighted_and_absent_where_nothing_depends() {
    let (x, unused) = (leaf(), leaf());
    let output = &x * &x;
    let weight = Tensor::from_slice(&[1.0_f32, 10.0, 100.0]);
    let found = gradients(&[&output], &[Some(&weight)], &[&x, &unused], false).unwrap();
    assert_eq!(found[0].as_ref().unwrap(), &(x.detach() * 2.0 * &weight));
    assert!(found[1].is_none());
    assert!(!x.grad().defined(), "nothing is added to .grad");
}

#[test]
fn gradients_live_where_they_are_put() {
    let flat = Tensor::zeros([6], FLOAT);
    let leaves = [leaf(), leaf()];
    for (index, leaf) in leaves.iter().enumerate() {
        set_grad(leaf, &flat.narrow(0, 3 * index as i64, 3)).unwrap();
    }
    for _ in 0..2 {
        (&leaves[0] + &leaves[1] * 2.0).sum(Kind::Float).backward();
    }
    assert_eq!(flat, Tensor::from_slice(&[2.0_f32, 2.0, 2.0, 4.0, 4.0, 4.0]));
    clear_grad(&leaves[0]).unwrap();
    assert!(!leaves[0].grad().defined());
    let error = set_grad(&leaves[0], &Tensor::zeros([4], FLOAT)).unwrap_err().to_string();
    assert!(error.contains("shape"), "{error}");
    assert!(set_grad(&Tensor::zeros([3], FLOAT), &Tensor::zeros([3], FLOAT)).is_err(), "no gradient is required");
}

#[test]
fn detached_leaves_stop_a_backward() {
    let x = leaf();
    let leaves = detached_leaves(&[&(&x * 2.0)]).unwrap();
    (&leaves[0] * 3.0).sum(Kind::Float).backward();
    assert_eq!(leaves[0].grad(), x.detach().full_like(3.0));
    assert!(!x.grad().defined());
}

#[test]
fn checkpointing_gives_the_same_gradients() {
    let (x, weight) = (leaf(), Tensor::from_slice(&[0.5_f32, -1.0, 2.0]).set_requires_grad(true));
    let body = |x: &Tensor, weight: &Tensor| (x * weight).tanh() * x;
    body(&x, &weight).sum(Kind::Float).backward();
    let expected = [x.grad().copy(), weight.grad().copy()];
    clear_grad(&x).unwrap();
    clear_grad(&weight).unwrap();
    let handle = weight.shallow_clone();
    let outputs = checkpoint(move |inputs| Ok(vec![body(&inputs[0], &handle)]), &[&x], &[&weight]).unwrap();
    outputs[0].sum(Kind::Float).backward();
    assert_eq!([x.grad(), weight.grad()], expected);

    // If the input needs no gradient, the parameters still receive theirs.
    clear_grad(&weight).unwrap();
    let handle = weight.shallow_clone();
    let outputs = checkpoint(move |inputs| Ok(vec![body(&inputs[0], &handle)]), &[&x.detach()], &[&weight]).unwrap();
    outputs[0].sum(Kind::Float).backward();
    assert_eq!(weight.grad(), expected[1]);
}

#[test]
fn an_error_in_a_recomputation_arrives() {
    let x = leaf();
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let body = move |inputs: &[Tensor]| match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => Ok(vec![&inputs[0] * 2.0]),
        _ => Err(TchError::Torch("no memory left for it".into())),
    };
    let outputs = checkpoint(body, &[&x], &[]).unwrap();
    let error = autograd::backward_from(&[&outputs[0].sum(Kind::Float)], &[None], false).unwrap_err().to_string();
    assert!(error.contains("checkpoint: no memory left for it"), "{error}");
}

/// A seed gives the numbers of libtorch's default generator.
#[test]
fn a_generator_of_its_own_gives_the_numbers_of_the_default_one() {
    if !runs_alone(module_path!(), "a_generator_of_its_own_gives_the_numbers_of_the_default_one") {
        return;
    }
    for seed in [0, 7, u64::MAX - 5] {
        for size in [3, 16, 1000] {
            tch::manual_seed(seed as i64);
            let expected = Tensor::empty([size], (Kind::Float, Device::Cpu)).uniform_(-0.25, 0.25);
            assert_eq!(draw::uniform(&[size], Kind::Float, -0.25, 0.25, seed).unwrap(), expected, "{seed}, {size}");
            tch::manual_seed(seed as i64);
            let expected = Tensor::randn([size], (Kind::Float, Device::Cpu));
            assert_eq!(draw::normal(&[size], Kind::Float, seed).unwrap(), expected, "{seed}, {size}");
        }
    }
}
