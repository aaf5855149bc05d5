//! Means over the real rows of a [padded batch](kdgat_graph::padding), composed of torch's operations.
//!
//! Without a mask, each function is torch's own.

use tch::{Kind, Reduction, TchError, Tensor};

use kdgat_graph::padding::Mask;

/// Mean of `[rows]` over the real rows.
pub fn mean_of_rows(values: &Tensor, mask: Option<&Mask>) -> Result<Tensor, TchError> {
    match mask {
        None => values.f_mean(None::<Kind>),
        Some(mask) => values.f_mul(&mask.rows)?.f_sum(None::<Kind>)?.f_div(&mask.count),
    }
}

/// Mean of `[rows, columns]` over the real rows and all columns.
pub fn mean(values: &Tensor, mask: Option<&Mask>) -> Result<Tensor, TchError> {
    match mask {
        None => values.f_mean(None::<Kind>),
        Some(_) => mean_of_rows(&values.f_mean_dim([1_i64].as_slice(), false, values.f_kind()?)?, mask),
    }
}

/// Mean squared difference of two `[rows, columns]` over the real rows and all columns.
pub fn squared_distance(left: &Tensor, right: &Tensor, mask: Option<&Mask>) -> Result<Tensor, TchError> {
    match mask {
        None => left.f_mse_loss(right, Reduction::Mean),
        Some(_) => mean(&left.f_sub(right)?.f_square()?, mask),
    }
}

/// Mean cross entropy of logits `[rows, classes]` with labels `index`, `[rows]`, over the real rows.
pub fn cross_entropy(logits: &Tensor, index: &Tensor, mask: Option<&Mask>) -> Result<Tensor, TchError> {
    let of = |reduction| logits.f_cross_entropy_loss(index, None::<Tensor>, reduction, -100, 0.0);
    match mask {
        None => of(Reduction::Mean),
        Some(_) => mean_of_rows(&of(Reduction::None)?, mask),
    }
}

/// Mean binary cross entropy of logits and probabilities, `[rows, columns]` each, over the real rows and all columns.
pub fn binary_cross_entropy(logits: &Tensor, truth: &Tensor, mask: Option<&Mask>) -> Result<Tensor, TchError> {
    let of = |reduction| logits.f_binary_cross_entropy_with_logits(truth, None::<Tensor>, None::<Tensor>, reduction);
    match mask {
        None => of(Reduction::Mean),
        Some(_) => mean(&of(Reduction::None)?, mask),
    }
}

/// Mean and biased variance, `[columns]` each, of `[rows, columns]` over the real rows; and the rows minus the mean,
/// with zeros in padded rows.
pub fn moments(x: &Tensor, mask: &Mask) -> Result<([Tensor; 2], Tensor), TchError> {
    let weights = mask.rows.f_unsqueeze(1)?;
    let sums = |x: &Tensor| x.f_sum_dim_intlist([0_i64].as_slice(), false, x.f_kind()?)?.f_div(&mask.count);
    let mean = sums(&x.f_mul(&weights)?)?;
    let centred = x.f_sub(&mean)?.f_mul(&weights)?;
    let variance = sums(&centred.f_square()?)?;
    Ok(([mean, variance], centred))
}
