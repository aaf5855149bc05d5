//! A network in space as teacher: its outputs for each graph or node, its forces and, if hints are used, the rows and vectors of its nodes.

use kdgat_graph::{Batch, Level, Space};
use kdgat_nn::attention::Backend;
use kdgat_nn::layers::Mode;
use kdgat_nn::space::{SpaceAnswer, SpaceNetwork};
use kdgat_nn::{GnnConfig, GnnKind, Scope};
use tch::{Kind, TchError, Tensor};

use super::{Asked, Views};
use crate::model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
use crate::targets::{TargetLayout, TargetName};

/// A SchNet or PaiNN whose weights never change.
///
/// It is one layer: its forces are gradients of its outputs by the positions, through all of its weights, which stay on the device until the
/// gradients are computed. Weights have no gradients.
#[derive(Debug)]
pub struct FrozenSpace {
    config: GnnConfig,
    kernel: Backend,
    asked: Asked,
}

impl FrozenSpace {
    /// Creates a teacher of this architecture.
    pub fn new(config: GnnConfig, kernel: Backend, asked: Asked) -> Self {
        Self { config, kernel, asked }
    }

    fn targets(&self, weights: &WeightViews, batch: &Batch) -> Result<Vec<Tensor>, kdgat_nn::ModelError> {
        let mut views = Views(weights);
        let network = SpaceNetwork::new(&mut Scope::root(&mut views), &self.config, self.kernel)?;
        let SpaceAnswer { outputs, nodes, vectors, forces } = network.forward(batch, Mode::Evaluation)?;
        let mut targets = vec![outputs];
        targets.extend(forces);
        if self.asked.hidden {
            targets.push(nodes);
            let columns = 3 * self.config.hidden;
            targets.extend(vectors.map(|vectors| vectors.f_reshape([-1, columns])).transpose()?);
        }
        Ok(targets)
    }
}

impl FrozenModel for FrozenSpace {
    fn target_layout(&self) -> TargetLayout {
        let (outputs, hidden) = (self.config.outputs as usize, self.config.hidden as usize);
        let mut layout = match self.config.level {
            Level::Graph => TargetLayout::classifier(outputs),
            Level::Node => TargetLayout::of_nodes(outputs),
        };
        if self.config.gives_forces() {
            layout = layout.with_hidden(TargetName::Forces, 3);
        }
        match (self.asked.hidden, self.config.kind) {
            (false, _) => layout,
            (true, GnnKind::PaiNN) => {
                layout.with_hidden(TargetName::HiddenNodes, hidden).with_hidden(TargetName::Vectors, 3 * hidden)
            }
            (true, _) => layout.with_hidden(TargetName::HiddenNodes, hidden),
        }
    }

    fn layers(&self) -> Vec<LayerSpec> {
        vec![LayerSpec { name: "network".to_owned(), tensors: SpaceNetwork::tensor_names(&self.config) }]
    }

    fn forward_layer(
        &self,
        _: usize,
        weights: &WeightViews,
        batch: &Batch,
        _: LayerState,
    ) -> Result<LayerState, ModelError> {
        self.targets(weights, batch).map_err(ModelError::from)
    }
}

/// Positions of the three nodes of a batch, half a cutoff apart along the axes, and all their pairs.
pub(super) fn probe_space(cutoff: f64) -> Result<Space, TchError> {
    let edge = (cutoff / 2.0) as f32;
    Ok(Space {
        positions: Tensor::f_from_slice(&[0.0, 0.0, 0.0, edge, 0.0, 0.0, 0.0, edge, 0.0])?.f_view([3, 3])?,
        kinds: Tensor::f_zeros([3], (Kind::Int64, tch::Device::Cpu))?,
        targets: Tensor::f_from_slice(&[0_i64, 0, 1, 1, 2, 2])?,
        sources: Tensor::f_from_slice(&[1_i64, 2, 0, 2, 0, 1])?,
        row_pointers: Tensor::f_from_slice(&[0, 2, 4, 6])?,
        shifts: None,
        forces: None,
    })
}

#[cfg(test)]
mod tests {
    use kdgat_graph::FeatureSet;
    use kdgat_nn::{FreshParameters, Gnn, InputConfig, Pooling, RadialBasis, SpaceConfig};
    use tch::Device;

    use super::super::probe_batch;
    use super::*;

    /// On a thread without gradients, a teacher computes the outputs, forces and rows of the model.
    #[test]
    fn a_teacher_gives_the_forces_of_its_model() {
        let mut batch = probe_batch(1, FeatureSet::Window).unwrap();
        batch.space = Some(Box::new(probe_space(4.0).unwrap()));
        for (kind, forces) in [(GnnKind::PaiNN, true), (GnnKind::SchNet, true), (GnnKind::PaiNN, false)] {
            let basis = RadialBasis::Gaussian;
            let config = GnnConfig {
                kind,
                node_features: 1,
                edge_features: 0,
                hidden: 4,
                layers: 2,
                heads: 1,
                outputs: 1,
                embedding_columns: 0,
                level: Level::Graph,
                pooling: Pooling::Sum,
                virtual_node: false,
                dropout: 0.0,
                target_scales: Vec::new(),
                space: Some(SpaceConfig { cutoff: 4.0, kinds: 3, features: false, basis, radial_functions: 5, forces }),
                paths: None,
                input: InputConfig::default(),
            };
            let mut parameters = FreshParameters::new(3, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            let expected = model.in_space(&batch, Mode::Evaluation).unwrap().unwrap();
            let mut views = WeightViews::default();
            for named in parameters.into_tensors() {
                views.insert(named.name, named.tensor.detach());
            }
            let teacher = FrozenSpace::new(config, Backend::Auto, Asked::OUTPUTS_AND_HINTS);
            let targets = tch::no_grad(|| teacher.forward(&views, &batch).unwrap());
            assert!(targets.get(TargetName::Logits).unwrap().equal(&expected.outputs.detach()));
            assert!(targets.get(TargetName::HiddenNodes).unwrap().equal(&expected.nodes.detach()));
            assert_eq!(targets.get(TargetName::Vectors).is_some(), kind == GnnKind::PaiNN);
            let found = targets.get(TargetName::Forces);
            assert_eq!(found.is_some(), forces);
            if let (Some(found), Some(expected)) = (found, expected.forces) {
                assert!(found.equal(&expected) && found.abs().max().double_value(&[]) > 0.0);
            }
        }
    }
}
