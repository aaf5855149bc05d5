//! Networks for graphs as teachers: the blocks of [`kdgat_nn`]'s networks, built around the current copy of their weights.

use kdgat_graph::{Batch, Level, ListedPaths, OfPaths, PathKind, Space};
use kdgat_nn::attention::Backend;
use kdgat_nn::blocks::{self, Run};
use kdgat_nn::gat::{CLASSES, GatBlock};
use kdgat_nn::gnn::GnnBlock;
use kdgat_nn::graph_vgae::GraphVgaeBlock;
use kdgat_nn::layers::Mode;
use kdgat_nn::vgae::{VgaeBlock, last_width};
use kdgat_nn::{Architecture, Block, GnnConfig, GnnKind, Scope};
use tch::{Kind, TchError, Tensor};

use super::{Asked, NodeIndices, TeacherVocabulary, Views};
use crate::model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
use crate::targets::{TargetLayout, TargetName};

/// A network for graphs whose weights never change. Its layers are the network's blocks; blocks that no target needs, such as other decoders of
/// a VGAE, are never loaded.
struct FrozenBlocks<B: Block> {
    config: B::Config,
    /// `None` for a network that reads no CAN IDs.
    indices: Option<NodeIndices>,
    kernel: Backend,
    asked: Asked,
    layout: TargetLayout,
    layers: Vec<LayerSpec>,
}

/// Builds the teacher of this architecture, which reads graphs; that of the nodes of one graph is a [`FrozenNodes`](super::FrozenNodes).
///
/// # Errors
/// For a network for the nodes of one graph.
pub fn model(
    architecture: Architecture,
    vocabulary: TeacherVocabulary,
    kernel: Backend,
    asked: Asked,
) -> Result<Box<dyn FrozenModel>, ModelError> {
    let layout = layout(&architecture, asked)?;
    let indices = Some(NodeIndices::new(vocabulary, asked));
    Ok(match architecture {
        Architecture::Vgae(config) => Box::new(FrozenBlocks::<VgaeBlock>::new(config, indices, kernel, asked, layout)?),
        Architecture::Gat(config) => Box::new(FrozenBlocks::<GatBlock>::new(config, indices, kernel, asked, layout)?),
        Architecture::Graph(config) => Box::new(FrozenBlocks::<GnnBlock>::new(config, None, kernel, asked, layout)?),
        Architecture::GraphVgae(config) => {
            Box::new(FrozenBlocks::<GraphVgaeBlock>::new(config, None, kernel, asked, layout)?)
        }
        Architecture::Nodes(_) => return Err(needs_its_graph()),
        Architecture::Pretraining(_) => return Err(has_no_outputs()),
    })
}

fn needs_its_graph() -> ModelError {
    ModelError::Other("a network for the nodes of one graph needs that graph".to_owned())
}

fn has_no_outputs() -> ModelError {
    ModelError::Other("a pre-trained network has no outputs to distil".to_owned())
}

/// The targets of a network: its outputs, and the latent or the hidden rows that are asked for.
fn layout(architecture: &Architecture, asked: Asked) -> Result<TargetLayout, ModelError> {
    let autoencoder =
        |latent: i64, features: i64| TargetLayout::vgae(asked.latent.then_some(latent as usize), features as usize);
    let (layout, hidden) = match architecture {
        Architecture::Vgae(config) => {
            let layout = autoencoder(config.latent, config.input.node_features());
            (layout, vec![(TargetName::HiddenNodes, last_width(config))])
        }
        Architecture::Gat(config) => {
            let hidden = (TargetName::HiddenGraphs, config.embedding_columns());
            (TargetLayout::classifier(CLASSES as usize), vec![hidden])
        }
        Architecture::Graph(config) => (outputs(config), hidden_rows(config)),
        Architecture::GraphVgae(config) => {
            let layout = autoencoder(config.latent(), config.encoder.node_features);
            (layout, vec![(TargetName::HiddenNodes, config.encoder.width())])
        }
        Architecture::Nodes(_) => return Err(needs_its_graph()),
        Architecture::Pretraining(_) => return Err(has_no_outputs()),
    };
    let hidden = hidden.into_iter().filter(|_| asked.hidden);
    Ok(hidden.fold(layout, |layout, (name, columns)| layout.with_hidden(name, columns as usize)))
}

/// The outputs of a graph network, and its forces.
fn outputs(config: &GnnConfig) -> TargetLayout {
    let outputs = config.outputs as usize;
    let layout = match config.level {
        Level::Graph => TargetLayout::classifier(outputs),
        Level::Node => TargetLayout::of_nodes(outputs),
    };
    if config.gives_forces() { layout.with_hidden(TargetName::Forces, 3) } else { layout }
}

/// The rows that the head of a graph network reads, and the vectors of a PaiNN.
fn hidden_rows(config: &GnnConfig) -> Vec<(TargetName, i64)> {
    let rows = match config.hidden_level() {
        Level::Graph => TargetName::HiddenGraphs,
        Level::Node => TargetName::HiddenNodes,
    };
    let vectors = (config.kind == GnnKind::PaiNN).then_some((TargetName::Vectors, 3 * config.hidden));
    [(rows, config.pooled_columns())].into_iter().chain(vectors).collect()
}

impl<B: Block> FrozenBlocks<B> {
    fn new(
        config: B::Config,
        indices: Option<NodeIndices>,
        kernel: Backend,
        asked: Asked,
        layout: TargetLayout,
    ) -> Result<Self, ModelError> {
        let layer = |(index, name)| Ok(LayerSpec { name, tensors: blocks::tensor_names::<B>(&config, index)? });
        let layers = B::names(&config).into_iter().enumerate().map(layer).collect::<Result<_, ModelError>>()?;
        Ok(Self { config, indices, kernel, asked, layout, layers })
    }
}

impl<B: Block<Config: Send>> FrozenModel for FrozenBlocks<B> {
    fn target_layout(&self) -> TargetLayout {
        self.layout.clone()
    }

    fn layers(&self) -> Vec<LayerSpec> {
        self.layers.clone()
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError> {
        let with_ids = match &self.indices {
            Some(indices) if layer == 0 => {
                Some(Batch { id_input: indices.of(batch)?, memory: None, ..batch.shallow_clone() })
            }
            _ => None,
        };
        let run =
            Run::new(with_ids.as_ref().unwrap_or(batch), B::edge_scaling(&self.config), self.kernel, Mode::Evaluation)
                .keeping(self.asked.latent, self.asked.hidden);
        let mut source = Views(weights);
        let block = B::new(&mut Scope::root(&mut source), &self.config, layer, self.kernel)?;
        Ok(block.forward(&self.config, state, &run)?)
    }
}

/// Positions of the three nodes of a batch, half a cutoff apart along the axes, all their pairs, and an angle with parameters of so many names, if
/// any are listed.
pub(super) fn probe_space(cutoff: f64, listed: &OfPaths<Vec<String>>) -> Result<Space, TchError> {
    let edge = (cutoff / 2.0) as f32;
    let paths = |kind: PathKind| {
        let Some(names) = listed.of(kind) else { return Ok(None) };
        let (nodes, rows): (&[i64], _) = match kind {
            PathKind::Angles => (&[0, 1, 2, 2, 1, 0], [0, 0, 2, 2]),
            PathKind::Dihedrals => (&[], [0; 4]),
        };
        let (nodes, count) = (Tensor::f_from_slice(nodes)?, (nodes.len() / kind.nodes()) as i64);
        Ok::<_, TchError>(Some(ListedPaths {
            nodes: nodes.f_view([count, kind.nodes() as i64])?,
            parameters: Tensor::f_zeros([count, names.len() as i64], (Kind::Float, tch::Device::Cpu))?,
            row_pointers: Tensor::f_from_slice(&rows)?,
        }))
    };
    Ok(Space {
        positions: Tensor::f_from_slice(&[0.0, 0.0, 0.0, edge, 0.0, 0.0, 0.0, edge, 0.0])?.f_view([3, 3])?,
        kinds: Tensor::f_zeros([3], (Kind::Int64, tch::Device::Cpu))?,
        targets: Tensor::f_from_slice(&[0_i64, 0, 1, 1, 2, 2])?,
        sources: Tensor::f_from_slice(&[1_i64, 2, 0, 2, 0, 1])?,
        row_pointers: Tensor::f_from_slice(&[0, 2, 4, 6])?,
        shifts: None,
        forces: None,
        displaced: None,
        paths: [paths(PathKind::Angles)?, paths(PathKind::Dihedrals)?],
    })
}

#[cfg(test)]
mod tests {
    use kdgat_graph::FeatureSet;
    use kdgat_graph::edge_list::{EdgeList, from_edge_list};
    use kdgat_nn::sgmp::PathConfig;
    use kdgat_nn::{FreshParameters, Gnn, RadialBasis, SpaceConfig};
    use tch::Device;

    use super::super::probe_batch;
    use super::*;

    /// A graph network as teacher, with hints.
    fn teacher(config: GnnConfig) -> Box<dyn FrozenModel> {
        let asked = Asked::OUTPUTS_AND_HINTS;
        model(Architecture::Graph(config), TeacherVocabulary::Shared, Backend::Auto, asked).unwrap()
    }

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
            displaced: None,
            paths: Default::default(),
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
                level,
                virtual_node,
                paths: (kind == GnnKind::Sgmp).then_some(PathConfig { cutoff: 2.0, gaussians: [4, 3, 5] }),
                ..GnnConfig::new(kind, [10, 6, 3, 2])
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
            let targets = teacher(config).forward(&views, &batch).unwrap();
            let [logits, hidden] = match level {
                Level::Graph => [TargetName::Logits, TargetName::HiddenGraphs],
                Level::Node => [TargetName::NodeLogits, TargetName::HiddenNodes],
            };
            assert!(targets.get(logits).unwrap().equal(&outputs));
            assert!(targets.get(hidden).unwrap().equal(&pooled));
        }
    }

    /// On a thread without gradients, a teacher computes the outputs, forces and rows of the model.
    #[test]
    fn a_teacher_gives_the_forces_of_its_model() {
        let mut batch = probe_batch(1, FeatureSet::Window).unwrap();
        batch.space = Some(Box::new(probe_space(4.0, &OfPaths::default()).unwrap()));
        for (kind, forces) in [(GnnKind::PaiNN, true), (GnnKind::SchNet, true), (GnnKind::PaiNN, false)] {
            let basis = RadialBasis::Gaussian;
            let config = GnnConfig {
                space: Some(SpaceConfig {
                    cutoff: 4.0,
                    kinds: 3,
                    features: false,
                    basis,
                    radial_functions: 5,
                    forces,
                    irreps: None,
                }),
                ..GnnConfig::new(kind, [1, 4, 2, 1])
            };
            let mut parameters = FreshParameters::new(3, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            let expected = model.in_space(&batch, Mode::Evaluation).unwrap().unwrap();
            let mut views = WeightViews::default();
            for named in parameters.into_tensors() {
                views.insert(named.name, named.tensor.detach());
            }
            let targets = tch::no_grad(|| teacher(config).forward(&views, &batch).unwrap());
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
