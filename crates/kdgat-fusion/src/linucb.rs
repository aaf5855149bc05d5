//! LinUCB (Li et al. 2010) on network features: the shallow exploration of Neural-LinUCB (Xu et al. 2022).
//!
//! Each action k has a ridge regression of its rewards on the features x of the states it was tried on:
//! A_k = λI + Σ x xᵀ, b_k = Σ r x, θ_k = A_k⁻¹ b_k. LinUCB chooses the action with the largest θ_kᵀx + α·√(xᵀ A_k⁻¹ x). It stores
//! the inverses and updates them per observation (Sherman & Morrison 1950) in O(d²):
//!
//! ```text
//! u = A⁻¹x,  A⁻¹ ← A⁻¹ − u uᵀ / (1 + xᵀu),  θ ← θ + u·(r − θᵀx) / (1 + xᵀu).
//! ```
//!
//! All in double precision, on the CPU.

use tch::{Device, Kind, Tensor};

use kdgat_nn::ModelError;

/// One ridge regression per action.
#[derive(Debug)]
pub struct LinUcb {
    /// A⁻¹, `[actions, d, d]`.
    inverse: Tensor,
    /// θ, `[actions, d]`.
    theta: Tensor,
    actions: i64,
    columns: i64,
    /// Ridge penalty λ.
    ridge: f64,
    /// Exploration factor α.
    exploration: f64,
}

impl LinUcb {
    /// Creates regressions on `columns` features without observations.
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

    /// Upper confidence bound of each action, `[n, actions]`, for features `[n, d]`.
    pub fn bounds(&self, features: &Tensor) -> Result<Tensor, ModelError> {
        let means = features.f_matmul(&self.theta.f_transpose(0, 1)?)?;
        // One action at a time: [n, d] of memory instead of [actions, n, d].
        let mut widths = Vec::with_capacity(self.actions as usize);
        for action in 0..self.actions {
            let spread = features.f_matmul(&self.inverse.f_select(0, action)?)?.f_mul(features)?;
            // Rounding may make a width near 0 negative.
            widths.push(spread.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double)?.f_clamp_min(0.0)?.f_sqrt()?);
        }
        Ok(means.f_add(&Tensor::f_stack(&widths, 1)?.f_mul_scalar(self.exploration)?)?)
    }

    /// Adds an observation: the reward of an action on a state with these features, `[d]`.
    pub fn observe(&mut self, action: usize, features: &Tensor, reward: f64) -> Result<(), ModelError> {
        let mut inverse = self.inverse.f_select(0, action as i64)?;
        let mut theta = self.theta.f_select(0, action as i64)?;
        let u = inverse.f_mv(features)?;
        let scale = 1.0 + f64::try_from(u.f_dot(features)?)?;
        let surprise = reward - f64::try_from(theta.f_dot(features)?)?;
        // The slices are views, so in-place operations change the full tensors.
        let _ = theta.f_add_(&u.f_mul_scalar(surprise / scale)?)?;
        let _ = inverse.f_addr_(&u, &u.f_div_scalar(-scale)?)?;
        Ok(())
    }

    /// Recomputes all regressions from sums over observations.
    pub fn rebuild(&mut self, sums: &Sums) -> Result<(), ModelError> {
        let one = Tensor::f_eye(self.columns, (Kind::Double, Device::Cpu))?.f_mul_scalar(self.ridge)?;
        for action in 0..self.actions {
            let gram = sums.gram.f_select(0, action)?.f_add(&one)?;
            // Symmetric and positive definite, because λ > 0.
            let inverse = gram.f_linalg_cholesky(false)?.f_cholesky_inverse(false)?;
            self.theta.f_select(0, action)?.f_copy_(&inverse.f_mv(&sums.moment.f_select(0, action)?)?)?;
            self.inverse.f_select(0, action)?.f_copy_(&inverse)?;
        }
        Ok(())
    }

    /// Empty sums.
    pub fn sums(&self) -> Result<Sums, ModelError> {
        let zeros = |shape: &[i64]| Tensor::f_zeros(shape, (Kind::Double, Device::Cpu));
        let gram = zeros(&[self.actions, self.columns, self.columns])?;
        Ok(Sums { gram, moment: zeros(&[self.actions, self.columns])? })
    }
}

/// Sufficient statistics of the regressions: Σ x xᵀ, `[actions, d, d]` (`gram`), and Σ r x, `[actions, d]` (`moment`).
#[derive(Debug)]
pub struct Sums {
    gram: Tensor,
    moment: Tensor,
}

impl Sums {
    /// Adds observations: features `[n, d]` with their actions and rewards.
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
