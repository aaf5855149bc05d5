//! The models of [`kdgat_nn`] as frozen teachers, built around views of the current copy of the weights.
//!
//! A teacher uses the vocabulary that it was trained with. If the student has another one, each node is looked up in the teacher's
//! vocabulary by its CAN ID; an ID that the teacher does not know is its UNKNOWN.

mod blocks;
mod ensemble;
mod loaded;
mod node_targets;
mod nodes;
mod weight_file;

use std::sync::Arc;

use kdgat_graph::edge_list::{EdgeList, from_edge_list};
use kdgat_graph::{Batch, EDGE_FEATURES, FeatureSet, Vocabulary, any_id};
use kdgat_nn::attention::Backend;
use kdgat_nn::parameters::{Init, Role, TensorSource};
use kdgat_nn::{Architecture, GnnConfig};
use kdgat_nodes::NodeGraph;
use kdgat_torch::device::Uploader;
use parking_lot::Mutex;
use tch::{Device, Kind, TchError, Tensor};

use self::blocks::probe_space;
use super::model::{FrozenModel, ModelError, WeightViews};
use super::registry::{Registered, RegistryError, TeacherConfig};
use super::{StoreShape, Teacher, TeacherError, TeacherOptions, Weights, WeightsError};

pub use blocks::model;
pub use ensemble::FrozenEnsemble;
pub use loaded::LoadedModel;
pub use node_targets::{TargetChanges, TargetSmoothing};
pub use nodes::{ActivationPlace, CachedNodes, FrozenNodes, NodeTeacher, outputs_of_all_nodes, targets_of_all_nodes};
pub use weight_file::{NoModel, TEACHER_WEIGHTS, weight_file};

/// The targets that a student needs from its teacher, besides its logits or its reconstruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The latent of a VGAE; other networks have none.
    pub latent: bool,
    /// A hidden layer, for hints.
    pub hidden: bool,
    /// Visibility to the teacher of the IDs that are hidden from the student in training.
    pub hidden_ids: HiddenIds,
}

/// Visibility to the teacher of the IDs that are hidden from the student in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenIds {
    /// The teacher sees all IDs.
    Seen,
    /// They are hidden from it, too. In the input of the student, which has a vocabulary, they are UNKNOWN.
    Unknown,
    /// They are hidden from it, too. In the input of the student, which hashes IDs, they are replaced by other ones.
    Replaced,
}

impl Asked {
    /// The counterparts of all of the student's own outputs: logits, or latent and reconstruction.
    pub const OUTPUTS: Self = Self { latent: true, hidden: false, hidden_ids: HiddenIds::Seen };
    /// [`Self::OUTPUTS`] and a hidden layer.
    pub const OUTPUTS_AND_HINTS: Self = Self { hidden: true, ..Self::OUTPUTS };
}

/// The teacher's mapping from a node's CAN ID to an embedding index.
#[derive(Debug, Clone)]
pub enum TeacherVocabulary {
    /// The student's indices are the teacher's, too.
    Shared,
    /// Indices are looked up by CAN ID.
    Own(Arc<Vocabulary>),
    /// The teacher hashes CAN IDs.
    Hashed,
    /// IDs are hidden from the teacher: it reads deviations from a car's profile, and all its nodes are UNKNOWN.
    Hidden,
}

impl TeacherVocabulary {
    /// Chooses the mapping for a teacher of this architecture; `Shared` if both vocabularies list the same IDs.
    pub fn new(architecture: &Architecture, teacher: Vocabulary, student: &Vocabulary) -> Self {
        if architecture.input().profile.is_some() {
            return Self::Hidden;
        }
        if architecture.hashes_ids() {
            return Self::Hashed;
        }
        if teacher.ids() == student.ids() { Self::Shared } else { Self::Own(Arc::new(teacher)) }
    }
}

/// Computes the teacher's index of each node.
#[derive(Debug)]
struct NodeIndices {
    vocabulary: TeacherVocabulary,
    hidden: HiddenIds,
    /// Uploads looked-up indices to a GPU without waiting for queued work; created at first use, on the teacher's thread.
    uploader: Mutex<Option<Uploader>>,
}

impl NodeIndices {
    fn new(vocabulary: TeacherVocabulary, asked: Asked) -> Self {
        Self { vocabulary, hidden: asked.hidden_ids, uploader: Mutex::new(None) }
    }

    /// `[num_nodes]`, i64: the teacher's index of each node's ID, or the ID itself if the teacher hashes it. An ID that is hidden from it is
    /// UNKNOWN, or another ID, always the same.
    fn of(&self, batch: &Batch) -> Result<Tensor, TchError> {
        let (all, instead) = match (&self.vocabulary, self.hidden) {
            // The student's input has the same meaning to the teacher.
            (TeacherVocabulary::Shared, HiddenIds::Unknown) | (TeacherVocabulary::Hashed, HiddenIds::Replaced) => {
                return Ok(batch.id_input.shallow_clone());
            }
            (TeacherVocabulary::Hidden, _) => return batch.id_index.f_full_like(i64::from(Vocabulary::UNKNOWN)),
            (TeacherVocabulary::Shared, _) => (batch.id_index.shallow_clone(), None),
            (TeacherVocabulary::Own(vocabulary), _) => {
                let [indices] = self.looked_up(batch, [&|id| vocabulary.index_of(id)])?;
                (indices, None)
            }
            (TeacherVocabulary::Hashed, HiddenIds::Seen) => {
                let [ids] = self.looked_up(batch, [&|id| id])?;
                (ids, None)
            }
            (TeacherVocabulary::Hashed, HiddenIds::Unknown) => {
                let [all, others] = self.looked_up(batch, [&|id| id, &|id| any_id(u64::from(id))])?;
                (all, Some(others))
            }
        };
        let is_hidden = match self.hidden {
            HiddenIds::Seen => return Ok(all),
            HiddenIds::Unknown => batch.id_input.f_ne_tensor(&batch.id_index)?,
            HiddenIds::Replaced => {
                let [ids] = self.looked_up(batch, [&|id| id])?;
                batch.id_input.f_ne_tensor(&ids)?
            }
        };
        match instead {
            Some(others) => others.f_where_self(&is_hidden, &all),
            None => all.f_masked_fill(&is_hidden, i64::from(Vocabulary::UNKNOWN)),
        }
    }

    /// Indices of the nodes' IDs by each of the functions, uploaded in one copy.
    fn looked_up<const COUNT: usize>(
        &self,
        batch: &Batch,
        functions: [&dyn Fn(u32) -> u32; COUNT],
    ) -> Result<[Tensor; COUNT], TchError> {
        let indices = functions.map(|index| {
            let indices: Vec<i64> = batch.can_ids.iter().map(|&id| i64::from(index(id))).collect();
            Tensor::f_from_slice(&indices)
        });
        let indices = indices.into_iter().collect::<Result<Vec<_>, _>>()?;
        let device = batch.id_index.device();
        let mut uploader = self.uploader.lock();
        let uploader = match &mut *uploader {
            Some(uploader) if uploader.device() == device => uploader,
            other => other.insert(Uploader::new(device)?),
        };
        let uploaded = uploader.upload(&indices.iter().collect::<Vec<_>>())?;
        uploaded.try_into().map_err(|_| TchError::Shape("the upload lost a tensor".to_owned()))
    }
}

/// Weights by name, as the tensor source of a model's layers.
struct Views<'a>(&'a WeightViews);

impl TensorSource for Views<'_> {
    fn tensor(&mut self, name: &str, shape: &[i64], _: Kind, _: Init, _: Role) -> Result<Tensor, kdgat_nn::ModelError> {
        let expected = || shape.to_vec();
        let missing = |_| kdgat_nn::ModelError::MissingTensor { name: name.to_owned(), expected: expected() };
        let tensor = self.0.get(name).map_err(missing)?;
        if tensor.size() != shape {
            let (name, found) = (name.to_owned(), tensor.size());
            return Err(kdgat_nn::ModelError::TensorShape { name, found, expected: expected() });
        }
        Ok(tensor)
    }
}

/// Prefix of a teacher's tensors among the weights of `count` teachers; none if there is only one.
pub fn tensor_prefix(teacher: usize, count: usize) -> String {
    if count == 1 { String::new() } else { format!("{teacher}.") }
}

/// The weights of several teachers as those of one, with the prefixes of [`tensor_prefix`]; those of a single teacher stay as they are.
///
/// # Errors
/// Tensors that cannot be copied into host memory.
pub fn joined_weights(mut teachers: Vec<Weights>) -> Result<Weights, WeightsError> {
    if teachers.len() == 1 {
        return Ok(teachers.remove(0));
    }
    let count = teachers.len();
    let named = teachers.iter().enumerate().flat_map(|(index, weights)| {
        let prefix = tensor_prefix(index, count);
        weights.iter().map(move |(name, tensor)| (format!("{prefix}{name}"), tensor.shallow_clone()))
    });
    Weights::from_tensors(named)
}

/// The tensor at `position` in the state of the previous layer.
fn state_at(state: &[Tensor], position: usize) -> Result<Tensor, kdgat_nn::ModelError> {
    let missing = || kdgat_nn::ModelError::Architecture {
        field: "layer",
        found: format!("{} tensors from the previous layer", state.len()),
        expected: "layers must run in order, each with the state of the previous one",
    };
    state.get(position).map(Tensor::shallow_clone).ok_or_else(missing)
}

/// Reads the architecture from a teacher's `config.json`. `vocabulary_size` and `dropout` may be missing there.
///
/// # Errors
/// Names the first field that no model can be built from, before any size is computed from it.
pub fn architecture(config: &TeacherConfig) -> Result<Architecture, kdgat_nn::ModelError> {
    let mut fields = config.architecture.clone();
    fields.entry("vocabulary_size").or_insert_with(|| (config.vocabulary.len() + 1).into());
    fields.entry("dropout").or_insert_with(|| 0.0.into());
    let architecture = Architecture::from_json(&config.model, &fields.into())?;
    check_architecture(&architecture, config.vocabulary.len())?;
    Ok(architecture)
}

/// Reads the architecture of a registered teacher.
///
/// # Errors
/// Names the `config.json` and the field.
pub fn registered_architecture(teacher: &Registered) -> Result<Architecture, RegistryError> {
    architecture(&teacher.config).map_err(|error| teacher.invalid_config(error.to_string()))
}

/// Checks that a model can be built, and that its embedding has a row for each of `ids` CAN IDs and one for UNKNOWN.
fn check_architecture(architecture: &Architecture, ids: usize) -> Result<(), kdgat_nn::ModelError> {
    architecture.check()?;
    if architecture.vocabulary_size() != ids as i64 + 1 {
        return Err(kdgat_nn::ModelError::Architecture {
            field: "vocabulary_size",
            found: format!("{}, but the vocabulary has {ids} IDs", architecture.vocabulary_size()),
            expected: "must be the number of IDs plus one, for unknown IDs",
        });
    }
    Ok(())
}

/// Checks that a teacher's weights fit its architecture and that two forwards of a graph are equal bit by bit.
///
/// # Errors
/// Names the tensor that does not fit, or the target that differs.
pub fn check(config: &TeacherConfig, weights: Weights) -> Result<(), TeacherError> {
    let architecture = architecture(config).map_err(ModelError::from)?;
    let features = architecture.input().features();
    let mut batch = probe_batch(config.vocabulary.len() as i64 + 1, features).map_err(ModelError::Other)?;
    let of_graphs = match &architecture {
        Architecture::Graph(config) => Some(config),
        Architecture::GraphVgae(config) => Some(&config.encoder),
        _ => None,
    };
    if let Some(network @ GnnConfig { node_features, edge_features, .. }) = of_graphs {
        let filled = |size: [i64; 2]| Tensor::f_full(size, 0.5, (Kind::Float, Device::Cpu)).map_err(ModelError::from);
        batch.continuous = filled([batch.num_nodes(), *node_features])?;
        batch.edge_attributes = Some(filled([batch.adjacency.num_edges(), *edge_features])?);
        let listed = network.path_parameters().unwrap_or_default();
        let positions = architecture.needs().space.map(|space| probe_space(space.cutoff.unwrap_or(1.0), &listed));
        batch.space = positions.transpose().map_err(ModelError::from)?.map(Box::new);
    }
    let own = Vocabulary::from_ids(config.vocabulary.iter().copied());
    let vocabulary = TeacherVocabulary::new(&architecture, own.clone(), &own);
    let model: Box<dyn FrozenModel> = match architecture {
        Architecture::Nodes(config) => {
            let graph = Arc::new(NodeGraph::ring(3, config.node_features as usize, config.outputs as usize));
            let place = ActivationPlace { memory_bytes: u64::MAX, folder: std::env::temp_dir() };
            Box::new(FrozenNodes::new(
                vec![NodeTeacher { config, graph }],
                TargetChanges::default(),
                Backend::Auto,
                place,
            )?)
        }
        other => model(other, vocabulary, Backend::Auto, Asked::OUTPUTS)?,
    };
    let mut running = Teacher::start(model, weights, &TeacherOptions::new(Device::Cpu), &StoreShape::default())?;
    running.submit(vec![batch.shallow_clone(), batch.shallow_clone()]);
    let (first, second) = (running.targets()?, running.targets()?);
    for ((name, first), (_, second)) in first.tensors.iter().zip(&second.tensors) {
        if first != second {
            let reason = format!("its target '{name}' differs between two runs on the same graph");
            return Err(ModelError::Other(reason).into());
        }
    }
    Ok(())
}

/// A batch with one graph: three nodes in a ring.
pub(crate) fn probe_batch(vocabulary_size: i64, features: FeatureSet) -> Result<Batch, String> {
    let last = (vocabulary_size - 1).max(0) as u32;
    let list = EdgeList {
        id_index: &[0, last.min(1), last],
        continuous: &vec![0.5; 3 * features.node_features()],
        sources: &[0, 1, 2],
        targets: &[1, 2, 0],
        edge_attributes: Some(&[0.5; 3 * EDGE_FEATURES]),
        node_pointers: &[0, 3],
        labels: &[0],
        vocabulary_size,
    };
    from_edge_list(&list).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(model: &str, architecture: Value) -> TeacherConfig {
        let text =
            json!({ "format_version": 1, "model": model, "architecture": architecture, "vocabulary": [1, 2, 3] });
        serde_json::from_value(text).unwrap()
    }

    /// An ID that is hidden from the student is UNKNOWN to a teacher that sees its view, whatever the teacher's vocabulary.
    #[test]
    fn a_teacher_sees_the_view_of_its_student() {
        let mut batch = probe_batch(3, FeatureSet::Window).unwrap();
        batch.can_ids = Arc::new(vec![9, 20, 30]);
        // The student knows 20 and 30, and does not see the 30 now. The teacher knows 9 and 30.
        let own = || TeacherVocabulary::Own(Arc::new(Vocabulary::from_ids([9, 30])));
        let (vocabulary, hashed): ([i64; 3], [i64; 3]) = ([0, 1, 0], [9, 20, 77]);
        let other = i64::from(any_id(30));
        for (input, hidden_ids, teacher, expected) in [
            (vocabulary, HiddenIds::Seen, TeacherVocabulary::Shared, [0, 1, 2]),
            (vocabulary, HiddenIds::Seen, own(), [1, 0, 2]),
            (vocabulary, HiddenIds::Seen, TeacherVocabulary::Hashed, [9, 20, 30]),
            (vocabulary, HiddenIds::Unknown, TeacherVocabulary::Shared, [0, 1, 0]),
            (vocabulary, HiddenIds::Unknown, own(), [1, 0, 0]),
            (vocabulary, HiddenIds::Unknown, TeacherVocabulary::Hashed, [9, 20, other]),
            (vocabulary, HiddenIds::Unknown, TeacherVocabulary::Hidden, [0, 0, 0]),
            (hashed, HiddenIds::Replaced, TeacherVocabulary::Shared, [0, 1, 0]),
            (hashed, HiddenIds::Replaced, own(), [1, 0, 0]),
            (hashed, HiddenIds::Replaced, TeacherVocabulary::Hashed, hashed),
        ] {
            batch.id_input = Tensor::from_slice(&input);
            let said = format!("{hidden_ids:?} from the student of {teacher:?}");
            let indices = NodeIndices::new(teacher, Asked { hidden_ids, ..Asked::OUTPUTS }).of(&batch).unwrap();
            assert_eq!(Vec::<i64>::try_from(indices).unwrap(), expected, "{said}");
        }
    }

    /// Each field that sizes are computed from is checked before the computation.
    #[test]
    fn fields_that_no_model_can_have_are_named() {
        let vgae = json!({ "hidden": [8, 4], "latent": 4, "heads": 1, "embedding": 2 });
        let gat = json!({ "hidden": 8, "layers": 2, "heads": 2, "embedding": 2, "fc_layers": 2 });
        for (model, sound, fields) in [
            ("vgae", &vgae, ["latent", "heads", "embedding", "vocabulary_size", "hidden"].as_slice()),
            ("gat", &gat, &["hidden", "layers", "heads", "embedding", "fc_layers", "vocabulary_size"]),
        ] {
            architecture(&config(model, sound.clone())).unwrap();
            for &field in fields {
                for number in [0, -1, i64::MIN, i64::MAX, 1 << 32] {
                    let value = if sound[field].is_array() { json!([8, number]) } else { json!(number) };
                    refused(model, sound, field, value);
                }
            }
            for dropout in [-0.1, 1.0, 1e300] {
                refused(model, sound, "dropout", json!(dropout));
            }
            refused(model, sound, "vocabulary_size", json!(3));
            let scaling = json!({ "mean": vec![0.0; EDGE_FEATURES], "deviation": vec![0.0; EDGE_FEATURES] });
            refused(model, sound, "edge_scaling", scaling);
            refused(model, sound, "probes", json!({ "id_hash": { "probes": 0, "buckets": 8 } }));
            refused(model, sound, "buckets", json!({ "id_hash": { "probes": 1, "buckets": -8 } }));
            refused(model, sound, "node_scaling", json!({ "node_scaling": { "mean": [1.0], "deviation": [0.0] } }));
        }
        refused("vgae", &vgae, "hidden", json!([]));
        refused("vgae", &vgae, "hidden", json!(vec![4; 2000]));
        // Each is in its range, but together they are too many.
        let mut large = gat.clone();
        (large["layers"], large["heads"]) = (json!(1024), json!(1024));
        refused("gat", &large, "hidden", json!(1_000_000));
    }

    fn refused(model: &str, sound: &Value, field: &str, value: Value) {
        let mut changed = sound.clone();
        let is_input = value.get("id_hash").or(value.get("node_scaling")).is_some();
        changed[if is_input { "input" } else { field }] = value;
        let error = architecture(&config(model, changed)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{field} = ")), "{model}.{field}: {error}");
    }
}
