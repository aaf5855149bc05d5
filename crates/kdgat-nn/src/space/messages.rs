//! Sums of messages over pairs of nodes, differentiable any number of times.
//!
//! A sum of messages is the derivative of a form that is linear in each of its arguments: filters w of the lines, rows x of the pairs'
//! sources, directions d of the lines, which a pair against its line's direction has with the sign −, and cotangents g of the sums.
//!
//! ```text
//! filtered: Φ(w, x, g)    = Σ_p Σ_c Σ_f w[line(p), f]·x[source(p), c, f]·g[target(p), c, f]
//! directed: Φ(w, x, d, g) = Σ_p Σ_c Σ_f w[line(p), f]·x[source(p), f]·(± d[line(p), c])·g[target(p), c, f]
//! ```
//!
//! The derivative by g is the sum of messages. Its own derivatives are those by w, x and d, with the incoming gradient in the place of g; and
//! so on, however often they are differentiated. So each derivative is one [`Function`] whose backward applies the others.

use std::ffi::CStr;

use kdgat_torch::autocast::widened;
use kdgat_torch::autograd::{self, Forward, Function};
use tch::{TchError, Tensor};

use super::pairs::Pairs;
use crate::attention::Backend;
use crate::fused::{self, pair_sums};
use crate::{ModelError, segments};

/// Σ_p w[line(p), f]·x[source(p), c, f] over the pairs of each target: filters `[lines, columns]` and rows `[nodes, components, columns]` →
/// `[nodes, components, columns]`.
pub fn filtered(filters: &Tensor, rows: &Tensor, pairs: &Pairs, kernel: Backend) -> Result<Tensor, ModelError> {
    let size = rows.size();
    expect_shapes(pairs, &[(filters, &[LINES, size[2]]), (rows, &[NODES, size[1], size[2]])])?;
    of_form(Form::Filtered, &[filters, rows], pairs, kernel)
}

/// Σ_p w[line(p), f]·x[source(p), f]·(± d[line(p), c]) over the pairs of each target: filters `[lines, columns]`, rows `[nodes, columns]` and
/// directions `[lines, 3]` → `[nodes, 3, columns]`.
pub fn directed(
    filters: &Tensor,
    rows: &Tensor,
    directions: &Tensor,
    pairs: &Pairs,
    kernel: Backend,
) -> Result<Tensor, ModelError> {
    let columns = rows.size()[1];
    let shapes = [(filters, &[LINES, columns][..]), (rows, &[NODES, columns]), (directions, &[LINES, 3])];
    expect_shapes(pairs, &shapes)?;
    of_form(Form::Directed, &[filters, rows, directions], pairs, kernel)
}

/// Stand for the number of lines and of nodes in an expected shape.
const LINES: i64 = -1;
const NODES: i64 = -2;

fn expect_shapes(pairs: &Pairs, tensors: &[(&Tensor, &[i64])]) -> Result<(), TchError> {
    let [count, nodes] = [pairs.num_lines(), pairs.target_pointers.size()[0] - 1];
    for (tensor, expected) in tensors {
        let of = |&size: &i64| match size {
            LINES => count,
            NODES => nodes,
            size => size,
        };
        let expected: Vec<i64> = expected.iter().map(of).collect();
        if tensor.size() != expected {
            return Err(TchError::Shape(format!("messages of shape {:?}, expected {expected:?}", tensor.size())));
        }
    }
    Ok(())
}

fn of_form(form: Form, arguments: &[&Tensor], pairs: &Pairs, kernel: Backend) -> Result<Tensor, ModelError> {
    let arguments = arguments.iter().map(|tensor| widened(tensor)).collect::<Result<Vec<_>, _>>()?;
    let by = arguments.len();
    Ok(derivative(form, by, &arguments.iter().collect::<Vec<_>>(), pairs, kernel)?)
}

/// The derivative of a form by its argument number `by`, at the others.
fn derivative(form: Form, by: usize, others: &[&Tensor], pairs: &Pairs, kernel: Backend) -> Result<Tensor, TchError> {
    let others = others.iter().map(|tensor| tensor.f_contiguous()).collect::<Result<Vec<_>, _>>()?;
    let function = Derivative { form, by, pairs: pairs.shallow_clone(), kernel };
    autograd::apply_one(function, &others.iter().collect::<Vec<_>>())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Filtered,
    Directed,
}

struct Derivative {
    form: Form,
    by: usize,
    pairs: Pairs,
    kernel: Backend,
}

impl Function for Derivative {
    const NAME: &'static CStr = c"sum of messages";
    const TWICE: bool = true;

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let output = match fused::applies(self.kernel, inputs) {
            true => self.fused(inputs)?,
            false => self.composed(inputs)?,
        };
        Ok(Forward::saving_inputs(vec![output], inputs, recorded))
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        gradients: Vec<Option<Tensor>>,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(needed.iter().map(|_| None).collect()) };
        let mut arguments: Vec<&Tensor> = saved.iter().collect();
        arguments.insert(self.by, gradient);
        let of_input = |(input, &is_needed): (usize, &bool)| {
            is_needed.then(|| {
                let by = if input < self.by { input } else { input + 1 };
                let others = [&arguments[..by], &arguments[by + 1..]].concat();
                derivative(self.form, by, &others, &self.pairs, self.kernel)
            })
        };
        needed.iter().enumerate().map(of_input).map(Option::transpose).collect()
    }
}

impl Derivative {
    fn fused(&self, others: &[&Tensor]) -> Result<Tensor, TchError> {
        use pair_sums::End;
        let pairs = &self.pairs;
        match (self.form, self.by, others) {
            (Form::Filtered, 0, [x, g]) => pair_sums::products(pairs, x, g),
            (Form::Filtered, 1, [w, g]) => pair_sums::filtered(pairs, End::Source, w, g),
            (Form::Filtered, _, [w, x]) => pair_sums::filtered(pairs, End::Target, w, x),
            (Form::Directed, 0, [x, d, g]) => pair_sums::directed_products(pairs, x, d, g),
            (Form::Directed, 1, [w, d, g]) => pair_sums::against_directions(pairs, w, d, g),
            (Form::Directed, 2, [w, x, g]) => pair_sums::along_axes(pairs, w, x, g),
            (Form::Directed, _, [w, x, d]) => pair_sums::directed(pairs, w, x, d),
            _ => Err(self.unknown(others)),
        }
    }

    /// The same, of torch's operations, with a tensor of all messages.
    fn composed(&self, others: &[&Tensor]) -> Result<Tensor, TchError> {
        let pairs = &self.pairs;
        let [of_sources, of_targets] =
            [&pairs.sources, &pairs.targets].map(|nodes| move |rows: &Tensor| rows.f_index_select(0, nodes));
        let by_target = |messages: &Tensor| segments::sums(messages, &pairs.target_pointers, &pairs.targets);
        let by_source = |messages: &Tensor| {
            let of = |tensor: &Tensor| tensor.f_index_select(0, &pairs.by_source);
            segments::sums(&of(messages)?, &pairs.source_pointers, &of(&pairs.sources)?)
        };
        let over = |axis: i64, values: Tensor| {
            let kind = values.f_kind()?;
            values.f_sum_dim_intlist([axis].as_slice(), false, kind)
        };
        let of_lines = |rows: &Tensor| rows.f_index_select(0, &pairs.lines);
        let turned = |d: &Tensor| of_lines(d)?.f_mul(&pairs.signs.f_unsqueeze(1)?);
        // Sums over the one or two pairs of each line.
        let by_line = |values: &Tensor| {
            let of = |pairs: &Tensor| values.f_index_select(0, pairs);
            match &pairs.seconds {
                Some(seconds) => of(&pairs.firsts)?.f_add(&of(seconds)?),
                None => of(&pairs.firsts),
            }
        };
        // Σ_c ± d[line(p), c]·g[target(p), c, f].
        let along = |d: &Tensor, g: &Tensor| over(1, of_targets(g)?.f_mul(&turned(d)?.f_unsqueeze(2)?)?);
        match (self.form, self.by, others) {
            (Form::Filtered, 0, [x, g]) => by_line(&over(1, of_sources(x)?.f_mul(&of_targets(g)?)?)?),
            (Form::Filtered, 1, [w, g]) => by_source(&of_targets(g)?.f_mul(&of_lines(w)?.f_unsqueeze(1)?)?),
            (Form::Filtered, _, [w, x]) => by_target(&of_sources(x)?.f_mul(&of_lines(w)?.f_unsqueeze(1)?)?),
            (Form::Directed, 0, [x, d, g]) => by_line(&of_sources(x)?.f_mul(&along(d, g)?)?),
            (Form::Directed, 1, [w, d, g]) => by_source(&along(d, g)?.f_mul(&of_lines(w)?)?),
            (Form::Directed, 2, [w, x, g]) => {
                let messages = of_sources(x)?.f_mul(&of_lines(w)?)?.f_unsqueeze(1)?;
                let by_axis = over(2, of_targets(g)?.f_mul(&messages)?)?;
                by_line(&by_axis.f_mul(&pairs.signs.f_unsqueeze(1)?)?)
            }
            (Form::Directed, _, [w, x, d]) => {
                let messages = of_sources(x)?.f_mul(&of_lines(w)?)?.f_unsqueeze(1)?;
                by_target(&messages.f_mul(&turned(d)?.f_unsqueeze(2)?)?)
            }
            _ => Err(self.unknown(others)),
        }
    }

    fn unknown(&self, others: &[&Tensor]) -> TchError {
        TchError::Shape(format!("{:?} sum of messages by argument {} of {}", self.form, self.by, others.len() + 1))
    }
}

/// Sums over each node's lines of what pulls it along them: derivatives by the vectors of the lines, `[lines, columns]`, which pull the target of
/// a line's first pair and push its source → `[nodes, columns]`.
///
/// # Errors
/// Those of libtorch.
pub fn pulled(derivatives: &Tensor, pairs: &Pairs) -> Result<Tensor, TchError> {
    if pairs.seconds.is_some() {
        // The source of a first pair is the target of the second.
        let of_pairs = derivatives.f_index_select(0, &pairs.lines)?.f_mul(&pairs.signs.f_unsqueeze(1)?)?;
        return segments::sums(&of_pairs, &pairs.target_pointers, &pairs.targets);
    }
    let of = |tensor: &Tensor| tensor.f_index_select(0, &pairs.by_source);
    let received = segments::sums(derivatives, &pairs.target_pointers, &pairs.targets)?;
    received.f_sub(&segments::sums(&of(derivatives)?, &pairs.source_pointers, &of(&pairs.sources)?)?)
}
