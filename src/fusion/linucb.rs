//! LinUCB (Li et al. 2010) on features of a network: the shallow exploration of Neural-LinUCB (Xu et al. 2022).
//!
//! Each action k has a ridge regression of its rewards on the features x of the states it was tried on,
//! A_k = λI + Σ x xᵀ, b_k = Σ r x, θ_k = A_k⁻¹ b_k, and is chosen where θ_kᵀx + α·√(xᵀ A_k⁻¹ x) is largest. The inverses are
//! kept, and changed by one observation as Sherman & Morrison (1950) say, in O(d²):
//!
//! ```text
//! u = A⁻¹x,  A⁻¹ ← A⁻¹ − u uᵀ / (1 + xᵀu),  θ ← θ + u·(r − θᵀx) / (1 + xᵀu).
//! ```
//!
//! In double precision, on the CPU.

use tch::{Device, Kind, Tensor};

use crate::nn::ModelError;

/// One regression for each action.
#[derive(Debug)]
pub struct LinUcb {
    /// `[actions, d, d]`: A⁻¹.
    inverse: Tensor,
    /// `[actions, d]`: θ.
    theta: Tensor,
    actions: i64,
    columns: i64,
    /// λ
    ridge: f64,
    /// α
    exploration: f64,
}

impl LinUcb {
    /// Regressions that have seen nothing, of `columns` features.
    pub fn new(actions: i64, columns: i64, ridge: f64, exploration: f64) -> Result<Self, ModelError> {
        let one = Tensor::f_eye(columns, (Kind::Double, Device::Cpu))?.f_div_scalar(ridge)?;
        let inverse = one.f_unsqueeze(0)?.f_repeat([actions, 1, 1])?;
        let theta = Tensor::f_zeros([actions, columns], (Kind::Double, Device::Cpu))?;
        Ok(Self { inverse, theta, actions, columns, ridge, exploration })
    }

    /// θ, `[actions, d]`.
    pub fn theta(&self) -> &Tensor {
        &self.theta
    }

    /// A⁻¹, `[actions, d, d]`.
    pub fn inverse(&self) -> &Tensor {
        &self.inverse
    }

    /// The upper confidence bound of each action: `[n, d]` → `[n, actions]`.
    pub fn bounds(&self, features: &Tensor) -> Result<Tensor, ModelError> {
        let means = features.f_matmul(&self.theta.f_transpose(0, 1)?)?;
        // Action by action: [n, d] instead of [actions, n, d] at a time.
        let mut widths = Vec::with_capacity(self.actions as usize);
        for action in 0..self.actions {
            let spread = features.f_matmul(&self.inverse.f_select(0, action)?)?.f_mul(features)?;
            // Rounding may take a width that is nearly 0 below it.
            widths.push(spread.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double)?.f_clamp_min(0.0)?.f_sqrt()?);
        }
        Ok(means.f_add(&Tensor::f_stack(&widths, 1)?.f_mul_scalar(self.exploration)?)?)
    }

    /// Takes in the reward of an action on a state of these features, `[d]`.
    pub fn observe(&mut self, action: usize, features: &Tensor, reward: f64) -> Result<(), ModelError> {
        let mut inverse = self.inverse.f_select(0, action as i64)?;
        let mut theta = self.theta.f_select(0, action as i64)?;
        let u = inverse.f_mv(features)?;
        let scale = 1.0 + f64::try_from(u.f_dot(features)?)?;
        let surprise = reward - f64::try_from(theta.f_dot(features)?)?;
        // The slices are views: what is added to them is added to the whole.
        let _ = theta.f_add_(&u.f_mul_scalar(surprise / scale)?)?;
        let _ = inverse.f_addr_(&u, &u.f_div_scalar(-scale)?)?;
        Ok(())
    }

    /// Starts anew from sums over observations: `gram` is Σ x xᵀ, `[actions, d, d]`, `moment` Σ r x, `[actions, d]`.
    pub fn rebuild(&mut self, sums: &Sums) -> Result<(), ModelError> {
        let one = Tensor::f_eye(self.columns, (Kind::Double, Device::Cpu))?.f_mul_scalar(self.ridge)?;
        for action in 0..self.actions {
            let gram = sums.gram.f_select(0, action)?.f_add(&one)?;
            // Symmetric and positive definite, λ being above 0.
            let inverse = gram.f_linalg_cholesky(false)?.f_cholesky_inverse(false)?;
            self.theta.f_select(0, action)?.f_copy_(&inverse.f_mv(&sums.moment.f_select(0, action)?)?)?;
            self.inverse.f_select(0, action)?.f_copy_(&inverse)?;
        }
        Ok(())
    }

    /// Sums of no observation.
    pub fn sums(&self) -> Result<Sums, ModelError> {
        let zeros = |shape: &[i64]| Tensor::f_zeros(shape, (Kind::Double, Device::Cpu));
        let gram = zeros(&[self.actions, self.columns, self.columns])?;
        Ok(Sums { gram, moment: zeros(&[self.actions, self.columns])? })
    }
}

/// What regressions follow from.
#[derive(Debug)]
pub struct Sums {
    gram: Tensor,
    moment: Tensor,
}

impl Sums {
    /// Adds observations: features `[n, d]`, actions and rewards of each.
    pub fn add(&mut self, features: &Tensor, actions: &[usize], rewards: &[f64]) -> Result<(), ModelError> {
        for action in 0..self.gram.size()[0] {
            let own: Vec<i64> =
                (0..actions.len()).filter(|&row| actions[row] as i64 == action).map(|row| row as i64).collect();
            if own.is_empty() {
                continue;
            }
            let own_rewards: Vec<f64> = own.iter().map(|&row| rewards[row as usize]).collect();
            let rows = features.f_index_select(0, &Tensor::f_from_slice(&own)?)?;
            let transposed = rows.f_transpose(0, 1)?;
            let _ = self.gram.f_select(0, action)?.f_add_(&transposed.f_matmul(&rows)?)?;
            let _ = self.moment.f_select(0, action)?.f_add_(&transposed.f_mv(&Tensor::f_from_slice(&own_rewards)?)?)?;
        }
        Ok(())
    }
}
