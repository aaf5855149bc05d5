//! Differentiable functions written in Rust.
//!
//! [`apply`] runs a [`Function`]'s forward without recording, then adds one node to libtorch's graph whose backward is
//! the function's own. The node owns the function's state. It drops the state with the graph, or as soon as a backward
//! that does not keep the graph has passed the node.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::ffi;

/// A differentiable function with its own backward.
///
/// It must be `Send`: libtorch runs the backward of GPU tensors on a separate thread, and drops the graph on whichever
/// thread releases the last reference.
pub trait Function: Send + 'static {
    /// The name shown in errors and profiles.
    const NAME: &'static CStr;

    /// True if the backward consists of recorded operations: then gradients of its gradients exist, as forces need them in training. Its
    /// operations are recorded only while such a graph is made.
    const TWICE: bool = false;

    /// Computes the outputs without recording. Nobody may write to an output that shares storage with an input.
    ///
    /// `recorded` is true if a backward may follow; otherwise `saved` may stay empty.
    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError>;

    /// Computes one gradient per input, `None` if it is zero or not `needed`.
    ///
    /// `gradients` has one entry per output, `None` if the loss does not depend on it; an entry dropped in this
    /// function is freed at once. The caller of `backward` gets errors and panics as errors.
    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError>;
}

/// The gradients of several tensors; `None` stands for zero.
pub type Gradients = Vec<Option<Tensor>>;

/// The result of a forward.
pub struct Forward {
    /// The outputs. Those of an integer type have no gradient.
    pub outputs: Vec<Tensor>,
    /// Tensors that the backward needs: inputs, outputs or others. libtorch checks that nobody modifies them in the
    /// meantime.
    pub saved: Vec<Tensor>,
}

impl Forward {
    /// Outputs, and the inputs, which the backward reads if there is one.
    pub fn saving_inputs(outputs: Vec<Tensor>, inputs: &[&Tensor], recorded: bool) -> Self {
        let saved = if recorded { inputs.iter().map(|input| input.shallow_clone()).collect() } else { Vec::new() };
        Self { outputs, saved }
    }

    /// One output, which the backward reads, too, if there is one.
    pub fn saving_output(output: Tensor, recorded: bool) -> Self {
        let saved = if recorded { vec![output.shallow_clone()] } else { Vec::new() };
        Self { outputs: vec![output], saved }
    }
}

/// [`apply`] for a function of one output.
pub fn apply_one<F: Function>(function: F, inputs: &[&Tensor]) -> Result<Tensor, TchError> {
    Ok(apply(function, inputs)?.pop().unwrap_or_default())
}

/// Runs `function` on `inputs` and records it for the backward if any input requires a gradient.
pub fn apply<F: Function>(mut function: F, inputs: &[&Tensor]) -> Result<Vec<Tensor>, TchError> {
    let (input_pointers, recorded) = (ffi::pointers(inputs), is_recorded(inputs)?);
    let Forward { outputs, saved } = {
        let _unrecorded = tch::no_grad_guard();
        function.forward(inputs, recorded)?
    };
    if recorded {
        let output_pointers = ffi::pointers(&outputs.iter().collect::<Vec<_>>());
        let saved_pointers = ffi::pointers(&saved.iter().collect::<Vec<_>>());
        let state = Box::into_raw(Box::new(function));
        let name = F::NAME.as_ptr();
        let callbacks = Callbacks { backward: backward::<F>, drop: drop_state::<F>, name, twice: F::TWICE };
        // SAFETY: all pointers outlive the call; the callee takes `state` and frees it by `drop_state`.
        unsafe {
            ffi::check(kdgat_autograd_attach(
                &callbacks,
                state.cast(),
                input_pointers.as_ptr(),
                input_pointers.len(),
                output_pointers.as_ptr(),
                output_pointers.len(),
                saved_pointers.as_ptr(),
                saved_pointers.len(),
            ))?;
        }
    }
    Ok(outputs)
}

/// True if libtorch currently records operations on `inputs`.
pub fn is_recorded(inputs: &[&Tensor]) -> Result<bool, TchError> {
    let (input_pointers, mut recorded) = (ffi::pointers(inputs), 0_u8);
    // SAFETY: the pointers belong to `inputs`, `recorded` is written before the call returns.
    unsafe { ffi::check(kdgat_autograd_recorded(input_pointers.as_ptr(), inputs.len(), &mut recorded))? };
    Ok(recorded != 0)
}

/// Gradients of `outputs` with respect to `inputs`, each output weighted by its entry in `output_gradients` (`None`:
/// one, for a scalar).
///
/// `None` for an input that no output depends on. Adds nothing to any tensor's `.grad`.
pub fn gradients(
    outputs: &[&Tensor],
    output_gradients: &[Option<&Tensor>],
    inputs: &[&Tensor],
    keep_graph: bool,
) -> Result<Gradients, TchError> {
    let graph = Graph { keep: keep_graph, create: false };
    of_inputs(outputs, output_gradients, inputs, graph)
}

/// Like [`gradients`], of scalars, but records the backward, too, so that a loss of the gradients can be differentiated.
pub fn recorded_gradients(outputs: &[&Tensor], inputs: &[&Tensor]) -> Result<Gradients, TchError> {
    of_inputs(outputs, &vec![None; outputs.len()], inputs, Graph { keep: true, create: true })
}

/// The fate of the graph in a backward.
#[derive(Clone, Copy)]
struct Graph {
    /// True if another backward may follow.
    keep: bool,
    /// True to record the backward itself.
    create: bool,
}

fn of_inputs(
    outputs: &[&Tensor],
    output_gradients: &[Option<&Tensor>],
    inputs: &[&Tensor],
    graph: Graph,
) -> Result<Gradients, TchError> {
    if inputs.is_empty() {
        return Ok(Vec::new());
    }
    let mut results = vec![ptr::null_mut(); inputs.len()];
    run_engine(outputs, output_gradients, inputs, graph, &mut results)?;
    // SAFETY: the call above has filled `results` with null or tensors that are now ours.
    Ok(results.into_iter().map(|pointer| unsafe { ffi::from_raw(pointer) }).collect())
}

/// Like [`gradients`], but takes ownership of the outputs and their gradients and frees them as the backward passes
/// them.
pub fn gradients_consuming(roots: Vec<(Tensor, Tensor)>, inputs: &[&Tensor]) -> Result<Gradients, TchError> {
    let mut results = vec![ptr::null_mut(); inputs.len()];
    let input_pointers = ffi::pointers(inputs);
    let (outputs, weights): (Vec<_>, Vec<_>) =
        roots.into_iter().map(|(output, weight)| (ffi::into_raw(output), ffi::into_raw(weight))).unzip();
    // SAFETY: the callee frees outputs and weights in every case; the inputs outlive the call, and `results` has room for
    // one each.
    unsafe {
        ffi::check(kdgat_autograd_consume(
            outputs.as_ptr(),
            weights.as_ptr(),
            outputs.len(),
            input_pointers.as_ptr(),
            input_pointers.len(),
            results.as_mut_ptr(),
        ))?;
    }
    // SAFETY: the call above has filled `results` with null or tensors that are now ours.
    Ok(results.into_iter().map(|pointer| unsafe { ffi::from_raw(pointer) }).collect())
}

/// Adds the gradients of `outputs`, weighted as in [`gradients`], to the `.grad` of every leaf they depend on.
pub fn backward_from(
    outputs: &[&Tensor],
    output_gradients: &[Option<&Tensor>],
    keep_graph: bool,
) -> Result<(), TchError> {
    run_engine(outputs, output_gradients, &[], Graph { keep: keep_graph, create: false }, &mut [])
}

fn run_engine(
    outputs: &[&Tensor],
    output_gradients: &[Option<&Tensor>],
    inputs: &[&Tensor],
    graph: Graph,
    results: &mut [*mut C_tensor],
) -> Result<(), TchError> {
    if outputs.len() != output_gradients.len() {
        return Err(TchError::Shape(format!(
            "{} outputs but {} gradients of outputs",
            outputs.len(),
            output_gradients.len()
        )));
    }
    let output_pointers = ffi::pointers(outputs);
    let weights: Vec<_> =
        output_gradients.iter().map(|gradient| gradient.map_or(ptr::null(), |tensor| tensor.as_ptr())).collect();
    let input_pointers = ffi::pointers(inputs);
    // SAFETY: all pointers belong to tensors that outlive the call; `results` has room for one for each input.
    unsafe {
        ffi::check(kdgat_autograd_gradients(
            output_pointers.as_ptr(),
            weights.as_ptr(),
            output_pointers.len(),
            input_pointers.as_ptr(),
            input_pointers.len(),
            graph.keep,
            graph.create,
            results.as_mut_ptr(),
        ))
    }
}

/// Mirrors `KdgatBackward` of `shim/autograd.cpp`.
#[repr(C)]
struct BackwardCall {
    saved: *const *mut C_tensor,
    num_saved: usize,
    gradients: *const *mut C_tensor,
    num_gradients: usize,
    needed: *const u8,
    results: *mut *mut C_tensor,
    num_results: usize,
}

/// Mirrors `KdgatFunction` of `shim/autograd.cpp`.
#[repr(C)]
struct Callbacks {
    backward: unsafe extern "C" fn(*const c_void, *const BackwardCall) -> *mut c_char,
    drop: unsafe extern "C" fn(*mut c_void),
    name: *const c_char,
    twice: bool,
}

unsafe extern "C" fn backward<F: Function>(state: *const c_void, call: *const BackwardCall) -> *mut c_char {
    // SAFETY: C++ passes the state that `apply` gave it and a call that lives until this returns. We own the tensors it
    // points to from here on and take them before anything can panic.
    let (function, call, saved, gradients, needed) = unsafe {
        let call = &*call;
        let take = |pointers, count| {
            let taken = array::<*mut C_tensor>(pointers, count).iter();
            taken.map(|pointer| ffi::from_raw(*pointer)).collect::<Vec<_>>()
        };
        let needed = array(call.needed, call.num_results);
        (&*state.cast::<F>(), call, take(call.saved, call.num_saved), take(call.gradients, call.num_gradients), needed)
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let saved: Vec<Tensor> = saved.into_iter().map(Option::unwrap_or_default).collect();
        let needed: Vec<bool> = needed.iter().map(|&needed| needed != 0).collect();
        let _unrecorded = (!F::TWICE).then(tch::no_grad_guard);
        function.backward(saved, gradients, &needed)
    }));
    match outcome {
        Ok(Ok(results)) if results.len() == call.num_results => {
            for (index, result) in results.into_iter().enumerate() {
                let pointer = result.map_or(ptr::null_mut(), ffi::into_raw);
                // SAFETY: `results` has room for `num_results` pointers.
                unsafe { *call.results.add(index) = pointer };
            }
            ptr::null_mut()
        }
        Ok(Ok(results)) => {
            ffi::error_text(&format!("backward returned {} gradients for {} inputs", results.len(), call.num_results))
        }
        Ok(Err(error)) => ffi::error_text(&ffi::message_of(&error)),
        Err(payload) => ffi::error_text(&ffi::panic_message(payload.as_ref())),
    }
}

/// An array from C++; an empty one may have a null pointer.
///
/// # Safety
/// Unless `count` is 0, `first` points to `count` elements that outlive the slice.
unsafe fn array<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // SAFETY: by this function's contract.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, count) } }
}

unsafe extern "C" fn drop_state<F: Function>(state: *mut c_void) {
    // SAFETY: `state` came from `Box::into_raw` in `apply`, and C++ calls this once.
    let outcome = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(state.cast::<F>()) })));
    if let Err(payload) = outcome {
        // The graph's destructor has no caller to report to.
        tracing::error!("dropping the state of {:?}: {}", F::NAME, ffi::panic_message(payload.as_ref()));
    }
}

unsafe extern "C" {
    fn kdgat_autograd_recorded(inputs: *const *const C_tensor, num_inputs: usize, recorded: *mut u8) -> *mut c_char;
    fn kdgat_autograd_attach(
        function: *const Callbacks,
        state: *mut c_void,
        inputs: *const *const C_tensor,
        num_inputs: usize,
        outputs: *const *const C_tensor,
        num_outputs: usize,
        saved: *const *const C_tensor,
        num_saved: usize,
    ) -> *mut c_char;
    fn kdgat_autograd_gradients(
        outputs: *const *const C_tensor,
        output_gradients: *const *const C_tensor,
        num_outputs: usize,
        inputs: *const *const C_tensor,
        num_inputs: usize,
        keep_graph: bool,
        create_graph: bool,
        results: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn kdgat_autograd_consume(
        outputs: *const *mut C_tensor,
        output_gradients: *const *mut C_tensor,
        num_outputs: usize,
        inputs: *const *const C_tensor,
        num_inputs: usize,
        results: *mut *mut C_tensor,
    ) -> *mut c_char;
}
