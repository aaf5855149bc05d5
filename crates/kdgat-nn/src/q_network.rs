//! Q-network: the value of each action in a state (Mnih et al. 2015). Here the actions are fusion weights.
//!
//! A hidden layer is linear, layer norm (Ba et al. 2016), ReLU; the head is linear.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::ModelError;
use super::attention::Backend;
use super::layers::Linear;
use super::parameters::{Init, Scope};

/// Added to the variance; the default of PyTorch's `LayerNorm`.
const EPSILON: f64 = 1e-5;

/// Architecture of a Q-network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QNetworkConfig {
    /// Number of values in a state.
    pub inputs: i64,
    /// Widths of the hidden layers.
    pub hidden: Vec<i64>,
    /// Number of actions.
    pub actions: i64,
}

/// A Q-network.
#[derive(Debug)]
pub struct QNetwork {
    config: QNetworkConfig,
    hidden: Vec<(Linear, LayerNorm)>,
    head: Linear,
}

#[derive(Debug)]
struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl QNetwork {
    /// Builds the network from the tensors of `scope`.
    pub fn new(mut scope: Scope, config: &QNetworkConfig) -> Result<Self, ModelError> {
        let widths: Vec<i64> = std::iter::once(config.inputs).chain(config.hidden.iter().copied()).collect();
        if config.hidden.is_empty() || widths.iter().chain([&config.actions]).any(|width| *width < 1) {
            return Err(ModelError::Architecture {
                field: "hidden",
                found: format!("{config:?}"),
                expected: "needs inputs, actions and at least one hidden width, each at least 1",
            });
        }
        let mut hidden = Vec::new();
        for (index, pair) in widths.windows(2).enumerate() {
            let linear = Linear::new(scope.sub("layers").sub(index), pair[0], pair[1])?;
            hidden.push((linear, LayerNorm::new(scope.sub("norms").sub(index), pair[1])?));
        }
        let last = widths[widths.len() - 1];
        Ok(Self { config: config.clone(), hidden, head: Linear::new(scope.sub("head"), last, config.actions)? })
    }

    /// The network's architecture.
    pub fn config(&self) -> &QNetworkConfig {
        &self.config
    }

    /// Number of columns of [`QNetwork::features`].
    pub fn feature_columns(&self) -> i64 {
        self.config.hidden.last().copied().unwrap_or(self.config.inputs)
    }

    /// Output of the last hidden layer: `[states, inputs]` → `[states, feature_columns]`.
    pub fn features(&self, states: &Tensor) -> Result<Tensor, ModelError> {
        let mut x = states.shallow_clone();
        for (linear, norm) in &self.hidden {
            x = norm.forward(&linear.forward(&x, Backend::Auto)?)?.f_relu()?;
        }
        Ok(x)
    }

    /// Value of each action: `[states, inputs]` → `[states, actions]`.
    pub fn forward(&self, states: &Tensor) -> Result<Tensor, ModelError> {
        self.head.forward(&self.features(states)?, Backend::Auto)
    }

    /// The linear layer from features to values.
    pub fn head(&self) -> &Linear {
        &self.head
    }
}

impl LayerNorm {
    fn new(mut scope: Scope, columns: i64) -> Result<Self, ModelError> {
        Ok(Self {
            weight: scope.parameter("weight", &[columns], Init::Constant(1.0))?,
            bias: scope.parameter("bias", &[columns], Init::Constant(0.0))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let columns = self.weight.size();
        Ok(x.f_layer_norm(&columns[..], Some(&self.weight), Some(&self.bias), EPSILON, false)?)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::FreshParameters;

    #[test]
    fn hidden_layers_are_normalised_and_the_head_is_linear() {
        let config = QNetworkConfig { inputs: 3, hidden: vec![8, 4], actions: 5 };
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        let network = QNetwork::new(Scope::root(&mut parameters), &config).unwrap();
        let states = Tensor::randn([7, 3], (Kind::Float, Device::Cpu));
        let features = network.features(&states).unwrap();
        let [weight, bias] = network.head().parameters();
        let expected = features.matmul(&weight.transpose(0, 1)) + bias;
        let found = network.forward(&states).unwrap();
        assert_eq!((found.size(), features.size()), (vec![7, 5], vec![7, 4]));
        assert!(f64::try_from((found - expected).abs().max()).unwrap() < 1e-6);
        // The first layer's norm, computed by hand.
        let tensors = parameters.into_tensors();
        let of = |name: &str| tensors.iter().find(|named| named.name == name).unwrap().tensor.shallow_clone();
        let x = states.matmul(&of("layers.0.weight").transpose(0, 1)) + of("layers.0.bias");
        let mean = x.mean_dim([1i64].as_slice(), true, Kind::Float);
        let variance = (&x - &mean).square().mean_dim([1i64].as_slice(), true, Kind::Float);
        let by_hand = ((&x - mean) / (variance + EPSILON).sqrt()).relu();
        let first =
            network.hidden[0].1.forward(&network.hidden[0].0.forward(&states, Backend::Auto).unwrap()).unwrap().relu();
        assert!(f64::try_from((first - by_hand).abs().max()).unwrap() < 1e-5);
    }

    #[test]
    fn a_network_without_layers_is_refused() {
        let config = QNetworkConfig { inputs: 3, hidden: vec![], actions: 5 };
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        assert!(QNetwork::new(Scope::root(&mut parameters), &config).is_err());
    }
}
