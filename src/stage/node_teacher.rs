//! The teacher of the nodes of one large graph: found with the further ones, and started on its thread.

use std::path::Path;
use std::sync::Arc;

use tch::Device;

use super::cache_settings::cache_memory_bytes;
use super::node_data::NodeData;
use super::nodes::labels_of;
use super::recorded_division::{RecordedSplit, division_flags, expect_same_division};
use super::teacher::{FoundTeacher, ModelRole, Search, TeacherUse, data_flag, teacher_options};
use super::{StageError, training};
use crate::config::Config;
use crate::distill::frozen::{
    ActivationPlace, Asked, CachedNodes, FrozenNodes, LoadedModel, NodeTeacher, TargetChanges, TargetSmoothing,
};
use crate::distill::objective::TeacherLink;
use crate::distill::{FrozenModel, StoreShape, Teacher, TeacherError};
use crate::files;
use crate::nn::{Architecture, DatasetIdentity, NodeGnnConfig};
use crate::nodes::{NodeGraph, NodeSplit, ShareCorrection, Smoothing, with_positions};

impl FoundTeacher {
    /// The teachers of the nodes of a graph, each with the positions that it reads.
    ///
    /// # Errors
    /// If the teacher is of another kind.
    pub fn node_teachers(&self, visible: &Arc<NodeGraph>) -> Result<Vec<NodeTeacher>, StageError> {
        let teacher = |architecture: Architecture| {
            let Architecture::Nodes(config) = architecture else {
                return Err(StageError::Input("the teacher of a network for nodes must be one, too".to_owned()));
            };
            let graph = Arc::new(with_positions(visible, config.positions as usize)?);
            Ok(NodeTeacher { config, graph })
        };
        self.architectures().into_iter().map(teacher).collect()
    }
}

/// Finds the configured teacher of a network for nodes, if any: by path, or the one registered for the dataset. It may have other layers
/// than the student, but must read the same features and have the same classes.
///
/// # Errors
/// Also if the teacher was trained on another division of the nodes: it would pass on labels of this one's test nodes.
pub fn find_for_nodes(
    config: &Config,
    data: &NodeData,
    student: &NodeGnnConfig,
    split: &NodeSplit,
) -> Result<Option<FoundTeacher>, StageError> {
    let command = format!("kdgat train --preset sage,teacher{}{}", data_flag(config), division_flags(config));
    let search = Search { dataset: &data.graph.name, kind: "nodes", command: &command };
    let division = RecordedSplit::new(split.test_digest(&data.graph)?, split.origin.clone());
    let found = search.run(config, |network, role| expect_fitting(network, role, student, &division, &command))?;
    let Some(found) = found else { return Ok(None) };
    let changes = target_changes(config, data, split);
    Ok(Some(FoundTeacher { changes, ..FoundTeacher::of_shared(found, Asked::OUTPUTS)? }))
}

/// The configured changes of the targets.
fn target_changes(config: &Config, data: &NodeData, split: &NodeSplit) -> TargetChanges {
    let nodes = &config.nodes;
    if nodes.kd_smoothing_steps == 0 && !nodes.kd_class_shares {
        // Labels of all nodes of a large graph take nearly a gigabyte.
        return TargetChanges::default();
    }
    let training = Arc::new(labels_of(&data.graph, &split.training));
    let smoothing = (nodes.kd_smoothing_steps > 0).then(|| TargetSmoothing {
        smoothing: Smoothing { steps: nodes.kd_smoothing_steps, teleport: nodes.kd_smoothing_teleport },
        labels: Arc::clone(&training),
    });
    let shares = nodes.kd_class_shares.then(|| ShareCorrection {
        validation: Arc::new(labels_of(&data.graph, &split.validation)),
        training,
        visible: split.visible(data.graph.num_nodes()).map(Arc::new),
    });
    TargetChanges { shares, smoothing }
}

/// Refuses a teacher that is of another kind, has other features or classes than `student`, or was trained on another division.
fn expect_fitting(
    found: &LoadedModel,
    role: &ModelRole,
    student: &NodeGnnConfig,
    division: &RecordedSplit,
    command: &str,
) -> Result<(), StageError> {
    let path = found.path.display();
    let Architecture::Nodes(architecture) = &found.architecture else {
        let kind = found.architecture.model_name();
        return Err(StageError::Input(format!(
            "the teacher {path} is a model of kind {kind}, not of the nodes of one graph; train one with {command}"
        )));
    };
    let sizes = |config: &NodeGnnConfig| [config.data_features(), config.outputs];
    if sizes(architecture) != sizes(student) {
        let text = |[features, classes]: [i64; 2]| format!("{features} features and {classes} classes");
        return Err(StageError::Input(format!(
            "the teacher {path} has {}, the data {}; train a teacher on this data with {command}",
            text(sizes(architecture)),
            text(sizes(student))
        )));
    }
    expect_same_division(&found.path, role, "nodes", division, command)
}

/// Starts the thread of a teacher for the nodes of `graph`, if there is a teacher. Each node counts as a graph of one node.
pub fn start_for_nodes(
    config: &Config,
    found: Option<FoundTeacher>,
    graph: &Arc<NodeGraph>,
    device: Device,
    usage: TeacherUse,
) -> Result<TeacherLink, StageError> {
    let settings = &config.distillation;
    let Some(found) = found else { return Ok(TeacherLink::none()) };
    let teachers = found.node_teachers(graph)?;
    // `node_teachers` has at least one.
    let NodeTeacher { config: first, graph } = teachers[0].clone();
    let dataset = DatasetIdentity { name: graph.name.clone(), digest: graph.digest.clone() };
    let options = teacher_options(config, &found, device, &dataset, usage.batches_per_epoch);
    let shape = node_shape(&graph, Some(usage.graphs));
    let model: Box<dyn FrozenModel> = match config.nodes.teacher_fanouts {
        Some(_) => Box::new(CachedNodes::new(&first).map_err(TeacherError::from)?),
        None => {
            let place = activation_place(config, &settings.teacher_cache_dir)?;
            let kernel = training::attention_kernel(config);
            let model = FrozenNodes::new(teachers, found.changes.clone(), kernel, place);
            Box::new(model.map_err(TeacherError::from)?)
        }
    };
    let teacher = Teacher::start(model, found.weights, &options, &shape)?;
    Ok(TeacherLink::new(Some(teacher), settings.teacher_burst, training::alpha(config)))
}

/// The nodes of a graph as a store whose graphs have one node each.
pub fn node_shape(graph: &NodeGraph, used: Option<Vec<u64>>) -> StoreShape {
    StoreShape { dataset_digest: graph.digest.clone(), node_counts: vec![1; graph.num_nodes()], used }
}

/// Memory for the activations of all nodes at one layer: 1/4 of what is free; beyond it they lie in a file in `folder`.
pub fn activation_place(config: &Config, folder: &Path) -> Result<ActivationPlace, StageError> {
    std::fs::create_dir_all(folder).map_err(files::failed("create", folder))?;
    Ok(ActivationPlace { memory_bytes: cache_memory_bytes(config), folder: folder.to_owned() })
}
