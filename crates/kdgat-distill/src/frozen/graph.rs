//! A graph network as teacher: its outputs for each graph or node, and the rows that its head reads if hints are used.

use kdgat_graph::{Batch, Level};
use kdgat_nn::attention::Backend;
use kdgat_nn::gnn::{GnnHead, GnnLayer, LayerRows, node_input};
use kdgat_nn::layers::Mode;
use kdgat_nn::sgmp::Sgmp;
use kdgat_nn::{GnnConfig, GnnKind, Scope};
use tch::Tensor;

use super::{Asked, Views};
use crate::model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
use crate::targets::{TargetLayout, TargetName};

/// A graph network whose weights never change.
///
/// Layers: each layer [pooled…, v, x] → [pooled…, pooled, v, x], the first from the batch's features; v are the rows of virtual nodes, if the
/// model has them, and not after the last layer; head → [outputs], followed by the pooled outputs if hints are used. For targets of nodes,
/// the rows of the nodes take the place of pooled ones.
#[derive(Debug)]
pub struct FrozenGraph {
    config: GnnConfig,
    kernel: Backend,
    asked: Asked,
}

impl FrozenGraph {
    /// Creates a teacher of this architecture.
    pub fn new(config: GnnConfig, kernel: Backend, asked: Asked) -> Self {
        Self { config, kernel, asked }
    }

    /// Number of layers before the head. An SGMP is one: all of its interactions are summed into the same rows.
    fn bodies(&self) -> usize {
        match self.config.kind {
            GnnKind::Sgmp => 1,
            _ => self.config.layers as usize,
        }
    }

    fn run(
        &self,
        layer: usize,
        views: &WeightViews,
        batch: &Batch,
        mut state: LayerState,
    ) -> Result<LayerState, kdgat_nn::ModelError> {
        let mut source = Views(views);
        let mut scope = Scope::root(&mut source);
        let (config, kernel) = (&self.config, self.kernel);
        if config.kind == GnnKind::Sgmp && layer == 0 {
            let rows = Sgmp::new(&mut scope, config, kernel)?.embed(&node_input(config, batch)?, batch)?;
            return Ok(vec![rows.shallow_clone(), rows]);
        }
        if layer < self.bodies() {
            let rows = match state.pop() {
                None => LayerRows { nodes: node_input(config, batch)?, virtual_nodes: None },
                Some(nodes) => LayerRows { nodes, virtual_nodes: if config.virtual_node { state.pop() } else { None } },
            };
            let layer = GnnLayer::new(&mut scope, config, layer as i64)?;
            let LayerRows { nodes, virtual_nodes } = layer.forward(rows, batch, config, kernel, Mode::Evaluation)?;
            state.push(layer.readout(&nodes, batch, config, kernel)?);
            state.extend(virtual_nodes);
            state.push(nodes);
            return Ok(state);
        }
        state.pop();
        let pooled = Tensor::f_cat(&state, 1)?;
        let head = GnnHead::new(&mut scope, config)?;
        let outputs = head.forward(&pooled, 0.0, kernel, Mode::Evaluation)?;
        Ok(if self.asked.hidden { vec![outputs, pooled] } else { vec![outputs] })
    }
}

impl FrozenModel for FrozenGraph {
    fn target_layout(&self) -> TargetLayout {
        let outputs = self.config.outputs as usize;
        let (layout, hidden) = match self.config.level {
            Level::Graph => (TargetLayout::classifier(outputs), TargetName::HiddenGraphs),
            Level::Node => (TargetLayout::of_nodes(outputs), TargetName::HiddenNodes),
        };
        if !self.asked.hidden {
            return layout;
        }
        layout.with_hidden(hidden, self.config.pooled_columns() as usize)
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let tensors = |index| match self.config.kind {
            GnnKind::Sgmp => Sgmp::tensor_names(&self.config),
            _ => GnnLayer::tensor_names(&self.config, index as i64),
        };
        let layer = |index| LayerSpec { name: format!("layer {index}"), tensors: tensors(index) };
        let mut layers: Vec<LayerSpec> = (0..self.bodies()).map(layer).collect();
        layers.push(LayerSpec { name: "head".to_owned(), tensors: GnnHead::tensor_names(&self.config) });
        layers
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError> {
        self.run(layer, weights, batch, state).map_err(ModelError::from)
    }
}

#[cfg(test)]
mod tests {
    use kdgat_graph::Space;
    use kdgat_graph::edge_list::{EdgeList, from_edge_list};
    use kdgat_nn::sgmp::PathConfig;
    use kdgat_nn::{FreshParameters, Gnn, InputConfig, Pooling};
    use tch::{Device, Kind};

    use super::*;

    /// Layer by layer, a teacher computes the outputs and pooled rows of the model.
    #[test]
    fn a_teacher_gives_the_outputs_of_its_model() {
        let list = EdgeList {
            id_index: &[0; 5],
            continuous: &(0..50).map(|value| (value as f32).sin()).collect::<Vec<_>>(),
            sources: &[0, 1, 1, 2, 2, 3],
            targets: &[1, 0, 2, 1, 3, 2],
            edge_attributes: None,
            node_pointers: &[0, 4, 5],
            labels: &[0, 1],
            vocabulary_size: 1,
        };
        let mut batch = from_edge_list(&list).unwrap();
        let options = (Kind::Float, Device::Cpu);
        let none = |length: i64, kind| Tensor::zeros([length], (kind, Device::Cpu));
        batch.space = Some(Box::new(Space {
            positions: Tensor::arange(15, options).sin().view([5, 3]),
            kinds: none(5, Kind::Int64),
            targets: none(0, Kind::Int64),
            sources: none(0, Kind::Int64),
            row_pointers: none(6, Kind::Int),
            shifts: None,
            forces: None,
        }));
        for (kind, virtual_node, level) in [
            (GnnKind::Gin, false, Level::Graph),
            (GnnKind::Gin, true, Level::Graph),
            (GnnKind::Gin, false, Level::Node),
            (GnnKind::Gin, true, Level::Node),
            (GnnKind::Sgmp, false, Level::Graph),
            (GnnKind::Sgmp, false, Level::Node),
        ] {
            let config = GnnConfig {
                kind,
                node_features: 10,
                edge_features: 0,
                hidden: 6,
                layers: 3,
                heads: 1,
                outputs: 2,
                embedding_columns: 0,
                level,
                pooling: Pooling::Sum,
                virtual_node,
                dropout: 0.0,
                target_scales: Vec::new(),
                space: None,
                paths: (kind == GnnKind::Sgmp).then_some(PathConfig { cutoff: 2.0, gaussians: [4, 3, 5] }),
                input: InputConfig::default(),
            };
            let mut parameters = FreshParameters::new(3, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            let [outputs, pooled] = tch::no_grad(|| {
                let pooled = model.embed(&batch, Mode::Evaluation).unwrap();
                [model.classify(&pooled, Mode::Evaluation).unwrap(), pooled]
            });
            let mut views = WeightViews::default();
            for named in parameters.into_tensors() {
                views.insert(named.name, named.tensor.detach());
            }
            let teacher = FrozenGraph::new(config, Backend::Auto, Asked::OUTPUTS_AND_HINTS);
            let targets = teacher.forward(&views, &batch).unwrap();
            let [logits, hidden] = match level {
                Level::Graph => [TargetName::Logits, TargetName::HiddenGraphs],
                Level::Node => [TargetName::NodeLogits, TargetName::HiddenNodes],
            };
            assert!(targets.get(logits).unwrap().equal(&outputs));
            assert!(targets.get(hidden).unwrap().equal(&pooled));
        }
    }
}
