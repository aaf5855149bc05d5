//! Functions of the distance of a pair: a radial basis, and a cutoff that lets messages fade out.

use std::f64::consts::PI;

use tch::{Device, Kind, TchError, Tensor};

use super::config::{RadialBasis, SpaceConfig};

/// Functions of the lines' distances and, if asked for, their derivatives by the distances.
#[derive(Debug)]
pub struct Radial {
    /// `[num_lines, radial_functions]`: the radial basis.
    pub functions: Tensor,
    /// `[num_lines, 1]`: the cutoff function.
    pub fading: Tensor,
    /// Derivatives of both.
    pub slopes: Option<[Tensor; 2]>,
}

impl Radial {
    /// Values, and derivatives if `with_slopes`, at distances `[num_lines, 1]`; nothing is recorded.
    pub fn constants(config: &SpaceConfig, distances: &Tensor, with_slopes: bool) -> Result<Self, TchError> {
        tch::no_grad(|| {
            let (functions, fading) = (basis(config, distances)?, cosine_cutoff(config, distances)?);
            let slopes = with_slopes.then(|| {
                Ok::<_, TchError>([basis_slopes(config, distances, &functions)?, cutoff_slopes(config, distances)?])
            });
            Ok(Self { functions, fading, slopes: slopes.transpose()? })
        })
    }
}

/// φ_k(d): distances `[lines, 1]` → `[lines, radial_functions]`.
///
/// ```text
/// Gaussian: exp(−(d − μ_k)² / 2w²), μ_k = k·w, w = cutoff / (n − 1), k = 0 … n − 1
/// Bessel:   sin(k π d / cutoff) / d, k = 1 … n
/// ```
pub fn basis(config: &SpaceConfig, distances: &Tensor) -> Result<Tensor, TchError> {
    let places = places(config, distances.device())?;
    match config.basis {
        RadialBasis::Gaussian => {
            distances.f_sub(&places)?.f_square()?.f_mul_scalar(-0.5 / width(config).powi(2))?.f_exp()
        }
        RadialBasis::Bessel => distances.f_mul(&places)?.f_sin()?.f_div(distances),
    }
}

/// φ'_k(d), from φ_k(d): −(d − μ_k)/w²·φ_k or (ω_k cos(ω_k d) − φ_k) / d with ω_k = k π / cutoff.
fn basis_slopes(config: &SpaceConfig, distances: &Tensor, functions: &Tensor) -> Result<Tensor, TchError> {
    let places = places(config, distances.device())?;
    match config.basis {
        RadialBasis::Gaussian => distances.f_sub(&places)?.f_mul_scalar(-1.0 / width(config).powi(2))?.f_mul(functions),
        RadialBasis::Bessel => distances.f_mul(&places)?.f_cos()?.f_mul(&places)?.f_sub(functions)?.f_div(distances),
    }
}

/// μ_k of Gaussians, or ω_k.
fn places(config: &SpaceConfig, device: Device) -> Result<Tensor, TchError> {
    let (count, options) = (config.radial_functions, (Kind::Float, device));
    match config.basis {
        RadialBasis::Gaussian => Tensor::f_linspace(0.0, config.cutoff, count, options),
        RadialBasis::Bessel => {
            Tensor::f_linspace(PI / config.cutoff, count as f64 * PI / config.cutoff, count, options)
        }
    }
}

/// w of Gaussians.
fn width(config: &SpaceConfig) -> f64 {
    config.cutoff / (config.radial_functions - 1).max(1) as f64
}

/// ½(cos(π d / cutoff) + 1), and 0 from the cutoff on (Behler 2011): distances `[lines, 1]` → the same shape.
pub fn cosine_cutoff(config: &SpaceConfig, distances: &Tensor) -> Result<Tensor, TchError> {
    let fading = distances.f_mul_scalar(PI / config.cutoff)?.f_cos()?.f_add_scalar(1.0)?.f_mul_scalar(0.5)?;
    fading.f_mul(&is_near(config, distances)?)
}

/// −π / (2 cutoff)·sin(π d / cutoff), and 0 from the cutoff on.
fn cutoff_slopes(config: &SpaceConfig, distances: &Tensor) -> Result<Tensor, TchError> {
    let frequency = PI / config.cutoff;
    let slopes = distances.f_mul_scalar(frequency)?.f_sin()?.f_mul_scalar(-0.5 * frequency)?;
    slopes.f_mul(&is_near(config, distances)?)
}

fn is_near(config: &SpaceConfig, distances: &Tensor) -> Result<Tensor, TchError> {
    distances.f_lt(config.cutoff)?.f_to_kind(Kind::Float)
}
