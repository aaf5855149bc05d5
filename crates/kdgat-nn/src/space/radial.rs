//! Functions of the distance of a pair: a radial basis, and a cutoff that lets messages fade out.

use std::f64::consts::PI;

use tch::{Kind, TchError, Tensor};

use super::config::{RadialBasis, SpaceConfig};

/// φ_k(d): distances `[lines, 1]` → `[lines, radial_functions]`.
///
/// ```text
/// Gaussian: exp(−(d − μ_k)² / 2w²), μ_k = k·w, w = cutoff / (n − 1), k = 0 … n − 1
/// Bessel:   sin(k π d / cutoff) / d, k = 1 … n
/// ```
pub fn basis(config: &SpaceConfig, distances: &Tensor) -> Result<Tensor, TchError> {
    let (count, options) = (config.radial_functions, (Kind::Float, distances.device()));
    match config.basis {
        RadialBasis::Gaussian => {
            let centres = Tensor::f_linspace(0.0, config.cutoff, count, options)?;
            let width = config.cutoff / (count - 1).max(1) as f64;
            distances.f_sub(&centres)?.f_square()?.f_mul_scalar(-0.5 / (width * width))?.f_exp()
        }
        RadialBasis::Bessel => {
            let frequencies =
                Tensor::f_linspace(PI / config.cutoff, count as f64 * PI / config.cutoff, count, options)?;
            distances.f_mul(&frequencies)?.f_sin()?.f_div(distances)
        }
    }
}

/// ½(cos(π d / cutoff) + 1), and 0 from the cutoff on (Behler 2011): distances `[lines, 1]` → the same shape.
pub fn cosine_cutoff(config: &SpaceConfig, distances: &Tensor) -> Result<Tensor, TchError> {
    let fading = distances.f_mul_scalar(PI / config.cutoff)?.f_cos()?.f_add_scalar(1.0)?.f_mul_scalar(0.5)?;
    let is_near = distances.f_lt(config.cutoff)?.f_to_kind(Kind::Float)?;
    fading.f_mul(&is_near)
}
