//! Several classifiers as one teacher: the mean of their class probabilities (Hinton et al. 2015).
//!
//! The tensors of all of them are the teacher's weights, each network's under a prefix of its own. The teacher's thread brings them to the
//! device like those of one deep network, with layer residency one network's layers after the other's.

use kdgat_graph::Batch;
use kdgat_nn::gat::CLASSES;
use tch::{Kind, Tensor};

use super::{state_at, tensor_prefix};
use crate::model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
use crate::targets::TargetLayout;

/// Classifiers whose weights never change, as one teacher.
///
/// State: the logarithms of the class probabilities of each network that is done, `[num_graphs, CLASSES]` in double precision, then the state
/// of the current one.
pub struct FrozenEnsemble {
    members: Vec<Box<dyn FrozenModel>>,
}

impl FrozenEnsemble {
    /// The teacher of these classifiers, each of which returns its logits alone.
    ///
    /// # Errors
    /// No network, or one that returns something else.
    pub fn new(members: Vec<Box<dyn FrozenModel>>) -> Result<Self, ModelError> {
        let logits = TargetLayout::classifier(CLASSES as usize);
        match members.iter().find(|member| member.target_layout() != logits) {
            _ if members.is_empty() => Err(ModelError::Other("the teacher has no network".to_owned())),
            Some(other) => {
                let (found, expected) = (other.target_layout().describe(), logits.describe());
                Err(ModelError::Other(format!("one of several teachers returns {found}, expected {expected}")))
            }
            None => Ok(Self { members }),
        }
    }

    /// The network that has layer `layer` of all of them, and the layer's place in it.
    fn member_of(&self, mut layer: usize) -> Option<(usize, usize)> {
        for (index, member) in self.members.iter().enumerate() {
            let count = member.layers().len();
            if layer < count {
                return Some((index, layer));
            }
            layer -= count;
        }
        None
    }
}

impl FrozenModel for FrozenEnsemble {
    fn target_layout(&self) -> TargetLayout {
        TargetLayout::classifier(CLASSES as usize)
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let mut layers = Vec::new();
        for (index, member) in self.members.iter().enumerate() {
            let prefix = tensor_prefix(index, self.members.len());
            layers.extend(member.layers().into_iter().map(|layer| LayerSpec {
                name: format!("{prefix}{}", layer.name),
                tensors: layer.tensors.iter().map(|name| format!("{prefix}{name}")).collect(),
            }));
        }
        layers
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        mut state: LayerState,
    ) -> Result<LayerState, ModelError> {
        let Some((index, layer)) = self.member_of(layer) else {
            return Err(ModelError::Other(format!("the teacher has no layer {layer}")));
        };
        let member = &self.members[index];
        let weights = weights.below(&tensor_prefix(index, self.members.len()));
        let own = state.split_off(index.min(state.len()));
        let own = member.forward_layer(layer, &weights, batch, own)?;
        if layer + 1 < member.layers().len() {
            state.extend(own);
            return Ok(state);
        }
        state.push(log_probabilities(&state_at(&own, 0)?)?);
        if index + 1 < self.members.len() {
            return Ok(state);
        }
        Ok(vec![log_mean_probabilities(&state)?])
    }
}

/// Decimal places of the targets. A logarithm's last digits depend on the graph's place in the batch, because vector instructions compute
/// most of them and other code the rest: without rounding, cached targets would not be those of the training's own batches. Double
/// precision has nine more digits to round away; a loss in single precision sees none of them.
const DECIMALS: i64 = 7;

/// Logarithms of a network's class probabilities, `[num_graphs, CLASSES]`, in double precision.
fn log_probabilities(logits: &Tensor) -> Result<Tensor, ModelError> {
    Ok(logits.f_log_softmax(-1, Kind::Double)?)
}

/// Logarithms of the mean of class probabilities, from the logarithms of each network's: `[num_graphs, CLASSES]`.
fn log_mean_probabilities(networks: &[Tensor]) -> Result<Tensor, ModelError> {
    let sum = Tensor::f_stack(networks, 0)?.f_logsumexp([0_i64].as_slice(), false)?;
    let mean = sum.f_sub_scalar((networks.len() as f64).ln())?;
    Ok(mean.f_round_decimals(DECIMALS)?.f_to_kind(Kind::Float)?)
}

#[cfg(test)]
mod tests {
    use kdgat_graph::FeatureSet;
    use kdgat_nn::attention::Backend;
    use kdgat_nn::layers::Mode;
    use kdgat_nn::parameters::FreshParameters;
    use kdgat_nn::{Architecture, Gat, GatConfig, Scope};
    use tch::Device;

    use super::super::{Asked, TeacherVocabulary, model, probe_batch};
    use super::*;

    fn config(hidden: i64, layers: i64) -> GatConfig {
        let (heads, embedding, fc_layers, vocabulary_size, dropout) = (2, 4, 2, 4, 0.1);
        let (edge_scaling, input) = (None, Default::default());
        GatConfig { hidden, layers, heads, embedding, fc_layers, vocabulary_size, dropout, edge_scaling, input }
    }

    fn member(config: GatConfig, asked: Asked) -> Box<dyn FrozenModel> {
        model(Architecture::Gat(config), TeacherVocabulary::Shared, Backend::Auto, asked).unwrap()
    }

    /// The targets of a graph have the same bits wherever it is in a batch.
    #[test]
    fn targets_do_not_depend_on_the_other_graphs() {
        tch::manual_seed(7);
        let graphs = 1_003;
        let logits: Vec<Tensor> =
            (0..5).map(|_| Tensor::randn([graphs, CLASSES], (Kind::Float, Device::Cpu)) * 15.0).collect();
        let targets = |first: i64, count: i64| -> Tensor {
            let of_network = |logits: &Tensor| log_probabilities(&logits.narrow(0, first, count).copy()).unwrap();
            log_mean_probabilities(&logits.iter().map(of_network).collect::<Vec<_>>()).unwrap()
        };
        let whole = targets(0, graphs);
        for count in [1, 2, 3, 5, 7, 16, 31, 250] {
            for first in (0..graphs - count).step_by(count as usize) {
                assert_eq!(targets(first, count), whole.narrow(0, first, count), "{count} graphs from {first}");
            }
        }
    }

    /// The targets are ln((p₁ + … + pₙ) / n), with pᵢ from each network's own forward.
    #[test]
    fn the_targets_are_the_mean_of_the_probabilities() {
        let batch = probe_batch(4, FeatureSet::default()).unwrap();
        let (mut views, mut members, mut probabilities) = (WeightViews::default(), Vec::new(), Vec::new());
        for (index, config) in [config(3, 2), config(5, 1), config(4, 3)].into_iter().enumerate() {
            let mut parameters = FreshParameters::new(index as u64, Device::Cpu);
            let gat = Gat::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            let logits = gat.forward(&batch, Mode::Evaluation).unwrap();
            probabilities.push(logits.softmax(-1, Kind::Float));
            for named in parameters.into_tensors() {
                views.insert(format!("{index}.{}", named.name), named.tensor);
            }
            members.push(member(config, Asked::OUTPUTS));
        }
        let model = FrozenEnsemble::new(members).unwrap();
        assert_eq!(model.layers().len(), 4 + 3 + 5, "input, attention layers and head of each");
        let targets = model.forward(&views, &batch).unwrap();
        let expected = (&probabilities[0] + &probabilities[1] + &probabilities[2]) / 3.0;
        let (_, found) = &targets.tensors[0];
        let difference = (found.exp() - expected).abs().max().double_value(&[]);
        assert!(difference < 1e-6, "{difference:e}");
    }

    #[test]
    fn what_has_no_mean_is_refused() {
        let error = |members| FrozenEnsemble::new(members).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error(Vec::new()), "the teacher has no network");
        let said = error(vec![member(config(3, 2), Asked::OUTPUTS_AND_HINTS)]);
        assert!(said.contains("hidden layer of graphs") && said.contains("expected logits"), "{said}");
    }
}
