//! Sums of products of representations over each node's edges, with weights of each edge that are never made.
//!
//! The sum's product with a cotangent g is a form that is linear in each of its arguments: radial features h, rows x of the sending nodes,
//! harmonics Y, the last layer W of the radial network, and g.
//!
//! ```text
//! Φ(h, x, Y, W, g) = Σ_e Σ_(u, w, m) (W h_e)[u, w] · (x_source(e)[u] ⊗ Y_e)[m] · g_target(e)[w, m]
//! ```
//!
//! So are its gradients: with cotangents of all of them, they are a sum of such forms in which one argument is replaced by its cotangent. The
//! second derivative, which forces need in training, is the gradient of the same form over as many copies of each edge, whose sums of a node
//! are multiplied by W once.

use std::ffi::CStr;
use std::sync::Arc;

use kdgat_torch::autocast::widened;
use kdgat_torch::autograd::{self, Forward, Function};
use tch::{Kind, TchError, Tensor};

use super::coupling::{Block, Coupling};
use super::edges::Edges;
use crate::attention::Backend;
use crate::fused::irreps::{self as kernels, Arguments};
use crate::{ModelError, fused, segments};

/// Arguments of the form besides g.
const ARGUMENTS: usize = 4;

/// Number of the arguments that an edge has, which come first: radial features, rows and harmonics.
const OF_EDGES: usize = 3;

/// Sums over each node's edges: radial features `[lines, radial]`, rows of the sending nodes `[rows, inputs]`, harmonics `[lines, 9]` and weights
/// `[weights, radial]`, in the order of [`Coupling::order`] → `[nodes, outputs]`.
///
/// On the CPU the memory does not grow with the edges but for their gradients. Elsewhere the weights of each edge are made, as e3nn does.
///
/// # Errors
/// Those of libtorch.
pub fn sum_of_products(
    coupling: &Arc<Coupling>,
    edges: &Edges,
    arguments: [&Tensor; ARGUMENTS],
    kernel: Backend,
) -> Result<Tensor, ModelError> {
    let arguments = arguments.map(widened).into_iter().collect::<Result<Vec<_>, _>>()?;
    let arguments: Vec<&Tensor> = arguments.iter().collect();
    match fused::applies(kernel, &arguments) {
        true => Ok(sums(coupling, edges, &arguments)?),
        false => Ok(composed(coupling, edges, &arguments)?),
    }
}

fn sums(coupling: &Arc<Coupling>, edges: &Edges, arguments: &[&Tensor]) -> Result<Tensor, TchError> {
    let function = Sums { coupling: Arc::clone(coupling), edges: edges.shallow_clone() };
    let arguments = arguments.iter().map(|tensor| tensor.f_contiguous()).collect::<Result<Vec<_>, _>>()?;
    autograd::apply_one(function, &arguments.iter().collect::<Vec<_>>())
}

/// The asked gradients of the form by its arguments but the last one, `[.., g]`.
fn gradients(
    (coupling, edges): (&Arc<Coupling>, &Edges),
    arguments: &[&Tensor],
    asked: [bool; ARGUMENTS],
) -> Result<Vec<Option<Tensor>>, TchError> {
    let function = Gradients { coupling: Arc::clone(coupling), edges: edges.shallow_clone(), asked };
    let arguments = arguments.iter().map(|tensor| tensor.f_contiguous()).collect::<Result<Vec<_>, _>>()?;
    let mut outputs = autograd::apply(function, &arguments.iter().collect::<Vec<_>>())?.into_iter();
    Ok(asked.iter().map(|&asked| if asked { outputs.next() } else { None }).collect())
}

fn of<'a>(coupling: &'a Coupling, edges: &'a Edges, arguments: &[&'a Tensor]) -> Result<Arguments<'a>, TchError> {
    match *arguments {
        [radial, rows, harmonics, weights, ..] => Ok(Arguments { coupling, edges, radial, rows, harmonics, weights }),
        _ => Err(TchError::Shape(format!("a product of {} arguments", arguments.len()))),
    }
}

/// The derivative of the form by g.
struct Sums {
    coupling: Arc<Coupling>,
    edges: Edges,
}

impl Function for Sums {
    const NAME: &'static CStr = c"sum of products of representations";
    const TWICE: bool = true;

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let output = kernels::sums(&of(&self.coupling, &self.edges, inputs)?)?;
        Ok(Forward::saving_inputs(vec![output], inputs, recorded))
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        of_outputs: Vec<Option<Tensor>>,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let Some(gradient) = &of_outputs[0] else { return Ok(needed.iter().map(|_| None).collect()) };
        let mut arguments: Vec<&Tensor> = saved.iter().collect();
        arguments.push(gradient);
        gradients((&self.coupling, &self.edges), &arguments, std::array::from_fn(|index| needed[index]))
    }
}

/// The derivatives of the form by its other arguments.
struct Gradients {
    coupling: Arc<Coupling>,
    edges: Edges,
    asked: [bool; ARGUMENTS],
}

impl Function for Gradients {
    const NAME: &'static CStr = c"gradients of a sum of products of representations";
    const TWICE: bool = true;

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let arguments = of(&self.coupling, &self.edges, inputs)?;
        let outputs = kernels::gradients(&arguments, inputs[ARGUMENTS], self.asked)?;
        Ok(Forward::saving_inputs(outputs.into_iter().flatten().collect(), inputs, recorded))
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        of_outputs: Vec<Option<Tensor>>,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let mut of_outputs = of_outputs.into_iter();
        let cotangents: Vec<Option<Tensor>> =
            self.asked.iter().map(|&asked| if asked { of_outputs.next().flatten() } else { None }).collect();
        let arguments: Vec<&Tensor> = saved.iter().collect();
        let mut totals = Totals((0..=ARGUMENTS).map(|_| None).collect());
        self.of_edges(&arguments, &cotangents, needed, &mut totals)?;
        if let Some(of_weights) = &cotangents[OF_EDGES] {
            let mut replaced = arguments.clone();
            replaced[OF_EDGES] = of_weights;
            let asked = [needed[0], needed[1], needed[2], false];
            if asked.contains(&true) {
                let found = gradients((&self.coupling, &self.edges), &replaced, asked)?;
                found.into_iter().enumerate().try_for_each(|(index, found)| totals.add(index, found))?;
            }
            if needed[ARGUMENTS] {
                totals.add(ARGUMENTS, Some(sums(&self.coupling, &self.edges, &replaced[..ARGUMENTS])?))?;
            }
        }
        Ok(totals.0)
    }
}

/// Gradients that are sums of several forms'.
struct Totals(Vec<Option<Tensor>>);

impl Totals {
    fn add(&mut self, index: usize, found: Option<Tensor>) -> Result<(), TchError> {
        self.0[index] = match (self.0[index].take(), found) {
            (Some(total), Some(found)) => Some(total.f_add(&found)?),
            (total, found) => total.or(found),
        };
        Ok(())
    }
}

impl Gradients {
    /// Adds the gradients of the forms in which an argument of the edges is replaced by its cotangent: one form over a copy of the edges for
    /// each of them.
    fn of_edges(
        &self,
        arguments: &[&Tensor],
        cotangents: &[Option<Tensor>],
        needed: &[bool],
        totals: &mut Totals,
    ) -> Result<(), TchError> {
        let replaced: Vec<usize> = (0..OF_EDGES).filter(|&index| cotangents[index].is_some()).collect();
        if replaced.is_empty() {
            return Ok(());
        }
        // In copy `copy`, argument `replaced[copy]` is its cotangent.
        let table = |index: usize| {
            let of_copy = |&by: &usize| match (by == index, &cotangents[index]) {
                (true, Some(cotangent)) => cotangent.shallow_clone(),
                _ => arguments[index].shallow_clone(),
            };
            Tensor::f_cat(&replaced.iter().map(of_copy).collect::<Vec<_>>(), 0)
        };
        let tables = (0..OF_EDGES).map(table).collect::<Result<Vec<_>, _>>()?;
        let edges = self.edges.repeated(replaced.len() as i64)?;
        let mut arguments: Vec<&Tensor> = tables.iter().chain(arguments[OF_EDGES..].iter().copied()).collect();
        let is_kept = |index: usize| replaced.iter().any(|&by| by != index);
        let asked = std::array::from_fn(|index| needed[index] && (index >= OF_EDGES || is_kept(index)));
        if asked.contains(&true) {
            for (index, found) in gradients((&self.coupling, &edges), &arguments, asked)?.into_iter().enumerate() {
                let Some(found) = found else { continue };
                if index >= OF_EDGES {
                    totals.add(index, Some(found))?;
                    continue;
                }
                let copies = found.f_chunk(replaced.len() as i64, 0)?;
                for (copy, _) in copies.into_iter().zip(&replaced).filter(|(_, by)| **by != index) {
                    totals.add(index, Some(copy))?;
                }
            }
        }
        arguments.truncate(ARGUMENTS);
        match needed[ARGUMENTS] {
            true => totals.add(ARGUMENTS, Some(sums(&self.coupling, &edges, &arguments)?)),
            false => Ok(()),
        }
    }
}

/// The same, of torch's operations, with a tensor of the weights of all edges.
fn composed(coupling: &Coupling, edges: &Edges, arguments: &[&Tensor]) -> Result<Tensor, TchError> {
    let Arguments { radial, rows, harmonics, weights, .. } = of(coupling, edges, arguments)?;
    let (count, nodes) = (edges.count(), edges.num_nodes());
    let turns = Tensor::f_from_slice(&[0.0_f32, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])?.f_to_device(rows.device())?;
    let signs = edges.signs.f_sub_scalar(1.0)?.f_unsqueeze(1)?.f_mul(&turns)?.f_add_scalar(1.0)?;
    let of_edges = harmonics.f_index_select(0, &edges.lines)?.f_mul(&signs)?;
    let (of_sources, radial) = (rows.f_index_select(0, &edges.sources)?, radial.f_index_select(0, &edges.lines)?);
    let mut columns = Vec::new();
    let mut next = 0;
    let zeros = |columns: usize| Tensor::f_zeros([nodes, columns as i64], (Kind::Float, rows.device()));
    for block in &coupling.blocks {
        columns.push(zeros(block.column - next)?);
        let products = products(block, &of_sources, &of_edges)?;
        let of_block = weights.f_narrow(0, block.row as i64, block.rows() as i64)?;
        let weights = radial.f_matmul(&of_block.f_transpose(0, 1)?)?;
        let weights = weights.f_view([count, block.outputs as i64, block.fan as i64])?;
        let messages = products.f_bmm(&weights.f_transpose(1, 2)?)?.f_flatten(1, 2)?;
        columns.push(segments::sums(&messages, &edges.pointers, &edges.targets)?);
        next = block.column + block.components * block.outputs;
    }
    columns.push(zeros(coupling.outputs - next)?);
    Tensor::f_cat(&columns, 1)
}

/// `[edges, components, fan]`
fn products(block: &Block, rows: &Tensor, harmonics: &Tensor) -> Result<Tensor, TchError> {
    let mut of_paths = Vec::new();
    for path in &block.paths {
        let count = path.count as i64;
        let mut components: Vec<Option<Tensor>> = (0..block.components).map(|_| None).collect();
        for term in &path.terms {
            let from = rows.f_narrow(1, path.column as i64 + term.from as i64 * count, count)?;
            for &(harmonic, factor) in &term.factors {
                let product =
                    from.f_mul(&harmonics.f_narrow(1, harmonic as i64, 1)?)?.f_mul_scalar(f64::from(factor))?;
                components[term.to] = Some(match components[term.to].take() {
                    Some(sum) => sum.f_add(&product)?,
                    None => product,
                });
            }
        }
        // Every component has a term.
        let components: Vec<Tensor> = components.into_iter().flatten().collect();
        of_paths.push(Tensor::f_stack(&components, 1)?);
    }
    Tensor::f_cat(&of_paths, 2)
}
